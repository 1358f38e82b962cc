//! The heartbeat: a small file, overwritten in place while the daemon lives.
//!
//! `daemon.heartbeat` in the root, one line of JSON padded to a fixed length: `alive_until_us` (wall clock, microseconds
//! since 1970) and `pid`. It is not synced: after a power loss an older line is as good.

use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::engine::effect::perform;
use crate::host::boot;

/// Bytes of the line, its end included.
const LINE: usize = 64;

#[derive(Debug, Serialize, Deserialize)]
struct Beat {
    alive_until_us: i64,
    pid: u32,
}

/// The heartbeat file of a root.
#[derive(Debug)]
pub(super) struct Heartbeat {
    path: PathBuf,
}

impl Heartbeat {
    pub(super) fn new(root: &Path) -> Self {
        Self { path: root.join("daemon.heartbeat") }
    }

    /// Until when the last daemon was alive. A line that cannot be understood says nothing.
    pub(super) fn read(&self) -> Option<i64> {
        let mut line = String::new();
        let file = OpenOptions::new().read(true).open(&self.path).ok()?;
        file.take(LINE as u64).read_to_string(&mut line).ok()?;
        let beat: Beat = serde_json::from_str(line.trim()).ok()?;
        Some(beat.alive_until_us)
    }

    /// Says that the daemon is alive now.
    pub(super) fn beat(&self) {
        if let Err(error) = perform("daemon.heartbeat", || self.write()) {
            tracing::warn!("cannot write {}: {error}", self.path.display());
        }
    }

    fn write(&self) -> io::Result<()> {
        let alive_until_us = i64::try_from(boot::wall_us()).unwrap_or(i64::MAX);
        let beat = Beat { alive_until_us, pid: std::process::id() };
        let text = serde_json::to_string(&beat)?;
        let line = format!("{text:<width$}\n", width = LINE - 1);
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(false).mode(0o600).open(&self.path)?;
        file.write_all_at(line.as_bytes(), 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_beat_is_read_and_nonsense_is_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let heartbeat = Heartbeat::new(dir.path());
        assert_eq!(heartbeat.read(), None);
        heartbeat.beat();
        let first = heartbeat.read().unwrap();
        heartbeat.beat();
        assert!(heartbeat.read().unwrap() >= first);
        assert_eq!(std::fs::metadata(&heartbeat.path).unwrap().len(), LINE as u64);
        std::fs::write(&heartbeat.path, "{\"alive_until").unwrap();
        assert_eq!(heartbeat.read(), None);
    }
}
