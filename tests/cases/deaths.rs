//! Deaths of VMMs that several see at once.

use std::process::Child;

use cocoon_test_world::{World, processes};

use crate::{birth, world};

/// A daemon that does not outlive its test.
struct Daemon(Child);

impl Daemon {
    fn start(world: &World) -> Self {
        Self(world.start(&["daemon", "--no-api"], &[]))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn collectors_and_a_daemon_that_see_the_same_deaths_agree() {
    let world = world("");
    let names = ["a", "b", "c", "d"];
    for name in names {
        world.run(&birth("run", name, "guest")).ok();
    }
    let daemon = Daemon::start(&world);
    for _ in 0..5 {
        for vmm in world.processes() {
            processes::kill(&vmm, &world.root());
        }
        let collectors = [0, 1].map(|_| world.start(&["gc"], &[]));
        for collector in collectors {
            world.wait(collector).ok();
        }
        for name in names {
            world.run(&["vm", "wait", name, "--state", "stopped", "--timeout", "60s"]).ok();
            world.run(&["vm", "start", name]).ok();
        }
    }
    drop(daemon);
    world.findings_at_rest().none();
    // Each death was recorded once: a start and an exit a round, after the birth and the first start.
    let history = world.history().unwrap();
    for name in names {
        assert_eq!(history.named(name).unwrap().core.generation, 2 + 2 * 5, "{name}");
    }
}
