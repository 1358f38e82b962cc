//! An append-only, hash-chained journal that many processes write and that outlives any of them.
//!
//! The journal knows nothing of virtual machines: it carries `(kind, version, subject, bytes)` and
//! leaves their meaning to its user, who keeps a [`Fold`](frame) over them.
//!
//! Module map, from the bytes upwards:
//!
//! * [`frame`]: one decision, its bytes, checksum and chain.

pub mod frame;

pub use frame::{Entry, Frame, FrameError, FrameHeader, Hash, Position, Seq, Subject, Writer};
