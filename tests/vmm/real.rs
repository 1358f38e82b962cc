//! What only a real guest can show.

use std::time::Instant;

use cocoon::host::qemu::probe::{
    AcceleratorChoice, GuestImage, HostIdentity, KvmVerdict, PROBE_LIMIT, choose, probe_kvm,
};
use cocoon::host::vmm::{
    Accelerator, Backend as _, CALL_TIMEOUT, DiskFormat, ExitReason, early_exit_report,
};

use crate::vm::Host;

#[test]
fn the_guest_sees_its_disks_and_its_network() {
    let Some(host) = Host::real() else { return };
    let mut vm = host.vm("");
    let disk = vm.directory().join("disk.raw");
    std::fs::File::create(&disk).unwrap().set_len(16 << 20).unwrap();
    vm.add_disk(&disk, DiskFormat::Raw);
    vm.launch_ready();
    vm.boot();
    vm.wait_up();
    vm.ask(
        "while ! ip -4 addr show eth0 | grep -q inet; do usleep 50000; done; \
         echo disk $(cat /sys/block/vda/serial) $(cat /sys/block/vda/size) at $(cat /sys/class/net/eth0/address)",
        "disk disk-0 32768 at 52:54:00:00:00:01",
    );
}

#[test]
fn a_guest_that_reboots_ends_its_vm() {
    let Some(host) = Host::real() else { return };
    let mut vm = host.up("");
    vm.ask("reboot -f; echo never", "reboot -f");
    vm.wait_exit();
    assert_eq!(vm.qemu.exit_reason(vm.paths()), ExitReason::GuestReset, "{}", vm.logs());
}

#[test]
fn a_guest_with_too_little_memory_is_reported_with_a_hint() {
    let Some(host) = Host::real() else { return };
    let mut vm = host.vm("");
    vm.spec.memory_bytes = 32 << 20;
    let started = Instant::now();
    vm.launch_ready();
    vm.boot();
    vm.wait_exit();
    let reason = vm.qemu.exit_reason(vm.paths());
    let age = started.elapsed().min(cocoon::host::vmm::EARLY_EXIT);
    let report = early_exit_report(vm.paths(), &reason, vm.spec.memory_bytes, age).unwrap();
    assert!(report.contains("32 MiB of memory"), "{report}");
}

/// Whatever KVM can do on this host, the verdict must be true: `auto` then boots.
#[test]
fn a_kvm_verdict_is_what_auto_then_uses() {
    let Some(host) = Host::real() else { return };
    let scratch = tempfile::tempdir().unwrap();
    let (kernel, initrd) = host.image();
    let verdict =
        probe_kvm(&host.qemu, &GuestImage { kernel, initrd }, scratch.path(), PROBE_LIMIT).unwrap();
    let file = scratch.path().join("kvm.json");
    verdict.remember(&file).unwrap();
    let here = HostIdentity::now(&host.qemu.binary().unwrap()).unwrap();
    let remembered = KvmVerdict::remembered(&file);
    let (accelerator, reason) = choose(AcceleratorChoice::Auto, remembered.as_ref(), &here);
    assert_eq!(accelerator == Accelerator::Kvm, verdict.usable, "{reason}");
    eprintln!("{accelerator:?}: {reason}");
    let mut vm = host.vm("");
    vm.spec.accelerator = accelerator;
    vm.launch_ready();
    vm.boot();
    vm.wait_up();
}

/// Prints what boot and power-off take; run it with `--ignored --nocapture` on a quiet machine.
#[test]
#[ignore = "measures, asserts nothing"]
fn measure_boot_and_power_off() {
    let Some(host) = Host::real() else { return };
    for _ in 0..5 {
        let mut vm = host.vm("");
        let started = Instant::now();
        vm.launch_ready();
        let ready = started.elapsed();
        vm.boot();
        vm.wait_up();
        let up = started.elapsed();
        let pressed = Instant::now();
        vm.qemu.request_power_off(vm.paths(), CALL_TIMEOUT).unwrap();
        vm.wait_exit();
        println!("QMP ready {ready:?}, user space {up:?}, power-off {:?}", pressed.elapsed());
    }
}
