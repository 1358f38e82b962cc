//! Historical faults that can be put back on purpose, to see that the checker finds them.
//!
//! Each stands at the very line where it once lived, behind the feature `mutants`; without that feature `on` is a
//! constant `false`, and nothing of them is compiled into the product.

/// One fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mutant {
    /// `force-waits`
    ForceWaits,
    /// `reclaim-committed`
    ReclaimCommitted,
    /// `reclaim-without-lock`
    ReclaimWithoutLock,
    /// `age-gate`
    AgeGate,
    /// `record-before-proof`
    RecordBeforeProof,
    /// `inconclusive-is-dead`
    InconclusiveIsDead,
    /// `deleting-rolled-back`
    DeletingRolledBack,
    /// `name-before-record`
    NameBeforeRecord,
    /// `unlock-before-commit`
    UnlockBeforeCommit,
    /// `lock-inherited-by-vmm`
    LockInheritedByVmm,
    /// `late-exit`
    LateExit,
    /// `ack-before-sync`
    AckBeforeSync,
    /// `stale-view`
    StaleView,
    /// `answer-on-unsynced`
    AnswerOnUnsynced,
    /// `pid-reused`
    PidReused,
    /// `helper-without-lock`
    HelperWithoutLock,
    /// `torn-decision`
    TornDecision,
    /// `stray-unnamed`
    StrayUnnamed,
    /// `run-in-flight`
    RunInFlight,
    /// `stop-hides-placeholder`
    StopHidesPlaceholder,
}

/// What is known of a mutant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct About {
    /// The mutant.
    pub mutant: Mutant,
    /// Its name on the command line.
    pub name: &'static str,
    /// The fault, in one sentence.
    pub sentence: &'static str,
    /// Where it was met.
    pub source: &'static str,
    /// The invariant that has to break.
    pub breaks: &'static str,
    /// The scope in which it is looked for.
    pub scope: &'static str,
}

