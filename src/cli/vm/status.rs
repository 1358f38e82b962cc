//! `cocoon vm status`: VMs as they are, once, again and again, or as a stream of what happens to them.
//!
//! The stream is a view of the journal: one line for each committed transition, none collapsed, none made up. A VMM that
//! dies with no daemon there leaves no event, so the stream also looks: what it finds dead it journals itself, as any
//! observer may, and then tells it like everything else.

use std::io::{self, IsTerminal as _};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use clap::Args;
use cocoon_model::command::VmmSeen;
use cocoon_model::record::{VmRecord, VmState};
use serde::Serialize;

use super::list::COLUMNS;
use crate::cli::args::{Format, OutputArg, duration};
use crate::cli::vm_object::{VmObject, human_size};
use crate::cli::{CliError, Global, output, waiting};
use crate::engine::follow::{ChangeKind, Follower, Update};
use crate::engine::{Caller, Engine, EngineError};

/// The shortest time between two redraws, however much happens.
const REDRAW: Duration = Duration::from_millis(100);

/// The shortest beginning of an id that counts.
const SHORTEST_PREFIX: usize = 3;

#[derive(Debug, Args)]
#[command(after_help = "\
With --event, each line is one transition: ADDED, MODIFIED or DELETED with the VM as it then was. The stream begins with
ADDED for each VM that is there, or with --since after an event that you have seen (`seq` of a JSON line).")]
pub(in crate::cli) struct StatusArgs {
    /// Names, ids or beginnings of ids; all VMs if none is given
    #[arg(value_name = "VM")]
    vms: Vec<String>,
    /// Draw the table again whenever something changes
    #[arg(long, short, conflicts_with = "event")]
    watch: bool,
    /// How often VMs are looked at, although nothing is told of them; a number is seconds
    #[arg(long, short = 'n', value_name = "DURATION", default_value = "5", value_parser = duration)]
    interval: Duration,
    /// Print a line for each thing that happens, without end
    #[arg(long)]
    event: bool,
    /// Begin with what happened after this event
    #[arg(long, value_name = "SEQ", requires = "event")]
    since: Option<u64>,
    #[command(flatten)]
    output: OutputArg,
}

pub(super) fn run(args: &StatusArgs, global: Global) -> Result<(), CliError> {
    if args.interval.is_zero() {
        return Err(CliError::Usage("--interval must be more than 0".into()));
    }
    let (engine, _) = global.reading_engine()?;
    if args.event {
        Stream::new(args, &engine)?.run()
    } else if args.watch {
        watch(args, &engine)
    } else {
        once(args, &engine)
    }
}

fn once(args: &StatusArgs, engine: &Engine) -> Result<(), CliError> {
    for reference in &args.vms {
        engine.resolve(reference)?;
    }
    let vms = look(args, engine)?;
    match args.output.format {
        Format::Json => output::json(&vms),
        Format::Table => output::table(&COLUMNS, vms.iter().map(VmObject::row).collect()),
    }
}

fn look(args: &StatusArgs, engine: &Engine) -> Result<Vec<VmObject>, EngineError> {
    let vms = engine.vms()?;
    let vms = vms.iter().filter(|record| is_meant(&args.vms, record));
    vms.map(|record| VmObject::now(engine, record)).collect()
}

fn watch(args: &StatusArgs, engine: &Engine) -> Result<(), CliError> {
    let mut follower = engine.follow()?;
    loop {
        let vms = look(args, engine)?;
        match args.output.format {
            Format::Json => output::json_line(&vms)?,
            Format::Table => {
                let clear = if io::stdout().is_terminal() { "\x1b[H\x1b[2J" } else { "" };
                let table = output::render(&COLUMNS, vms.iter().map(VmObject::row).collect());
                output::write(format!("{clear}{table}").as_bytes())?;
            }
        }
        let drawn = Instant::now();
        while follower.try_next()?.is_some() {}
        waiting::sleep(Some(follower.as_fd()), Some(drawn + args.interval))?;
        // A burst of events costs one redraw.
        waiting::sleep(None, Some(drawn + REDRAW))?;
    }
}

