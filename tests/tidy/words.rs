//! Words that do not belong into a public tree.

use crate::{report, sources};

/// Names of documents and places that readers do not have, and of the tools that a text was written with.
const FORBIDDEN: [&str; 16] = [
    "DESIGN.md",
    "DESIGN ",
    "cases.md",
    "shared/",
    "reference/engine",
    "reference/set",
    "reference/vmm",
    "reference/style",
    "reference/journal",
    "/work/w",
    "/work/main",
    "/tmp/hub",
    "/tmp/briefs",
    "issues show",
    "Claude",
    "ChatGPT",
];

#[test]
fn the_tree_speaks_of_the_project_alone() {
    let mut faults = Vec::new();
    for source in sources(&[""]) {
        if source.path == "tests/tidy/words.rs" || source.path == "Cargo.lock" {
            continue;
        }
        for (number, line) in source.text.lines().enumerate() {
            if let Some(word) = FORBIDDEN.iter().find(|word| line.contains(**word)) {
                faults.push(format!("{}:{}: {word}", source.path, number + 1));
            }
            if let Some(case) = numbered_case(line) {
                faults.push(format!("{}:{}: {case}", source.path, number + 1));
            }
        }
    }
    report("a reader of this tree does not know this", &faults);
}

/// A reference to a numbered report: `F-` and two digits.
fn numbered_case(line: &str) -> Option<&str> {
    line.match_indices("F-").find_map(|(at, _)| {
        let free = !line[..at].chars().next_back().is_some_and(char::is_alphanumeric);
        let digits = line.get(at + 2..at + 4)?;
        (free && digits.bytes().all(|byte| byte.is_ascii_digit())).then(|| &line[at..at + 4])
    })
}

#[test]
fn lines_end_where_their_text_ends() {
    let mut faults = Vec::new();
    for source in sources(&[".rs", ".md", ".toml", ".json", ".yml"]) {
        let golden = source.path.contains("/golden/") || source.path.contains("/snapshots/");
        for (number, line) in source.text.lines().enumerate() {
            if line.ends_with([' ', '\t']) && !golden {
                faults.push(format!("{}:{}: blanks at the end", source.path, number + 1));
            }
        }
        if !source.text.is_empty() && !source.text.ends_with('\n') {
            faults.push(format!("{}: no newline at the end", source.path));
        }
    }
    report("blanks at the end of a line only make noise in differences", &faults);
}
