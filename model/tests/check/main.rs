//! Goal: the checker sees all of a small scope, says the same twice, and never calls a search clean that did not end.
//!
//! Method: scopes that are searched in seconds even without optimisation. The larger ones of `model/scopes/` are searched
//! by `cocoon-check`.

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[cfg(feature = "mutants")]
mod mutants;
mod random;

use cocoon_model::check::{Limits, Report, Scope, search};

const WHOLE: Limits = Limits { states: 2_000_000, liveness: true };

fn scope(name: &str, text: &str) -> Scope {
    Scope::parse(name, text).expect("a scope")
}

fn searched(text: &str, limits: Limits) -> Report {
    search(&scope("small", text), limits, &mut |_| None)
}

fn assert_clean(report: &Report) {
    if let Some(broken) = &report.violation {
        let trace = cocoon_model::check::trace_table(&broken.trace);
        panic!("{}: {}\n{trace}", broken.invariant, broken.what);
    }
    assert_eq!(report.budget_hit, None);
    assert_eq!(report.unreached, Vec::<String>::new());
}

const ONE_NAME: &str = "vms = 2
actor = create 0 0
actor = create 1 0
actor = gc
kills = 1
power-losses = 1
failures = 1
sometimes = Committed ReclaimBegan Deleted TombstoneRolledBack name-taken collected swept";

const ONE_RUN: &str = "vms = 2
foreign = 1
actor = run 0 0
actor = rm-force 0
actor = gc
kills = 1
power-losses = 1
failures = 1
sometimes = Running LaunchFailed Stopped Deleted ReclaimBegan OperationTakenOver in-flight moved-on";

const ONE_LIFE: &str = "vms = 1
before = run 0 0
actor = stop 0
actor = rm 0
actor = daemon
kills = 1
vmm-deaths = 1
failures = 1
sometimes = StopBegan Stopped StopFailed ExitObserved Tombstoned Deleted OperationTakenOver";

#[test]
fn two_creations_of_one_name() {
    assert_clean(&searched(ONE_NAME, WHOLE));
}

#[test]
fn a_run_that_is_removed_while_it_is_made() {
    assert_clean(&searched(ONE_RUN, WHOLE));
}

#[test]
fn a_stop_and_a_removal_while_vmms_die() {
    assert_clean(&searched(ONE_LIFE, WHOLE));
}

#[test]
fn a_search_says_the_same_twice() {
    assert_eq!(searched(ONE_NAME, WHOLE), searched(ONE_NAME, WHOLE));
}

#[test]
fn decisions_do_not_depend_on_ids() {
    let renamed = format!("first-id = 100\n{ONE_NAME}");
    assert_eq!(searched(ONE_NAME, WHOLE), searched(&renamed, WHOLE));
    let broken = "vms = 2\nactor = create 0 0\nactor = create 1 0\nkills = 1\nsometimes = Running";
    let renamed = format!("first-id = 7\n{broken}");
    assert_eq!(searched(broken, WHOLE), searched(&renamed, WHOLE));
}

#[test]
fn a_search_that_did_not_end_says_so() {
    let few = Limits { states: 100, liveness: true };
    assert_eq!(searched(ONE_NAME, few).budget_hit.as_deref(), Some("100 states"));
    let mut asked = 0;
    let mut stop = |_| {
        asked += 1;
        (asked > 2).then(|| "enough".to_owned())
    };
    let report = search(&scope("small", ONE_NAME), WHOLE, &mut stop);
    assert_eq!(report.budget_hit.as_deref(), Some("enough"));
    assert!(report.states > 1);
}

#[test]
fn what_is_never_reached_is_said() {
    let report = searched("vms = 1\nactor = create 0\nsometimes = Committed Running", WHOLE);
    assert_eq!(report.unreached, ["Running"]);
    assert_eq!(report.violation, None);
}

#[test]
fn a_creation_alone_has_one_way() {
    let report = searched("vms = 1\nactor = create 0\nsometimes = Committed", WHOLE);
    assert_clean(&report);
    assert_eq!(report.states, u64::from(report.depth) + 1);
    assert_eq!(report.transitions, u64::from(report.depth));
}
