//! From the pieces of a journal to the lines of a timeline.

use std::collections::VecDeque;
use std::sync::Arc;
use std::vec;

use cocoon_journal::checkpoint::Stub;
use cocoon_journal::inspect::{DurableEnd, Fault, FaultKind, Piece};
use cocoon_journal::reserved::JournalEvent;
use cocoon_journal::{Entry, Frame, FrameHeader};
use cocoon_model::event::{Event, Stamp, WrittenBy};
use cocoon_model::id::OperationId;
use cocoon_model::record::VmRecord;
use cocoon_model::step::next_step;
use uuid::Uuid;

use super::line::{Actor, Content, Held, Line, Note, Noted, Row, Standing};
use super::pieces::Pieces;
use super::point::Point;
use super::track::{Tracked, Tracker, image_state, vm_state};
use crate::codec;
use crate::engine::base::CheckpointBase;

/// A wall clock that goes off by less than this in no time was not set, microseconds.
const CLOCK_TOLERANCE_US: i64 = 1_000_000;

/// Lines, one after the other; and everything that is known as of the last one.
#[derive(Debug)]
pub struct Timeline<I> {
    pieces: I,
    tracker: Tracker,
    head: Option<DurableEnd>,
    /// Events of the frame that was read last, with its header.
    frame: Option<(Arc<FrameHeader>, u64, vec::IntoIter<Entry>)>,
    ready: VecDeque<Line>,
    before: Option<Moment>,
    /// The last row: its number, its wall clock and its boot.
    last: Option<(u64, i64, Uuid)>,
    faults: Vec<Fault>,
}

/// Clocks and boot of a frame.
#[derive(Debug, Clone, Copy)]
struct Moment {
    wall_us: i64,
    boottime_us: u64,
    boot_id: Uuid,
}

impl Timeline<Pieces> {
    /// The lines of a journal.
    #[must_use]
    pub fn new(mut pieces: Pieces) -> Self {
        let begins_at = pieces.begins_at();
        let head = pieces.head().copied();
        let stub = if begins_at > 1 { pieces.stub() } else { None };
        let mut timeline = Self::of(pieces);
        timeline.head = head;
        if begins_at > 1 {
            let moved_to = timeline.begin_on(stub);
            timeline.note(begins_at, None, Note::Begins(moved_to));
        }
        timeline
    }
}

impl<I> Timeline<I> {
    /// Begins with the state that an archive left, if there is one; gives the place of the archive.
    fn begin_on(&mut self, stub: Option<Stub>) -> Option<String> {
        let moved_to = stub.as_ref().and_then(|stub| stub.moved_to().ok().flatten());
        let base = stub.map(|stub| CheckpointBase::new(Some(stub.checkpoint())));
        if base.is_none_or(|base| self.tracker.stand_on(&base).is_err()) {
            self.tracker.lose();
        }
        moved_to.map(|path| path.display().to_string())
    }

    fn of(pieces: I) -> Self {
        Self {
            pieces,
            tracker: Tracker::default(),
            head: None,
            frame: None,
            ready: VecDeque::new(),
            before: None,
            last: None,
            faults: Vec::new(),
        }
    }

    /// What is known as of the last line.
    #[must_use]
    pub fn tracker(&self) -> &Tracker {
        &self.tracker
    }

    /// What was found wrong with the journal so far.
    #[must_use]
    pub fn faults(&self) -> &[Fault] {
        &self.faults
    }

    /// The last row: its number and its time in microseconds since 1970; zeroes before the first.
    #[must_use]
    pub fn as_of(&self) -> (u64, i64) {
        self.last.map_or((0, 0), |(seq, at_us, _)| (seq, at_us))
    }

    /// The boot in which the last row was written.
    #[must_use]
    pub fn boot_id(&self) -> Option<Uuid> {
        self.last.map(|(_, _, boot_id)| boot_id)
    }

    /// Goes on with a frame that a follower delivered, after the pieces have come to their end.
    pub fn push(&mut self, frame: Frame) {
        // What is delivered is durable.
        self.head = None;
        self.frame(frame);
    }

    fn note(&mut self, seq: u64, at_us: Option<i64>, note: Note) {
        self.ready.push_back(Line::Note(Noted { seq, at_us, note }));
    }

    fn fault(&mut self, fault: Fault) {
        let loses = fault.kind.is_damage() && fault.kind != FaultKind::Header;
        if loses {
            self.tracker.lose();
        }
        self.faults.push(fault.clone());
        self.note(fault.seq, None, Note::Fault(fault));
    }

