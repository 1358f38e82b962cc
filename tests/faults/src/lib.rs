//! System calls that fail, or wait, where a test wants it; and small disks ([`disk`]).
//!
//! The kernel asks a supervisor before each call on files that a thread makes, it, its threads and its child processes
//! (seccomp's user notification). Nothing in the program under test takes part: what fails is the real call of the real
//! library, in this process or in another one, sled included.
//!
//! ```text
//!   thread under test                kernel                     supervisor
//!     fdatasync(7) ----------------> stopped, notified -------> what is 7? /proc/TID/fd/7
//!                                                               judge(Call { Sync, path })
//!     Err(EIO) <-------------------- answered <---------------- Fail(EIO), or Go: the kernel does it
//! ```
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "serves tests alone: what cannot be set up ends the test"
)]

mod call;
pub mod disk;
mod filter;
mod supervisor;

use std::io;
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::time::Duration;

/// What a call does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Opens or creates a file, or opens a directory.
    Open,
    /// Writes to one.
    Write,
    /// Makes what was written durable.
    Sync,
    /// Renames.
    Rename,
    /// Allocates blocks.
    Allocate,
    /// Sets the length of a file.
    SetLength,
    /// Makes a directory.
    MakeDirectory,
    /// Removes a file or a directory.
    Remove,
}

impl Kind {
    /// The errors that a failing or full disk, a quota or a lack of descriptors gives to such a call.
    #[must_use]
    pub fn errors(self) -> &'static [i32] {
        use nix::libc::{EDQUOT, EIO, EMFILE, ENOSPC};
        match self {
            Self::Open => &[EMFILE, EIO, ENOSPC, EDQUOT],
            Self::Write | Self::Allocate | Self::Rename | Self::MakeDirectory => {
                &[EIO, ENOSPC, EDQUOT]
            }
            Self::Sync => &[EIO, ENOSPC, EDQUOT],
            Self::SetLength | Self::Remove => &[EIO],
        }
    }
}

/// A call that is about to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// What it does.
    pub kind: Kind,
    /// On which file; of a rename, its old name.
    pub path: PathBuf,
    /// The thread that makes it.
    pub thread: i32,
}

/// What becomes of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is made.
    Go,
    /// It is not made, and fails with this errno.
    Fail(i32),
    /// It is not made, and succeeds all the same: a sync by a process to which the kernel does not tell an earlier failure.
    Pretend,
    /// It is made after this time.
    Wait(Duration),
}

/// Runs `test` in a thread of its own. Every call on files that it, and what it starts, makes is judged first. Calls of
/// what outlives `test` are made without being judged.
///
/// # Errors
/// If the kernel does not offer it, or this user may not.
///
/// # Panics
/// If `test` does.
pub fn judged<T: Send + 'static>(
    judge: impl FnMut(&Call) -> Verdict + Send + 'static,
    test: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let (sender, receiver) = channel();
    let (judging, judged) = supervisor::judge(judge);
    let thread = std::thread::spawn(move || {
        let listener = filter::install()?;
        // Whoever waits for it is there until it has come.
        sender.send(listener).expect("the supervisor waits");
        Ok(test())
    });
    if let Ok(listener) = receiver.recv() {
        std::thread::spawn(move || supervisor::serve(listener, &judged));
    }
    let result = thread.join();
    judging.end();
    match result {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;
    use std::sync::{Arc, Mutex};

    use super::*;

    fn seen(test: impl FnOnce(PathBuf) + Send + 'static) -> Vec<(Kind, String)> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().canonicalize().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (noted, below) = (seen.clone(), path.clone());
        let judge = move |call: &Call| {
            if let Ok(name) = call.path.strip_prefix(&below) {
                noted.lock().unwrap().push((call.kind, name.display().to_string()));
            }
            Verdict::Go
        };
        judged(judge, move || test(path)).unwrap();
        let seen = seen.lock().unwrap();
        seen.clone()
    }

    fn named(calls: &[(Kind, &str)]) -> Vec<(Kind, String)> {
        calls.iter().map(|(kind, name)| (*kind, (*name).to_owned())).collect()
    }

    #[test]
    fn calls_are_seen_with_what_they_are_about() {
        let calls = seen(|dir| {
            fs::create_dir(dir.join("d")).unwrap();
            let file = fs::File::create(dir.join("d/a")).unwrap();
            std::io::Write::write_all(&mut &file, b"x").unwrap();
            file.sync_data().unwrap();
            file.set_len(9).unwrap();
            fs::rename(dir.join("d/a"), dir.join("d/b")).unwrap();
            fs::remove_file(dir.join("d/b")).unwrap();
        });
        let expected = [
            (Kind::MakeDirectory, "d"),
            (Kind::Open, "d/a"),
            (Kind::Write, "d/a"),
            (Kind::Sync, "d/a"),
            (Kind::SetLength, "d/a"),
            (Kind::Rename, "d/a"),
            (Kind::Remove, "d/b"),
        ];
        assert_eq!(calls, named(&expected));
    }

    #[test]
    fn children_are_judged_too() {
        let calls = seen(|dir| {
            let script = "echo x > a && mv a b";
            let status = Command::new("sh").args(["-c", script]).current_dir(dir).status();
            assert!(status.unwrap().success());
        });
        let kinds: Vec<_> = calls.iter().map(|(kind, _)| *kind).collect();
        assert!(calls.contains(&(Kind::Open, "a".to_owned())), "{calls:?}");
        assert!(kinds.contains(&Kind::Write) && kinds.contains(&Kind::Rename), "{calls:?}");
    }

    #[test]
    fn a_call_fails_as_told_and_is_not_made() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().canonicalize().unwrap().join("a");
        let target = path.clone();
        let judge = move |call: &Call| match call.kind {
            Kind::Write if call.path == target => Verdict::Fail(nix::libc::EDQUOT),
            _ => Verdict::Go,
        };
        let file = path.clone();
        let error = judged(judge, move || fs::write(file, b"x").unwrap_err()).unwrap();
        assert_eq!(error.raw_os_error(), Some(nix::libc::EDQUOT));
        assert_eq!(fs::read(&path).unwrap(), b"");
        fs::write(&path, b"unjudged").unwrap();
    }
}
