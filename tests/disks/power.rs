//! Power cuts of the file system that a root lies on, while commands create, start, stop and remove VMs.
//!
//! Every answer is noted with its time, away from that file system; those given before the cut must hold after it. As in a
//! real cut no VMM survives, and the next boot has another id. `POWER_CUTS` says how many cuts.

use std::collections::BTreeMap;
use std::fs;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use cocoon_test_faults::disk::{Disk, skipped};
use cocoon_test_world::{World, processes};
use nix::mount::{MsFlags, mount};
use uuid::Uuid;

use crate::{apart, birth, cocoon, states};

/// What a VM is known to be, from the last answer about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    There,
    Gone,
}

/// An answer: when it was there, about which VM, and what it says. `None` says that a change was asked for.
type Answer = (Instant, String, Option<Known>);

/// Lives of VMs, one after the other, until the disk is gone.
fn live(world: &World, worker: &str, answers: &Sender<Answer>) {
    for number in 0.. {
        let name = format!("{worker}-{number}");
        let say = |known| {
            // Whoever listens does so to the end.
            let _ = answers.send((Instant::now(), name.clone(), known));
        };
        let steps: [(&[&str], Known); 4] = [
            (&birth("create", &name), Known::There),
            (&["vm", "start", &name], Known::There),
            (&["vm", "stop", "--force", &name], Known::There),
            (&["vm", "rm", &name], Known::Gone),
        ];
        for (arguments, known) in steps {
            // Some are left for the cut to find.
            if known == Known::Gone && number % 2 == 0 {
                continue;
            }
            say(None);
            if world.run(arguments).code() != Some(0) {
                return;
            }
            say(Some(known));
        }
    }
}

/// Boots: another id, which whoever is started from here sees.
fn boot(disk: &Disk) {
    let id = disk.beside().join("boot_id");
    fs::write(&id, format!("{}\n", Uuid::new_v4())).unwrap();
    let real = "/proc/sys/kernel/random/boot_id";
    mount(Some(&id), real, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
}

/// Cuts the power under load; gives what was known by then.
fn cut_under_load(disk: &Disk, world: &World, cut: usize) -> BTreeMap<String, Option<Known>> {
    let (answers, told) = channel();
    let mut known = BTreeMap::new();
    std::thread::scope(|scope| {
        for worker in 0..3 {
            let answers = answers.clone();
            scope.spawn(move || live(world, &format!("w{cut}{worker}"), &answers));
        }
        drop(answers);
        // A random moment is what this is about; nothing is asserted about it.
        let more = u64::try_from(Uuid::new_v4().as_u128() % 700).unwrap();
        std::thread::sleep(Duration::from_millis(300 + more));
        let at = Instant::now();
        disk.cut().unwrap();
        processes::end_all_of(&world.root());
        for (when, name, answer) in told {
            // A call that the cut overtakes may return without an error, from a kernel that a real cut ends.
            if when < at {
                known.insert(name, answer);
            }
        }
    });
    processes::end_all_of(&world.root());
    known
}

fn check(world: &World, known: &BTreeMap<String, Option<Known>>) {
    world.run(&["gc"]).ok();
    let states = states(world);
    for (name, known) in known {
        let found = states.iter().find(|(found, _)| found == name);
        match known {
            Some(Known::There) => assert!(found.is_some(), "{name} is lost: {states:?}"),
            Some(Known::Gone) => assert_eq!(found, None, "{name} is back"),
            None => {}
        }
    }
    assert!(states.iter().all(|(_, state)| state != "running"), "{states:?}");
    world.findings_at_rest().none();
    world.requires_agreement();
    for (name, _) in states.iter().take(1) {
        world.run(&["vm", "start", name]).ok();
        world.run(&["vm", "stop", "--force", name]).ok();
    }
    for (name, _) in states {
        world.run(&["vm", "rm", "--force", &name]).ok();
    }
}

fn cuts() {
    let disk = match Disk::new(64 << 20).and_then(|disk| disk.cut().map(|()| disk)) {
        Ok(disk) => disk,
        Err(reason) => return skipped("powercut", &reason),
    };
    disk.unmount().unwrap();
    disk.mount().unwrap();
    boot(&disk);
    let world = World::fake_in(cocoon(), &disk.path());
    world.import("");
    let count = std::env::var("POWER_CUTS").map_or(3, |count| count.parse().unwrap());
    let mut answers = 0;
    for cut in 0..count {
        let known = cut_under_load(&disk, &world, cut);
        disk.unmount().unwrap();
        disk.mount().unwrap();
        boot(&disk);
        check(&world, &known);
        answers += known.len();
    }
    println!("{count} cuts, what was answered about {answers} VMs held");
}

#[test]
fn what_was_answered_before_a_power_cut_holds_after_it() {
    apart(cuts);
}
