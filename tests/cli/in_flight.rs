//! What others may do while a creation is in flight, and once its creator is dead.

use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Stdio};

use crate::sandbox::Sandbox;
use crate::{schema, schemas};

/// A sandbox with an image `disk`, whose VMs need `qemu-img`.
pub(crate) fn with_disk() -> Sandbox {
    let sandbox = Sandbox::new();
    schemas::write_disk(&sandbox.path().join("disk.raw"));
    assert_eq!(sandbox.cocoon(["image", "import", "disk", "disk.raw"]).code, 0);
    sandbox
}

/// A creation of the VM `web` that has come to its `qemu-img`, which tells that it runs and then takes very long.
pub(crate) fn stuck_creation(sandbox: &Sandbox) -> Child {
    let fifo = sandbox.path().join("began");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let bin = sandbox.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    let tool = bin.join("qemu-img");
    let script = format!("#!/bin/sh\necho began >{}\nexec sleep 300\n", fifo.display());
    std::fs::write(&tool, script).unwrap();
    std::fs::set_permissions(&tool, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let mut create = sandbox.command(["vm", "create", "--name", "web", "disk"]);
    let create = create.env("PATH", path).stdout(Stdio::null()).stderr(Stdio::null());
    let child = create.spawn().unwrap();
    let mut word = String::new();
    std::fs::File::open(fifo).unwrap().read_to_string(&mut word).unwrap();
    assert_eq!(word, "began\n");
    child
}

#[test]
fn a_living_creator_is_left_alone_and_a_dead_one_is_cleared_away_at_once() {
    let sandbox = with_disk();
    let mut creator = stuck_creation(&sandbox);
    let reconcile = ["vm", "reconcile-stale-create", "web", "-o", "json"];

    let busy = sandbox.cocoon(reconcile);
    assert_eq!(busy.code, 0, "{busy:?}");
    let told = busy.json();
    schemas::check("reconcile.json", &told);
    assert_eq!(told["outcome"], "busy");
    assert_eq!(told["holder"]["pid"], creator.id());
    assert_eq!(told["holder"]["verb"], "vm create");

    sandbox.cocoon(["vm", "rm", "--force", "web"]).says(1, "in flight");
    let taken = sandbox.cocoon(["vm", "create", "--name", "web", "disk"]);
    taken.says(1, "already exists");
    let shown = sandbox.cocoon(["vm", "inspect", "web"]).json();
    schemas::check("vm.json", &shown);
    assert_eq!((&shown["state"], &shown["operation"]), (&"creating".into(), &"create".into()));
    let collection = sandbox.cocoon(["gc", "-o", "json"]).json();
    schemas::check("gc.json", &collection);
    assert_eq!(collection["left"][0]["id"], shown["id"]);

    creator.kill().unwrap();
    creator.wait().unwrap();
    let collected = sandbox.cocoon(reconcile).json();
    schemas::check("reconcile.json", &collected);
    assert_eq!(collected["outcome"], "collected");
    assert_eq!(sandbox.cocoon(reconcile).json()["outcome"], "not-found");
    let run = sandbox.root().join("run/qemu");
    assert_eq!(run.read_dir().unwrap().count(), 0, "nothing of it is left");
}

#[test]
fn a_name_that_a_dead_creator_held_is_free() {
    let sandbox = with_disk();
    let mut creator = stuck_creation(&sandbox);
    creator.kill().unwrap();
    creator.wait().unwrap();
    let import = ["image", "import", "guest", "--kernel", "vmlinuz", "--initrd", "initrd.img"];
    assert_eq!(sandbox.cocoon(import).code, 0);
    let made = sandbox.cocoon(["vm", "create", "--name", "web", "guest"]);
    made.says(0, "cleared away");
    assert_eq!(sandbox.cocoon(["vm", "list", "-o", "json"]).json().as_array().unwrap().len(), 1);
}

#[test]
fn the_schema_of_outcomes_knows_every_outcome() {
    let known = schema::load("reconcile.json")["properties"]["outcome"]["enum"].clone();
    let help = Sandbox::new().cocoon(["vm", "reconcile-stale-create", "--help"]).stdout;
    for outcome in known.as_array().unwrap() {
        assert!(help.contains(outcome.as_str().unwrap()), "{outcome} is not explained");
    }
}
