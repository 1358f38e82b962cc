//! Ending history before a loss.
//!
//! ```text
//!  1 the segment with the loss, and all after it, copied aside
//!  2 that segment gets its good beginning and JournalSalvaged, in one rename   others: HEAD, a later
//!  3 later segments put aside                                                  segment, a checkpoint or
//!  4 checkpoints and generations that include more put aside                   the store know of more,
//!  5 HEAD says where the log ends now                                          so the log is damaged
//! ```

use std::fs;
use std::path::Path;

use super::plan::{Decided, How};
use super::walk::{Walked, narrow};
use super::{RepairError, RepairOptions, kept, record};
use crate::clock::boot_id;
use crate::cursor::{Cursor, Mark, Step};
use crate::directory::Directory;
use crate::error::JournalError;
use crate::files;
use crate::frame::{Frame, FrameHeader, Seq, Writer};
use crate::head::{self, Head};
use crate::store;

/// Cuts the log as decided, or goes on with it. The caller holds the writers' lock. Gives the number of the
/// event that says so.
pub(super) fn carry_out(
    directory: &Directory,
    options: &RepairOptions,
    writer: &Writer,
    dir: &Path,
    decided: &Decided,
    mut walked: Walked,
) -> Result<Seq, RepairError> {
    let How::Cut { segment, offset } = decided.how else { return Ok(0) };
    let boundary = options.journal.boundary;
    if record::find(directory, decided).is_none() {
        for first in directory.list()?.into_iter().filter(|first| *first >= segment) {
            kept::copy_aside(&directory.segment(first), dir, "seg")?;
        }
        boundary("repair.cut.copied");
        let Some(cut) = walked.cut else { return Ok(0) };
        let frame = salvaged(options, writer, decided, cut.mark)?;
        let image = walked.images.get(segment)?;
        let mut bytes = image.bytes.get(..narrow(offset)).unwrap_or_default().to_vec();
        bytes.extend_from_slice(&frame.encode().map_err(JournalError::from)?);
        kept::replace(directory, segment, &bytes)?;
        boundary("repair.cut.replaced");
    }
    for first in directory.list()?.into_iter().filter(|first| *first > segment) {
        let path = directory.segment(first);
        // Its copy is there already.
        fs::remove_file(&path).map_err(JournalError::io("remove", &path))?;
        crate::directory::sync_dir(&directory.segments())?;
        boundary("repair.cut.segment");
    }
    clear_derived(directory, dir, decided.last_kept, boundary)?;
    let end = end_of(directory, segment)?;
    publish_head(directory, options, walked.root, end)?;
    boundary("repair.cut.head");
    Ok(end.seq)
}

/// The frame with which the log goes on.
fn salvaged(
    options: &RepairOptions,
    writer: &Writer,
    decided: &Decided,
    mark: Mark,
) -> Result<Frame, JournalError> {
    let header = FrameHeader {
        codec: options.journal.codec,
        flags: 0,
        prev_len: mark.last_len,
        ordinal: 0,
        seq: mark.seq.saturating_add(1),
        count: 1,
        wall_us: (options.journal.clock.wall_us)(),
        boottime_us: (options.journal.clock.boottime_us)(),
        boot_id: boot_id(&options.journal.boot_id_path)?,
        operation: decided.operation,
        pid: writer.pid,
        start_time: writer.start_time,
        verb: writer.verb.clone(),
        durable_seq: mark.seq,
        prev_hash: mark.hash,
    };
    Ok(Frame { header, entries: vec![record::entry(decided)?] })
}

/// Puts aside what includes more than the log does.
fn clear_derived(
    directory: &Directory,
    dir: &Path,
    last: Seq,
    boundary: fn(&'static str),
) -> Result<(), RepairError> {
    let checkpoints = directory.path().join("ckpt");
    let mut names: Vec<_> = fs::read_dir(&checkpoints).into_iter().flatten().flatten().collect();
    // Manifests before the tables that they name.
    names.sort_by_key(|entry| !entry.file_name().to_string_lossy().ends_with(".ckpt"));
    for entry in names {
        let name = entry.file_name().to_string_lossy().into_owned();
        let seq = name.split_once('.').and_then(|(digits, _)| digits.parse::<Seq>().ok());
        if seq.is_some_and(|seq| seq > last) {
            kept::move_aside(&entry.path(), dir, "ckpt")?;
            boundary("repair.cut.checkpoint");
        }
    }
    let mut generations = store::generation_dirs(directory.path());
    generations.reverse();
    for (first, path) in generations {
        if first > last || store::reaches(&path).is_none_or(|reached| reached > last) {
            kept::move_aside(&path, dir, "sled")?;
            boundary("repair.cut.generation");
        }
    }
    Ok(())
}

/// The end of a segment.
fn end_of(directory: &Directory, segment: Seq) -> Result<Mark, JournalError> {
    let missing = || JournalError::Missing { path: directory.path().to_owned() };
    let mut cursor = Cursor::at_segment(directory, segment)?.ok_or_else(missing)?;
    while let Step::Frame(_) = cursor.step()? {}
    Ok(cursor.mark())
}

/// Makes HEAD anew: it only ever grows otherwise.
fn publish_head(
    directory: &Directory,
    options: &RepairOptions,
    root: uuid::Uuid,
    mark: Mark,
) -> Result<(), JournalError> {
    let boot_id = boot_id(&options.journal.boot_id_path)?;
    let path = directory.head();
    let bytes = head::file_of(&Head { mark, boot_id, root });
    files::publish(&path, &bytes).map_err(JournalError::io("write", &path))
}
