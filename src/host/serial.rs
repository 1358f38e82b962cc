//! The guest's serial console: its log and its socket.
//!
//! The VMM appends what the guest writes to a log (`O_APPEND`), and serves one client at a time on a socket. The log
//! of each launch begins anew, the one before is kept as `<name>.1`.
//!
//! A client that does not read stops the guest at its next write to the console, and the log with it: the port has no
//! way to drop what is not taken. Whoever opens the socket reads it until they close it.
//!
//! A guest can write for ever, and a VMM knows no limit, so the log is capped by whoever observes the VM (the daemon
//! in each pass, every verb that opens the console or the log): above the cap, its end is copied to `<name>.1` and
//! the log is cut to nothing. Since the VMM appends, it goes on at the new beginning. What the guest writes between
//! the copy and the cut is lost; that happens only to guests that flood their console.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use crate::host::vmm::ready::poll_timeout;

/// How large a console log or VMM log may grow, in bytes.
pub const LOG_CAP: u64 = 16 << 20;

/// What a cap did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capped {
    /// The log is within its cap, or not there.
    Within,
    /// The log was cut; this many of its bytes are in the kept copy.
    Cut(u64),
}

/// Where the log before this one is kept.
#[must_use]
pub fn previous(log: &Path) -> PathBuf {
    let mut name = log.as_os_str().to_owned();
    name.push(".1");
    name.into()
}

/// Begins a log anew for a launch: the one before becomes [`previous`]. Calling it twice is harmless: an empty log
/// never replaces a kept one.
pub fn begin_log(log: &Path) -> io::Result<()> {
    match fs::symlink_metadata(log) {
        Ok(meta) if meta.len() > 0 => fs::rename(log, previous(log))?,
        Ok(_) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(log).map(drop)
}

/// Cuts a log that has outgrown `cap` bytes, keeping its last `cap / 2` as [`previous`].
pub fn cap_log(log: &Path, cap: u64) -> io::Result<Capped> {
    let mut file = match OpenOptions::new().read(true).write(true).custom_flags(NOFOLLOW).open(log)
    {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Capped::Within),
        Err(error) => return Err(error),
    };
    let length = file.metadata()?.len();
    if length <= cap {
        return Ok(Capped::Within);
    }
    let kept = copy_end(&mut file, length, cap / 2, &previous(log))?;
    file.set_len(0)?;
    Ok(Capped::Cut(kept))
}

const NOFOLLOW: i32 = nix::libc::O_NOFOLLOW;

fn copy_end(file: &mut File, length: u64, keep: u64, to: &Path) -> io::Result<u64> {
    file.seek(SeekFrom::Start(length.saturating_sub(keep)))?;
    let mut partial = to.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    match fs::remove_file(&partial) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut copy = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&partial)?;
    // The guest may write faster than this copies.
    let copied = io::copy(&mut file.take(2 * keep), &mut copy)?;
    fs::rename(&partial, to)?;
    Ok(copied)
}

/// The last `limit` bytes of a log as text, whatever bytes the guest wrote.
pub fn tail(log: &Path, limit: u64) -> io::Result<String> {
    let mut file = File::open(log)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(limit)))?;
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// How the wait for a word on the console ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The word is there.
    Found,
    /// The VMM is gone, and the word was never written.
    Gone,
    /// The deadline passed.
    TimedOut,
}

