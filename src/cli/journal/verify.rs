//! `cocoon journal verify`.

use std::path::{Path, PathBuf};

use clap::Args;
use cocoon_journal::checkpoint::{Checkpoint, Stub};
use cocoon_journal::inspect::{Fault, FaultKind, Inspector, Piece, SeenFrame, SeenSegment};
use cocoon_journal::{Position, store};
use serde_json::{Value, json};

use super::JournalArg;
use crate::cli::args::{Format, OutputArg};
use crate::cli::{CliError, Global, output};
use crate::codec;
use crate::replay::ReplayError;
use crate::replay::line::fault_json;

mod file;

#[derive(Debug, Args)]
pub(in crate::cli) struct VerifyArgs {
    #[command(flatten)]
    journal: JournalArg,
    #[command(flatten)]
    output: OutputArg,
}

/// What was found.
#[derive(Default)]
struct Findings {
    segments: Vec<Segment>,
    problems: Vec<Problem>,
    events: u64,
    last: Position,
    durable: Option<u64>,
    checkpoints: Vec<u64>,
    /// The event with which history begins, if older ones were archived.
    moved_before: Option<u64>,
    /// The last frame that the event store says to have.
    store: Position,
}

struct Segment {
    first: u64,
    last: u64,
    frames: u64,
    events: u64,
    bytes: u64,
    sealed: bool,
    readable: bool,
}

/// Something that is wrong, and what to type next.
struct Problem {
    what: Value,
    text: String,
    damage: bool,
    next: String,
}

pub(super) fn run(args: &VerifyArgs, global: Global) -> Result<(), CliError> {
    let dir = args.journal.dir(global)?;
    if dir.is_file() {
        return file::verify(&dir, args.output.format);
    }
    let findings = Findings::of(&dir)?;
    match args.output.format {
        Format::Json => output::json(&findings.to_json())?,
        Format::Table => findings.show()?,
    }
    let damaged = findings.problems.iter().filter(|problem| problem.damage).count();
    match damaged {
        0 => Ok(()),
        1 => Err(CliError::Failed("the journal is damaged at one place".to_owned())),
        many => Err(CliError::Failed(format!("the journal is damaged at {many} places"))),
    }
}

impl Findings {
    fn of(dir: &Path) -> Result<Self, CliError> {
        let mut pieces = Inspector::open(dir).map_err(ReplayError::from)?;
        let mut findings = Self {
            durable: pieces.head().map(|head| head.position.seq),
            // What is derived is looked at before the log, so that a log in use is not behind it.
            checkpoints: Checkpoint::list(dir).unwrap_or_default(),
            store: store::position(dir).unwrap_or_default(),
            ..Self::default()
        };
        for piece in pieces.by_ref() {
            match piece {
                Piece::Segment(segment) => findings.segment(&segment),
                Piece::Frame(seen) => findings.frame(dir, &seen),
                Piece::Fault(fault) => findings.fault(&fault),
            }
        }
        findings.last = pieces.reached();
        findings.judge_beginning(dir);
        findings.judge_checkpoints(dir);
        Ok(findings)
    }

    fn segment(&mut self, segment: &SeenSegment) {
        self.segments.push(Segment {
            first: segment.first,
            last: 0,
            frames: 0,
            events: 0,
            bytes: segment.len,
            sealed: false,
            readable: segment.header.is_some(),
        });
    }

    fn frame(&mut self, dir: &Path, seen: &SeenFrame) {
        let last = seen.frame.last_seq();
        self.events += u64::from(seen.frame.header.count);
        if let Some(segment) = self.segments.last_mut() {
            segment.frames += 1;
            segment.events += u64::from(seen.frame.header.count);
            segment.last = last;
            let seals = |entry| cocoon_journal::reserved::sealed_next(entry).is_some();
            segment.sealed = seen.frame.entries.last().is_some_and(seals);
        }
        for (seq, entry) in seen.frame.events() {
            if let Err(error) = codec::decode(entry) {
                let path = dir.join(format!("seg/{:020}.seg", seen.segment));
                let unknown = matches!(error, codec::CodecError::Unknown { .. });
                let next = if unknown {
                    "install the version of cocoon that wrote it, or a newer one".to_owned()
                } else {
                    mend()
                };
                self.problem(&path, seen.offset, seq, &error.to_string(), next);
            }
        }
    }

    fn fault(&mut self, fault: &Fault) {
        let next = match fault.kind {
            FaultKind::Tail => {
                "nothing: the next command that writes puts it aside and goes on".to_owned()
            }
            FaultKind::Unused => "nothing: the next command that writes discards it".to_owned(),
            FaultKind::Newer => {
                "install the version of cocoon that wrote it, or a newer one".to_owned()
            }
            FaultKind::Unreadable => {
                format!(
                    "look at {} with the rights of its owner, and at the disk",
                    fault.path.display()
                )
            }
            _ => mend(),
        };
        self.problems.push(Problem {
            what: fault_json(fault),
            text: fault.to_string(),
            damage: fault.kind.is_damage(),
            next,
        });
    }

