//! What holds for every VMM that the QEMU backend drives.

use std::io::Write as _;
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use cocoon::host::qemu::qmp::Qmp;
use cocoon::host::serial::{self, Seen};
use cocoon::host::vmm::{
    ApiError, Backend as _, Boot, CALL_TIMEOUT, DIAL_TIMEOUT, Dial, DiskFormat, DiskRole,
    ExitReason, LaunchFailure, Leftovers, VmmEvent, VmmState, dial, probe,
};
use rustix::process::Signal;
use serde_json::json;

use crate::vm::{Host, LONG, Vm, events_until};

fn sockets_are_gone(vm: &Vm) {
    for socket in vm.paths().sockets() {
        assert!(!socket.exists(), "{} is left", socket.display());
    }
}

pub(crate) fn the_guest_does_not_run_before_boot(host: &Host) {
    let mut vm = host.vm("");
    vm.launch_ready();
    let mut events = vm.watch();
    assert_eq!(vm.status(), VmmState::Prelaunch);
    assert_eq!(serial::tail(&vm.paths().console_log, 100).unwrap(), "");
    vm.boot();
    assert_eq!(events_until(&mut *events, |_| true), [VmmEvent::Resumed]);
    vm.wait_up();
    assert_eq!(vm.status(), VmmState::Running);
}

pub(crate) fn the_power_button_ends_the_vm(host: &Host) {
    let mut vm = host.up("");
    let mut events = vm.watch();
    vm.qemu.request_power_off(vm.paths(), CALL_TIMEOUT).unwrap();
    vm.wait_exit();
    let seen = events_until(&mut *events, |event| *event == VmmEvent::HungUp);
    let off = VmmEvent::ShuttingDown(ExitReason::GuestShutdown);
    assert_eq!(seen, [VmmEvent::PowerButton, off, VmmEvent::HungUp]);
    assert_eq!(vm.qemu.exit_reason(vm.paths()), ExitReason::GuestShutdown);
    sockets_are_gone(&vm);
}

pub(crate) fn an_ignored_power_button_leaves_the_vm_running(host: &Host) {
    let mut vm = host.up("cocoon.ignore-power-button");
    let mut events = vm.watch();
    vm.qemu.request_power_off(vm.paths(), CALL_TIMEOUT).unwrap();
    assert_eq!(events_until(&mut *events, |_| true), [VmmEvent::PowerButton]);
    // Ten times what a guest needs that heeds it.
    let until = Instant::now() + Duration::from_secs(1);
    while let Some(event) = events.next(until).unwrap() {
        assert!(matches!(event, VmmEvent::Other(_)), "{event:?}");
    }
    assert_eq!(vm.status(), VmmState::Running);
    vm.qemu.quit(vm.paths(), CALL_TIMEOUT).unwrap();
    vm.wait_exit();
}

pub(crate) fn quit_ends_the_vm(host: &Host) {
    let mut vm = host.vm("");
    vm.launch_ready();
    vm.boot();
    vm.qemu.quit(vm.paths(), CALL_TIMEOUT).unwrap();
    vm.wait_exit();
    assert_eq!(vm.qemu.exit_reason(vm.paths()), ExitReason::QuitRequested);
    sockets_are_gone(&vm);
    let again = vm.qemu.quit(vm.paths(), CALL_TIMEOUT).unwrap_err();
    assert!(again.is_dead(), "{again}");
}

pub(crate) fn a_killed_vmm_leaves_sockets_that_prove_it_dead(host: &Host) {
    let mut vm = host.vm("");
    vm.launch_ready();
    let mut events = vm.watch();
    assert_eq!(probe(&vm.paths().api_socket, DIAL_TIMEOUT), Dial::Alive);
    vm.signal(Signal::KILL);
    vm.wait_exit();
    assert_eq!(events_until(&mut *events, |_| true), [VmmEvent::HungUp]);
    assert!(vm.paths().api_socket.exists());
    assert_eq!(probe(&vm.paths().api_socket, DIAL_TIMEOUT), Dial::Dead);
    let status = vm.qemu.status(vm.paths(), CALL_TIMEOUT).unwrap_err();
    assert!(status.is_dead(), "{status}");
    assert_eq!(vm.qemu.exit_reason(vm.paths()), ExitReason::Unknown);
    vm.launch_ready();
}

