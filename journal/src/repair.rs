//! Mending a damaged log with what is kept elsewhere, and going on after a loss where nothing is.
//!
//! ```text
//!  segments --walk--> frame good: on to the next
//!                     frame bad:  the very bytes, from        the chain proves them: a frame
//!                       the event store, live or put aside    names the hash of the one before
//!                       another copy of the journal           (`--from`)
//!                       itself, but for one bit               where a later hash vouches for it
//!                     none of these: events are lost for good
//!
//!  nothing lost          the damaged bytes are put aside, the right ones written in their place
//!  lost, and a           history then begins behind the loss: the segments up to it are put aside
//!    checkpoint beyond
//!  lost, else            the history is cut before the loss: whatever comes after is put aside
//! ```
//!
//! A loss is only acted upon when it is accepted. Everything that is replaced or taken out of the way is
//! kept in `quarantine/salvage-<seq>.<n>/`, and the journal says what was done in a `JournalSalvaged`.
//!
//! # Killed in between
//!
//! The directory in quarantine comes first, with a file `PLAN`; `DONE` comes last. Who finds a plan that
//! is not done goes on with it. Until then every step leaves a log that other commands refuse as damaged,
//! or that is whole: bytes that are written back are those that were there, a segment that is cut gets
//! its new content in one rename, and `HEAD` is the last to agree.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use uuid::Uuid;

use crate::checkpoint::CheckpointError;
use crate::directory::Directory;
use crate::error::JournalError;
use crate::files;
use crate::frame::{Position, Seq, Writer};
use crate::lock::Lock;
use crate::proof;
use crate::segmented::Options;

mod bits;
mod cut;
mod image;
mod kept;
mod plan;
mod record;
mod retire;
mod sources;
mod walk;

use plan::Way;

/// How long a repair waits for the writers' lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// What a repair may do, and where it may look.
#[derive(Clone, Debug, Default)]
pub struct RepairOptions {
    /// How the journal is kept; the root is needed where no segment can name it.
    pub journal: Options,
    /// Only say what would be done.
    pub dry_run: bool,
    /// Go on where events are lost for good.
    pub accept_loss: bool,
    /// Other copies of this journal, in which lost frames are looked for.
    pub copies: Vec<PathBuf>,
}

/// Where the right bytes come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The event store, or a generation of it that was put aside.
    Store,
    /// Another copy of the journal.
    Copy,
    /// The same file: the frame was not where it belongs.
    Moved,
    /// The damaged bytes themselves: one bit was wrong, and the chain proves which.
    Bit,
    /// The frames around it determine it.
    Chain,
    /// Nothing belongs there.
    Nothing,
}

impl Source {
    /// The word for it in tables and JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Store => "event store",
            Self::Copy => "copy",
            Self::Moved => "elsewhere in the file",
            Self::Bit => "one flipped bit",
            Self::Chain => "chain",
            Self::Nothing => "nothing belongs there",
        }
    }
}

/// Bytes that are put back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// The file.
    pub path: PathBuf,
    /// Where in it, bytes.
    pub offset: u64,
    /// How many bytes.
    pub len: u64,
    /// The events of it; `None` for what is no frame.
    pub seqs: Option<RangeInclusive<Seq>>,
    /// Where they come from.
    pub source: Source,
}

/// Events that are lost for good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Their sequence numbers.
    pub seqs: RangeInclusive<Seq>,
    /// The file where they were.
    pub path: PathBuf,
    /// Where in it, bytes.
    pub offset: u64,
    /// Wall clock of the last event before them, microseconds since 1970, if there is one.
    pub after_us: Option<i64>,
    /// Wall clock of the first event after them that is still there.
    pub before_us: Option<i64>,
}

/// How a loss is gone on from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Going {
    /// The state is that of a checkpoint beyond the loss: only history is lost.
    FromCheckpoint {
        /// Where the checkpoint stands.
        checkpoint: Position,
        /// First event of the history that stays.
        begins: Seq,
    },
    /// History, and with it the state, ends before the loss.
    Cut {
        /// The last event that stays.
        last: Seq,
        /// Events after it, lost or put aside.
        events: u64,
    },
}

/// What a repair found, and did or would do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repaired {
    /// Bytes that were put back.
    pub restored: Vec<Restored>,
    /// Things in the place of files, and files that nobody may read: put aside, or made readable.
    pub cleared: Vec<PathBuf>,
    /// Events that are lost for good, in order.
    pub losses: Vec<Loss>,
    /// How it goes on after the losses, if it may.
    pub going: Option<Going>,
    /// The directory that keeps what was replaced or taken away.
    pub kept: Option<PathBuf>,
    /// The event that says so.
    pub recorded: Option<Seq>,
    /// Whether an earlier repair was killed, and is finished by this one.
    pub resumed: bool,
}

