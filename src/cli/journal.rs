//! `cocoon journal`: the journal as files.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::later::{self, LaterArgs};
use super::{CliError, Global};

mod export;
mod stats;
mod verify;

#[derive(Debug, Subcommand)]
pub(super) enum JournalCommand {
    /// Check every byte, and say what is wrong and what to do about it
    Verify(verify::VerifyArgs),
    /// Count events, bytes and what is derived from them
    Stats(stats::StatsArgs),
    /// Write the history as JSON lines, or as the frames themselves
    Export(export::ExportArgs),
    /// Copy the journal while it is in use (not there yet)
    #[command(hide = true)]
    Backup(LaterArgs),
    /// Put a copy in the place of a damaged journal (not there yet)
    #[command(hide = true)]
    Restore(LaterArgs),
    /// Make a journal of an export (not there yet)
    #[command(hide = true)]
    Import(LaterArgs),
    /// Write an old journal in the newest format (not there yet)
    #[command(hide = true)]
    Upgrade(LaterArgs),
    /// Put old segments elsewhere (not there yet)
    #[command(hide = true)]
    Archive(LaterArgs),
}

/// Which journal.
#[derive(Debug, Args)]
struct JournalArg {
    /// A root, or a copy of its journal directory, instead of the configured root
    #[arg(long, value_name = "DIR")]
    journal: Option<PathBuf>,
}

impl JournalArg {
    fn dir(&self, global: Global) -> Result<PathBuf, CliError> {
        super::replay::journal_dir(self.journal.as_deref(), global)
    }
}

pub(super) fn run(command: JournalCommand, global: Global) -> Result<(), CliError> {
    let missing = |verb, why| Err(later::missing(verb, why));
    match command {
        JournalCommand::Verify(args) => verify::run(&args, global),
        JournalCommand::Stats(args) => stats::run(&args, global),
        JournalCommand::Export(args) => export::run(&args, global),
        JournalCommand::Backup(_) => missing(
            "journal backup",
            "it is not there yet; while no command runs, a copy of the directory `journal` is a backup, and `cocoon journal verify --journal COPY` checks it",
        ),
        JournalCommand::Restore(_) => missing(
            "journal restore",
            "it is not there yet; keep the damaged directory, and look at what is left of it with `cocoon replay`",
        ),
        JournalCommand::Import(_) => missing("journal import", "it is not there yet"),
        JournalCommand::Upgrade(_) => {
            missing("journal upgrade", "there is nothing to upgrade: this is the first format")
        }
        JournalCommand::Archive(_) => missing("journal archive", "it is not there yet"),
    }
}
