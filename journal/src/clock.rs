//! Times and boot ids that go into frames.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};
use uuid::Uuid;

use crate::error::JournalError;

/// Where the kernel tells the id of this boot. Read through the path, so that a bind mount over it
/// makes another boot.
pub const BOOT_ID_PATH: &str = "/proc/sys/kernel/random/boot_id";

/// Sources of time. Only tests replace them.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// Wall clock, microseconds since 1970.
    pub wall_us: fn() -> i64,
    /// `CLOCK_BOOTTIME`, microseconds.
    pub boottime_us: fn() -> u64,
}

impl Default for Clock {
    fn default() -> Self {
        Self { wall_us, boottime_us }
    }
}

fn wall_us() -> i64 {
    let micros = |duration: std::time::Duration| i64::try_from(duration.as_micros());
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(after) => micros(after).unwrap_or(i64::MAX),
        Err(before) => micros(before.duration()).map_or(i64::MIN, |us| -us),
    }
}

fn boottime_us() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    seconds * 1_000_000 + u64::try_from(now.tv_nsec).unwrap_or_default() / 1000
}

/// The id of the running boot.
pub(crate) fn boot_id(path: &Path) -> Result<Uuid, JournalError> {
    let action = "read the boot id from";
    let text = std::fs::read_to_string(path).map_err(JournalError::io(action, path))?;
    Uuid::parse_str(text.trim()).map_err(|error| JournalError::Io {
        action,
        path: PathBuf::from(path),
        source: std::io::Error::new(std::io::ErrorKind::InvalidData, error),
    })
}
