//! The events that the journal writes itself.
//!
//! Kinds from 60000 upwards are reserved. Their bodies are fixed little-endian layouts, so that no
//! codec is needed to walk a journal, and their numbers are never reused.
//!
//! | kind | name | version 1 body |
//! |---|---|---|
//! | 60000 | `JournalSealed` | next segment u64 |
//! | 60001 | `JournalTailCut` | segment u64, offset u64, length u64, blake3 of the bytes (32) |
//! | 60002 | `JournalSalvaged` | last seq kept u64, first seq lost u64, events lost u64 (0: unknown) |
//!
//! * `JournalSealed`: nothing follows it in its segment; the next frame is the first of segment
//!   `next`.
//! * `JournalTailCut`: a writer died while writing; its unfinished bytes at `offset` of `segment`
//!   were never acknowledged, were saved in `quarantine/` under their hash, and are overwritten.
//! * `JournalSalvaged`: a repair by hand went on after a loss.

use crate::frame::{Entry, FrameError, Hash, Seq, Subject};

/// First kind that belongs to the journal itself.
pub const FIRST_KIND: u16 = 60_000;
/// [`JournalEvent::Sealed`].
pub const JOURNAL_SEALED: u16 = 60_000;
/// [`JournalEvent::TailCut`].
pub const JOURNAL_TAIL_CUT: u16 = 60_001;
/// [`JournalEvent::Salvaged`].
pub const JOURNAL_SALVAGED: u16 = 60_002;
/// Subject of the journal's own events.
pub const SUBJECT: &str = "journal";

const VERSION: u16 = 1;

/// One line of the table of the journal's own kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReservedKind {
    /// Its number.
    pub kind: u16,
    /// Its newest version.
    pub version: u16,
    /// Its name.
    pub name: &'static str,
    /// The release that brought it.
    pub since: &'static str,
    /// What it says.
    pub meaning: &'static str,
}

/// The journal's own kinds.
pub const KINDS: [ReservedKind; 3] = [
    ReservedKind {
        kind: JOURNAL_SEALED,
        version: VERSION,
        name: "JournalSealed",
        since: "0.1.0",
        meaning: "The segment ends here; the next one is named.",
    },
    ReservedKind {
        kind: JOURNAL_TAIL_CUT,
        version: VERSION,
        name: "JournalTailCut",
        since: "0.1.0",
        meaning: "A writer died amid a write; its bytes, never acknowledged, were put aside.",
    },
    ReservedKind {
        kind: JOURNAL_SALVAGED,
        version: VERSION,
        name: "JournalSalvaged",
        since: "0.1.0",
        meaning: "History goes on after a loss that was repaired by hand.",
    },
];

/// The line of the table for a number, if it is one of the journal's own.
#[must_use]
pub fn kind_info(kind: u16) -> Option<&'static ReservedKind> {
    KINDS.iter().find(|line| line.kind == kind)
}

/// An event of the journal about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum JournalEvent {
    /// The segment ends here.
    Sealed {
        /// First sequence number, and so the name, of the next segment.
        next: Seq,
    },
    /// An unfinished tail was put aside.
    TailCut {
        /// Segment whose tail was cut.
        segment: Seq,
        /// Where in it the tail began, in bytes.
        offset: u64,
        /// How many bytes were put aside.
        length: u64,
        /// Their blake3 hash, which also names the file in `quarantine/`.
        hash: Hash,
    },
    /// History goes on after a loss.
    Salvaged {
        /// Last sequence number kept.
        last_kept: Seq,
        /// First sequence number lost.
        first_lost: Seq,
        /// Number of events lost, 0 if unknown.
        lost: u64,
    },
}

impl JournalEvent {
    /// The event as an entry of a frame.
    ///
    /// # Errors
    ///
    /// None in practice; the subject is a constant that satisfies its rules.
    pub fn to_entry(&self) -> Result<Entry, FrameError> {
        let mut body = Vec::new();
        let kind = match self {
            Self::Sealed { next } => {
                body.extend_from_slice(&next.to_le_bytes());
                JOURNAL_SEALED
            }
            Self::TailCut { segment, offset, length, hash } => {
                for number in [segment, offset, length] {
                    body.extend_from_slice(&number.to_le_bytes());
                }
                body.extend_from_slice(hash);
                JOURNAL_TAIL_CUT
            }
            Self::Salvaged { last_kept, first_lost, lost } => {
                for number in [last_kept, first_lost, lost] {
                    body.extend_from_slice(&number.to_le_bytes());
                }
                JOURNAL_SALVAGED
            }
        };
        Ok(Entry { kind, version: VERSION, subject: Subject::new(SUBJECT)?, body })
    }

    /// Reads an entry; `None` if it is not the journal's, or of a version or shape not known here.
    #[must_use]
    pub fn from_entry(entry: &Entry) -> Option<Self> {
        if entry.version != VERSION {
            return None;
        }
        let (words, rest) = entry.body.as_chunks::<8>();
        let number = |index: usize| words.get(index).map(|word| u64::from_le_bytes(*word));
        match (entry.kind, entry.body.len()) {
            (JOURNAL_SEALED, 8) => Some(Self::Sealed { next: number(0)? }),
            (JOURNAL_TAIL_CUT, 56) if rest.is_empty() => Some(Self::TailCut {
                segment: number(0)?,
                offset: number(1)?,
                length: number(2)?,
                hash: entry.body.get(24..)?.try_into().ok()?,
            }),
            (JOURNAL_SALVAGED, 24) => Some(Self::Salvaged {
                last_kept: number(0)?,
                first_lost: number(1)?,
                lost: number(2)?,
            }),
            _ => None,
        }
    }
}

/// The segment that `entry` seals the way to.
#[must_use]
pub fn sealed_next(entry: &Entry) -> Option<Seq> {
    match JournalEvent::from_entry(entry) {
        Some(JournalEvent::Sealed { next }) => Some(next),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_golden_and_round_trip() {
        let events = [
            (JournalEvent::Sealed { next: 0x0102 }, "0201000000000000".to_owned()),
            (
                JournalEvent::TailCut { segment: 1, offset: 2, length: 3, hash: [0xab; 32] },
                format!(
                    "{}{}",
                    "010000000000000002000000000000000300000000000000",
                    "ab".repeat(32)
                ),
            ),
            (
                JournalEvent::Salvaged { last_kept: 4, first_lost: 5, lost: 6 },
                "040000000000000005000000000000000600000000000000".to_owned(),
            ),
        ];
        for (event, golden) in events {
            let entry = event.to_entry().unwrap();
            assert_eq!(kind_info(entry.kind).map(|line| line.version), Some(entry.version));
            let hex: String = entry.body.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(hex, golden);
            assert_eq!(JournalEvent::from_entry(&entry), Some(event));
            let longer = Entry { body: [entry.body.clone(), vec![0]].concat(), ..entry.clone() };
            assert_eq!(JournalEvent::from_entry(&longer), None);
            let newer = Entry { version: 2, ..entry };
            assert_eq!(JournalEvent::from_entry(&newer), None);
        }
    }
}
