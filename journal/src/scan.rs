//! One pass over all that is there, for who wants a report of it.
//!
//! [`Inspector`] finds the pieces; here they are counted by segment. As an answer will be made from what was read, it
//! is made durable.

use std::path::Path;

use crate::error::JournalError;
use crate::frame::{Position, Seq};
use crate::inspect::{DurableEnd, Fault, Inspector, Piece, SeenFrame, SeenSegment};
use crate::reserved::sealed_next;
use crate::segment::SegmentHeader;

/// What was learnt of one segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentReport {
    /// First sequence number, and name.
    pub first: Seq,
    /// Its header, if it can be read.
    pub header: Option<SegmentHeader>,
    /// Good frames in it.
    pub frames: u64,
    /// Events in these.
    pub events: u64,
    /// Bytes up to the end of the last good frame.
    pub bytes: u64,
    /// The next segment, if it is sealed.
    pub sealed: Option<Seq>,
}

/// What was learnt of all.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    pub(crate) segments: Vec<SegmentReport>,
    pub(crate) problems: Vec<Fault>,
    pub(crate) durable: Option<DurableEnd>,
    pub(crate) first: Option<Seq>,
    pub(crate) last: Position,
}

/// Visits every good frame of the journal in `dir`, in order.
pub(crate) fn scan(
    dir: &Path,
    mut visit: impl FnMut(&SeenFrame) -> Result<(), JournalError>,
) -> Result<Scan, JournalError> {
    let mut pieces = Inspector::open(dir)?.made_durable();
    let mut scan = Scan { durable: pieces.head().copied(), ..Scan::default() };
    for piece in pieces.by_ref() {
        match piece {
            Piece::Segment(segment) => scan.segments.push(begun(segment)),
            Piece::Frame(seen) => {
                scan.count(&seen);
                visit(&seen)?;
            }
            Piece::Fault(fault) => scan.problems.push(fault),
        }
    }
    scan.last = pieces.reached();
    Ok(scan)
}

fn begun(segment: SeenSegment) -> SegmentReport {
    let SeenSegment { first, header, .. } = segment;
    SegmentReport { first, header, frames: 0, events: 0, bytes: 0, sealed: None }
}

impl Scan {
    fn count(&mut self, seen: &SeenFrame) {
        self.first.get_or_insert(seen.frame.header.seq);
        let Some(segment) = self.segments.last_mut() else { return };
        segment.frames += 1;
        segment.events += u64::from(seen.frame.header.count);
        segment.bytes = seen.end();
        segment.sealed = seen.frame.entries.last().and_then(sealed_next);
    }
}
