//! Which calls are asked about, and what they are about.

use std::ffi::OsString;
use std::io::IoSliceMut;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use nix::libc::{self, c_long};
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;

use crate::{Call, Kind};

/// Where a call says which file it is about.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Place {
    /// The descriptor in its first argument.
    Descriptor,
    /// The path in its first argument.
    Path,
    /// The path in its second argument, from the directory in its first.
    PathAt,
}

/// Every call that is asked about.
pub(crate) const NUMBERS: &[(c_long, Kind, Place)] = &[
    (libc::SYS_openat, Kind::Open, Place::PathAt),
    (libc::SYS_openat2, Kind::Open, Place::PathAt),
    (libc::SYS_write, Kind::Write, Place::Descriptor),
    (libc::SYS_pwrite64, Kind::Write, Place::Descriptor),
    (libc::SYS_writev, Kind::Write, Place::Descriptor),
    (libc::SYS_pwritev, Kind::Write, Place::Descriptor),
    (libc::SYS_pwritev2, Kind::Write, Place::Descriptor),
    (libc::SYS_fsync, Kind::Sync, Place::Descriptor),
    (libc::SYS_fdatasync, Kind::Sync, Place::Descriptor),
    (libc::SYS_sync_file_range, Kind::Sync, Place::Descriptor),
    (libc::SYS_fallocate, Kind::Allocate, Place::Descriptor),
    (libc::SYS_ftruncate, Kind::SetLength, Place::Descriptor),
    (libc::SYS_renameat, Kind::Rename, Place::PathAt),
    (libc::SYS_renameat2, Kind::Rename, Place::PathAt),
    (libc::SYS_mkdirat, Kind::MakeDirectory, Place::PathAt),
    (libc::SYS_unlinkat, Kind::Remove, Place::PathAt),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_open, Kind::Open, Place::Path),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_rename, Kind::Rename, Place::Path),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_mkdir, Kind::MakeDirectory, Place::Path),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_rmdir, Kind::Remove, Place::Path),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_unlink, Kind::Remove, Place::Path),
];

/// The call that a stopped thread is about to make; `None` if it is not one of those, or cannot be read.
pub(crate) fn read(thread: i32, number: i32, arguments: &[u64; 6]) -> Option<Call> {
    let (_, kind, place) = NUMBERS.iter().find(|(known, ..)| *known == c_long::from(number))?;
    let path = match place {
        Place::Descriptor => descriptor(thread, arguments[0])?,
        Place::Path => from(&process(thread, "cwd"), thread, arguments[0])?,
        Place::PathAt => from(&directory(thread, arguments[0])?, thread, arguments[1])?,
    };
    Some(Call { kind: *kind, path, thread })
}

fn process(thread: i32, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{thread}/{name}"))
}

fn descriptor(thread: i32, argument: u64) -> Option<PathBuf> {
    let number = number(argument)?;
    std::fs::read_link(process(thread, &format!("fd/{number}"))).ok()
}

/// A descriptor is the low half of the argument.
fn number(argument: u64) -> Option<i32> {
    Some(u32::try_from(argument & 0xFFFF_FFFF).ok()?.cast_signed())
}

fn directory(thread: i32, argument: u64) -> Option<PathBuf> {
    match number(argument)? {
        libc::AT_FDCWD => std::fs::read_link(process(thread, "cwd")).ok(),
        _ => descriptor(thread, argument),
    }
}

fn from(directory: &Path, thread: i32, address: u64) -> Option<PathBuf> {
    let path = PathBuf::from(OsString::from_vec(text(thread, address)?));
    if path.is_absolute() {
        return Some(path);
    }
    let directory = std::fs::read_link(directory).unwrap_or_else(|_| directory.to_owned());
    Some(directory.join(path))
}

/// The text at an address of the thread, up to its zero. Read in steps: it may lie at the end of what is mapped.
fn text(thread: i32, address: u64) -> Option<Vec<u8>> {
    const STEP: usize = 64;
    let mut text = Vec::new();
    let mut address = usize::try_from(address).ok()?;
    while text.len() < 4096 {
        let mut bytes = [0; STEP];
        let len = STEP - address % STEP;
        let remote = RemoteIoVec { base: address, len };
        let mut local = [IoSliceMut::new(&mut bytes)];
        let read = process_vm_readv(Pid::from_raw(thread), &mut local, &[remote]).ok()?;
        let bytes = bytes.get(..read)?;
        if let Some(end) = bytes.iter().position(|byte| *byte == 0) {
            text.extend_from_slice(bytes.get(..end)?);
            return Some(text);
        }
        text.extend_from_slice(bytes);
        address += read;
    }
    None
}
