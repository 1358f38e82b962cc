//! Where a history is read from: the files of a journal, or one file that holds it.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use cocoon_journal::bundle::{BundleReader, Bundled};
use cocoon_journal::checkpoint::Stub;
use cocoon_journal::export::lines::JsonFrames;
use cocoon_journal::frame::MAGIC;
use cocoon_journal::inspect::{DurableEnd, Fault, FaultKind, Inspector, Piece, SeenFrame};
use cocoon_journal::{Frame, FrameError, JournalError, Position, bundle};

use rustix::fs::{MemfdFlags, memfd_create};

use super::ReplayError;

/// A history, piece by piece.
#[derive(Debug)]
pub enum Pieces {
    /// A journal's directory.
    Directory(PathBuf, Box<Inspector>),
    /// A backup or an export.
    File(Box<FilePieces>),
}

impl Pieces {
    /// Opens a journal's directory, a backup, or an export in either form.
    ///
    /// # Errors
    /// If there is no journal, or the file is none of these.
    pub fn open(path: &Path) -> Result<Self, ReplayError> {
        if path.is_file() {
            return Ok(Self::File(Box::new(FilePieces::open(path)?)));
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
    pub fn stub(&mut self) -> Option<Stub> {
        let before = self.begins_at().checked_sub(1)?;
        let stub = match self {
            Self::Directory(dir, _) => Stub::at(dir, before).ok().flatten(),
            Self::File(file) => file.stub.take(),
        };
        stub.filter(|stub| stub.position().seq == before && stub.verify().is_ok())
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

/// The history in a file. Tells a fault if the file is not whole, and goes on behind it as far as anything can be found.
pub struct FilePieces {
    path: PathBuf,
    kind: FileKind,
    frames: Frames,
    begins_at: u64,
    /// The state with which a backup of an archived journal begins.
    stub: Option<Stub>,
    offset: u64,
    last: Option<Position>,
    ready: VecDeque<Piece>,
    /// What comes now was found by searching.
    passed_fault: bool,
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
        let Opened { kind, frames, begins_at, stub, offset } = open(path)?;
        let mut pieces = Self {
            path: path.to_owned(),
            kind,
            frames,
            begins_at: begins_at.unwrap_or_default(),
            stub,
            offset,
            last: None,
            ready: VecDeque::new(),
            passed_fault: false,
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
        while self.ready.is_empty() {
            match self.frames.next() {
                Some(Ok(bundled)) => self.frame(bundled),
                Some(Err((what, is_newer))) => {
                    let kind = if is_newer { FaultKind::Newer } else { FaultKind::Bytes };
                    let fault = self.fault(kind, what);
                    self.ready.push_back(Piece::Fault(fault));
                    self.pass_fault();
                }
                None => return,
            }
        }
    }

    /// Goes on with whole frames behind a place that cannot be read. Lines end there.
    fn pass_fault(&mut self) {
        let is_bundle = self.kind != FileKind::Lines && !self.passed_fault;
        let rest = is_bundle.then(|| Rest::of(&self.path, self.offset)).flatten();
        self.passed_fault = true;
        self.frames = match rest {
            Some(rest) => Box::new(rest.map(Ok)),
            None => Box::new(std::iter::empty()),
        };
    }

    fn frame(&mut self, bundled: Bundled) {
        let Bundled { frame, hash, bytes } = bundled;
        if self.last.is_some_and(|last| frame.header.seq <= last.seq) {
            return;
        }
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
        self.fill();
        self.ready.pop_front()
    }
}

/// Most bytes behind a fault that are searched.
const MAX_REST: u64 = 256 * 1024 * 1024;

/// Whole frames in what is left of a file, found by their magic number.
struct Rest {
    bytes: Vec<u8>,
    at: usize,
}

impl Rest {
    fn of(path: &Path, offset: u64) -> Option<Self> {
        let mut file = File::open(path).ok()?;
        file.seek(SeekFrom::Start(offset)).ok()?;
        let mut bytes = Vec::new();
        file.take(MAX_REST).read_to_end(&mut bytes).ok()?;
        Some(Self { bytes, at: 0 })
    }
}

impl Iterator for Rest {
    type Item = Bundled;

    fn next(&mut self) -> Option<Bundled> {
        loop {
            let rest = self.bytes.get(self.at..)?;
            self.at += rest.windows(MAGIC.len()).position(|start| start == MAGIC)?;
            let rest = self.bytes.get(self.at..)?;
            if let Ok((frame, len, hash)) = Frame::decode(rest) {
                let bytes = rest.get(..len).unwrap_or_default().to_vec();
                self.at += len;
                return Some(Bundled { frame, hash, bytes });
            }
            self.at += 1;
        }
    }
}

fn first_seq(piece: &Piece) -> Option<u64> {
    match piece {
        Piece::Frame(seen) => Some(seen.frame.header.seq),
        Piece::Segment(_) | Piece::Fault(_) => None,
    }
}

/// An opened file.
struct Opened {
    kind: FileKind,
    frames: Frames,
    begins_at: Option<u64>,
    stub: Option<Stub>,
    /// Where the first frame begins, bytes.
    offset: u64,
}

fn open(path: &Path) -> Result<Opened, ReplayError> {
    let failed = |source| {
        ReplayError::Journal(JournalError::Io { action: "read", path: path.to_owned(), source })
    };
    let not_one = |source| ReplayError::File { path: path.to_owned(), source };
    let mut input = BufReader::with_capacity(256 * 1024, File::open(path).map_err(failed)?);
    let is_lines = input.fill_buf().map_err(failed)?.first() == Some(&b'{');
    if is_lines {
        let frames = JsonFrames::new(input);
        let frames = frames.map(|frame| frame.map_err(|fault| (fault.to_string(), false)));
        let frames = Box::new(frames);
        let (kind, begins_at, stub) = (FileKind::Lines, None, None);
        return Ok(Opened { kind, frames, begins_at, stub, offset: 0 });
    }
    let mut reader = BundleReader::new(input).map_err(not_one)?;
    let kind = if reader.header().is_backup { FileKind::Backup } else { FileKind::Bundle };
    let begins_at = Some(reader.header().first);
    let offset = reader.header().stub_len.saturating_add(bundle::BUNDLE_HEADER_LEN as u64);
    let stub = stub_of(&mut reader);
    let frames = reader.map(|frame| frame.map_err(|fault| (fault.to_string(), is_newer(&fault))));
    Ok(Opened { kind, frames: Box::new(frames), begins_at, stub, offset })
}

/// The state with which a bundle begins, if it can be read; it is held in memory.
fn stub_of(reader: &mut BundleReader<impl Read>) -> Option<Stub> {
    if reader.header().stub_len == 0 {
        return None;
    }
    let mut memory = File::from(memfd_create("stub", MemfdFlags::CLOEXEC).ok()?);
    reader.copy_stub(&mut memory).ok()?;
    Stub::of_file(memory, Path::new("the state at the beginning")).ok()
}

fn is_newer(fault: &bundle::BundleFault) -> bool {
    matches!(
        fault,
        bundle::BundleFault::Newer { .. }
            | bundle::BundleFault::Frame { source: FrameError::NewerVersion { .. }, .. }
    )
}
