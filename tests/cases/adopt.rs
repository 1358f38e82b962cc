//! A root whose journal may be older than its world: nothing is touched before somebody has adopted it.

use std::path::{Path, PathBuf};
use std::process::Command;

use cocoon_fake_vmm::find::real_qemu;
use cocoon_test_world::{Ran, World};
use serde_json::Value;

use crate::hold::{Hold, creation};
use crate::{birth, die_at, world};

/// What is put back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Backup {
    /// The directory of the journal.
    Journal,
    /// All of the root that is not a VM's: nothing in it has ever seen a later event.
    Root,
}

const PARTS: [&str; 3] = ["journal", ".cocoon-reached", ".cocoon-journal"];

impl Backup {
    fn parts(self) -> &'static [&'static str] {
        match self {
            Self::Journal => &PARTS[..1],
            Self::Root => &PARTS,
        }
    }
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").args([from, to]).status().unwrap();
    assert!(copied.success(), "cp -a {} {}", from.display(), to.display());
}

fn backup(world: &World) -> PathBuf {
    let kept = world.beside().join("backup");
    std::fs::create_dir(&kept).unwrap();
    for part in PARTS {
        copy(&world.root().join(part), &kept);
    }
    kept
}

fn put_back(world: &World, kept: &Path, backup: Backup) {
    for part in backup.parts() {
        let path = world.root().join(part);
        if path.is_dir() {
            std::fs::remove_dir_all(&path).unwrap();
        } else {
            std::fs::remove_file(&path).unwrap();
        }
        copy(&kept.join(part), &world.root());
    }
}

fn pids(world: &World) -> Vec<u32> {
    let mut pids: Vec<u32> = world.processes().iter().map(|process| process.pid).collect();
    pids.sort_unstable();
    pids
}

fn directories(world: &World) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(world.root().join("run/qemu")).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

/// Everything that would change something is refused, and changes nothing.
#[track_caller]
fn is_left_alone(world: &World, vm: &str) {
    let before = (pids(world), directories(world));
    let new = birth("create", "new", "guest");
    let verbs: [&[&str]; 9] = [
        &["gc"],
        &["vm", "start", vm],
        &["vm", "stop", "--force", vm],
        &["vm", "rm", "--force", vm],
        &["vm", "reconcile-stale-create", vm],
        &new,
        &["image", "rm", "guest"],
        &world.import_arguments("other", ""),
        &["gc", "-o", "json"],
    ];
    for verb in verbs {
        world.run(verb).refused("cocoon adopt");
    }
    assert_eq!((pids(world), directories(world)), before);
    assert_eq!(std::fs::read_dir(world.root().join("images/incoming")).unwrap().count(), 0);
    let listed = world.run(&["vm", "list", "-o", "json"]).ok();
    assert!(listed.stderr().contains("unconfirmed"), "{}", listed.told());
    assert!(listed.json().as_array().unwrap().iter().all(|vm| vm["root_unconfirmed"] == true));
}

fn proposals(ran: &Ran) -> Vec<(String, String, String)> {
    let found = ran.json()["found"].as_array().unwrap().clone();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut told: Vec<_> = found
        .iter()
        .map(|found| (text(&found["name"]), text(&found["proposal"]), text(&found["vmm"])))
        .collect();
    told.sort();
    told
}

fn told(name: &str, proposal: &str, vmm: &str) -> (String, String, String) {
    (name.to_owned(), proposal.to_owned(), vmm.to_owned())
}

/// `a` was being created when the backup was made; since then it was finished and started, `b` was made and runs, and `c`
/// was made.
fn older_journal(put: Backup) -> Option<World> {
    let mut world = world("");
    let hold = Hold::new(&mut world)?;
    let creator = hold.create(&world, "a");
    let kept = backup(&world);
    hold.release();
    world.wait(creator).ok();
    world.run(&["vm", "start", "a"]).ok();
    world.run(&birth("run", "b", "guest")).ok();
    world.run(&birth("create", "c", "guest")).ok();
    world.environment.clear();
    put_back(&world, &kept, put);
    assert_eq!(world.processes().len(), 2);
    Some(world)
}

