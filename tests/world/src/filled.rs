//! A journal that the next decision fills: its segment is sealed, a checkpoint is due, the store is behind.

use std::time::{Duration, Instant};

use cocoon::codec;
use cocoon_journal::{Journal as _, Options, Proposal, SegmentedJournal, Unfolded, Writer};
use cocoon_model::event::supervisor::Stopped;
use cocoon_model::event::{Event, SupervisorEvent};
use uuid::Uuid;

use crate::world::World;

/// The most events of a frame.
const FRAME: u64 = 16;

/// After how many events a segment is sealed in these worlds; by then a checkpoint is due, and the store is behind.
const SEGMENT: u64 = 2100;

/// The variable that says so to `cocoon`.
pub const VARIABLE: (&str, &str) = ("COCOON_SEGMENT_EVENTS", "2100");

/// Appends events that change no VM until two fewer than a segment takes are there.
///
/// # Panics
/// If that fails.
pub fn fill(world: &World) {
    let options = Options { segment_events: SEGMENT, ..Options::default() };
    let end = SEGMENT - 2;
    let mut journal = SegmentedJournal::open(&world.root().join("journal"), options)
        .expect("a journal that takes events");
    let mut counted = Unfolded::default();
    journal.refresh(&mut counted).expect("a journal that takes events");
    while counted.0.seq < end {
        let missing = end - counted.0.seq;
        append(&mut journal, &mut counted, missing.min(FRAME));
    }
}

fn append(journal: &mut SegmentedJournal, counted: &mut Unfolded, events: u64) {
    let writer = Writer {
        operation: Uuid::from_u128(1),
        pid: std::process::id(),
        start_time: 0,
        verb: "daemon".to_owned(),
    };
    let event = Event::Supervisor(SupervisorEvent::Stopped(Stopped {}));
    let entries =
        (0..events).map(|_| codec::encode(&event).expect("a journal that takes events")).collect();
    let deadline = Instant::now() + Duration::from_secs(60);
    journal
        .transact(counted, &writer, deadline, |_| Ok(Proposal::Append(entries, ())))
        .expect("a journal that takes events");
}
