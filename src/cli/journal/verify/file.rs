//! Checking a backup or an export.

use std::path::Path;

use cocoon_journal::inspect::{Fault, Piece};
use serde_json::json;

use crate::cli::args::Format;
use crate::cli::{CliError, output};
use crate::codec;
use crate::replay::line::fault_json;
use crate::replay::pieces::{FileKind, FilePieces};

/// Reads all of it.
pub(super) fn verify(path: &Path, format: Format) -> Result<(), CliError> {
    let mut pieces = FilePieces::open(path)?;
    let kind = match pieces.kind() {
        FileKind::Backup => "backup",
        FileKind::Bundle => "export",
        FileKind::Lines => "export of JSON lines",
    };
    let (mut events, mut first, mut last) = (0_u64, None, 0);
    let mut faults: Vec<Fault> = Vec::new();
    let mut unknown = None;
    for piece in pieces.by_ref() {
        match piece {
            Piece::Segment(_) => {}
            Piece::Fault(fault) => faults.push(fault),
            Piece::Frame(seen) => {
                first.get_or_insert(seen.frame.header.seq);
                last = seen.frame.last_seq();
                events += u64::from(seen.frame.header.count);
                let mut unreadable = seen.frame.entries.iter().map(codec::decode);
                unknown = unknown.or_else(|| unreadable.find_map(Result::err));
            }
        }
    }
    match format {
        Format::Json => output::json(&json!({
            "kind": kind,
            "sound": faults.is_empty() && unknown.is_none(),
            "events": events,
            "first_seq": first,
            "last_seq": last,
            "problems": faults.iter().map(fault_json).collect::<Vec<_>>(),
        }))?,
        Format::Table => output::line(&format!(
            "{kind}: {events} events, {} to {last}",
            first.unwrap_or_default()
        ))?,
    }
    if let Some(fault) = faults.first() {
        return Err(CliError::Failed(format!("{}: {}", path.display(), fault.what)));
    }
    if let Some(error) = unknown {
        return Err(CliError::Failed(format!("{}: {error}", path.display())));
    }
    if format == Format::Table {
        output::line("nothing is wrong")?;
    }
    Ok(())
}
