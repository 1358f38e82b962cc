//! What happens to files while nobody lives.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::Random;

/// The segment that is written to, if there is one.
pub(crate) fn newest_segment(journal: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(journal.join("seg")).ok()?;
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension() == Some("seg".as_ref())).max()
}

/// Leaves what a writer leaves that dies within a write: bytes that are no frame, or an old one in the wrong place.
pub(super) fn tear(journal: &Path, random: &mut Random) {
    let Some(path) = newest_segment(journal) else { return };
    let mut bytes = fs::read(&path).unwrap();
    if bytes.len() <= 128 {
        // Perhaps no seal names it: then nobody ever wrote to it.
        return;
    }
    let len = 1 + random.index(400);
    let torn: Vec<u8> = match random.below(3) {
        0 => (0..len).map(|_| random.below(256).to_le_bytes()[0]).collect(),
        1 => [&b"CCNF"[..], &vec![0; len]].concat(),
        // The end of what is there, once more.
        _ => bytes[bytes.len().saturating_sub(len).max(128)..].to_vec(),
    };
    bytes.extend(torn);
    fs::write(path, bytes).unwrap();
}

/// Damages something that is derived from the log, or leaves what a dead writer of it leaves.
pub(super) fn derived(journal: &Path, random: &mut Random) {
    let mut files = Vec::new();
    list(&journal.join("ckpt"), &mut files);
    list(&journal.join("sled"), &mut files);
    if files.is_empty() {
        return;
    }
    let path = files[random.index(files.len())].clone();
    let mut bytes = fs::read(&path).unwrap();
    match random.below(8) {
        0 => return fs::remove_file(path).unwrap(),
        1 => bytes.clear(),
        2 => bytes.truncate(random.index(bytes.len() + 1)),
        3 => bytes.extend_from_slice(&[0x5a; 300]),
        4 if !bytes.is_empty() => {
            let (at, len) = (random.index(bytes.len()), random.index(4096));
            let end = (at + len).min(bytes.len());
            bytes[at..end].fill(0);
        }
        5 => {
            // What the next opening of sled would take for its newest snapshot.
            let left = path.with_file_name("snap.0000000000FFFFFF.generating");
            return fs::write(left, b"").unwrap();
        }
        6 => return half_made_generation(journal),
        _ if bytes.is_empty() => {}
        _ => {
            let at = random.index(bytes.len());
            bytes[at] ^= 1 << random.below(8);
        }
    }
    fs::write(path, bytes).unwrap();
}

fn half_made_generation(journal: &Path) {
    let dir = journal.join("sled/00000000000000000001.building");
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("db"), b"half made").unwrap();
    fs::write(journal.join("ckpt/00000000000000000001.base.writing"), b"half made").unwrap_or(());
}

fn list(dir: &Path, files: &mut Vec<PathBuf>) {
    let mut paths: Vec<_> =
        fs::read_dir(dir).into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            list(&path, files);
        } else {
            files.push(path);
        }
    }
}
