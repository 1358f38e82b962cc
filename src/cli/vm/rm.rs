//! `cocoon vm rm`.

use clap::Args;

use super::batch::{Batch, on_vms};
use crate::cli::args::{LockTimeout, OutputArg};
use crate::cli::{CliError, Global};
use crate::engine::Caller;
use crate::engine::removal::RemovalRequest;

#[derive(Debug, Args)]
pub(in crate::cli) struct RmArgs {
    /// Names, ids or beginnings of ids
    #[arg(required = true, value_name = "VM")]
    vms: Vec<String>,
    /// Kill a running VM first
    #[arg(long)]
    force: bool,
    /// Wait for a creation in flight, and then remove what was named only if it is still that
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    lock: LockTimeout,
    #[command(flatten)]
    output: OutputArg,
}

pub(super) fn run(args: &RmArgs, global: Global) -> Result<(), CliError> {
    let engine = global.engine()?;
    let request = RemovalRequest { force: args.force, wait: args.wait };
    let mut batch = Batch::new("deleted", args.output.format);
    on_vms(&engine, &args.vms, &mut batch, |engine, id| {
        engine.remove(id, request, &Caller::new("vm rm", Some(args.lock.timeout))?)
    });
    let done = batch.finish();
    crate::cli::tend(engine);
    done
}
