//! `cocoon journal export`.

use std::io::{self, IsTerminal as _};

use clap::Args;
use cocoon_journal::error::AnyError;
use cocoon_journal::export::{Edit, Exported, export_binary, export_json_lines};
use cocoon_journal::{Frame, JournalError};

use super::JournalArg;
use crate::cli::{CliError, Global, output};
use crate::codec::{self, Redactor};
use crate::replay::ReplayError;

#[derive(Debug, Args)]
pub(in crate::cli) struct ExportArgs {
    #[command(flatten)]
    journal: JournalArg,
    /// From this event on
    #[arg(long, value_name = "SEQ", default_value_t = 1)]
    since: u64,
    /// Up to this event
    #[arg(long, value_name = "SEQ", default_value_t = u64::MAX, hide_default_value = true)]
    until: u64,
    /// The frames themselves, instead of JSON lines
    #[arg(long)]
    binary: bool,
    /// Replace names, paths, command lines, digests, addresses and texts by placeholders, the same by the same one
    #[arg(long)]
    redact: bool,
}

pub(super) fn run(args: &ExportArgs, global: Global) -> Result<(), CliError> {
    let dir = super::directory(&args.journal, global)?;
    let begins_at = cocoon_journal::inspect::Inspector::open(&dir).map_err(ReplayError::from)?;
    let begins_at = begins_at.begins_at();
    if args.since > 1 && args.since < begins_at {
        return Err(CliError::Failed(format!(
            "history begins at seq {begins_at}; give `--since {begins_at}`"
        )));
    }
    let stdout = io::stdout();
    if args.binary && stdout.is_terminal() {
        return Err(CliError::Usage(
            "frames are not for terminals; write them to a file, as in `cocoon journal export --binary > FILE`".to_owned(),
        ));
    }
    let mut out = io::BufWriter::with_capacity(64 * 1024, stdout.lock());
    let seqs = args.since..=args.until;
    let mut redactor = Redactor::default();
    let mut edit = |frame: &mut Frame| -> Result<(), AnyError> {
        frame.entries.iter_mut().for_each(|entry| redactor.entry(entry));
        Ok(())
    };
    let edit: Option<Edit<'_>> = if args.redact { Some(&mut edit) } else { None };
    let exported = if args.binary {
        export_binary(&dir, &seqs, edit, &mut out)
    } else {
        export_json_lines(&dir, &seqs, edit, codec::describe, &mut out)
    };
    told(&exported.map_err(output_error)?)
}

/// A reader of the output that has gone ends the command quietly.
fn output_error(error: JournalError) -> CliError {
    match error {
        JournalError::Io { source, .. } if source.kind() == io::ErrorKind::BrokenPipe => {
            CliError::ClosedPipe
        }
        error => ReplayError::from(error).into(),
    }
}

fn told(exported: &Exported) -> Result<(), CliError> {
    output::say(&format!(
        "{} events in {} frames, up to seq {}",
        exported.events, exported.frames, exported.last.seq
    ));
    match exported.problems.iter().find(|problem| problem.kind.is_damage()) {
        None => Ok(()),
        Some(problem) => Err(CliError::Failed(format!(
            "the journal is damaged, and this was passed over: {problem}; `cocoon journal verify` lists all of it"
        ))),
    }
}