pub(crate) fn a_terminated_vmm_names_the_sender(host: &Host) {
    let mut vm = host.vm("");
    vm.launch_ready();
    vm.boot();
    vm.signal(Signal::TERM);
    vm.wait_exit();
    let expected = ExitReason::Signal { number: 15, sender: Some(std::process::id()) };
    assert_eq!(vm.qemu.exit_reason(vm.paths()), expected, "{}", vm.logs());
    sockets_are_gone(&vm);
}

pub(crate) fn pause_and_resume_are_idempotent(host: &Host) {
    let mut vm = host.vm("");
    vm.launch_ready();
    vm.boot();
    for _ in 0..2 {
        vm.qemu.pause(vm.paths(), CALL_TIMEOUT).unwrap();
        assert_eq!(vm.status(), VmmState::Paused);
    }
    for _ in 0..2 {
        vm.qemu.resume(vm.paths(), CALL_TIMEOUT).unwrap();
        assert_eq!(vm.status(), VmmState::Running);
    }
}

pub(crate) fn a_guest_that_powers_off_by_itself_is_told_so(host: &Host) {
    let mut vm = host.up("cocoon.exit-after=0.05");
    vm.wait_exit();
    assert_eq!(vm.qemu.exit_reason(vm.paths()), ExitReason::GuestShutdown);
}

pub(crate) fn a_panic_ends_the_vm(host: &Host) {
    let mut vm = host.vm("cocoon.panic");
    vm.launch_ready();
    let mut events = vm.watch();
    vm.boot();
    vm.wait_exit();
    let seen = events_until(&mut *events, |event| *event == VmmEvent::HungUp);
    let off = VmmEvent::ShuttingDown(ExitReason::GuestPanic);
    assert_eq!(seen, [VmmEvent::Resumed, VmmEvent::GuestPanicked, off, VmmEvent::HungUp]);
    assert_eq!(vm.qemu.exit_reason(vm.paths()), ExitReason::GuestPanic, "{}", vm.logs());
    assert!(vm.logs().contains("Kernel panic"), "{}", vm.logs());
}

pub(crate) fn a_vmm_that_cannot_start_is_reported_with_its_log(host: &Host) {
    let mut vm = host.vm("");
    if let Boot::Direct { kernel, .. } = &mut vm.spec.boot {
        *kernel = "/nowhere/vmlinuz".into();
    }
    vm.launch();
    let failure = vm.wait_ready(LONG).unwrap_err();
    assert!(matches!(failure, LaunchFailure::Exited { .. }), "{failure}");
    let text = failure.to_string();
    assert!(text.contains("could not open kernel file '/nowhere/vmlinuz'"), "{text}");
}

pub(crate) fn observers_do_not_disturb_the_api(host: &Host) {
    let mut vm = host.vm("");
    vm.launch_ready();
    let mut observer = vm.watch();
    assert_eq!(vm.status(), VmmState::Prelaunch);
    vm.boot();
    vm.qemu.pause(vm.paths(), CALL_TIMEOUT).unwrap();
    let seen = events_until(&mut *observer, |event| *event == VmmEvent::Paused);
    assert_eq!(seen, [VmmEvent::Resumed, VmmEvent::Paused]);
}

pub(crate) fn a_busy_api_is_inconclusive_not_dead(host: &Host) {
    let mut vm = host.vm("");
    vm.launch_ready();
    let held = dial(&vm.paths().api_socket, DIAL_TIMEOUT).unwrap();
    let held = Qmp::handshake(held, Instant::now() + LONG).unwrap();
    let error = vm.qemu.status(vm.paths(), Duration::from_millis(200)).unwrap_err();
    assert!(matches!(error, ApiError::Inconclusive { .. }), "{error}");
    drop(held);
    assert_eq!(vm.qemu.status(vm.paths(), LONG).unwrap(), VmmState::Prelaunch);
}

