//! `cocoon journal repair`.

use std::path::{Path, PathBuf};

use clap::Args;
use cocoon_journal::repair::{Going, Loss, RepairError, RepairOptions, Repaired, Restored, repair};
use serde_json::{Value, json};

use super::JournalArg;
use crate::cli::args::{Format, OutputArg};
use crate::cli::vm_object::rfc3339;
use crate::cli::{CliError, Global, output};
use crate::engine::effect;
use crate::home::Home;

#[derive(Debug, Args)]
pub(in crate::cli) struct RepairArgs {
    #[command(flatten)]
    journal: JournalArg,
    /// Look for lost events in this copy of the journal too or root (one made of a backup, say); may be given again
    #[arg(long, value_name = "DIR")]
    from: Vec<PathBuf>,
    /// Go on without the events that are lost for good
    #[arg(long)]
    accept_loss: bool,
    /// Change nothing, and say what would be done
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    output: OutputArg,
}

pub(super) fn run(args: &RepairArgs, global: Global) -> Result<(), CliError> {
    let (root, dir) = match &args.journal.journal {
        Some(given) if given.is_file() => {
            return Err(CliError::Usage(format!(
                "{} is a file, and a directory with a journal is needed",
                given.display()
            )));
        }
        Some(given) => (None, crate::replay::locate(given)?),
        None => {
            let root_dir = global.settings()?.root_dir;
            (Home::uuid_of(&root_dir)?, root_dir.join("journal"))
        }
    };
    let options = RepairOptions {
        journal: cocoon_journal::Options { root, ..effect::journal_options() },
        dry_run: args.dry_run,
        accept_loss: args.accept_loss,
        copies: args.from.iter().map(|copy| copy_at(copy)).collect::<Result<_, _>>()?,
    };
    match repair(&dir, &options) {
        Ok(found) => {
            show(args, &found, !args.dry_run)?;
            if args.dry_run && !found.losses.is_empty() {
                let error = RepairError::Lost(Box::new(found));
                return Err(CliError::Failed(error.to_string()));
            }
            Ok(())
        }
        Err(error) => {
            if let RepairError::Lost(found) | RepairError::NoState { found, .. } = &error {
                show(args, found, false)?;
            }
            Err(CliError::Failed(error.to_string()))
        }
    }
}

/// The journal in a directory that lost frames may be taken from.
fn copy_at(given: &Path) -> Result<PathBuf, CliError> {
    let dir = crate::replay::locate(given)?;
    if dir.is_dir() {
        return Ok(dir);
    }
    Err(CliError::Usage(format!(
        "--from takes a root or a copy of its journal, and {} is no directory; make a root of a backup or an export elsewhere first (`cocoon journal restore FILE --root-dir DIR`, `cocoon journal import FILE --root-dir DIR`), then repair with --from DIR",
        given.display()
    )))
}

fn show(args: &RepairArgs, found: &Repaired, done: bool) -> Result<(), CliError> {
    match args.output.format {
        Format::Json => output::json(&to_json(found, done)),
        Format::Table => output::write(to_text(found, done).as_bytes()),
    }
}

fn to_text(found: &Repaired, done: bool) -> String {
    let mut out = String::new();
    if found.is_sound() {
        return "nothing is wrong with the log\n".to_owned();
    }
    let word = if done { "" } else { "would be " };
    if found.resumed {
        out.push_str("an earlier repair was not finished\n");
    }
    for path in &found.cleared {
        out.push_str(&format!("{word}cleared: {}\n", path.display()));
    }
    for restored in &found.restored {
        out.push_str(&format!("{word}put back: {}\n", restored_text(restored)));
    }
    for loss in &found.losses {
        out.push_str(&format!("lost: {}\n", loss_text(loss)));
    }
    if let Some(going) = &found.going {
        out.push_str(&going_text(going, done));
    }
    if let Some(kept) = &found.kept {
        out.push_str(&format!("what was there is kept in {}\n", kept.display()));
    }
    if let Some(seq) = found.recorded {
        out.push_str(&format!("recorded as event {seq} (JournalSalvaged)\n"));
    }
    out
}

fn restored_text(restored: &Restored) -> String {
    let Restored { path, offset, len, seqs, source } = restored;
    let what = seqs.as_ref().map_or_else(String::new, |seqs| match (seqs.start(), seqs.end()) {
        (first, last) if first == last => format!("seq {first}, "),
        (first, last) => format!("seq {first} to {last}, "),
    });
    format!("{what}{}, offset {offset}, {len} bytes, from: {}", path.display(), source.as_str())
}

fn loss_text(loss: &Loss) -> String {
    let (first, last) = (loss.seqs.start(), loss.seqs.end());
    let time = |us: Option<i64>, none: &str| us.map_or_else(|| none.to_owned(), rfc3339);
    format!(
        "{} events, seq {first} to {last}, after {} and before {} ({}, offset {})",
        last - first + 1,
        time(loss.after_us, "the beginning"),
        time(loss.before_us, "now"),
        loss.path.display(),
        loss.offset
    )
}

fn going_text(going: &Going, done: bool) -> String {
    let goes = if done { "goes" } else { "would go" };
    match going {
        Going::FromCheckpoint { checkpoint, begins } => format!(
            "it {goes} on from the checkpoint at seq {}: no VM is forgotten; history begins at seq {begins}\n",
            checkpoint.seq
        ),
        Going::Cut { last, events } => {
            format!("it {goes} on from seq {last}: {events} events after it no longer count\n")
        }
    }
}

fn to_json(found: &Repaired, done: bool) -> Value {
    let restored = found.restored.iter().map(|restored| {
        json!({
            "path": restored.path,
            "offset": restored.offset,
            "bytes": restored.len,
            "first_seq": restored.seqs.as_ref().map(|seqs| *seqs.start()),
            "last_seq": restored.seqs.as_ref().map(|seqs| *seqs.end()),
            "source": restored.source.as_str(),
        })
    });
    let losses = found.losses.iter().map(|loss| {
        json!({
            "first_seq": loss.seqs.start(),
            "last_seq": loss.seqs.end(),
            "path": loss.path,
            "offset": loss.offset,
            "after": loss.after_us.map(rfc3339),
            "before": loss.before_us.map(rfc3339),
        })
    });
    let going = found.going.as_ref().map(|going| match going {
        Going::FromCheckpoint { checkpoint, begins } => {
            json!({ "from": "checkpoint", "seq": checkpoint.seq, "history_begins": begins })
        }
        Going::Cut { last, events } => {
            json!({ "from": "cut", "seq": last, "events_given_up": events })
        }
    });
    json!({
        "sound": found.is_sound(),
        "done": done,
        "restored": restored.collect::<Vec<_>>(),
        "cleared": found.cleared,
        "losses": losses.collect::<Vec<_>>(),
        "lost": found.lost(),
        "goes_on": going,
        "kept": found.kept,
        "recorded_seq": found.recorded,
        "resumed": found.resumed,
    })
}
