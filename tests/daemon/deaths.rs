//! VMMs that die by themselves.

use cocoon_journal::Journal as _;
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::process::send;
use crate::root::{NEVER, Root};

/// The number of the kind of an unexpected exit.
const EXIT_OBSERVED: u16 = 130;

fn parse(line: &str) -> Value {
    serde_json::from_str(line).unwrap()
}

/// A VMM is killed while a stream is watched: one line tells it, whoever noticed.
fn a_death_is_told_once(root: &Root, interval: &str) {
    let pid = root.vm("a");
    let stream = root.stream(&["--interval", interval]);
    let added = parse(&stream.out.next());
    assert_eq!((&added["event"], &added["vm"]["state"]), (&"ADDED".into(), &"running".into()));
    assert_eq!(added["vm"]["pid"], pid);
    send(pid, Signal::SIGKILL);
    let death = parse(&stream.out.next());
    assert_eq!(death["event"], "MODIFIED");
    assert_eq!(death["vm"]["id"], added["vm"]["id"]);
    assert_eq!(death["vm"]["state"], "stopped");
    assert_eq!(death["vm"]["last_transition_reason"], "unexpected-exit");
    assert!(death["seq"].as_u64() > added["seq"].as_u64());
    root.ok(&["vm", "rm", "a"]);
    let deleted = parse(&stream.out.next());
    assert_eq!(deleted["event"], "DELETED", "nothing came in between");
}

#[test]
fn the_daemon_tells_a_death_that_changed_no_file() {
    let root = Root::new();
    let daemon = root.daemon(NEVER);
    a_death_is_told_once(&root, NEVER);
    daemon.stop();
}

#[test]
fn a_stream_notices_a_death_without_a_daemon() {
    a_death_is_told_once(&Root::new(), "1");
}

#[test]
fn many_streams_and_a_daemon_record_one_exit() {
    let root = Root::new();
    let pid = root.vm("a");
    let daemon = root.daemon("1s");
    let streams: Vec<_> = (0..4).map(|_| root.stream(&["--interval", "1"])).collect();
    for stream in &streams {
        stream.out.until("ADDED");
    }
    send(pid, Signal::SIGKILL);
    for stream in &streams {
        assert!(stream.out.next().contains("unexpected-exit"));
    }
    root.ok(&["vm", "rm", "a"]);
    for stream in &streams {
        assert!(stream.out.next().contains("DELETED"));
    }
    daemon.stop();
}

/// How many exits each frame of the journal tells of, where it tells of any.
fn exits_by_frame(root: &Root) -> Vec<usize> {
    let engine = root.engine();
    let ledger = engine.ledger();
    let frames = ledger.journal().frames_from(1).unwrap();
    let exits = frames.map(|frame| {
        let (frame, _) = frame.unwrap();
        frame.entries.iter().filter(|entry| entry.kind == EXIT_OBSERVED).count()
    });
    exits.filter(|count| *count > 0).collect()
}

#[test]
fn deaths_while_no_daemon_ran_are_recorded_when_it_starts() {
    let root = Root::new();
    for name in ["a", "b", "c"] {
        let pid = root.vm(name);
        send(pid, Signal::SIGKILL);
    }
    let daemon = root.daemon(NEVER);
    for name in ["a", "b", "c"] {
        let vm = root.inspect(name);
        assert_eq!(vm["state"], "stopped");
        assert_eq!(vm["last_transition_reason"], "unexpected-exit");
    }
    assert!(daemon.get("/metrics").1.contains("cocoon_exits_recorded_total 3\n"));
    assert_eq!(exits_by_frame(&root), [3], "one write");
    daemon.stop();
}

#[test]
fn many_deaths_at_once_are_each_told_once() {
    let root = Root::new();
    let daemon = root.daemon(NEVER);
    let pids: Vec<u32> = (0..40).map(|number| root.vm(&format!("vm{number}"))).collect();
    let events = daemon.events(None);
    assert_eq!(events.next().name, "sync");
    // Stopped, so that none can end before all are told to.
    for pid in &pids {
        send(*pid, Signal::SIGSTOP);
    }
    for pid in &pids {
        send(*pid, Signal::SIGKILL);
    }
    let mut told = std::collections::BTreeSet::new();
    while told.len() < pids.len() {
        let event = events.next();
        assert_eq!(event.data["vm"]["last_transition_reason"], "unexpected-exit");
        assert!(told.insert(event.data["vm"]["name"].to_string()), "told twice: {event:?}");
    }
    daemon.stop();
}

#[test]
fn a_stop_that_was_asked_for_is_no_unexpected_exit() {
    let root = Root::new();
    let daemon = root.daemon(NEVER);
    root.vm("a");
    let events = daemon.events(None);
    events.next();
    root.ok(&["vm", "stop", "a"]);
    let changes = events.until("MODIFIED", "a");
    assert_eq!(changes.len(), 1);
    assert_eq!(root.inspect("a")["last_transition_reason"], "stop-user");
    root.ok(&["vm", "start", "a"]);
    send(root.pid("a"), Signal::SIGKILL);
    let states = [events.until("MODIFIED", "a"), events.until("MODIFIED", "a")];
    assert!(states[0][0].1.ends_with("running") && states[1][0].1.ends_with("stopped"));
    assert_eq!(root.inspect("a")["last_transition_reason"], "unexpected-exit");
    daemon.stop();
}

#[test]
fn the_death_of_a_real_vmm_is_recorded() {
    let Ok(real) = cocoon_fake_vmm::find::real_qemu() else { return };
    let root = Root::with_vmm(real.binary);
    root.import(&real.kernel, &real.initrd);
    root.ok(&["vm", "run", "--name", "a", "--memory", "256M", "--storage", "1G", "guest"]);
    root.ok(&["vm", "logs", "a", "--console", "--until", "GUEST-UP", "--timeout", "120s"]);
    let daemon = root.daemon(NEVER);
    let stream = root.stream(&["--interval", NEVER]);
    stream.out.until("ADDED");
    send(root.pid("a"), Signal::SIGKILL);
    let death = parse(&stream.out.next());
    assert_eq!(death["vm"]["state"], "stopped");
    assert_eq!(death["vm"]["last_transition_reason"], "unexpected-exit");
    daemon.stop();
}
