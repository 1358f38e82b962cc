//! What derived files prove of the log.
//!
//! A checkpoint and the event store only ever take frames that were proven durable before. So the log
//! must hold what they say to include, and a log that ends before it has lost something, whatever
//! `HEAD` says or does not say.

use std::path::{Path, PathBuf};

use crate::checkpoint;
use crate::frame::Position;
use crate::store;

/// A frame that was durable, and the file that says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Proof {
    pub(crate) path: PathBuf,
    pub(crate) position: Position,
}

/// All proofs beside the log in `journal_dir`. To be read before the log, which then must bear them
/// out. What cannot be read proves nothing.
pub(crate) fn read(journal_dir: &Path) -> Vec<Proof> {
    let mut proofs = checkpoint::proofs(journal_dir);
    if let Ok(position) = store::position(journal_dir)
        && position.seq > 0
    {
        proofs.push(Proof { path: journal_dir.join("sled"), position });
    }
    proofs
}
