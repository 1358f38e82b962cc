//! Completion scripts and manual pages.

use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;

use super::{CliError, output};

#[derive(Debug, Args)]
pub(super) struct CompletionArgs {
    /// The shell
    shell: Shell,
}

#[derive(Debug, Args)]
pub(super) struct ManArgs {
    /// Where the pages go
    directory: PathBuf,
}

pub(super) fn run(args: &CompletionArgs, mut command: clap::Command) -> Result<(), CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "cocoon", &mut script);
    output::write(&script)
}

pub(super) fn man(args: &ManArgs, command: clap::Command) -> Result<(), CliError> {
    let failed = |error: std::io::Error| {
        CliError::Failed(format!(
            "cannot write manual pages into {}: {error}",
            args.directory.display()
        ))
    };
    std::fs::create_dir_all(&args.directory).map_err(failed)?;
    clap_mangen::generate_to(command, &args.directory).map_err(failed)
}
