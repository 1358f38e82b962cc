//! What can befall a file.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use nix::sys::stat::Mode;

use crate::world::Copy;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Harm {
    Flip,
    Cut,
    Zeroed,
    Garbage,
    Missing,
    Empty,
    Older,
    Closed,
    Pipe,
    Directory,
    Link,
}

pub(crate) const HARMS: [Harm; 11] = [
    Harm::Flip,
    Harm::Cut,
    Harm::Zeroed,
    Harm::Garbage,
    Harm::Missing,
    Harm::Empty,
    Harm::Older,
    Harm::Closed,
    Harm::Pipe,
    Harm::Directory,
    Harm::Link,
];

impl Harm {
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Flip => "a bit flipped",
            Self::Cut => "cut short",
            Self::Zeroed => "a page zeroed",
            Self::Garbage => "garbage appended",
            Self::Missing => "missing",
            Self::Empty => "empty",
            Self::Older => "an older copy",
            Self::Closed => "permissions gone",
            Self::Pipe => "a pipe in its place",
            Self::Directory => "a directory in its place",
            Self::Link => "a link in its place",
        }
    }

    /// At how many places it is tried.
    pub(crate) fn places(self) -> u64 {
        match self {
            Self::Flip => 5,
            Self::Cut | Self::Zeroed => 3,
            _ => 1,
        }
    }

    /// Damages a file; false if that changes nothing.
    pub(crate) fn befall(self, copy: &Copy, path: &Path, place: u64) -> bool {
        let file = copy.path().join(path);
        let bytes = fs::read(&file).unwrap();
        let len = bytes.len();
        // Spread over what is used of the file, the same each time.
        let used: Vec<usize> = (0..len).filter(|at| bytes[*at] != 0).collect();
        let at = |n: u64| {
            let nth = usize::try_from(n).unwrap() * used.len() / 7 + used.len() / 11;
            used.get(nth).copied().unwrap_or_default()
        };
        match self {
            Self::Flip | Self::Cut | Self::Zeroed if len == 0 => false,
            Self::Flip => {
                let mut bytes = bytes;
                bytes[at(place)] ^= 1 << (place % 8);
                write(&file, &bytes)
            }
            Self::Cut => write(&file, &bytes[..at(2 * place)]),
            Self::Zeroed => {
                let mut harmed = bytes.clone();
                let (from, to) = (at(2 * place), (at(2 * place) + 4096).min(len));
                harmed[from..to].fill(0);
                harmed != bytes && write(&file, &harmed)
            }
            Self::Garbage => write(&file, &[&bytes[..], b"CCNF", &[0xEE; 300]].concat()),
            Self::Missing => {
                fs::remove_file(&file).unwrap();
                true
            }
            Self::Empty => len > 0 && write(&file, b""),
            Self::Older => match fs::read(copy.older(path)) {
                Ok(older) => older != bytes && write(&file, &older),
                Err(_) => false,
            },
            Self::Closed => {
                fs::set_permissions(&file, fs::Permissions::from_mode(0o000)).unwrap();
                true
            }
            Self::Pipe => {
                fs::remove_file(&file).unwrap();
                nix::unistd::mkfifo(&file, Mode::S_IRWXU).unwrap();
                true
            }
            Self::Directory => {
                fs::remove_file(&file).unwrap();
                fs::create_dir(&file).unwrap();
                true
            }
            Self::Link => {
                fs::rename(&file, file.with_extension("elsewhere")).unwrap();
                symlink(file.with_extension("elsewhere"), &file).unwrap();
                true
            }
        }
    }
}

fn write(path: &Path, bytes: &[u8]) -> bool {
    fs::write(path, bytes).unwrap();
    true
}
