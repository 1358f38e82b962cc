//! Finding a sequence number without reading a segment from its start.
//!
//! The names of the segments tell which one. `HEAD` tells where the last durable frame of the live
//! segment ends, the header of the next segment where the last frame of a sealed one does, and each
//! frame how long the one before it is: where what is wanted is nearer to the end, the way goes
//! backwards. Nothing found on the way is believed: the frame before the place is decoded and
//! checked, and if anything is odd the way is gone forwards from the header.

use super::{Cursor, From, Mark};
use crate::directory::Directory;
use crate::error::JournalError;
use crate::frame::{Frame, HEADER_LEN, MAX_FRAME_LEN, Peek, Position, Seq};
use crate::head::Head;
use crate::segment;

pub(super) fn locate(
    directory: &Directory,
    from: From,
    head: Option<&Head>,
) -> Result<Option<Cursor>, JournalError> {
    let wanted = match from {
        From::Position(position) => position.seq.saturating_add(1),
        From::Seq(seq) => seq.max(1),
    };
    let Some(mut cursor) = open_segment_of(directory, wanted, head)? else {
        return Ok(None);
    };
    let found = match end_of(&cursor, wanted, head)? {
        Some(end) if is_nearer_to(&end, wanted) => backwards(&mut cursor, wanted, &end)?,
        _ => None,
    };
    match found {
        Some(mark) => cursor.mark = mark,
        None => forwards(&mut cursor, wanted)?,
    }
    note_seal(&mut cursor)?;
    match from {
        From::Position(position) => confirm(cursor, position),
        From::Seq(_) => Ok(Some(cursor)),
    }
}

/// Whether `wanted` is in the part of its segment that `HEAD` vouches for, or right after it.
fn in_segment_of(head: &Head, wanted: Seq) -> bool {
    (head.mark.segment..=head.mark.seq.saturating_add(1)).contains(&wanted)
}

/// An end of the cursor's segment that is said to lie after `wanted`, or right before it.
fn end_of(cursor: &Cursor, wanted: Seq, head: Option<&Head>) -> Result<Option<Mark>, JournalError> {
    if let Some(head) = head.filter(|head| in_segment_of(head, wanted)) {
        return Ok(Some(head.mark));
    }
    let firsts = cursor.directory.list()?;
    let Some(next) = firsts.iter().find(|first| **first > cursor.mark.segment) else {
        return Ok(None);
    };
    let Some(next) = cursor.directory.open_segment(*next)? else { return Ok(None) };
    let Position { seq, hash } = Mark::start_of(&next).position();
    let (offset, last_len) = (next.header.prev_end, next.header.prev_last_len);
    Ok(Some(Mark { segment: cursor.mark.segment, seq, hash, offset, last_len }))
}

/// Whether `wanted` is before `end`, and nearer to it than to the start of the segment.
fn is_nearer_to(end: &Mark, wanted: Seq) -> bool {
    let back = end.seq.saturating_add(1).checked_sub(wanted);
    back.is_some_and(|back| back <= wanted.saturating_sub(end.segment))
}

/// The segment in which the frame with `wanted` begins, or will.
fn open_segment_of(
    directory: &Directory,
    wanted: Seq,
    head: Option<&Head>,
) -> Result<Option<Cursor>, JournalError> {
    if let Some(head) = head.filter(|head| in_segment_of(head, wanted)) {
        return Cursor::at_segment(directory, head.mark.segment);
    }
    let firsts = directory.list()?;
    let Some(oldest) = firsts.first() else { return Ok(None) };
    for first in firsts.iter().rev().filter(|first| **first <= wanted) {
        let Some(mut cursor) = Cursor::at_segment(directory, *first)? else { continue };
        // A segment without a frame may be one that no seal names: come to it by the one before.
        if first == oldest || !is_empty(&mut cursor)? {
            return Ok(Some(cursor));
        }
    }
    Err(JournalError::HistoryBegins { first: *oldest, wanted })
}

