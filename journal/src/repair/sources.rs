//! Where lost frames may still be: in the event store, and in other copies of the journal.
//!
//! sled writes to whatever it opens, so generations are copied to a scratch directory and opened
//! there. Nothing is believed: a frame counts only if its bytes have the hash that it was stored under.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::Source;
use crate::frame::{Frame, Hash, Position, Seq};
use crate::inspect::{Inspector, Piece};
use crate::store::salvage::Salvage;

/// A frame with its bytes and where they come from.
pub(super) struct Kept {
    pub(super) frame: Frame,
    pub(super) bytes: Vec<u8>,
    pub(super) hash: Hash,
    pub(super) source: Source,
}

/// Opened when first asked.
pub(super) struct Sources {
    journal_dir: PathBuf,
    copies: Vec<PathBuf>,
    opened: Option<Opened>,
    moved: Frames,
}

/// Frames by what they follow.
type Frames = HashMap<(Seq, Hash), Vec<u8>>;

struct Opened {
    generations: Vec<Salvage>,
    frames: Frames,
    _scratch: Scratch,
}

impl Sources {
    pub(super) fn new(journal_dir: &Path, copies: &[PathBuf]) -> Self {
        Self {
            journal_dir: journal_dir.to_owned(),
            copies: copies.to_vec(),
            opened: None,
            moved: Frames::new(),
        }
    }

    /// Keeps frames of a damaged segment in mind: where bytes were taken out or put in, they are not where
    /// they belong.
    pub(super) fn remember<'a>(&mut self, frames: impl Iterator<Item = (Frame, &'a [u8])>) {
        for (frame, bytes) in frames {
            self.moved.insert((frame.header.seq, frame.header.prev_hash), bytes.to_vec());
        }
    }

    /// The frame that follows `last`, if anything still has it.
    pub(super) fn after(&mut self, last: Position) -> io::Result<Option<Kept>> {
        let seq = last.seq.saturating_add(1);
        if let Some(kept) = among(&self.moved, seq, last.hash, Source::Moved) {
            return Ok(Some(kept));
        }
        let opened = match &mut self.opened {
            Some(opened) => opened,
            none => none.insert(open(&self.journal_dir, &self.copies)?),
        };
        if let Some(kept) = among(&opened.frames, seq, last.hash, Source::Copy) {
            return Ok(Some(kept));
        }
        let found = opened.generations.iter_mut().find_map(|generation| {
            generation.frame(seq).filter(|(frame, ..)| frame.header.prev_hash == last.hash)
        });
        Ok(found.map(|(frame, bytes, hash)| Kept { frame, bytes, hash, source: Source::Store }))
    }
}

fn among(frames: &Frames, seq: Seq, prev_hash: Hash, source: Source) -> Option<Kept> {
    let bytes = frames.get(&(seq, prev_hash))?;
    let (frame, _, hash) = Frame::decode(bytes).ok()?;
    Some(Kept { frame, bytes: bytes.clone(), hash, source })
}

fn open(journal_dir: &Path, copies: &[PathBuf]) -> io::Result<Opened> {
    let scratch = Scratch::new()?;
    let mut generations = Vec::new();
    for (n, dir) in generation_dirs(journal_dir).into_iter().enumerate() {
        match Salvage::open(&dir, &scratch.0.join(n.to_string())) {
            Ok(generation) => generations.push(generation),
            Err(why) => {
                tracing::info!(dir = %dir.display(), why, "nothing can be read from a generation");
            }
        }
    }
    let mut frames = HashMap::new();
    let aside = salvaged(journal_dir).map(|dir| dir.join("seg"));
    for dir in copies.iter().cloned().chain(aside) {
        let Ok(pieces) = Inspector::open(&dir) else { continue };
        for piece in pieces {
            if let Piece::Frame(seen) = piece {
                let header = &seen.frame.header;
                frames.insert((header.seq, header.prev_hash), seen.bytes);
            }
        }
    }
    Ok(Opened { generations, frames, _scratch: scratch })
}

/// Directories in quarantine that earlier repairs made.
fn salvaged(journal_dir: &Path) -> impl Iterator<Item = PathBuf> {
    children(&journal_dir.join("quarantine")).into_iter().filter(|path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("salvage-"))
    })
}

/// Every generation of the store: live, put aside, or copied because it was in doubt.
fn generation_dirs(journal_dir: &Path) -> Vec<PathBuf> {
    let mut dirs = children(&journal_dir.join("sled"));
    for aside in children(&journal_dir.join("quarantine")) {
        let name = aside.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with("sled-") {
            dirs.extend(["generation", "before-open"].map(|inner| aside.join(inner)));
            dirs.push(aside);
        } else if name.starts_with("salvage-") {
            dirs.extend(children(&aside.join("sled")));
        }
    }
    dirs.retain(|dir| dir.join("db").is_file());
    dirs
}

fn children(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// A directory that goes with the value.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> io::Result<Self> {
        let dir = std::env::temp_dir().join(format!("cocoon-repair-{}", uuid::Uuid::new_v4()));
        fs::DirBuilder::new().mode(0o700).create(&dir)?;
        Ok(Self(dir))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            tracing::warn!(dir = %self.0.display(), %error, "cannot remove a scratch directory");
        }
    }
}
