//! Measures cocoon against its peers: ratios of medians in one run on one machine.
//!
//! `cocoon-bench storm|syncs|replay|footprint|sweep|exits|list|reconcile|run` (by `just bench NAME`). Most measurements start real
//! processes and take times and processor use of whole processes from the kernel. Peers take turns round by round, so that a drift of the machine's
//! speed touches them alike. Nothing is asserted; tables are printed.

#![allow(clippy::print_stdout, reason = "it prints tables")]

mod daemon;
mod exits;
mod fleet;
mod footprint;
mod past;
mod peer;
mod plot;
mod process;
mod replay;
mod storm;
mod sweep;
mod syncs;
mod table;
mod verbs;
mod worker;

use std::error::Error;
use std::path::PathBuf;

use clap::Parser;

/// Anything that ends a measurement.
pub(crate) type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// Measures cocoon against its peers
#[derive(Debug, Parser)]
enum Command {
    /// Many processes at once, each reserving and committing a VM record, against SQLite
    Storm(storm::StormArgs),
    /// Processes that append in a loop and share syncs, against one that writes and syncs for each event
    Syncs(syncs::SyncsArgs),
    /// The state folded from segments, on one core, against reading and checksumming their bytes
    Replay(replay::ReplayArgs),
    /// Memory of commands and of the daemon, bytes on disk an event, time to open after each kind of end
    Footprint(footprint::FootprintArgs),
    /// The rate of a storm against clients, residents and history, as CSV and as a plot
    Sweep(sweep::SweepArgs),
    /// From the death of a VMM to its exit in the journal, a daemon running
    Exits(exits::ExitsArgs),
    /// `vm list -o json` over many running VMs
    List(verbs::ListArgs),
    /// `vm reconcile-stale-create` on a placeholder, against SQLite doing as many commits
    Reconcile(verbs::ReconcileArgs),
    /// `vm run` until the guest is up, against the same QEMU by hand
    Run(verbs::RunArgs),
    /// A place for a worker, to look at one alone
    #[command(hide = true)]
    Prepare {
        /// Where
        place: PathBuf,
        /// VMs in it
        residents: usize,
        /// Events that have happened already
        #[arg(default_value_t = 0)]
        events: u64,
    },
    /// Runs a command and prints the most memory that it had at once, KiB
    #[command(hide = true)]
    Peak {
        /// The command
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<std::ffi::OsString>,
    },
    /// One process that appends in a loop (started by the others)
    #[command(hide = true)]
    Appender(syncs::AppenderArgs),
    /// One process of a storm (started by the others)
    #[command(hide = true)]
    Worker {
        /// What it does
        kind: worker::Kind,
        /// Where
        place: PathBuf,
    },
}

fn main() -> Outcome {
    match Command::parse() {
        Command::Storm(args) => storm::run(&args),
        Command::Syncs(args) => syncs::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Footprint(args) => footprint::run(&args),
        Command::Sweep(args) => sweep::run(&args),
        Command::Exits(args) => exits::run(&args),
        Command::List(args) => verbs::list(&args),
        Command::Reconcile(args) => verbs::reconcile(&args),
        Command::Run(args) => verbs::run(&args),
        Command::Prepare { place, residents, events } => {
            storm::prepare(&place, residents, events).map(drop)
        }
        Command::Peak { command } => footprint::peak(&command),
        Command::Appender(args) => syncs::append(&args),
        Command::Worker { kind, place } => worker::run(kind, &place),
    }
}
