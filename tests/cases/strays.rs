//! Directories and blobs without a record: collected if the journal has named them, left alone otherwise.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{birth, die_at, world};

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_file() {
            fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

#[test]
fn a_directory_that_came_back_is_collected_and_a_stranger_is_left() {
    let world = world("");
    world.run(&birth("create", "a", "guest")).ok();
    let id = world.inspect("a")["id"].as_str().unwrap().to_owned();
    let run = world.root().join("run/qemu").join(&id);
    let kept = world.beside().join("kept");
    copy(&run, &kept);
    world.run(&["vm", "rm", "a"]).ok();

    // A backup put it back: the journal knows it as gone.
    copy(&kept, &run);
    // The same root's, of a VM that this journal has never named.
    let unknown = "b".repeat(26);
    let stranger = world.root().join("run/qemu").join(&unknown);
    copy(&kept, &stranger);
    let certificate = stranger.join(".cocoon-birth.json");
    let forged = fs::read_to_string(&certificate).unwrap().replace(&id, &unknown);
    fs::write(&certificate, forged).unwrap();

    let gc = world.run(&["gc"]).ok();
    assert!(gc.stderr().contains("orphan-runDir"), "{}", gc.told());
    assert!(gc.stderr().contains("never named this VM"), "{}", gc.told());
    assert!(!run.exists());
    assert!(stranger.join("cow.raw").exists() || stranger.join("overlay.qcow2").exists());
}

fn blobs(world: &cocoon_test_world::World) -> Vec<PathBuf> {
    let entries = fs::read_dir(world.root().join("images/blobs")).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn a_blob_that_the_journal_has_never_named_is_left() {
    let world = world("");
    let stranger = world.root().join("images/blobs").join("0".repeat(64));
    fs::write(&stranger, "of another journal").unwrap();
    world.run(&["gc"]).ok();
    assert!(stranger.exists());
    fs::remove_file(&stranger).unwrap();

    // One that it has named, and no image has any more.
    let named = blobs(&world).pop().unwrap();
    let content = fs::read(&named).unwrap();
    world.run(&["image", "rm", "guest"]).ok();
    fs::write(&named, content).unwrap();
    world.run(&["gc"]).ok();
    assert_eq!(blobs(&world), [] as [PathBuf; 0]);
}

#[test]
fn an_import_that_died_after_its_event_is_finished_by_its_first_user() {
    let world = world("");
    let disk = world.beside().join("disk.raw");
    fs::write(&disk, vec![7; 1 << 20]).unwrap();
    let import = ["image", "import", "disk", disk.to_str().unwrap()];
    die_at(&world, &import, "image.place.before");
    assert_eq!(fs::read_dir(world.root().join("images/incoming")).unwrap().count(), 1);
    world.run(&birth("create", "a", "disk")).ok();
    assert_eq!(fs::read_dir(world.root().join("images/incoming")).unwrap().count(), 0);
    world.run(&["vm", "rm", "a"]).ok();
    world.findings_at_rest().none();
}
