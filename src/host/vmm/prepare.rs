//! Clearing the way for a launch.

use std::fs;
use std::io;
use std::path::PathBuf;

use thiserror::Error;

use super::RuntimePaths;
use crate::host::serial;

/// Why the way could not be cleared.
#[derive(Debug, Error)]
pub enum PrepareError {
    /// A socket that a killed VMM left could not be removed.
    #[error("cannot remove the left socket {path}: {source}; remove it by hand")]
    Socket {
        /// The socket.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A log could not be begun.
    #[error("cannot begin the log {path}: {source}; check its directory")]
    Log {
        /// The log.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

/// Removes the sockets that a killed VMM left and begins new logs. Harmless when repeated. Only for a VM whose VMM is
/// proven dead: a live one would lose its sockets.
pub fn prepare(paths: &RuntimePaths) -> Result<(), PrepareError> {
    remove_sockets(paths)?;
    for path in [&paths.vmm_log, &paths.console_log] {
        serial::begin_log(path)
            .map_err(|source| PrepareError::Log { path: path.clone(), source })?;
    }
    Ok(())
}

/// Removes the sockets that a killed VMM left; those that are not there are fine.
pub fn remove_sockets(paths: &RuntimePaths) -> Result<(), PrepareError> {
    for path in paths.sockets() {
        match fs::remove_file(path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(PrepareError::Socket { path: path.to_owned(), source });
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn left_sockets_go_and_logs_begin() {
        let directory = tempfile::tempdir().unwrap();
        let paths = RuntimePaths::new(directory.path(), directory.path()).unwrap();
        drop(UnixListener::bind(&paths.api_socket).unwrap());
        fs::write(&paths.vmm_log, "old").unwrap();
        prepare(&paths).unwrap();
        prepare(&paths).unwrap();
        assert!(!paths.api_socket.exists());
        assert_eq!(fs::read(&paths.vmm_log).unwrap(), b"");
        assert_eq!(fs::read(serial::previous(&paths.vmm_log)).unwrap(), b"old");
    }

    #[test]
    fn a_directory_in_place_of_a_socket_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let paths = RuntimePaths::new(directory.path(), directory.path()).unwrap();
        fs::create_dir(&paths.event_socket).unwrap();
        let error = prepare(&paths).unwrap_err();
        assert!(error.to_string().contains("events.sock"), "{error}");
    }
}
