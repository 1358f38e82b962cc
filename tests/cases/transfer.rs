//! Backups, restores, imports and archives that are killed at every boundary that they pass, and then done again.

use std::path::Path;
use std::process::Command;

use cocoon_test_world::{Ran, World};

use crate::{birth, world};

/// A root with some segments, and how many VMs it has.
fn filled() -> (World, usize) {
    let world = world("");
    for name in ["a", "b", "c", "d"] {
        world.run_with(&birth("create", name, "guest"), &[("COCOON_SEGMENT_EVENTS", "4")]).ok();
    }
    (world, 4)
}

fn written(world: &World, name: &str, words: &[&str]) -> String {
    let path = world.beside().join(name);
    let out = std::fs::File::create(&path).unwrap();
    assert!(world.command(words).stdout(out).status().unwrap().success(), "{words:?}");
    path.to_str().unwrap().to_owned()
}

/// Runs a verb once for each boundary that it passes, and kills it there; what follows judges what is left.
fn killed_everywhere(
    mut run: impl FnMut(usize, &str) -> Ran,
    mut then: impl FnMut(usize),
) -> usize {
    for n in 1.. {
        let ran = run(n, &n.to_string());
        let over = !ran.was_killed();
        if over {
            ran.ok();
        }
        then(n);
        if over {
            return n - 1;
        }
    }
    unreachable!()
}

fn whole_root(world: &World, root: &str, vms: usize, n: usize) {
    let there = [("COCOON_ROOT_DIR", root)];
    let verified = world.run_with(&["journal", "verify"], &there);
    assert!(verified.output.status.success(), "killed at {n}: {}", verified.told());
    let listed = world.run_with(&["vm", "list", "-o", "json"], &there).ok().json();
    assert_eq!(listed.as_array().map(Vec::len), Some(vms), "killed at {n}");
    world.run_with(&["replay", "--check"], &there).ok();
}

#[test]
fn a_restore_that_is_killed_is_done_by_the_next_one() {
    let (world, vms) = filled();
    let backup = written(&world, "backup", &["journal", "backup", "-"]);
    let root = |n: usize| world.beside().join(format!("new-{n}")).to_str().unwrap().to_owned();
    let run = |n: usize, at: &str| {
        let variables = [("COCOON_ROOT_DIR", &*root(n)), ("COCOON_CRASH_AT", at)];
        world.run_with(&["journal", "restore", &backup], &variables)
    };
    let passed = killed_everywhere(run, |n| {
        let root = root(n);
        // Nothing, or all of it: the next one makes it, or says that it had been made.
        world.run_with(&["journal", "restore", &backup], &[("COCOON_ROOT_DIR", &root)]).ok();
        whole_root(&world, &root, vms, n);
        let left: Vec<_> = std::fs::read_dir(&root)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.starts_with("journal."))
            .collect();
        assert!(left.is_empty(), "killed at {n}: {left:?}");
    });
    assert!(passed > 10, "{passed}");
}

#[test]
fn an_import_that_is_killed_is_done_by_the_next_one() {
    let (world, vms) = filled();
    let export = written(&world, "export", &["journal", "export"]);
    let root = |n: usize| world.beside().join(format!("new-{n}")).to_str().unwrap().to_owned();
    let run = |n: usize, at: &str| {
        let variables = [("COCOON_ROOT_DIR", &*root(n)), ("COCOON_CRASH_AT", at)];
        world.run_with(&["journal", "import", &export], &variables)
    };
    let passed = killed_everywhere(run, |n| {
        let root = root(n);
        let again = world.run_with(&["journal", "import", &export], &[("COCOON_ROOT_DIR", &root)]);
        if !again.output.status.success() {
            again.refused("is there already");
        }
        whole_root(&world, &root, vms, n);
    });
    assert!(passed > 10, "{passed}");
}

#[test]
fn a_backup_that_is_killed_leaves_no_name() {
    let (world, _) = filled();
    let path = |n: usize| world.beside().join(format!("backup-{n}")).to_str().unwrap().to_owned();
    let run = |n: usize, at: &str| {
        world.run_with(&["journal", "backup", &path(n)], &[("COCOON_CRASH_AT", at)])
    };
    let passed = killed_everywhere(run, |n| {
        let path = path(n);
        if !Path::new(&path).exists() {
            world.run(&["journal", "backup", &path]).ok();
        }
        world.run(&["journal", "verify", "--journal", &path]).ok();
        assert!(!Path::new(&format!("{path}.writing")).exists(), "killed at {n}");
    });
    assert!(passed > 3, "{passed}");
}

#[test]
fn an_archive_that_is_killed_is_finished_by_the_next_one() {
    let (world, vms) = filled();
    let root = |n: usize| world.beside().join(format!("root-{n}")).to_str().unwrap().to_owned();
    let to = |n: usize| world.beside().join(format!("old-{n}")).to_str().unwrap().to_owned();
    let archive = |n: usize, more: &[(&str, &str)]| {
        let root = root(n);
        let variables = [&[("COCOON_ROOT_DIR", &*root)], more].concat();
        world.run_with(&["journal", "archive", "--before", "11", "--to", &to(n)], &variables)
    };
    let run = |n: usize, at: &str| {
        let copied = Command::new("cp").arg("-a").arg(world.root()).arg(root(n)).status();
        assert!(copied.unwrap().success());
        archive(n, &[("COCOON_CRASH_AT", at)])
    };
    let passed = killed_everywhere(run, |n| {
        let root = root(n);
        // Whoever comes in between finds all of it.
        whole_root(&world, &root, vms, n);
        archive(n, &[]).ok();
        whole_root(&world, &root, vms, n);
        world.run(&["journal", "verify", "--journal", &to(n)]).ok();
        let replay = world.run_with(&["replay"], &[("COCOON_ROOT_DIR", &root)]).ok().stdout();
        assert!(replay.contains("history begins at seq 11"), "killed at {n}: {replay}");
        assert_eq!(replay.matches("JournalArchived").count(), 1, "killed at {n}");
    });
    assert!(passed > 15, "{passed}");
}
