//! The only door to sled: every call runs under `catch_unwind`, and every fault becomes a value.
//!
//! sled 0.34 panics on many kinds of damage. A panic inside it leaves its state unknown, so the
//! handle is given up: later calls fail, and it is leaked rather than dropped, because its
//! destructor flushes. The panic hook is wrapped once so that a fault that was caught is not
//! printed as if the program had failed.

use std::cell::Cell;
use std::fs::{self, File};
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::{Duration, Instant};

/// sled frees its lock a little after its handle is dropped: its threads still hold the file.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);
const LOCK_RETRY: Duration = Duration::from_micros(200);
const CACHE_BYTES: u64 = 4 * 1024 * 1024;
/// An event of 4 KiB stays far below the size at which sled spills pages into files that it never
/// syncs (a quarter of a segment divided by about 17 events a page).
const SEGMENT_BYTES: usize = 512 * 1024;

/// What sled, or the file system under it, answered.
#[derive(Debug)]
pub(super) enum Fault {
    /// The host refused for a reason that is not the content's: no space, no descriptors.
    Io(io::Error),
    /// The content is not usable.
    Damage(String),
}

pub(super) type Pair = (Vec<u8>, Vec<u8>);

/// An open sled database.
#[derive(Debug)]
pub(super) struct Db {
    dir: PathBuf,
    handle: Option<sled::Db>,
    panicked: Cell<bool>,
}

impl Db {
    /// Opens or creates the database in `dir`, after removing what a killed opening left there:
    /// sled takes an unfinished snapshot for the newest one and then refuses to open.
    pub(super) fn open(dir: &Path) -> Result<Self, Fault> {
        remove_unfinished_snapshots(dir).map_err(Fault::Io)?;
        let config = sled::Config::new()
            .path(dir)
            .segment_size(SEGMENT_BYTES)
            .cache_capacity(CACHE_BYTES)
            .flush_every_ms(None);
        let deadline = Instant::now() + LOCK_PATIENCE;
        loop {
            match guard(|| config.open()) {
                Ok(Ok(handle)) => {
                    let dir = dir.to_owned();
                    return Ok(Self { dir, handle: Some(handle), panicked: Cell::new(false) });
                }
                Ok(Err(error)) if is_locked(&error) && Instant::now() < deadline => {
                    std::thread::sleep(LOCK_RETRY);
                }
                Ok(Err(error)) => return Err(fault(error)),
                Err(message) => return Err(Fault::Damage(message)),
            }
        }
    }

    /// Applies a batch: wholly or not at all, though not yet durably.
    pub(super) fn apply(&self, batch: sled::Batch) -> Result<(), Fault> {
        self.run(|db| db.apply_batch(batch))
    }

    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Fault> {
        self.run(|db| db.get(key)).map(|value| value.map(|value| value.to_vec()))
    }

    /// Up to `limit` pairs with keys from `from` to below `to`, in order.
    pub(super) fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<Pair>, Fault> {
        self.run(|db| {
            let pairs = db.range(from..to).take(limit);
            pairs.map(|pair| pair.map(|(key, value)| (key.to_vec(), value.to_vec()))).collect()
        })
    }

    /// Makes everything applied so far survive a power cut. sled's own flush only starts the
    /// writes.
    pub(super) fn flush(&self) -> Result<(), Fault> {
        self.run(|db| db.flush())?;
        File::open(self.dir.join("db")).and_then(|file| file.sync_data()).map_err(Fault::Io)
    }

    fn run<T>(&self, call: impl FnOnce(&sled::Db) -> sled::Result<T>) -> Result<T, Fault> {
        let usable = self.handle.as_ref().filter(|_| !self.panicked.get());
        let Some(handle) = usable else {
            return Err(Fault::Damage("it was given up after an earlier fault".to_owned()));
        };
        match guard(|| call(handle)) {
            Ok(answer) => answer.map_err(fault),
            Err(message) => {
                self.panicked.set(true);
                Err(Fault::Damage(message))
            }
        }
    }
}

impl Drop for Db {
    fn drop(&mut self) {
        let Some(handle) = self.handle.take() else { return };
        if self.panicked.get() {
            // Its destructor flushes in a loop, which may never end on a broken log.
            std::mem::forget(handle);
        } else if let Err(message) = guard(move || drop(handle)) {
            tracing::warn!(dir = %self.dir.display(), message, "sled failed while closing");
        }
    }
}

fn is_locked(error: &sled::Error) -> bool {
    // The error number survives only in the text.
    error.to_string().contains("could not acquire lock")
}

fn fault(error: sled::Error) -> Fault {
    let locked = is_locked(&error);
    match error {
        sled::Error::Io(error) if locked || is_host(&error) => Fault::Io(error),
        error => Fault::Damage(error.to_string()),
    }
}

/// Says whether an I/O error speaks of the host and not of the file: rebuilding would not help.
fn is_host(error: &io::Error) -> bool {
    use nix::errno::Errno;
    let room = [Errno::ENOSPC, Errno::EDQUOT, Errno::EMFILE, Errno::ENFILE, Errno::ENOMEM];
    let access = [Errno::EACCES, Errno::EPERM, Errno::EROFS, Errno::EINTR];
    let code = error.raw_os_error();
    room.iter().chain(&access).any(|known| Some(*known as i32) == code)
}

fn remove_unfinished_snapshots(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("snap.") && name.ends_with(".generating") {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Runs a call into sled; a panic comes back as its message.
fn guard<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    quiet_hook();
    let before = GUARDED.replace(true);
    let answer = panic::catch_unwind(AssertUnwindSafe(call));
    GUARDED.set(before);
    answer.map_err(|payload| {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
        format!("sled panicked: {}", text.unwrap_or("no message"))
    })
}

fn quiet_hook() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if GUARDED.get() {
                tracing::debug!(%info, "sled panicked and was caught");
            } else {
                previous(info);
            }
        }));
    });
}
