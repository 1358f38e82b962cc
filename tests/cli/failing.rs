//! What fails again and again in the same way is told each time, and written down once.

use std::fs::{self, File};

use nix::fcntl::{Flock, FlockArg};

use crate::in_flight::{stuck_creation, with_disk};
use crate::sandbox::Sandbox;

/// How many events there are.
fn events(sandbox: &Sandbox) -> usize {
    let told = sandbox.cocoon(["replay", "-o", "json"]);
    told.stdout.lines().filter(|line| line.contains(r#""type":"event""#)).count()
}

/// Everybody who may try to bring a VM to rest.
const TRIES: [&[&str]; 3] = [&["gc"], &["vm", "rm", "web"], &["vm", "rm", "--force", "web"]];

/// Each try says `words`, and from the second on none writes anything.
fn fails_and_writes_once(sandbox: &Sandbox, words: &str) {
    sandbox.cocoon(TRIES[0]).says(1, words);
    let once = events(sandbox);
    for again in TRIES {
        sandbox.cocoon(again).says(1, words);
        assert_eq!(events(sandbox), once, "{again:?}");
    }
}

#[test]
fn a_reclaim_that_cannot_prove_its_vmm_dead_is_written_once() {
    let sandbox = with_disk();
    let mut creator = stuck_creation(&sandbox);
    creator.kill().unwrap();
    creator.wait().unwrap();
    let id = sandbox.cocoon(["vm", "inspect", "web"]).json()["id"].as_str().unwrap().to_owned();
    let lock = sandbox.root().join(format!("locks/vmm/{id}.lock"));
    let held = Flock::lock(File::create(lock).unwrap(), FlockArg::LockExclusive).unwrap();
    fails_and_writes_once(&sandbox, "held by a process that cannot be found");
    drop(held);
    assert_eq!(sandbox.cocoon(["gc"]).code, 0);
    assert_eq!(sandbox.cocoon(["vm", "list", "-o", "json"]).stdout, "[]\n");
    assert_eq!(sandbox.cocoon(["replay", "--check"]).code, 0);
}

#[test]
fn a_removal_that_fails_is_written_once_and_again_when_its_reason_changes() {
    let sandbox = Sandbox::with_guest();
    let id = sandbox.create("web");
    let directory = sandbox.root().join("run/qemu").join(&id);
    let (certificate, kept) = (directory.join(".cocoon-birth.json"), sandbox.path().join("kept"));
    fs::rename(&certificate, &kept).unwrap();
    sandbox.cocoon(["vm", "rm", "web"]).says(1, "no birth certificate");
    fails_and_writes_once(&sandbox, "no birth certificate");
    let before = events(&sandbox);
    let aside = sandbox.path().join("aside");
    fs::rename(&directory, &aside).unwrap();
    fs::write(&directory, "a file").unwrap();
    fails_and_writes_once(&sandbox, "is not a directory");
    assert_eq!(events(&sandbox), before + 2, "who took it over, and the new reason");
    fs::remove_file(&directory).unwrap();
    fs::rename(&aside, &directory).unwrap();
    fs::rename(&kept, &certificate).unwrap();
    assert_eq!(sandbox.cocoon(["gc"]).code, 0);
    assert!(!directory.exists());
    assert_eq!(sandbox.cocoon(["replay", "--check"]).code, 0);
}

#[test]
fn a_removal_of_an_image_that_fails_is_written_once() {
    let sandbox = Sandbox::with_guest();
    let blobs = sandbox.root().join("images/blobs");
    let blob = fs::read_dir(&blobs).unwrap().next().unwrap().unwrap().path();
    fs::remove_file(&blob).unwrap();
    fs::create_dir(&blob).unwrap();
    sandbox.cocoon(["image", "rm", "guest"]).says(1, "irectory");
    let once = events(&sandbox);
    for again in [&["gc"][..], &["image", "rm", "guest"], &["gc"]] {
        sandbox.cocoon(again).says(1, "irectory");
        assert_eq!(events(&sandbox), once, "{again:?}");
    }
    fs::remove_dir(&blob).unwrap();
    assert_eq!(sandbox.cocoon(["gc"]).code, 0);
    assert_eq!(sandbox.cocoon(["image", "list", "-o", "json"]).stdout, "[]\n");
}
