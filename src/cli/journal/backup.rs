//! `cocoon journal backup`.

use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};

use clap::Args;
use cocoon_journal::backup::{Backup, BackupError, backup, backup_to};
use jiff::Timestamp;
use serde_json::json;

use super::progress::Progress;
use super::{JournalArg, directory};
use crate::cli::args::{Format, OutputArg};
use crate::cli::vm_object::rfc3339;
use crate::cli::{CliError, Global, output};
use crate::codec::hex;
use crate::engine::effect::{self, perform};
use crate::replay::ReplayError;

#[derive(Debug, Args)]
pub(in crate::cli) struct BackupArgs {
    #[command(flatten)]
    journal: JournalArg,
    /// A file that is not there yet, a directory for a file named by root, event and time, or `-` for standard output
    #[arg(value_name = "FILE|DIR|-")]
    to: PathBuf,
    #[command(flatten)]
    output: OutputArg,
}

pub(super) fn run(args: &BackupArgs, global: Global) -> Result<(), CliError> {
    let dir = directory(&args.journal, global)?;
    let mut bar = Progress::new("backup", "events");
    let mut progress = |done, total| bar.show(done, total);
    if args.to == Path::new("-") {
        let made = to_stdout(&dir, &mut progress)?;
        drop(bar);
        output::say(&sentence(&made, None));
        return Ok(());
    }
    let path = if args.to.is_dir() { args.to.join(name(&dir)?) } else { args.to.clone() };
    let made =
        perform("backup.write", || backup_to(&dir, &path, effect::journal_boundary, &mut progress));
    let made = made.map_err(told)?;
    drop(bar);
    match args.output.format {
        Format::Table => output::line(&sentence(&made, Some(&path))),
        Format::Json => output::json(&json!({
            "path": std::path::absolute(&path).unwrap_or(path),
            "root": made.root,
            "first_seq": made.first,
            "last_seq": made.end.last.seq,
            "events": made.end.events,
            "taken_at": rfc3339(made.made_us),
            "digest": hex(&made.end.digest),
        })),
    }
}

fn to_stdout(dir: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<Backup, CliError> {
    let stdout = io::stdout();
    if stdout.is_terminal() {
        return Err(CliError::Usage(
            "a backup is not for terminals; give a file, or send it on as in `cocoon journal backup - | ssh HOST 'cat > FILE'`".to_owned(),
        ));
    }
    let mut out = io::BufWriter::with_capacity(256 * 1024, stdout.lock());
    backup(dir, &mut out, progress).map_err(told)
}

fn sentence(made: &Backup, path: Option<&Path>) -> String {
    let to = path.map_or_else(String::new, |path| format!(" to {}", path.display()));
    format!(
        "backed up {} events, {} to {},{to} (digest {})",
        made.end.events,
        made.first,
        made.end.last.seq,
        hex(&made.end.digest)
    )
}

/// A name that tells backups apart and sorts by time.
fn name(dir: &Path) -> Result<String, CliError> {
    let report = cocoon_journal::inspect::Inspector::open(dir).map_err(ReplayError::from)?;
    let end = report.head().copied();
    let root = end.map_or_else(String::new, |end| end.root.simple().to_string());
    let seq = end.map_or(0, |end| end.position.seq);
    let now = Timestamp::now().strftime("%Y%m%dT%H%M%S%6fZ");
    Ok(format!("cocoon-{}-{now}-{seq}.backup", root.get(..8).unwrap_or("root")))
}

fn told(error: BackupError) -> CliError {
    match error {
        BackupError::Journal(error) => ReplayError::from(error).into(),
        BackupError::Output { source, .. } if source.kind() == io::ErrorKind::BrokenPipe => {
            CliError::ClosedPipe
        }
        error => CliError::Failed(error.to_string()),
    }
}
