//! An immutable, sorted key/value file that is looked up without being read whole.
//!
//! ```text
//!  header   magic, format                                                    16 bytes
//!  blocks   level 0 holds entries, level n+1 points at blocks of level n     about 4 KiB each
//!  footer   format, root block, entry count, length, blake3, crc             76 bytes
//!
//!  footer --> root (level 2) --> level 1 --> level 0 --> value
//! ```
//!
//! A block is written as soon as it is full, and its address goes into the open block one level up;
//! so the writer holds one block a level, the tree is balanced, and a lookup reads one block a
//! level (three for 100,000 entries). Every byte is covered: blocks and footer by a crc (a block's
//! also covers its own offset, so that a block in the wrong place is noticed), the whole by the
//! blake3 in the footer, which is the table's identity.
//!
//! A value may be absent: such an entry says that the key was deleted, and hides the key in older
//! tables.
//!
//! | Block part | Bytes | Meaning |
//! |---|---|---|
//! | level | 1 | 0 for entries, else the height above them |
//! | entry, repeated | 2 + 4 + key + value | key length, value length (`0xFFFF_FFFF`: deleted), key, value |
//! | crc | 4 | crc32 over the block's offset (u64), level and entries |
//!
//! An entry of a block above level 0 has the child's first key, and as its value the child's offset
//! (u64) and length (u32). All numbers are little-endian.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::files;

mod block;
mod footer;
mod iter;
mod writer;

use block::{Block, Pointer};
use footer::{FOOTER_LEN, Footer, HEADER_LEN};
pub use iter::TableIter;
pub use writer::TableWriter;

/// The newest format that this program writes; it reads every format from 1 up to it.
pub const TABLE_FORMAT: u16 = 1;
/// The longest key, in bytes.
pub const MAX_KEY: usize = 1024;
/// The longest value, in bytes.
pub const MAX_VALUE: usize = 16 * 1024 * 1024;

/// Why a table could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// The file system refused.
    #[error("cannot {doing} table {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was being done, as a verb.
        doing: &'static str,
        /// What the file system said.
        source: io::Error,
    },
    /// The bytes are not those that were written.
    #[error("table {} is damaged in {place}: {what}; it can be rebuilt from the journal", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where in the file.
        place: Place,
        /// What is wrong there.
        what: &'static str,
    },
    /// The file was written by a newer program.
    #[error(
        "table {} has format {found}, but this program reads formats up to {TABLE_FORMAT}; use a newer one",
        path.display()
    )]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u16,
    },
    /// Keys must be given in ascending order, each once.
    #[error("key {key:02x?} does not follow the key before it in table {}; nothing was published", path.display())]
    OutOfOrder {
        /// The file being written.
        path: PathBuf,
        /// The key that came too late.
        key: Vec<u8>,
    },
    /// A key or value is larger than the format allows.
    #[error(
        "an entry of {key} key and {value} value bytes is too large for table {} (at most {MAX_KEY} and {MAX_VALUE})",
        path.display()
    )]
    TooLarge {
        /// The file being written.
        path: PathBuf,
        /// Length of the key in bytes.
        key: usize,
        /// Length of the value in bytes.
        value: usize,
    },
}

impl TableError {
    /// Says whether the file's content is at fault, so that rebuilding it helps.
    pub fn is_damage(&self) -> bool {
        matches!(self, Self::Damaged { .. })
    }
}

/// A place in a table file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The first 16 bytes.
    Header,
    /// The block at this byte offset.
    Block(u64),
    /// The last 76 bytes.
    Footer,
    /// The file as a whole.
    Whole,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Header => write!(f, "its header"),
            Self::Block(offset) => write!(f, "the block at byte {offset}"),
            Self::Footer => write!(f, "its footer"),
            Self::Whole => write!(f, "its content"),
        }
    }
}

/// A key with its value, or with nothing if the entry says that the key was deleted.
pub type TableEntry = (Vec<u8>, Option<Vec<u8>>);

/// What a table is, in a form that can be written down and compared later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableId {
    /// Number of entries, deletions included.
    pub entries: u64,
    /// Length of the file in bytes.
    pub file_len: u64,
    /// blake3 over everything before the footer.
    pub digest: [u8; 32],
}

/// An open table. Cheap to keep: a descriptor and the root block.
#[derive(Debug)]
pub struct Table {
    path: PathBuf,
    file: File,
    footer: Footer,
    root: Option<Arc<Block>>,
}

impl Table {
    /// Opens a table and reads its header, footer and root block; nothing else is read yet.
    ///
    /// # Errors
    /// [`TableError::Io`], [`TableError::Damaged`] or [`TableError::Unsupported`].
    pub fn open(path: &Path) -> Result<Self, TableError> {
        let file = files::open_to_read(path).map_err(|source| TableError::Io {
            path: path.to_owned(),
            doing: "open",
            source,
        })?;
        Self::of_file(file, path)
    }

    /// As [`open`](Self::open), of an open file, which errors call `path`.
    ///
    /// # Errors
    /// As those of [`open`](Self::open).
    pub fn of_file(file: File, path: &Path) -> Result<Self, TableError> {
        let io = |doing, source| TableError::Io { path: path.to_owned(), doing, source };
        let len = file.metadata().map_err(|error| io("examine", error))?.len();
        let mut table = Self { path: path.to_owned(), file, footer: Footer::default(), root: None };
        table.read_header(len)?;
        table.footer = table.read_footer(len)?;
        if table.footer.root.len > 0 {
            table.root = Some(Arc::new(table.block(table.footer.root, table.footer.root_level)?));
        } else if table.footer.id.entries > 0 {
            return Err(table.damaged(Place::Footer, "it counts entries but names no root block"));
        }
        Ok(table)
    }

