//! The store: every durable event in sled, ordered and indexed, for ranges, history and forensics.
//!
//! ```text
//!  journal/OWNER                 flock: who may open sled; tried, never waited for
//!  journal/sled/<first-seq>/     one generation for each segment, a sled database
//!  journal/sled/*.building/      a generation that is being made; nobody's after a crash
//!  journal/quarantine/           what was found unfit, kept
//!
//!  segments     1.seg ------- seal   5001.seg ------ seal   9876.seg ----> live
//!                 |                     |                      |
//!  generations    1/                    5001/                  9876/  <--- follows, batch by batch
//! ```
//!
//! The segments are the truth, and the store only follows them; an event is acknowledged without
//! it. Whatever is wrong with a generation is repaired in one way: build a new one from the
//! segment, move the old one to `quarantine/`, put the new one in its place.
//!
//! ```text
//!            frames <= durable             seal frame applied
//!  missing --> building --> live ----------------------------> sealed
//!                 ^          | behind what it had, damaged,       |
//!                 |          | ahead of the log, other hash       |
//!                 +----------+------------------------------------+
//! ```
//!
//! A generation starts empty in a directory of its own, is made whole and synced there and only
//! then gets its name; nothing is ever deleted in place. A frame is applied in one batch together
//! with the position that it leads to, so applying it again is noticed and skipped. Frames beyond
//! the durable position are refused: what is derived never leads the log, so a store that is ahead
//! of it proves that the *log* lost something ([`Repair::Ahead`]).
//!
//! sled is used from one thread, with blocking calls, and never without the guard that turns its
//! panics into errors. A generation in doubt (its last opening did not end, or its file is shorter
//! than it was) is copied before it is opened, because opening overwrites what it cannot read.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::AnyError;
use crate::files;
use crate::frame::{Position, Seq};

mod catch_up;
mod event;
mod extent;
mod feed;
mod generation;
mod guarded;
mod quarantine;
mod query;
mod repair;
pub(crate) mod salvage;
mod source;

pub use catch_up::CaughtUp;
pub use event::StoredEvent;
use extent::{Extent, Stamp};
pub use feed::{FEED_CAPACITY, FeedMessage, spawn_writer};
use generation::{Generation, Unfit};
pub use query::Events;
pub use repair::{Repair, Repaired};
pub use source::{FrameSource, Frames};

/// The store is due when so many durable events are not in it. Opening it costs more than writing an event into it by a
/// factor of thousands, and nobody waits for it: the segments have everything.
pub const STORE_EVERY: u64 = 2048;

/// So many generations stay open at a time. Each has its cache and its descriptor.
const MAX_OPEN: usize = 4;

/// Why the store could not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The file system refused.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What was being done, as a verb.
        doing: &'static str,
        /// What the file system said.
        source: io::Error,
    },
    /// A generation cannot be relied upon. The next catch-up repairs it.
    #[error(
        "generation {generation} of the event store is unfit ({repair}); the next catch-up rebuilds it from the journal"
    )]
    Unfit {
        /// Its first sequence number.
        generation: Seq,
        /// What is wrong.
        repair: Repair,
    },
    /// The frames could not be read.
    #[error("the event store cannot follow the journal: {0}")]
    Source(AnyError),
    /// The log does not hold the frame that it should.
    #[error("the journal has no frame that begins at seq {expected}; run `journal verify`")]
    Gap {
        /// Sequence number that was asked for.
        expected: Seq,
    },
    /// The frames given do not form a chain, or do not lead to the position called durable.
    #[error(
        "the frame at seq {seq} does not follow the one before it; nothing of it was stored. Run `journal verify`"
    )]
    Chain {
        /// First sequence number of the frame.
        seq: Seq,
    },
    /// The range begins before the history that is kept.
    #[error("history begins at seq {begins}, seq {asked} is no longer kept here")]
    Before {
        /// First sequence number kept.
        begins: Seq,
        /// Sequence number asked for.
        asked: Seq,
    },
    /// Repairs lead to further repairs without end.
    #[error("the event store could not be repaired after {repairs} repairs; remove {} and try again", dir.display())]
    Unsettled {
        /// How many were made.
        repairs: usize,
        /// The directory of the store.
        dir: PathBuf,
    },
}

