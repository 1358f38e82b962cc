//! `cocoon vm reconcile-stale-create`.

use clap::Args;
use serde_json::json;

use crate::cli::args::{Format, OutputArg};
use crate::cli::{CliError, Global, output};
use crate::engine::reclaim::Reconciled;
use crate::engine::{Caller, EngineError};

#[derive(Debug, Args)]
#[command(after_help = "\
Outcomes, all with exit code 0:
  collected     its creator was dead; the VM is gone and its name free
  busy          its creator lives, nothing was touched; ask again later
  not-creating  it is a VM like any other
  not-found     there is no such VM
  unsupported   its hypervisor cannot be proven dead on this host")]
pub(in crate::cli) struct ReconcileArgs {
    /// Name, id or beginning of an id
    vm: String,
    #[command(flatten)]
    output: OutputArg,
}

pub(super) fn run(args: &ReconcileArgs, global: Global) -> Result<(), CliError> {
    let engine = global.engine()?;
    let id = match engine.resolve(&args.vm) {
        Ok(id) => Some(id),
        Err(EngineError::NotFound { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    let outcome = match id {
        Some(id) => engine.reclaim(id, &Caller::new("vm reconcile-stale-create", None)?),
        None => Ok(Reconciled::NotFound),
    };
    let outcome =
        outcome.map_err(|error| CliError::Failed(format!("reconcile stale create: {error}")))?;
    match args.output.format {
        Format::Table => output::say(&format!("{}: {}", args.vm, outcome.as_str())),
        Format::Json => {
            let mut object = json!({ "outcome": outcome.as_str() });
            if let Some(id) = id.filter(|_| outcome != Reconciled::NotFound) {
                object["id"] = json!(id);
            }
            if let Reconciled::Busy(Some(holder)) = &outcome {
                object["holder"] = json!({ "pid": holder.identity.pid, "verb": holder.verb });
                object["operation"] = json!(holder.operation);
            }
            output::json(&object)?;
        }
    }
    crate::cli::tend(engine);
    Ok(())
}
