//! What can be provoked only with a VMM that misbehaves on purpose.

use std::time::{Duration, Instant};

use cocoon::host::vmm::{
    ApiError, Backend as _, CALL_TIMEOUT, DIAL_TIMEOUT, Dial, LaunchFailure, VmmEvent, VmmState,
    power_off, probe,
};

use crate::vm::{Host, LONG, events_until};

const SHORT: Duration = Duration::from_millis(100);

#[test]
fn a_vmm_that_never_greets_is_not_ready_and_not_dead() {
    let host = Host::fake();
    let mut vm = host.vm("cocoon.fake.hang");
    vm.launch();
    let failure = vm.wait_ready(SHORT).unwrap_err();
    assert!(matches!(failure, LaunchFailure::NotReady { .. }), "{failure}");
    let error = vm.qemu.status(vm.paths(), SHORT).unwrap_err();
    assert!(matches!(error, ApiError::Inconclusive { .. }), "{error}");
    assert_eq!(probe(&vm.paths().api_socket, DIAL_TIMEOUT), Dial::Alive);
}

#[test]
fn a_crash_at_start_shows_the_log() {
    let host = Host::fake();
    let mut vm = host.vm("cocoon.fake.crash-at-start");
    vm.launch();
    let failure = vm.wait_ready(CALL_TIMEOUT).unwrap_err().to_string();
    assert!(failure.contains("crashing at start, as the script says"), "{failure}");
}

#[test]
fn a_refused_command_is_told_in_the_vmms_words() {
    let host = Host::fake();
    let mut vm = host.vm("cocoon.fake.refuse=cont");
    vm.launch_ready();
    let error = vm.qemu.boot(vm.paths(), CALL_TIMEOUT).unwrap_err();
    assert_eq!(error.to_string(), "the VMM refused cont: cont is refused by the script");
    assert_eq!(vm.status(), VmmState::Prelaunch);
}

#[test]
fn an_answer_that_never_comes_is_inconclusive() {
    let host = Host::fake();
    let mut vm = host.vm("cocoon.fake.mute=cont");
    vm.launch_ready();
    let error = vm.qemu.boot(vm.paths(), SHORT).unwrap_err();
    assert!(matches!(error, ApiError::Inconclusive { .. }), "{error}");
    assert_eq!(vm.status(), VmmState::Running);
}

#[test]
fn a_death_amid_a_call_is_inconclusive_and_then_dead() {
    let host = Host::fake();
    let mut vm = host.vm("cocoon.fake.die=cont");
    vm.launch_ready();
    let error = vm.qemu.boot(vm.paths(), CALL_TIMEOUT).unwrap_err();
    assert!(matches!(error, ApiError::Inconclusive { .. }), "{error}");
    vm.wait_exit();
    assert!(vm.qemu.status(vm.paths(), CALL_TIMEOUT).unwrap_err().is_dead());
}

#[test]
fn a_guest_that_boots_slowly_comes_up_later() {
    let host = Host::fake();
    let mut vm = host.vm("cocoon.fake.boot=0.05");
    vm.launch_ready();
    let mut events = vm.watch();
    vm.boot();
    vm.wait_up();
    assert!(events.next(Instant::now() + CALL_TIMEOUT).unwrap().is_some());
}

#[test]
fn a_vm_that_boots_from_disk_is_scripted_beside_the_binary() {
    let host = Host::fake();
    let mut vm = host.vm("");
    let link = vm.directory().join("qemu");
    std::os::unix::fs::symlink(vm.qemu.binary().unwrap(), &link).unwrap();
    std::fs::write(vm.directory().join("qemu.script"), "cocoon.fake.crash-at-start\n").unwrap();
    vm.qemu = cocoon::host::qemu::Qemu::new(link);
    vm.launch();
    let failure = vm.wait_ready(CALL_TIMEOUT).unwrap_err().to_string();
    assert!(failure.contains("crashing at start"), "{failure}");
}

#[test]
fn a_guest_that_lost_the_press_is_asked_again() {
    let host = Host::fake();
    let mut vm = host.up("cocoon.fake.lose-presses=1");
    let mut events = vm.watch();
    let backend = vm.qemu.clone();
    let paths = vm.paths().clone();
    let gone = power_off(&backend, &paths, &mut |until| vm.exits_by(until), Instant::now() + LONG);
    assert!(gone.unwrap());
    let seen = events_until(&mut *events, |event| *event == VmmEvent::HungUp);
    let presses = seen.iter().filter(|event| **event == VmmEvent::PowerButton).count();
    assert!(presses >= 2, "{seen:?}");
}

#[test]
fn a_guest_that_ignores_the_button_stays_after_its_time() {
    let host = Host::fake();
    let mut vm = host.up("cocoon.ignore-power-button");
    let backend = vm.qemu.clone();
    let paths = vm.paths().clone();
    let gone = power_off(&backend, &paths, &mut |until| vm.exits_by(until), Instant::now() + SHORT);
    assert!(!gone.unwrap());
    assert_eq!(vm.status(), VmmState::Running);
}
