//! Files that a crash or a hand left behind.

use std::fs;

use crate::namespace::Namespace;
use crate::{birth, die_at, world};

#[test]
fn the_record_of_a_holder_in_a_lock_file_locks_nothing() {
    let world = world("");
    world.run(&birth("create", "a", "guest")).ok();
    let id = world.inspect("a")["id"].as_str().unwrap().to_owned();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    // It names a process that lives, and always will.
    let holder = serde_json::json!({
        "identity": { "pid": 1, "start_time": 0, "boot_id": boot.trim(), "pid_namespace": 0 },
        "verb": "vm clone",
        "operation": "00000000-0000-0000-0000-000000000001",
        "since_us": 0,
    });
    for kind in ["vm", "vmm"] {
        let path = world.root().join(format!("locks/{kind}/{id}.lock"));
        fs::write(path, format!("{holder}\n")).unwrap();
    }
    world.run(&["vm", "start", "a"]).ok();
    world.run(&["vm", "rm", "--force", "--timeout", "1s", "a"]).ok();
    world.findings_at_rest().none();
}

#[test]
fn lock_files_of_unknown_vms_are_swept() {
    let world = world("");
    for kind in ["vm", "vmm"] {
        let name = format!("locks/{kind}/{}.lock", "a".repeat(26));
        fs::write(world.root().join(name), "").unwrap();
    }
    let gc = world.run(&["gc"]).ok();
    assert!(gc.stderr().contains("orphan-lease"), "{}", gc.told());
    world.findings_at_rest().none();
}

#[test]
fn a_creation_that_ran_out_of_space_and_died_blocks_nothing() {
    let mut world = world("");
    let run = world.beside().join("run");
    fs::create_dir(&run).unwrap();
    let Some(namespace) = Namespace::enter(&mut world) else { return };
    namespace.run(&format!("mount -t tmpfs -o mode=0700 none {}", run.display()));
    world.environment.push(("COCOON_RUN_DIR", run.into()));
    world.run(&["vm", "list"]).ok();
    let inodes = |many: u32| {
        let run = world.beside().join("run");
        namespace.run(&format!("mount -o remount,nr_inodes={many} {}", run.display()));
    };

    inodes(4);
    let failed = world.run(&birth("create", "a", "guest")).refused("No space left on device");
    assert!(failed.stderr().contains("prepare-storage"), "{}", failed.told());
    assert_eq!(world.list(), [] as [serde_json::Value; 0]);
    die_at(&world, &birth("create", "a", "guest"), "remove.run-directory.before");
    assert_eq!(world.list().len(), 1);

    inodes(1000);
    world.run(&birth("create", "a", "guest")).ok();
    world.run(&["vm", "rm", "a"]).ok();
    assert_eq!(world.list(), [] as [serde_json::Value; 0]);
}
