//! The daemon's own life: started, killed, stopped, doubled.

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::process::send;
use crate::root::{NEVER, Root, birth};

#[test]
fn a_second_daemon_is_refused_and_touches_nothing() {
    let root = Root::new();
    let daemon = root.daemon(NEVER);
    let before = daemon.get_json("/healthz");
    let second = root.run(&["daemon"]);
    assert_eq!(second.status.code(), Some(1));
    let told = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(told.contains("another cocoon daemon is already running"), "{told}");
    assert!(told.contains(&daemon.running.pid().to_string()), "{told}");
    assert_eq!(daemon.get_json("/healthz"), before, "not one event more");
    daemon.stop();
    root.daemon(NEVER).stop();
}

#[test]
fn a_killed_daemon_leaves_all_vms_to_the_next() {
    let root = Root::new();
    let pids: Vec<u32> = (0..20).map(|number| root.vm(&format!("vm{number}"))).collect();
    let daemon = root.daemon("1s");
    assert!(daemon.vms().values().all(|vm| vm["live"] == true && vm["watched_pid"].is_u64()));
    daemon.kill();
    assert_eq!(root.names().len(), 20);
    root.vm("late");
    root.ok(&["vm", "stop", "late"]);
    root.ok(&["vm", "rm", "late"]);

    let daemon = root.daemon(NEVER);
    let said = daemon.running.err.until("supervising");
    assert!(said.iter().any(|line| line.contains("did not stop in good order")), "{said:?}");
    let vms = daemon.vms();
    assert_eq!(vms.len(), 20);
    for (number, pid) in pids.iter().enumerate() {
        let vm = &vms[&format!("vm{number}")];
        assert_eq!((&vm["state"], &vm["live"]), (&"running".into(), &Value::Bool(true)));
        assert_eq!(vm["watched_pid"], *pid, "the same process as before");
    }
    let events = daemon.events(None);
    events.next();
    send(pids[7], Signal::SIGKILL);
    assert_eq!(events.until("MODIFIED", "vm7").len(), 1);
    daemon.stop();
    let running = root.json(&["vm", "list", "-o", "json"]);
    let running = running.as_array().unwrap().iter().filter(|vm| vm["state"] == "running");
    assert_eq!(running.count(), 19, "it leaves VMs running when it stops");
}

#[test]
fn while_the_daemon_is_stopped_every_verb_answers() {
    let root = Root::new();
    root.vm("a");
    root.vm("b");
    let daemon = root.daemon("1s");
    daemon.running.signal(Signal::SIGSTOP);
    root.ok(&birth("run", "c"));
    root.ok(&["vm", "list"]);
    root.ok(&["vm", "status"]);
    root.ok(&["vm", "stop", "a"]);
    root.ok(&["vm", "start", "a"]);
    root.ok(&["vm", "inspect", "a"]);
    root.ok(&["vm", "wait", "a", "--state", "running"]);
    root.ok(&["vm", "rm", "--force", "b"]);
    root.ok(&["vm", "reconcile-stale-create", "a"]);
    root.ok(&["gc"]);
    root.ok(&["image", "list"]);
    send(root.pid("c"), Signal::SIGKILL);
    daemon.running.signal(Signal::SIGCONT);
    let events = daemon.events(Some(0));
    while !events.until("MODIFIED", "c").last().unwrap().1.ends_with("stopped") {}
    assert_eq!(root.inspect("c")["last_transition_reason"], "unexpected-exit");
    daemon.stop();
}

#[test]
fn its_life_is_in_the_journal() {
    use cocoon_model::view::View as _;
    let root = Root::new();
    let daemon = root.daemon(NEVER);
    let supervisor = |root: &Root| {
        let engine = root.engine();
        let mut ledger = engine.ledger();
        ledger.refresh().unwrap().supervisor().unwrap()
    };
    let first = supervisor(&root);
    assert!(first.running && first.previous_alive_until_us.is_none());
    daemon.kill();
    let daemon = root.daemon(NEVER);
    let second = supervisor(&root);
    assert!(second.running && second.instance != first.instance);
    assert!(second.previous_alive_until_us.unwrap() >= first.started_us);
    daemon.stop();
    let last = supervisor(&root);
    assert!(!last.running && last.stopped_us.unwrap() >= second.started_us);
}

#[test]
fn a_socket_path_that_is_too_long_is_refused_with_the_way_out() {
    let root = Root::new();
    let long = format!("/tmp/{}", "x".repeat(120));
    let refused = root.run(&["daemon", "--api-socket", &long]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--api-socket"));
}

#[test]
fn a_daemon_whose_root_was_made_anew_ends_and_touches_nothing_of_it() {
    let root = Root::new();
    let old = root.vm("old");
    let mut daemon = root.daemon("1s");
    let removed = root.path().join("removed");
    std::fs::rename(root.root_dir(), &removed).unwrap();
    // The VMM may be writing there still.
    let _ = std::fs::remove_dir_all(&removed);
    root.import_payload();
    root.vm("new");
    assert_eq!(daemon.running.wait().code(), Some(1));
    let said = daemon.running.err.until("was removed under the daemon");
    assert!(said.iter().all(|line| !line.contains("panicked")), "{said:?}");
    send(old, Signal::SIGKILL);
    root.ok(&["vm", "stop", "new"]);
    assert_eq!(root.names(), ["new"]);
    let history = root.ok(&["replay"]);
    assert!(!history.contains("Supervisor"), "{history}");
    root.ok(&["journal", "verify"]);
    root.daemon(NEVER).stop();
}

#[test]
fn a_host_that_shuts_down_stops_all_guests_and_only_those() {
    let root = Root::new();
    root.vm("a");
    root.vm("b");
    root.ok(&birth("create", "never-started"));
    let stopped = root.json(&["vm", "stop", "--all", "--timeout", "60s", "-o", "json"]);
    assert_eq!(stopped["succeeded"].as_array().unwrap().len(), 2);
    for name in ["a", "b"] {
        assert_eq!(root.inspect(name)["last_transition_reason"], "stop-user");
    }
    assert_eq!(root.inspect("never-started")["state"], "created");
    root.ok(&["vm", "stop", "--all"]);
}
