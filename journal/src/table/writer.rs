//! Writes a table in one pass, with one open block a level.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use super::block::{BLOCK_LEN, Pointer, checksum, entry_len, push_entry};
use super::footer::{FOOTER_LEN, Footer, HEADER_LEN, header};
use super::{MAX_KEY, MAX_VALUE, TableError, TableId};
use crate::files;

/// So many bytes are handed to the disk at a time. One large sync at the end would make every
/// commit of the journal on the same file system wait for it.
const SYNC_EVERY: u64 = 1024 * 1024;

/// A block that is not full yet.
struct Open {
    first_key: Vec<u8>,
    bytes: Vec<u8>,
}

/// Writes a table under a temporary name; only [`finish`](Self::finish) publishes it.
pub struct TableWriter {
    path: PathBuf,
    writing: PathBuf,
    file: BufWriter<File>,
    hasher: blake3::Hasher,
    offset: u64,
    synced: u64,
    levels: Vec<Open>,
    last_key: Option<Vec<u8>>,
    entries: u64,
}

impl TableWriter {
    /// Begins a table that will be published as `path`. Whatever a dead writer of the same path
    /// left is overwritten: the caller sees to it that there is one writer at a time.
    ///
    /// # Errors
    /// [`TableError::Io`].
    pub fn create(path: &Path) -> Result<Self, TableError> {
        let writing = files::writing_path(path);
        let file =
            files::create(&writing).map_err(|source| io_error(&writing, "create", source))?;
        let mut writer = Self {
            path: path.to_owned(),
            writing,
            file: BufWriter::with_capacity(64 * 1024, file),
            hasher: blake3::Hasher::new(),
            offset: 0,
            synced: 0,
            levels: Vec::new(),
            last_key: None,
            entries: 0,
        };
        writer.write(&header())?;
        Ok(writer)
    }

    /// Adds an entry; `None` says that the key was deleted. Keys must ascend.
    ///
    /// # Errors
    /// [`TableError::OutOfOrder`], [`TableError::TooLarge`] or [`TableError::Io`].
    pub fn push(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), TableError> {
        let value_len = value.map_or(0, <[u8]>::len);
        if key.len() > MAX_KEY || value_len > MAX_VALUE {
            let path = self.path.clone();
            return Err(TableError::TooLarge { path, key: key.len(), value: value_len });
        }
        if self.last_key.as_deref().is_some_and(|last| last >= key) {
            return Err(TableError::OutOfOrder { path: self.path.clone(), key: key.to_vec() });
        }
        self.add(0, key, value)?;
        self.last_key = Some(key.to_vec());
        self.entries += 1;
        Ok(())
    }

    /// Number of bytes written so far.
    pub fn written(&self) -> u64 {
        self.offset
    }

    /// Closes the table, makes it durable and gives it its name.
    ///
    /// # Errors
    /// [`TableError::Io`]; the table is then not published.
    pub fn finish(mut self) -> Result<TableId, TableError> {
        let (root, root_level) = self.close_levels()?;
        let id = TableId {
            entries: self.entries,
            file_len: self.offset + FOOTER_LEN as u64,
            digest: *self.hasher.finalize().as_bytes(),
        };
        self.write(&Footer { root_level, root, id }.encode())?;
        self.sync()?;
        fs::rename(&self.writing, &self.path)
            .and_then(|()| files::sync_parent(&self.path))
            .map_err(|source| io_error(&self.path, "publish", source))?;
        Ok(id)
    }

    /// After each addition every level that exists has an open block, so that closing them in turn
    /// leaves one root.
    fn add(&mut self, level: usize, key: &[u8], value: Option<&[u8]>) -> Result<(), TableError> {
        if level == self.levels.len() {
            self.levels.push(Open { first_key: key.to_vec(), bytes: open_bytes(level) });
        } else if self.levels[level].bytes.len() + entry_len(key, value) > BLOCK_LEN {
            let (first_key, pointer) = self.close(level, Some(key))?;
            self.add(level + 1, &first_key, Some(&pointer.encode()))?;
        }
        push_entry(&mut self.levels[level].bytes, key, value);
        Ok(())
    }

    /// Writes the open block of a level, and opens the next one with `next` as its first key.
    fn close(
        &mut self,
        level: usize,
        next: Option<&[u8]>,
    ) -> Result<(Vec<u8>, Pointer), TableError> {
        let next = Open { first_key: next.unwrap_or_default().to_vec(), bytes: open_bytes(level) };
        let mut block = std::mem::replace(&mut self.levels[level], next);
        let offset = self.offset;
        block.bytes.extend_from_slice(&checksum(offset, &block.bytes).to_le_bytes());
        self.write(&block.bytes)?;
        // The sizes of an entry bound that of a block far below this limit.
        let len = u32::try_from(block.bytes.len()).unwrap_or(u32::MAX);
        Ok((block.first_key, Pointer { offset, len }))
    }

    fn close_levels(&mut self) -> Result<(Pointer, u8), TableError> {
        let mut root = (Pointer { offset: HEADER_LEN as u64, len: 0 }, 0);
        let mut level = 0;
        while level < self.levels.len() {
            let (first_key, pointer) = self.close(level, None)?;
            root = (pointer, u8::try_from(level).unwrap_or(u8::MAX));
            level += 1;
            if level < self.levels.len() {
                self.add(level, &first_key, Some(&pointer.encode()))?;
            }
        }
        Ok(root)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), TableError> {
        self.file.write_all(bytes).map_err(|source| io_error(&self.writing, "write", source))?;
        self.hasher.update(bytes);
        self.offset += bytes.len() as u64;
        if self.offset - self.synced >= SYNC_EVERY {
            self.sync()?;
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<(), TableError> {
        let synced: io::Result<()> =
            self.file.flush().and_then(|()| self.file.get_ref().sync_all());
        synced.map_err(|source| io_error(&self.writing, "sync", source))?;
        self.synced = self.offset;
        Ok(())
    }
}

impl Drop for TableWriter {
    /// After [`finish`](TableWriter::finish) the temporary name is gone and this removes nothing.
    fn drop(&mut self) {
        if let Err(error) = files::remove(&self.writing) {
            tracing::debug!(path = %self.writing.display(), %error, "an unfinished table stays behind");
        }
    }
}

fn open_bytes(level: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(BLOCK_LEN + 4);
    bytes.push(u8::try_from(level).unwrap_or(u8::MAX));
    bytes
}

fn io_error(path: &Path, doing: &'static str, source: io::Error) -> TableError {
    TableError::Io { path: path.to_owned(), doing, source }
}
