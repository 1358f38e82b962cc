//! The style of the tree, as tests: what a reader relies on, and a reviewer would have to repeat.

#![expect(clippy::expect_used, reason = "a test that cannot go on fails")]

mod dependencies;
mod effects;
mod markdown;
mod rust;
mod words;

use std::path::{Path, PathBuf};
use std::process::Command;

/// The root of the repository.
fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A text file of the repository.
struct Source {
    /// Relative to the root of the repository, with slashes.
    path: String,
    text: String,
}

/// All files that git knows or would add, whose names end in one of `endings`.
fn sources(endings: &[&str]) -> Vec<Source> {
    let listed = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "-z"])
        .current_dir(repository())
        .output()
        .expect("git lists the files of the repository");
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    let names = String::from_utf8(listed.stdout).expect("file names are UTF-8");
    let wanted = |name: &&str| endings.iter().any(|ending| name.ends_with(ending));
    // A file that was removed, but not yet from git, is no source any more; nor is one that is not text.
    let read = |name: &str| {
        let text = std::fs::read_to_string(repository().join(PathBuf::from(name))).ok()?;
        Some(Source { path: name.to_owned(), text })
    };
    let found: Vec<_> = names.split('\0').filter(wanted).filter_map(read).collect();
    assert!(!found.is_empty(), "no file ends in {endings:?}");
    found
}

/// Fails with all faults, one a line.
fn report(rule: &str, faults: &[String]) {
    assert!(faults.is_empty(), "{rule}:\n  {}", faults.join("\n  "));
}
