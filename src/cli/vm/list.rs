//! `cocoon vm list` and `cocoon vm inspect`.

use std::sync::Arc;

use clap::Args;
use cocoon_model::command::VmmSeen;
use cocoon_model::record::VmRecord;
use serde::{Serialize, Serializer};

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
    let (engine, root_unconfirmed) = global.reading_engine()?;
    let vms = engine.vms()?;
    // One that cannot be looked at is no reason to hide the others.
    let glance = |record: &Arc<VmRecord>| {
        VmObject::glance(&engine, record)
            .unwrap_or_else(|error| VmmSeen::Inconclusive(error.to_string()))
    };
    let seen: Vec<VmmSeen> = vms.iter().map(glance).collect();
    let object = |(record, seen): (&Arc<VmRecord>, &VmmSeen)| VmObject {
        root_unconfirmed,
        ..VmObject::new(record, seen)
    };
    let objects = || vms.iter().zip(&seen).map(object);
    match args.output.format {
        Format::Json => output::json(&Listing(objects)),
        Format::Table => output::table(&COLUMNS, objects().map(|vm| vm.row()).collect()),
    }
}

/// A list that is written as it is made: of many VMs it would be large.
struct Listing<F>(F);

impl<I: Iterator<Item = VmObject>, F: Fn() -> I> Serialize for Listing<F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq((self.0)())
    }
}

pub(super) fn inspect(args: &InspectArgs, global: Global) -> Result<(), CliError> {
    let (engine, root_unconfirmed) = global.reading_engine()?;
    let id = engine.resolve(&args.vm)?;
    let Some(record) = engine.vm(id)? else {
        return Err(EngineError::NotFound { what: "vm", reference: args.vm.clone() }.into());
    };
    output::json(&VmObject { root_unconfirmed, ..VmObject::now(&engine, &record)? })
}
