//! Sealing a full segment, crash-safe at each step.
//!
//! ```text
//!  under LOCK                                             a crash here leaves
//!  1 next segment with its reserve: temporary, synced,    a segment that no seal names: swept by
//!    renamed, directory synced   journal.seal.created     the next writer
//!  2 JournalSealed{next} written with the frame
//!    that filled the segment   journal.write.after        a seal, perhaps not durable: the next
//!                                                         writer writes and syncs it again first
//!  3 this segment synced       journal.seal.synced        a sealed segment
//!  4 the next takes frames
//! ```

use super::{Author, SegmentedJournal, State};
use crate::cursor::Mark;
use crate::directory::Directory;
use crate::error::JournalError;
use crate::frame::{Frame, Seq, Writer, hash_of};
use crate::journal::Fold;
use crate::reserved::JournalEvent;
use crate::segment::{self, Room, SegmentHeader};
use crate::view::{View, feed};

/// A seal that is about to be written.
pub(super) struct Sealing {
    /// After the seal.
    mark: Mark,
}

/// If the segment is full, makes the next one and appends the seal to what is to be written.
///
/// Where the next segment cannot be made (a full disk), the seal waits: this one grows on.
pub(super) fn prepare<F: Fold>(
    journal: &SegmentedJournal,
    state: &mut State,
    fold: &mut F,
    writer: &Writer,
) -> Result<Option<Sealing>, JournalError> {
    let view = state.view.as_mut().ok_or(JournalError::Poisoned)?;
    if !is_full(journal, view) {
        return Ok(None);
    }
    let (seal, bytes) = build(journal, view, writer)?;
    let hash = hash_of(&bytes);
    let end = view.end().after(&seal, hash, bytes.len());
    let header = SegmentHeader {
        root: journal.root,
        first: seal.last_seq().saturating_add(1),
        prev_hash: hash,
        created_us: seal.header.wall_us,
        prev_end: end.offset,
        prev_last_len: end.last_len,
    };
    journal.boundary("journal.seal.before");
    let made = sweep(journal, view)
        .and_then(|()| view.segment().find_room(view.end().offset, bytes.len(), Room::Reserve))
        .and_then(|()| journal.directory.create_segment(&header));
    if let Err(error) = made {
        tracing::warn!(%error, "the segment is full but the next cannot be made; it grows on");
        return Ok(None);
    }
    journal.boundary("journal.seal.created");
    feed(fold, &seal, hash)?;
    view.append(&seal, hash, bytes);
    Ok(Some(Sealing { mark: view.end() }))
}

fn is_full(journal: &SegmentedJournal, view: &View) -> bool {
    let end = view.end();
    let events = end.seq.saturating_add(1).saturating_sub(end.segment);
    end.offset >= journal.options.segment_bytes.max(segment::HEADER_LEN + 1)
        || events >= journal.options.segment_events.max(1)
}

fn build(
    journal: &SegmentedJournal,
    view: &View,
    writer: &Writer,
) -> Result<(Frame, Vec<u8>), JournalError> {
    let next = view.end().seq.saturating_add(2);
    let entry = JournalEvent::Sealed { next }.to_entry()?;
    let seal = journal.frame(vec![entry], &Author::journal(writer), view.end(), view.known());
    let bytes = seal.encode()?;
    Ok((seal, bytes))
}

/// After the write: syncs the segment, and only then enters the next.
pub(super) fn finish(
    journal: &SegmentedJournal,
    state: &mut State,
    sealing: &Sealing,
) -> Result<(), JournalError> {
    let view = state.view.as_mut().ok_or(JournalError::Poisoned)?;
    view.segment().sync()?;
    journal.boundary("journal.seal.synced");
    view.learn(sealing.mark.seq);
    view.segment().release_reserve();
    if let Some(fault) = view.cross_seal()? {
        return Err(view.damaged(fault.to_string()));
    }
    journal.publish(state, sealing.mark);
    Ok(())
}

/// Writes and syncs the pending end of a sealed segment.
pub(super) fn make_good(
    directory: &Directory,
    view: &mut View,
    number: Seq,
    offset: u64,
    bytes: &[u8],
    last: Seq,
) -> Result<(), JournalError> {
    let Some(segment) = directory.open_segment(number)? else {
        return Err(view.damaged(format!("segment {number} has gone")));
    };
    segment.write(bytes, offset)?;
    segment.sync()?;
    view.learn(last);
    Ok(())
}

/// Removes segments that no seal names. One that holds frames is damage: its seal has gone.
pub(super) fn sweep(journal: &SegmentedJournal, view: &View) -> Result<(), JournalError> {
    let live = view.end().segment;
    for first in journal.directory.list()?.into_iter().filter(|first| *first > live) {
        let path = journal.directory.segment(first);
        let Some(segment) = journal.directory.open_segment(first)? else { continue };
        if segment.len()? > segment::HEADER_LEN {
            return Err(
                view.damaged(format!("segment {first} holds frames, but no seal leads to it"))
            );
        }
        std::fs::remove_file(&path).map_err(JournalError::io("remove", &path))?;
    }
    Ok(())
}
