//! The verbs that workers run, and what they hold against them.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cocoon_test_world::world::{DISK, IMAGE};
use cocoon_test_world::{Ran, World, processes};

use crate::WORKERS;
use crate::random::Random;
use crate::report::Report;
use crate::victim::{Boundaries, Victim};

/// Names that all workers use.
const SHARED: [&str; 3] = ["s1", "s2", "s3"];

/// Names that each worker has for itself.
const OWN: u64 = 2;

/// Of a hundred verbs, as many are killed.
const KILLED: u64 = 60;

/// How many boundaries a verb is thought to pass until one was seen to pass more.
const FIRST_GUESS: u64 = 20;

/// The most that lies between the boundary that a kill waits for and the kill, microseconds.
const MOST_BETWEEN_US: u64 = 3000;

/// All names that are used.
pub(crate) fn names() -> Vec<String> {
    let own = (0..WORKERS).flat_map(|worker| (0..OWN).map(move |n| own_name(worker, n)));
    SHARED.iter().map(|name| (*name).to_owned()).chain(own).collect()
}

fn own_name(worker: u64, number: u64) -> String {
    format!("w{worker}-{number}")
}

/// The arguments that create or run a small VM.
pub(crate) fn birth<'a>(verb: &'a str, name: &'a str, image: &'a str) -> [&'a str; 11] {
    ["vm", verb, "--name", name, "--cpu", "1", "--memory", "64M", "--storage", "16M", image]
}

/// What all workers share.
#[derive(Debug)]
pub(crate) struct Load<'a> {
    world: &'a World,
    kills: u64,
    images: Vec<&'static str>,
    tried: AtomicU64,
    /// The most boundaries that a verb was seen to pass.
    passed: Mutex<BTreeMap<Verb, u64>>,
}

impl<'a> Load<'a> {
    /// A load of so many kills. Without `qemu-img`, no VM boots from a disk.
    pub(crate) fn new(world: &'a World, kills: u64) -> Self {
        world.import("");
        let mut images = vec![IMAGE];
        if World::makes_overlays() {
            world.import_disk();
            images.push(DISK);
        }
        Self { world, kills, images, tried: AtomicU64::new(0), passed: Mutex::default() }
    }

    pub(crate) fn world(&self) -> &World {
        self.world
    }

    /// Whether there are kills left.
    pub(crate) fn goes_on(&self) -> bool {
        self.tried.load(Ordering::Relaxed) < self.kills
    }

    fn expected(&self, verb: Verb) -> u64 {
        let seen = self.passed.lock().unwrap().get(&verb).copied();
        seen.unwrap_or_default().max(FIRST_GUESS)
    }

    fn saw(&self, verb: Verb, passed: u64) {
        let mut most = self.passed.lock().unwrap();
        let most = most.entry(verb).or_default();
        *most = passed.max(*most);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Verb {
    Create,
    Run,
    Start,
    Stop,
    StopForce,
    Rm,
    RmForce,
    Reconcile,
    Gc,
    List,
}

/// How often each verb comes up.
const MIX: [Verb; 16] = [
    Verb::Create,
    Verb::Create,
    Verb::Run,
    Verb::Run,
    Verb::Run,
    Verb::Start,
    Verb::Start,
    Verb::Stop,
    Verb::StopForce,
    Verb::Rm,
    Verb::RmForce,
    Verb::RmForce,
    Verb::Reconcile,
    Verb::Gc,
    Verb::Gc,
    Verb::List,
];

impl Verb {
    fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Run => "run",
            Self::Start => "start",
            Self::Stop => "stop",
            Self::StopForce => "stop --force",
            Self::Rm => "rm",
            Self::RmForce => "rm --force",
            Self::Reconcile => "reconcile-stale-create",
            Self::Gc => "gc",
            Self::List => "list",
        }
    }

    fn arguments<'a>(self, name: &'a str, image: &'a str) -> Vec<&'a str> {
        match self {
            Self::Create => birth("create", name, image).to_vec(),
            Self::Run => birth("run", name, image).to_vec(),
            Self::Start => vec!["vm", "start", name],
            Self::Stop => vec!["vm", "stop", name],
            Self::StopForce => vec!["vm", "stop", "--force", name],
            Self::Rm => vec!["vm", "rm", name],
            Self::RmForce => vec!["vm", "rm", "--force", name],
            Self::Reconcile => vec!["vm", "reconcile-stale-create", name],
            Self::Gc => vec!["gc"],
            Self::List => vec!["vm", "list", "-o", "json"],
        }
    }
}

/// What a worker knows of a VM of its own, by what was acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    Gone,
    Idle,
    Running,
    /// A verb was killed.
    Nothing,
}

impl Known {
    /// Verbs that a user would think of.
    fn sensible(self) -> &'static [Verb] {
        match self {
            Self::Gone => &[Verb::Create, Verb::Run, Verb::Run],
            Self::Idle => &[Verb::Start, Verb::Start, Verb::Rm],
            Self::Running => &[Verb::Stop, Verb::StopForce, Verb::RmForce],
            Self::Nothing => &MIX,
        }
    }
}

/// One that runs verb after verb.
#[derive(Debug)]
pub(crate) struct Worker<'a> {
    load: &'a Load<'a>,
    number: u64,
    random: Random,
    boundaries: Boundaries,
    known: BTreeMap<String, Known>,
    report: Report,
}

