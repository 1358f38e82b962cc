//! `cocoon journal`: the journal as files, into others and out of them.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{CliError, Global};
use crate::engine::Engine;
use crate::replay::ReplayError;

mod archive;
mod backup;
mod export;
mod progress;
mod repair;
mod restore;
mod stats;
mod upgrade;
mod verify;

#[derive(Debug, Subcommand)]
pub(super) enum JournalCommand {
    /// Check every byte, and say what is wrong and what to do about it
    Verify(verify::VerifyArgs),
    /// Put back what is damaged, from wherever it is kept, and say what is lost
    Repair(repair::RepairArgs),
    /// Count events, bytes and what is derived from them
    Stats(stats::StatsArgs),
    /// Write the history as JSON lines, or as the frames themselves
    Export(export::ExportArgs),
    /// Copy the journal into one file while it is in use
    Backup(backup::BackupArgs),
    /// Make the journal of a root that has none from a backup
    Restore(restore::RestoreArgs),
    /// Make the journal of a root that has none from an export
    Import(restore::ImportArgs),
    /// Raise the format in which the journal is written to the newest
    Upgrade(upgrade::UpgradeArgs),
    /// Move old history to another directory, and keep the state at its end
    Archive(archive::ArchiveArgs),
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

/// The directory of a journal, which must not be a backup or an export.
fn directory(journal: &JournalArg, global: Global) -> Result<PathBuf, CliError> {
    let dir = journal.dir(global)?;
    if dir.is_file() {
        return Err(CliError::Usage(format!(
            "{} is a file, and a directory with a journal is needed; `cocoon replay --journal FILE` and `cocoon journal verify --journal FILE` read backups and exports",
            dir.display()
        )));
    }
    Ok(dir)
}

/// The engine of a root that has a journal; none is made.
fn existing(global: Global) -> Result<Engine, CliError> {
    let settings = global.settings()?;
    let dir = settings.root_dir.join("journal");
    cocoon_journal::inspect::Inspector::open(&dir).map_err(ReplayError::from)?;
    Ok(Engine::open(settings)?)
}

pub(super) fn run(command: JournalCommand, global: Global) -> Result<(), CliError> {
    match command {
        JournalCommand::Verify(args) => verify::run(&args, global),
        JournalCommand::Repair(args) => repair::run(&args, global),
        JournalCommand::Stats(args) => stats::run(&args, global),
        JournalCommand::Export(args) => export::run(&args, global),
        JournalCommand::Backup(args) => backup::run(&args, global),
        JournalCommand::Restore(args) => restore::restore(&args, global),
        JournalCommand::Import(args) => restore::import(&args, global),
        JournalCommand::Upgrade(args) => upgrade::run(&args, global),
        JournalCommand::Archive(args) => archive::run(&args, global),
    }
}
