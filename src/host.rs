//! Everything that touches the host: processes, locks, directories, hypervisors.
//!
//! The functions here are plain and blocking: each does one thing to the world and returns a
//! `Result`. What is to be done, and what an outcome means, is decided elsewhere; nothing here
//! keeps state between calls.
//!
//! | module | what it answers or does |
//! |---|---|
//! | [`boot`] | which boot, which machine, which process namespace, what time |
//! | [`directory`] | directories that say whose they are, and their removal |
//! | [`disk`] | what a disk image is; overlays and copies of it |
//! | [`lock`] | who may work on a VM; does its VMM live |
//! | [`process`] | who is that process, does it live, end it and prove it |
//! | [`qemu`] | the hypervisor QEMU, over QMP |
//! | [`serial`] | the guest's console: its log, its cap, a word that it writes |
//! | [`spawn`] | start a VMM that outlives us, run a helper that does not |
//! | [`vmm`] | what all hypervisors have in common: launch, readiness, states, exits |

pub mod boot;
pub mod directory;
pub mod disk;
pub mod lock;
pub mod process;
pub mod qemu;
pub mod serial;
pub mod spawn;
pub mod vmm;

#[cfg(test)]
mod test_support;
