//! A process that is killed from outside, as soon as it has come far enough.

use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::Child;
use std::time::Duration;

use cocoon_test_world::{Ran, World};
use rustix::fd::OwnedFd;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// What the pipe says when the process has ended; no boundary has this name.
const END: &str = "end";

/// A pipe into which a process writes the boundaries that it passes.
#[derive(Debug)]
pub(crate) struct Boundaries {
    path: PathBuf,
    reader: BufReader<File>,
}

impl Boundaries {
    pub(crate) fn new(path: PathBuf) -> Self {
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        // Open for writing as well: the pipe does not end when a writer closes it.
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        Self { path, reader: BufReader::new(file) }
    }
}

/// A process that is going to be killed.
#[derive(Debug)]
pub(crate) struct Victim<'a> {
    world: &'a World,
    child: Child,
    pidfd: OwnedFd,
    boundaries: &'a mut Boundaries,
}

impl<'a> Victim<'a> {
    pub(crate) fn start(
        world: &'a World,
        arguments: &[&str],
        boundaries: &'a mut Boundaries,
    ) -> Self {
        let child =
            world.start(arguments, &[("COCOON_CRASH_LOG", boundaries.path.to_str().unwrap())]);
        let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        Self { world, child, pidfd, boundaries }
    }

    /// Kills it a while after it has passed so many boundaries, unless it has ended by then. Also gives the boundaries
    /// that it passed.
    pub(crate) fn kill(self, after: u64, then: Duration) -> (Ran, Vec<String>) {
        let Self { world, child, pidfd, boundaries } = self;
        let mut end = OpenOptions::new().append(true).open(&boundaries.path).unwrap();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(move || {
                let ran = world.wait(child);
                writeln!(end, "{END}").unwrap();
                ran
            });
            let mut passed = Vec::new();
            loop {
                if passed.len() as u64 == after {
                    // The instant within an effect is what is random here.
                    std::thread::sleep(then);
                    let _ = pidfd_send_signal(&pidfd, Signal::KILL);
                }
                let mut line = String::new();
                boundaries.reader.read_line(&mut line).unwrap();
                match line.trim_end() {
                    END => return (waiter.join().unwrap(), passed),
                    boundary => passed.push(boundary.to_owned()),
                }
            }
        })
    }
}
