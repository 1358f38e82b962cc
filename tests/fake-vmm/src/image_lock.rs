//! Locks on disk images, byte for byte as QEMU takes them, so that two users of one image collide here too.
//!
//! For each permission bit, QEMU holds a shared lock on byte 100 + bit if it uses it, and on byte 200 + bit if it does
//! not let others use it; then it looks whether somebody else's locks contradict.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

const USED_BASE: i64 = 100;
const UNSHARED_BASE: i64 = 200;

const CONSISTENT_READ: i64 = 0;
const WRITE: i64 = 1;
const RESIZE: i64 = 3;

/// Opens an image as a guest's disk and locks it for as long as the file is open.
pub fn open(path: &Path, read_only: bool) -> Result<File, String> {
    let file = OpenOptions::new()
        .read(true)
        .write(!read_only)
        .open(path)
        .map_err(|error| format!("-blockdev: Could not open '{}': {error}", path.display()))?;
    let used: &[i64] =
        if read_only { &[CONSISTENT_READ] } else { &[CONSISTENT_READ, WRITE, RESIZE] };
    let unshared = [WRITE, RESIZE];
    lock(&file, used, &unshared).map_err(|error| {
        let which = if read_only { "shared \"write\"" } else { "\"write\"" };
        format!(
            "-blockdev: Failed to get {which} lock ({error})\nIs another process using the image [{}]?",
            path.display()
        )
    })?;
    Ok(file)
}

fn lock(file: &File, used: &[i64], unshared: &[i64]) -> io::Result<()> {
    for bit in used {
        fcntl(file.as_fd(), FcntlArg::F_OFD_SETLK(&byte(USED_BASE + bit, libc::F_RDLCK)))?;
    }
    for bit in unshared {
        fcntl(file.as_fd(), FcntlArg::F_OFD_SETLK(&byte(UNSHARED_BASE + bit, libc::F_RDLCK)))?;
    }
    let contradicting = used
        .iter()
        .map(|bit| UNSHARED_BASE + bit)
        .chain(unshared.iter().map(|bit| USED_BASE + bit));
    for at in contradicting {
        let mut found = byte(at, libc::F_WRLCK);
        fcntl(file.as_fd(), FcntlArg::F_OFD_GETLK(&mut found))?;
        if i32::from(found.l_type) != libc::F_UNLCK {
            return Err(Errno::EAGAIN.into());
        }
    }
    Ok(())
}

#[expect(clippy::cast_possible_truncation, reason = "lock types and SEEK_SET are tiny constants")]
fn byte(at: i64, kind: i32) -> libc::flock {
    libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: at,
        l_len: 1,
        l_pid: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_collide_with_everyone_and_readers_share() {
        let directory = tempfile::tempdir().unwrap();
        let image = directory.path().join("image");
        std::fs::write(&image, "").unwrap();
        let reader = open(&image, true).unwrap();
        let second = open(&image, true).unwrap();
        assert!(open(&image, false).is_err());
        drop((reader, second));
        let writer = open(&image, false).unwrap();
        assert!(open(&image, false).is_err());
        assert!(open(&image, true).is_err());
        drop(writer);
        open(&image, false).unwrap();
    }
}
