//! Who holds the lock, as written into the lock file.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

use rustix::process::{Pid, PidfdFlags, Signal, getuid, pidfd_open, pidfd_send_signal};

use uuid::Uuid;

use crate::frame::Writer;

/// The record is a line of text, padded with spaces: always overwritten whole.
const RECORD_LEN: usize = 96;

/// A process that holds, or last held, the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its pid, in its own pid namespace.
    pub pid: u32,
    /// Its start time in clock ticks since boot.
    pub start_time: u64,
    /// Its command.
    pub verb: String,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} ({})", self.pid, self.verb)
    }
}

impl Holder {
    /// What the file begins with when nobody holds the lock.
    pub(super) const NONE: &'static [u8] = b"-";

    pub(super) fn of(writer: &Writer) -> Self {
        Self { pid: writer.pid, start_time: writer.start_time, verb: writer.verb.clone() }
    }

    pub(super) fn record(&self, file: &File) -> io::Result<()> {
        let mut line = format!("{} {} {}", self.pid, self.start_time, self.verb).into_bytes();
        line.resize(RECORD_LEN - 1, b' ');
        line.push(b'\n');
        file.write_all_at(&line, 0)
    }

    /// The holder that the file names, if it names one.
    pub(crate) fn read(file: &File) -> Option<Self> {
        let mut line = [0; RECORD_LEN];
        let len = file.read_at(&mut line, 0).ok()?;
        let line = std::str::from_utf8(line.get(..len)?).ok()?;
        let mut words = line.trim_end().splitn(3, ' ');
        Some(Self {
            pid: words.next()?.parse().ok()?,
            start_time: words.next()?.parse().ok()?,
            verb: words.next()?.to_owned(),
        })
    }

    /// Continues the holder if it is ours and somebody has stopped it.
    ///
    /// Everything is looked at after the pidfd was opened, so that what is signalled is what was
    /// looked at.
    pub(super) fn wake_if_stopped(&self) {
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else { return };
        let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else { return };
        let ours = std::fs::metadata(format!("/proc/{}", self.pid))
            .is_ok_and(|meta| meta.uid() == getuid().as_raw());
        if ours && self.is_stopped() {
            tracing::warn!(pid = self.pid, verb = %self.verb, "continuing the stopped holder of the journal lock");
            if let Err(error) = pidfd_send_signal(&pidfd, Signal::CONT) {
                tracing::warn!(pid = self.pid, %error, "cannot continue it");
            }
        }
    }

    fn is_stopped(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid));
        stat.is_ok_and(|stat| state_of(&stat) == Some(("T", self.start_time)))
    }
}

impl Writer {
    /// This process as a writer.
    ///
    /// # Errors
    ///
    /// If `/proc` does not tell when the process started.
    pub fn of_this_process(operation: Uuid, verb: impl Into<String>) -> io::Result<Self> {
        let stat = std::fs::read_to_string("/proc/self/stat")?;
        let (_, start_time) = state_of(&stat).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { operation, pid: std::process::id(), start_time, verb: verb.into() })
    }
}

/// State and start time from a line of `/proc/PID/stat`.
fn state_of(stat: &str) -> Option<(&str, u64)> {
    // The command in parentheses may itself contain spaces and parentheses.
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    let state = fields.next()?;
    // Field 22 of the line; the state is field 3.
    let start_time = fields.nth(18)?.parse().ok()?;
    Some((state, start_time))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_back_and_cleared() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(Holder::read(&file), None);
        let long = Holder { pid: 42, start_time: 7_000_000, verb: "vm snapshot save".to_owned() };
        long.record(&file).unwrap();
        assert_eq!(Holder::read(&file), Some(long));
        let short = Holder { pid: 4, start_time: 1, verb: "gc".to_owned() };
        short.record(&file).unwrap();
        assert_eq!(Holder::read(&file), Some(short), "nothing of the longer record remains");
        file.write_all_at(Holder::NONE, 0).unwrap();
        assert_eq!(Holder::read(&file), None);
    }

    #[test]
    fn this_process_is_found_as_it_says_it_is() {
        let writer = Writer::of_this_process(Uuid::nil(), "test").unwrap();
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", writer.pid)).unwrap();
        assert_eq!(state_of(&stat).unwrap().1, writer.start_time);
        assert!(writer.start_time > 0);
    }

    #[test]
    fn the_stat_line_is_read_past_hostile_names() {
        let line = "12 (a) T 1 (b) T 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 777 20";
        assert_eq!(state_of(line), Some(("T", 777)));
        assert_eq!(state_of("garbage"), None);
    }
}
