//! The one door for effects.
//!
//! Whatever changes the world beside the journal (files, processes, hypervisors) goes through [`perform`], under a name.
//! That is also where the crash points sit, one on each side: with the feature `crash-points`, the environment variable
//! `COCOON_CRASH_AT` names the boundary, or gives its number counted from 1, at which the process kills itself with
//! SIGKILL; `COCOON_STOP_AT` likewise names one at which it stops itself with SIGSTOP; `COCOON_CRASH_LOG` names a file to
//! which every boundary passed is appended, one a line. Without the feature both sides are empty.

/// Performs an effect.
pub fn perform<T>(name: &'static str, effect: impl FnOnce() -> T) -> T {
    boundary(name, Side::Before);
    let result = effect();
    boundary(name, Side::After);
    result
}

/// Which side of an effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Nothing of it is done.
    Before,
    /// All of it is done; nobody has recorded it.
    After,
}

impl Side {
    /// The suffix of the boundary's name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::After => "after",
        }
    }
}

#[cfg(not(feature = "crash-points"))]
fn boundary(_: &'static str, _: Side) {}

#[cfg(feature = "crash-points")]
fn boundary(name: &'static str, side: Side) {
    crash::passed(&format!("{name}.{}", side.as_str()));
}

/// How the journal is kept. With the feature `crash-points`, `COCOON_SEGMENT_EVENTS` says after how many events a segment
/// is sealed, so that a test need not write ten thousand.
pub fn journal_options() -> cocoon_journal::Options {
    let options = cocoon_journal::Options { boundary: journal_boundary, ..Default::default() };
    #[cfg(feature = "crash-points")]
    let options = crash::shortened(options);
    options
}

/// A boundary inside the journal, which names its own.
pub fn journal_boundary(name: &'static str) {
    #[cfg(feature = "crash-points")]
    crash::passed(name);
    #[cfg(not(feature = "crash-points"))]
    let _ = name;
}

#[cfg(feature = "crash-points")]
mod crash {
    use std::fs::OpenOptions;
    use std::io::Write as _;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    use nix::sys::signal::{Signal, raise};

    static PASSED: AtomicU64 = AtomicU64::new(0);
    static STOPPED: AtomicBool = AtomicBool::new(false);

    /// Segments as short as a test wants them.
    pub(super) fn shortened(options: cocoon_journal::Options) -> cocoon_journal::Options {
        let given = std::env::var("COCOON_SEGMENT_EVENTS").ok();
        let segment_events = given.and_then(|text| text.parse().ok());
        cocoon_journal::Options {
            segment_events: segment_events.unwrap_or(options.segment_events),
            ..options
        }
    }

    /// Notes that a boundary is passed, and ends the process there if it is the one.
    pub(super) fn passed(name: &str) {
        let number = PASSED.fetch_add(1, Ordering::SeqCst) + 1;
        if let Some(log) = std::env::var_os("COCOON_CRASH_LOG") {
            let line = format!("{name}\n");
            let file = OpenOptions::new().create(true).append(true).open(log);
            // The log only serves the tests; a test that misses lines fails by itself.
            let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
        }
        let is_at = |variable| {
            std::env::var(variable).is_ok_and(|at| at == name || at == number.to_string())
        };
        // Once: whoever continues it does not look whether it comes by there again.
        if is_at("COCOON_STOP_AT") && !STOPPED.swap(true, Ordering::SeqCst) {
            let _ = raise(Signal::SIGSTOP);
        }
        if is_at("COCOON_CRASH_AT") {
            let _ = raise(Signal::SIGKILL);
        }
    }
}
