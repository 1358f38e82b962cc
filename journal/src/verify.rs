//! Checking and counting: the whole journal, read-only, as far as it can be read.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use uuid::Uuid;

use crate::directory::Directory;
use crate::error::JournalError;
use crate::frame::{Position, Seq};
use crate::inspect::Fault;
use crate::scan::{Scan, scan};

pub use crate::scan::SegmentReport;

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The root that the journal belongs to, if any segment can tell.
    pub root: Option<Uuid>,
    /// First sequence number that is there; `None` in an empty journal.
    pub first: Option<Seq>,
    /// The last good frame.
    pub last: Position,
    /// What `HEAD` calls durable, if it can be read.
    pub durable: Option<Position>,
    /// Good frames.
    pub frames: u64,
    /// Events in these.
    pub events: u64,
    /// One for each segment file, in order.
    pub segments: Vec<SegmentReport>,
    /// Whatever is not as it should be, in the order of the files.
    pub problems: Vec<Fault>,
}

impl Report {
    /// Whether nothing is damaged. Leftovers of dead processes are no damage.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.problems.iter().all(|problem| !problem.kind.is_damage())
    }
}

/// Checks every checksum, the order, the chain, the seals and `HEAD`.
///
/// On a journal in use, what is being written may show up as a leftover.
///
/// # Errors
///
/// [`JournalError::Missing`] if there is no journal, or if the directory cannot be read. Damage is no
/// error: it is what the report is for.
pub fn verify(dir: &Path) -> Result<Report, JournalError> {
    scan(dir, |_| Ok(())).map(report)
}

fn report(scan: Scan) -> Report {
    let header = scan.segments.iter().find_map(|segment| segment.header.as_ref());
    Report {
        root: header.map(|header| header.root),
        first: scan.first,
        last: scan.last,
        durable: scan.durable.map(|head| head.position),
        frames: scan.segments.iter().map(|segment| segment.frames).sum(),
        events: scan.segments.iter().map(|segment| segment.events).sum(),
        segments: scan.segments,
        problems: scan.problems,
    }
}

/// Events and bytes of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KindStats {
    /// How many events.
    pub events: u64,
    /// Bytes of their bodies.
    pub bytes: u64,
}

/// Figures of a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stats {
    /// First sequence number that is there.
    pub first: Option<Seq>,
    /// The last good frame.
    pub last: Position,
    /// What `HEAD` calls durable.
    pub durable: Option<Position>,
    /// Segment files, of which all but the last are sealed.
    pub segments: usize,
    /// Bytes of all good frames and headers.
    pub bytes: u64,
    /// Good frames.
    pub frames: u64,
    /// Events in these.
    pub events: u64,
    /// Wall clock of the first frame, microseconds since 1970.
    pub oldest_us: Option<i64>,
    /// Wall clock of the last frame, microseconds since 1970.
    pub newest_us: Option<i64>,
    /// How many boots of the host wrote.
    pub boots: usize,
    /// How many operations wrote.
    pub operations: usize,
    /// By number of the kind.
    pub kinds: BTreeMap<u16, KindStats>,
    /// Files put aside in `quarantine/`.
    pub quarantined: usize,
}

/// Counts what is there. Reads every segment.
///
/// # Errors
///
/// As [`verify`].
pub fn stats(dir: &Path) -> Result<Stats, JournalError> {
    let mut kinds = BTreeMap::<u16, KindStats>::new();
    let (mut boots, mut operations) = (BTreeSet::new(), BTreeSet::new());
    let (mut oldest_us, mut newest_us) = (None, None);
    let scan = scan(dir, |found| {
        let header = &found.frame.header;
        boots.insert(header.boot_id);
        operations.insert(header.operation);
        oldest_us.get_or_insert(header.wall_us);
        newest_us = Some(header.wall_us);
        for entry in &found.frame.entries {
            let kind = kinds.entry(entry.kind).or_default();
            kind.events += 1;
            kind.bytes += u64::try_from(entry.body.len()).unwrap_or_default();
        }
        Ok(())
    })?;
    operations.remove(&Uuid::nil());
    let quarantined = std::fs::read_dir(Directory::new(dir).quarantine());
    let report = report(scan);
    Ok(Stats {
        first: report.first,
        last: report.last,
        durable: report.durable,
        segments: report.segments.len(),
        bytes: report.segments.iter().map(|segment| segment.bytes).sum(),
        frames: report.frames,
        events: report.events,
        oldest_us,
        newest_us,
        boots: boots.len(),
        operations: operations.len(),
        kinds,
        quarantined: quarantined.map_or(0, Iterator::count),
    })
}
