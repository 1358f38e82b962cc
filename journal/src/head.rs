//! `HEAD`: how far the journal is known to be durable.
//!
//! After every successful sync a process writes here what its sync covered. The file itself is never
//! synced: within a boot it is the known durable end, after a power cut it may be older, and so is a
//! lower bound. It holds two slots, in sectors of their own; a writer replaces the lesser, so that a
//! torn write leaves the other.
//!
//! ```text
//! slot 0 at byte 0, slot 1 at byte 512, each:
//! offset  bytes  field
//!      0      4  magic "CCNH"
//!      4      4  crc32 of bytes 8 to 107
//!      8      2  version (1)
//!     10      2  zero
//!     12      4  length of the last durable frame
//!     16      8  its segment
//!     24      8  sequence number of its last event
//!     32      8  offset of its end in the segment
//!     40     32  its hash
//!     72     16  boot id
//!     88     16  uuid of the root
//!    104      4  zero
//! ```

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use uuid::Uuid;

use crate::cursor::Mark;
use crate::error::JournalError;
use crate::segment::open_file;

const MAGIC: [u8; 4] = *b"CCNH";
const VERSION: u16 = 1;
const SLOT_LEN: usize = 108;
const SLOT_OFFSETS: [u64; 2] = [0, 512];
/// Length of the file.
pub(crate) const FILE_LEN: usize = 1024;

/// A durable end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) mark: Mark,
    pub(crate) boot_id: Uuid,
    pub(crate) root: Uuid,
}

impl Head {
    fn encode(&self) -> [u8; SLOT_LEN] {
        let mark = &self.mark;
        let mut out = Vec::with_capacity(SLOT_LEN);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(&mark.last_len.to_le_bytes());
        for number in [mark.segment, mark.seq, mark.offset] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&mark.hash);
        out.extend_from_slice(self.boot_id.as_bytes());
        out.extend_from_slice(self.root.as_bytes());
        out.resize(SLOT_LEN - 8, 0);
        let mut slot = [0; SLOT_LEN];
        slot[..4].copy_from_slice(&MAGIC);
        slot[4..8].copy_from_slice(&crc32fast::hash(&out).to_le_bytes());
        slot[8..].copy_from_slice(&out);
        slot
    }

    fn decode(slot: &[u8]) -> Option<Self> {
        let slot = slot.first_chunk::<SLOT_LEN>()?;
        let sound = slot[..4] == MAGIC
            && slot[4..8] == crc32fast::hash(&slot[8..]).to_le_bytes()
            && slot[8..10] == VERSION.to_le_bytes();
        if !sound {
            return None;
        }
        let word = |at: usize| slot.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
        let id = |at: usize| slot.get(at..at + 16)?.try_into().ok().map(Uuid::from_bytes);
        Some(Self {
            mark: Mark {
                segment: word(16)?,
                seq: word(24)?,
                offset: word(32)?,
                last_len: u32::from_le_bytes(slot.get(12..16)?.try_into().ok()?),
                hash: slot.get(40..72)?.try_into().ok()?,
            },
            boot_id: id(72)?,
            root: id(88)?,
        })
    }
}

/// The version of a slot that a newer program wrote.
fn newer(slot: &[u8]) -> Option<u16> {
    let slot = slot.first_chunk::<SLOT_LEN>()?;
    let sound = slot[..4] == MAGIC && slot[4..8] == crc32fast::hash(&slot[8..]).to_le_bytes();
    let version = u16::from_le_bytes([slot[8], slot[9]]);
    (sound && version > VERSION).then_some(version)
}

fn widen(at: u64) -> usize {
    usize::try_from(at).unwrap_or(usize::MAX)
}

/// The bytes of a file that names this end alone.
pub(crate) fn file_of(head: &Head) -> Vec<u8> {
    let mut bytes = head.encode().to_vec();
    bytes.resize(FILE_LEN, 0);
    bytes
}

/// The furthest end in the bytes of the file, if any slot of it is sound.
pub(crate) fn furthest(bytes: &[u8]) -> Option<Head> {
    let slot = |at: usize| bytes.get(at..).and_then(Head::decode);
    [slot(0), slot(512)].into_iter().flatten().max_by_key(|head| head.mark.seq)
}

/// The open file.
#[derive(Debug)]
pub(crate) struct HeadFile {
    file: File,
    path: PathBuf,
}

