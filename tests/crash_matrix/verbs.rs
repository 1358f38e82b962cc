//! The verbs of the matrix: what each needs, what it is, and what its user does next.

use std::path::Path;
use std::process::Command;

use cocoon_model::record::VmState;
use cocoon_test_world::world::{DISK, IMAGE};
use cocoon_test_world::{Ran, World, filled, processes};

/// The name of the VM that each verb is about.
pub(crate) const NAME: &str = "a";

/// A row of the matrix.
pub(crate) struct Verb {
    /// Its name, and that of its list of boundaries.
    pub(crate) name: &'static str,
    /// Brings the world to where the verb begins.
    pub(crate) prepare: fn(&World),
    /// Runs the verb with these variables.
    pub(crate) run: fn(&World, &[(&str, &str)]) -> Ran,
    /// What the user does next, and must get.
    pub(crate) next: fn(&World),
}

pub(crate) const IMAGE_IMPORT: Verb = Verb {
    name: "image-import",
    prepare: |_| {},
    run: |world, crash| world.run_with(&world.import_arguments(IMAGE, ""), crash),
    next: |world| world.import(""),
};

pub(crate) const IMAGE_RM: Verb = Verb {
    name: "image-rm",
    prepare: |world| world.import(""),
    run: |world, crash| world.run_with(&["image", "rm", IMAGE], crash),
    next: |world| {
        // Whatever was left of the old one, the new one is whole.
        world.import("");
        create(world).ok();
    },
};

pub(crate) const CREATE: Verb = Verb {
    name: "create",
    prepare: |world| world.import(""),
    run: |world, crash| world.run_with(&birth(world, "create"), crash),
    next: |world| again(world, "create"),
};

pub(crate) const CREATE_ON_FULL_SEGMENT: Verb = Verb {
    name: "create-on-full-segment",
    prepare: |world| {
        world.import("");
        filled::fill(world);
    },
    run: |world, crash| {
        world.run_with(&birth(world, "create"), &[crash, &[filled::VARIABLE]].concat())
    },
    next: |world| again(world, "create"),
};

/// The disk is an overlay, which a tool makes.
pub(crate) const CREATE_OVERLAY: Verb = Verb {
    name: "create-overlay",
    prepare: |world| {
        world.import("");
        world.import_disk();
    },
    run: |world, crash| world.run_with(&birth_from(world, "create", DISK), crash),
    next: |world| again(world, "create"),
};

pub(crate) const RUN: Verb = Verb {
    name: "run",
    prepare: |world| world.import(""),
    run: |world, crash| world.run_with(&birth(world, "run"), crash),
    next: |world| {
        again(world, "run");
        world.run(&["vm", "start", NAME]).ok();
        require_state(world, VmState::Running);
    },
};

pub(crate) const START: Verb = Verb {
    name: "start",
    prepare: created,
    run: |world, crash| world.run_with(&["vm", "start", NAME], crash),
    next: start_again,
};

pub(crate) const STOP: Verb = Verb {
    name: "stop",
    prepare: running,
    run: |world, crash| world.run_with(&["vm", "stop", NAME], crash),
    next: start_again,
};

/// A guest that is deaf, or not up yet, has to be ended.
pub(crate) const STOP_DEAF: Verb = Verb {
    name: "stop-deaf",
    prepare: |world| {
        world.import("console=ttyS0 quiet cocoon.ignore-power-button");
        world.run(&birth(world, "run")).ok();
    },
    run: |world, crash| world.run_with(&["vm", "stop", "--timeout", "0s", NAME], crash),
    next: start_again,
};

pub(crate) const STOP_FORCE: Verb = Verb {
    name: "stop-force",
    prepare: running,
    run: |world, crash| world.run_with(&["vm", "stop", "--force", NAME], crash),
    next: |world| {
        world.run(&["vm", "stop", NAME]).ok();
        require_state(world, VmState::Stopped);
        start_again(world);
    },
};

pub(crate) const RM: Verb = Verb {
    name: "rm",
    prepare: created,
    run: |world, crash| world.run_with(&["vm", "rm", NAME], crash),
    next: |world| remove_again(world, &["vm", "rm", NAME]),
};

pub(crate) const RM_FORCE: Verb = Verb {
    name: "rm-force",
    prepare: running,
    run: |world, crash| world.run_with(&["vm", "rm", "--force", NAME], crash),
    next: |world| remove_again(world, &["vm", "rm", "--force", NAME]),
};

pub(crate) const RECONCILE: Verb = Verb {
    name: "reconcile",
    prepare: placeholder,
    run: |world, crash| world.run_with(&["vm", "reconcile-stale-create", NAME], crash),
    next: |world| {
        create(world).ok();
    },
};

/// The journal is an older one: it knows `a` as it was before it was started, and nothing of `b`, which runs.
pub(crate) const ADOPT: Verb = Verb {
    name: "adopt",
    prepare: |world| {
        created(world);
        let journal = world.root().join("journal");
        let kept = world.beside().join("kept");
        copy_tree(&journal, &kept);
        world.run(&["vm", "start", NAME]).ok();
        let other =
            ["vm", "run", "--name", "b", "--cpu", "1", "--memory", "64M", "--storage", "16M"];
        world.run(&[&other[..], &[IMAGE]].concat()).ok();
        std::fs::remove_dir_all(&journal).unwrap();
        copy_tree(&kept, &journal);
    },
    run: |world, crash| world.run_with(&["adopt", "--yes"], crash),
    next: |world| {
        world.run(&["adopt", "--yes"]).ok();
        for name in [NAME, "b"] {
            assert_eq!(world.inspect(name)["state"], "running");
        }
    },
};

