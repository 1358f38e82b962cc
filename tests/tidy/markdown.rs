//! Links of Markdown files, and the table of contents of the book.

use std::path::{Component, Path, PathBuf};

use crate::{Source, report, repository, sources};

/// Targets of the links in a text, outside code.
fn links(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut in_code = false;
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if in_code {
            continue;
        }
        let mut rest = line;
        while let Some((_, after)) = rest.split_once("](") {
            let Some((target, after)) = after.split_once(')') else { break };
            found.push((number + 1, target));
            rest = after;
        }
    }
    found
}

/// What a heading is called in a link.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let keep = |c: char| match c {
        ' ' => Some('-'),
        c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
        _ => None,
    };
    text.chars().filter_map(keep).collect()
}

fn anchors(text: &str) -> Vec<String> {
    let mut in_code = false;
    let mut found = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if !in_code && line.starts_with('#') {
            found.push(anchor(line));
        }
    }
    found
}

/// A path without `.` and `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                plain.pop();
            }
            Component::CurDir => {}
            other => plain.push(other),
        }
    }
    plain
}

fn dead(source: &Source, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (file, fragment) = target.split_once('#').unwrap_or((target, ""));
    let here = Path::new(&source.path);
    let path = if file.is_empty() {
        here.to_owned()
    } else {
        plain(&here.parent().unwrap_or(Path::new("")).join(file))
    };
    let whole = repository().join(&path);
    if !whole.exists() {
        return Some(format!("{} is not there", path.display()));
    }
    if fragment.is_empty() || path.extension().is_none_or(|ending| ending != "md") {
        return None;
    }
    let text = std::fs::read_to_string(whole).unwrap_or_default();
    let known = anchors(&text).iter().any(|anchor| anchor == fragment);
    (!known).then(|| format!("{} has no heading #{fragment}", path.display()))
}

#[test]
fn links_lead_somewhere() {
    let mut faults = Vec::new();
    for source in sources(&[".md"]) {
        for (line, target) in links(&source.text) {
            let fault = dead(&source, target);
            faults.extend(fault.map(|fault| format!("{}:{line}: {fault}", source.path)));
        }
    }
    report("a link leads to a file of the repository, or out of it", &faults);
}

#[test]
fn every_page_is_in_the_table_of_contents() {
    let sources = sources(&[".md"]);
    let contents = sources.iter().find(|source| source.path == "docs/SUMMARY.md");
    let contents = contents.expect("docs/SUMMARY.md lists the pages of the book");
    let listed: Vec<_> = links(&contents.text).into_iter().map(|(_, target)| target).collect();
    let is_page = |path: &&str| !path.contains('/') && *path != "SUMMARY.md";
    let pages = sources.iter().filter_map(|source| source.path.strip_prefix("docs/"));
    let missing: Vec<_> =
        pages.filter(is_page).filter(|page| !listed.contains(page)).map(str::to_owned).collect();
    report("docs/SUMMARY.md lists every page", &missing);
}

#[test]
fn links_and_headings_are_found() {
    let text = "# A b, `c`!\nsee [x](y.md#z) and [w](v)\n```\n[no](no)\n```\n";
    assert_eq!(links(text), [(2, "y.md#z"), (2, "v")]);
    assert_eq!(anchors(text), ["a-b-c"]);
}
