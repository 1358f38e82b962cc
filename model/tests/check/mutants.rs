//! Goal: a checker that finds nothing proves nothing. Each historical fault, put back, breaks the invariant that names it.
//!
//! Method: those that are found within seconds even without optimisation, in small scopes; `just mutants` hunts them all.

use cocoon_model::check::{Limits, search};
use cocoon_model::mutant::{MUTANTS, by_name, switch};

use crate::{ONE_LIFE, ONE_NAME, ONE_RUN, scope};

fn hunt(name: &str, text: &str) {
    let about = by_name(name).expect("a mutant");
    switch(Some(about.mutant));
    let limits = Limits { states: 400_000, liveness: true };
    let report = search(&scope(name, text), limits, &mut |_| None);
    switch(None);
    let broken = report.violation.unwrap_or_else(|| panic!("{name} was not found"));
    assert_eq!(broken.invariant, about.breaks, "{name}: {}", broken.what);
    assert!(!broken.trace.is_empty(), "{name}");
}

#[test]
fn of_a_creation() {
    for name in ["stale-view", "ack-before-sync", "answer-on-unsynced", "name-before-record"] {
        hunt(name, ONE_NAME);
    }
    for name in ["unlock-before-commit", "age-gate", "deleting-rolled-back"] {
        hunt(name, ONE_NAME);
    }
    let sweep = "vms = 1\nactor = create 0\nactor = sweep\nkills = 1";
    for name in ["reclaim-without-lock", "reclaim-committed", "helper-without-lock"] {
        hunt(name, sweep);
    }
}

#[test]
fn of_a_run_and_its_removal() {
    for name in ["stray-unnamed", "lock-inherited-by-vmm", "force-waits", "run-in-flight"] {
        hunt(name, ONE_RUN);
    }
}

#[test]
fn of_a_stop_and_of_exits() {
    hunt("inconclusive-is-dead", ONE_LIFE);
    let force = "vms = 1\nbefore = run 0 0\nactor = rm-force 0\nactor = gc\nkills = 1\npower-losses = 1\nfailures = 1";
    hunt("record-before-proof", force);
    hunt("pid-reused", force);
    let again = "vms = 1\nbefore = run 0 0\nactor = start 0\nactor = daemon\nvmm-deaths = 1";
    hunt("late-exit", again);
    let stopped = "vms = 1\nactor = create 0\nactor = stop 0\nactor = gc\nkills = 1";
    hunt("stop-hides-placeholder", stopped);
    let torn = "vms = 1\nactor = create 0\nactor = gc\npower-losses = 1\nfailures = 1";
    hunt("torn-decision", torn);
}

#[test]
fn names_are_unique_and_scopes_are_there() {
    let scopes = concat!(env!("CARGO_MANIFEST_DIR"), "/scopes");
    for (at, about) in MUTANTS.iter().enumerate() {
        assert!(MUTANTS[..at].iter().all(|other| other.name != about.name), "{}", about.name);
        assert!(std::path::Path::new(&format!("{scopes}/{}.scope", about.scope)).exists());
        assert!(cocoon_model::invariant::INVARIANTS.iter().any(|known| known.id == about.breaks));
    }
}
