//! What is to be done, and what an earlier repair left undone.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::walk::{Walked, walk};
use super::{Going, RepairError, RepairOptions, Repaired, cut, kept, record, retire};
use crate::checkpoint::{Checkpoint, Stub};
use crate::directory::Directory;
use crate::error::JournalError;
use crate::files;
use crate::frame::{Seq, Writer};
use crate::lock::Lock;

/// The name of the file with the plan, and of the one that says that it was carried out.
const PLAN: &str = "PLAN";
const DONE: &str = "DONE";

/// What a repair has decided to do; written down before the first change.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub(super) struct Decided {
    /// The operation of the event that says so.
    pub(super) operation: Uuid,
    /// Last event before what was damaged.
    pub(super) last_kept: Seq,
    /// First event that was damaged.
    pub(super) first_lost: Seq,
    /// Events that are lost.
    pub(super) lost: u64,
    pub(super) how: How,
}

/// How it goes on.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub(super) enum How {
    /// Nothing is lost.
    Restore,
    /// History begins with this segment.
    Retire { begins: Seq },
    /// History ends after `last_kept`, in this segment, at this offset.
    Cut { segment: Seq, offset: u64 },
}

/// A plan that was not carried out to its end.
#[derive(Debug)]
pub(super) struct Unfinished {
    pub(super) dir: PathBuf,
    pub(super) decided: Decided,
    /// Whether the journal says so already: then it cannot be decided otherwise.
    pub(super) recorded: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Way {
    pub(super) found: Repaired,
    pub(super) unfinished: Option<Unfinished>,
    pub(super) walked: Walked,
    cleared: Vec<kept::Obstacle>,
}

impl Way {
    pub(super) fn find(
        directory: &Directory,
        options: &RepairOptions,
    ) -> Result<Self, RepairError> {
        let cleared = kept::obstacles(directory)?;
        let walked = walk(directory, options)?;
        let going = going(directory, &walked)?;
        let found = Repaired {
            restored: walked.writes.iter().map(|write| write.told.clone()).collect(),
            cleared: cleared.iter().map(|obstacle| obstacle.path.clone()).collect(),
            losses: walked.losses.clone(),
            going,
            ..Repaired::default()
        };
        Ok(Self { found, unfinished: unfinished(directory), walked, cleared })
    }

    /// Whether a loss was accepted before, and only the rest of it is to be done.
    pub(super) fn is_decided(&self) -> bool {
        let decided = self.unfinished.as_ref().filter(|unfinished| unfinished.recorded);
        decided.is_some_and(|unfinished| unfinished.decided.how != How::Restore)
    }

    /// Whether history gets shorter, or did in an earlier repair that was killed.
    pub(super) fn loses(&self) -> bool {
        !self.found.losses.is_empty() || self.is_decided()
    }

