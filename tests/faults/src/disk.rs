//! A small real file system: an ext4 in a file, which can be filled up, and whose power can be cut.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::fcntl::{FallocateFlags, fallocate};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use tempfile::TempDir;

nix::ioctl_read! {
    /// `FS_IOC_SHUTDOWN`; it reads its argument, whatever the direction in its number says.
    shut_down, b'X', 125, u32
}

/// Neither data nor the file system's own journal is flushed.
const NO_LOG_FLUSH: u32 = 2;

/// A file system in a file, mounted in a mount namespace of the thread that made it and of what that starts.
#[derive(Debug)]
pub struct Disk {
    scratch: TempDir,
}

impl Disk {
    /// Makes one with this many bytes. The thread leaves the mount namespace of the others for good.
    ///
    /// # Errors
    /// The reason why it cannot be had here: no right to mount, no loop device, no `mkfs.ext4`.
    pub fn new(bytes: u64) -> Result<Self, String> {
        unshare(CloneFlags::CLONE_NEWNS).map_err(|error| format!("no mount namespace: {error}"))?;
        let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
        mount(None::<&str>, "/", None::<&str>, private, None::<&str>)
            .map_err(|error| format!("no private mounts: {error}"))?;
        // Short: the paths of sockets below it have 107 bytes.
        let scratch = tempfile::Builder::new().prefix("d").tempdir_in("/tmp");
        let disk = Self { scratch: scratch.map_err(|error| error.to_string())? };
        let made = File::create(disk.image()).and_then(|image| image.set_len(bytes));
        made.and_then(|()| fs::create_dir(disk.path())).map_err(|error| error.to_string())?;
        // No blocks are set aside for the superuser.
        run("mkfs.ext4", &["-q", "-F", "-m", "0", &disk.image().to_string_lossy()])?;
        disk.mount()?;
        Ok(disk)
    }

    /// As [`new`](Self::new), or `None`, said aloud, where it cannot be had.
    ///
    /// # Panics
    /// If it cannot be had and `COCOON_REQUIRE` has this word.
    #[must_use]
    pub fn new_unless_skipped(bytes: u64, word: &str) -> Option<Self> {
        Self::new(bytes).map_err(|reason| skipped(word, &reason)).ok()
    }

    /// Where it is mounted.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.scratch.path().join("m")
    }

    /// A directory on another file system, which no cut touches.
    #[must_use]
    pub fn beside(&self) -> &Path {
        self.scratch.path()
    }

    fn image(&self) -> PathBuf {
        self.scratch.path().join("image")
    }

    /// Mounts it again.
    ///
    /// # Errors
    /// What `mount` says.
    pub fn mount(&self) -> Result<(), String> {
        let (image, path) = (self.image(), self.path());
        run("mount", &["-o", "loop", &image.to_string_lossy(), &path.to_string_lossy()])
    }

    /// Unmounts it; nobody may have a file of it open.
    ///
    /// # Errors
    /// What `umount` says.
    pub fn unmount(&self) -> Result<(), String> {
        run("umount", &[&self.path().to_string_lossy()])
    }

    /// Cuts its power: what was not synced is lost, and every further call on it fails until it is mounted again.
    ///
    /// # Errors
    /// If the kernel cannot do it.
    pub fn cut(&self) -> Result<(), String> {
        let mounted = File::open(self.path()).map_err(|error| error.to_string())?;
        let mut flags = NO_LOG_FLUSH;
        // SAFETY: the descriptor is open, and the argument a number that outlives the call.
        unsafe { shut_down(mounted.as_raw_fd(), &raw mut flags) }
            .map_err(|error| format!("a file system cannot be shut down: {error}"))?;
        Ok(())
    }

    /// Takes every block that is left; gives the file that has them.
    ///
    /// # Panics
    /// If the file cannot be made.
    #[must_use]
    pub fn fill(&self) -> PathBuf {
        let ballast = self.path().join("ballast");
        let file = OpenOptions::new().create(true).append(true).open(&ballast).expect("a file");
        let mut end = file.metadata().expect("its length").len();
        let mut piece: u64 = 1 << 20;
        while piece >= 1024 {
            let (from, len) = (end.cast_signed(), piece.cast_signed());
            match fallocate(&file, FallocateFlags::empty(), from, len) {
                Ok(()) => end += piece,
                Err(_) => piece /= 2,
            }
        }
        ballast
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // The namespace ends with the thread; this only gives the loop device back sooner.
        let _ = self.unmount();
    }
}

/// Says why a test is not run here.
///
/// # Panics
/// If `COCOON_REQUIRE` has this word.
pub fn skipped(word: &str, reason: &str) {
    let required = std::env::var("COCOON_REQUIRE").unwrap_or_default();
    let required = required.split([',', ' ']).any(|one| one == word);
    assert!(!required, "COCOON_REQUIRE asks for {word}: {reason}");
    eprintln!("skipped ({word}): {reason}");
}

fn run(program: &str, arguments: &[&str]) -> Result<(), String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(()) } else { Err(format!("{program}: {said}")) }
}
