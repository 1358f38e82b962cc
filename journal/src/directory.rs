//! Where everything lies, and how it first comes to be.
//!
//! ```text
//! <dir>/LOCK          writers' lock             <dir>/HEAD         durable end
//! <dir>/seg/N.seg     segments                  <dir>/quarantine/  bytes put aside
//! ```
//!
//! A journal exists once its first segment does: creation, under the lock, makes that last.

use std::fs::File;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use uuid::Uuid;

use crate::error::JournalError;
use crate::frame::{Hash, Seq};
use crate::head;
use crate::segment::{Segment, SegmentHeader, write_durably, write_new};
use crate::slow::{For, watched};

/// Mode of the files that a group may be allowed to read.
const FILE_MODE: u32 = 0o640;

/// The directory of a journal.
#[derive(Clone, Debug)]
pub(crate) struct Directory {
    path: PathBuf,
}

impl Directory {
    pub(crate) fn new(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn lock(&self) -> PathBuf {
        self.path.join("LOCK")
    }

    pub(crate) fn head(&self) -> PathBuf {
        self.path.join("HEAD")
    }

    pub(crate) fn segments(&self) -> PathBuf {
        self.path.join("seg")
    }

    pub(crate) fn quarantine(&self) -> PathBuf {
        self.path.join("quarantine")
    }

    pub(crate) fn segment(&self, first: Seq) -> PathBuf {
        self.segments().join(format!("{first:020}.seg"))
    }

    /// Opens the segment that begins at `first`; `None` if there is none.
    pub(crate) fn open_segment(&self, first: Seq) -> Result<Option<Segment>, JournalError> {
        Segment::open(&self.segment(first), first)
    }

    /// First sequence numbers of all segment files, ascending, whether a seal names them or not.
    pub(crate) fn list(&self) -> Result<Vec<Seq>, JournalError> {
        Self::list_in(&self.segments())
    }

    /// The same of any directory with segment files.
    pub(crate) fn list_in(path: &Path) -> Result<Vec<Seq>, JournalError> {
        let entries = match std::fs::read_dir(path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(JournalError::io("list", path)(error)),
        };
        let mut firsts = Vec::new();
        for entry in entries {
            let entry = entry.map_err(JournalError::io("list", path))?;
            firsts.extend(entry.file_name().to_str().and_then(first_of));
        }
        firsts.sort_unstable();
        Ok(firsts)
    }

    /// Makes the directories, with nothing in them but a place for the lock.
    pub(crate) fn prepare(&self) -> Result<(), JournalError> {
        make_dir(&self.path)?;
        refuse_network_file_system(&self.path)?;
        make_dir(&self.segments())?;
        make_dir(&self.quarantine())
    }

    /// Makes the names of everything in the journal durable.
    pub(crate) fn sync_names(&self) -> Result<(), JournalError> {
        sync_dir(&self.segments())?;
        sync_dir(&self.path)?;
        self.path.parent().map_or(Ok(()), sync_dir)
    }

    /// Makes a journal where there is none. The caller holds the lock.
    pub(crate) fn create(
        &self,
        root: Uuid,
        created_us: i64,
        boundary: fn(&'static str),
    ) -> Result<(), JournalError> {
        self.create_head()?;
        sync_dir(&self.path)?;
        boundary("journal.create.head");
        let header = SegmentHeader {
            root,
            first: 1,
            prev_hash: Hash::default(),
            created_us,
            prev_end: 0,
            prev_last_len: 0,
        };
        self.create_segment(&header)
    }

    /// Makes an empty `HEAD`. The caller holds the lock.
    pub(crate) fn create_head(&self) -> Result<(), JournalError> {
        let temporary = self.path.join("HEAD.tmp");
        write_durably(&temporary, &[0; head::FILE_LEN], FILE_MODE)?;
        rename(&temporary, &self.head())
    }

    /// Makes a segment, complete with its header, its reserve and durable. The caller holds the lock.
    pub(crate) fn create_segment(&self, header: &SegmentHeader) -> Result<(), JournalError> {
        let path = self.segment(header.first);
        let temporary = path.with_extension("tmp");
        write_new(&temporary, header, FILE_MODE)?;
        rename(&temporary, &path)?;
        sync_dir(&self.segments())
    }
}

/// The sequence number in the name of a segment file.
fn first_of(name: &str) -> Option<Seq> {
    let digits = name.strip_suffix(".seg")?;
    let plain = digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit());
    if plain { digits.parse().ok() } else { None }
}

/// Makes a directory for its owner alone, unless it is there.
fn make_dir(path: &Path) -> Result<(), JournalError> {
    match std::fs::DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(JournalError::io("create", path)(error)),
    }
}

fn rename(from: &Path, to: &Path) -> Result<(), JournalError> {
    std::fs::rename(from, to).map_err(JournalError::io("rename", from))
}

/// Makes the names in a directory durable.
pub(crate) fn sync_dir(path: &Path) -> Result<(), JournalError> {
    let dir = File::open(path).map_err(JournalError::io("open", path))?;
    watched(For::Sync, path, || dir.sync_all()).map_err(JournalError::io("sync", path))
}

/// File systems whose locks or syncs depend on a server.
const NETWORK_FILE_SYSTEMS: [(u64, &str); 11] = [
    (0x6969, "NFS"),
    (0x517B, "SMB"),
    (0xFE53_4D42, "SMB"),
    (0xFF53_4D42, "CIFS"),
    (0x0102_1997, "9P"),
    (0x00C3_6400, "Ceph"),
    (0x5346_414F, "AFS"),
    (0x7375_7245, "Coda"),
    (0x0BD0_0BD0, "Lustre"),
    (0x7461_636F, "OCFS2"),
    (0x0116_1970, "GFS2"),
];

pub(crate) fn refuse_network_file_system(path: &Path) -> Result<(), JournalError> {
    let stat = rustix::fs::statfs(path).map_err(JournalError::errno("look at", path))?;
    // The type is a signed word on some targets; the magic numbers have 32 bits.
    let magic = u64::try_from(stat.f_type & 0xFFFF_FFFF).unwrap_or_default();
    match NETWORK_FILE_SYSTEMS.iter().find(|(known, _)| *known == magic) {
        Some((_, kind)) => Err(JournalError::NetworkFileSystem { path: path.to_owned(), kind }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_are_segments() {
        assert_eq!(first_of("00000000000000000042.seg"), Some(42));
        for name in [
            "42.seg",
            "00000000000000000042.tmp",
            "0000000000000000004x.seg",
            "+0000000000000000042.seg",
        ] {
            assert_eq!(first_of(name), None, "{name}");
        }
    }
}
