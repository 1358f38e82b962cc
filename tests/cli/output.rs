//! Where output goes, and what it looks like.

use std::io::Read as _;
use std::process::Stdio;

use crate::sandbox::Sandbox;

#[test]
fn data_goes_to_stdout_and_talk_to_stderr() {
    let sandbox = Sandbox::with_guest();
    let made = sandbox.cocoon(["vm", "create", "--name", "web", "guest"]);
    assert_eq!((made.code, made.stdout.as_str()), (0, ""));
    assert!(made.stderr.starts_with("VM created: "), "{made:?}");
    let listed = sandbox.cocoon(["vm", "list"]);
    assert!(listed.stdout.starts_with("ID "), "{listed:?}");
    assert_eq!(listed.stderr, "");
    let stopped = sandbox.cocoon(["vm", "start", "web", "-o", "json"]);
    assert_eq!(stopped.stderr, "", "{stopped:?}");
}

#[test]
fn a_closed_pipe_is_no_failure() {
    let sandbox = Sandbox::with_guest();
    for words in
        [&["vm", "list"][..], &["vm", "list", "-o", "json"], &["completion", "bash"], &["--help"]]
    {
        let mut command = sandbox.command(words);
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("cocoon runs");
        // The reader goes before anything can be written, as in `cocoon vm list | head -0`.
        drop(child.stdout.take());
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        let status = child.wait().unwrap();
        assert_eq!((status.code(), said.as_str()), (Some(0), ""), "{words:?}");
    }
}

#[test]
fn an_output_that_cannot_be_written_is_a_failure() {
    let sandbox = Sandbox::with_guest();
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let ended = sandbox.command(["vm", "list"]).stdout(full).output().unwrap();
    assert_eq!(ended.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&ended.stderr).contains("cannot write the output"));
}

#[test]
fn nothing_is_coloured_where_nobody_sees_it() {
    let sandbox = Sandbox::with_guest();
    sandbox.create("web");
    for words in
        [&["vm", "list"][..], &["vm", "list", "--log-level", "debug"], &["vm", "run"], &["--help"]]
    {
        for no_color in ["", "1"] {
            let ended = sandbox.command(words).env("NO_COLOR", no_color).output().unwrap();
            let escape = |bytes: &[u8]| bytes.contains(&0x1b);
            assert!(!escape(&ended.stdout) && !escape(&ended.stderr), "{words:?}");
        }
    }
}

#[test]
fn every_verb_that_prints_data_speaks_json() {
    let sandbox = Sandbox::with_guest();
    sandbox.create("web");
    let verbs: [&[&str]; 11] = [
        &["vm", "list"],
        &["vm", "start", "web"],
        &["vm", "wait", "web"],
        &["vm", "stop", "web"],
        &["vm", "reconcile-stale-create", "web"],
        &["vm", "rm", "web"],
        &["image", "list"],
        &["image", "rm", "guest"],
        &["gc"],
        &["version"],
        &["doctor"],
    ];
    for words in verbs {
        let ended = sandbox.cocoon(words.iter().chain(&["-o", "json"]));
        ended.json();
        assert_eq!(ended.stderr, "", "{words:?}");
    }
    for flag in ["--output", "--format"] {
        sandbox.cocoon(["vm", "list", flag, "json"]).json();
    }
}

#[test]
fn a_batch_tells_each_outcome_and_fails_as_a_whole() {
    let sandbox = Sandbox::with_guest();
    let (a, b) = (sandbox.create("a"), sandbox.create("b"));
    let ended = sandbox.cocoon(["vm", "rm", "a", "nobody", "b", "a", "-o", "json"]);
    assert_eq!(ended.code, 1);
    let result = ended.json();
    assert_eq!(result["succeeded"], serde_json::json!([a, b]));
    assert_eq!(result["failed"][0]["id"], "nobody");
    assert_eq!(result["failed"].as_array().unwrap().len(), 1);
    let empty = sandbox.cocoon(["vm", "list", "-o", "json"]);
    assert_eq!(empty.stdout, "[]\n");
}

/// What a command says on a terminal.
fn on_a_terminal(sandbox: &Sandbox, words: &[&str], no_color: &str) -> (Option<i32>, String) {
    use std::io::Read as _;
    let terminal = nix::pty::openpty(None, None).unwrap();
    let mut command = sandbox.command(words);
    command.env("NO_COLOR", no_color).env("TERM", "xterm").stdin(std::process::Stdio::null());
    command.stdout(std::process::Stdio::null()).stderr(terminal.slave);
    let mut child = command.spawn().unwrap();
    // The command holds the only other end.
    drop(command);
    let mut said = Vec::new();
    // Linux answers EIO when the last other end of a terminal is closed.
    let _ = std::fs::File::from(terminal.master).read_to_end(&mut said);
    (child.wait().unwrap().code(), String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn a_terminal_gets_colours_unless_it_wants_none_and_no_panic() {
    let sandbox = Sandbox::new();
    for no_color in ["", "1"] {
        let (code, said) = on_a_terminal(&sandbox, &["vm", "list"], no_color);
        assert_eq!((code, said.as_str()), (Some(0), ""));
    }
    let file = sandbox.path().join("odd.toml");
    std::fs::write(&file, "colour = 'red'\n").unwrap();
    let words = ["vm", "list", "--config", file.to_str().unwrap()];
    let (code, plain) = on_a_terminal(&sandbox, &words, "1");
    assert!(code == Some(0) && plain.contains("colour") && !plain.contains('\u{1b}'), "{plain}");
    let (code, coloured) = on_a_terminal(&sandbox, &words, "");
    assert!(code == Some(0) && coloured.contains('\u{1b}'), "{coloured}");
}

#[test]
fn an_error_that_nobody_can_read_is_no_panic() {
    let sandbox = Sandbox::new();
    let ended = sandbox.shell("cocoon vm inspect nosuch 2>/dev/full");
    ended.says(1, "");
}
