//! The QEMU backend against VMMs: the same suite over a real QEMU with a real Linux guest, and over the fake VMM.
//! Tests of the real one are skipped where QEMU or the guest image is missing, unless `COCOON_REQUIRE` names `qemu`.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test ends at what it did not expect")]

mod fake;
mod real;
mod spawned;
mod suite;
mod vm;

use spawned::*;
use suite::*;
use vm::Host;

/// Makes two tests of each function of the suite.
macro_rules! over_both {
    ($($name:ident),* $(,)?) => {
        mod on_qemu {
            $(#[test] fn $name() { super::Host::real().as_ref().map(super::$name); })*
        }
        mod on_fake {
            $(#[test] fn $name() { super::$name(&super::Host::fake()); })*
        }
    };
}

over_both! {
    the_guest_does_not_run_before_boot,
    the_power_button_ends_the_vm,
    an_ignored_power_button_leaves_the_vm_running,
    quit_ends_the_vm,
    a_killed_vmm_leaves_sockets_that_prove_it_dead,
    a_terminated_vmm_names_the_sender,
    pause_and_resume_are_idempotent,
    a_guest_that_powers_off_by_itself_is_told_so,
    a_panic_ends_the_vm,
    a_vmm_that_cannot_start_is_reported_with_its_log,
    observers_do_not_disturb_the_api,
    a_busy_api_is_inconclusive_not_dead,
    a_disk_has_one_user,
    a_vm_boots_from_its_root_disk,
    leftovers_of_a_dead_operation_are_cancelled,
    the_console_is_served_and_logged,
    the_vmm_lock_lives_as_long_as_the_vmm,
    a_spawned_vmm_outlives_its_launcher_and_is_found,
}
