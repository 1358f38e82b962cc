//! The events that the journal writes itself.
//!
//! Kinds from 60000 upwards are reserved. Their bodies are fixed little-endian layouts, so that no
//! codec is needed to walk a journal, and their numbers are never reused.
//!
//! | kind | name | version 1 body |
//! |---|---|---|
//! | 60000 | `JournalSealed` | next segment u64 |
//! | 60001 | `JournalTailCut` | segment u64, offset u64, length u64, blake3 of the bytes (32) |
//! | 60002 | `JournalSalvaged` | last seq kept u64, first seq lost u64, events lost u64 (0: none) |
//! | 60003 | `JournalRestored` | last seq of the backup u64, when it was taken i64, its digest (32) |
//! | 60004 | `JournalImported` | last seq of the export u64, root that it came from (16), its digest (32) |
//! | 60005 | `JournalUpgraded` | format before u32, format from here on u32, version needed UTF-8 (1 to 32) |
//! | 60006 | `JournalArchived` | first seq archived u64, first seq that stays u64, hash of the last frame archived (32) |
//!
//! * `JournalSealed`: nothing follows it in its segment; the next frame is the first of segment
//!   `next`.
//! * `JournalTailCut`: a writer died while writing; its unfinished bytes at `offset` of `segment`
//!   were never acknowledged, were saved in `quarantine/` under their hash, and are overwritten.
//! * `JournalSalvaged`: a repair put back, from what is kept elsewhere, what was damaged from `first seq
//!   lost` on; or it went on without so many events.
//! * `JournalRestored`, `JournalImported`: history went on from a copy, so the world may be ahead of it: whoever
//!   acts on the world has to look first.
//! * `JournalUpgraded`: the barrier. What follows may be of a format that programs before the version named do
//!   not know; they stop here, in words. The layout of this body is for ever, so that they can. Whoever raises the
//!   format seals the segment right after the barrier and writes those that follow under a later segment format, which
//!   stops who begins to read behind it.
//! * `JournalArchived`: events before a seq were moved elsewhere; history here begins with that seq.

use uuid::Uuid;

use crate::frame::{Entry, FrameError, Hash, Seq, Subject};

/// The newest format of records that this program reads. A journal is of format 1 until it passes a barrier
/// ([`JournalEvent::Upgraded`]), and what is written into it is of its own format, not of the newest.
pub const RECORD_FORMAT: u32 = 1;
/// First kind that belongs to the journal itself.
pub const FIRST_KIND: u16 = 60_000;
/// [`JournalEvent::Sealed`].
pub const JOURNAL_SEALED: u16 = 60_000;
/// [`JournalEvent::TailCut`].
pub const JOURNAL_TAIL_CUT: u16 = 60_001;
/// [`JournalEvent::Salvaged`].
pub const JOURNAL_SALVAGED: u16 = 60_002;
/// [`JournalEvent::Restored`].
pub const JOURNAL_RESTORED: u16 = 60_003;
/// [`JournalEvent::Imported`].
pub const JOURNAL_IMPORTED: u16 = 60_004;
/// [`JournalEvent::Upgraded`].
pub const JOURNAL_UPGRADED: u16 = 60_005;
/// [`JournalEvent::Archived`].
pub const JOURNAL_ARCHIVED: u16 = 60_006;
/// Subject of the journal's own events.
pub const SUBJECT: &str = "journal";

const VERSION: u16 = 1;
/// Most bytes of the name of a version.
const MAX_VERSION_LEN: usize = 32;

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
pub const KINDS: [ReservedKind; 7] = [
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
        meaning: "A repair put back what was damaged, or went on after a loss that was accepted.",
    },
    ReservedKind {
        kind: JOURNAL_RESTORED,
        version: VERSION,
        name: "JournalRestored",
        since: "0.1.0",
        meaning: "History goes on from a backup; what happened after it is not here.",
    },
    ReservedKind {
        kind: JOURNAL_IMPORTED,
        version: VERSION,
        name: "JournalImported",
        since: "0.1.0",
        meaning: "History goes on from an export, in a root of its own.",
    },
    ReservedKind {
        kind: JOURNAL_UPGRADED,
        version: VERSION,
        name: "JournalUpgraded",
        since: "0.1.0",
        meaning: "From here on a newer format; the version that it needs is named.",
    },
    ReservedKind {
        kind: JOURNAL_ARCHIVED,
        version: VERSION,
        name: "JournalArchived",
        since: "0.1.0",
        meaning: "Older events were moved elsewhere; the first that stays is named.",
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
    /// A repair put back what was damaged, or went on after a loss.
    Salvaged {
        /// Last sequence number before what was damaged.
        last_kept: Seq,
        /// First sequence number that was damaged.
        first_lost: Seq,
        /// Number of events lost for good, 0 if all were put back.
        lost: u64,
    },
    /// History goes on from a backup.
    Restored {
        /// Last sequence number in the backup.
        last: Seq,
        /// Wall clock when the backup was taken, microseconds since 1970.
        taken_us: i64,
        /// Digest of the backup, which `cocoon journal backup` printed.
        backup: Hash,
    },
    /// History goes on from an export.
    Imported {
        /// Last sequence number in the export.
        last: Seq,
        /// The root that was exported.
        from: Uuid,
        /// Digest of the frames of the export: blake3 over them, one after the other.
        export: Hash,
    },
    /// From here on events may be of a newer format.
    Upgraded {
        /// Format before.
        from: u32,
        /// Format from here on.
        to: u32,
        /// First version of the program that knows it, 1 to 32 bytes.
        needs: String,
    },
    /// Older events were moved elsewhere.
    Archived {
        /// First sequence number that was moved.
        from: Seq,
        /// First sequence number that stays.
        first: Seq,
        /// Hash of the last frame that was moved.
        hash: Hash,
    },
}

