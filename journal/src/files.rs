//! The few file operations that every derived file of the journal shares: publish whole or not at
//! all, sync a directory, try a lock without waiting.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::libc;

/// The end of the name of a file that is still being written; whatever bears it after a crash is
/// nobody's.
pub(crate) const WRITING: &str = "writing";

/// Opens a file that must be a regular one. Whatever else somebody put in its place (a pipe, a
/// directory, a device, a link to something elsewhere) is refused by name, and never waited for.
pub(crate) fn open_regular(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    options.custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW | libc::O_NOCTTY);
    let opened = options.open(path).and_then(|file| {
        let kind = file.metadata()?.file_type();
        Ok((file, kind))
    });
    match opened {
        Ok((file, kind)) if kind.is_file() => Ok(file),
        Ok((_, kind)) => Err(not_regular(kind)),
        // A directory cannot be opened for writing, a link not followed, a socket not opened at all.
        Err(error) => match fs::symlink_metadata(path) {
            Ok(meta) if !meta.is_file() => Err(not_regular(meta.file_type())),
            _ => Err(error),
        },
    }
}

/// Opens a regular file for reading.
pub(crate) fn open_to_read(path: &Path) -> io::Result<File> {
    open_regular(path, OpenOptions::new().read(true))
}

fn not_regular(kind: fs::FileType) -> io::Error {
    let what = if kind.is_dir() {
        "a directory"
    } else if kind.is_symlink() {
        "a symbolic link"
    } else if kind.is_fifo() {
        "a named pipe"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    };
    let text = format!(
        "it is {what}, and a regular file belongs there; move it away, then type `cocoon journal verify`"
    );
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

/// Makes the names in a directory durable.
pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Makes a file's own directory durable, so that a rename or a removal in it survives a power cut.
pub(crate) fn sync_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), sync_dir)
}

/// The name under which `path` is written before it is published.
pub(crate) fn writing_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(WRITING);
    PathBuf::from(name)
}

/// Writes a small file so that a reader sees all of it or none of it, whenever the machine stops.
pub(crate) fn publish(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let writing = writing_path(path);
    let mut file = create(&writing)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&writing, path)?;
    sync_parent(path)
}

/// Opens an empty file of mode 0600 for writing, whatever a dead writer left under the name.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    open_regular(path, options.create(true).write(true).truncate(true).mode(0o600))
}

/// Makes a directory that only the owner may enter, and its name durable; one that is there already
/// is left alone.
pub(crate) fn create_dir(dir: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    match fs::DirBuilder::new().mode(0o700).create(dir) {
        Ok(()) => sync_parent(dir),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// A lock that is held until the value, or the process, is gone.
#[derive(Debug)]
pub(crate) struct Held(File);

impl Drop for Held {
    /// Closing is not enough: a process that another thread is just starting has a copy of the
    /// descriptor until it executes, and would hold the lock so long.
    fn drop(&mut self) {
        if let Err(error) = self.0.unlock() {
            tracing::debug!(%error, "a lock is released by closing its file");
        }
    }
}

/// Takes a lock file if nobody holds it, and never waits.
pub(crate) fn try_lock(path: &Path) -> io::Result<Option<Held>> {
    loop {
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).read(true).write(true).mode(0o600);
        let file = open_regular(path, &mut options)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        if names(path, &file)? {
            return Ok(Some(Held(file)));
        }
    }
}

/// Says whether `path` still names the file that was opened: a lock on a removed file guards
/// nothing.
pub(crate) fn names(path: &Path, file: &File) -> io::Result<bool> {
    let held = file.metadata()?;
    match fs::metadata(path) {
        Ok(named) => Ok(named.dev() == held.dev() && named.ino() == held.ino()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Removes a file; that it is gone already is as good.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Makes a fresh directory under the journal's `quarantine/`, named after `name` and never one that
/// is there already.
pub(crate) fn quarantine_dir(journal_dir: &Path, name: &str) -> io::Result<PathBuf> {
    use std::os::unix::fs::DirBuilderExt;
    let parent = journal_dir.join("quarantine");
    create_dir(&parent)?;
    for n in 0u32.. {
        let dir = parent.join(format!("{name}.{n}"));
        match fs::DirBuilder::new().mode(0o700).create(&dir) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made.and_then(|()| sync_dir(&parent)).map(|()| dir),
        }
    }
    Err(io::Error::other("every name is taken"))
}
