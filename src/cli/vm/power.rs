//! `cocoon vm start` and `cocoon vm stop`.

use std::time::Duration;

use clap::Args;
use cocoon_model::record::{StopMode, VmState};

use super::batch::{Batch, on_vms};
use crate::cli::args::{LockTimeout, OutputArg, duration};
use crate::cli::{CliError, Global};
use crate::engine::{Caller, Engine, EngineError};

#[derive(Debug, Args)]
pub(in crate::cli) struct StartArgs {
    /// Names, ids or beginnings of ids
    #[arg(required = true, value_name = "VM")]
    vms: Vec<String>,
    #[command(flatten)]
    lock: LockTimeout,
    #[command(flatten)]
    output: OutputArg,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct StopArgs {
    /// Names, ids or beginnings of ids
    #[arg(required_unless_present = "all", value_name = "VM")]
    vms: Vec<String>,
    /// Stop every VM that runs
    #[arg(long, conflicts_with = "vms")]
    all: bool,
    /// End the hypervisor at once, without asking the guest
    #[arg(long)]
    force: bool,
    /// How long the guest may take to power off [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    timeout: Option<Duration>,
    #[command(flatten)]
    output: OutputArg,
}

pub(super) fn start(args: &StartArgs, global: Global) -> Result<(), CliError> {
    let engine = global.engine()?;
    let mut batch = Batch::new("started", args.output.format);
    on_vms(&engine, &args.vms, &mut batch, |engine, id| {
        engine.start(id, &Caller::new("vm start", Some(args.lock.timeout))?).map(|_| ())
    });
    let done = batch.finish();
    crate::cli::tend(engine);
    done
}

/// How long a stop waits for a VM that somebody works on, beyond the guest's own time.
const LOCK_PATIENCE: Duration = Duration::from_secs(60);

pub(super) fn stop(args: &StopArgs, global: Global) -> Result<(), CliError> {
    let engine = global.engine()?;
    let patience = args.timeout.unwrap_or(engine.settings().stop_timeout);
    let mode = if args.force {
        StopMode::Kill
    } else {
        StopMode::Graceful { timeout_ms: u64::try_from(patience.as_millis()).unwrap_or(u64::MAX) }
    };
    let vms = if args.all { running(&engine)? } else { args.vms.clone() };
    let mut batch = Batch::new("stopped", args.output.format);
    on_vms(&engine, &vms, &mut batch, |engine, id| {
        let caller = Caller::new("vm stop", Some(patience.saturating_add(LOCK_PATIENCE)))?;
        engine.stop(id, mode, &caller).map(|_| ())
    });
    let done = batch.finish();
    crate::cli::tend(engine);
    done
}

/// The VMs that may have a VMM, those included whose start failed half-way.
fn running(engine: &Engine) -> Result<Vec<String>, EngineError> {
    let vms = engine.vms()?;
    let vms = vms.iter().map(|record| &record.core).filter(|core| core.state != VmState::Creating);
    let may_run = vms.filter(|core| core.state == VmState::Running || core.launch.is_some());
    Ok(may_run.map(|core| core.id.to_string()).collect())
}