impl JournalEvent {
    /// The event as an entry of a frame.
    ///
    /// # Errors
    ///
    /// None in practice; the subject is a constant that satisfies its rules.
    pub fn to_entry(&self) -> Result<Entry, FrameError> {
        let (kind, body) = match self {
            Self::Sealed { next } => (JOURNAL_SEALED, body(&[*next], &[])),
            Self::TailCut { segment, offset, length, hash } => {
                (JOURNAL_TAIL_CUT, body(&[*segment, *offset, *length], &[hash]))
            }
            Self::Salvaged { last_kept, first_lost, lost } => {
                (JOURNAL_SALVAGED, body(&[*last_kept, *first_lost, *lost], &[]))
            }
            Self::Restored { last, taken_us, backup } => {
                (JOURNAL_RESTORED, body(&[*last, taken_us.cast_unsigned()], &[backup]))
            }
            Self::Imported { last, from, export } => {
                (JOURNAL_IMPORTED, body(&[*last], &[from.as_bytes(), export]))
            }
            Self::Upgraded { from, to, needs } => (
                JOURNAL_UPGRADED,
                body(&[], &[&from.to_le_bytes(), &to.to_le_bytes(), needs.as_bytes()]),
            ),
            Self::Archived { from, first, hash } => {
                (JOURNAL_ARCHIVED, body(&[*from, *first], &[hash]))
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
        let mut rest = Rest(&entry.body);
        let event = match entry.kind {
            JOURNAL_SEALED => Self::Sealed { next: rest.number()? },
            JOURNAL_TAIL_CUT => Self::TailCut {
                segment: rest.number()?,
                offset: rest.number()?,
                length: rest.number()?,
                hash: rest.array()?,
            },
            JOURNAL_SALVAGED => Self::Salvaged {
                last_kept: rest.number()?,
                first_lost: rest.number()?,
                lost: rest.number()?,
            },
            JOURNAL_RESTORED => Self::Restored {
                last: rest.number()?,
                taken_us: rest.number()?.cast_signed(),
                backup: rest.array()?,
            },
            JOURNAL_IMPORTED => Self::Imported {
                last: rest.number()?,
                from: Uuid::from_bytes(rest.array()?),
                export: rest.array()?,
            },
            JOURNAL_UPGRADED => Self::Upgraded {
                from: u32::from_le_bytes(rest.array()?),
                to: u32::from_le_bytes(rest.array()?),
                needs: rest.version()?,
            },
            JOURNAL_ARCHIVED => {
                Self::Archived { from: rest.number()?, first: rest.number()?, hash: rest.array()? }
            }
            _ => return None,
        };
        rest.0.is_empty().then_some(event)
    }
}

fn body(numbers: &[u64], rest: &[&[u8]]) -> Vec<u8> {
    let mut body: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    body.extend(rest.iter().copied().flatten());
    body
}

/// What is left to read of a body.
struct Rest<'a>(&'a [u8]);

impl Rest<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*head)
    }

    fn number(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// The name of a version: all that is left, as it goes into messages.
    fn version(&mut self) -> Option<String> {
        let text = std::str::from_utf8(std::mem::take(&mut self.0)).ok()?;
        let plain = text.bytes().all(|byte| byte.is_ascii_graphic());
        ((1..=MAX_VERSION_LEN).contains(&text.len()) && plain).then(|| text.to_owned())
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
            (
                JournalEvent::Restored { last: 7, taken_us: -2, backup: [0xcd; 32] },
                format!("0700000000000000feffffffffffffff{}", "cd".repeat(32)),
            ),
            (
                JournalEvent::Imported {
                    last: 8,
                    from: Uuid::from_u128(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff),
                    export: [0xef; 32],
                },
                format!("080000000000000000112233445566778899aabbccddeeff{}", "ef".repeat(32)),
            ),
            (
                JournalEvent::Upgraded { from: 1, to: 2, needs: "0.2.0".to_owned() },
                "0100000002000000302e322e30".to_owned(),
            ),
            (
                JournalEvent::Archived { from: 1, first: 9, hash: [0x12; 32] },
                format!("01000000000000000900000000000000{}", "12".repeat(32)),
            ),
        ];
        assert_eq!(events.len(), KINDS.len());
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
