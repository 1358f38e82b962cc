//! What is concluded about a VMM from what was looked at, and what to do about a VM that nobody works on.
//!
//! ```text
//!   recorded process ── lives, or cannot be told ──────────────────────────────► that
//!        │ dead, or none
//!        ▼
//!   VMM lock ── free ──────────────────────────────────────────────────────────► dead
//!        │ held, or its file is gone
//!        ▼
//!   scan for a process that runs this VM ── found, or cannot be told ──────────► that
//!        │ none
//!        └── lock held: cannot be told; file gone: dead
//! ```

use crate::command::{Command, VmmSeen};
use crate::record::{VmCore, VmState};

/// A VMM lock is held, and no process is found that would be the VMM: it is being torn down, or begins.
pub const HOLDER_NOT_FOUND: &str = "its VMM lock is held by a process that cannot be found";

/// What was seen of the lock of a VMM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VmmLock {
    /// Nobody holds it.
    Free,
    /// Somebody holds it.
    Held,
    /// There is no such file.
    NoFile,
}

/// What follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Conclusion {
    /// This was seen.
    Seen(VmmSeen),
    /// All processes have to be looked at; if none runs this VM, this was seen.
    Scan {
        /// What was seen if the scan finds nothing.
        otherwise: VmmSeen,
    },
}

/// Concludes from the recorded process (`Dead` if none is recorded) and, where that is not enough, from the VMM's lock.
/// `foreign`: the process lived in a pid namespace that cannot be seen from here, so that only the lock can tell.
///
/// # Errors
/// Those of the look at the lock.
pub fn conclude<E>(
    core: &VmCore,
    recorded: VmmSeen,
    foreign: bool,
    lock: impl FnOnce() -> Result<VmmLock, E>,
) -> Result<Conclusion, E> {
    // A process is told from all others by what is recorded of it. Looked at first, it also guards against a lock file
    // that somebody put in the place of the one that the VMM holds.
    if recorded != VmmSeen::Dead && !foreign {
        return Ok(Conclusion::Seen(recorded));
    }
    Ok(match lock()? {
        VmmLock::Free => Conclusion::Seen(VmmSeen::Dead),
        // Where only the lock can tell, it has to be there, and free.
        VmmLock::Held | VmmLock::NoFile if foreign => Conclusion::Seen(recorded),
        VmmLock::NoFile if core.launch.is_none() => Conclusion::Seen(VmmSeen::Dead),
        // Its lock file was removed under it; a process that lives is found by what it runs.
        VmmLock::NoFile => Conclusion::Scan { otherwise: VmmSeen::Dead },
        VmmLock::Held => {
            Conclusion::Scan { otherwise: VmmSeen::Inconclusive(HOLDER_NOT_FOUND.to_owned()) }
        }
    })
}

/// What to do about a VM that no operation owns and whose record and VMM may have drifted apart. `evidence` is what the VMM
/// left word of; it is asked for only if the VMM ended.
pub fn idle_command(
    core: &VmCore,
    seen: &VmmSeen,
    evidence: impl FnOnce() -> Option<String>,
) -> Option<Command> {
    let (id, generation) = (core.id, core.generation);
    let open = core.state == VmState::Running || core.interval_open;
    match seen {
        VmmSeen::Dead if open => {
            Some(Command::ObserveExit { id, generation, evidence: evidence() })
        }
        VmmSeen::Alive(identity) if core.state != VmState::Running => {
            Some(Command::Adopt { id, generation, identity: *identity })
        }
        VmmSeen::Alive(_) | VmmSeen::Dead | VmmSeen::Inconclusive(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Id;
    use crate::record::{Launch, LaunchPhase, ProcessIdentity};

    const PROCESS: ProcessIdentity =
        ProcessIdentity { pid: 7, start_time: 1, boot_id: 1, pid_namespace: 1 };

    fn core(state: VmState, launched: bool) -> VmCore {
        let phase = LaunchPhase::Up;
        let launch = Launch { token: Default::default(), phase, identity: Some(PROCESS) };
        VmCore {
            id: Id::from_slot(1),
            name: "name".to_owned(),
            image: Id::from_slot(2),
            state,
            generation: 3,
            operation: None,
            storage_prepared: true,
            launch: launched.then_some(launch),
            tombstone: None,
            first_booted: launched,
            interval_open: state == VmState::Running,
            failure: None,
        }
    }

    fn concluded(launched: bool, recorded: VmmSeen, foreign: bool, lock: VmmLock) -> Conclusion {
        let core = core(VmState::Running, launched);
        conclude(&core, recorded, foreign, || Ok::<_, ()>(lock)).unwrap()
    }

    fn cannot_tell() -> VmmSeen {
        VmmSeen::Inconclusive("hidden".to_owned())
    }

    #[test]
    fn a_recorded_process_that_lives_or_cannot_be_told_needs_no_lock() {
        for seen in [VmmSeen::Alive(PROCESS), cannot_tell()] {
            let core = core(VmState::Running, true);
            let asked = conclude(&core, seen.clone(), false, || Err("the lock was looked at"));
            assert_eq!(asked, Ok(Conclusion::Seen(seen)));
        }
    }

    #[test]
    fn a_free_lock_is_death_whatever_cannot_be_seen() {
        for (recorded, foreign) in [(VmmSeen::Dead, false), (cannot_tell(), true)] {
            let seen = concluded(true, recorded, foreign, VmmLock::Free);
            assert_eq!(seen, Conclusion::Seen(VmmSeen::Dead));
        }
    }

    #[test]
    fn what_is_held_by_nobody_that_can_be_found_is_not_dead() {
        let Conclusion::Scan { otherwise } = concluded(true, VmmSeen::Dead, false, VmmLock::Held)
        else {
            panic!("nobody looked");
        };
        assert_eq!(otherwise, VmmSeen::Inconclusive(HOLDER_NOT_FOUND.to_owned()));
        for lock in [VmmLock::Held, VmmLock::NoFile] {
            let seen = concluded(true, cannot_tell(), true, lock);
            assert_eq!(seen, Conclusion::Seen(cannot_tell()));
        }
    }

    #[test]
    fn a_lock_file_that_is_gone_proves_nothing_of_a_launch() {
        let launched = concluded(true, VmmSeen::Dead, false, VmmLock::NoFile);
        assert_eq!(launched, Conclusion::Scan { otherwise: VmmSeen::Dead });
        let never = concluded(false, VmmSeen::Dead, false, VmmLock::NoFile);
        assert_eq!(never, Conclusion::Seen(VmmSeen::Dead));
    }

    #[test]
    fn only_what_has_drifted_apart_needs_a_command() {
        let asked = |state, seen| idle_command(&core(state, true), &seen, || Some("word".into()));
        let alive = VmmSeen::Alive(PROCESS);
        assert!(matches!(
            asked(VmState::Running, VmmSeen::Dead),
            Some(Command::ObserveExit { generation: 3, evidence: Some(_), .. })
        ));
        assert!(matches!(
            asked(VmState::Error, alive.clone()),
            Some(Command::Adopt { generation: 3, identity: PROCESS, .. })
        ));
        assert_eq!(asked(VmState::Running, alive), None);
        assert_eq!(asked(VmState::Stopped, VmmSeen::Dead), None);
        assert_eq!(asked(VmState::Running, cannot_tell()), None);
    }
}
