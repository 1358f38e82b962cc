//! The help of every verb.

use std::fmt::Write as _;

use crate::sandbox::Sandbox;
use crate::{golden, reference};

#[test]
fn the_help_of_every_verb() {
    let sandbox = Sandbox::new();
    let mut all = String::new();
    for path in reference::verbs() {
        let words = path.iter().map(String::as_str).chain(["--help"]);
        let help = sandbox.cocoon(words);
        assert_eq!((help.code, help.stderr.as_str()), (0, ""), "{path:?}");
        writeln!(all, "==== cocoon {}\n{}", path.join(" "), help.stdout).unwrap();
    }
    let all: Vec<_> = all.lines().map(str::trim_end).collect();
    golden("tests/cli/golden/help.txt", &format!("{}\n", all.join("\n").trim_end()));
}

#[test]
fn help_touches_no_root() {
    let sandbox = Sandbox::new();
    for words in
        [&["--help"][..], &["vm", "--help"], &["vm", "run", "-h"], &["--version"], &["version"]]
    {
        assert_eq!(sandbox.cocoon(words).code, 0);
    }
    assert!(!sandbox.root().exists());
}

#[test]
fn every_flag_is_explained() {
    fn unexplained(command: &clap::Command, path: &str, found: &mut Vec<String>) {
        let path = format!("{path} {}", command.get_name());
        if command.get_about().is_none() {
            found.push(path.clone());
        }
        let args =
            command.get_arguments().filter(|arg| !arg.is_hide_set() && arg.get_help().is_none());
        found.extend(args.map(|arg| format!("{path}: {}", arg.get_id())));
        for verb in command.get_subcommands() {
            unexplained(verb, &path, found);
        }
    }
    let mut found = Vec::new();
    unexplained(&reference::command(), "", &mut found);
    assert!(found.is_empty(), "without a word of help: {found:#?}");
}
