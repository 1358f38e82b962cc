//! A segment file in memory, as it is and as it should be.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::directory::Directory;
use crate::error::JournalError;
use crate::files;
use crate::frame::{Frame, MAGIC, MAX_FRAME_LEN, Seq};
use crate::segment::{HEADER_LEN, SegmentHeader};

/// Most bytes of a segment that are looked at.
const MAX_SEGMENT: u64 = 256 * 1024 * 1024;

/// See the module.
#[derive(Debug)]
pub(super) struct Image {
    pub(super) path: PathBuf,
    /// What the file should be, as far as it is known.
    pub(super) bytes: Vec<u8>,
}

/// Segments as they are looked at, one at a time.
#[derive(Debug)]
pub(super) struct Images {
    directory: Directory,
    all: BTreeMap<Seq, Image>,
}

impl Images {
    pub(super) fn new(directory: &Directory) -> Self {
        Self { directory: directory.clone(), all: BTreeMap::new() }
    }

    /// Forgets all but one.
    pub(super) fn keep_only(&mut self, first: Seq) {
        self.all.retain(|segment, _| *segment == first);
    }

    /// What the header of a segment says, if it can be read.
    pub(super) fn header(&self, first: Seq) -> Option<SegmentHeader> {
        if let Some(image) = self.all.get(&first) {
            return SegmentHeader::decode(&image.bytes).ok();
        }
        let mut bytes = Vec::new();
        let file = files::open_to_read(&self.directory.segment(first)).ok()?;
        file.take(HEADER_LEN).read_to_end(&mut bytes).ok()?;
        SegmentHeader::decode(&bytes).ok()
    }

    /// The segment that begins at `first`; an empty one if there is none.
    pub(super) fn get(&mut self, first: Seq) -> Result<&mut Image, JournalError> {
        if !self.all.contains_key(&first) {
            let path = self.directory.segment(first);
            let bytes = read(&path)?;
            self.all.insert(first, Image { path, bytes });
        }
        let missing = || JournalError::Missing { path: self.directory.path().to_owned() };
        self.all.get_mut(&first).ok_or_else(missing)
    }
}

/// The bytes of a segment. Something else in its place is as good as nothing.
fn read(path: &Path) -> Result<Vec<u8>, JournalError> {
    let file = match files::open_to_read(path) {
        Ok(file) => file,
        Err(error)
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidInput) =>
        {
            return Ok(Vec::new());
        }
        Err(error) => return Err(JournalError::io("open", path)(error)),
    };
    let mut bytes = Vec::new();
    file.take(MAX_SEGMENT).read_to_end(&mut bytes).map_err(JournalError::io("read", path))?;
    Ok(bytes)
}

impl Image {
    pub(super) fn after(&self, offset: usize) -> &[u8] {
        self.bytes.get(offset..).unwrap_or_default()
    }

    /// Puts bytes in their place.
    pub(super) fn put(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset.saturating_add(bytes.len());
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        if let Some(place) = self.bytes.get_mut(offset..end) {
            place.copy_from_slice(bytes);
        }
    }

    /// The first whole frame behind `offset` whose number is at least `seq`.
    pub(super) fn next_frame(&self, offset: usize, seq: Seq) -> Option<(usize, Frame)> {
        frames_after(self.after(offset))
            .find(|(_, frame)| frame.header.seq >= seq)
            .map(|(at, frame)| (offset + at, frame))
    }

    /// The same, but only if what lies before it could be one frame.
    pub(super) fn frame_beside(&self, offset: usize, seq: Seq) -> Option<(usize, Frame)> {
        let near = self.after(offset).len().min(2 * MAX_FRAME_LEN);
        let near = self.after(offset).get(..near).unwrap_or_default();
        let found = frames_after(near).find(|(_, frame)| frame.header.seq >= seq);
        found.map(|(at, frame)| (offset + at, frame))
    }

    /// All whole frames behind `offset`, with their bytes.
    pub(super) fn frames(&self, offset: usize) -> impl Iterator<Item = (Frame, &[u8])> {
        let rest = self.after(offset.saturating_sub(1));
        frames_after(rest).filter_map(move |(at, frame)| {
            let (_, len, _) = Frame::decode(rest.get(at..)?).ok()?;
            Some((frame, rest.get(at..at + len)?))
        })
    }

    /// The furthest number that a frame at or behind `offset` proves to be durable: its writer knew, or
    /// it is itself what a later segment stands on.
    pub(super) fn durable_after(&self, offset: usize) -> Seq {
        let rest = self.after(offset);
        let here = Frame::decode(rest).ok().map(|(frame, ..)| frame.header.durable_seq);
        let later = frames_after(rest).map(|(_, frame)| frame.header.durable_seq);
        here.into_iter().chain(later).max().unwrap_or_default()
    }
}

/// Whole frames in `bytes` behind its first byte.
fn frames_after(bytes: &[u8]) -> impl Iterator<Item = (usize, Frame)> {
    let starts = bytes.windows(MAGIC.len()).enumerate().skip(1);
    starts.filter(|(_, start)| *start == MAGIC).filter_map(|(offset, _)| {
        let (frame, ..) = Frame::decode(bytes.get(offset..)?).ok()?;
        Some((offset, frame))
    })
}
