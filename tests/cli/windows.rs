//! `docs/crash-windows.md` names every boundary at which a crash can be provoked, and no other.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::repository;

/// Rust sources below a directory, tests left out.
fn sources(below: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(below).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && name != "tests" {
            found.extend(sources(&path));
        } else if name.ends_with(".rs") && name != "tests.rs" && name != "testing.rs" {
            found.push(path);
        }
    }
    found
}

/// The first string after each occurrence of `call`, if it follows at once.
fn names(text: &str, call: &str) -> Vec<String> {
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let after = text.match_indices(call).map(|(at, _)| text[at + call.len()..].trim_start());
    let named = after.filter_map(|rest| rest.strip_prefix('"')?.split_once('"'));
    named.map(|(name, _)| name.to_owned()).filter(|name| name.contains('.')).collect()
}

fn in_sources() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (directory, calls) in
        [("src", &["perform("][..]), ("journal/src", &["boundary(", "boundary)("])]
    {
        for path in sources(&repository().join(directory)) {
            let text = std::fs::read_to_string(path).unwrap();
            found.extend(calls.iter().flat_map(|call| names(&text, call)));
        }
    }
    found
}

/// The names in the first column of the tables.
fn in_page() -> BTreeSet<String> {
    let page = std::fs::read_to_string(repository().join("docs/crash-windows.md")).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
    rows.flat_map(|cell| cell.split('`').filter(|name| name.contains('.')))
        .map(str::to_owned)
        .collect()
}

#[test]
fn every_boundary_is_documented() {
    let (sources, page) = (in_sources(), in_page());
    assert!(sources.len() > 30, "{sources:?}");
    let missing: Vec<_> = sources.difference(&page).collect();
    let surplus: Vec<_> = page.difference(&sources).collect();
    assert!(missing.is_empty() && surplus.is_empty(), "missing: {missing:?}; surplus: {surplus:?}");
}
