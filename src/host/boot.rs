//! Which boot, which machine, which process namespace, and what time it is.
//!
//! A pid means something only within one boot and one pid namespace, so every recorded process
//! carries both. Nothing is cached here: callers that ask often keep the answer.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::time::{ClockId, Timespec, clock_gettime};
use uuid::Uuid;

/// Where the kernel publishes the id of the running boot.
pub const BOOT_ID_PATH: &str = "/proc/sys/kernel/random/boot_id";

/// Where systemd and D-Bus keep the id of the installation, in the order in which they are asked.
const MACHINE_ID_PATHS: [&str; 2] = ["/etc/machine-id", "/var/lib/dbus/machine-id"];

/// Why the host could not be identified.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// A file that identifies the host could not be read.
    #[error("cannot read {path}: {source}; is /proc mounted and visible to this user?")]
    Unreadable {
        /// The file or link.
        path: PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// A file that identifies the host holds something else than an id.
    #[error("{path} holds {text:?}, which is not an id; the host cannot be identified")]
    Malformed {
        /// The file or link.
        path: PathBuf,
        /// What was found there, shortened.
        text: String,
    },
}

/// The id of the running boot; it changes with every start of the kernel.
pub fn boot_id() -> Result<Uuid, BootError> {
    read_id(Path::new(BOOT_ID_PATH))
}

/// The id of this installation, or `None` where the host has none (containers, minimal images).
pub fn machine_id() -> Result<Option<Uuid>, BootError> {
    for path in MACHINE_ID_PATHS {
        match read_id(Path::new(path)) {
            Err(BootError::Unreadable { source, .. })
                if source.kind() == std::io::ErrorKind::NotFound => {}
            // An image that is to be personalised at its first start ships an empty file or this
            // word.
            Err(BootError::Malformed { text, .. })
                if text.is_empty() || text == "uninitialized" => {}
            found => return found.map(Some),
        }
    }
    Ok(None)
}

/// The inode number of the pid namespace that this process lives in.
pub fn pid_namespace() -> Result<u64, BootError> {
    read_namespace(Path::new("/proc/self/ns/pid"))
}

/// Microseconds since the kernel started, time spent suspended included (`CLOCK_BOOTTIME`).
pub fn boottime_us() -> u64 {
    microseconds(clock_gettime(ClockId::Boottime))
}

/// Microseconds since 1970 by the wall clock; 0 when the clock stands before that.
pub fn wall_us() -> u64 {
    microseconds(clock_gettime(ClockId::Realtime))
}

/// Reads a file that holds one UUID, with or without hyphens.
pub(crate) fn read_id(path: &Path) -> Result<Uuid, BootError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| BootError::Unreadable { path: path.to_owned(), source })?;
    parse(path, text.trim(), Uuid::from_str(text.trim()).ok())
}

/// Reads a namespace link such as `pid:[4026531836]`.
pub(crate) fn read_namespace(path: &Path) -> Result<u64, BootError> {
    let link = std::fs::read_link(path)
        .map_err(|source| BootError::Unreadable { path: path.to_owned(), source })?;
    let text = link.to_string_lossy();
    let inode = text.split_once(":[").and_then(|(_, rest)| rest.strip_suffix(']'));
    parse(path, &text, inode.and_then(|number| number.parse().ok()))
}

fn parse<T>(path: &Path, text: &str, value: Option<T>) -> Result<T, BootError> {
    value.ok_or_else(|| BootError::Malformed {
        path: path.to_owned(),
        text: text.chars().take(80).collect(),
    })
}

fn microseconds(time: Timespec) -> u64 {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanoseconds = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000).saturating_add(nanoseconds / 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_boot_id_is_that_of_the_kernel() {
        let expected = std::fs::read_to_string(BOOT_ID_PATH).unwrap();
        assert_eq!(boot_id().unwrap().to_string(), expected.trim());
    }

    #[test]
    fn clocks_advance_and_agree_with_the_standard_library() {
        let before = boottime_us();
        let std_now =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_micros();
        assert!(u128::from(wall_us()) >= std_now);
        assert!(boottime_us() >= before);
        assert!(before > 0);
    }

    #[test]
    fn ids_are_read_with_and_without_hyphens() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("id");
        std::fs::write(&path, "3d1219c7c4c5404aaa1f6d2a48adfda4\n").unwrap();
        let plain = read_id(&path).unwrap();
        std::fs::write(&path, "3d1219c7-c4c5-404a-aa1f-6d2a48adfda4\n").unwrap();
        assert_eq!(read_id(&path).unwrap(), plain);
    }

    #[test]
    fn damage_is_named_with_its_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("id");
        std::fs::write(&path, "not an id").unwrap();
        let message = read_id(&path).unwrap_err().to_string();
        assert!(message.contains("not an id") && message.contains(path.to_str().unwrap()));
        assert!(matches!(
            read_id(&directory.path().join("missing")),
            Err(BootError::Unreadable { .. })
        ));
        std::os::unix::fs::symlink("pid:[x]", directory.path().join("ns")).unwrap();
        assert!(matches!(
            read_namespace(&directory.path().join("ns")),
            Err(BootError::Malformed { .. })
        ));
    }
}
