//! Children for tests: the test binary runs itself again, and plays a role in the new process.
//!
//! A role is a function; it says what it has reached by printing a line, which its parent awaits,
//! and ends when its standard input does.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};

const ROLE: &str = "COCOON_TEST_ROLE";
const ARGUMENTS: &str = "COCOON_TEST_ARGUMENTS";

/// A running role; killed and reaped when dropped.
pub(crate) struct Role {
    pub(crate) child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Role {
    pub(crate) fn start(name: &str, arguments: &[&str]) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "host::test_support::play_role", "--nocapture"])
            .env(ROLE, name)
            .env(ARGUMENTS, arguments.join("\n"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output }
    }

    /// Waits for a line that begins with `prefix` and returns the rest of it.
    pub(crate) fn await_line(&mut self, prefix: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "no `{prefix}` came");
            if let Some(rest) = line.trim_end().strip_prefix(prefix) {
                return rest.trim().to_owned();
            }
        }
    }

    /// Kills the role and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Lets the role come to its end, and waits for that.
    pub(crate) fn finish(&mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Prints a line for the parent, at once.
pub(crate) fn say(line: &str) {
    let mut output = std::io::stdout();
    writeln!(output, "{line}").unwrap();
    output.flush().unwrap();
}

/// Returns when the parent lets go.
pub(crate) fn await_end() {
    let mut rest = Vec::new();
    std::io::stdin().read_to_end(&mut rest).unwrap();
}

#[test]
fn play_role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let arguments = std::env::var(ARGUMENTS).unwrap();
    let arguments: Vec<&str> = arguments.split('\n').collect();
    // A blank line first: the test runner leaves its own line unfinished.
    say("");
    match role.as_str() {
        "hold-ops" => super::lock::tests::hold_ops(&arguments),
        "contend" => super::lock::tests::contend(&arguments),
        "launch" => super::spawn::tests::launch(&arguments),
        "run-helper" => super::spawn::tests::run_helper(&arguments),
        "unshare-network" => super::spawn::tests::unshare_network(&arguments),
        "other-boot" => super::process::tests::other_boot(&arguments),
        "enter-pid-namespace" => super::process::tests::enter_pid_namespace(&arguments),
        "judge" => super::process::tests::judge(&arguments),
        "remove-mounted" => super::directory::tests::remove_mounted(&arguments),
        unknown => panic!("no role {unknown}"),
    }
}
