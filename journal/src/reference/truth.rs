//! The plain vector.

use std::collections::BTreeMap;

use crate::frame::{Entry, Frame, HEADER_LEN, Hash, Position, Seq, Subject};
use crate::journal::Fold;
use crate::reserved::{FIRST_KIND, sealed_next};
use crate::segment;

/// An event: the number of its decision, and its place in that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Event {
    decision: u64,
    place: u8,
    of: u8,
}

/// What was promised, and how many decisions were made.
#[derive(Debug, Default)]
pub(super) struct Truth {
    promised: BTreeMap<Seq, Event>,
    decisions: u64,
}

impl Truth {
    /// The events of one more decision.
    pub(super) fn decide(&mut self, of: u8) -> Vec<Entry> {
        self.decisions += 1;
        let event = |place| Event { decision: self.decisions, place, of };
        (0..of).map(|place| event(place).entry()).collect()
    }

    /// How many decisions were made.
    pub(super) fn decisions(&self) -> u64 {
        self.decisions
    }

    /// Somebody was told of these events.
    pub(super) fn promise(&mut self, events: &[(Seq, Event)], by: &str) {
        for (seq, event) in events {
            let before = self.promised.insert(*seq, *event);
            assert!(before.is_none_or(|before| before == *event), "{by}: {seq} was {before:?}");
        }
    }

    /// The last sequence number promised.
    pub(super) fn end(&self) -> Seq {
        self.promised.keys().next_back().copied().unwrap_or_default()
    }

    /// The whole log, as found somewhere, has what was promised, and nothing that was not decided.
    pub(super) fn check(&self, found: &[(Seq, Event)], place: &str) {
        let by_seq: BTreeMap<Seq, Event> = found.iter().copied().collect();
        for (seq, event) in &self.promised {
            assert_eq!(by_seq.get(seq), Some(event), "{place}: seq {seq} was promised");
        }
        assert!(found.is_sorted_by(|a, b| a.0 < b.0 && a.1 < b.1), "{place}: {found:?}");
        let last = found.last().map_or(0, |(_, event)| event.decision);
        assert!(last <= self.decisions, "{place}: decision {last} was never made");
    }
}

impl Event {
    fn entry(self) -> Entry {
        let mut body = self.decision.to_le_bytes().to_vec();
        body.extend([self.place, self.of]);
        // Some are long, so that writes are torn in all kinds of places.
        body.resize(10 + usize::try_from(self.decision * 37 % 90).unwrap(), 0xa5);
        let subject = Subject::new(format!("vm/{}", self.decision % 4)).unwrap();
        Entry { kind: 1, version: 1, subject, body }
    }

    pub(super) fn of_entry(entry: &Entry) -> Option<Self> {
        (entry.kind < FIRST_KIND).then(|| {
            let decision = u64::from_le_bytes(entry.body[..8].try_into().unwrap());
            Self { decision, place: entry.body[8], of: entry.body[9] }
        })
    }

    pub(super) fn encode(self) -> Vec<u8> {
        [&self.decision.to_le_bytes()[..], &[self.place, self.of]].concat()
    }

    pub(super) fn decode(bytes: &[u8]) -> Self {
        let decision = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        Self { decision, place: bytes[8], of: bytes[9] }
    }
}

/// The events of a frame, which is one whole decision or the journal's own.
pub(super) fn events_of(frame: &Frame) -> Vec<(Seq, Event)> {
    let events: Vec<_> =
        frame.events().filter_map(|(seq, entry)| Some((seq, Event::of_entry(entry)?))).collect();
    if let Some((_, first)) = events.first() {
        assert_eq!(events.len(), usize::from(first.of), "half a decision");
        for (place, (_, event)) in (0..).zip(&events) {
            assert_eq!(*event, Event { place, ..*first }, "half a decision");
        }
    }
    events
}

/// A fold that remembers everything.
#[derive(Clone, Debug, Default)]
pub(super) struct Read {
    pub(super) position: Position,
    pub(super) events: Vec<(Seq, Event)>,
}

impl Fold for Read {
    type Error = std::convert::Infallible;

    fn position(&self) -> Position {
        self.position
    }

    fn apply(&mut self, frame: &Frame, hash: Hash) -> Result<(), Self::Error> {
        self.events.extend(events_of(frame));
        self.position = frame.position(hash);
        Ok(())
    }
}

/// The whole log in the bytes of its segments, each by its first sequence number; ends where nothing follows.
pub(super) fn parse(bytes_of: impl Fn(Seq) -> Option<Vec<u8>>) -> Vec<(Seq, Event)> {
    let mut read = Read::default();
    let mut next = Some(1);
    while let Some(bytes) = next.take().and_then(&bytes_of) {
        let mut at = usize::try_from(segment::HEADER_LEN).unwrap();
        while let Some(Ok((frame, len, hash))) = bytes.get(at..).map(Frame::decode) {
            let header = &frame.header;
            if (header.seq, header.prev_hash) != (read.position.seq + 1, read.position.hash) {
                break;
            }
            let Ok(()) = read.apply(&frame, hash);
            next = frame.entries.last().and_then(sealed_next);
            at += len.max(HEADER_LEN);
        }
    }
    read.events
}
