//! `cocoon journal archive`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use cocoon_journal::archive::Before;
use serde_json::json;

use super::progress::Progress;
use crate::cli::args::{Format, OutputArg};
use crate::cli::vm_object::human_size;
use crate::cli::{CliError, Global, output};
use crate::engine::Caller;
use crate::replay::point::Point;

const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Args)]
pub(in crate::cli) struct ArchiveArgs {
    /// Events before this point may go (sequence number, time, or duration before now); what goes is whole segments
    #[arg(long, value_name = "POINT", value_parser = Point::parse)]
    before: Point,
    /// Where they go: a directory, of this archive or new
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
    #[command(flatten)]
    output: OutputArg,
}

pub(super) fn run(args: &ArchiveArgs, global: Global) -> Result<(), CliError> {
    let engine = super::existing(global)?;
    let caller = Caller::new("journal archive", Some(PATIENCE))?;
    let before = match args.before {
        Point::Seq(seq) => Before::Seq(seq),
        Point::Time(us) => Before::Time(us),
    };
    let mut bar = Progress::new("archive", "segments");
    let archived = engine.archive(&caller, before, &args.to, &mut |done, all| {
        bar.show(done as u64, all as u64);
    })?;
    drop(bar);
    let Some(archived) = archived else {
        return match args.output.format {
            Format::Json => output::json(&json!({ "outcome": "nothing", "segments": 0 })),
            Format::Table => {
                output::line("nothing to move: no whole segment lies before that point")
            }
        };
    };
    match args.output.format {
        Format::Json => output::json(&json!({
            "outcome": "archived",
            "to": std::path::absolute(&args.to).unwrap_or_else(|_| args.to.clone()),
            "from_seq": archived.from,
            "to_seq": archived.first.saturating_sub(1),
            "first_seq": archived.first,
            "segments": archived.segments,
            "bytes": archived.bytes,
        })),
        Format::Table => output::line(&format!(
            "moved events {} to {} to {} ({} segments, {}); history here begins at seq {}",
            archived.from,
            archived.first.saturating_sub(1),
            args.to.display(),
            archived.segments,
            human_size(archived.bytes),
            archived.first
        )),
    }
}
