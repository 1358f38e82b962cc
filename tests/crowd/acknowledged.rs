//! What processes were told, against the journal.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::Path;
use std::time::Duration;

use cocoon::codec;
use cocoon_journal::{Fold, Frame, Hash, Journal as _, Options, Position, SegmentedJournal, Tail};
use cocoon_model::event::Event;
use cocoon_test_world::{Ran, World};

/// A process that came to its end.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) pid: u32,
    /// The event by which its answer is true, if it was `yes`.
    pub(crate) kind: &'static str,
    pub(crate) ran: Ran,
}

impl Done {
    /// Runs a command to its end.
    pub(crate) fn run(world: &World, kind: &'static str, arguments: &[&str]) -> Self {
        let child = world.start(arguments, &[]);
        let (pid, mut ran) = (child.id(), world.wait(child));
        ran.command = arguments.join(" ");
        Self { pid, kind, ran }
    }

    pub(crate) fn is_yes(&self) -> bool {
        self.ran.code() == Some(0)
    }
}

/// All events, by the process that wrote them: sequence number and kind.
#[derive(Debug, Default)]
pub(crate) struct Written {
    position: Position,
    by: BTreeMap<u32, Vec<(u64, &'static str)>>,
}

impl Fold for Written {
    type Error = Infallible;

    fn position(&self) -> Position {
        self.position
    }

    fn apply(&mut self, frame: &Frame, hash: Hash) -> Result<(), Infallible> {
        let by = self.by.entry(frame.header.pid).or_default();
        for (seq, entry) in frame.events() {
            match codec::decode(entry).unwrap() {
                Some(Event::Vm(_, event)) => by.push((seq, event.info().name)),
                Some(Event::Image(_, event)) => by.push((seq, event.info().name)),
                Some(_) | None => {}
            }
        }
        self.position = frame.position(hash);
        Ok(())
    }
}

impl Written {
    pub(crate) fn of(world: &World) -> Self {
        let mut written = Self::default();
        let path = world.root().join("journal");
        let journal = SegmentedJournal::open_existing(&path, Options::default()).unwrap();
        journal.refresh(&mut written).unwrap();
        written
    }

    /// Every `yes` is in the journal, once, by the process that said it; a `no` is not. `row` ran one after the other: so
    /// their events lie.
    pub(crate) fn check(&self, row: &[Done]) {
        let mut last = 0;
        for done in row {
            let events = self.by.get(&done.pid).map(Vec::as_slice).unwrap_or_default();
            let said = events.iter().filter(|(_, kind)| *kind == done.kind).count();
            assert_eq!(said, usize::from(done.is_yes()), "{}: {events:?}", done.ran.told());
            let later = events.iter().all(|(seq, _)| *seq > last);
            assert!(later, "written before {last}, which was before: {}", done.ran.told());
            last = events.last().map_or(last, |(seq, _)| *seq);
        }
    }
}

/// Follows a journal from its first event on until `end` says how far that is; gives what it was told: all of it, in
/// order, without a gap, across all seals.
pub(crate) fn follow(journal: &Path, end: impl Fn() -> Option<u64>) -> Position {
    let mut tail = Tail::open(journal, 1).unwrap();
    let mut position = Position::default();
    while end().is_none_or(|end| position.seq < end) {
        let Some((frame, hash)) = tail.next(Duration::from_millis(200)).unwrap() else { continue };
        let header = &frame.header;
        assert_eq!((header.seq, header.prev_hash), (position.seq + 1, position.hash), "no gap");
        position = frame.position(hash);
    }
    position
}