    fn frame(&mut self, frame: Frame) {
        let Frame { header, entries } = frame;
        self.compare_clocks(&header);
        let durable = self.head.map(|head| head.position.seq);
        if durable.is_some_and(|durable| header.seq == durable.saturating_add(1)) {
            self.note(header.seq, Some(header.wall_us), Note::NotDurable);
        }
        let seq = header.seq;
        self.frame = Some((Arc::new(header), seq, entries.into_iter()));
    }

    /// Notes a reboot or a clock that was set between two frames.
    fn compare_clocks(&mut self, header: &FrameHeader) {
        let now = Moment {
            wall_us: header.wall_us,
            boottime_us: header.boottime_us,
            boot_id: header.boot_id,
        };
        let Some(before) = self.before.replace(now) else { return };
        let (seq, at_us) = (header.seq, Some(header.wall_us));
        if before.boot_id != now.boot_id {
            self.note(seq, at_us, Note::Reboot(before.boot_id, now.boot_id));
            for death in self.tracker.reboot() {
                self.note(seq, at_us, Note::Death(death));
            }
        }
        if let Some(by_us) = clock_set(&before, &now) {
            self.note(seq, at_us, Note::ClockSet(by_us));
        }
    }

    /// Sequence number and wall clock of the next event of the frame at hand.
    fn upcoming(&self) -> Option<(u64, i64)> {
        let (header, seq, entries) = self.frame.as_ref()?;
        (!entries.as_slice().is_empty()).then_some((*seq, header.wall_us))
    }

    /// Turns the next event of the frame at hand into a row.
    fn row(&mut self) {
        let Some((header, seq, entries)) = &mut self.frame else { return };
        let Some(entry) = entries.next() else { return };
        let (header, at) = (Arc::clone(header), *seq);
        *seq += 1;
        self.last = Some((at, header.wall_us, header.boot_id));
        let row = self.fold(&header, at, entry);
        self.ready.push_back(Line::Row(row));
    }

    fn fold(&mut self, header: &FrameHeader, seq: u64, entry: Entry) -> Row {
        let (kind, version, subject) = (entry.kind, entry.version, entry.subject.to_string());
        let content = read(entry);
        let meaning = match &content {
            Content::Model(event) => self.event(header, seq, event),
            Content::Journal(_) => Meaning::default(),
            Content::Unreadable(..) => {
                // What it did to its subject is not known.
                self.tracker.lose();
                Meaning::default()
            }
        };
        Row {
            seq,
            at_us: header.wall_us,
            actor: Actor::of(header),
            operation: header.operation,
            boot_id: header.boot_id,
            kind,
            version,
            subject,
            name: meaning.name,
            states: meaning.states,
            locks: meaning.locks,
            owed: meaning.owed,
            content,
            illegal: meaning.illegal,
        }
    }

    fn event(&mut self, header: &FrameHeader, seq: u64, event: &Event) -> Meaning {
        let operation = OperationId(header.operation.as_u128());
        let stamp = Stamp { seq, at_us: header.wall_us, operation };
        let before = self.standing(event);
        let effect = self.tracker.apply(header, &stamp, event);
        if let Some(death) = effect.death {
            self.note(seq, Some(header.wall_us), Note::Death(death));
        }
        let mut meaning = Meaning {
            states: Some((before, self.standing(event))),
            illegal: effect.illegal.map(|illegal| illegal.to_string()),
            ..Meaning::default()
        };
        let holder = (event.info().by == WrittenBy::LockHolder).then_some(header.pid);
        match event {
            Event::Vm(id, _) => {
                let vm = self.tracker.vm(*id);
                let record = vm.and_then(|vm| vm.record.as_deref());
                meaning.name = vm.map(|vm| vm.name.clone()).unwrap_or_default();
                meaning.owed =
                    record.and_then(|record| next_step(&record.core)).map(|step| step.as_str());
                meaning.locks = vm_locks(holder, record);
            }
            Event::Image(id, _) => {
                let image = self.tracker.image(*id);
                meaning.name = image.map(|image| image.name.clone()).unwrap_or_default();
                meaning.locks.extend(holder.map(|pid| Held { lock: "image", pid }));
            }
            Event::Supervisor(_) => meaning.locks.push(Held { lock: "daemon", pid: header.pid }),
            Event::Root(_) => {}
        }
        meaning
    }