/// Waits until the guest has written `word` to `log`, its VMM is gone, or `deadline` passes. Woken by writes to the
/// log; `liveness` is asked whenever nothing was written for a while.
pub fn wait_for(
    log: &Path,
    word: &[u8],
    liveness: &mut dyn FnMut() -> bool,
    deadline: Instant,
) -> io::Result<Seen> {
    let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
    let directory = log.parent().unwrap_or_else(|| Path::new("/"));
    let wanted = AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_MOVED_TO;
    inotify.add_watch(directory, wanted)?;
    let mut scanner = Scanner::new(log, word);
    loop {
        let alive = liveness();
        if scanner.scan()? {
            return Ok(Seen::Found);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if !alive {
            return Ok(Seen::Gone);
        }
        if left.is_zero() {
            return Ok(Seen::TimedOut);
        }
        let mut descriptors = [PollFd::new(inotify.as_fd(), PollFlags::POLLIN)];
        match poll(&mut descriptors, poll_timeout(left.min(Duration::from_millis(100)))) {
            Ok(0) | Err(nix::errno::Errno::EINTR) => {}
            Ok(_) => drop(inotify.read_events()?),
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Looks for a word in a log that grows, is cut, or is replaced, without reading anything twice.
struct Scanner<'a> {
    log: &'a Path,
    word: &'a [u8],
    file: Option<(File, u64)>,
    carry: Vec<u8>,
}

impl<'a> Scanner<'a> {
    fn new(log: &'a Path, word: &'a [u8]) -> Self {
        Self { log, word, file: None, carry: Vec::new() }
    }

    fn scan(&mut self) -> io::Result<bool> {
        self.follow()?;
        let Some((file, offset)) = &mut self.file else { return Ok(false) };
        let mut block = [0_u8; 16 << 10];
        loop {
            let count = file.read(&mut block)?;
            let Some(read) = block.get(..count).filter(|read| !read.is_empty()) else {
                return Ok(self.word.is_empty());
            };
            *offset += count as u64;
            self.carry.extend_from_slice(read);
            if self.carry.windows(self.word.len().max(1)).any(|window| window == self.word) {
                return Ok(true);
            }
            let keep = self.word.len().saturating_sub(1).min(self.carry.len());
            self.carry.drain(..self.carry.len() - keep);
        }
    }

    /// Opens the log again if another file is in its place, and goes back to its beginning if it was cut.
    fn follow(&mut self) -> io::Result<()> {
        let meta = match fs::metadata(self.log) {
            Ok(meta) => meta,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        if let Some((file, offset)) = &mut self.file {
            let open = file.metadata()?;
            if (open.dev(), open.ino()) == (meta.dev(), meta.ino()) {
                if meta.len() < *offset {
                    file.seek(SeekFrom::Start(0))?;
                    *offset = 0;
                    self.carry.clear();
                }
                return Ok(());
            }
        }
        self.file = Some((File::open(self.log)?, 0));
        self.carry.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn appender(path: &Path) -> File {
        OpenOptions::new().append(true).create(true).open(path).unwrap()
    }

    #[test]
    fn a_writer_that_appends_goes_on_after_a_cut() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("console.log");
        let mut writer = appender(&log);
        writer.write_all(&[b'a'; 900]).unwrap();
        writer.write_all(&[b'b'; 100]).unwrap();
        assert_eq!(cap_log(&log, 1000).unwrap(), Capped::Within);
        writer.write_all(b"c").unwrap();
        assert_eq!(cap_log(&log, 1000).unwrap(), Capped::Cut(500));
        writer.write_all(b"after").unwrap();
        assert_eq!(fs::read(&log).unwrap(), b"after");
        let kept = fs::read(previous(&log)).unwrap();
        assert_eq!(kept.len(), 500);
        assert!(kept.ends_with(b"bc"));
    }

    #[test]
    fn a_launch_begins_a_new_log_and_keeps_one() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("vmm.log");
        begin_log(&log).unwrap();
        assert!(!previous(&log).exists());
        fs::write(&log, "first").unwrap();
        begin_log(&log).unwrap();
        begin_log(&log).unwrap();
        assert_eq!(fs::read(&log).unwrap(), b"");
        assert_eq!(fs::read(previous(&log)).unwrap(), b"first");
    }

    #[test]
    fn a_symlink_in_place_of_the_log_is_not_cut() {
        let directory = tempfile::tempdir().unwrap();
        let victim = directory.path().join("victim");
        fs::write(&victim, [0; 100]).unwrap();
        let log = directory.path().join("log");
        std::os::unix::fs::symlink(&victim, &log).unwrap();
        assert!(cap_log(&log, 10).is_err());
        assert_eq!(fs::metadata(&victim).unwrap().len(), 100);
    }

    #[test]
    fn a_tail_of_any_bytes_is_text() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        fs::write(&log, b"before\xff\xfe end").unwrap();
        assert_eq!(tail(&log, 4).unwrap(), " end");
        assert!(tail(&log, 6).unwrap().ends_with(" end"));
    }

    #[test]
    fn a_word_is_found_across_writes_and_after_a_cut() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        let mut scanner = Scanner::new(&log, b"GUEST-UP");
        assert!(!scanner.scan().unwrap());
        let mut writer = appender(&log);
        writer.write_all(b"booting GUES").unwrap();
        assert!(!scanner.scan().unwrap());
        writer.write_all(b"T-UP\n").unwrap();
        assert!(scanner.scan().unwrap());

        let mut scanner = Scanner::new(&log, b"AGAIN");
        assert!(!scanner.scan().unwrap());
        File::options().write(true).open(&log).unwrap().set_len(0).unwrap();
        writer.write_all(b"AGAIN").unwrap();
        assert!(scanner.scan().unwrap());
    }

    #[test]
    fn the_wait_is_woken_by_a_write() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        let (looked, look) = std::sync::mpsc::channel();
        let path = log.clone();
        let writer = std::thread::spawn(move || {
            look.recv().unwrap();
            appender(&path).write_all(b"noise GUEST-UP noise").unwrap();
        });
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut liveness = || {
            let _ = looked.send(());
            true
        };
        assert_eq!(wait_for(&log, b"GUEST-UP", &mut liveness, deadline).unwrap(), Seen::Found);
        assert_eq!(wait_for(&log, b"absent", &mut || false, deadline).unwrap(), Seen::Gone);
        writer.join().unwrap();
    }
}