fn adopts_an_older_journal(put: Backup) {
    let Some(world) = older_journal(put) else { return };
    let before = (pids(&world), directories(&world));
    // The collector comes first, as it would.
    world.run(&["gc"]).refused("cocoon adopt");
    assert_eq!((pids(&world), directories(&world)), before);
    is_left_alone(&world, "a");

    let end = world.history().unwrap().end;
    let shown = world.run(&["adopt", "--dry-run", "-o", "json"]).ok();
    let expected = [
        told("a", "bring-up", "alive"),
        told("b", "take-in", "alive"),
        told("c", "take-in", "dead"),
    ];
    assert_eq!(proposals(&shown), expected, "{}", shown.told());
    assert_eq!(shown.json()["confirmed"], false);
    world.run(&["adopt"]).refused("--yes");
    assert_eq!(world.history().unwrap().end.seq, end.seq, "it was only looked at");

    let adopted = world.run(&["adopt", "--yes", "-o", "json"]).ok();
    assert_eq!(adopted.json()["taken"].as_array().unwrap().len(), 3, "{}", adopted.told());
    assert_eq!(adopted.json()["confirmed"], true, "{}", adopted.told());
    assert_eq!((pids(&world), directories(&world)), before);
    for (name, state) in [("a", "running"), ("b", "running"), ("c", "created")] {
        assert_eq!(world.inspect(name)["state"], state, "{name}");
    }
    world.run(&["gc"]).ok();
    world.findings_at_rest().none();
    world.requires_agreement();
    let again = world.run(&["adopt", "-o", "json"]).ok();
    assert_eq!((proposals(&again), again.json()["confirmed"].clone()), (vec![], true.into()));

    world.run(&["vm", "stop", "a"]).ok();
    world.run(&["vm", "start", "a"]).ok();
    world.run(&["vm", "start", "c"]).ok();
    world.run(&["vm", "rm", "--force", "a", "b", "c"]).ok();
    world.run(&["gc"]).ok();
    world.findings_at_rest().none();
    world.run(&birth("create", "a", "guest")).ok();
}

#[test]
fn an_older_journal_that_was_put_back_touches_nothing_until_it_is_adopted() {
    adopts_an_older_journal(Backup::Journal);
}

#[test]
fn an_older_root_that_was_put_back_touches_nothing_until_it_is_adopted() {
    adopts_an_older_journal(Backup::Root);
}

#[test]
fn real_vms_live_through_an_adoption() {
    let Ok(qemu) = real_qemu() else { return };
    let world = World::real(Path::new(env!("CARGO_BIN_EXE_cocoon")), qemu);
    world.import("");
    let with = |verb, name| {
        ["vm", verb, "--name", name, "--cpu", "1", "--memory", "256M", "--storage", "16M", "guest"]
    };
    world.run(&with("create", "a")).ok();
    let kept = backup(&world);
    world.run(&["vm", "start", "a"]).ok();
    world.run(&with("run", "b")).ok();
    put_back(&world, &kept, Backup::Journal);
    let before = pids(&world);
    assert_eq!(before.len(), 2);
    is_left_alone(&world, "a");
    let adopted = world.run(&["adopt", "--yes", "-o", "json"]).ok();
    let expected = [told("a", "bring-up", "alive"), told("b", "take-in", "alive")];
    assert_eq!(proposals(&adopted), expected, "{}", adopted.told());
    world.run(&["gc"]).ok();
    assert_eq!(pids(&world), before);
    for name in ["a", "b"] {
        world.run(&["vm", "stop", "--force", name]).ok();
    }
    assert_eq!(pids(&world), [] as [u32; 0]);
    world.run(&["vm", "start", "b"]).ok();
    world.run(&["vm", "rm", "--force", "a", "b"]).ok();
    world.findings_at_rest().none();
}

#[test]
fn a_stop_of_long_ago_is_not_finished_on_a_vm_that_was_started_since() {
    for put in [Backup::Journal, Backup::Root] {
        let world = world("");
        world.run(&birth("run", "a", "guest")).ok();
        die_at(&world, &["vm", "stop", "--timeout", "0s", "a"], "vmm.power-off.before");
        let kept = backup(&world);
        world.run(&["gc"]).ok();
        world.run(&["vm", "start", "a"]).ok();
        put_back(&world, &kept, put);
        let before = pids(&world);
        assert_eq!(before.len(), 1);
        world.run(&["gc"]).refused("cocoon adopt");
        is_left_alone(&world, "a");
        world.run(&["adopt", "--yes"]).ok();
        world.run(&["gc"]).ok();
        assert_eq!(pids(&world), before);
        assert_eq!(world.inspect("a")["state"], "running");
        world.findings_at_rest().none();
        world.run(&["vm", "stop", "a"]).ok();
    }
}

