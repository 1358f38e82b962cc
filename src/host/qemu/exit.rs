//! Why a QEMU went, read from what its trace points left in its log.
//!
//! The log begins anew with each launch, so its last word is about the last exit. A QEMU that was killed or crashed
//! leaves none.

use crate::host::vmm::ExitReason;

/// The reason that the log of one launch names.
pub(super) fn reason(log: &str) -> ExitReason {
    let (mut requested, mut signalled, mut shut_down) = (None, None, false);
    for line in log.lines() {
        if let Some(rest) = after(line, "terminating on signal ") {
            signalled = signal(rest);
        } else if let Some(rest) = after(line, "qemu_system_shutdown_request reason=") {
            requested = shutdown_cause(leading_number(rest));
        } else if after(line, "new_state").is_some_and(|rest| rest.contains("(shutdown)")) {
            shut_down = true;
        }
    }
    match requested.or(signalled) {
        Some(reason) => reason,
        // Of all ways into this state, only a signal and a reset under -no-reboot make no request.
        None if shut_down => ExitReason::GuestReset,
        None => ExitReason::Unknown,
    }
}

fn after<'a>(line: &'a str, mark: &str) -> Option<&'a str> {
    line.split_once(mark).map(|(_, rest)| rest)
}

fn leading_number(text: &str) -> Option<i32> {
    let digits = text.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

/// `15 from pid 123 (name)`
fn signal(text: &str) -> Option<ExitReason> {
    let number = leading_number(text)?;
    let sender = after(text, "from pid ").and_then(leading_number);
    Some(ExitReason::Signal { number, sender: sender.and_then(|pid| u32::try_from(pid).ok()) })
}

/// QEMU's `ShutdownCause`, whose numbers are the same in all versions from 4.0.
fn shutdown_cause(number: Option<i32>) -> Option<ExitReason> {
    Some(match number? {
        2 => ExitReason::QuitRequested,
        4 => ExitReason::Signal { number: nix::libc::SIGTERM, sender: None },
        6 => ExitReason::GuestShutdown,
        3 | 7 => ExitReason::GuestReset,
        8 => ExitReason::GuestPanic,
        1 => ExitReason::Other("host-error".to_owned()),
        other => ExitReason::Other(format!("shutdown cause {other}")),
    })
}

/// The same reason as QMP's `SHUTDOWN` event words it.
pub(super) fn from_event(word: &str) -> ExitReason {
    match word {
        "guest-shutdown" => ExitReason::GuestShutdown,
        "guest-reset" | "host-qmp-system-reset" => ExitReason::GuestReset,
        "guest-panic" => ExitReason::GuestPanic,
        "host-qmp-quit" => ExitReason::QuitRequested,
        "host-signal" => ExitReason::Signal { number: nix::libc::SIGTERM, sender: None },
        other => ExitReason::Other(other.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn qemus_words_are_understood() {
        let cases = [
            ("", ExitReason::Unknown),
            (
                "runstate_set current_run_state 6 (prelaunch) new_state 9 (running)\n",
                ExitReason::Unknown,
            ),
            (
                "42@1.5:qemu_system_shutdown_request reason=6\nrunstate_set current_run_state 9 (running) new_state 11 (shutdown)\n",
                ExitReason::GuestShutdown,
            ),
            (
                "runstate_set current_run_state 9 (running) new_state 11 (shutdown)\n",
                ExitReason::GuestReset,
            ),
            ("qemu_system_shutdown_request reason=2\n", ExitReason::QuitRequested),
            (
                "2026-11-30T16:00:00.1Z qemu-system-x86_64: terminating on signal 15 from pid 6623 (timeout)\nrunstate_set current_run_state 9 (running) new_state 11 (shutdown)\n",
                ExitReason::Signal { number: 15, sender: Some(6623) },
            ),
            (
                "qemu_system_shutdown_request reason=99\n",
                ExitReason::Other("shutdown cause 99".to_owned()),
            ),
        ];
        for (log, expected) in cases {
            assert_eq!(reason(log), expected, "{log}");
        }
    }

    proptest! {
        #[test]
        fn any_log_gives_some_reason(log in "(terminating on signal |qemu_system_shutdown_request reason=|from pid |new_state|[0-9]{0,12}|\\PC|\n){0,40}") {
            reason(&log);
        }
    }
}
