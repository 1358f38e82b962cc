//! `cocoon journal stats`.

use std::path::Path;

use clap::Args;
use cocoon_journal::checkpoint::Checkpoint;
use cocoon_journal::verify::{Stats, stats};
use cocoon_journal::{Position, store};
use serde_json::{Value, json};

use super::JournalArg;
use crate::cli::args::{Format, OutputArg};
use crate::cli::vm_object::{human_size, rfc3339};
use crate::cli::{CliError, Global, output};
use crate::codec;
use crate::replay::ReplayError;

#[derive(Debug, Args)]
pub(in crate::cli) struct StatsArgs {
    #[command(flatten)]
    journal: JournalArg,
    #[command(flatten)]
    output: OutputArg,
}

/// Figures of a journal and of what is derived from it.
struct Figures {
    stats: Stats,
    /// Bytes of all files, by the directory that they are in; those beside all directories first.
    disk: Vec<(String, u64)>,
    checkpoint: Result<Option<u64>, String>,
    store: Result<Position, String>,
}

pub(super) fn run(args: &StatsArgs, global: Global) -> Result<(), CliError> {
    let dir = super::directory(&args.journal, global)?;
    let figures = Figures::of(&dir)?;
    match args.output.format {
        Format::Json => output::json(&figures.to_json()),
        Format::Table => {
            let rows = figures.rows().into_iter().map(|(what, figure)| vec![what, figure]);
            output::table(&["WHAT", "FIGURE"], rows.collect())
        }
    }
}

impl Figures {
    fn of(dir: &Path) -> Result<Self, CliError> {
        Ok(Self {
            stats: stats(dir).map_err(ReplayError::from)?,
            disk: disk(dir),
            checkpoint: Checkpoint::list(dir)
                .map(|seqs| seqs.first().copied())
                .map_err(|error| error.to_string()),
            store: store::position(dir).map_err(|error| error.to_string()),
        })
    }

    fn lag(&self, seq: u64) -> u64 {
        self.stats.last.seq.saturating_sub(seq)
    }

    fn rows(&self) -> Vec<(String, String)> {
        let stats = &self.stats;
        let mut rows = Vec::new();
        let mut row = |what: &str, figure: String| rows.push((what.to_owned(), figure));
        let number = |number: Option<u64>| number.map_or("-".to_owned(), |it| it.to_string());
        let time = |us: Option<i64>| us.map_or("-".to_owned(), rfc3339);
        row("events", stats.events.to_string());
        row("first seq", number(stats.first));
        row("last seq", stats.last.seq.to_string());
        row("durable seq (HEAD)", number(stats.durable.map(|durable| durable.seq)));
        row("frames", stats.frames.to_string());
        row("segments", stats.segments.to_string());
        row("first event", time(stats.oldest_us));
        row("last event", time(stats.newest_us));
        row("boots", stats.boots.to_string());
        row("operations", stats.operations.to_string());
        row(
            "checkpoint",
            match &self.checkpoint {
                Ok(None) => "none".to_owned(),
                Ok(Some(seq)) => format!("seq {seq}, {} events behind", self.lag(*seq)),
                Err(error) => error.clone(),
            },
        );
        row(
            "event store (sled)",
            match &self.store {
                Ok(at) if at.seq == 0 => "empty".to_owned(),
                Ok(at) => format!("seq {}, {} events behind", at.seq, self.lag(at.seq)),
                Err(error) => error.clone(),
            },
        );
        row("files put aside", stats.quarantined.to_string());
        let all: u64 = self.disk.iter().map(|(_, bytes)| bytes).sum();
        row("bytes on disk", format!("{all} ({})", human_size(all)));
        for (part, bytes) in &self.disk {
            row(&format!("  {part}"), format!("{bytes} ({})", human_size(*bytes)));
        }
        for (kind, figures) in &stats.kinds {
            let name =
                codec::kind_name(*kind).map_or_else(|| format!("kind {kind}"), str::to_owned);
            let figure = format!("{} events, {} bytes of bodies", figures.events, figures.bytes);
            row(&format!("  {name}"), figure);
        }
        rows
    }

    fn to_json(&self) -> Value {
        let stats = &self.stats;
        let kinds = stats.kinds.iter().map(|(kind, figures)| {
            json!({
                "kind": kind,
                "name": codec::kind_name(*kind),
                "events": figures.events,
                "body_bytes": figures.bytes,
            })
        });
        let disk = self.disk.iter().map(|(part, bytes)| (part.clone(), json!(bytes)));
        let checkpoint = self.checkpoint.as_ref().ok().copied().flatten();
        let store = self.store.as_ref().ok().filter(|at| at.seq > 0).map(|at| at.seq);
        json!({
            "events": stats.events,
            "first_seq": stats.first,
            "last_seq": stats.last.seq,
            "durable_seq": stats.durable.map(|durable| durable.seq),
            "frames": stats.frames,
            "segments": stats.segments,
            "first_time": stats.oldest_us.map(rfc3339),
            "last_time": stats.newest_us.map(rfc3339),
            "boots": stats.boots,
            "operations": stats.operations,
            "checkpoint_seq": checkpoint,
            "checkpoint_lag": self.lag(checkpoint.unwrap_or_default()),
            "store_seq": store,
            "store_lag": self.lag(store.unwrap_or_default()),
            "quarantined": stats.quarantined,
            "disk_bytes": self.disk.iter().map(|(_, bytes)| bytes).sum::<u64>(),
            "disk": disk.collect::<serde_json::Map<_, _>>(),
            "kinds": kinds.collect::<Vec<_>>(),
        })
    }
}

/// Bytes of all files below a directory, by its entries. What goes away meanwhile does not count.
fn disk(dir: &Path) -> Vec<(String, u64)> {
    let mut beside = 0;
    let mut parts = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let Ok(meta) = entry.metadata() else { continue };
        if meta.is_dir() {
            parts.push((
                entry.file_name().to_string_lossy().into_owned(),
                bytes_below(&entry.path()),
            ));
        } else {
            beside += meta.len();
        }
    }
    parts.sort();
    parts.insert(0, ("beside".to_owned(), beside));
    parts
}

fn bytes_below(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => bytes_below(&entry.path()),
        Ok(meta) => meta.len(),
        Err(_) => 0,
    });
    sizes.sum()
}