/// How a store works. The default is right outside tests.
#[derive(Debug, Clone, Copy)]
pub struct StoreOptions {
    /// Called with a name before and after each step, so that a test can end the process there.
    pub boundary: fn(&'static str),
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self { boundary: |_| {} }
    }
}

/// The right to use sled, and the generations that are open. It ends with the value or the process.
#[derive(Debug)]
pub struct Store {
    journal_dir: PathBuf,
    dir: PathBuf,
    options: StoreOptions,
    open: BTreeMap<Seq, Generation>,
    _owner: files::Held,
}

impl Store {
    /// Takes the store of the journal in `journal_dir`; `None` if another process has it.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn try_open(journal_dir: &Path) -> Result<Option<Self>, StoreError> {
        Self::try_open_with(journal_dir, StoreOptions::default())
    }

    /// As [`try_open`](Self::try_open), with options.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn try_open_with(
        journal_dir: &Path,
        options: StoreOptions,
    ) -> Result<Option<Self>, StoreError> {
        let path = journal_dir.join("OWNER");
        let owner = files::try_lock(&path).map_err(|source| io_error(&path, "lock", source))?;
        let Some(owner) = owner else { return Ok(None) };
        let dir = store_dir(journal_dir);
        files::create_dir(&dir).map_err(|source| io_error(&dir, "create", source))?;
        let journal_dir = journal_dir.to_owned();
        let store = Self { journal_dir, dir, options, open: BTreeMap::new(), _owner: owner };
        store.remove_unfinished()?;
        Ok(Some(store))
    }

    /// The last frame that the store holds; the start of the journal if it holds none. Read from
    /// what the newest generation had when it was last flushed.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn position(&self) -> Result<Position, StoreError> {
        position(&self.journal_dir)
    }

    /// Number of durable events that are not in the store yet.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn lag(&self, durable: Seq) -> Result<u64, StoreError> {
        lag(&self.journal_dir, durable)
    }

    /// First sequence number kept; `None` if the store is empty.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn first_seq(&self) -> Result<Option<Seq>, StoreError> {
        Ok(generations(&self.dir)?.first().copied())
    }

    /// Reads every generation whole, and marks those that are damaged for the next catch-up.
    ///
    /// # Errors
    /// [`StoreError::Unfit`] for the first that is damaged.
    pub fn verify(&mut self) -> Result<(), StoreError> {
        let mut first_bad = None;
        for first in generations(&self.dir)? {
            let verified = self.generation(first).and_then(|generation| {
                generation.verify().map_err(|unfit| unfit.into_error(first))
            });
            if let Err(error) = verified {
                self.doubt(first);
                first_bad = first_bad.or(Some(error));
            }
        }
        first_bad.map_or(Ok(()), Err)
    }

    /// Removes the generations of history that was moved away: those before `first`.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn retire(&mut self, first: Seq) -> Result<(), StoreError> {
        for retired in generations(&self.dir)?.into_iter().filter(|retired| *retired < first) {
            self.open.remove(&retired);
            let path = generation_dir(&self.dir, retired);
            fs::remove_dir_all(&path).map_err(|source| io_error(&path, "remove", source))?;
        }
        files::sync_dir(&self.dir).map_err(|source| io_error(&self.dir, "sync", source))
    }

    /// The generation that begins at `first`, opened if need be. One that cannot be opened is rebuilt by the
    /// next catch-up.
    fn generation(&mut self, first: Seq) -> Result<&mut Generation, StoreError> {
        if let Err(unfit) = self.open_generation(first) {
            if matches!(unfit, Unfit::Repair(_)) {
                self.doubt(first);
            }
            return Err(unfit.into_error(first));
        }
        self.open_generation(first).map_err(|unfit| unfit.into_error(first))
    }

    fn open_generation(&mut self, first: Seq) -> Result<&mut Generation, Unfit> {
        if !self.open.contains_key(&first) {
            while self.open.len() >= MAX_OPEN {
                // The newest is the one that is written to.
                self.open.pop_first();
            }
            let generation = Generation::open(&self.journal_dir, first, self.options)?;
            self.open.insert(first, generation);
        }
        self.open.get_mut(&first).ok_or(Unfit::Repair(Repair::Missing))
    }

    /// Gives a generation up after a fault; the next opening looks at it closely.
    fn doubt(&mut self, first: Seq) {
        self.open.remove(&first);
        if let Err(error) = generation::mark(&generation_dir(&self.dir, first)) {
            tracing::warn!(generation = first, %error, "cannot mark a damaged generation");
        }
    }

    /// How far a generation reaches, without opening it unless that is needed to know.
    fn extent(&mut self, first: Seq) -> Result<Extent, Unfit> {
        if let Some(generation) = self.open.get(&first) {
            return Ok(generation.extent());
        }
        let dir = generation_dir(&self.dir, first);
        match generation::trusted_stamp(&dir, first)? {
            Some(stamp) => Ok(stamp.extent),
            None => Ok(self.open_generation(first)?.extent()),
        }
    }

    /// How far a generation reaches that should be sealed. A power cut may leave it an older stamp; then
    /// it is asked itself.
    fn sealed_extent(&mut self, first: Seq) -> Result<Extent, Unfit> {
        let extent = self.extent(first)?;
        if extent.next.is_some() {
            return Ok(extent);
        }
        Ok(self.open_generation(first)?.extent())
    }

    fn remove_unfinished(&self) -> Result<(), StoreError> {
        for name in names(&self.dir)? {
            if name.ends_with(".building") {
                let path = self.dir.join(name);
                let removed = match fs::symlink_metadata(&path) {
                    Ok(meta) if meta.is_dir() => fs::remove_dir_all(&path),
                    _ => files::remove(&path),
                };
                removed.map_err(|source| io_error(&path, "remove", source))?;
            }
        }
        Ok(())
    }
}

