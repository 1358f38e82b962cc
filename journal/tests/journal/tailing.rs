//! Following the journal while others write and seal.

use std::os::fd::AsFd;
use std::time::Duration;

use cocoon_journal::{Hash, Position, SegmentedJournal, Tail};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::child::{Job, Work, acks};
use crate::support::*;

const LONG: Duration = Duration::from_secs(60);

fn follow(tail: &mut Tail, position: Position) -> Position {
    let (frame, hash): (_, Hash) = tail.next(LONG).unwrap().expect("a frame within a minute");
    assert_eq!((frame.header.seq, frame.header.prev_hash), (position.seq + 1, position.hash));
    frame.position(hash)
}

#[test]
fn frames_arrive_in_order_across_seals() {
    let root = Root::new();
    let mut journal = root.open_with(small_segments(4));
    let mut log = Log::default();
    let mut tail = Tail::open(&root.path(), 1).unwrap();
    assert!(tail.try_next().unwrap().is_none());
    let mut position = Position::default();
    for n in 0..30 {
        append(&mut journal, &mut log, n.to_string()).unwrap();
        while position.seq < log.position.seq {
            position = follow(&mut tail, position);
        }
    }
    assert_eq!(position, log.position);
    for seq in 1..=log.position.seq {
        let (frame, _) = Tail::open(&root.path(), seq).unwrap().try_next().unwrap().unwrap();
        assert_eq!(frame.header.seq, seq);
    }
}

#[test]
fn a_follower_may_wait_for_the_future() {
    let root = Root::new();
    let mut journal = root.open();
    let mut log = Log::default();
    append(&mut journal, &mut log, "1").unwrap();
    let mut tail = Tail::open(&root.path(), 3).unwrap();
    append(&mut journal, &mut log, "2").unwrap();
    assert!(tail.try_next().unwrap().is_none(), "2 is not yet it");
    append(&mut journal, &mut log, "3").unwrap();
    assert_eq!(tail.next(LONG).unwrap().unwrap().0.header.seq, 3);
}

#[test]
fn the_descriptor_tells_when_to_look() {
    let root = Root::new();
    let mut journal = root.open();
    let mut tail = Tail::open(&root.path(), 1).unwrap();
    assert!(tail.try_next().unwrap().is_none());
    append(&mut journal, &mut Log::default(), "x").unwrap();
    let mut fds = [PollFd::new(tail.as_fd(), PollFlags::POLLIN)];
    assert_eq!(poll(&mut fds, PollTimeout::from(60_000_u16)).unwrap(), 1);
    assert!(tail.try_next().unwrap().is_some());
}

/// The writer dies between its write and its sync: `HEAD` never gets there.
#[test]
fn what_a_dead_writer_left_is_synced_and_delivered() {
    let root = Root::new();
    drop(root.open());
    let kill_before_sync = 4; // locked, write before, write after, unlock
    let job = Job {
        journal: root.path(),
        acks: root.path().with_extension("acks"),
        id: "dead".into(),
        count: 1,
        kill_at: kill_before_sync,
        segment_events: 100,
        work: Work::Append,
    };
    let mut tail = Tail::open(&root.path(), 1).unwrap();
    job.spawn().wait().unwrap();
    assert!(acks(&job.acks).is_empty());
    assert_eq!(tail.next(LONG).unwrap().expect("delivered").0.entries[0].body, b"dead.0");
}

#[test]
fn several_followers_of_several_writers_miss_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    drop(SegmentedJournal::open(&path, cocoon_journal::Options::default()).unwrap());
    let job = |id: usize| Job {
        journal: path.clone(),
        acks: dir.path().join(format!("acks-{id}")),
        id: format!("w{id}"),
        count: 60,
        kill_at: 0,
        segment_events: 10,
        work: Work::Append,
    };
    std::thread::scope(|scope| {
        let followers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let mut tail = Tail::open(&path, 1).unwrap();
                    let (mut position, mut own) = (Position::default(), 0);
                    while own < 240 {
                        let (frame, hash) = tail.next(LONG).unwrap().expect("a frame");
                        assert_eq!(frame.header.seq, position.seq + 1);
                        assert_eq!(frame.header.prev_hash, position.hash);
                        position = frame.position(hash);
                        own += usize::from(frame.entries[0].kind == 1);
                    }
                    position
                })
            })
            .collect();
        let children: Vec<_> = (0..4).map(|id| job(id).spawn()).collect();
        for mut child in children {
            assert!(child.wait().unwrap().success());
        }
        for follower in followers {
            assert!(follower.join().unwrap().seq >= 240);
        }
    });
}
