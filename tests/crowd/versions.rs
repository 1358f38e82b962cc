//! Readers that meet what a newer program wrote.

use std::path::Path;
use std::time::{Duration, Instant};

use cocoon_journal::{Journal as _, Options, Proposal, SegmentedJournal, Unfolded, Writer};
use uuid::Uuid;

use crate::holders::newer_event;
use crate::{birth, world};

fn segments(journal: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = std::fs::read_dir(journal.join("seg")).unwrap().map(Result::unwrap);
    let read = |entry: std::fs::DirEntry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        (name, std::fs::read(entry.path()).unwrap())
    };
    let mut segments: Vec<_> = entries.map(read).collect();
    segments.sort();
    segments
}

#[test]
fn a_reader_of_an_older_version_stops_and_writes_nothing() {
    let world = world();
    let follower = world.start(&["vm", "status", "--event", "--format", "json"], &[]);
    world.run(&birth("create", "a")).ok();
    let path = world.root().join("journal");
    let mut newer = SegmentedJournal::open_existing(&path, Options::default()).unwrap();
    let writer = Writer::of_this_process(Uuid::from_u128(1), "newer").unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    let append = |_: &Unfolded| Ok(Proposal::Append(vec![newer_event()], ()));
    newer.transact(&mut Unfolded::default(), &writer, deadline, append).unwrap();
    let before = segments(&path);
    let words = "event kind 59999 version 9 is not known to this version of cocoon";
    world.wait(follower).refused(words);
    for verb in [&["vm", "list"][..], &["vm", "rm", "a"], &birth("create", "b"), &["gc"]] {
        world.run(verb).refused(words);
    }
    assert_eq!(segments(&path), before, "nothing was written");
}