impl<'a> Worker<'a> {
    pub(crate) fn new(load: &'a Load<'a>, seed: u64, number: u64) -> Self {
        let random = Random::new(seed.wrapping_mul(1000).wrapping_add(number));
        let boundaries = Boundaries::new(load.world.beside().join(format!("passed-{number}")));
        let known = (0..OWN).map(|n| (own_name(number, n), Known::Gone)).collect();
        let report = Report::default();
        Self { load, number, random, boundaries, known, report }
    }

    pub(crate) fn into_report(self) -> Report {
        self.report
    }

    /// One verb; whether there is to be another.
    pub(crate) fn turn(&mut self) -> bool {
        let own = self.random.below(4) > 0;
        let name = if own {
            own_name(self.number, self.random.below(OWN))
        } else {
            (*self.random.one(&SHARED)).to_owned()
        };
        let verb = match self.known.get(&name) {
            Some(known) if self.random.below(10) > 0 => *self.random.one(known.sensible()),
            _ => *self.random.one(&MIX),
        };
        if self.random.below(20) == 0 {
            self.kill_a_shared_vmm();
        }
        if self.random.below(100) < KILLED {
            if self.load.tried.fetch_add(1, Ordering::Relaxed) >= self.load.kills {
                return false;
            }
            self.killed(verb, &name);
        } else {
            self.undisturbed(verb, &name);
        }
        true
    }

    /// Kills the verb a random while after it passed a random boundary, so that no part of it is spared.
    fn killed(&mut self, verb: Verb, name: &str) {
        let expected = self.load.expected(verb);
        // The smaller of two: refused verbs pass few boundaries, and are most of them.
        let after = self.random.below(expected + 1).min(self.random.below(expected + 1));
        let then = Duration::from_micros(self.random.below(MOST_BETWEEN_US));
        let image = *self.random.one(&self.load.images);
        let arguments = verb.arguments(name, image);
        let victim = Victim::start(self.load.world, &arguments, &mut self.boundaries);
        let (ran, passed) = victim.kill(after, then);
        self.report.kills += 1;
        self.load.saw(verb, passed.len() as u64);
        if ran.was_killed() {
            self.report.hit(passed.last().map_or("(nothing yet)", String::as_str));
            if let Some(known) = self.known.get_mut(name) {
                *known = Known::Nothing;
            }
        } else {
            self.ended(verb, name, &ran);
        }
    }

    fn undisturbed(&mut self, verb: Verb, name: &str) {
        let image = *self.random.one(&self.load.images);
        let ran = self.load.world.run(&verb.arguments(name, image));
        self.ended(verb, name, &ran);
    }

    fn ended(&mut self, verb: Verb, name: &str, ran: &Ran) {
        let well = ran.code() == Some(0);
        self.report.ended(verb.as_str(), well);
        if !matches!(ran.code(), Some(0 | 1)) || ran.stderr().contains("panicked") {
            self.report.complaints.push(format!("neither done nor refused: {}", ran.told()));
        }
        let never_fails = matches!(verb, Verb::Gc | Verb::List | Verb::Reconcile);
        if never_fails && !well {
            self.report.complaints.push(ran.told());
        }
        let Some(known) = self.known.get(name).copied() else { return };
        if !self.as_promised(verb, known, ran) {
            self.report.complaints.push(format!("{name} was {known:?}: {}", ran.told()));
        }
        self.known.insert(name.to_owned(), after(verb, known, well));
    }

    /// Whether the answer fits what was acknowledged before. Others only collect, which may make a verb come in between.
    fn as_promised(&self, verb: Verb, known: Known, ran: &Ran) -> bool {
        let well = ran.code() == Some(0);
        let gone = || ran.stderr().contains("vm not found");
        match (verb, known) {
            (Verb::Gc | Verb::List | Verb::Reconcile, _) | (_, Known::Nothing) => true,
            (Verb::Create | Verb::Run, Known::Gone) => well,
            (Verb::Create | Verb::Run, _) => ran.stderr().contains("already exists"),
            (_, Known::Gone) => !well && gone(),
            (Verb::Rm, Known::Running) => ran.stderr().contains("force required"),
            (Verb::Start | Verb::Stop | Verb::StopForce | Verb::Rm | Verb::RmForce, _) => well,
        }
    }

    fn kill_a_shared_vmm(&mut self) {
        let root = self.load.world.root();
        let shared = |found: &processes::Found| {
            SHARED.iter().any(|name| found.command.contains(&format!("guest={name} ")))
        };
        let vmms: Vec<_> = processes::of_root(&root).into_iter().filter(shared).collect();
        if !vmms.is_empty() {
            processes::kill(self.random.one(&vmms), &root);
        }
    }
}

/// What is known once a verb has come to its end.
fn after(verb: Verb, known: Known, well: bool) -> Known {
    match (verb, well) {
        (Verb::Create, true) => Known::Idle,
        (Verb::Run | Verb::Start, true) => Known::Running,
        (Verb::Stop | Verb::StopForce, true) => Known::Idle,
        (Verb::Rm | Verb::RmForce, true) => Known::Gone,
        _ => known,
    }
}
