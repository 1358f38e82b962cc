//! What dead commands left, and a daemon finishes.

use std::os::unix::fs::PermissionsExt as _;

use cocoon::engine::Caller;
use cocoon_model::command::{Command, VmmSeen};
use cocoon_model::step::{Outcome, Step};
use nix::sys::signal::Signal;

use crate::process::Running;
use crate::root::{NEVER, Root, birth};

/// A root whose `qemu-img` never ends, and an image that needs it: creations hang in the middle.
fn root_with_hanging_creations() -> (Root, String) {
    let root = Root::new();
    let bin = root.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    let script = bin.join("qemu-img");
    std::fs::write(&script, "#!/bin/sh\nexec sleep 600\n").unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let disk = root.path().join("disk.raw");
    std::fs::File::create(&disk).unwrap().set_len(16 << 20).unwrap();
    let (payload, disk) = (root.path().join("payload"), disk.to_str().unwrap().to_owned());
    let payload = payload.to_str().unwrap();
    root.ok(&[
        "image", "import", "disk", "--kernel", payload, "--initrd", payload, "--rootfs", &disk,
    ]);
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    (root, path)
}

#[test]
fn the_placeholder_of_a_killed_creator_is_reclaimed_at_once() {
    let (root, path) = root_with_hanging_creations();
    let daemon = root.daemon(NEVER);
    let events = daemon.events(None);
    events.next();
    let mut args = birth("create", "a");
    args[12] = "disk";
    let mut creator = Running::start(root.command(&args).env("PATH", path));
    assert!(events.until("ADDED", "a")[0].1.ends_with("creating"));
    let busy = root.json(&["vm", "reconcile-stale-create", "a", "-o", "json"]);
    assert_eq!(busy["outcome"], "busy", "its creator lives: nobody touches it");
    creator.signal(Signal::SIGKILL);
    creator.wait();
    // No interval passes: the daemon waited for that very process.
    events.until("DELETED", "a");
    assert!(root.names().is_empty());
    root.vm("a");
    daemon.stop();
}

#[test]
fn an_interrupted_delete_is_resumed() {
    let root = Root::new();
    root.ok(&birth("create", "a"));
    let (id, run_dir) = {
        let engine = root.engine();
        let id = engine.resolve("a").unwrap();
        let run_dir = engine.vm(id).unwrap().unwrap().spec.run_dir.clone();
        let caller = Caller::new("vm rm", None).unwrap();
        // The deletion has begun, files may be gone, and whoever did it is no more.
        let delete = Command::Delete { id, seen: VmmSeen::Dead, force: false };
        let step = Step::ProveVmmDead { kill: false };
        let proven = Command::Report { id, step, outcome: Outcome::Done };
        for command in [delete, proven] {
            engine.ledger().submit(&caller, &command).unwrap();
        }
        (id, run_dir)
    };
    let daemon = root.daemon(NEVER);
    let events = daemon.events(Some(0));
    events.until("DELETED", "a");
    assert!(!std::path::Path::new(&run_dir).exists());
    assert!(root.names().is_empty());
    daemon.running.err.until(&format!("VM {id}: brought to rest, reason=interrupted-delete"));
    daemon.stop();
}

#[test]
fn logs_of_running_vms_are_capped() {
    let root = Root::new();
    root.vm("a");
    let id = root.inspect("a")["id"].as_str().unwrap().to_owned();
    let log = root.engine().vm(id.parse().unwrap()).unwrap().unwrap().spec.log_dir.clone();
    let log = std::path::Path::new(&log).join("console.log");
    std::fs::write(&log, vec![b'x'; 200 << 10]).unwrap();
    let cap = ("COCOON_LOG_CAP_BYTES", "65536");
    let daemon = root.daemon_with(&["--reconcile-interval", NEVER], &[cap]);
    daemon.running.err.until("had outgrown 65536 bytes");
    assert!(std::fs::metadata(&log).unwrap().len() <= 65536);
    daemon.stop();
}
