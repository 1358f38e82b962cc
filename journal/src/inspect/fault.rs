//! What can be wrong with a journal.

use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use crate::frame::Seq;

/// What kind of fault was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum FaultKind {
    /// The header of a segment cannot be read, or names something else.
    Header,
    /// Bytes that are no frame lie among frames.
    Bytes,
    /// Events are missing.
    Gap,
    /// A frame is not the one that should follow.
    Order,
    /// A frame does not name the frame before it.
    Chain,
    /// A segment is missing, or no seal leads to it.
    Segment,
    /// The frame that HEAD names is another one, or is not there.
    Head,
    /// A frame that a checkpoint or the event store includes is another one, or is not there.
    Derived,
    /// A file cannot be read.
    Unreadable,
    /// A newer program wrote it.
    Newer,
    /// The unfinished end of a writer that died or is still at it: nothing of it was ever acknowledged.
    Tail,
    /// An empty segment that no seal names: its maker died before it was used.
    Unused,
}

impl FaultKind {
    /// The word for it in tables and JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Header => "header",
            Self::Bytes => "bytes",
            Self::Gap => "gap",
            Self::Order => "order",
            Self::Chain => "chain",
            Self::Segment => "segment",
            Self::Head => "head",
            Self::Derived => "derived",
            Self::Unreadable => "unreadable",
            Self::Newer => "newer",
            Self::Tail => "tail",
            Self::Unused => "unused",
        }
    }

    /// Whether history is not what it was; the rest is what dead writers leave, and heals by itself.
    #[must_use]
    pub fn is_damage(self) -> bool {
        !matches!(self, Self::Tail | Self::Unused)
    }
}

/// A place at which something is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// What kind.
    pub kind: FaultKind,
    /// The file.
    pub path: PathBuf,
    /// Where in it, bytes.
    pub offset: u64,
    /// How many bytes were passed over.
    pub len: u64,
    /// First sequence number that cannot be relied upon.
    pub seq: Seq,
    /// Events that are known to be missing.
    pub lost: Option<RangeInclusive<Seq>>,
    /// What was found, in a sentence without its subject.
    pub what: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        write!(f, "{path}, offset {}, seq {}: {}", self.offset, self.seq, self.what)
    }
}
