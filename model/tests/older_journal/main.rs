//! Goal: with an older journal put back under a world that went on, nobody ends or removes what that journal does not know,
//! and after an adoption everything works again.
//!
//! Method: a small world with VMMs that outlive their parents, directories that note how far their records had come, and a
//! witness beside the journal. Actors run the crate's own decisions and steps against it. Somewhere the journal is kept;
//! later it is put back; then everybody acts and recovers, and what only the newer journal knew must be there untouched.

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

/// What may be done to a world whose journal was put back: everything but births, whose places are taken, and deaths that
/// nobody brings about.
fn act_on_what_is_there() -> impl Strategy<Value = Act> {
    let touches = |act: &Act| !matches!(act.verb, Verb::Create | Verb::Run | Verb::VmmDies);
    act().prop_filter("touches what is there", touches)
}

/// An older journal under a world that went on. With the witness all of it is known to be older; without, only a VM's
/// directory says so, and nobody may have died before noting it there.
fn older_journal(
    before: &[Act],
    keep_at: u64,
    after: &[Act],
    with_witness: bool,
) -> Result<(), TestCaseError> {
    let mut world = World::default();
    world.keep_at(keep_at);
    for act in before {
        let dies_at = act.dies_at.filter(|_| !with_witness);
        world.act(&Act { dies_at, ..*act });
    }
    world.put_back(with_witness);
    let there = world.there();
    for act in after {
        world.act(act);
    }
    world.faults_stop();
    world.recover_until_still();
    let now = world.there();
    let untouched =
        |known: &&(_, bool, bool, bool)| !with_witness && world.is_unconfirmed() || known.3;
    for known in there.iter().filter(untouched) {
        let kept = now.iter().any(|now| (now.0, now.1, now.2) == (known.0, known.1, known.2));
        prop_assert!(kept, "{known:?} is now {now:?}\n{}", world.trace());
    }
    world.adopt();
    let passes = world.recover_until_still();
    prop_assert!(passes <= 2, "recovery took {passes} passes\n{}", world.trace());
    world.remove_what_is_gone();
    world.assert_nothing_half_done();
    world.assert_judged();
    for known in now.iter().filter(|known| known.1) {
        let lives = world.there().iter().any(|now| now.0 == known.0 && now.1);
        prop_assert!(lives, "{known:?} was ended by its adoption\n{}", world.trace());
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn an_older_journal_never_ends_or_removes_what_it_does_not_know(
        before in proptest::collection::vec(act(), 1..30),
        keep_at in 1..40_u64,
        after in proptest::collection::vec(act_on_what_is_there(), 0..10),
        with_witness in any::<bool>(),
    ) {
        older_journal(&before, keep_at, &after, with_witness)?;
    }
}
