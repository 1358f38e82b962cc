//! Verbs of the contract that come later: they exist, and say what is missing.

use clap::Args;

use super::CliError;

/// Whatever such a verb is given.
#[derive(Debug, Args)]
pub(super) struct LaterArgs {
    /// Arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    _arguments: Vec<String>,
}

/// The refusal of a verb that is not there yet.
pub(super) fn missing(verb: &str, why: &str) -> CliError {
    CliError::Failed(format!("cocoon {verb}: {why}"))
}