    /// Where the table lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the table is.
    pub fn id(&self) -> TableId {
        self.footer.id
    }

    /// Looks a key up: `None` if the table does not know it, `Some(None)` if it says that the key
    /// was deleted.
    ///
    /// # Errors
    /// [`TableError::Io`] or [`TableError::Damaged`].
    pub fn get(&self, key: &[u8]) -> Result<Option<Option<Vec<u8>>>, TableError> {
        let Some(mut block) = self.root.clone() else { return Ok(None) };
        while block.level() > 0 {
            let Some(slot) = block.last_at_or_below(key) else { return Ok(None) };
            block = Arc::new(self.child(&block, slot)?);
        }
        Ok(block.find(key).map(|slot| block.value(slot).map(<[u8]>::to_vec)))
    }

    /// All entries whose key is `from` or above, in ascending order of their keys.
    pub fn range(&self, from: &[u8]) -> TableIter<'_> {
        TableIter::new(self, from.to_vec(), Vec::new())
    }

    /// All entries whose key begins with `prefix`, in ascending order of their keys.
    pub fn prefix(&self, prefix: &[u8]) -> TableIter<'_> {
        TableIter::new(self, prefix.to_vec(), prefix.to_vec())
    }

    /// Reads the whole file and checks every block, the order of the keys, their number and the
    /// digest.
    ///
    /// # Errors
    /// [`TableError::Io`] or [`TableError::Damaged`].
    pub fn verify(&self) -> Result<(), TableError> {
        let mut entries = 0;
        for entry in self.range(&[]) {
            entry?;
            entries += 1;
        }
        if entries != self.footer.id.entries {
            return Err(self.damaged(Place::Footer, "the number of entries is not the one written"));
        }
        if self.digest()? != self.footer.id.digest {
            return Err(self.damaged(Place::Whole, "its digest is not the one written"));
        }
        Ok(())
    }

    fn digest(&self) -> Result<[u8; 32], TableError> {
        let end = self.footer.id.file_len - FOOTER_LEN as u64;
        let mut hasher = blake3::Hasher::new();
        let mut chunk = vec![0; 64 * 1024];
        let mut offset = 0;
        while offset < end {
            let want =
                usize::try_from(end - offset).map_or(chunk.len(), |left| left.min(chunk.len()));
            self.read(&mut chunk[..want], offset, Place::Whole)?;
            hasher.update(&chunk[..want]);
            offset += want as u64;
        }
        Ok(*hasher.finalize().as_bytes())
    }

    fn read_header(&self, len: u64) -> Result<(), TableError> {
        if len < (HEADER_LEN + FOOTER_LEN) as u64 {
            return Err(self.damaged(Place::Whole, "it is shorter than the shortest table"));
        }
        let mut bytes = [0; HEADER_LEN];
        self.read(&mut bytes, 0, Place::Header)?;
        match footer::header_format(&bytes) {
            Some(1..=TABLE_FORMAT) => Ok(()),
            // The header has no checksum; the footer has one, and names the format too.
            Some(1..) if self.read_footer(len).is_ok() => {
                Err(self.damaged(Place::Header, "it names another format than the footer"))
            }
            Some(found @ 1..) => Err(TableError::Unsupported { path: self.path.clone(), found }),
            _ => Err(self.damaged(Place::Header, "it does not begin as a table does")),
        }
    }

    fn read_footer(&self, len: u64) -> Result<Footer, TableError> {
        let mut bytes = [0; FOOTER_LEN];
        self.read(&mut bytes, len - FOOTER_LEN as u64, Place::Footer)?;
        let footer = Footer::decode(&bytes).map_err(|what| self.damaged(Place::Footer, what))?;
        if footer.id.file_len != len {
            return Err(self.damaged(Place::Footer, "the file is not as long as it was written"));
        }
        Ok(footer)
    }

    /// Reads the block that `parent` names in `slot`, and checks that it is the one meant.
    fn child(&self, parent: &Block, slot: usize) -> Result<Block, TableError> {
        let pointer = parent.pointer(slot).ok_or_else(|| {
            self.damaged(Place::Block(parent.offset()), "an address has a wrong length")
        })?;
        // Levels fall by one with each step, so that no crafted file can lead round in a circle.
        let child = self.block(pointer, parent.level() - 1)?;
        if child.key(0) != parent.key(slot) {
            return Err(self.damaged(
                Place::Block(pointer.offset),
                "it begins with another key than its parent says",
            ));
        }
        Ok(child)
    }

    fn block(&self, pointer: Pointer, level: u8) -> Result<Block, TableError> {
        let place = Place::Block(pointer.offset);
        let end = pointer.offset.checked_add(u64::from(pointer.len));
        if end.is_none_or(|end| end > self.footer.id.file_len) {
            return Err(self.damaged(place, "its address lies outside the file"));
        }
        let mut bytes = vec![0; pointer.len as usize];
        self.read(&mut bytes, pointer.offset, place)?;
        let block =
            Block::decode(bytes, pointer.offset).map_err(|what| self.damaged(place, what))?;
        if block.level() != level {
            return Err(self.damaged(place, "it lies at another level than its parent says"));
        }
        Ok(block)
    }

    fn read(&self, bytes: &mut [u8], offset: u64, place: Place) -> Result<(), TableError> {
        self.file.read_exact_at(bytes, offset).map_err(|source| match source.kind() {
            io::ErrorKind::UnexpectedEof => self.damaged(place, "the file ends before it"),
            _ => TableError::Io { path: self.path.clone(), doing: "read", source },
        })
    }

    fn damaged(&self, place: Place, what: &'static str) -> TableError {
        TableError::Damaged { path: self.path.clone(), place, what }
    }
}

#[cfg(test)]
mod tests;
