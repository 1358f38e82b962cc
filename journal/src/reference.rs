//! The journal against a plain vector, whatever happens in between.
//!
//! ```text
//!   operations --> three handles, a follower, checkpoints, a store   --> promised: a plain vector
//!                       |                                                    |
//!                  page cache  (what everyone reads) ------------------------+-- has all of it, in order
//!                       |
//!                  disk        (what a power cut leaves at worst) -----------+-- has all of it, in order
//! ```
//!
//! After each operation both are parsed from their bytes and held against what was promised: every event that was
//! acknowledged, that a reader was given, or that a derived file took over. Nothing else may be there but whole
//! decisions that were made, in their order. Handles are processes: they are killed at boundaries between effects and
//! within writes, and other handles act between a write and its sync.
//!
//! Everything runs on one thread, so that a failing sequence shrinks and repeats.

use proptest::prelude::*;

mod truth;
mod world;

use crate::testing::disk::Fault;
use world::World;

/// What happens to the process of a handle.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Fate {
    Lives,
    /// Killed at the boundary with this number.
    Dies(usize),
    /// A call fails, or the process dies in it.
    Meets(Fault),
}

/// What another handle does while this one is between its write and the end of its transaction.
#[derive(Clone, Debug)]
pub(crate) struct Beside {
    at: &'static str,
    handle: usize,
    fate: Fate,
    reads: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum Operation {
    /// Decisions of so many events each, in one transaction.
    Append {
        handle: usize,
        counts: Vec<u8>,
        fate: Fate,
        beside: Option<Beside>,
    },
    /// Brings the state of a handle up to date.
    Read {
        handle: usize,
        fate: Fate,
    },
    /// Reads from a sequence number on, chosen among those that there are.
    From {
        handle: usize,
        at: u64,
    },
    /// Follows to the end.
    Follow,
    /// The process of a handle ends; another takes its place.
    Restart {
        handle: usize,
        from_checkpoint: bool,
    },
    Checkpoint {
        handle: usize,
    },
    /// The store follows.
    Feed {
        handle: usize,
    },
    /// A checkpoint's file, or one of the store's, is damaged.
    Damage {
        store: bool,
        choice: u64,
    },
    /// The kernel cannot write back, and tells nobody yet.
    FailWriteBack,
    /// What could not be written back vanishes from the page cache.
    Evict,
    PowerCut {
        choice: u64,
    },
}

fn handle() -> impl Strategy<Value = usize> {
    0..world::HANDLES
}

fn fate() -> impl Strategy<Value = Fate> {
    let through = prop_oneof![Just(0), Just(usize::MAX), 1..600_usize];
    prop_oneof![
        12 => Just(Fate::Lives),
        3 => (1..12_usize).prop_map(Fate::Dies),
        2 => through.clone().prop_map(|n| Fate::Meets(Fault::WriteAndDie(n))),
        1 => through.prop_map(|n| Fate::Meets(Fault::Write(n))),
        2 => Just(Fate::Meets(Fault::Sync)),
        1 => Just(Fate::Meets(Fault::SyncAndDie)),
    ]
}

fn beside() -> impl Strategy<Value = Beside> {
    let at = prop_oneof![
        4 => Just("journal.sync.before"),
        1 => Just("journal.sync.after"),
    ];
    (at, handle(), fate(), prop::bool::weighted(0.3)).prop_map(|(at, handle, fate, reads)| Beside {
        at,
        handle,
        fate,
        reads,
    })
}

fn operation() -> impl Strategy<Value = Operation> {
    let counts = prop::collection::vec(1..=16_u8, 1..3);
    prop_oneof![
        24 => (handle(), counts, fate(), prop::option::weighted(0.3, beside())).prop_map(
            |(handle, counts, fate, beside)| Operation::Append { handle, counts, fate, beside }
        ),
        6 => (handle(), fate()).prop_map(|(handle, fate)| Operation::Read { handle, fate }),
        3 => (handle(), any::<u64>()).prop_map(|(handle, at)| Operation::From { handle, at }),
        3 => Just(Operation::Follow),
        4 => (handle(), any::<bool>()).prop_map(|(handle, from_checkpoint)| Operation::Restart {
            handle,
            from_checkpoint
        }),
        2 => handle().prop_map(|handle| Operation::Checkpoint { handle }),
        1 => handle().prop_map(|handle| Operation::Feed { handle }),
        2 => (any::<bool>(), any::<u64>())
            .prop_map(|(store, choice)| Operation::Damage { store, choice }),
        2 => Just(Operation::FailWriteBack),
        2 => Just(Operation::Evict),
        3 => any::<u64>().prop_map(|choice| Operation::PowerCut { choice }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        failure_persistence: None,
        max_shrink_iters: 20_000,
        max_shrink_time: 30_000,
        ..ProptestConfig::default()
    })]

    #[test]
    fn nothing_promised_is_lost_and_nothing_is_invented(
        segment_events in prop_oneof![Just(3), Just(9), Just(40), Just(10_000)],
        operations in prop::collection::vec(operation(), 1..40),
    ) {
        let world = World::new(segment_events);
        for operation in operations {
            World::act(&world, operation);
            world.borrow_mut().check();
        }
        World::goes_on(&world);
    }
}