/// All of them.
pub const MUTANTS: &[About] = &[
    About {
        mutant: Mutant::ForceWaits,
        name: "force-waits",
        sentence: "`rm --force` queues behind a creation in flight and then removes the fresh VM.",
        source: "sandbox#60: an embedder's sweep queued `rm --force` behind live clones",
        breaks: "V10",
        scope: "create-remove",
    },
    About {
        mutant: Mutant::ReclaimCommitted,
        name: "reclaim-committed",
        sentence: "A reclaim does not look again, under the lock, whether the record is still a placeholder.",
        source: "vk-cocoon#54: the window between the look and the lock",
        breaks: "V10",
        scope: "create-sweep",
    },
    About {
        mutant: Mutant::ReclaimWithoutLock,
        name: "reclaim-without-lock",
        sentence: "A reclaim does not take the operation lock.",
        source: "vk-cocoon#54: an embedder's own clean-up of placeholders",
        breaks: "V1",
        scope: "create-sweep",
    },
    About {
        mutant: Mutant::AgeGate,
        name: "age-gate",
        sentence: "A placeholder is reclaimed only when it is a day old.",
        source: "vk-cocoon#54: a placeholder that outlived its creator",
        breaks: "V2",
        scope: "create-sweep",
    },
    About {
        mutant: Mutant::RecordBeforeProof,
        name: "record-before-proof",
        sentence: "Files go although the VMM could not be proven dead.",
        source: "#36: `rm --force` dropped the record before the kill was verified",
        breaks: "V5",
        scope: "force-remove",
    },
    About {
        mutant: Mutant::InconclusiveIsDead,
        name: "inconclusive-is-dead",
        sentence: "A VMM that cannot be looked at is taken for dead.",
        source: "#49 to #52: pid file and socket gone while the VMM lived",
        breaks: "V5",
        scope: "start-stop-remove",
    },
    About {
        mutant: Mutant::DeletingRolledBack,
        name: "deleting-rolled-back",
        sentence: "A removal that has begun to remove files is taken back by whoever takes it over.",
        source: "#233, #237: another operation's tombstone was adopted",
        breaks: "V3",
        scope: "create-remove",
    },
    About {
        mutant: Mutant::NameBeforeRecord,
        name: "name-before-record",
        sentence: "The name is free as soon as the removal begins.",
        source: "a name index that was not kept in the transaction of the record",
        breaks: "V4",
        scope: "create-remove",
    },
    About {
        mutant: Mutant::UnlockBeforeCommit,
        name: "unlock-before-commit",
        sentence: "A creator lets go of the operation lock before its last commit.",
        source: "#103: state was written after the lock was released",
        breaks: "V1",
        scope: "create-sweep",
    },
    About {
        mutant: Mutant::LockInheritedByVmm,
        name: "lock-inherited-by-vmm",
        sentence: "The VMM inherits the operation lock and keeps it for as long as it lives.",
        source: "a descriptor without close-on-exec in a child that outlives its parent",
        breaks: "V9",
        scope: "run-sweep",
    },
    About {
        mutant: Mutant::LateExit,
        name: "late-exit",
        sentence: "An exit counts whatever generation it was seen in.",
        source: "#152, #154: unexpected exits and stale watchers",
        breaks: "V5",
        scope: "start-stop-remove",
    },
    About {
        mutant: Mutant::AckBeforeSync,
        name: "ack-before-sync",
        sentence: "A command answers when its frame is written, not when it is durable.",
        source: "a placeholder write without a sync, lost at power failure",
        breaks: "V11",
        scope: "create-create",
    },
    About {
        mutant: Mutant::StaleView,
        name: "stale-view",
        sentence: "A decision is taken on a view that was not brought up to date under the journal's lock.",
        source: "a read outside of the write transaction",
        breaks: "V4",
        scope: "create-create",
    },
    About {
        mutant: Mutant::AnswerOnUnsynced,
        name: "answer-on-unsynced",
        sentence: "A refusal is built on another writer's frame that is not durable yet.",
        source: "readers of a log that see what its writer has not synced",
        breaks: "V11",
        scope: "create-create",
    },
    About {
        mutant: Mutant::PidReused,
        name: "pid-reused",
        sentence: "After a reboot the process that has the recorded pid is taken for the VMM.",
        source: "pid files that outlive a boot",
        breaks: "V12",
        scope: "force-remove",
    },
    About {
        mutant: Mutant::HelperWithoutLock,
        name: "helper-without-lock",
        sentence: "A helper does not inherit the operation lock and still writes when its VM was collected.",
        source: "#166: helpers of a command that died",
        breaks: "V7",
        scope: "create-sweep",
    },
    About {
        mutant: Mutant::TornDecision,
        name: "torn-decision",
        sentence: "The events of one decision are appended one by one.",
        source: "name and record in two writes",
        breaks: "V9",
        scope: "create-remove",
    },
    About {
        mutant: Mutant::StrayUnnamed,
        name: "stray-unnamed",
        sentence: "A collector removes a directory that its journal has never named.",
        source: "two installations that share a run directory",
        breaks: "V12",
        scope: "run-sweep",
    },
    About {
        mutant: Mutant::RunInFlight,
        name: "run-in-flight",
        sentence: "`rm --force` of a VM that is created, and whose `run` is still in flight, queues behind it and removes the fresh VM.",
        source: "sandbox#60, one state later",
        breaks: "V10",
        scope: "run-remove",
    },
    About {
        mutant: Mutant::StopHidesPlaceholder,
        name: "stop-hides-placeholder",
        sentence: "A stop turns an ownerless placeholder into a stopped VM, which nobody reclaims any more.",
        source: "a stop that does not look whether the record is a placeholder",
        breaks: "V9",
        scope: "create-stop",
    },
];

/// The mutant of a name.
#[must_use]
pub fn by_name(name: &str) -> Option<&'static About> {
    MUTANTS.iter().find(|about| about.name == name)
}

#[cfg(feature = "mutants")]
thread_local! {
    static ACTIVE: std::cell::Cell<Option<Mutant>> = const { std::cell::Cell::new(None) };
}

/// Whether this build has mutants at all.
pub const BUILT: bool = cfg!(feature = "mutants");

/// Puts one fault back for this thread, or none.
#[cfg(feature = "mutants")]
pub fn switch(mutant: Option<Mutant>) {
    ACTIVE.set(mutant);
}

/// Whether a fault was put back.
#[cfg(feature = "mutants")]
pub(crate) fn on(mutant: Mutant) -> bool {
    ACTIVE.get() == Some(mutant)
}

/// No fault is ever put back in this build.
#[cfg(not(feature = "mutants"))]
pub(crate) const fn on(_: Mutant) -> bool {
    false
}
