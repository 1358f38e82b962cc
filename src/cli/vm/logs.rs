//! `cocoon vm logs`.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use crate::cli::args::duration;
use crate::cli::{CliError, Global, output, waiting};
use crate::engine::EngineError;
use crate::host::vmm::RuntimePaths;

/// How often a log is looked at where the kernel cannot tell that it grew.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// The most that is read at once, bytes.
const CHUNK: u64 = 1 << 20;

#[derive(Debug, Args)]
pub(in crate::cli) struct LogsArgs {
    /// Name, id or beginning of an id
    vm: String,
    /// The serial console of the guest instead of the hypervisor's log
    #[arg(long)]
    console: bool,
    /// Go on as the log grows
    #[arg(short, long)]
    follow: bool,
    /// Only the last N lines
    #[arg(long, value_name = "N")]
    tail: Option<usize>,
    /// Go on until this text was written
    #[arg(long, value_name = "TEXT")]
    until: Option<String>,
    /// Give up waiting for the text after this long
    #[arg(long, value_name = "DURATION", value_parser = duration, requires = "until")]
    timeout: Option<Duration>,
}

pub(super) fn run(args: &LogsArgs, global: Global) -> Result<(), CliError> {
    let (engine, _) = global.reading_engine()?;
    let id = engine.resolve(&args.vm)?;
    let record = engine
        .vm(id)?
        .ok_or_else(|| EngineError::NotFound { what: "vm", reference: args.vm.clone() })?;
    let paths = RuntimePaths::new(Path::new(&record.spec.run_dir), Path::new(&record.spec.log_dir))
        .map_err(|error| CliError::Failed(error.to_string()))?;
    let log = if args.console { paths.console_log } else { paths.vmm_log };
    Follower::new(log).run(args)
}

/// Reads a log from some place on, also when it is cut or replaced meanwhile.
struct Follower {
    path: PathBuf,
    inode: u64,
    offset: u64,
    /// The end of what was read, where a text may have begun.
    seen: Vec<u8>,
}

impl Follower {
    fn new(path: PathBuf) -> Self {
        Self { path, inode: 0, offset: 0, seen: Vec::new() }
    }

    fn run(mut self, args: &LogsArgs) -> Result<(), CliError> {
        let deadline = args.timeout.map(|timeout| Instant::now() + timeout);
        let mut growth = Growth::of(&self.path);
        let mut first = self.read_on()?;
        if let Some(lines) = args.tail {
            first = last_lines(&first, lines).to_vec();
        }
        let mut found = self.show(&first, args.until.as_deref())?;
        while !found && (args.follow || args.until.is_some()) {
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(CliError::Failed(format!(
                    "{} does not have {:?} after {:?}; it ends as shown",
                    self.path.display(),
                    args.until.as_deref().unwrap_or_default(),
                    args.timeout.unwrap_or_default()
                )));
            }
            growth.wait(deadline)?;
            let more = self.read_on()?;
            found = self.show(&more, args.until.as_deref())?;
        }
        Ok(())
    }

    /// What was written since the last time; a log that is not there yet is empty.
    fn read_on(&mut self) -> Result<Vec<u8>, CliError> {
        let failed = |error: std::io::Error| {
            CliError::Failed(format!("cannot read {}: {error}", self.path.display()))
        };
        let mut file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        let now = file.metadata().map_err(failed)?;
        if now.ino() != self.inode || now.len() < self.offset {
            (self.inode, self.offset) = (now.ino(), 0);
        }
        file.seek(SeekFrom::Start(self.offset)).map_err(failed)?;
        let mut bytes = Vec::new();
        loop {
            let before = bytes.len();
            (&mut file).take(CHUNK).read_to_end(&mut bytes).map_err(failed)?;
            if bytes.len() == before {
                break;
            }
        }
        self.offset += bytes.len() as u64;
        Ok(bytes)
    }

    /// Writes what was read, and says whether the text that is waited for has come.
    fn show(&mut self, bytes: &[u8], until: Option<&str>) -> Result<bool, CliError> {
        if bytes.is_empty() {
            return Ok(until.is_some_and(str::is_empty));
        }
        output::write(bytes)?;
        let Some(until) = until.map(str::as_bytes) else { return Ok(false) };
        self.seen.extend_from_slice(bytes);
        let found = until.is_empty() || self.seen.windows(until.len()).any(|text| text == until);
        let keep = self.seen.len().saturating_sub(until.len());
        self.seen.drain(..keep);
        Ok(found)
    }
}

/// Tells when a log may have grown, or has come into being with its directory.
struct Growth {
    directory: PathBuf,
    /// `None` if this user has used up its share.
    inotify: Option<Inotify>,
}

impl Growth {
    /// Whatever is written from now on wakes the next wait.
    fn of(log: &Path) -> Self {
        let directory = log.parent().unwrap_or_else(|| Path::new("/")).to_owned();
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).ok();
        let mut growth = Self { directory, inotify };
        growth.watch();
        growth
    }

    /// Watches the directory, or as long as that is not there, the one that it will come into being in.
    fn watch(&mut self) {
        let wanted = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_MODIFY
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF;
        let Some(inotify) = &self.inotify else { return };
        let watched = |directory: &Path| inotify.add_watch(directory, wanted).is_ok();
        if !self.directory.ancestors().any(watched) {
            self.inotify = None;
        }
    }

    fn wait(&mut self, deadline: Option<Instant>) -> Result<(), CliError> {
        let Some(inotify) = &self.inotify else {
            let next = Instant::now() + LOOK_EVERY;
            return waiting::sleep(None, Some(deadline.map_or(next, |end| end.min(next))));
        };
        waiting::sleep(Some(inotify.as_fd()), deadline)?;
        // What has happened does not matter: the log is looked at. Nothing is there if the deadline has passed.
        let _ = inotify.read_events();
        self.watch();
        Ok(())
    }
}

fn last_lines(bytes: &[u8], lines: usize) -> &[u8] {
    let body = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let mut ends = body.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n');
    match lines.checked_sub(1).map(|skip| ends.nth(skip)) {
        None => &[],
        Some(None) => bytes,
        Some(Some((at, _))) => bytes.get(at + 1..).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines() {
        assert_eq!(last_lines(b"a\nb\nc\n", 2), b"b\nc\n");
        assert_eq!(last_lines(b"a\nb\nc", 1), b"c");
        assert_eq!(last_lines(b"a\nb", 5), b"a\nb");
        assert_eq!(last_lines(b"a\nb", 0), b"");
    }

    #[test]
    fn a_follower_reads_on_and_begins_anew_with_a_new_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut follower = Follower::new(path.clone());
        assert!(follower.read_on().unwrap().is_empty());
        std::fs::write(&path, "one").unwrap();
        assert_eq!(follower.read_on().unwrap(), b"one");
        assert!(follower.read_on().unwrap().is_empty());
        std::fs::rename(&path, dir.path().join("log.1")).unwrap();
        std::fs::write(&path, "twotwo").unwrap();
        assert_eq!(follower.read_on().unwrap(), b"twotwo");
    }
}
