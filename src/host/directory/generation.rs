//! How far the record of a VM has come, noted in its directory.
//!
//! A journal may be older than the VMs that it speaks of: then a record that was once half made, or about to be stopped,
//! stands for a VM that was finished and started long ago. So whoever brings a VM to another generation notes it here, once
//! the journal has it. A record that is behind this note is not the newest one, whatever its journal says.
//!
//! ```text
//!   event with the generation ─► durable ─► noted here ─► answer
//! ```
//!
//! The note is not synced: a power cut may take it back, and then it proves less, never anything wrong. One that is torn or
//! missing proves nothing.

use std::io::{Read, Write};
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags};
use serde::{Deserialize, Serialize};

use super::birth::Place;
use super::{DirectoryError, failure};

const NAME: &str = ".cocoon-generation";
/// Each note overwrites all of the one before.
const LEN: usize = 64;

#[derive(Serialize, Deserialize)]
struct Note {
    generation: u64,
}

/// Notes the generation of a VM in its run directory, if that is there.
pub fn note_generation(path: &Path, generation: u64) -> Result<(), DirectoryError> {
    let Some(directory) = Place::of(path)?.directory()? else { return Ok(()) };
    let failed = |error: std::io::Error| failure("write", &path.join(NAME), error);
    let mut bytes =
        serde_json::to_vec(&Note { generation }).map_err(|error| failed(error.into()))?;
    bytes.resize(LEN - 1, b' ');
    bytes.push(b'\n');
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::openat(&directory, NAME, flags, Mode::RUSR | Mode::WUSR)
        .map_err(|error| failed(error.into()))?;
    std::fs::File::from(file).write_all(&bytes).map_err(failed)
}

/// The generation that was noted in the run directory of a VM; `None` if nothing can be read of one.
#[must_use]
pub fn noted_generation(path: &Path) -> Option<u64> {
    let directory = Place::of(path).ok()?.directory().ok()??;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let file = rustix::fs::openat2(&directory, NAME, flags, Mode::empty(), resolve).ok()?;
    let mut bytes = [0; LEN];
    std::fs::File::from(file).read_exact(&mut bytes).ok()?;
    serde_json::from_slice::<Note>(&bytes).ok().map(|note| note.generation)
}
