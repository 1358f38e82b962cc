//! Reading frames from a generation that may be damaged, for who mends the log.

use std::path::Path;

use super::event;
use super::guarded::Db;
use super::quarantine::copy_tree;
use super::{StoredEvent, generation};
use crate::frame::{Frame, Hash, Seq, hash_of};

/// A copy of a generation, opened.
#[derive(Debug)]
pub(crate) struct Salvage {
    db: Db,
}

impl Salvage {
    /// Copies the generation in `dir` to `scratch` and opens it there.
    pub(crate) fn open(dir: &Path, scratch: &Path) -> Result<Self, String> {
        generation::is_plain(dir)?;
        copy_tree(dir, scratch).map_err(|error| error.to_string())?;
        let db = Db::open(scratch).map_err(|fault| format!("{fault:?}"))?;
        Ok(Self { db })
    }

    /// The frame that begins at `seq`, with its bytes and its hash, if all of it is there.
    pub(crate) fn frame(&mut self, seq: Seq) -> Option<(Frame, Vec<u8>, Hash)> {
        let first = self.event(seq)?;
        let mut entries = Vec::with_capacity(usize::from(first.header.count));
        for n in 0..u64::from(first.header.count) {
            let event = self.event(seq.checked_add(n)?)?;
            if event.hash != first.hash {
                return None;
            }
            entries.push(event.entry);
        }
        let frame = Frame { header: first.header, entries };
        let bytes = frame.encode().ok()?;
        let whole = frame.header.seq == seq && hash_of(&bytes) == first.hash;
        whole.then_some((frame, bytes, first.hash))
    }

    fn event(&self, seq: Seq) -> Option<StoredEvent> {
        let bytes = self.db.get(&event::event_key(seq)).ok()??;
        event::decode(&bytes, seq).ok()
    }
}
