//! Modes of files, boots of the host, clocks, and other holders of the lock.

use std::os::unix::fs::PermissionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use cocoon_journal::clock::Clock;
use cocoon_journal::{Journal, JournalError, Options, Proposal};
use uuid::Uuid;

use crate::support::*;

#[test]
fn only_the_owner_gets_in() {
    let root = Root::new();
    append(&mut root.open(), &mut Log::default(), "x").unwrap();
    let mode = |path: &str| {
        std::fs::metadata(root.path().join(path)).unwrap().permissions().mode() & 0o777
    };
    for directory in ["", "seg", "quarantine"] {
        assert_eq!(mode(directory), 0o700, "{directory}");
    }
    assert_eq!(mode("LOCK"), 0o600);
    let lock = std::fs::read(root.path().join("LOCK")).unwrap();
    assert_eq!(lock[0], b'-', "nobody is named once it is free");
}

#[test]
fn a_new_boot_makes_durable_what_the_last_one_left() {
    let root = Root::new();
    let boots = [Uuid::from_u128(1), Uuid::from_u128(2)];
    let options = |boot: usize, boundary| {
        let boot_id_path = root.path().with_extension(format!("boot{boot}"));
        std::fs::write(&boot_id_path, format!("{}\n", boots[boot])).unwrap();
        Options { boot_id_path, boundary, ..Options::default() }
    };
    let mut log = Log::default();
    append(&mut root.open_with(options(0, |_| ())), &mut log, "a").unwrap();
    let dies = |name| assert_ne!(name, "journal.sync.before", "the writer dies");
    let mut dying = root.open_with(options(0, dies));
    let died = catch_unwind(AssertUnwindSafe(|| append(&mut dying, &mut log, "b")));
    assert!(died.is_err());

    let mut journal = root.open_with(options(1, |_| ()));
    assert_eq!(journal.durable().unwrap().seq, 1, "a lower bound from another boot");
    let mut log = Log::default();
    append(&mut journal, &mut log, "c").unwrap();
    assert_eq!(
        (log.bodies(), journal.durable().unwrap().seq),
        (vec!["a".into(), "b".into(), "c".into()], 3)
    );
    let frames: Result<Vec<_>, _> = journal.frames_from(1).unwrap().collect();
    let stamps: Vec<_> = frames.unwrap().iter().map(|(frame, _)| frame.header.boot_id).collect();
    assert_eq!(stamps, [boots[0], boots[0], boots[1]]);
}

#[test]
fn times_are_recorded_as_the_clocks_tell_them_even_backwards() {
    let root = Root::new();
    let mut log = Log::default();
    for wall_us in [|| 1_000_000, || -5, || i64::MAX] {
        let clock = Clock { wall_us, boottime_us: || 77 };
        append(&mut root.open_with(Options { clock, ..Options::default() }), &mut log, "x")
            .unwrap();
    }
    let frames = root.open().frames(1).unwrap().map(|found| found.unwrap().0.header);
    let times: Vec<_> = frames.map(|header| (header.wall_us, header.boottime_us)).collect();
    assert_eq!(times, [(1_000_000, 77), (-5, 77), (i64::MAX, 77)]);
}

#[test]
fn a_deadline_names_whoever_holds_the_lock() {
    let root = Root::new();
    let (mut slow, mut quick) = (root.open(), root.open());
    let (entered, wait_until_entered) = mpsc::channel();
    let (leave, wait_until_told) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut holder = writer();
            holder.verb = "vm create".to_owned();
            let decide = |_: &Log| {
                entered.send(()).unwrap();
                wait_until_told.recv().unwrap();
                Ok(Proposal::Append(vec![entry("slow")], ()))
            };
            slow.transact(&mut Log::default(), &holder, deadline(), decide).unwrap();
        });
        wait_until_entered.recv().unwrap();
        let soon = Instant::now() + Duration::from_millis(50);
        let decide = |_: &Log| Ok(Proposal::Answer(()));
        let error = quick.transact(&mut Log::default(), &writer(), soon, decide).unwrap_err();
        assert!(
            matches!(&error, JournalError::Busy { holder: Some(by), .. } if by.verb == "vm create")
        );
        assert!(error.to_string().contains("vm create"), "{error}");
        leave.send(()).unwrap();
        let mut log = Log::default();
        append(&mut quick, &mut log, "quick").unwrap();
        assert_eq!(log.bodies(), ["slow", "quick"]);
    });
}
