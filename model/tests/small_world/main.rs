//! Goal: whatever dies and whenever, replay finishes what was begun and every invariant holds.
//!
//! Method: a small world with locks that die with their holder, VMMs that outlive their parents, and directories. Actors
//! run the crate's own decisions and steps against it; each may be killed at any boundary. After every event the journal
//! is judged; at the end recovery must come to rest within two passes, with nothing half done.

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod world;

use proptest::prelude::*;

use world::{Act, Verb, World};

fn verb() -> impl Strategy<Value = Verb> {
    prop_oneof![
        3 => Just(Verb::Create),
        3 => Just(Verb::Run),
        2 => Just(Verb::Start),
        2 => any::<bool>().prop_map(|kill| Verb::Stop { kill }),
        2 => any::<bool>().prop_map(|force| Verb::Delete { force }),
        2 => Just(Verb::Reconcile),
        1 => Just(Verb::Observe),
        1 => Just(Verb::VmmDies),
        1 => any::<bool>().prop_map(|on| Verb::Blind { on }),
        1 => any::<bool>().prop_map(|on| Verb::Faulty { on }),
        1 => any::<bool>().prop_map(|on| Verb::Stubborn { on }),
    ]
}

fn act() -> impl Strategy<Value = Act> {
    (verb(), 0..3_u8, proptest::option::weighted(0.4, 0..14_u32))
        .prop_map(|(verb, slot, dies_at)| Act { verb, slot, dies_at })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn replay_finishes_whatever_was_begun(acts in proptest::collection::vec(act(), 1..40)) {
        let mut world = World::default();
        for act in &acts {
            world.act(act);
        }
        world.assert_judged();
        world.faults_stop();
        let passes = world.recover_until_still();
        prop_assert!(passes <= 2, "recovery took {passes} passes\n{}", world.trace());
        world.assert_nothing_half_done();
        world.assert_judged();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn decisions_do_not_depend_on_ids(acts in proptest::collection::vec(act(), 1..40)) {
        let mut worlds = [World::default(), World::with_ids_from(100)];
        for act in &acts {
            worlds.iter_mut().for_each(|world| world.act(act));
        }
        prop_assert_eq!(worlds[0].trace_by_birth(0), worlds[1].trace_by_birth(100));
    }
}

#[test]
fn a_dead_creator_is_reclaimed_at_every_boundary() {
    for dies_at in 0..14 {
        let mut world = World::default();
        world.act(&Act { verb: Verb::Run, slot: 0, dies_at: Some(dies_at) });
        world.recover_until_still();
        world.assert_nothing_half_done();
        world.assert_judged();
    }
}

#[test]
fn a_live_owner_is_never_touched() {
    let mut world = World::default();
    world.act(&Act { verb: Verb::Run, slot: 0, dies_at: None });
    world.hold_lock(0);
    let before = world.trace();
    world.act(&Act { verb: Verb::Reconcile, slot: 0, dies_at: None });
    assert_eq!(world.trace(), before);
}

#[test]
fn a_lifetime_leaves_nothing() {
    let mut world = World::default();
    for verb in [Verb::Run, Verb::Stop { kill: false }, Verb::Start, Verb::Delete { force: true }] {
        world.act(&Act { verb, slot: 0, dies_at: None });
    }
    world.assert_nothing_half_done();
    assert_eq!(world.records(), 0);
}
