//! A disk under the segments of one thread that fails when it is told to, and forgets what was not synced.
//!
//! ```text
//!             write              sync                        power cut
//!   durable ---------> dirty ----------------> durable      lost, kept, or torn
//!                        |
//!                        | the kernel cannot write it back
//!                        v
//!                      dropped: in the page cache, clean, and not on the disk; no later sync helps, another
//!                      write does. May vanish from the page cache at any time (`evict`).
//! ```
//!
//! A failed write-back is told as Linux tells it: once to each descriptor that was open when it happened, and to
//! one that is opened later only if nobody was told before.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};

use super::Random;

/// What unwinds a process that is killed.
#[derive(Debug)]
pub(crate) struct Killed;

/// What happens at the next call of its kind, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A write gets so many bytes through and fails.
    Write(usize),
    /// A write gets so many bytes through, and its process is killed.
    WriteAndDie(usize),
    /// What a sync should write back is dropped; the caller is told.
    Sync,
    /// The same, and whoever was told is killed.
    SyncAndDie,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Byte {
    Durable,
    Dirty,
    Dropped,
}

/// One file as the disk has it, and which bytes of the page cache differ from that.
#[derive(Default)]
struct Sheet {
    inode: u64,
    durable: Vec<u8>,
    bytes: Vec<Byte>,
    /// Failed write-backs, and how many of them somebody was told of.
    errors: u64,
    told: u64,
}

#[derive(Default)]
struct Disk {
    sheets: BTreeMap<PathBuf, Sheet>,
    /// The open descriptors: their files, and how many failed write-backs each was told of.
    open: HashMap<RawFd, (PathBuf, u64)>,
    fault: Option<Fault>,
}

thread_local! {
    static DISK: RefCell<Option<Disk>> = const { RefCell::new(None) };
}

fn with<T>(act: impl FnOnce(&mut Disk) -> T) -> Option<T> {
    DISK.with_borrow_mut(|disk| disk.as_mut().map(act))
}

/// Puts a fresh disk under the segments of this thread.
pub(crate) fn install() {
    DISK.set(Some(Disk::default()));
}

/// Takes it away again.
pub(crate) fn remove() {
    DISK.set(None);
}

/// Has a fault happen; gives the one that has not happened yet.
pub(crate) fn arm(fault: Option<Fault>) -> Option<Fault> {
    with(|disk| std::mem::replace(&mut disk.fault, fault)).flatten()
}

/// Called for each segment that is opened.
pub(crate) fn opened(file: &File, path: &Path) {
    with(|disk| {
        let inode = file.metadata().unwrap().ino();
        let sheet = disk.sheets.entry(path.to_owned()).or_default();
        if sheet.inode != inode {
            // Made durably, header and name.
            let durable = std::fs::read(path).unwrap();
            let bytes = vec![Byte::Durable; durable.len()];
            *sheet = Sheet { inode, bytes, durable, ..Sheet::default() };
        }
        disk.open.insert(file.as_raw_fd(), (path.to_owned(), sheet.told));
    });
}

/// In place of `write_all_at`.
pub(crate) fn write(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    let fault = with(|disk| match disk.fault {
        Some(Fault::Write(_) | Fault::WriteAndDie(_)) => disk.fault.take(),
        _ => None,
    });
    let through = match fault.flatten() {
        Some(Fault::Write(through) | Fault::WriteAndDie(through)) => through.min(bytes.len()),
        _ => bytes.len(),
    };
    file.write_all_at(&bytes[..through], offset)?;
    with(|disk| {
        let Some((path, _)) = disk.open.get(&file.as_raw_fd()) else { return };
        let sheet = disk.sheets.get_mut(path).unwrap();
        let from = usize::try_from(offset).unwrap();
        let len = sheet.bytes.len().max(from + through);
        sheet.bytes.resize(len, Byte::Dirty);
        sheet.bytes[from..from + through].fill(Byte::Dirty);
    });
    match fault.flatten() {
        Some(Fault::WriteAndDie(_)) => resume_unwind(Box::new(Killed)),
        Some(_) => Err(io::Error::from_raw_os_error(nix::libc::EIO)),
        None => Ok(()),
    }
}