pub(crate) const ADOPT_UNMARKED: Verb = Verb {
    name: "adopt-unmarked",
    prepare: |world| {
        created(world);
        std::fs::remove_file(world.root().join(".cocoon-root.json")).unwrap();
    },
    run: |world, crash| world.run_with(&["adopt", "--yes"], crash),
    next: |world| {
        world.run(&["adopt", "--yes"]).ok();
        assert!(world.root().join(".cocoon-root.json").exists());
    },
};

fn copy_tree(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").args([from, to]).status().unwrap();
    assert!(copied.success());
}

/// A collection goes by ids, which are random: so each finds one thing alone.
const fn gc(name: &'static str, prepare: fn(&World)) -> Verb {
    Verb { name, prepare, run: |world, crash| world.run_with(&["gc"], crash), next: collected }
}

pub(crate) const GC_STALE_CREATE: Verb = gc("gc-stale-create", placeholder);

pub(crate) const GC_HALF_REMOVED: Verb = gc("gc-half-removed", |world| {
    running(world);
    die_at(world, &["vm", "rm", "--force", NAME], "remove.run-directory.after");
});

pub(crate) const GC_HALF_STARTED: Verb = gc("gc-half-started", |world| {
    created(world);
    die_at(world, &["vm", "start", NAME], "vmm.spawn.after");
});

pub(crate) const GC_HALF_STOPPED: Verb = gc("gc-half-stopped", |world| {
    running(world);
    die_at(world, &["vm", "stop", "--timeout", "0s", NAME], "vmm.power-off.before");
});

pub(crate) const GC_DEAD_VMM: Verb = gc("gc-dead-vmm", |world| {
    running(world);
    for process in world.processes() {
        processes::kill(&process, &world.root());
    }
});

pub(crate) const GC_IMAGE: Verb = gc("gc-image", |world| {
    world.import("");
    die_at(world, &world.import_arguments("other", ""), "image.copy.after");
    die_at(world, &["image", "rm", IMAGE], "image.unlink.before");
});

/// Whatever the collector had begun: the VM starts if it is there, and can be made if it is not.
fn collected(world: &World) {
    world.import("");
    let history = world.history().unwrap();
    let there = history
        .named(NAME)
        .is_some_and(|vm| vm.core.state != VmState::Creating && vm.core.tombstone.is_none());
    if !there {
        create(world).ok();
    }
    start_again(world);
}

fn birth<'a>(world: &World, verb: &'a str) -> [&'a str; 11] {
    birth_from(world, verb, IMAGE)
}

fn birth_from<'a>(world: &World, verb: &'a str, image: &'a str) -> [&'a str; 11] {
    ["vm", verb, "--name", NAME, "--cpu", "1", "--memory", world.memory, "--storage", "16M", image]
}

pub(crate) fn create(world: &World) -> Ran {
    world.run(&birth(world, "create"))
}

fn created(world: &World) {
    world.import("");
    create(world).ok();
}

fn running(world: &World) {
    world.import("");
    world.run(&birth(world, "run")).ok();
}

/// A creation that died with its directories made.
fn placeholder(world: &World) {
    world.import("");
    die_at(world, &birth(world, "create"), "storage.make-disk.after");
}

fn die_at(world: &World, arguments: &[&str], boundary: &str) {
    let ran = world.run_with(arguments, &[("COCOON_CRASH_AT", boundary)]);
    assert!(ran.was_killed(), "not killed at {boundary}: {}", ran.told());
}

/// The same birth once more: it succeeds, unless the first one got so far that the VM is there.
fn again(world: &World, verb: &str) {
    let there = world.history().unwrap().state_of(NAME).filter(|s| *s != VmState::Creating);
    let ran = world.run(&birth(world, verb));
    match there {
        None => drop(ran.ok()),
        Some(_) => drop(ran.refused("already exists (id: ")),
    }
}

fn start_again(world: &World) {
    world.run(&["vm", "start", NAME]).ok();
    require_state(world, VmState::Running);
}

/// The same removal once more: it succeeds, unless the first one got so far that nothing is there.
fn remove_again(world: &World, arguments: &[&str]) {
    let there = world.history().unwrap().state_of(NAME).is_some();
    let ran = world.run(arguments);
    if there {
        drop(ran.ok());
    } else {
        drop(ran.refused("vm not found"));
    }
    assert!(world.history().unwrap().named(NAME).is_none(), "it is still there");
}

#[track_caller]
fn require_state(world: &World, state: VmState) {
    assert_eq!(world.history().unwrap().state_of(NAME), Some(state));
    assert_eq!(world.processes().len(), usize::from(state == VmState::Running));
    assert_eq!(world.inspect(NAME)["state"], state.as_str());
}
