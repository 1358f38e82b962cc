//! Where a VM's sockets and logs are.

use std::path::{Path, PathBuf};

use thiserror::Error;

/// The longest path of a unix socket in bytes, without the final zero.
pub const SOCKET_PATH_MAX: usize = 107;

/// The sockets and logs of one VM. Everything follows from its run directory and its log directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimePaths {
    /// The API socket. With the binary's name it identifies the VMM among all processes.
    pub api_socket: PathBuf,
    /// A second socket that only tells what happens, for observers: the API socket serves one client at a time.
    pub event_socket: PathBuf,
    /// The guest's first serial port.
    pub console_socket: PathBuf,
    /// Everything that the guest wrote to its first serial port.
    pub console_log: PathBuf,
    /// The VMM's own standard output and error.
    pub vmm_log: PathBuf,
}

/// Why paths cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PathError {
    /// The kernel's limit for socket paths.
    #[error(
        "the socket path {path} has {length} bytes, the kernel allows {SOCKET_PATH_MAX}; choose a shorter run directory"
    )]
    TooLong {
        /// The path.
        path: PathBuf,
        /// Its length in bytes.
        length: usize,
    },
    /// A path that cannot be written into a command line unchanged.
    #[error("the path {path:?} {problem}; choose another run or log directory")]
    Unusable {
        /// The path.
        path: PathBuf,
        /// What is wrong with it.
        problem: &'static str,
    },
}

impl RuntimePaths {
    /// Derives the paths. Both directories must be absolute, UTF-8, and free of commas and control characters, so
    /// that a path appears in the VMM's command line exactly as it is.
    pub fn new(run_dir: &Path, log_dir: &Path) -> Result<Self, PathError> {
        let paths = Self {
            api_socket: run_dir.join("api.sock"),
            event_socket: run_dir.join("events.sock"),
            console_socket: run_dir.join("console.sock"),
            console_log: log_dir.join("console.log"),
            vmm_log: log_dir.join("vmm.log"),
        };
        for path in [&paths.console_log, &paths.vmm_log] {
            check_plain(path)?;
        }
        for path in paths.sockets() {
            check_plain(path)?;
            check_length(path)?;
        }
        Ok(paths)
    }

    /// The sockets that the VMM makes.
    #[must_use]
    pub fn sockets(&self) -> [&Path; 3] {
        [&self.api_socket, &self.event_socket, &self.console_socket]
    }
}

fn check_length(path: &Path) -> Result<(), PathError> {
    let length = path.as_os_str().len();
    if length > SOCKET_PATH_MAX {
        return Err(PathError::TooLong { path: path.to_owned(), length });
    }
    Ok(())
}

fn check_plain(path: &Path) -> Result<(), PathError> {
    let problem = match path.to_str() {
        None => "is not UTF-8",
        Some(_) if !path.is_absolute() => "is not absolute",
        Some(text) if text.contains(',') => "contains a comma",
        Some(text) if text.chars().any(char::is_control) => "contains a control character",
        Some(_) => return Ok(()),
    };
    Err(PathError::Unusable { path: path.to_owned(), problem })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_the_kernels() {
        let fits =
            PathBuf::from(format!("/{}", "r".repeat(SOCKET_PATH_MAX - 1 - "/console.sock".len())));
        let paths = RuntimePaths::new(&fits, Path::new("/log")).unwrap();
        assert_eq!(paths.console_socket.as_os_str().len(), SOCKET_PATH_MAX);
        nix::sys::socket::UnixAddr::new(&paths.console_socket).unwrap();

        let longer = PathBuf::from(format!("{}r", fits.display()));
        let error = RuntimePaths::new(&longer, Path::new("/log")).unwrap_err();
        assert_eq!(
            error,
            PathError::TooLong { path: longer.join("console.sock"), length: SOCKET_PATH_MAX + 1 }
        );
    }

    #[test]
    fn what_would_change_in_a_command_line_is_refused() {
        for bad in ["relative", "/a,b", "/a\nb", "/a\0b"] {
            let error = RuntimePaths::new(Path::new(bad), Path::new("/log")).unwrap_err();
            assert!(matches!(error, PathError::Unusable { .. }), "{bad:?}: {error}");
        }
    }
}
