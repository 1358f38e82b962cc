//! The examples of the documentation, run.
//!
//! A fenced block of `console` after the line `<!-- example: fake VMM -->` is a session: lines that begin with `$ ` are
//! typed, the others are what must be printed. `[..]` stands for anything within a line, a line `[...]` for any lines.
//! The blocks of one page are one session, in one root.

use crate::repository;
use crate::sandbox::Sandbox;

const MARK: &str = "<!-- example: fake VMM -->";

/// A line that is typed, and what must be printed.
#[derive(Debug, PartialEq)]
struct Typed {
    line: usize,
    command: String,
    expected: Vec<String>,
}

fn session(page: &str) -> Vec<Typed> {
    let mut typed: Vec<Typed> = Vec::new();
    let mut lines = page.lines().enumerate();
    while let Some((_, line)) = lines.next() {
        if line != MARK {
            continue;
        }
        assert_eq!(
            lines.next().map(|(_, line)| line),
            Some("```console"),
            "a block follows the mark"
        );
        for (number, line) in lines.by_ref().take_while(|(_, line)| *line != "```") {
            match line.strip_prefix("$ ") {
                Some(command) => typed.push(Typed {
                    line: number + 1,
                    command: command.to_owned(),
                    expected: Vec::new(),
                }),
                None => typed.last_mut().expect("a command first").expected.push(line.to_owned()),
            }
        }
    }
    typed
}

/// Whether a line is as expected; `[..]` stands for anything.
fn fits(expected: &str, line: &str) -> bool {
    let mut pieces = expected.split("[..]");
    let first = pieces.next().unwrap_or_default();
    let Some(mut rest) = line.strip_prefix(first) else { return false };
    let pieces: Vec<_> = pieces.collect();
    let Some((last, middle)) = pieces.split_last() else { return rest.is_empty() };
    for piece in middle {
        let Some((_, after)) = rest.split_once(piece) else { return false };
        rest = after;
    }
    rest.ends_with(last)
}

/// Whether lines are as expected; `[...]` stands for any lines.
fn all_fit(expected: &[String], lines: &[&str]) -> bool {
    match expected.split_first() {
        None => lines.is_empty(),
        Some((any, expected)) if any == "[...]" => {
            (0..=lines.len()).any(|skipped| all_fit(expected, &lines[skipped..]))
        }
        Some((one, expected)) => lines
            .split_first()
            .is_some_and(|(line, lines)| fits(one, line) && all_fit(expected, lines)),
    }
}

fn run(page: &str) {
    let text = std::fs::read_to_string(repository().join(page)).unwrap();
    let session = session(&text);
    assert!(!session.is_empty(), "{page} has examples");
    let sandbox = Sandbox::new();
    for Typed { line, command, expected } in session {
        let printed = sandbox.shell(&command).stdout.replace('\r', "");
        let lines: Vec<_> = printed.lines().collect();
        assert!(
            all_fit(&expected, &lines),
            "{page}:{line}: $ {command}\nexpected:\n{}\nprinted:\n{printed}",
            expected.join("\n")
        );
    }
}

#[test]
fn readme() {
    run("README.md");
}

#[test]
fn quick_start() {
    run("docs/quick-start.md");
}

#[test]
fn embedding() {
    run("docs/embedding.md");
}

#[test]
fn forensics() {
    run("docs/forensics.md");
}

#[test]
fn lines_are_compared() {
    assert!(fits("a [..] c", "a b c"));
    assert!(fits("[..]", ""));
    assert!(!fits("a", "a b"));
    assert!(!fits("a [..] c", "a b d"));
    let expected = ["a".to_owned(), "[...]".to_owned(), "d".to_owned()];
    assert!(all_fit(&expected, &["a", "b", "c", "d"]));
    assert!(!all_fit(&expected, &["a", "b"]));
}
