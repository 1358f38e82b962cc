//! Places that are refused before anything is written there.

use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::{DirectoryError, failure};

/// The longest path, in bytes, that a unix socket can be bound to or dialled at.
pub const SOCKET_PATH_MAX: usize = 107;

/// The magic numbers of file systems whose locks or syncs depend on another machine, or cannot be
/// known not to.
const NETWORK_FILE_SYSTEMS: [(u32, &str); 21] = [
    (0x0000_6969, "NFS"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB2"),
    (0x0000_517b, "SMB"),
    (0x0102_1997, "9P"),
    (0x00c3_6400, "Ceph"),
    (0x5346_414f, "AFS"),
    (0x6b41_4653, "kAFS"),
    (0x7375_7245, "Coda"),
    (0x0000_564c, "NCP"),
    (0x0116_1970, "GFS2"),
    (0x7461_636f, "OCFS2"),
    (0x0bd0_0bd0, "Lustre"),
    (0x1983_0326, "BeeGFS"),
    (0x4750_4653, "GPFS"),
    (0x2003_0528, "OrangeFS"),
    (0xaad7_aaea, "PanFS"),
    (0x786f_4256, "VirtualBox shared folders"),
    (0xbacb_acbc, "VMware shared folders"),
    (0x7c7c_6673, "Parallels shared folders"),
    // sshfs, GlusterFS, virtiofs and many more.
    (0x6573_5546, "FUSE, which may be a network file system"),
];

/// Refuses a path, which need not exist yet, that lies on a network file system.
pub fn refuse_network_file_system(path: &Path) -> Result<(), DirectoryError> {
    let mut existing = path;
    let found = loop {
        match rustix::fs::statfs(existing) {
            Ok(found) => break found,
            Err(rustix::io::Errno::NOENT) => existing = parent_of(existing),
            Err(error) => return Err(failure("look at the file system of", existing, error)),
        }
    };
    match network_file_system(found.f_type) {
        None => Ok(()),
        Some(file_system) => {
            Err(DirectoryError::NetworkFileSystem { path: path.to_owned(), file_system })
        }
    }
}

/// The directory above, where a relative path ends in the working directory.
fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(above) if !above.as_os_str().is_empty() => above,
        _ if path.is_absolute() => Path::new("/"),
        _ => Path::new("."),
    }
}

fn network_file_system(magic: impl TryInto<i64>) -> Option<&'static str> {
    // The kernel's field is as wide as a machine word, and sign-extended on some machines.
    let magic = u32::try_from(magic.try_into().ok()? & 0xffff_ffff).ok()?;
    let known = NETWORK_FILE_SYSTEMS.iter().find(|(number, _)| *number == magic);
    known.map(|(_, name)| *name)
}

/// The store of the original implementation, which uses the same places: its `meta` directory, or a
/// `db` directory one level below. `None` when there is none.
pub fn foreign_store(path: &Path) -> Result<Option<PathBuf>, DirectoryError> {
    let meta = path.join("meta");
    if meta.is_dir() {
        return Ok(Some(meta));
    }
    let entries = match std::fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failure("list", path, error)),
    };
    for entry in entries {
        let database = entry.map_err(|error| failure("list", path, error))?.path().join("db");
        if database.is_dir() {
            return Ok(Some(database));
        }
    }
    Ok(None)
}

/// Refuses a directory that holds another program's store.
pub fn refuse_foreign_store(path: &Path) -> Result<(), DirectoryError> {
    match foreign_store(path)? {
        None => Ok(()),
        Some(store) => Err(DirectoryError::ForeignStore { path: path.to_owned(), store }),
    }
}

/// Refuses a path that is too long for a unix socket.
pub fn check_socket_path(path: &Path) -> Result<(), DirectoryError> {
    let length = path.as_os_str().as_bytes().len();
    if length <= SOCKET_PATH_MAX {
        Ok(())
    } else {
        Err(DirectoryError::SocketPathTooLong { path: path.to_owned(), length })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_socket_path_limit_is_the_kernels() {
        let directory = tempfile::tempdir().unwrap();
        let used = directory.path().as_os_str().len() + 1;
        for (length, fits) in [(SOCKET_PATH_MAX, true), (SOCKET_PATH_MAX + 1, false)] {
            let path = directory.path().join("s".repeat(length - used));
            let bound = std::os::unix::net::UnixListener::bind(&path);
            assert_eq!((check_socket_path(&path).is_ok(), bound.is_ok()), (fits, fits));
        }
    }

    #[test]
    fn network_file_systems_are_known_however_wide_the_number_is() {
        assert_eq!(network_file_system(0x6969_i64), Some("NFS"));
        assert_eq!(network_file_system(0xff53_4d42_u64), Some("CIFS"));
        assert_eq!(network_file_system(0xff53_4d42_u32.cast_signed()), Some("CIFS"));
        assert_eq!(network_file_system(0xef53_i64), None, "ext4 is local");
    }

    #[test]
    fn a_local_place_that_does_not_exist_yet_is_accepted() {
        let directory = tempfile::tempdir().unwrap();
        refuse_network_file_system(&directory.path().join("a/b/c")).unwrap();
        refuse_network_file_system(Path::new("no-such-name")).unwrap();
    }

    #[test]
    fn the_originals_store_is_recognised() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(foreign_store(root.path()).unwrap(), None);
        assert_eq!(foreign_store(&root.path().join("missing")).unwrap(), None);
        std::fs::create_dir_all(root.path().join("journal/db-1")).unwrap();
        std::fs::write(root.path().join("journal/db"), "a file").unwrap();
        std::fs::write(root.path().join("meta"), "a file").unwrap();
        refuse_foreign_store(root.path()).unwrap();
        let database = root.path().join("cloudhypervisor/db");
        std::fs::create_dir_all(&database).unwrap();
        assert_eq!(foreign_store(root.path()).unwrap(), Some(database));
        std::fs::remove_file(root.path().join("meta")).unwrap();
        std::fs::create_dir(root.path().join("meta")).unwrap();
        let message = refuse_foreign_store(root.path()).unwrap_err().to_string();
        assert!(message.contains("meta"), "{message}");
    }
}
