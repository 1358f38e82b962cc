//! How a VMM went, and what to tell of one that went too soon.

use std::fmt;
use std::time::Duration;

use super::RuntimePaths;
use crate::host::serial;

/// A VMM that exits within this time of its start is reported with the end of its log.
pub const EARLY_EXIT: Duration = Duration::from_secs(5);

/// About what a Linux guest with an initramfs needs, in bytes.
const LINUX_NEEDS: u64 = 96 << 20;

/// How much of a log an error message shows, in bytes.
const LOG_TAIL: u64 = 2048;

/// Why a VMM exited, by what it left in its log or said on its socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExitReason {
    /// The guest powered itself off, on its own or heeding the power button.
    GuestShutdown,
    /// The guest reset itself (a reboot, or a panic that reboots), which ends a VM here.
    GuestReset,
    /// The guest told of a panic.
    GuestPanic,
    /// The VMM was told to quit over its API.
    QuitRequested,
    /// The VMM took a signal; its number, and the sender if it said so.
    Signal {
        /// The signal's number.
        number: i32,
        /// The sending process.
        sender: Option<u32>,
    },
    /// Another reason that the VMM named.
    Other(String),
    /// It left no word: it was killed, crashed, or never got that far.
    Unknown,
}

impl fmt::Display for ExitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::GuestShutdown => f.write_str("the guest powered off"),
            Self::GuestReset => f.write_str("the guest reset itself"),
            Self::GuestPanic => f.write_str("the guest panicked"),
            Self::QuitRequested => f.write_str("the VMM was told to quit"),
            Self::Signal { number, sender: None } => write!(f, "the VMM took signal {number}"),
            Self::Signal { number, sender: Some(pid) } => {
                write!(f, "the VMM took signal {number} from process {pid}")
            }
            Self::Other(word) => write!(f, "the VMM said '{word}'"),
            Self::Unknown => f.write_str("the VMM left no word"),
        }
    }
}

/// What to tell about a VMM that exited `age` after its start; `None` if that was not early. `memory_bytes` is what
/// its guest had.
#[must_use]
pub fn early_exit_report(
    paths: &RuntimePaths,
    reason: &ExitReason,
    memory_bytes: u64,
    age: Duration,
) -> Option<String> {
    if age > EARLY_EXIT {
        return None;
    }
    let mut report = format!("it exited {} ms after its start: {reason}", age.as_millis());
    if memory_bytes < LINUX_NEEDS {
        report += &format!(
            "; it had {} MiB of memory, and a Linux guest needs about {}",
            memory_bytes >> 20,
            LINUX_NEEDS >> 20
        );
    }
    report += &log_ends(paths);
    Some(report)
}

/// The ends of both logs, ready to be appended to a sentence.
pub(crate) fn log_ends(paths: &RuntimePaths) -> String {
    [("VMM log", &paths.vmm_log), ("console", &paths.console_log)]
        .into_iter()
        .filter_map(|(what, path)| {
            let text = serial::tail(path, LOG_TAIL).ok()?;
            let lines: Vec<&str> =
                text.lines().rev().filter(|line| !line.is_empty()).take(8).collect();
            let lines: Vec<&str> = lines.into_iter().rev().collect();
            (!lines.is_empty()).then(|| {
                format!("\nend of its {what} ({}):\n  {}", path.display(), lines.join("\n  "))
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(directory: &std::path::Path) -> RuntimePaths {
        RuntimePaths::new(directory, directory).unwrap()
    }

    #[test]
    fn an_early_exit_shows_the_log_and_the_memory_hint() {
        let directory = tempfile::tempdir().unwrap();
        let paths = paths(directory.path());
        std::fs::write(&paths.vmm_log, "first\n\nqemu: no such file\n").unwrap();
        let report =
            early_exit_report(&paths, &ExitReason::Unknown, 64 << 20, Duration::from_millis(12))
                .unwrap();
        assert!(report.contains("12 ms") && report.contains("64 MiB"), "{report}");
        assert!(report.contains("  first\n  qemu: no such file"), "{report}");
    }

    #[test]
    fn enough_memory_gives_no_hint_and_a_late_exit_no_report() {
        let directory = tempfile::tempdir().unwrap();
        let paths = paths(directory.path());
        let report =
            early_exit_report(&paths, &ExitReason::GuestReset, 96 << 20, EARLY_EXIT).unwrap();
        assert!(!report.contains("memory"), "{report}");
        let late = EARLY_EXIT + Duration::from_millis(1);
        assert_eq!(early_exit_report(&paths, &ExitReason::GuestReset, 1 << 20, late), None);
    }
}
