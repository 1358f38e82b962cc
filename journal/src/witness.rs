//! A witness of how far a journal has come, kept outside of its directory.
//!
//! Whoever puts an older copy of the directory back puts back all that is in it, `HEAD` included; nothing inside can then
//! tell that there was ever more. So each writer also notes, in a file elsewhere, the position that its sync covered:
//!
//! ```text
//!   append ─► sync ─► HEAD (inside) ─► witness (outside) ─► answer
//! ```
//!
//! The file is never synced, as `HEAD` is not: after a power cut it may name an earlier position, never one that was not
//! durable. A writer that is killed right before it writes leaves it behind by that one frame. So a journal that ends
//! before the witness, or has another frame at its place, really is not the one that was here; the reverse proves nothing.
//!
//! ```text
//! offset  bytes  field
//!      0      4  magic "CCNW"
//!      4      4  crc32 of bytes 8 to 63
//!      8     16  uuid of the root
//!     24      8  sequence number of the last event
//!     32     32  hash of its frame
//! ```

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use uuid::Uuid;

use crate::frame::Position;

const MAGIC: [u8; 4] = *b"CCNW";
const LEN: usize = 64;

/// The file.
#[derive(Clone, Debug)]
pub struct Witness {
    path: PathBuf,
    root: Uuid,
}

impl Witness {
    /// The witness of the journal of this root; the file need not exist.
    #[must_use]
    pub fn new(path: &Path, root: Uuid) -> Self {
        Self { path: path.to_owned(), root }
    }

    /// The furthest position that was noted; `None` if there is no file, or nothing in it that can be relied upon.
    #[must_use]
    pub fn read(&self) -> Option<Position> {
        let file = File::open(&self.path).ok()?;
        self.read_from(&file)
    }

    fn read_from(&self, file: &File) -> Option<Position> {
        let mut bytes = [0; LEN];
        file.read_exact_at(&mut bytes, 0).ok()?;
        let sound = bytes[..4] == MAGIC
            && bytes[4..8] == crc32fast::hash(&bytes[8..]).to_le_bytes()
            && bytes[8..24] == *self.root.as_bytes();
        let word = bytes.get(24..32)?.try_into().ok().map(u64::from_le_bytes)?;
        let hash = bytes.get(32..)?.try_into().ok()?;
        sound.then_some(Position { seq: word, hash })
    }

    /// Notes a durable position, unless as much was noted already.
    ///
    /// # Errors
    ///
    /// If the file cannot be written; nothing depends on that but its evidence.
    pub fn reach(&self, position: Position) -> io::Result<()> {
        let file = self.writable()?;
        match self.read_from(&file) {
            Some(noted) if noted.seq >= position.seq => Ok(()),
            Some(_) | None => self.write_to(&file, position),
        }
    }

    /// Notes a durable position, whatever was noted: somebody has made sure that the journal is the right one.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn reset(&self, position: Position) -> io::Result<()> {
        self.write_to(&self.writable()?, position)
    }

    fn writable(&self) -> io::Result<File> {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).mode(0o600).open(&self.path)
    }

    fn write_to(&self, file: &File, position: Position) -> io::Result<()> {
        let mut bytes = [0; LEN];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[8..24].copy_from_slice(self.root.as_bytes());
        bytes[24..32].copy_from_slice(&position.seq.to_le_bytes());
        bytes[32..].copy_from_slice(&position.hash);
        let crc = crc32fast::hash(&bytes[8..]);
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        file.write_all_at(&bytes, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seq: u64) -> Position {
        Position { seq, hash: [u8::try_from(seq).unwrap(); 32] }
    }

    #[test]
    fn it_never_goes_back_but_when_it_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("witness");
        let witness = Witness::new(&path, Uuid::from_u128(7));
        assert_eq!(witness.read(), None);
        for seq in [3, 9, 5] {
            witness.reach(at(seq)).unwrap();
        }
        assert_eq!(witness.read(), Some(at(9)));
        witness.reset(at(4)).unwrap();
        assert_eq!(witness.read(), Some(at(4)));
        assert_eq!(Witness::new(&path, Uuid::from_u128(8)).read(), None, "of another root");
    }

    #[test]
    fn bytes_that_are_not_whole_say_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("witness");
        let witness = Witness::new(&path, Uuid::from_u128(7));
        witness.reach(at(3)).unwrap();
        let whole = std::fs::read(&path).unwrap();
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(witness.read(), None, "bit {bit}");
        }
        std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        assert_eq!(witness.read(), None);
        witness.reach(at(1)).unwrap();
        assert_eq!(witness.read(), Some(at(1)), "what says nothing is overwritten");
    }
}