#[test]
fn what_is_not_taken_in_is_left_as_it_is() {
    let world = world("");
    let kept = backup(&world);
    world.run(&birth("run", "a", "guest")).ok();
    world.run(&birth("create", "b", "guest")).ok();
    put_back(&world, &kept, Backup::Journal);
    let before = (pids(&world), directories(&world));

    world.run(&["adopt", "--yes", "--take", "nobody"]).refused("\"nobody\"");
    world.run(&["adopt", "--yes", "--take", "b"]).ok();
    assert_eq!(world.list().len(), 1);
    let gc = world.run(&["gc"]).ok();
    assert!(gc.stderr().contains("never named this VM"), "{}", gc.told());
    assert_eq!((pids(&world), directories(&world)), before);

    // Later, and with its name given away meanwhile.
    world.run(&birth("create", "a", "guest")).ok();
    world.run(&["adopt", "--yes"]).ok();
    let names: Vec<Value> = world.list().iter().map(|vm| vm["config"]["name"].clone()).collect();
    assert_eq!(names.len(), 3, "{names:?}");
    let renamed = names.iter().filter_map(Value::as_str).find(|name| name.starts_with("a-"));
    world.run(&["vm", "rm", "--force", renamed.unwrap(), "a", "b"]).ok();
    world.findings_at_rest().none();
}

/// The same world with another root.
fn at(world: &mut World, root: &Path) {
    world.environment.retain(|(name, _)| *name != "COCOON_ROOT_DIR");
    world.environment.push(("COCOON_ROOT_DIR", root.into()));
}

#[test]
fn a_copy_beside_its_original_touches_nothing_of_it() {
    let mut world = world("");
    world.run(&birth("run", "a", "guest")).ok();
    let before = pids(&world);
    let (original, copied) = (world.root(), world.beside().join("copy"));
    copy(&original, &copied);
    at(&mut world, &copied);
    is_left_alone(&world, "a");
    world.run(&["adopt", "--yes"]).refused("is a copy of");
    is_left_alone(&world, "a");
    assert_eq!(pids(&world), before);

    at(&mut world, &original);
    world.run(&["gc"]).ok();
    world.run(&["vm", "rm", "--force", "a"]).ok();
    world.findings_at_rest().none();
}

#[test]
fn a_backup_beside_its_root_is_for_reading() {
    let mut world = world("");
    world.run(&birth("run", "a", "guest")).ok();
    let before = pids(&world);
    let (original, file) = (world.root(), world.beside().join("backup"));
    world.run(&["journal", "backup", file.to_str().unwrap()]).ok();
    let restored = world.beside().join("restored");
    at(&mut world, &restored);
    world.run(&["journal", "restore", file.to_str().unwrap()]).ok();
    is_left_alone(&world, "a");
    world.run(&["adopt", "--yes"]).refused("which is not below");
    is_left_alone(&world, "a");
    assert_eq!(pids(&world), before);

    at(&mut world, &original);
    world.run(&["vm", "rm", "--force", "a"]).ok();
    world.findings_at_rest().none();
}

#[test]
fn a_root_that_was_moved_works_at_its_new_place_once_it_is_adopted() {
    if !World::makes_overlays() {
        return;
    }
    let mut world = world("");
    world.import_disk();
    world.run(&creation("a")).ok();
    world.run(&birth("create", "b", "guest")).ok();
    let moved = world.beside().join("moved");
    copy(&world.root(), &moved);
    std::fs::remove_dir_all(world.root()).unwrap();
    at(&mut world, &moved);
    let refused = world.run(&["vm", "start", "a"]).refused("cocoon adopt");
    assert!(refused.stderr().contains("it was at "), "{}", refused.told());
    let adopted = world.run(&["adopt", "--yes", "-o", "json"]).ok();
    assert_eq!(
        proposals(&adopted),
        [told("a", "bring-up", "dead"), told("b", "bring-up", "dead")],
        "{}",
        adopted.told()
    );
    for name in ["a", "b"] {
        world.run(&["vm", "start", name]).ok();
        let socket = world.inspect(name)["socket_path"].as_str().unwrap().to_owned();
        assert!(Path::new(&socket).starts_with(&moved), "{socket}");
    }
    world.run(&["vm", "rm", "--force", "a", "b"]).ok();
    assert_eq!(std::fs::read_dir(moved.join("run/qemu")).unwrap().count(), 0);
    world.run(&["gc"]).ok();
    world.run(&["replay", "--check"]).ok();
}

#[test]
fn a_root_whose_marker_is_gone_is_itself_once_it_is_adopted() {
    let world = world("");
    world.run(&birth("run", "a", "guest")).ok();
    let marker = world.root().join(".cocoon-root.json");
    let before: Value = serde_json::from_slice(&std::fs::read(&marker).unwrap()).unwrap();
    std::fs::remove_file(&marker).unwrap();
    is_left_alone(&world, "a");
    assert!(!marker.exists(), "nobody but an adoption marks it again");
    world.run(&["adopt", "--yes"]).ok();
    let after: Value = serde_json::from_slice(&std::fs::read(&marker).unwrap()).unwrap();
    assert_eq!(after["root"], before["root"]);
    world.run(&["vm", "rm", "--force", "a"]).ok();
    world.findings_at_rest().none();
}
