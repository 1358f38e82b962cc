//! Directories that say whose they are.
//!
//! A collector that removes what nobody knows must be sure that it is its own. So every root, run,
//! log and lock directory carries a marker with the root's id, and every VM directory a birth
//! certificate:
//!
//! ```text
//!  <root>/.cocoon-root.json           which root, which machine, which place on disk
//!  <run>/.cocoon-run.json             which root it serves
//!  <run>/<vm>/.cocoon-birth.json      which root and which VM, and what it was made as
//!  <run>/<vm>/.cocoon-generation      how far its record has come
//!  <run>/.birth-<vm>/                 a VM directory that is being born
//! ```
//!
//! A VM directory is never seen without its certificate, and loses it last, so that a creation or
//! removal that was cut short at any point can be repeated:
//!
//! ```text
//!  create:  .birth-<vm>/ ─► certificate written, synced ─► renamed to <vm>/
//!  remove:  contents ─► certificate ─► <vm>/
//! ```
//!
//! Nothing here follows a symbolic link below the directory that it was given, or crosses into
//! another mount. Needs Linux 5.6 or newer (`openat2`).

mod birth;
mod check;
mod generation;
mod marker;
mod tree;

use std::io;
use std::path::{Path, PathBuf};

use uuid::Uuid;

pub use birth::{
    BirthCertificate, Created, Found, MadeAs, Removed, create, inspect, remove, survey,
};
pub use check::{
    SOCKET_PATH_MAX, check_socket_path, foreign_store, refuse_foreign_store,
    refuse_network_file_system,
};
pub use generation::{note_generation, noted_generation};
pub use marker::{Kind, Moved, RootMarker, mark, marker, moved, place};

/// Why a directory was not created, believed or removed. Nothing was removed that is not ours.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// A call failed.
    #[error("cannot {what} {path}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The directory is another VM's, or another root's.
    #[error(
        "{path} belongs to VM {vm} of root {root}, not to the VM in question; it was left alone"
    )]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// The root that its certificate names.
        root: Uuid,
        /// The VM that its certificate names.
        vm: String,
    },
    /// The directory has content but no certificate.
    #[error(
        "{path} has no birth certificate, so it may be anybody's; look at it and remove it by hand"
    )]
    Uncertified {
        /// The directory.
        path: PathBuf,
    },
    /// A certificate or marker cannot be read as one.
    #[error(
        "{path} is damaged ({reason}); what it stands for is left alone, restore it or remove it by hand"
    )]
    Damaged {
        /// The certificate or marker.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Something else than a directory stands at the path.
    #[error("{path} is not a directory; it was left alone")]
    NotADirectory {
        /// The path.
        path: PathBuf,
    },
    /// Something is mounted within the directory.
    #[error("something is mounted at {path}; unmount it, then try again")]
    MountPoint {
        /// The mount point.
        path: PathBuf,
    },
    /// Directories are nested too deep.
    #[error("{path} is nested deeper than {max} directories; remove it by hand")]
    TooDeep {
        /// The directory at the limit.
        path: PathBuf,
        /// The limit.
        max: usize,
    },
    /// A path that cannot name a directory of ours.
    #[error("{path} cannot name a directory; give a path that ends in a plain name")]
    BadName {
        /// The path.
        path: PathBuf,
    },
    /// The directory is marked for another root, or for another purpose.
    #[error(
        "{path} is the {kind} directory of root {found}, not of {expected}; give each root directories of its own"
    )]
    ForeignRoot {
        /// The directory.
        path: PathBuf,
        /// What it is marked as.
        kind: Kind,
        /// The root that its marker names.
        found: Uuid,
        /// The root in question.
        expected: Uuid,
    },
    /// Other users may change the directory.
    #[error("{path} {problem}; a root is safe only in a directory that its user alone may change")]
    Insecure {
        /// The directory.
        path: PathBuf,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// Another process marks the directory and does not get on with it.
    #[error(
        "{path} is being set up by another process, which does not finish; find and end it, then try again"
    )]
    Busy {
        /// The directory.
        path: PathBuf,
    },
    /// The directory lies on a network file system, where locks and synced writes cannot be relied
    /// upon.
    #[error(
        "{path} lies on {file_system}; use a local file system, locks and syncs are not reliable on that one"
    )]
    NetworkFileSystem {
        /// The directory.
        path: PathBuf,
        /// The kind of file system.
        file_system: &'static str,
    },
    /// The directory holds another program's store.
    #[error("{path} holds the store of another program ({store}); use another directory")]
    ForeignStore {
        /// The directory.
        path: PathBuf,
        /// What shows it.
        store: PathBuf,
    },
    /// A unix socket could not be bound at this path.
    #[error(
        "{path} has {length} bytes, a socket path may have {SOCKET_PATH_MAX}; use a shorter run directory"
    )]
    SocketPathTooLong {
        /// The path.
        path: PathBuf,
        /// Its length in bytes.
        length: usize,
    },
}

fn failure(what: &'static str, path: &Path, source: impl Into<io::Error>) -> DirectoryError {
    DirectoryError::Io { what, path: path.to_owned(), source: source.into() }
}

#[cfg(test)]
pub(crate) mod tests;