    fn problem(&mut self, path: &Path, offset: u64, seq: u64, what: &str, next: String) {
        self.problems.push(Problem {
            what: json!({
                "type": "damage", "kind": "content", "seq": seq, "path": path, "offset": offset,
                "what": what,
            }),
            text: format!("{}, offset {offset}, seq {seq}: {what}", path.display()),
            damage: true,
            next,
        });
    }

    /// Where history begins later than with the first event, the state before it must be there.
    fn judge_beginning(&mut self, dir: &Path) {
        let begins_at = self.segments.first().map_or(1, |segment| segment.first);
        let stub = match Stub::latest(dir) {
            Ok(stub) => stub,
            Err(error) => return self.lost_beginning(dir, &error.to_string()),
        };
        let Some(stub) = stub else {
            if begins_at > 1 {
                self.lost_beginning(dir, "the segments before it are gone, and were not archived");
            }
            return;
        };
        self.moved_before = Some(stub.position().seq.saturating_add(1));
        if stub.position().seq.saturating_add(1) < begins_at {
            self.lost_beginning(dir, "segments between what was archived and this are gone");
        } else if let Err(error) = stub.verify() {
            self.lost_beginning(dir, &error.to_string());
        }
    }

    fn lost_beginning(&mut self, dir: &Path, what: &str) {
        let begins_at = self.segments.first().map_or(1, |segment| segment.first);
        let path = dir.join(format!("seg/{begins_at:020}.seg"));
        self.problem(&path, 0, begins_at, what, mend());
    }

    /// A checkpoint must be whole. That it stands on a frame which is there was judged with the log.
    fn judge_checkpoints(&mut self, dir: &Path) {
        for seq in self.checkpoints.clone() {
            let path: PathBuf = dir.join(format!("ckpt/{seq:020}.ckpt"));
            let opened = Checkpoint::open(dir, seq);
            if let Err(error) = opened.and_then(|checkpoint| checkpoint.verify()) {
                let next = format!(
                    "rm {}: the journal has all that it had, and another is made in time",
                    path.display()
                );
                self.problem(&path, 0, seq, &error.to_string(), next);
            }
        }
    }

    fn show(&self) -> Result<(), CliError> {
        let rows = self.segments.iter().map(|segment| {
            let state = match (segment.readable, segment.sealed) {
                (false, _) => "damaged header",
                (true, true) => "sealed",
                (true, false) => "live",
            };
            [segment.first, segment.last, segment.events, segment.frames, segment.bytes]
                .iter()
                .map(ToString::to_string)
                .chain([state.to_owned()])
                .collect()
        });
        let header = ["SEGMENT", "LAST SEQ", "EVENTS", "FRAMES", "BYTES", "STATE"];
        output::table(&header, rows.collect())?;
        let checkpoints: Vec<String> = self.checkpoints.iter().map(ToString::to_string).collect();
        output::line(&format!(
            "\n{} events, last seq {}, durable seq {}, checkpoints {}, event store {}",
            self.events,
            self.last,
            self.durable.map_or("unknown".to_owned(), |seq| seq.to_string()),
            if checkpoints.is_empty() { "none".to_owned() } else { checkpoints.join(", ") },
            if self.store.seq == 0 { "none".to_owned() } else { self.store.seq.to_string() },
        ))?;
        if let Some(first) = self.moved_before {
            let last = first.saturating_sub(1);
            output::line(&format!(
                "history begins at seq {first}; events up to {last} were archived"
            ))?;
        }
        for problem in &self.problems {
            let word = if problem.damage { "damage" } else { "leftover" };
            output::line(&format!("{word}: {}\n  next: {}", problem.text, problem.next))?;
        }
        if self.problems.is_empty() {
            output::line("nothing is wrong")?;
        }
        Ok(())
    }

    fn to_json(&self) -> Value {
        let segments = self.segments.iter().map(|segment| {
            json!({
                "first_seq": segment.first,
                "last_seq": (segment.frames > 0).then_some(segment.last),
                "events": segment.events,
                "frames": segment.frames,
                "bytes": segment.bytes,
                "sealed": segment.sealed,
                "readable": segment.readable,
            })
        });
        let problems = self.problems.iter().map(|problem| {
            let mut what = problem.what.clone();
            if let Value::Object(fields) = &mut what {
                fields.insert("next".to_owned(), json!(problem.next));
            }
            what
        });
        json!({
            "sound": self.problems.iter().all(|problem| !problem.damage),
            "events": self.events,
            "last_seq": self.last.seq,
            "last_hash": codec::hex(&self.last.hash),
            "durable_seq": self.durable,
            "checkpoints": self.checkpoints,
            "begins_at": self.moved_before.unwrap_or(1),
            "store_seq": (self.store.seq > 0).then_some(self.store.seq),
            "segments": segments.collect::<Vec<_>>(),
            "problems": problems.collect::<Vec<_>>(),
        })
    }
}

/// What to do where history is damaged.
fn mend() -> String {
    "`cocoon journal repair --dry-run` says what can be put back, and `cocoon journal repair` does it; `cocoon replay` shows what is left".to_owned()
}
