//! A daemon of a root that must be confirmed first.

use std::path::Path;
use std::process::Command;

use nix::sys::signal::Signal;

use crate::process::send;
use crate::root::{Root, birth};

fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
}

#[test]
fn it_does_nothing_in_an_unconfirmed_root_and_goes_on_once_that_is_adopted() {
    let root = Root::new();
    root.ok(&birth("create", "a"));
    let (journal, kept) = (root.root_dir().join("journal"), root.path().join("kept"));
    copy(&journal, &kept);
    root.ok(&["vm", "start", "a"]);
    let pids = [root.pid("a"), root.vm("b")];
    std::fs::remove_dir_all(&journal).unwrap();
    copy(&kept, &journal);

    let daemon = root.daemon("1s");
    daemon.running.err.until("this root is unconfirmed");
    let health = daemon.get_json("/healthz");
    assert_eq!(health["ok"], true, "to start it anew would not help: {health}");
    let reason = health["unconfirmed"].as_str().unwrap();
    assert!(reason.contains("the journal ends at event"), "{health}");
    assert!(daemon.get("/metrics").1.contains("cocoon_root_unconfirmed 1"));
    assert_eq!(daemon.vms()["a"]["state"], "created", "nothing is recorded of it");

    root.ok(&["adopt", "--yes"]);
    daemon.running.err.until("this root is confirmed");
    assert!(daemon.get_json("/healthz").get("unconfirmed").is_none());
    assert!(daemon.get("/metrics").1.contains("cocoon_root_unconfirmed 0"));
    assert_eq!([root.pid("a"), root.pid("b")], pids, "the same processes as before");
    let events = daemon.events(None);
    events.next();
    send(pids[1], Signal::SIGKILL);
    events.until("MODIFIED", "b");
    daemon.stop();
    root.ok(&["replay", "--check"]);
}
