//! The errors of `docs/troubleshooting.md` are those that the program has.

use std::path::Path;

use crate::repository;

/// All sources of the product, as one text in which strings read as they are printed.
fn sources() -> String {
    fn collect(below: &Path, text: &mut String) {
        for entry in std::fs::read_dir(below).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                collect(&path, text);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                text.push_str(&std::fs::read_to_string(path).unwrap());
            }
        }
    }
    let mut text = String::new();
    for crate_ in ["src", "model/src", "journal/src"] {
        collect(&repository().join(crate_), &mut text);
    }
    text.replace("\\\"", "\"")
}

/// The fixed parts of a message in which dots and capitals stand for what differs.
fn fixed(message: &str) -> Vec<&str> {
    let parts =
        message.split("...").flat_map(|part| part.split("NAME")).flat_map(|part| part.split("ID"));
    parts.filter(|part| part.trim().len() > 3).collect()
}

#[test]
fn every_error_is_one_of_ours() {
    let page = std::fs::read_to_string(repository().join("docs/troubleshooting.md")).unwrap();
    let sources = sources();
    let messages = page.lines().filter_map(|line| line.strip_prefix("### `")?.strip_suffix('`'));
    let messages: Vec<_> = messages.collect();
    assert!(messages.len() > 20, "{messages:?}");
    for message in messages {
        let parts = fixed(message);
        assert!(!parts.is_empty(), "{message} says nothing");
        for part in parts {
            assert!(sources.contains(part), "`{message}`: nothing says {part:?}");
        }
    }
}
