//! Running a row of the matrix: the boundaries of a verb, times the actors.

use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use cocoon_fake_vmm::find::real_qemu;
use cocoon_test_world::World;

use crate::actors::Actor;
use crate::verbs::{NAME, Verb, create};

/// What is tested.
const BINARY: &str = env!("CARGO_BIN_EXE_cocoon");

/// One kill, and who comes after it.
struct Case<'a> {
    verb: &'a Verb,
    /// Counted from 1.
    number: usize,
    boundary: &'a str,
    actor: Actor,
}

/// Requires that a verb survives a kill at every boundary, whoever comes after it.
pub(crate) fn survives(verb: &Verb) {
    survives_in(verb, || World::new(BINARY.as_ref()), &Actor::ALL);
}

/// The same with a real QEMU, which takes its time: the collector stands for all who recover. Skipped, and said, where
/// there is none.
pub(crate) fn survives_for_real(verb: &Verb) {
    let Ok(qemu) = real_qemu() else { return };
    survives_in(verb, || World::real(BINARY.as_ref(), qemu.clone()), &[Actor::Gc]);
}

/// Requires that an adoption survives a kill at every boundary. Before it is through, VMs without a record are there.
pub(crate) fn adopts(verb: &Verb) {
    survives_in(verb, || World::new(BINARY.as_ref()), &[Actor::Adopter]);
}

fn survives_in(verb: &Verb, world: impl Fn() -> World + Sync, actors: &[Actor]) {
    let boundaries = boundaries(verb, &world());
    check_list(verb, &boundaries);
    let cases: Vec<Case<'_>> = boundaries
        .iter()
        .enumerate()
        .flat_map(|(at, boundary)| {
            actors.iter().map(move |&actor| Case { verb, number: at + 1, boundary, actor })
        })
        .filter(Case::is_wanted)
        .collect();
    assert!(!cases.is_empty(), "COCOON_CASE names no case of `{}`", verb.name);
    let failed = run_all(&cases, &world);
    assert!(failed.is_empty(), "{}", table(&failed, cases.len()));
    println!("{}: {} boundaries, {} cases", verb.name, boundaries.len(), cases.len());
}

/// Runs the verb undisturbed and lists the boundaries that it passes.
fn boundaries(verb: &Verb, world: &World) -> Vec<String> {
    (verb.prepare)(world);
    let log = world.beside().join("boundaries");
    (verb.run)(world, &[("COCOON_CRASH_LOG", log.to_str().unwrap())]).ok();
    world.findings_at_rest().none();
    read_lines(&log)
}

fn check_list(verb: &Verb, boundaries: &[String]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/crash_matrix/boundaries")
        .join(format!("{}.txt", verb.name));
    if std::env::var_os("COCOON_BLESS").is_some() {
        std::fs::write(&path, boundaries.join("\n") + "\n").unwrap();
    }
    let listed = read_lines(&path);
    assert_eq!(
        listed,
        boundaries,
        "the boundaries of `{}` are not those listed in {}; COCOON_BLESS=1 lists them anew",
        verb.name,
        path.display()
    );
}

fn read_lines(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

impl Case<'_> {
    fn name(&self) -> String {
        format!("{}/{}/{}", self.verb.name, self.number, self.actor.as_str())
    }

    fn is_wanted(&self) -> bool {
        std::env::var("COCOON_CASE").map_or(true, |wanted| wanted == self.name())
    }

    fn run(&self, world: &World) {
        (self.verb.prepare)(world);
        self.kill(world);
        if self.actor != Actor::Adopter {
            world.findings().none();
        }
        self.actor.recover(world, self.verb, self.number);
        world.findings().none();
        world.run(&["gc"]).ok();
        world.findings_at_rest().none();
        world.requires_agreement();
        once_more(world);
    }

    fn kill(&self, world: &World) {
        let log: PathBuf = world.beside().join("passed");
        let number = self.number.to_string();
        let variables =
            [("COCOON_CRASH_AT", number.as_str()), ("COCOON_CRASH_LOG", log.to_str().unwrap())];
        let ran = (self.verb.run)(world, &variables);
        assert!(ran.was_killed(), "not killed: {}", ran.told());
        let passed = read_lines(&log);
        assert_eq!(passed.last().map(String::as_str), Some(self.boundary), "another way was taken");
    }
}

/// The name is as good as new: whoever holds it can be removed, and a VM of the same name be made, and removed.
fn once_more(world: &World) {
    if world.history().unwrap().named(NAME).is_some() {
        world.run(&["vm", "rm", "--force", NAME]).ok();
    }
    if world.history().unwrap().images.is_empty() {
        world.import("");
    }
    create(world).ok();
    world.findings_at_rest().none();
    world.run(&["vm", "rm", NAME]).ok();
    world.findings_at_rest().none();
    world.run(&["vm", "inspect", NAME]).refused("vm not found");
}

type Failed = (String, String, String);

fn run_all(cases: &[Case<'_>], world: &(impl Fn() -> World + Sync)) -> Vec<Failed> {
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(Vec::new());
    let work = || {
        while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| case.run(&world()))) {
                let said = panic.downcast_ref::<String>().cloned();
                let said = said.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
                let row = (case.name(), case.boundary.to_owned(), said.unwrap_or_default());
                failed.lock().unwrap().push(row);
            }
        }
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(work);
        }
    });
    failed.into_inner().unwrap()
}

fn table(failed: &[Failed], of: usize) -> String {
    let mut text = format!("{} of {of} cases failed\n", failed.len());
    for (name, boundary, said) in failed {
        let said = said.lines().map(|line| format!("    {line}\n")).collect::<String>();
        let test = name.split('/').next().unwrap_or_default().replace('-', "_");
        let _ = write!(
            text,
            "{name}  at {boundary}\n{said}    again: COCOON_CASE={name} cargo test --features crash-points --test crash_matrix {test}\n"
        );
    }
    text
}
