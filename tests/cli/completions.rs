//! Completion scripts and manual pages.

use std::process::Command;

use crate::sandbox::Sandbox;

#[test]
fn every_shell_gets_a_script_with_the_verbs() {
    let sandbox = Sandbox::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = sandbox.cocoon(["completion", shell]);
        assert_eq!((script.code, script.stderr.as_str()), (0, ""), "{shell}");
        assert!(script.stdout.contains("reconcile-stale-create"), "{shell}");
    }
    sandbox.cocoon(["completion", "cmd.exe"]).says(2, "invalid value");
}

#[test]
fn bash_completes_a_verb() {
    let sandbox = Sandbox::new();
    let script = sandbox.path().join("cocoon.bash");
    std::fs::write(&script, sandbox.cocoon(["completion", "bash"]).stdout).unwrap();
    let ask = "source \"$1\"; COMP_WORDS=(cocoon vm rec); COMP_CWORD=2; _cocoon cocoon rec vm; echo \"${COMPREPLY[*]}\"";
    let asked =
        Command::new("bash").args(["--norc", "-c", ask, "bash"]).arg(script).output().unwrap();
    assert_eq!(
        String::from_utf8_lossy(&asked.stdout).trim(),
        "reconcile-stale-create",
        "{asked:?}"
    );
}

#[test]
fn manual_pages_are_written() {
    let sandbox = Sandbox::new();
    let pages = sandbox.path().join("man/man1");
    let written = sandbox.cocoon(["man".as_ref(), pages.as_os_str()]);
    assert_eq!((written.code, written.stderr.as_str()), (0, ""));
    for page in ["cocoon.1", "cocoon-vm.1", "cocoon-vm-run.1"] {
        let text = std::fs::read_to_string(pages.join(page)).unwrap();
        assert!(text.contains(".TH"), "{page}");
    }
}
