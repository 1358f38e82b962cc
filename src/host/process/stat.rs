//! The one line of `/proc/<pid>/stat`.

/// What is needed of a process's status line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stat {
    pub(super) state: u8,
    pub(super) flags: u32,
    pub(super) threads: u64,
    pub(super) start_time: u64,
    pub(super) pending_signals: u64,
}

/// The kernel's `PF_EXITING`: the process is being torn down.
const EXITING: u32 = 0x0000_0004;

/// SIGKILL among the pending signals.
const PENDING_KILL: u64 = 1 << 8;

/// The kernel's `PF_KTHREAD`: the process is a kernel thread.
const KERNEL_THREAD: u32 = 0x0020_0000;

impl Stat {
    /// Parses a status line. The command name in it may hold blanks, brackets and line breaks.
    pub(super) fn parse(line: &[u8]) -> Option<Self> {
        let name_end = line.iter().rposition(|byte| *byte == b')')?;
        let rest = std::str::from_utf8(line.get(name_end + 1..)?).ok()?;
        // The first field after the name is the third of the line, the state.
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        Some(Self {
            state: *fields.first()?.as_bytes().first()?,
            flags: fields.get(6)?.parse().ok()?,
            threads: fields.get(17)?.parse().ok()?,
            start_time: fields.get(19)?.parse().ok()?,
            pending_signals: fields.get(28).and_then(|field| field.parse().ok()).unwrap_or(0),
        })
    }

    /// Whether nothing of the process runs any more. A leader that exited before its threads shows
    /// as a zombie, but the process goes on until the last thread is gone.
    pub(super) fn is_dead(&self) -> bool {
        match self.state {
            b'Z' => self.threads <= 1,
            b'X' | b'x' => true,
            _ => false,
        }
    }

    /// Whether it runs none of its own code any more: it was killed, or is being torn down.
    pub(super) fn is_dying(&self) -> bool {
        self.flags & EXITING != 0 || self.pending_signals & PENDING_KILL != 0
    }

    /// Whether it was stopped by a signal or a debugger.
    pub(super) fn is_stopped(&self) -> bool {
        matches!(self.state, b'T' | b't')
    }

    pub(super) fn is_kernel_thread(&self) -> bool {
        self.flags & KERNEL_THREAD != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn line(name: &str, state: char, threads: u64) -> String {
        format!(
            "42 ({name}) {state} 1 42 42 0 -1 4194560 9 0 0 0 0 0 0 0 20 0 {threads} 0 987654 87 23"
        )
    }

    #[test]
    fn a_hostile_command_name_does_not_shift_the_fields() {
        for name in ["sleep", "a) Z 1 (b", "two words", "x\n) R", "()"] {
            let stat = Stat::parse(line(name, 'S', 1).as_bytes()).unwrap();
            assert_eq!((stat.state, stat.start_time), (b'S', 987_654), "{name}");
            assert!(!stat.is_dead() && !stat.is_kernel_thread());
        }
    }

    #[test]
    fn a_zombie_leader_with_live_threads_is_not_dead() {
        assert!(Stat::parse(line("q", 'Z', 1).as_bytes()).unwrap().is_dead());
        assert!(!Stat::parse(line("q", 'Z', 3).as_bytes()).unwrap().is_dead());
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Stat::parse(&bytes);
        }
    }
}
