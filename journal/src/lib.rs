//! An append-only, hash-chained journal that many processes write and that outlives any of them.
//!
//! The journal knows nothing of virtual machines: it carries `(kind, version, subject, bytes)` and
//! leaves their meaning to its user, who keeps a [`Fold`] over them. No server stands between a process
//! and the journal. Each is its own client, and its death leaves nothing of it in flight.
//!
//! An event is acknowledged when the frame that holds it is in a segment file and synced.
//!
//! ```
//! use std::time::{Duration, Instant};
//! use cocoon_journal::{
//!     Entry, Fold, Frame, Hash, Journal, Options, Position, Proposal, SegmentedJournal, Subject, Writer,
//! };
//!
//! /// The state: how many events there were.
//! #[derive(Default)]
//! struct Count(Position);
//!
//! impl Fold for Count {
//!     type Error = std::convert::Infallible;
//!
//!     fn position(&self) -> Position {
//!         self.0
//!     }
//!
//!     fn apply(&mut self, frame: &Frame, hash: Hash) -> Result<(), Self::Error> {
//!         self.0 = frame.position(hash);
//!         Ok(())
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! let mut journal = SegmentedJournal::open(&dir.path().join("journal"), Options::default())?;
//! let mut count = Count::default();
//! let writer = Writer::of_this_process(uuid::Uuid::new_v4(), "example")?;
//! let deadline = Instant::now() + Duration::from_secs(10);
//! let event = Entry { kind: 1, version: 1, subject: Subject::new("vm/a")?, body: b"made".to_vec() };
//! let outcome = journal.transact(&mut count, &writer, deadline, |count| {
//!     Ok(match count.position().seq {
//!         0 => Proposal::Append(vec![event], "made"),
//!         _ => Proposal::Answer("already there"),
//!     })
//! })?;
//! // Here it is durable.
//! assert_eq!((outcome.answer, outcome.seqs), ("made", Some(1..=1)));
//! # Ok(())
//! # }
//! ```
//!
//! Module map, from the bytes upwards:
//!
//! * [`frame`]: one decision, its bytes, checksum and chain; [`reserved`]: the journal's own events.
//! * [`segment`]: files of frames; `head`: how far they are known to be durable.
//! * `cursor`, `view`: reading frames in order, and what a handle has validated.
//! * [`lock`]: one writer at a time; `slow`: telling what is waited for.
//! * [`segmented`]: the journal itself: transactions, sealing, torn tails, reading.
//! * [`tail`]: following it as it grows.
//! * [`verify`], [`export`]: the whole of it, however damaged.
//! * [`bundle`]: the whole of it in one file; [`mod@backup`], [`staging`]: into it, and out of it again.
//! * [`repair`]: mending a damaged log with what is kept elsewhere.
//! * [`inspect`]: looking at it without touching it, however damaged it is.
//! * [`archive`]: moving old history away.
//! * `memory`: the same contract in memory; `conformance`: what both must do.
//! * [`table`]: a sorted file that is looked up without being read whole.
//! * [`checkpoint`]: the folded state at a position, made of tables.
//! * [`store`]: every event in sled, for ranges and history.

pub mod archive;
pub mod backup;
pub mod bundle;
pub mod checkpoint;
pub mod clock;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod cursor;
mod directory;
pub mod error;
pub mod export;
mod files;
pub mod frame;
mod head;
pub mod inspect;
pub mod journal;
pub mod lock;
mod memory;
mod proof;
#[cfg(test)]
mod reference;
pub mod repair;
pub mod reserved;
mod scan;
pub mod segment;
pub mod segmented;
mod slow;
pub mod staging;
pub mod store;
pub mod table;
pub mod tail;
#[cfg(test)]
mod testing;
pub mod verify;
mod view;
mod window;
pub mod witness;

pub use error::JournalError;
pub use frame::{Entry, Frame, FrameError, FrameHeader, Hash, Position, Seq, Subject, Writer};
pub use journal::{Fold, Journal, Outcome, Proposal, Unfolded};
pub use memory::MemoryJournal;
pub use segmented::{Frames, Options, SegmentedJournal};
pub use tail::Tail;
pub use witness::Witness;
