//! `cocoon vm status`.

use clap::Args;

use crate::cli::{CliError, Global};

#[derive(Debug, Args)]
pub(in crate::cli) struct StatusArgs {}

pub(super) fn run(_args: &StatusArgs, _global: Global) -> Result<(), CliError> {
    Err(CliError::Failed("not yet".into()))
}
