//! Failures, as people and programs meet them: a sentence, a hint, an exit code.

use std::process::ExitCode;

use super::output;
use crate::engine::{EngineError, ErrorKind};
use crate::settings::SettingsError;

/// Why a command did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The daemon.
    #[error(transparent)]
    Daemon(crate::daemon::DaemonError),
    /// The history.
    #[error(transparent)]
    Replay(#[from] crate::replay::ReplayError),
    /// The settings.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The command was asked wrongly.
    #[error("{0}")]
    Usage(String),
    /// It failed, and the sentence says all.
    #[error("{0}")]
    Failed(String),
    /// Some of a batch failed; each was told already.
    #[error("{failed} of {all} failed")]
    Batch {
        /// How many failed.
        failed: usize,
        /// How many there were.
        all: usize,
    },
    /// Whoever read our output has gone.
    #[error("the reader of the output has gone")]
    ClosedPipe,
    /// The output could not be written.
    #[error("cannot write the output: {0}")]
    Output(std::io::Error),
}

impl From<crate::daemon::DaemonError> for CliError {
    fn from(error: crate::daemon::DaemonError) -> Self {
        match error {
            // The engine's own failures keep their exit codes and hints.
            crate::daemon::DaemonError::Engine(error) => Self::Engine(error),
            error => Self::Daemon(error),
        }
    }
}

impl CliError {
    /// The exit code.
    #[must_use]
    pub fn code(&self) -> u8 {
        match self {
            Self::ClosedPipe => 0,
            Self::Usage(_) => 2,
            Self::Engine(error) => match error.kind() {
                ErrorKind::Failed => 1,
                ErrorKind::Usage => 2,
                ErrorKind::Bug => 70,
            },
            Self::Replay(_)
            | Self::Settings(_)
            | Self::Daemon(_)
            | Self::Failed(_)
            | Self::Batch { .. }
            | Self::Output(_) => 1,
        }
    }

    /// What the user can do, where the sentence does not say it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Engine(error) => error.hint(),
            _ => None,
        }
    }
}

/// Tells a failure and gives its exit code.
pub(super) fn report(error: &CliError) -> ExitCode {
    match error {
        CliError::ClosedPipe | CliError::Batch { .. } => {}
        _ => tell(&error.to_string(), error.hint().as_deref()),
    }
    ExitCode::from(error.code())
}

/// Tells one failure on stderr.
pub(super) fn tell(error: &str, hint: Option<&str>) {
    output::say(&format!("Error: {error}"));
    if let Some(hint) = hint {
        output::say(&format!("Hint: {hint}"));
    }
}

/// Prints what clap has to say: help and version to stdout with code 0, wrong usage to stderr with code 2.
pub(super) fn usage(error: &clap::Error) -> ExitCode {
    // A closed pipe is no failure.
    let _ = error.print();
    if error.use_stderr() { ExitCode::from(2) } else { ExitCode::SUCCESS }
}