/// Whether a VM is one of those that were asked for.
fn is_meant(references: &[String], record: &VmRecord) -> bool {
    let (id, name) = (record.core.id.as_str(), record.core.name.as_str());
    references.is_empty()
        || references.iter().any(|reference| {
            let prefix = reference.len() >= SHORTEST_PREFIX && id.starts_with(reference.as_str());
            reference == id || reference == name || prefix
        })
}

/// One line of the stream as JSON.
#[derive(Debug, Serialize)]
struct Line {
    event: &'static str,
    vm: VmObject,
    seq: u64,
}

/// The stream.
struct Stream<'a> {
    args: &'a StatusArgs,
    engine: &'a Engine,
    caller: Caller,
    follower: Follower,
}

impl<'a> Stream<'a> {
    fn new(args: &'a StatusArgs, engine: &'a Engine) -> Result<Self, EngineError> {
        let caller = Caller::new("vm status", None)?;
        let follower = match args.since {
            Some(seq) => engine.follow_since(seq)?,
            None => engine.follow()?,
        };
        Ok(Self { args, engine, caller, follower })
    }

    fn run(mut self) -> Result<(), CliError> {
        self.begin()?;
        let mut next_look = Instant::now();
        loop {
            while let Some(update) = self.follower.try_next()? {
                self.tell_update(&update)?;
            }
            if Instant::now() >= next_look {
                self.look_for_deaths()?;
                next_look = Instant::now() + self.args.interval;
            }
            waiting::sleep(Some(self.follower.as_fd()), Some(next_look))?;
        }
    }

    /// The header, and those that are there.
    fn begin(&self) -> Result<(), CliError> {
        if self.args.output.format == Format::Table {
            output::line(&text_line([
                "EVENT", "ID", "NAME", "STATE", "CPU", "MEMORY", "IP", "IMAGE",
            ]))?;
        }
        if self.args.since.is_some() {
            return Ok(());
        }
        let mut there: Vec<&VmRecord> = self.follower.vms().map(AsRef::as_ref).collect();
        there.sort_by_key(|record| (record.notes.created_us, record.core.id));
        there
            .into_iter()
            .try_for_each(|record| self.tell(ChangeKind::Added, record, self.follower.seq()))
    }

    fn tell_update(&self, update: &Update) -> Result<(), CliError> {
        update.kind.map_or(Ok(()), |kind| self.tell(kind, &update.record, update.seq))
    }

    fn tell(&self, kind: ChangeKind, record: &VmRecord, seq: u64) -> Result<(), CliError> {
        if !is_meant(&self.args.vms, record) {
            return Ok(());
        }
        let vm = VmObject::recorded(record);
        match self.args.output.format {
            Format::Json => output::json_line(&Line { event: kind.as_str(), vm, seq }),
            Format::Table => {
                let (cpu, memory) = (vm.config.cpu.to_string(), human_size(vm.config.memory));
                let fields = [
                    kind.as_str(),
                    &vm.id,
                    vm.name(),
                    vm.state,
                    &cpu,
                    &memory,
                    "-",
                    &vm.config.image,
                ];
                output::line(&text_line(fields))
            }
        }
    }

    /// Journals the deaths that nobody else has seen.
    fn look_for_deaths(&self) -> Result<(), EngineError> {
        let mut dead = Vec::new();
        for record in self.follower.vms() {
            let core = &record.core;
            let open = core.state == VmState::Running || core.interval_open;
            if open && core.operation.is_none() && is_meant(&self.args.vms, record) {
                match self.engine.observe_vmm(record) {
                    Ok(VmmSeen::Dead) => dead.push((core.id, core.generation)),
                    Ok(VmmSeen::Alive(_) | VmmSeen::Inconclusive(_)) => {}
                    Err(error) => tracing::debug!("cannot look at vm {}: {error}", core.id),
                }
            }
        }
        if !dead.is_empty() {
            // Whoever follows is told by the journal; what it does not take now is tried again at the next look.
            if let Err(error) = self.engine.record_exits(&self.caller.another(), &dead) {
                tracing::warn!("exits cannot be recorded: {error}");
            }
        }
        Ok(())
    }
}

fn text_line([event, id, name, state, cpu, memory, ip, image]: [&str; 8]) -> String {
    format!("{event:<9} {id:<26} {name:<20} {state:<9} {cpu:<4} {memory:<8} {ip:<15} {image}")
}