    /// Does it. `lock` is the writers' lock, given up once the log is whole.
    pub(super) fn carry_out(
        self,
        directory: &Directory,
        options: &RepairOptions,
        writer: &Writer,
        lock: Lock,
    ) -> Result<Repaired, RepairError> {
        let boundary = options.journal.boundary;
        boundary("repair.planned");
        let resumed = self.unfinished.is_some();
        let Unfinished { dir, decided, recorded } =
            begin(directory, &self.walked, self.found.going.as_ref(), self.unfinished)?;
        boundary("repair.begun");
        for obstacle in &self.cleared {
            obstacle.clear(&dir)?;
        }
        let mut found = Repaired { kept: Some(dir.clone()), resumed, ..self.found };
        if !recorded {
            kept::save_originals(directory, &dir, &self.walked, boundary)?;
            kept::write_back(directory, &self.walked, boundary)?;
        }
        match decided.how {
            How::Cut { .. } => {
                let seq = cut::carry_out(directory, options, writer, &dir, &decided, self.walked)?;
                found.recorded = Some(seq);
            }
            How::Restore | How::Retire { .. } => {
                drop(lock);
                found.recorded = Some(record::record(directory, options, &decided)?);
                boundary("repair.recorded");
                if let How::Retire { begins } = decided.how {
                    retire::carry_out(directory, options, writer, &dir, begins)?;
                }
            }
        }
        publish(&dir.join(DONE), b"")?;
        boundary("repair.done");
        Ok(found)
    }
}

/// How it can go on after what is lost: from a checkpoint beyond it, else from before it.
fn going(directory: &Directory, walked: &Walked) -> Result<Option<Going>, RepairError> {
    let (Some(last), Some(cut)) = (walked.losses.last(), &walked.cut) else { return Ok(None) };
    let lost = *last.seqs.end();
    let usable = |begins: Seq| {
        walked.borne_out.iter().copied().find(|position| {
            position.seq.saturating_add(1) >= begins && is_usable(directory, position.seq)
        })
    };
    let firsts = directory.list()?;
    for begins in firsts.iter().copied().filter(|first| *first > lost) {
        if let Some(checkpoint) = usable(begins) {
            return Ok(Some(Going::FromCheckpoint { checkpoint, begins }));
        }
    }
    let last = cut.mark.seq;
    let begins = firsts.first().copied().unwrap_or(1).min(cut.mark.segment);
    let from_checkpoint = Checkpoint::list(directory.path()).unwrap_or_default();
    let stub = Stub::latest(directory.path()).ok().flatten();
    let has_state = begins == 1
        || stub.is_some_and(|stub| stub.position().seq <= last)
        || from_checkpoint.into_iter().any(|seq| seq <= last && is_usable(directory, seq));
    let events = walked.known.saturating_sub(last);
    Ok(has_state.then_some(Going::Cut { last, events }))
}

/// Whether the checkpoint at `seq` is whole.
fn is_usable(directory: &Directory, seq: Seq) -> bool {
    Checkpoint::open(directory.path(), seq).is_ok_and(|checkpoint| checkpoint.verify().is_ok())
}

/// Decides, and writes that down in a directory of its own. An earlier decision that the journal knows of
/// stands; any other is taken anew, as some of it may be done.
fn begin(
    directory: &Directory,
    walked: &Walked,
    going: Option<&Going>,
    earlier: Option<Unfinished>,
) -> Result<Unfinished, RepairError> {
    let mut decided = decide(walked, going);
    let dir = match earlier {
        Some(earlier) if earlier.recorded => return Ok(earlier),
        Some(Unfinished { dir, decided: before, .. }) => {
            decided.operation = before.operation;
            if decided.how == How::Restore {
                decided.first_lost = decided.first_lost.min(before.first_lost);
                decided.last_kept = decided.first_lost.saturating_sub(1);
            }
            dir
        }
        None => {
            let name = format!("salvage-{:020}", decided.first_lost);
            files::quarantine_dir(directory.path(), &name)
                .map_err(JournalError::io("make a directory in", &directory.quarantine()))?
        }
    };
    let text = serde_json::to_vec_pretty(&decided).unwrap_or_default();
    publish(&dir.join(PLAN), &text)?;
    Ok(Unfinished { dir, decided, recorded: false })
}

fn decide(walked: &Walked, going: Option<&Going>) -> Decided {
    let operation = Uuid::new_v4();
    let first_of = |write: &super::walk::Write| match &write.told.seqs {
        Some(seqs) => *seqs.start(),
        None => write.segment,
    };
    let damaged = walked.writes.iter().map(first_of).min();
    let first_loss = walked.losses.first().map(|loss| *loss.seqs.start());
    let lens = walked.losses.iter().map(|loss| loss.seqs.end() - loss.seqs.start() + 1);
    let (first_lost, lost, how) = match (going, walked.cut, first_loss) {
        (Some(Going::FromCheckpoint { begins, .. }), _, Some(first)) => {
            (first, lens.sum(), How::Retire { begins: *begins })
        }
        (Some(Going::Cut { events, .. }), Some(cut), Some(first)) => {
            let Mark { segment, offset } = Mark::of(&cut);
            (first, *events, How::Cut { segment, offset })
        }
        _ => (damaged.unwrap_or(walked.end.seq.saturating_add(1)), 0, How::Restore),
    };
    Decided { operation, last_kept: first_lost.saturating_sub(1), first_lost, lost, how }
}

/// Where a cut is.
struct Mark {
    segment: Seq,
    offset: u64,
}

impl Mark {
    fn of(cut: &super::walk::CutAt) -> Self {
        Self { segment: cut.mark.segment, offset: cut.mark.offset }
    }
}

/// The plan that was not carried out to its end, if there is one.
fn unfinished(directory: &Directory) -> Option<Unfinished> {
    let quarantine = directory.quarantine();
    let Ok(entries) = fs::read_dir(&quarantine) else { return None };
    for entry in entries.flatten() {
        let dir = entry.path();
        let is_ours = entry.file_name().to_string_lossy().starts_with("salvage-");
        if is_ours
            && !dir.join(DONE).exists()
            && let Ok(text) = fs::read(dir.join(PLAN))
            && let Ok(decided) = serde_json::from_slice(&text)
        {
            let recorded = record::find(directory, &decided).is_some();
            return Some(Unfinished { dir, decided, recorded });
        }
    }
    None
}

fn publish(path: &Path, bytes: &[u8]) -> Result<(), RepairError> {
    files::publish(path, bytes).map_err(JournalError::io("write", path)).map_err(RepairError::from)
}
