//! What one process came to.

use std::os::unix::process::ExitStatusExt as _;
use std::process::Output;

use serde_json::Value;

/// A process that ended, with what it said.
#[derive(Debug)]
pub struct Ran {
    /// The command, as one types it.
    pub command: String,
    /// What it printed.
    pub output: Output,
}

impl Ran {
    /// What it printed to standard output.
    #[must_use]
    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.output.stdout).into_owned()
    }

    /// What it printed to standard error.
    #[must_use]
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.output.stderr).into_owned()
    }

    /// Its exit code; none if a signal ended it.
    #[must_use]
    pub fn code(&self) -> Option<i32> {
        self.output.status.code()
    }

    /// Whether SIGKILL ended it.
    #[must_use]
    pub fn was_killed(&self) -> bool {
        self.output.status.signal() == Some(9)
    }

    /// All of it, for a message.
    #[must_use]
    pub fn told(&self) -> String {
        format!("`{}`: {}\n{}{}", self.command, self.output.status, self.stdout(), self.stderr())
    }

    /// Requires success.
    ///
    /// # Panics
    /// If it failed.
    #[track_caller]
    pub fn ok(self) -> Self {
        assert!(self.output.status.success(), "{}", self.told());
        self
    }

    /// Requires failure with exit code 1 and this text in its words.
    ///
    /// # Panics
    /// If it succeeded, failed otherwise, or said something else.
    #[track_caller]
    pub fn refused(self, text: &str) -> Self {
        assert!(self.code() == Some(1) && self.stderr().contains(text), "{}", self.told());
        self
    }

    /// Its standard output as JSON.
    ///
    /// # Panics
    /// If it is none.
    #[must_use]
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.output.stdout)
            .unwrap_or_else(|error| panic!("no JSON ({error}): {}", self.told()))
    }
}