fn is_empty(cursor: &mut Cursor) -> Result<bool, JournalError> {
    let bytes = cursor.window.forward(&cursor.segment, segment::HEADER_LEN, HEADER_LEN)?;
    Ok(Peek::new(bytes).is_err())
}

/// Goes from frame to frame by their lengths until the one that holds `wanted`, or the end.
fn forwards(cursor: &mut Cursor, wanted: Seq) -> Result<(), JournalError> {
    let mut before = None;
    let mut offset = segment::HEADER_LEN;
    loop {
        let bytes = cursor.window.forward(&cursor.segment, offset, HEADER_LEN)?;
        match Peek::new(bytes) {
            Ok(peek) if peek.last_seq() < wanted => {
                before = Some(offset);
                offset = offset.saturating_add(u64::try_from(peek.len).unwrap_or(u64::MAX));
            }
            _ => break,
        }
    }
    cursor.mark = match before {
        // A frame that cannot be read here is met again, and judged, by stepping from the start.
        Some(offset) => mark_after(cursor, offset)?.unwrap_or(Mark::start_of(&cursor.segment)),
        None => Mark::start_of(&cursor.segment),
    };
    Ok(())
}

/// Goes back from `from`; `None` if something is odd.
fn backwards(cursor: &mut Cursor, wanted: Seq, from: &Mark) -> Result<Option<Mark>, JournalError> {
    let (mut end, mut len) = (from.offset, u64::from(from.last_len));
    let mut seq = from.seq;
    while len > 0 {
        let Some(offset) = end.checked_sub(len).filter(|at| *at >= segment::HEADER_LEN) else {
            return Ok(None);
        };
        let bytes = cursor.window.backward(&cursor.segment, offset, HEADER_LEN)?;
        let Ok(peek) = Peek::new(bytes) else { return Ok(None) };
        if peek.last_seq() != seq || u64::try_from(peek.len) != Ok(len) {
            return Ok(None);
        }
        if seq < wanted {
            return mark_after(cursor, offset);
        }
        (end, len) = (offset, u64::try_from(peek.prev_len).unwrap_or_default());
        seq = peek.seq.saturating_sub(1);
    }
    let start = Mark::start_of(&cursor.segment);
    Ok((end == start.offset && seq == start.seq).then_some(start))
}

/// The mark after the frame at `offset`, if that is a good one.
fn mark_after(cursor: &mut Cursor, offset: u64) -> Result<Option<Mark>, JournalError> {
    let bytes = cursor.window.forward(&cursor.segment, offset, MAX_FRAME_LEN)?;
    let Ok((frame, len, hash)) = Frame::decode(bytes) else { return Ok(None) };
    let before = Mark { segment: cursor.mark.segment, offset, ..Mark::default() };
    Ok(Some(before.after(&frame, hash, len)))
}

/// If the frame before the mark is a seal, the way leads on into the next segment.
fn note_seal(cursor: &mut Cursor) -> Result<(), JournalError> {
    let len = u64::from(cursor.mark.last_len);
    if len == 0 {
        return Ok(());
    }
    let offset = cursor.mark.offset.saturating_sub(len);
    let want = usize::try_from(len).unwrap_or(MAX_FRAME_LEN);
    let bytes = cursor.window.forward(&cursor.segment, offset, want)?;
    if let Ok((frame, ..)) = Frame::decode(bytes) {
        cursor.next = frame.entries.last().and_then(super::sealed_next);
    }
    Ok(())
}

/// Checks that the cursor stands after the very frame that `position` names.
fn confirm(cursor: Cursor, position: Position) -> Result<Option<Cursor>, JournalError> {
    let found = cursor.mark.position();
    if found == position {
        Ok(Some(cursor))
    } else if found.seq < position.seq {
        Ok(None)
    } else {
        Err(JournalError::Diverged { folded: position, found })
    }
}