impl HeadFile {
    /// Opens it. `Ok(None)` if it is not there.
    pub(crate) fn open(path: &Path) -> Result<Option<Self>, JournalError> {
        match open_file(path) {
            Ok(file) => Ok(Some(Self { file, path: path.to_owned() })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(JournalError::io("open", path)(error)),
        }
    }

    fn slots(&self) -> Result<[Option<Head>; 2], JournalError> {
        let mut bytes = [0; FILE_LEN];
        // Short only if the file was damaged; then its slots do not decode.
        let _ = self.file.read_at(&mut bytes, 0).map_err(JournalError::io("read", &self.path))?;
        if let Some(version) = SLOT_OFFSETS.iter().find_map(|at| newer(bytes.get(widen(*at)..)?)) {
            return Err(JournalError::NewerFormat {
                path: self.path.clone(),
                what: "version",
                version: u32::from(version),
                needs: None,
            });
        }
        Ok([Head::decode(&bytes[..512]), Head::decode(&bytes[512..])])
    }

    /// The furthest end that any process published.
    pub(crate) fn read(&self) -> Result<Option<Head>, JournalError> {
        let slots = self.slots()?;
        Ok(slots.into_iter().flatten().max_by_key(|head| head.mark.seq))
    }

    /// Publishes `head` unless somebody has already published as much.
    pub(crate) fn publish(&self, head: &Head) -> Result<(), JournalError> {
        let _turn = Turn::take(&self.file);
        let seqs = self.slots()?.map(|slot| slot.map_or(0, |head| head.mark.seq));
        if seqs.iter().any(|seq| *seq >= head.mark.seq) {
            return Ok(());
        }
        let at = SLOT_OFFSETS[usize::from(seqs[1] < seqs[0])];
        let action = "record the durable end in";
        self.file.write_all_at(&head.encode(), at).map_err(JournalError::io(action, &self.path))
    }
}

/// The turn to publish: of two that read the same slots, the later to write could otherwise put the lesser end in the
/// place of the greater, and a reader would miss for a moment what was already answered.
///
/// It is held for a read and a write, so it is asked for a few times only. Who does not get it, because its holder is
/// stopped, publishes all the same: an end that goes back is still a lower bound.
struct Turn<'a>(&'a File);

/// How often the turn is asked for, most of them some 50 microseconds after the last.
const ASKED: u32 = 200;

impl<'a> Turn<'a> {
    fn take(file: &'a File) -> Option<Self> {
        for asked in 0..ASKED {
            match flock(file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Some(Self(file)),
                Err(Errno::WOULDBLOCK | Errno::INTR) if asked < 8 => std::thread::yield_now(),
                Err(Errno::WOULDBLOCK | Errno::INTR) => std::thread::sleep(ASK_AGAIN),
                Err(_) => return None,
            }
        }
        None
    }
}

const ASK_AGAIN: Duration = Duration::from_micros(50);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // Closing the file gives it back, too.
        let _ = flock(self.0, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(seq: u64) -> Head {
        Head {
            mark: Mark { segment: 1, seq, offset: 128 + seq * 10, last_len: 10, hash: [7; 32] },
            boot_id: Uuid::from_u128(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff),
            root: Uuid::from_u128(2),
        }
    }

    #[test]
    fn version_1_slot_is_golden() {
        let golden = include_bytes!("../tests/golden/head-slot-v1.bin");
        assert_eq!(Head::decode(golden), Some(head(9)));
        assert_eq!(&head(9).encode(), golden);
    }

    #[test]
    fn a_torn_slot_leaves_the_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("HEAD");
        std::fs::write(&path, [0; FILE_LEN]).unwrap();
        let file = HeadFile::open(&path).unwrap().unwrap();
        assert_eq!(file.read().unwrap(), None);
        for seq in [3, 5, 4, 8] {
            file.publish(&head(seq)).unwrap();
        }
        assert_eq!(file.read().unwrap(), Some(head(8)), "the furthest counts");
        let [first, second] = file.slots().unwrap();
        assert_eq!([first, second], [Some(head(8)), Some(head(5))], "4 was older than 5");
        for bit in 0..SLOT_LEN * 8 {
            let mut bytes = std::fs::read(&path).unwrap();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Head::decode(&bytes), None, "bit {bit}");
        }
        std::fs::write(&path, [&[0; 512][..], &std::fs::read(&path).unwrap()[512..]].concat())
            .unwrap();
        assert_eq!(HeadFile::open(&path).unwrap().unwrap().read().unwrap(), Some(head(5)));
    }

    /// Many that publish at once, each after it was told of the one before.
    #[test]
    fn what_was_published_is_never_taken_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("HEAD");
        std::fs::write(&path, [0; FILE_LEN]).unwrap();
        let next = std::sync::atomic::AtomicU64::new(1);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let file = HeadFile::open(&path).unwrap().unwrap();
                    for _ in 0..2000 {
                        let seq = next.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                        file.publish(&head(seq)).unwrap();
                        let found = file.read().unwrap().unwrap().mark.seq;
                        assert!(found >= seq, "{seq} was published, HEAD says {found}");
                    }
                });
            }
        });
    }
}
