//! Letting history begin behind a loss: the state is that of a checkpoint beyond it, and a stub keeps it, as after an
//! archive.

use std::path::Path;
use std::time::Instant;

use super::{LOCK_TIMEOUT, RepairError, RepairOptions, kept};
use crate::checkpoint::{Checkpoint, CheckpointError, Stub, StubContent};
use crate::directory::Directory;
use crate::frame::{Seq, Writer};
use crate::lock::Lock;
use crate::store;

/// Puts every segment before `begins` aside, and the generations that go with them.
pub(super) fn carry_out(
    directory: &Directory,
    options: &RepairOptions,
    writer: &Writer,
    dir: &Path,
    begins: Seq,
) -> Result<(), RepairError> {
    let deadline = Instant::now() + LOCK_TIMEOUT;
    let _lock = Lock::acquire(&directory.lock(), writer, deadline)?;
    leave_stub(directory, dir, begins)?;
    (options.journal.boundary)("repair.retired.stub");
    for first in directory.list()?.into_iter().filter(|first| *first < begins) {
        kept::move_aside(&directory.segment(first), dir, "seg")?;
        (options.journal.boundary)("repair.retired.segment");
    }
    for generation in store::generation_dirs(directory.path()) {
        if generation.0 < begins {
            kept::move_aside(&generation.1, dir, "sled")?;
            (options.journal.boundary)("repair.retired.generation");
        }
    }
    Ok(())
}

/// Keeps the state that history goes on from, so that it is there whatever becomes of the checkpoints.
fn leave_stub(directory: &Directory, dir: &Path, begins: Seq) -> Result<(), CheckpointError> {
    let journal_dir = directory.path();
    // One that does not fit is as good as none here: it is about what is put aside now.
    let before = Stub::latest(journal_dir).ok().flatten();
    if before.as_ref().is_some_and(|stub| stub.position().seq.saturating_add(1) >= begins) {
        return Ok(());
    }
    let latest = Checkpoint::latest(journal_dir)?;
    let Some(checkpoint) = latest.checkpoint else { return Ok(()) };
    let remembered = before.iter().flat_map(Stub::remembered).collect::<Result<_, _>>()?;
    let content = StubContent {
        position: checkpoint.position(),
        moved_to: dir.join("seg"),
        state: checkpoint.prefix(b"").collect::<Result<_, _>>()?,
        remembered,
    };
    Stub::write(journal_dir, &content).map(|_| ())
}
