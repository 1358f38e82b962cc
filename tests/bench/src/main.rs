//! Measures cocoon against its peers: ratios of medians in one run on one machine.
//!
//! `cocoon-bench storm|exits|list|reconcile|run` (by `just bench NAME`). Each measurement starts real processes and takes times and
//! processor use of whole processes from the kernel. Peers take turns round by round, so that a drift of the machine's
//! speed touches them alike. Nothing is asserted; tables are printed.

#![allow(clippy::print_stdout, reason = "it prints tables")]

mod exits;
mod fleet;
mod peer;
mod process;
mod storm;
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
    },
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
        Command::Exits(args) => exits::run(&args),
        Command::List(args) => verbs::list(&args),
        Command::Reconcile(args) => verbs::reconcile(&args),
        Command::Run(args) => verbs::run(&args),
        Command::Prepare { place, residents } => storm::prepare(&place, residents),
        Command::Worker { kind, place } => worker::run(kind, &place),
    }
}
