//! A real file system, filled to its last block.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use cocoon_test_faults::disk::Disk;
use cocoon_test_world::{World, processes};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::{apart, birth, cocoon, states};

/// A daemon of the world, whose log is read.
struct Daemon {
    child: Child,
    told: Receiver<String>,
}

impl Daemon {
    /// Starts one, and waits until it supervises.
    fn start(world: &World) -> Self {
        let mut command = world.command(&["daemon", "--reconcile-interval", "1h"]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let (lines, told) = channel();
        let log = BufReader::new(child.stderr.take().unwrap());
        std::thread::spawn(move || {
            log.lines().map_while(Result::ok).try_for_each(|l| lines.send(l))
        });
        let daemon = Self { child, told };
        daemon.until("supervising");
        daemon
    }

    fn until(&self, text: &str) {
        loop {
            let line = self.told.recv_timeout(Duration::from_secs(60));
            if line.unwrap_or_else(|error| panic!("`{text}` was not told: {error}")).contains(text)
            {
                return;
            }
        }
    }

    /// Ends it in good order.
    fn stop(mut self) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        assert_eq!(self.child.try_wait().unwrap(), None, "it lived through everything");
        kill(pid, Signal::SIGTERM).unwrap();
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn kill_vmm(world: &World, name: &str) {
    let pid = u32::try_from(world.inspect(name)["pid"].as_u64().unwrap()).unwrap();
    let process = world.processes().into_iter().find(|process| process.pid == pid).unwrap();
    processes::kill(&process, &world.root());
}

/// Commands that begin something, until it is the reserve that they are refused.
fn refused_in_words(world: &World) {
    for attempt in 0.. {
        let refused = world.run(&birth("create", "late")).refused("No space left on device");
        if refused.stderr().contains("KiB are kept for stop, rm and gc") {
            break;
        }
        assert!(attempt < 200, "{}", refused.told());
    }
    let import = world.import_arguments("other", "");
    world.run(&import).refused("No space left on device");
}

/// Everything that ends something works on the full disk, and gives room back.
fn leave(world: &World) {
    world.run(&["vm", "list"]).ok();
    kill_vmm(world, "c");
    world.run(&["vm", "wait", "c", "--state", "stopped"]).ok();
    world.run(&["vm", "stop", "a"]).ok();
    world.run(&["gc"]).ok();
    world.run(&["vm", "rm", "--force", "b"]).ok();
    world.run(&["image", "rm", "spare"]).ok();
    world.run(&["vm", "rm", "a"]).ok();
    world.run(&["gc"]).ok();
    world.run(&["journal", "verify"]).ok();
    assert_eq!(states(world), [("c".to_owned(), "stopped".to_owned())]);
}

fn go_on(world: &World) {
    world.run(&birth("create", "late")).ok();
    world.run(&["vm", "start", "late"]).ok();
    world.run(&birth("run", "later")).ok();
    kill_vmm(world, "later");
    world.run(&["vm", "wait", "later", "--state", "stopped"]).ok();
    world.run(&["vm", "rm", "--force", "c", "late", "later"]).ok();
    world.run(&["gc"]).ok();
}

fn a_disk_with_vms(test: fn(&Disk, &World)) {
    let Some(disk) = Disk::new_unless_skipped(24 << 20, "root") else { return };
    let world = World::fake_in(cocoon(), &disk.path());
    world.import("");
    world.run(&world.import_arguments("spare", "spare")).ok();
    for name in ["a", "b", "c"] {
        world.run(&birth("run", name)).ok();
    }
    test(&disk, &world);
}

#[test]
fn a_disk_full_to_the_last_block_is_left_by_stop_rm_and_gc() {
    apart(|| {
        a_disk_with_vms(|disk, world| {
            let daemon = Daemon::start(world);
            let ballast = disk.fill();
            refused_in_words(world);
            leave(world);
            fs::remove_file(ballast).unwrap();
            go_on(world);
            daemon.stop();
            world.requires_agreement();
            world.findings_at_rest().none();
        });
    });
}

/// The room comes from what was removed, not from somebody else.
#[test]
fn what_is_removed_from_a_full_disk_is_room_for_new_vms() {
    apart(|| {
        a_disk_with_vms(|disk, world| {
            let id = world.inspect("a")["id"].as_str().unwrap().to_owned();
            let log = world.root().join("log/qemu").join(id);
            fs::write(log.join("big.log"), vec![7; 2 << 20]).unwrap();
            let _ballast = disk.fill();
            refused_in_words(world);
            world.run(&["vm", "rm", "--force", "a"]).ok();
            go_on(world);
            world.requires_agreement();
            world.findings_at_rest().none();
        });
    });
}

/// `ulimit -f`: an error in words, not a silent death.
#[test]
fn a_limit_on_the_size_of_files_is_told() {
    let mut world = World::new(cocoon());
    world.import("");
    world.run(&birth("create", "a")).ok();
    world.wrapper = ["prlimit", "--fsize=700", "--"].map(str::to_owned).to_vec();
    world.run(&birth("create", "b")).refused("File too large");
    world.wrapper.clear();
    world.run(&birth("run", "c")).ok();
    world.run(&["gc"]).ok();
    assert_eq!(states(&world).len(), 2);
    world.findings_at_rest().none();
}
