//! The marker of a root, run, log or lock directory.

use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, Instant, UNIX_EPOCH};

use cocoon_model::record::Place;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, statvfs};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::birth::{FORMAT, read_record, rename_new, write_record};
use super::{DirectoryError, failure};
use crate::host::boot;

/// How long another process may take to mark a directory, and how often it is looked at again.
const MARK_WAIT: Duration = Duration::from_secs(10);
const MARK_RETRY: Duration = Duration::from_millis(5);

/// What a marked directory is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The root: journal, images, snapshots.
    Root,
    /// The run directory: sockets and disks of VMs.
    Run,
    /// The log directory.
    Log,
    /// The lock directory.
    Locks,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::Run => "run",
            Self::Log => "log",
            Self::Locks => "locks",
        }
    }

    fn file_name(self) -> String {
        format!(".cocoon-{}.json", self.name())
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Which root a directory belongs to, and where it was when it was marked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootMarker {
    /// The form of this record.
    pub format: u32,
    /// The root.
    pub root: Uuid,
    /// What the directory is for.
    pub kind: Kind,
    /// When it was marked, in microseconds since 1970.
    pub created_us: u64,
    /// The machine, where it has an id.
    pub machine_id: Option<Uuid>,
    /// The device number of its file system.
    pub device: u64,
    /// The id of its file system; unlike the device number it mostly survives a reboot.
    pub file_system: u64,
    /// Its inode number.
    pub inode: u64,
    /// When its inode was made, nanoseconds since 1970: a copy has another one, a reboot changes nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub born_ns: Option<i64>,
    /// Its absolute path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

/// What changed since a directory was marked: it may be a copy, and the world may not be the one it
/// remembers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moved {
    /// It is on another machine.
    Machine,
    /// It is at another place on disk.
    Place,
}

impl std::fmt::Display for Moved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Machine => "it comes from another machine",
            Self::Place => "it was copied, or moved to another file system",
        })
    }
}

impl RootMarker {
    fn here(path: &Path, kind: Kind, root: Uuid) -> Result<Self, DirectoryError> {
        let place = place(path)?;
        Ok(Self {
            format: FORMAT,
            root,
            kind,
            created_us: boot::wall_us(),
            machine_id: machine_id()?,
            device: place.device,
            file_system: place.file_system,
            inode: place.inode,
            born_ns: place.born_ns,
            path: Some(place.path),
        })
    }

    /// Where the directory was when it was marked.
    #[must_use]
    pub fn place(&self) -> Place {
        Place {
            machine: self.machine_id.map(|id| id.simple().to_string()),
            device: self.device,
            file_system: self.file_system,
            inode: self.inode,
            born_ns: self.born_ns,
            path: self.path.clone().unwrap_or_default(),
        }
    }
}

/// Where a directory is.
pub fn place(path: &Path) -> Result<Place, DirectoryError> {
    let unseen = |error| failure("look at", path, error);
    let found = std::fs::metadata(path).map_err(unseen)?;
    let volume = statvfs(path).map_err(|error| failure("look at", path, error))?;
    let born = found.created().ok().and_then(|born| born.duration_since(UNIX_EPOCH).ok());
    let absolute = std::fs::canonicalize(path).map_err(unseen)?;
    Ok(Place {
        machine: machine_id()?.map(|id| id.simple().to_string()),
        device: found.dev(),
        file_system: volume.f_fsid,
        inode: found.ino(),
        born_ns: born.and_then(|born| i64::try_from(born.as_nanos()).ok()),
        path: absolute.to_string_lossy().into_owned(),
    })
}

/// Whether what was at one place and is now at another is a copy, or on another machine; `None` if it is the same.
///
/// An inode with the time at which it was made tells a directory from every copy of it, on every file system that records
/// that time; both survive reboots and bind mounts. Device numbers change with the order in which disks are found, and
/// where they are part of the id of a file system that changes too. A clone of a whole file system has the same inodes:
/// only its device and the path at which it is mounted tell it.
#[must_use]
pub fn moved(then: &Place, now: &Place) -> Option<Moved> {
    let differ = |a: Option<i64>, b: Option<i64>| a.is_some() && b.is_some() && a != b;
    if then.machine != now.machine {
        return Some(Moved::Machine);
    }
    if then.inode != now.inode || differ(then.born_ns, now.born_ns) {
        return Some(Moved::Place);
    }
    if then.device == now.device {
        return None;
    }
    let same_inode = then.born_ns.is_some() && then.born_ns == now.born_ns;
    let same_path = then.path.is_empty() || then.path == now.path;
    let known = same_inode || then.file_system == now.file_system;
    (!known || !same_path).then_some(Moved::Place)
}

