//! Who comes after a crash, and what each of them promises.

use std::process::Child;
use std::time::{Duration, Instant};

use cocoon_journal::Tail;
use cocoon_model::record::VmState;
use cocoon_test_world::World;
use cocoon_test_world::findings::Findings;
use rustix::process::{Pid, Signal, kill_process};

use crate::verbs::{NAME, Verb};

/// Who recovers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Actor {
    /// Whatever the user does next with the same subject.
    NextVerb,
    /// An embedder's sweep.
    Reconcile,
    /// The collector.
    Gc,
    /// The supervisor.
    Daemon,
    /// A collector that is killed in its turn.
    GcKilled,
    /// Somebody who adopts the root, after a collector that may have found it unconfirmed.
    Adopter,
}

impl Actor {
    pub(crate) const ALL: [Self; 5] =
        [Self::NextVerb, Self::Reconcile, Self::Gc, Self::Daemon, Self::GcKilled];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::NextVerb => "next-verb",
            Self::Reconcile => "reconcile",
            Self::Gc => "gc",
            Self::Daemon => "daemon",
            Self::GcKilled => "gc-killed",
            Self::Adopter => "adopter",
        }
    }

    /// Lets the actor recover from a kill at a boundary, and requires what it promises.
    pub(crate) fn recover(self, world: &World, verb: &Verb, number: usize) {
        match self {
            Self::NextVerb => (verb.next)(world),
            Self::Reconcile => reconcile(world),
            Self::Gc => {
                world.run(&["gc"]).ok();
                world.findings_at_rest().none();
            }
            Self::Daemon => supervise(world),
            Self::Adopter => adopt(world, verb),
            Self::GcKilled => {
                // Somewhere else for each boundary of the verb; where there is less to do it comes to its end.
                let at = (number * 7 % 25 + 1).to_string();
                let ran = world.run_with(&["gc"], &[("COCOON_CRASH_AT", &at)]);
                assert!(ran.was_killed() || ran.code() == Some(0), "{}", ran.told());
            }
        }
    }
}

/// Until the root is confirmed, a collector touches nothing and says so; the next adoption finishes the one that died.
fn adopt(world: &World, verb: &Verb) {
    let pids = || world.processes().iter().map(|process| process.pid).collect::<Vec<_>>();
    let before = pids();
    let gc = world.run(&["gc"]);
    if gc.code() != Some(0) {
        drop(gc.refused("cocoon adopt"));
    }
    assert_eq!(pids(), before, "a collector ended what it did not know");
    (verb.next)(world);
    assert_eq!(pids(), before, "an adoption ended something");
}

/// How long the daemon may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A daemon that does not outlive its test.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// It brings every VM to rest by itself, and ends when it is asked to.
fn supervise(world: &World) {
    // A root that nobody has used yet has no journal to follow.
    drop(world.list());
    let next = world.history().unwrap().end.seq + 1;
    let mut tail = Tail::open(&world.root().join("journal"), next).unwrap();
    let mut daemon = Daemon(world.start(&["daemon", "--no-api"], &[]));
    let deadline = Instant::now() + PATIENCE;
    // It says that it started in the journal, so there is something to wait for.
    let mut unrest = tail.next(PATIENCE).map(|_| Findings::unrest(&world.root())).unwrap();
    while !unrest.is_empty() {
        assert!(Instant::now() < deadline, "the daemon leaves it so: {unrest}");
        tail.next(Duration::from_millis(100)).unwrap();
        unrest = Findings::unrest(&world.root());
    }
    let pid = Pid::from_raw(daemon.0.id().cast_signed()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    assert!(daemon.0.wait().unwrap().success(), "the daemon ended badly");
}

/// Its answer is what the journal says, at once, whatever it is; a placeholder without an owner is never busy.
fn reconcile(world: &World) {
    let expected = match world.history().unwrap().state_of(NAME) {
        None => "not-found",
        Some(VmState::Creating) => "collected",
        Some(_) => "not-creating",
    };
    let ran = world.run(&["vm", "reconcile-stale-create", NAME, "-o", "json"]).ok();
    assert_eq!(ran.json()["outcome"], expected, "{}", ran.told());
    if expected == "collected" {
        assert!(world.history().unwrap().named(NAME).is_none(), "{}", ran.told());
    }
}
