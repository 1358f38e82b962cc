//! `cocoon journal restore` and `cocoon journal import`: a journal from elsewhere.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;

use crate::cli::args::{Format, OutputArg};
use crate::cli::{CliError, Global, output};
use crate::codec::hex;
use crate::engine::transfer::{self, Received};
use crate::engine::{Caller, EngineError};
use crate::settings::Settings;

#[derive(Debug, Args)]
pub(in crate::cli) struct RestoreArgs {
    /// A backup made by `cocoon journal backup`, or `-` for standard input
    #[arg(value_name = "FILE|-")]
    from: PathBuf,
    #[command(flatten)]
    output: OutputArg,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct ImportArgs {
    /// An export made by `cocoon journal export`, in either form, or `-` for standard input
    #[arg(value_name = "FILE|-")]
    from: PathBuf,
    #[command(flatten)]
    output: OutputArg,
}

pub(super) fn restore(args: &RestoreArgs, global: Global) -> Result<(), CliError> {
    let settings = global.settings()?;
    let caller = Caller::new("journal restore", None)?;
    let received = with(&args.from, |input| transfer::restore(&settings, &caller, input))?;
    show(&received, &settings, "restored", args.output.format)
}

pub(super) fn import(args: &ImportArgs, global: Global) -> Result<(), CliError> {
    let settings = global.settings()?;
    let caller = Caller::new("journal import", None)?;
    let received = with(&args.from, |input| transfer::import(&settings, &caller, input))?;
    show(&received, &settings, "imported", args.output.format)
}

fn with(
    from: &Path,
    receive: impl FnOnce(Box<dyn BufRead>) -> Result<Received, EngineError>,
) -> Result<Received, CliError> {
    let input: Box<dyn BufRead> = if from == Path::new("-") {
        Box::new(io::stdin().lock())
    } else {
        if from.is_dir() {
            return Err(CliError::Usage(format!(
                "{} is a directory; give the file of a backup or export. A copy of a journal directory is looked at with `cocoon replay --journal DIR`, and backed up with `cocoon journal backup --journal DIR FILE`",
                from.display()
            )));
        }
        let file = File::open(from).map_err(EngineError::io("open", from))?;
        Box::new(BufReader::with_capacity(256 * 1024, file))
    };
    receive(input).map_err(|error| match error {
        EngineError::Host(what) => CliError::Failed(format!("{}: {what}", from.display())),
        error => error.into(),
    })
}

fn show(
    received: &Received,
    settings: &Settings,
    done: &'static str,
    format: Format,
) -> Result<(), CliError> {
    let root = settings.root_dir.display();
    match format {
        Format::Json => output::json(&json!({
            "root_dir": settings.root_dir,
            "root": received.root,
            "last_seq": received.last,
            "events": received.events,
            "digest": hex(&received.digest),
            "outcome": if received.already { "already" } else { done },
        }))?,
        Format::Table if received.already => {
            output::line(&format!("{root} had been {done} from this very file already"))?;
        }
        Format::Table => output::line(&format!(
            "{done}: {} events, up to seq {}, into {root}",
            received.events, received.last
        ))?,
    }
    output::say(&format!(
        "What happened after seq {} is not known here, so nothing without a record is killed or removed until `cocoon adopt` was run.",
        received.last
    ));
    Ok(())
}