fn machine_id() -> Result<Option<Uuid>, DirectoryError> {
    boot::machine_id().map_err(|error| DirectoryError::Damaged {
        path: "/etc/machine-id".into(),
        reason: error.to_string(),
    })
}

/// The marker of a directory, or `None` when it has none or does not exist.
pub fn marker(path: &Path, kind: Kind) -> Result<Option<RootMarker>, DirectoryError> {
    match open(path) {
        Ok(directory) => read(&directory, path, kind),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(failure("open", path, error)),
    }
}

/// Creates a directory with mode 0700 where there is none, and marks it as belonging to `root`,
/// durably.
///
/// Returns the marker that the directory has in the end. A root that is marked already keeps its
/// own id, whichever was given; a run, log or lock directory of another root is an error.
pub fn mark(path: &Path, kind: Kind, root: Uuid) -> Result<RootMarker, DirectoryError> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|error| failure("create", path, error))?;
    require_private(path)?;
    let directory = open(path).map_err(|error| failure("open", path, error))?;
    let found = match read(&directory, path, kind)? {
        Some(found) => found,
        None => write(&directory, path, kind, root)?,
    };
    if kind != Kind::Root && found.root != root {
        let path = path.to_owned();
        return Err(DirectoryError::ForeignRoot { path, kind, found: found.root, expected: root });
    }
    Ok(found)
}

fn open(path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

fn read(
    directory: &OwnedFd,
    path: &Path,
    kind: Kind,
) -> Result<Option<RootMarker>, DirectoryError> {
    let file = path.join(kind.file_name());
    let Some(found) = read_record::<RootMarker>(directory, &kind.file_name(), &file)? else {
        return Ok(None);
    };
    if found.kind != kind {
        let reason = format!("it says that this is a {} directory", found.kind);
        return Err(DirectoryError::Damaged { path: file, reason });
    }
    Ok(Some(found))
}

/// Writes the marker, unless somebody else was faster. The directory itself is locked meanwhile, so
/// that a writer that was killed leaves nothing but a file that the next one overwrites.
fn write(
    directory: &OwnedFd,
    path: &Path,
    kind: Kind,
    root: Uuid,
) -> Result<RootMarker, DirectoryError> {
    let locked = lock(path)?;
    if let Some(found) = read(directory, path, kind)? {
        return Ok(found);
    }
    let marker = RootMarker::here(path, kind, root)?;
    let (name, new) = (kind.file_name(), format!("{}.new", kind.file_name()));
    write_record(&locked, &new, &path.join(&new), &marker)?;
    rename_new(&locked, Path::new(&new), Path::new(&name))
        .map_err(|error| failure("write", &path.join(&name), error))?;
    rustix::fs::fsync(&locked).map_err(|error| failure("sync", path, error))?;
    Ok(marker)
}

fn lock(path: &Path) -> Result<OwnedFd, DirectoryError> {
    let directory = open(path).map_err(|error| failure("open", path, error))?;
    let deadline = Instant::now() + MARK_WAIT;
    loop {
        match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(directory),
            Err(Errno::WOULDBLOCK) if Instant::now() >= deadline => {
                return Err(DirectoryError::Busy { path: path.to_owned() });
            }
            Err(Errno::WOULDBLOCK) => std::thread::sleep(MARK_RETRY),
            Err(Errno::INTR) => {}
            Err(error) => return Err(failure("lock", path, error)),
        }
    }
}

/// Refuses a directory that somebody else could change under our hands.
fn require_private(path: &Path) -> Result<(), DirectoryError> {
    let found = std::fs::metadata(path).map_err(|error| failure("look at", path, error))?;
    let problem = if !found.is_dir() {
        return Err(DirectoryError::NotADirectory { path: path.to_owned() });
    } else if found.uid() != rustix::process::geteuid().as_raw() {
        "belongs to another user"
    } else if found.mode() & 0o022 != 0 {
        "may be changed by other users"
    } else {
        return Ok(());
    };
    Err(DirectoryError::Insecure { path: path.to_owned(), problem })
}
