//! A mount namespace of a test's own, in which the host looks different.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use cocoon_test_world::World;

/// A private mount namespace, kept by a process that does nothing else.
#[derive(Debug)]
pub(crate) struct Namespace {
    keeper: Child,
}

impl Namespace {
    /// Makes one, and has every further command of the world run in it. `None`, said aloud, where this user may not;
    /// `COCOON_REQUIRE` with the word `root` turns that into a failure.
    pub(crate) fn enter(world: &mut World) -> Option<Self> {
        let mut keeper = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", "echo ready; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(keeper.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let namespace = Self { keeper };
        if line != "ready\n" {
            let required = std::env::var("COCOON_REQUIRE").unwrap_or_default();
            assert!(!required.split([',', ' ']).any(|word| word == "root"), "needs root");
            eprintln!("skipped: this user may not make a mount namespace");
            return None;
        }
        world.wrapper = namespace.wrapper();
        Some(namespace)
    }

    fn wrapper(&self) -> Vec<String> {
        let target = self.keeper.id().to_string();
        ["nsenter", "--mount", "--target", &target, "--"].map(str::to_owned).to_vec()
    }

    /// Runs a shell line in it.
    #[track_caller]
    pub(crate) fn run(&self, line: &str) {
        let wrapper = self.wrapper();
        let status =
            Command::new(&wrapper[0]).args(&wrapper[1..]).args(["sh", "-c", line]).status();
        assert!(status.unwrap().success(), "{line}");
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}
