//! `cocoon journal upgrade`.

use clap::Args;
use cocoon_journal::inspect::{Inspector, Piece};
use cocoon_journal::reserved::{JournalEvent, RECORD_FORMAT};
use serde_json::json;

use super::{JournalArg, directory};
use crate::cli::args::{Format, OutputArg};
use crate::cli::{CliError, Global, output};
use crate::replay::ReplayError;

#[derive(Debug, Args)]
pub(in crate::cli) struct UpgradeArgs {
    #[command(flatten)]
    journal: JournalArg,
    #[command(flatten)]
    output: OutputArg,
}

/// There is one format so far: a journal is of it, or a newer version of this program has raised its own.
pub(super) fn run(args: &UpgradeArgs, global: Global) -> Result<(), CliError> {
    let dir = directory(&args.journal, global)?;
    let (mut format, mut needs) = (RECORD_FORMAT, None);
    for piece in Inspector::open(&dir).map_err(ReplayError::from)? {
        let Piece::Frame(seen) = piece else { continue };
        for event in seen.frame.entries.iter().filter_map(JournalEvent::from_entry) {
            if let JournalEvent::Upgraded { to, needs: version, .. } = event {
                (format, needs) = (to, Some(version));
            }
        }
    }
    if let (true, Some(needs)) = (format > RECORD_FORMAT, needs) {
        return Err(CliError::Failed(format!(
            "{} was raised to format {format}, and this version of cocoon knows formats up to {RECORD_FORMAT}; install version {needs} or newer. Nothing was written",
            dir.display()
        )));
    }
    match args.output.format {
        Format::Json => output::json(&json!({
            "format": format, "newest": RECORD_FORMAT, "outcome": "already",
        })),
        Format::Table => output::line(&format!(
            "the journal is of format {format}, the newest that this version of cocoon knows; nothing to upgrade"
        )),
    }
}
