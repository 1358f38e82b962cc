//! Goal: no scenario that anyone can think of breaks an invariant, beyond those that are searched whole.
//!
//! Method: drawn actors, budgets and schedules; what breaks shrinks to a few actors and a short, readable trace.

use cocoon_model::check::{Cast, Role, Scope, Walker, choices, trace_table};
use proptest::prelude::*;

fn other() -> impl Strategy<Value = Cast> {
    let role = prop_oneof![
        Just(Role::Start),
        Just(Role::Stop),
        any::<(bool, bool)>().prop_map(|(force, wait)| Role::Remove { force, wait }),
        Just(Role::Sweep),
        Just(Role::Gc),
        Just(Role::Daemon),
    ];
    (role, 0..3_u8).prop_map(|(role, slot)| Cast { role, slot, name: 0 })
}

/// Births of up to three VMs, before or among the actors, with names that may be the same.
fn scenario() -> impl Strategy<Value = Scope> {
    let birth = (any::<bool>(), any::<bool>(), 0..2_u8);
    let births = proptest::collection::vec(birth, 1..=3);
    let others = proptest::collection::vec(other(), 0..=3);
    (births, others, (0..4_u8, 0..3_u8, 0..3_u8, 0..4_u8)).prop_map(|(births, others, faults)| {
        let (kills, power_losses, vmm_deaths, failures) = faults;
        let mut scope = Scope {
            name: "drawn".to_owned(),
            vms: 3,
            actors: others,
            kills,
            power_losses,
            vmm_deaths,
            failures,
            ..Scope::default()
        };
        for (slot, (runs, is_before, name)) in (0_u8..).zip(births) {
            let role = if runs { Role::Run } else { Role::Create };
            // What is there before has a name of its own.
            let name = if is_before { 2 } else { name };
            let taken = scope.before.iter().any(|cast| cast.name == name);
            let cast = Cast { role, slot, name };
            if is_before && !taken { scope.before.push(cast) } else { scope.actors.push(cast) }
        }
        scope
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn no_drawn_scenario_breaks_anything(
        scope in scenario(),
        schedule in proptest::collection::vec(any::<u32>(), 0..200),
    ) {
        let walk = Walker::new(scope).walk(schedule, false);
        if let Some(broken) = walk.violation {
            let trace = trace_table(&broken.trace);
            prop_assert!(false, "{}: {}\n{trace}", broken.invariant, broken.what);
        }
    }
}

#[test]
fn a_seed_is_a_walk() {
    let scope = super::scope("small", super::ONE_RUN);
    let mut walker = Walker::new(scope);
    let one = walker.walk(choices(7).take(200), true);
    assert_eq!(one, walker.walk(choices(7).take(200), true));
    assert!(one.moves > 10 && one.trace.len() > 10, "{one:?}");
    let traces: Vec<_> = (0..20).map(|seed| walker.walk(choices(seed).take(200), true)).collect();
    assert!(traces.iter().any(|other| other.trace != one.trace));
}
