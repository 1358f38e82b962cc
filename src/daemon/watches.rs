//! The processes that are watched: VMMs of running VMs, and commands that work on VMs.
//!
//! A watch is of exactly one process, told by pid and start time and held by its pidfd, so a number that changed hands
//! cannot be mistaken. With a VMM goes the generation that it was seen running in: its exit is journalled for that
//! generation or not at all.

use std::collections::{BTreeMap, HashMap};

use cocoon_model::id::VmId;

use super::poller::{FIRST_PROCESS, Poller, Token};
use crate::host::process::{ProcessError, ProcessHandle, ProcessIdentity};

/// What a process is to a VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    /// It runs the guest.
    Vmm,
    /// It works on the VM, holding its lock.
    Owner,
}

/// A process that has exited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Exit {
    pub(super) id: VmId,
    pub(super) role: Role,
    pub(super) generation: u64,
}

#[derive(Debug)]
struct Watch {
    exit: Exit,
    handle: ProcessHandle,
}

/// All watches.
#[derive(Debug)]
pub(super) struct Watches {
    by_token: HashMap<Token, Watch>,
    tokens: BTreeMap<(VmId, Role), Token>,
    next: Token,
}

impl Watches {
    pub(super) fn new() -> Self {
        Self { by_token: HashMap::new(), tokens: BTreeMap::new(), next: FIRST_PROCESS }
    }

    /// Watches a process in its role, and no other one in it. `Ok(false)` if it has exited already: then nothing will
    /// tell of it, and the caller must act.
    pub(super) fn watch(
        &mut self,
        poller: &Poller,
        exit: Exit,
        identity: &ProcessIdentity,
    ) -> Result<bool, ProcessError> {
        let key = (exit.id, exit.role);
        if let Some(watch) = self.tokens.get(&key).and_then(|token| self.by_token.get_mut(token))
            && watch.handle.identity() == identity
        {
            watch.exit = exit;
            return Ok(true);
        }
        self.unwatch(poller, exit.id, exit.role);
        let Some(handle) = ProcessHandle::open(identity)? else { return Ok(false) };
        let token = self.next;
        poller.add(&handle, token).map_err(|errno| ProcessError::Pidfd {
            what: "watch",
            pid: identity.pid,
            source: errno.into(),
        })?;
        self.next += 1;
        self.by_token.insert(token, Watch { exit, handle });
        self.tokens.insert(key, token);
        Ok(true)
    }

    /// Watches nobody in this role.
    pub(super) fn unwatch(&mut self, poller: &Poller, id: VmId, role: Role) {
        let token = self.tokens.remove(&(id, role));
        if let Some(watch) = token.and_then(|token| self.by_token.remove(&token)) {
            poller.remove(&watch.handle);
        }
    }

    /// Whose exit a token tells of; the watch ends with it.
    pub(super) fn exited(&mut self, poller: &Poller, token: Token) -> Option<Exit> {
        let watch = self.by_token.remove(&token)?;
        self.tokens.remove(&(watch.exit.id, watch.exit.role));
        poller.remove(&watch.handle);
        Some(watch.exit)
    }

    /// The process that is watched in a role.
    pub(super) fn pid(&self, id: VmId, role: Role) -> Option<u32> {
        let watch = self.tokens.get(&(id, role)).and_then(|token| self.by_token.get(token))?;
        Some(watch.handle.identity().pid)
    }

    /// Ends the watches of VMs of which nothing is known any more.
    pub(super) fn retain(&mut self, poller: &Poller, is_known: impl Fn(VmId) -> bool) {
        let gone: Vec<_> = self.tokens.keys().filter(|(id, _)| !is_known(*id)).copied().collect();
        for (id, role) in gone {
            self.unwatch(poller, id, role);
        }
    }

    /// How many VMMs are watched.
    pub(super) fn vmms(&self) -> usize {
        self.tokens.keys().filter(|(_, role)| *role == Role::Vmm).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::process;
    use std::process::{Child, Command};
    use std::time::{Duration, Instant};

    fn sleeper() -> (Child, ProcessIdentity) {
        let child = Command::new("sleep").arg("600").spawn().unwrap();
        let identity = process::identify(child.id()).unwrap().unwrap();
        (child, identity)
    }

    fn end(child: &mut Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn an_exit_is_told_once_with_the_newest_generation() {
        let (mut child, identity) = sleeper();
        let (id, mut poller, mut watches) =
            (VmId::from_slot(1), Poller::new().unwrap(), Watches::new());
        for generation in [3, 4] {
            let exit = Exit { id, role: Role::Vmm, generation };
            assert!(watches.watch(&poller, exit, &identity).unwrap());
        }
        assert_eq!((watches.vmms(), watches.pid(id, Role::Vmm)), (1, Some(child.id())));
        end(&mut child);
        let woken = poller.wait(Instant::now() + Duration::from_secs(60)).unwrap();
        assert_eq!(woken.len(), 1);
        let exit = watches.exited(&poller, woken[0]);
        assert_eq!(exit, Some(Exit { id, role: Role::Vmm, generation: 4 }));
        assert_eq!(watches.exited(&poller, woken[0]), None);
        assert!(poller.wait(Instant::now()).unwrap().is_empty());
    }

    #[test]
    fn a_dead_process_is_not_watched_and_another_one_replaces_it() {
        let (mut first, dead) = sleeper();
        end(&mut first);
        let (mut second, alive) = sleeper();
        let (id, mut poller, mut watches) =
            (VmId::from_slot(1), Poller::new().unwrap(), Watches::new());
        let exit = Exit { id, role: Role::Owner, generation: 0 };
        assert!(!watches.watch(&poller, exit, &dead).unwrap());
        assert!(watches.watch(&poller, exit, &alive).unwrap());
        watches.retain(&poller, |_| false);
        end(&mut second);
        assert!(poller.wait(Instant::now()).unwrap().is_empty());
    }
}
