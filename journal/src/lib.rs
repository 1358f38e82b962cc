//! An append-only, hash-chained journal that many processes write and that outlives any of them.
//!
//! The journal knows nothing of virtual machines: it carries `(kind, version, subject, bytes)` and
//! leaves their meaning to its user, who keeps a [`Fold`](frame) over them.
//!
//! Module map, from the bytes upwards:
//!
//! * [`frame`]: one decision, its bytes, checksum and chain.
//! * [`table`]: a sorted file that is looked up without being read whole.
//! * [`checkpoint`]: the folded state at a position, made of tables.

pub mod checkpoint;
mod files;
pub mod frame;
pub mod table;

pub use frame::{Entry, Frame, FrameError, FrameHeader, Hash, Position, Seq, Subject, Writer};