impl Repaired {
    /// Whether there was nothing to do.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.restored.is_empty()
            && self.cleared.is_empty()
            && self.losses.is_empty()
            && !self.resumed
    }

    /// Number of events that are lost for good.
    #[must_use]
    pub fn lost(&self) -> u64 {
        let lens = self.losses.iter().map(|loss| loss.seqs.end() - loss.seqs.start() + 1);
        lens.fold(0, u64::saturating_add)
    }
}

/// Why nothing, or not all, was repaired.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RepairError {
    /// The journal cannot be read or written.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// Events are lost, and that was not accepted.
    #[error(
        "{} events are lost for good ({}); nothing was changed. `cocoon journal repair --from DIR` takes them from a copy of the journal, or a root made of a backup, `cocoon journal restore` puts all of it back, `cocoon journal repair --accept-loss` goes on without them",
        .0.lost(), ranges(&.0.losses)
    )]
    Lost(Box<Repaired>),
    /// A loss, and nothing to go on from.
    #[error(
        "{} events are lost for good ({}), the history before them begins at seq {begins}, and no checkpoint can be read that holds the state there: nothing was changed. Type `cocoon journal restore`",
        found.lost(), ranges(&found.losses)
    )]
    NoState {
        /// What was found.
        found: Box<Repaired>,
        /// First event that is there.
        begins: Seq,
    },
    /// The state that history would go on from cannot be kept.
    #[error("the state cannot be kept beside what is left of history: {0}")]
    State(#[from] CheckpointError),
    /// Another process uses the event store or writes a checkpoint.
    #[error(
        "another process holds {}, most likely the daemon: stop it, then type this again",
        path.display()
    )]
    InUse {
        /// The lock.
        path: PathBuf,
    },
}

fn ranges(losses: &[Loss]) -> String {
    let range = |loss: &Loss| match (loss.seqs.start(), loss.seqs.end()) {
        (first, last) if first == last => format!("seq {first}"),
        (first, last) => format!("seq {first} to {last}"),
    };
    losses.iter().map(range).collect::<Vec<_>>().join(", ")
}

/// Mends the log in `dir` as far as it can be, or says what it would do. Doing it again changes nothing;
/// killed in between, doing it again ends where it would have ended.
///
/// # Errors
///
/// [`RepairError::Lost`] if events are lost and that is not accepted; others if the files cannot be used.
pub fn repair(dir: &Path, options: &RepairOptions) -> Result<Repaired, RepairError> {
    let directory = Directory::new(dir);
    if options.dry_run {
        let way = Way::find(&directory, options)?;
        return Ok(Repaired { resumed: way.unfinished.is_some(), ..way.found });
    }
    if !dir.join("seg").is_dir() && !dir.join("HEAD").exists() && proof::read(dir).is_empty() {
        return Err(JournalError::Missing { path: dir.to_owned() }.into());
    }
    directory.prepare()?;
    let mut cleared = kept::clear_locks(dir)?;
    cleared.append(&mut kept::make_readable(&directory)?);
    let writer = Writer::of_this_process(Uuid::nil(), "journal repair")
        .map_err(JournalError::io("read", Path::new("/proc/self/stat")))?;
    let lock = Lock::acquire(&directory.lock(), &writer, Instant::now() + LOCK_TIMEOUT)?;
    let way = Way::find(&directory, options)?;
    if way.found.is_sound() && way.unfinished.is_none() {
        return Ok(Repaired { cleared, ..way.found });
    }
    let _derived = if way.loses() { Some(hold_derived(dir)?) } else { None };
    if !way.found.losses.is_empty() && !way.is_decided() {
        if !options.accept_loss {
            return Err(RepairError::Lost(Box::new(way.found)));
        }
        if way.found.going.is_none() {
            let begins = directory.list()?.first().copied().unwrap_or(1);
            return Err(RepairError::NoState { found: Box::new(way.found), begins });
        }
    }
    let mut done = way.carry_out(&directory, options, &writer, lock)?;
    cleared.append(&mut done.cleared);
    done.cleared = cleared;
    Ok(done)
}

/// Both locks of what is derived, or who has them.
fn hold_derived(dir: &Path) -> Result<[files::Held; 2], RepairError> {
    let hold = |name: &str| {
        let path = dir.join(name);
        match files::try_lock(&path).map_err(JournalError::io("lock", &path))? {
            Some(held) => Ok(held),
            None => Err(RepairError::InUse { path }),
        }
    };
    Ok([hold("OWNER")?, hold("CKPT")?])
}