    fn standing(&self, event: &Event) -> Standing {
        let lossy = self.tracker.is_lossy();
        match event {
            Event::Vm(id, _) => standing(self.tracker.vm(*id), lossy, vm_state),
            Event::Image(id, _) => standing(self.tracker.image(*id), lossy, image_state),
            Event::Supervisor(_) => {
                let running = self.tracker.supervisor().running;
                Standing { state: running.then_some("running"), certain: !lossy }
            }
            Event::Root(_) => {
                let doubted = self.tracker.root().doubt.is_some();
                Standing { state: doubted.then_some("unconfirmed"), certain: !lossy }
            }
        }
    }
}

fn standing<R>(
    subject: Option<&Tracked<R>>,
    lossy: bool,
    state: fn(&R) -> &'static str,
) -> Standing {
    Standing {
        state: subject.and_then(|subject| subject.record.as_deref()).map(state),
        certain: subject.map_or(!lossy, |subject| subject.certain),
    }
}

fn vm_locks(holder: Option<u32>, record: Option<&VmRecord>) -> Vec<Held> {
    let ops = holder.map(|pid| Held { lock: "ops", pid });
    let launch = record.and_then(|record| record.core.launch);
    let vmm = launch.map(|launch| Held {
        lock: "vmm",
        pid: launch.identity.map_or(0, |identity| identity.pid),
    });
    ops.into_iter().chain(vmm).collect()
}

/// What an event meant to its subject.
#[derive(Debug, Default)]
struct Meaning {
    name: String,
    states: Option<(Standing, Standing)>,
    locks: Vec<Held>,
    owed: Option<&'static str>,
    illegal: Option<String>,
}

fn read(entry: Entry) -> Content {
    match codec::decode(&entry) {
        Ok(Some(event)) => return Content::Model(event),
        Ok(None) => {}
        Err(error) => return Content::Unreadable(entry, error.to_string()),
    }
    match JournalEvent::from_entry(&entry) {
        Some(event) => Content::Journal(event),
        None => {
            let why = format!(
                "kind {} version {} of the journal itself is not known to this version of cocoon",
                entry.kind, entry.version
            );
            Content::Unreadable(entry, why)
        }
    }
}

/// By how much the wall clock was set between two frames, if it was, microseconds.
fn clock_set(before: &Moment, now: &Moment) -> Option<i64> {
    let wall = now.wall_us.saturating_sub(before.wall_us);
    if before.boot_id != now.boot_id {
        // How long the host was down is not known; it was not less than nothing.
        return (wall < 0).then_some(wall);
    }
    let passed = i64::try_from(now.boottime_us).ok()?.checked_sub_unsigned(before.boottime_us)?;
    let by_us = wall.saturating_sub(passed);
    // A clock that is slewed gains or loses up to 500 parts in a million.
    let tolerance = CLOCK_TOLERANCE_US.saturating_add(passed.saturating_abs() / 1000);
    (by_us.saturating_abs() > tolerance).then_some(by_us)
}

impl<I: Iterator<Item = Piece>> Timeline<I> {
    /// Reads on until an event is at hand or everything was read.
    fn fill(&mut self) {
        while self.upcoming().is_none() {
            match self.pieces.next() {
                Some(Piece::Segment(_)) => {}
                Some(Piece::Frame(seen)) => self.frame(seen.frame),
                Some(Piece::Fault(fault)) => self.fault(fault),
                None => return,
            }
        }
    }

    /// Goes through everything up to a point, and gives no lines.
    pub fn advance(&mut self, point: Point) {
        loop {
            if let (Point::Seq(until), Some((seq, ..))) = (point, self.last)
                && seq >= until
            {
                return;
            }
            self.fill();
            let Some((seq, wall_us)) = self.upcoming() else { return };
            if !point.includes(seq, wall_us) {
                return;
            }
            self.ready.clear();
            self.row();
        }
    }
}

impl<I: Iterator<Item = Piece>> Iterator for Timeline<I> {
    type Item = Line;

    fn next(&mut self) -> Option<Line> {
        loop {
            if let Some(line) = self.ready.pop_front() {
                return Some(line);
            }
            if self.upcoming().is_none() {
                match self.pieces.next()? {
                    Piece::Segment(_) => {}
                    Piece::Frame(seen) => self.frame(seen.frame),
                    Piece::Fault(fault) => self.fault(fault),
                }
            } else {
                self.row();
            }
        }
    }
}
