//! The socket of the API: checked, private until it is ready, replaced if stale, removed at the end.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use crate::engine::effect::perform;
use crate::host::vmm::SOCKET_PATH_MAX;

/// Ending of the name under which a socket is made ready.
const UNREADY: &str = ".new";

/// Why the API cannot be reached at its socket.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The kernel's limit.
    #[error("the API socket path {} has {length} bytes, {limit} are allowed; name a shorter one with --api-socket", path.display())]
    TooLong {
        /// The path.
        path: PathBuf,
        /// Its length in bytes.
        length: usize,
        /// The most that is allowed.
        limit: usize,
    },
    /// Something else is there.
    #[error("{} is there and is not a socket; name another path with --api-socket, or remove it", path.display())]
    Occupied {
        /// The path.
        path: PathBuf,
    },
    /// Another program listens there.
    #[error("another process listens on {}; name another path with --api-socket, or stop it", path.display())]
    InUse {
        /// The path.
        path: PathBuf,
    },
    /// The system refused.
    #[error("cannot {what} the API socket {}: {source}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// The path.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

/// A listening socket that has its path.
#[derive(Debug)]
pub(in crate::daemon) struct Listener {
    listener: UnixListener,
    path: PathBuf,
    mode: u32,
    inode: (u64, u64),
}

impl Listener {
    /// Listens at a path. The socket gets its name only when it has its permissions, so nobody connects before.
    pub(in crate::daemon) fn bind(path: &Path, mode: u32) -> Result<Self, SocketError> {
        let limit = SOCKET_PATH_MAX - UNREADY.len();
        let length = path.as_os_str().len();
        if length > limit {
            return Err(SocketError::TooLong { path: path.to_owned(), length, limit });
        }
        refuse_occupied(path)?;
        perform("daemon.bind-socket", || bind(path, mode))
    }

    /// Listens anew if nothing is at the path any more; whether it did. What somebody else put there is left.
    pub(super) fn restore(&mut self) -> Result<bool, SocketError> {
        match fs::symlink_metadata(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                *self = Self::bind(&self.path, self.mode)?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// The listening end, for an event loop.
    pub(super) fn accepting(&self) -> io::Result<UnixListener> {
        let listener = self.listener.try_clone()?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    }
}

impl Drop for Listener {
    /// Removes the path, if it is still ours.
    fn drop(&mut self) {
        let ours = fs::symlink_metadata(&self.path).is_ok_and(|meta| inode(&meta) == self.inode);
        if ours && let Err(error) = perform("daemon.remove-socket", || fs::remove_file(&self.path))
        {
            tracing::warn!("cannot remove {}: {error}", self.path.display());
        }
    }
}

fn inode(meta: &fs::Metadata) -> (u64, u64) {
    (meta.dev(), meta.ino())
}

fn refuse_occupied(path: &Path) -> Result<(), SocketError> {
    let owned = || path.to_owned();
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(SocketError::Io { what: "look at", path: owned(), source }),
        Ok(meta) if !meta.file_type().is_socket() => Err(SocketError::Occupied { path: owned() }),
        Ok(_) if UnixStream::connect(path).is_ok() => Err(SocketError::InUse { path: owned() }),
        Ok(_) => Ok(()),
    }
}

fn bind(path: &Path, mode: u32) -> Result<Listener, SocketError> {
    let failed = |what| {
        let path = path.to_owned();
        move |source| SocketError::Io { what, path, source }
    };
    let mut unready = path.as_os_str().to_owned();
    unready.push(UNREADY);
    let unready = PathBuf::from(unready);
    match fs::remove_file(&unready) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(failed("clear the way for")(error));
        }
        _ => {}
    }
    let listener = UnixListener::bind(&unready).map_err(failed("make"))?;
    fs::set_permissions(&unready, fs::Permissions::from_mode(mode))
        .map_err(failed("set the permissions of"))?;
    let meta = fs::symlink_metadata(&unready).map_err(failed("look at"))?;
    fs::rename(&unready, path).map_err(failed("name"))?;
    Ok(Listener { listener, path: path.to_owned(), mode, inode: inode(&meta) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_socket_is_replaced_and_anything_else_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("api.sock");
        drop(UnixListener::bind(&path).unwrap());
        let listener = Listener::bind(&path, 0o660).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
        assert!(matches!(Listener::bind(&path, 0o600), Err(SocketError::InUse { .. })));
        drop(listener);
        assert!(!path.exists());
        fs::write(&path, "precious").unwrap();
        assert!(matches!(Listener::bind(&path, 0o600), Err(SocketError::Occupied { .. })));
        assert_eq!(fs::read(&path).unwrap(), b"precious");
        let long = dir.path().join("x".repeat(108));
        assert!(matches!(Listener::bind(&long, 0o600), Err(SocketError::TooLong { .. })));
    }

    #[test]
    fn a_path_that_somebody_took_over_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("api.sock");
        let listener = Listener::bind(&path, 0o660).unwrap();
        fs::remove_file(&path).unwrap();
        let other = UnixListener::bind(&path).unwrap();
        drop(listener);
        assert!(path.exists());
        drop(other);
    }
}
