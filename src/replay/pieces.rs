//! Where a history is read from: the files of a journal, or one file that holds it.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};

use cocoon_journal::bundle::{BundleReader, Bundled};
use cocoon_journal::checkpoint::Stub;
use cocoon_journal::export::lines::JsonFrames;
use cocoon_journal::inspect::{DurableEnd, Fault, FaultKind, Inspector, Piece, SeenFrame};
use cocoon_journal::{FrameError, JournalError, Position, bundle};

use super::ReplayError;

/// A history, piece by piece.
#[derive(Debug)]
pub enum Pieces {
    /// A journal's directory.
    Directory(PathBuf, Box<Inspector>),
    /// A backup or an export.
    File(FilePieces),
}

impl Pieces {
    /// Opens a journal's directory, a backup, or an export in either form.
    ///
    /// # Errors
    /// If there is no journal, or the file is none of these.
    pub fn open(path: &Path) -> Result<Self, ReplayError> {
        if path.is_file() {
            return Ok(Self::File(FilePieces::open(path)?));
        }
        Ok(Self::Directory(path.to_owned(), Box::new(Inspector::open(path)?)))
    }

    /// First sequence number that is there.
    #[must_use]
    pub fn begins_at(&self) -> u64 {
        match self {
            Self::Directory(_, inspector) => inspector.begins_at(),
            Self::File(file) => file.begins_at,
        }
    }

    /// The state with which history begins, if what was before was archived.
    #[must_use]
    pub fn stub(&self) -> Option<Stub> {
        let Self::Directory(dir, inspector) = self else { return None };
        let before = inspector.begins_at().checked_sub(1)?;
        let stub = Stub::at(dir, before).ok().flatten()?;
        stub.verify().is_ok().then_some(stub)
    }

    /// How far the journal says to be durable; a file is what it is.
    #[must_use]
    pub fn head(&self) -> Option<&DurableEnd> {
        match self {
            Self::Directory(_, inspector) => inspector.head(),
            Self::File(_) => None,
        }
    }
}

impl Iterator for Pieces {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        match self {
            Self::Directory(_, inspector) => inspector.next(),
            Self::File(file) => file.next(),
        }
    }
}

/// Frames from one of the two forms; what is wrong with one, in words, and whether it is merely newer.
type Frames = Box<dyn Iterator<Item = Result<Bundled, (String, bool)>>>;

/// What kind of file a history is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// A backup.
    Backup,
    /// An export as frames.
    Bundle,
    /// An export as JSON lines.
    Lines,
}

/// The history in a file. Ends with a fault if the file is not whole.
pub struct FilePieces {
    path: PathBuf,
    kind: FileKind,
    frames: Frames,
    begins_at: u64,
    offset: u64,
    last: Option<Position>,
    ready: VecDeque<Piece>,
    done: bool,
}

impl std::fmt::Debug for FilePieces {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FilePieces").field("path", &self.path).finish_non_exhaustive()
    }
}

impl FilePieces {
    /// Opens a backup or an export.
    ///
    /// # Errors
    /// If the file cannot be read, or is neither.
    pub fn open(path: &Path) -> Result<Self, ReplayError> {
        let (kind, frames, begins_at) = open(path)?;
        let mut pieces = Self {
            path: path.to_owned(),
            kind,
            frames,
            begins_at: begins_at.unwrap_or_default(),
            offset: bundle::BUNDLE_HEADER_LEN as u64,
            last: None,
            ready: VecDeque::new(),
            done: false,
        };
        if begins_at.is_none() {
            // Lines do not say at their beginning where history begins: the first of them does.
            pieces.fill();
            pieces.begins_at = pieces.ready.iter().find_map(first_seq).unwrap_or(1);
        }
        Ok(pieces)
    }

    /// What kind of file it is.
    #[must_use]
    pub fn kind(&self) -> FileKind {
        self.kind
    }

    fn fill(&mut self) {
        if self.done {
            return;
        }
        match self.frames.next() {
            Some(Ok(bundled)) => self.frame(bundled),
            Some(Err((what, is_newer))) => {
                self.done = true;
                let kind = if is_newer { FaultKind::Newer } else { FaultKind::Bytes };
                let fault = self.fault(kind, what);
                self.ready.push_back(Piece::Fault(fault));
            }
            None => self.done = true,
        }
    }

    fn frame(&mut self, bundled: Bundled) {
        let Bundled { frame, hash, bytes } = bundled;
        let expected = self.last.map_or(frame.header.seq, |last| last.seq.saturating_add(1));
        if frame.header.seq > expected {
            let lost = expected..=frame.header.seq.saturating_sub(1);
            let what = format!("events {} to {} are missing", lost.start(), lost.end());
            let fault = Fault { lost: Some(lost), ..self.fault(FaultKind::Gap, what) };
            self.ready.push_back(Piece::Fault(fault));
        }
        let offset = self.offset;
        self.offset = offset.saturating_add(bytes.len() as u64);
        self.last = Some(frame.position(hash));
        let seen = SeenFrame { frame, hash, segment: self.begins_at, offset, bytes };
        self.ready.push_back(Piece::Frame(seen));
    }

    fn fault(&self, kind: FaultKind, what: String) -> Fault {
        let seq = self.last.map_or(self.begins_at, |last| last.seq.saturating_add(1));
        Fault { kind, path: self.path.clone(), offset: self.offset, len: 0, seq, lost: None, what }
    }
}

impl Iterator for FilePieces {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        if self.ready.is_empty() {
            self.fill();
        }
        self.ready.pop_front()
    }
}

fn first_seq(piece: &Piece) -> Option<u64> {
    match piece {
        Piece::Frame(seen) => Some(seen.frame.header.seq),
        Piece::Segment(_) | Piece::Fault(_) => None,
    }
}

fn open(path: &Path) -> Result<(FileKind, Frames, Option<u64>), ReplayError> {
    let failed = |source| {
        ReplayError::Journal(JournalError::Io { action: "read", path: path.to_owned(), source })
    };
    let not_one = |source| ReplayError::File { path: path.to_owned(), source };
    let mut input = BufReader::with_capacity(256 * 1024, File::open(path).map_err(failed)?);
    let is_lines = input.fill_buf().map_err(failed)?.first() == Some(&b'{');
    if is_lines {
        let frames = JsonFrames::new(input);
        let frames = frames.map(|frame| frame.map_err(|fault| (fault.to_string(), false)));
        return Ok((FileKind::Lines, Box::new(frames), None));
    }
    let reader = BundleReader::new(input).map_err(not_one)?;
    let kind = if reader.header().is_backup { FileKind::Backup } else { FileKind::Bundle };
    let begins_at = reader.header().first;
    let frames = reader.map(|frame| frame.map_err(|fault| (fault.to_string(), is_newer(&fault))));
    Ok((kind, Box::new(frames), Some(begins_at)))
}

fn is_newer(fault: &bundle::BundleFault) -> bool {
    matches!(
        fault,
        bundle::BundleFault::Newer { .. }
            | bundle::BundleFault::Frame { source: FrameError::NewerVersion { .. }, .. }
    )
}
