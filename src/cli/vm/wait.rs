//! `cocoon vm wait`.

use std::time::{Duration, Instant};

use clap::Args;
use cocoon_model::id::VmId;
use cocoon_model::record::VmState;

use crate::cli::args::{Format, OutputArg, duration};
use crate::cli::vm_object::VmObject;
use crate::cli::{CliError, Global, output};
use crate::engine::follow::Follower;
use crate::engine::{Engine, EngineError};

/// How often the world is looked at: a VMM that dies while no daemon runs leaves no event.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// What can be waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Awaited {
    Created,
    Running,
    Stopped,
    Error,
    /// Removed
    Gone,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct WaitArgs {
    /// Name, id or beginning of an id
    vm: String,
    /// The state
    #[arg(long, default_value = "running")]
    state: Awaited,
    /// Give up after this long
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration)]
    timeout: Duration,
    #[command(flatten)]
    output: OutputArg,
}

pub(super) fn run(args: &WaitArgs, global: Global) -> Result<(), CliError> {
    let (engine, _) = global.reading_engine()?;
    let id = match engine.resolve(&args.vm) {
        Ok(id) => id,
        Err(EngineError::NotFound { .. }) if args.state == Awaited::Gone => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let deadline = Instant::now() + args.timeout;
    let mut follower = engine.follow()?;
    loop {
        let vm = now(&engine, id)?;
        if matches(args.state, vm.as_ref()) {
            return match (args.output.format, vm) {
                (Format::Json, Some(vm)) => output::json(&vm),
                (Format::Json | Format::Table, _) => Ok(()),
            };
        }
        let Some(vm) = vm else {
            return Err(EngineError::NotFound { what: "vm", reference: args.vm.clone() }.into());
        };
        if Instant::now() >= deadline {
            let what = format!("vm {id} is {}; the state that was waited for", vm.state);
            return Err(EngineError::TimedOut { what, waited: args.timeout }.into());
        }
        let left = deadline.saturating_duration_since(Instant::now());
        await_news(&mut follower, id, LOOK_EVERY.min(left))?;
    }
}

/// Sleeps until the journal tells of the VM, at most for `time`.
fn await_news(follower: &mut Follower, id: VmId, time: Duration) -> Result<(), EngineError> {
    let until = Instant::now() + time;
    while let Some(update) = follower.next(until.saturating_duration_since(Instant::now()))? {
        if update.record.core.id == id {
            return Ok(());
        }
    }
    Ok(())
}

fn now(engine: &Engine, id: VmId) -> Result<Option<VmObject>, EngineError> {
    engine.vm(id)?.map(|record| VmObject::now(engine, &record)).transpose()
}

fn matches(awaited: Awaited, vm: Option<&VmObject>) -> bool {
    let state = match awaited {
        Awaited::Gone => return vm.is_none(),
        Awaited::Created => VmState::Created,
        Awaited::Running => VmState::Running,
        Awaited::Stopped => return vm.is_some_and(|vm| vm.state.starts_with("stopped")),
        Awaited::Error => VmState::Error,
    };
    vm.is_some_and(|vm| vm.state == state.as_str())
}
