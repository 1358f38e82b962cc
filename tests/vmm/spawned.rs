//! VMMs started as the engine starts them: in a session of their own, with the VMM lock as their proof of life.

use std::time::{Duration, Instant};

use cocoon::host::lock::{Locks, Observed, VmmLock};
use cocoon::host::process::{ProcessHandle, ProcessIdentity, Terminated, scan, terminate};
use cocoon::host::spawn::{VmmProcess, spawn_vmm};
use cocoon::host::vmm::{Backend as _, CALL_TIMEOUT, ExitReason, VmmState, prepare};

use crate::vm::{Host, LONG, Vm};

fn spawn(vm: &Vm, lock: VmmLock) -> VmmProcess {
    prepare(vm.paths()).unwrap();
    let command = vm.qemu.command(&vm.spec).unwrap().into_command(vm.paths());
    spawn_vmm(&command, lock).unwrap()
}

/// Ends the VMM with the test, however that ends.
struct EndWithTest(ProcessIdentity);

impl Drop for EndWithTest {
    fn drop(&mut self) {
        let _ = terminate(&self.0, Duration::ZERO, LONG);
    }
}

fn wait_gone(identity: &ProcessIdentity) {
    if let Some(process) = ProcessHandle::open(identity).unwrap() {
        assert!(process.wait_exit(Some(Instant::now() + LONG)).unwrap());
    }
}

/// A lock that a dead process held is free within a moment of its death.
fn wait_free(locks: &Locks) -> Observed {
    let deadline = Instant::now() + LONG;
    loop {
        let observed = locks.observe_vmm("vm-1").unwrap();
        if !matches!(observed, Observed::Held(_)) || Instant::now() > deadline {
            return observed;
        }
        std::thread::yield_now();
    }
}

pub(crate) fn the_vmm_lock_lives_as_long_as_the_vmm(host: &Host) {
    let vm = host.vm("");
    let locks = Locks::open(vm.directory()).unwrap();
    let mut process = spawn(&vm, locks.vmm_for_launch("vm-1").unwrap());
    let _end = EndWithTest(*process.identity());
    let mut liveness = || process.exit_status().unwrap().is_none();
    let ready = vm.qemu.wait_ready(vm.paths(), &mut liveness, LONG);
    assert!(matches!(ready, Ok(VmmState::Prelaunch)), "{ready:?}");
    assert!(matches!(locks.observe_vmm("vm-1").unwrap(), Observed::Held(_)));

    let ended = terminate(process.identity(), Duration::ZERO, LONG).unwrap();
    assert_eq!(ended, Terminated::ByKill);
    assert!(!matches!(wait_free(&locks), Observed::Held(_)));
}

pub(crate) fn a_spawned_vmm_outlives_its_launcher_and_is_found(host: &Host) {
    let mut vm = host.vm("");
    let locks = Locks::open(vm.directory()).unwrap();
    let process = spawn(&vm, locks.vmm_for_launch("vm-1").unwrap());
    let identity = *process.identity();
    let _end = EndWithTest(identity);
    drop(process);
    vm.qemu.wait_ready(vm.paths(), &mut || true, LONG).unwrap();

    let binary = vm.qemu.binary().unwrap();
    let name = binary.file_name().unwrap().to_str().unwrap();
    assert_eq!(scan(name, &vm.paths().api_socket).unwrap(), [identity]);
    vm.boot();
    vm.wait_up();
    vm.qemu.request_power_off(vm.paths(), CALL_TIMEOUT).unwrap();
    wait_gone(&identity);
    assert_eq!(vm.qemu.exit_reason(vm.paths()), ExitReason::GuestShutdown);
    assert!(!matches!(wait_free(&locks), Observed::Held(_)));
    assert_eq!(scan(name, &vm.paths().api_socket).unwrap(), []);
}
