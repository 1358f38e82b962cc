//! `cocoon vm list` and `cocoon vm inspect`.

use clap::Args;

use crate::cli::args::{Format, OutputArg};
use crate::cli::vm_object::VmObject;
use crate::cli::{CliError, Global, output};
use crate::engine::EngineError;

#[derive(Debug, Args)]
pub(in crate::cli) struct ListArgs {
    #[command(flatten)]
    output: OutputArg,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct InspectArgs {
    /// Name, id or beginning of an id
    vm: String,
}

/// Columns of the table of VMs.
pub(in crate::cli) const COLUMNS: [&str; 10] =
    ["ID", "NAME", "STATE", "CPU", "MEMORY", "STORAGE", "THROTTLED", "IP", "IMAGE", "CREATED"];

pub(super) fn list(args: &ListArgs, global: Global) -> Result<(), CliError> {
    let engine = global.engine()?;
    let vms = engine.vms()?;
    let vms = vms.iter().map(|record| VmObject::now(&engine, record));
    let vms = vms.collect::<Result<Vec<_>, EngineError>>()?;
    match args.output.format {
        Format::Json => output::json(&vms),
        Format::Table => output::table(&COLUMNS, vms.iter().map(VmObject::row).collect()),
    }
}

pub(super) fn inspect(args: &InspectArgs, global: Global) -> Result<(), CliError> {
    let engine = global.engine()?;
    let id = engine.resolve(&args.vm)?;
    let Some(record) = engine.vm(id)? else {
        return Err(EngineError::NotFound { what: "vm", reference: args.vm.clone() }.into());
    };
    output::json(&VmObject::now(&engine, &record)?)
}
