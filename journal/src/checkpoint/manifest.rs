//! The small file that says what a checkpoint consists of.
//!
//! Magic (8), format (2), number of tables (2), sequence number (8), chain hash (32); for each
//! table kind (1), sequence number (8), entries (8), file length (8), digest (32); crc32 of all
//! before (4). All numbers are little-endian. Names follow from kind and number, so a manifest
//! cannot name a file outside its directory.

use std::io;
use std::path::{Path, PathBuf};

use super::CheckpointError;
use crate::files;
use crate::frame::{Position, Seq};
use crate::table::TableId;

/// The newest manifest format that this program writes; it reads every format from 1 up to it.
pub const CHECKPOINT_FORMAT: u16 = 1;

const MAGIC: &[u8; 8] = b"CCNCHKPT";
const HEAD_LEN: usize = 52;
const TABLE_LEN: usize = 57;
const CRC_LEN: usize = 4;
/// No manifest is longer; what is longer is not read.
const MAX_LEN: u64 = (HEAD_LEN + 64 * TABLE_LEN + CRC_LEN) as u64;

/// What a table of a checkpoint holds. The numbers are stored: never reuse one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum TableKind {
    /// Every key of the state.
    Base = 1,
    /// The keys that changed or went.
    Delta = 2,
}

impl TableKind {
    fn from_number(number: u8) -> Option<Self> {
        [Self::Base, Self::Delta].into_iter().find(|kind| *kind as u8 == number)
    }

    pub(super) fn extension(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::Delta => "delta",
        }
    }
}

/// A table as a manifest names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NamedTable {
    pub(super) kind: TableKind,
    pub(super) seq: Seq,
    pub(super) id: TableId,
}

impl NamedTable {
    pub(super) fn name(&self) -> String {
        format!("{:020}.{}", self.seq, self.kind.extension())
    }

    pub(super) fn path(&self, dir: &Path) -> PathBuf {
        dir.join(self.name())
    }
}

/// The content of a manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Manifest {
    pub(super) position: Position,
    /// The base first, then the deltas, the newest last.
    pub(super) tables: Vec<NamedTable>,
}

/// The name of the manifest of the checkpoint at `seq`.
pub(super) fn name_of(seq: Seq) -> String {
    format!("{seq:020}.ckpt")
}

/// The sequence number of the checkpoint whose manifest has this name.
pub(super) fn seq_of(name: &str) -> Option<Seq> {
    let digits = name.strip_suffix(".ckpt")?;
    (digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit()))
        .then(|| digits.parse().ok())?
}

impl Manifest {
    pub(super) fn read(dir: &Path, seq: Seq) -> Result<Self, CheckpointError> {
        let path = dir.join(name_of(seq));
        let bytes = read_bounded(&path).map_err(|source| CheckpointError::Io {
            path: path.clone(),
            doing: "read",
            source,
        })?;
        let damaged = |what| CheckpointError::Damaged { path: path.clone(), what };
        let manifest = match Self::decode(&bytes) {
            Ok(manifest) => manifest,
            Err(Problem::Newer(found)) => return Err(CheckpointError::Unsupported { path, found }),
            Err(Problem::Bad(what)) => return Err(damaged(what)),
        };
        if manifest.position.seq != seq {
            return Err(damaged("its name and its content have different sequence numbers"));
        }
        Ok(manifest)
    }

    pub(super) fn publish(&self, dir: &Path) -> Result<(), CheckpointError> {
        let path = dir.join(name_of(self.position.seq));
        files::publish(&path, &self.encode()).map_err(|source| CheckpointError::Io {
            path,
            doing: "publish",
            source,
        })
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let count = u16::try_from(self.tables.len()).unwrap_or(u16::MAX);
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&CHECKPOINT_FORMAT.to_le_bytes());
        bytes.extend_from_slice(&count.to_le_bytes());
        bytes.extend_from_slice(&self.position.seq.to_le_bytes());
        bytes.extend_from_slice(&self.position.hash);
        for table in &self.tables {
            bytes.push(table.kind as u8);
            bytes.extend_from_slice(&table.seq.to_le_bytes());
            bytes.extend_from_slice(&table.id.entries.to_le_bytes());
            bytes.extend_from_slice(&table.id.file_len.to_le_bytes());
            bytes.extend_from_slice(&table.id.digest);
        }
        let crc = crc32fast::hash(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Problem> {
        let end = bytes.len().checked_sub(CRC_LEN).filter(|end| *end >= HEAD_LEN);
        let (body, crc) = bytes.split_at(end.ok_or(Problem::Bad("it is cut short"))?);
        if crc != crc32fast::hash(body).to_le_bytes() {
            return Err(Problem::Bad("its checksum does not match"));
        }
        let (head, tables) = body.split_at(HEAD_LEN);
        if &head[..8] != MAGIC {
            return Err(Problem::Bad("it does not begin as a manifest does"));
        }
        match u16_at(head, 8) {
            CHECKPOINT_FORMAT => {}
            0 => return Err(Problem::Bad("it has no format")),
            newer => return Err(Problem::Newer(newer)),
        }
        if tables.len() != usize::from(u16_at(head, 10)) * TABLE_LEN {
            return Err(Problem::Bad("its length does not fit its number of tables"));
        }
        let position = Position { seq: u64_at(head, 12), hash: hash_at(head, 20) };
        let tables: Option<Vec<_>> = tables.chunks_exact(TABLE_LEN).map(decode_table).collect();
        let tables = tables.ok_or(Problem::Bad("it names a table of unknown kind"))?;
        let base_first =
            tables.iter().enumerate().all(|(n, table)| (n == 0) == (table.kind == TableKind::Base));
        if tables.is_empty() || !base_first {
            return Err(Problem::Bad("it does not name one base and then deltas"));
        }
        Ok(Self { position, tables })
    }
}

/// Why bytes are no manifest of ours.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Problem {
    Newer(u16),
    Bad(&'static str),
}

fn decode_table(bytes: &[u8]) -> Option<NamedTable> {
    let id = TableId {
        entries: u64_at(bytes, 9),
        file_len: u64_at(bytes, 17),
        digest: hash_at(bytes, 25),
    };
    Some(NamedTable { kind: TableKind::from_number(bytes[0])?, seq: u64_at(bytes, 1), id })
}

fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    use std::io::Read;
    let mut bytes = Vec::new();
    files::open_to_read(path)?.take(MAX_LEN + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(number)
}

fn hash_at(bytes: &[u8], at: usize) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(&bytes[at..at + 32]);
    hash
}
