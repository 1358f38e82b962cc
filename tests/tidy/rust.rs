//! Lengths, leftovers, module files.

use crate::{Source, report, sources};

/// Above this a file wants to be two.
const FILE_LINES: usize = 600;
/// Above this a function cannot be seen whole.
const FUNCTION_LINES: usize = 70;

/// Longer files, each with the reason.
const LONG_FILES: [(&str, &str); 0] = [];

/// A function of a formatted source: its name, its first line (from 0) and its lines.
pub(crate) struct Function<'a> {
    pub(crate) name: &'a str,
    pub(crate) line: usize,
    pub(crate) body: Vec<&'a str>,
}

/// The functions of a source that rustfmt has formatted: one ends with the brace that is indented like its beginning.
pub(crate) fn functions(text: &str) -> Vec<Function<'_>> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some(name) = function_name(line) else { continue };
        let indent = &line[..line.len() - line.trim_start().len()];
        let end = format!("{indent}}}");
        let length = if line.ends_with('}') {
            Some(0)
        } else {
            lines[at..].iter().position(|line| *line == end)
        };
        let declared = lines[at..].iter().position(|line| {
            line.ends_with(';')
                && line.starts_with(indent)
                && !line[indent.len()..].starts_with(' ')
        });
        match (length, declared) {
            (Some(length), Some(declared)) if declared < length => {}
            (Some(length), _) => {
                found.push(Function { name, line: at, body: lines[at..=at + length].to_vec() });
            }
            (None, _) => {}
        }
    }
    found
}

fn function_name(line: &str) -> Option<&str> {
    let mut words = line.trim_start().split(' ').peekable();
    while let Some(word) = words.next() {
        match word {
            "fn" => return words.next()?.split(['(', '<']).next(),
            "const" | "async" | "unsafe" | "extern" | "\"C\"" => {}
            word if word.starts_with("pub") || word.ends_with(')') => {}
            _ => return None,
        }
    }
    None
}

/// A source without its tests, which are written below `#[cfg(test)]`.
pub(crate) fn product(source: &Source) -> &str {
    let is_test = source.path.contains("/tests/")
        || source.path.starts_with("tests/")
        || source.path.ends_with("/tests.rs")
        || source.path.ends_with("test_support.rs")
        || source.path.contains("/benches/")
        || source.path.starts_with("benches/");
    if is_test {
        return "";
    }
    source.text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default()
}

#[test]
fn files_are_short() {
    let too_long = |source: &Source| {
        let lines = source.text.lines().count();
        let excused = LONG_FILES.iter().any(|(path, _)| *path == source.path);
        (lines > FILE_LINES && !excused).then(|| format!("{}: {lines} lines", source.path))
    };
    let faults: Vec<_> = sources(&[".rs"]).iter().filter_map(too_long).collect();
    report("a file has at most 600 lines; split it, or give the reason in LONG_FILES", &faults);
}

#[test]
fn excuses_are_needed() {
    let sources = sources(&[".rs"]);
    for (path, reason) in LONG_FILES {
        let source = sources.iter().find(|source| source.path == path);
        let lines = source.map_or(0, |source| source.text.lines().count());
        assert!(lines > FILE_LINES, "{path} needs no excuse any more: {reason}");
    }
}

#[test]
fn functions_are_short() {
    let mut faults = Vec::new();
    for source in sources(&[".rs"]) {
        for function in functions(&source.text) {
            let lines = function.body.len();
            if lines > FUNCTION_LINES {
                let Function { name, line, .. } = function;
                faults.push(format!("{}:{}: {name} has {lines} lines", source.path, line + 1));
            }
        }
    }
    report("a function has at most 70 lines", &faults);
}

#[test]
fn modules_are_named_by_their_file() {
    let faults: Vec<_> = sources(&[".rs"])
        .into_iter()
        .map(|source| source.path)
        .filter(|path| path.ends_with("/mod.rs"))
        .collect();
    report("foo.rs and foo/, never foo/mod.rs", &faults);
}

#[test]
fn nothing_is_left_over() {
    let words = ["todo!", "unimplemented!", "dbg!", "FIXME", "XXX", "TODO", "HACK"];
    let mut faults = Vec::new();
    for source in sources(&[".rs", ".sh", ".toml", "scripts/test", "scripts/quickstart"]) {
        if source.path.starts_with("tests/tidy/") {
            continue;
        }
        for (number, line) in source.text.lines().enumerate() {
            let word = words.iter().find(|word| line.contains(**word));
            faults.extend(word.map(|word| format!("{}:{}: {word}", source.path, number + 1)));
        }
    }
    report("what is not done is not left in the tree as a note", &faults);
}

#[test]
fn functions_are_found() {
    let text = "impl A {\n    fn declared(&self);\n    pub(crate) fn short() {\n        if x {\n        }\n    }\n}\n\nfn one() {}\npub async fn long(\n    a: u8,\n) {\n    b();\n}\n";
    let found = functions(text);
    let names: Vec<_> = found.iter().map(|function| (function.name, function.body.len())).collect();
    assert_eq!(names, [("short", 4), ("one", 1), ("long", 5)]);
}