/// The last frame in the store of the journal in `journal_dir`, read without any lock.
///
/// # Errors
/// [`StoreError::Io`].
pub fn position(journal_dir: &Path) -> Result<Position, StoreError> {
    let dir = store_dir(journal_dir);
    let Some(newest) = generations(&dir)?.pop() else { return Ok(Position::default()) };
    let dir = generation_dir(&dir, newest);
    let stamp = Stamp::read(&dir).map_err(|source| io_error(&dir, "read the stamp in", source))?;
    // Without a stamp nothing is known, and whoever asks should look.
    Ok(stamp.map_or(Position::default(), |stamp| stamp.extent.last))
}

/// Number of events up to `durable` that are not in the store, read without any lock.
///
/// # Errors
/// [`StoreError::Io`].
pub fn lag(journal_dir: &Path, durable: Seq) -> Result<u64, StoreError> {
    Ok(durable.saturating_sub(position(journal_dir)?.seq))
}

/// Says whether the store should be brought up, being `lag` events behind.
#[must_use]
pub fn due(lag: u64) -> bool {
    lag >= STORE_EVERY
}

fn store_dir(journal_dir: &Path) -> PathBuf {
    journal_dir.join("sled")
}

fn generation_dir(store_dir: &Path, first: Seq) -> PathBuf {
    store_dir.join(format!("{first:020}"))
}

/// Every generation of the store of the journal in `journal_dir`, in order, with its directory.
pub(crate) fn generation_dirs(journal_dir: &Path) -> Vec<(Seq, PathBuf)> {
    let dir = store_dir(journal_dir);
    let firsts = generations(&dir).unwrap_or_default();
    firsts.into_iter().map(|first| (first, generation_dir(&dir, first))).collect()
}

/// The last event that the generation in `dir` says to have; `None` if it does not say.
pub(crate) fn reaches(dir: &Path) -> Option<Seq> {
    Stamp::read(dir).ok().flatten().map(|stamp| stamp.extent.last.seq)
}

/// First sequence numbers of all generations, in order.
fn generations(dir: &Path) -> Result<Vec<Seq>, StoreError> {
    let parse = |name: &String| {
        let digits = name.len() == 20 && name.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| name.parse().ok()).flatten().filter(|first| *first > 0)
    };
    let mut firsts: Vec<Seq> = names(dir)?.iter().filter_map(parse).collect();
    firsts.sort_unstable();
    Ok(firsts)
}

fn names(dir: &Path) -> Result<Vec<String>, StoreError> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(io_error(dir, "list", error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|source| io_error(dir, "list", source))?;
        names.extend(entry.file_name().into_string().ok());
    }
    Ok(names)
}

fn io_error(path: &Path, doing: &'static str, source: io::Error) -> StoreError {
    StoreError::Io { path: path.to_owned(), doing, source }
}

#[cfg(test)]
mod tests;