/// In place of `sync_data`.
pub(crate) fn sync(file: &File) -> io::Result<()> {
    let fault = with(|disk| match disk.fault {
        Some(Fault::Sync | Fault::SyncAndDie) => disk.fault.take(),
        _ => None,
    });
    let synced = with(|disk| {
        let (path, told) = disk.open.get_mut(&file.as_raw_fd())?;
        let sheet = disk.sheets.get_mut(path).unwrap();
        if fault.flatten().is_some() {
            sheet.fail();
        }
        sheet.write_back(file);
        let fine = *told == sheet.errors;
        (*told, sheet.told) = (sheet.errors, sheet.errors);
        Some(fine)
    });
    match (fault.flatten(), synced.flatten()) {
        (Some(Fault::SyncAndDie), _) => resume_unwind(Box::new(Killed)),
        (_, Some(false)) => Err(io::Error::from_raw_os_error(nix::libc::EIO)),
        (_, Some(true)) => Ok(()),
        (_, None) => file.sync_data(),
    }
}

impl Sheet {
    fn write_back(&mut self, file: &File) {
        let mut current = vec![0; self.bytes.len()];
        let len = file.read_at(&mut current, 0).unwrap();
        for (at, byte) in self.bytes.iter_mut().enumerate().filter(|(_, b)| **b == Byte::Dirty) {
            *byte = Byte::Durable;
            if self.durable.len() <= at {
                self.durable.resize(at + 1, 0);
            }
            self.durable[at] = if at < len { current[at] } else { 0 };
        }
    }

    /// The kernel cannot write back what is dirty.
    fn fail(&mut self) {
        if self.bytes.contains(&Byte::Dirty) {
            self.errors += 1;
        }
        for byte in self.bytes.iter_mut().filter(|byte| **byte == Byte::Dirty) {
            *byte = Byte::Dropped;
        }
    }

    fn on_disk(&self, at: usize) -> u8 {
        self.durable.get(at).copied().unwrap_or_default()
    }
}

/// The kernel tries to write everything back and fails; nobody is told yet.
pub(crate) fn fail_write_back() {
    with(|disk| disk.sheets.values_mut().for_each(Sheet::fail));
}

/// Whether there is a failed write-back that nobody was told of.
pub(crate) fn has_news() -> bool {
    with(|disk| disk.sheets.values().any(|sheet| sheet.told < sheet.errors)).unwrap_or_default()
}

/// What was dropped vanishes from the page cache: from now on it reads as it is on the disk.
pub(crate) fn evict() {
    with(|disk| {
        for (path, sheet) in &mut disk.sheets {
            // One that no seal named may have been removed.
            let Ok(mut bytes) = std::fs::read(path) else { continue };
            let dropped = |at: &usize| sheet.bytes.get(*at) == Some(&Byte::Dropped);
            for at in (0..bytes.len()).filter(dropped) {
                bytes[at] = sheet.on_disk(at);
            }
            for byte in sheet.bytes.iter_mut().filter(|byte| **byte == Byte::Dropped) {
                *byte = Byte::Durable;
            }
            std::fs::write(path, bytes).unwrap();
        }
    });
}

/// A file as a power cut would leave it at worst: nothing is there that was not synced.
pub(crate) fn durable(path: &Path) -> Option<Vec<u8>> {
    with(|disk| disk.sheets.get(path).map(|sheet| sheet.durable.clone())).flatten()
}

/// The power is cut: of what is not durable, `random` pieces are there afterwards.
pub(crate) fn cut(random: &mut Random) {
    with(|disk| {
        disk.open.clear();
        for (path, sheet) in &mut disk.sheets {
            let Ok(cached) = std::fs::read(path) else { continue };
            let mut bytes = sheet.durable.clone();
            let longer = cached.len().saturating_sub(bytes.len());
            if random.below(2) == 0 {
                bytes.resize(bytes.len() + longer, 0);
            }
            // All lost, all kept, or each piece as it comes.
            let of = random.below(3);
            let mut at = 0;
            while at < sheet.bytes.len() {
                let end = at + 1 + usize::try_from(random.below(300)).unwrap();
                let end = end.min(sheet.bytes.len());
                let kept = of == 1 || (of == 2 && random.below(2) == 0);
                for at in (at..end).filter(|at| kept && sheet.bytes[*at] != Byte::Durable) {
                    if bytes.len() <= at {
                        bytes.resize(at + 1, 0);
                    }
                    bytes[at] = cached.get(at).copied().unwrap_or_default();
                }
                at = end;
            }
            std::fs::write(path, &bytes).unwrap();
            let states = vec![Byte::Durable; bytes.len()];
            *sheet =
                Sheet { inode: sheet.inode, durable: bytes, bytes: states, ..Sheet::default() };
        }
    });
}