pub(crate) fn a_disk_has_one_user(host: &Host) {
    let mut first = host.vm("");
    let disk = first.directory().join("a, b.raw");
    std::fs::File::create(&disk).unwrap().set_len(16 << 20).unwrap();
    first.add_disk(&disk, DiskFormat::Raw);
    first.launch_ready();
    let mut second = host.vm("");
    second.add_disk(&disk, DiskFormat::Raw);
    second.launch();
    let failure = second.wait_ready(LONG).unwrap_err().to_string();
    assert!(failure.contains("lock") && failure.contains("a, b.raw"), "{failure}");
    first.signal(Signal::KILL);
    first.wait_exit();
    second.launch_ready();
}

/// A boot sector that writes a word to the first serial port and halts.
fn boot_sector() -> Vec<u8> {
    let code =
        b"\x31\xc0\x8e\xd8\xbe\x15\x7c\xba\xf8\x03\xac\x84\xc0\x74\x03\xee\xeb\xf8\xf4\xeb\xfd";
    let mut sector = [code.as_slice(), b"GUEST-UP from disk\r\n\0"].concat();
    sector.resize(510, 0);
    sector.extend(b"\x55\xaa");
    sector
}

pub(crate) fn a_vm_boots_from_its_root_disk(host: &Host) {
    let mut vm = host.vm("");
    let (data, root) = (vm.directory().join("data.raw"), vm.directory().join("root.raw"));
    for disk in [&data, &root] {
        std::fs::File::create(disk).unwrap().set_len(1 << 20).unwrap();
        vm.add_disk(disk, DiskFormat::Raw);
    }
    std::fs::OpenOptions::new().write(true).open(&root).unwrap().write_all(&boot_sector()).unwrap();
    vm.spec.disks[1].role = DiskRole::Root;
    vm.spec.boot = Boot::Disk;
    vm.launch_ready();
    vm.boot();
    vm.wait_up();
}

pub(crate) fn leftovers_of_a_dead_operation_are_cancelled(host: &Host) {
    let mut vm = host.vm("");
    let disk = vm.directory().join("disk.raw");
    let file = std::fs::File::create(&disk).unwrap();
    file.set_len(64 << 20).unwrap();
    (&file).write_all(&[1; 1 << 20]).unwrap();
    vm.add_disk(&disk, DiskFormat::Raw);
    vm.launch_ready();
    vm.boot();
    assert_eq!(vm.qemu.cancel_leftovers(vm.paths(), LONG).unwrap(), Leftovers::default());

    // What an operation leaves that dies while it copies a disk and writes a snapshot. Nobody reads the other end.
    let sink = vm.directory().join("sink");
    let _listener = UnixListener::bind(&sink).unwrap();
    let deadline = Instant::now() + LONG;
    let mut qmp = Qmp::connect(&vm.paths().api_socket, deadline).unwrap();
    let target = vm.directory().join("backup.raw");
    let backup = json!({ "device": "disk0", "job-id": "disk0", "target": target, "sync": "full", "format": "raw", "speed": 1 });
    qmp.execute("drive-backup", Some(backup), deadline).unwrap();
    let uri = format!("unix:{}", sink.display());
    qmp.execute("migrate", Some(json!({ "uri": uri })), deadline).unwrap();
    drop(qmp);

    let found = vm.qemu.cancel_leftovers(vm.paths(), LONG).unwrap();
    assert_eq!(found, Leftovers { migration: true, block_jobs: vec!["disk0".to_owned()] });
    let left = loop {
        let left = vm.qemu.cancel_leftovers(vm.paths(), LONG).unwrap();
        if left.is_empty() || Instant::now() > deadline {
            break left;
        }
    };
    assert!(left.is_empty(), "{left:?}");
}

pub(crate) fn the_console_is_served_and_logged(host: &Host) {
    let mut vm = host.up("");
    vm.ask("echo con''sole", "sole\r\n");
    assert_eq!(vm.wait_console("sole\r\n"), Seen::Found, "{}", vm.logs());
}
