//! `cocoon doctor`.

use clap::Args;

use super::{CliError, Global};

#[derive(Debug, Args)]
pub(super) struct DoctorArgs {}

pub(super) fn run(_args: &DoctorArgs, _global: Global) -> Result<(), CliError> {
    Err(CliError::Failed("not yet".into()))
}
