//! What goes to stdout and stderr.

use std::io::{self, IsTerminal as _, Write as _};

use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;
use tracing_subscriber::filter::LevelFilter;

use super::CliError;

/// Writes data; a reader that has gone ends the command quietly.
pub(super) fn write(text: &[u8]) -> Result<(), CliError> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text).and_then(|()| stdout.flush()).map_err(failed)
}

fn failed(error: io::Error) -> CliError {
    if error.kind() == io::ErrorKind::BrokenPipe {
        CliError::ClosedPipe
    } else {
        CliError::Output(error)
    }
}

/// Writes a line of data.
pub(super) fn line(text: &str) -> Result<(), CliError> {
    write(format!("{text}\n").as_bytes())
}

/// Writes a JSON value, for programs and people alike.
pub(super) fn json(value: &impl Serialize) -> Result<(), CliError> {
    // In pieces: a list of many VMs is more than a megabyte.
    let mut out = io::BufWriter::with_capacity(JSON_BUFFER, io::stdout().lock());
    match serde_json::to_writer_pretty(&mut out, value) {
        Ok(()) => out.write_all(b"\n").and_then(|()| out.flush()).map_err(failed),
        Err(error) if error.is_io() => Err(failed(error.into())),
        Err(error) => Err(CliError::Failed(format!("cannot write JSON: {error}"))),
    }
}

/// Bytes of JSON that are written at once.
const JSON_BUFFER: usize = 64 * 1024;

/// Writes a JSON value on one line.
pub(super) fn json_line(value: &impl Serialize) -> Result<(), CliError> {
    let text = serde_json::to_string(value)
        .map_err(|error| CliError::Failed(format!("cannot write JSON: {error}")))?;
    line(&text)
}

/// Writes a table without borders.
pub(super) fn table(header: &[&str], rows: Vec<Vec<String>>) -> Result<(), CliError> {
    write(render(header, rows).as_bytes())
}

/// A table without borders, as text.
pub(super) fn render(header: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header.to_vec());
    for row in rows {
        table.add_row(row);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    let text = table.to_string();
    text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// Says something to the user.
pub(super) fn say(text: &str) {
    // Nobody listening is no reason to fail.
    let _ = writeln!(io::stderr(), "{text}");
}

/// Whether talk can be animated.
pub(super) fn is_animated() -> bool {
    io::stderr().is_terminal() && std::env::var_os("TERM").is_some_and(|term| term != "dumb")
}

/// Starts the log on stderr.
pub(super) fn start_log(level: &str) -> Result<(), CliError> {
    let filter: LevelFilter = level.parse().map_err(|_| {
        CliError::Usage(format!("log level `{level}` is none of error, warn, info, debug, trace"))
    })?;
    let colour = io::stderr().is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|no_color| no_color.is_empty());
    let log = tracing_subscriber::fmt()
        .with_max_level(filter)
        .with_writer(io::stderr)
        .with_ansi(colour)
        .with_target(false)
        .without_time();
    // A second start in one process (tests) keeps the first.
    let _ = log.try_init();
    Ok(())
}

/// Many lines of data, written out in bulk.
#[derive(Debug)]
pub(super) struct Lines(io::BufWriter<io::StdoutLock<'static>>);

impl Lines {
    pub(super) fn new() -> Self {
        Self(io::BufWriter::with_capacity(64 * 1024, io::stdout().lock()))
    }

    /// Adds a line.
    pub(super) fn line(&mut self, text: &str) -> Result<(), CliError> {
        let written = self.0.write_all(text.as_bytes()).and_then(|()| self.0.write_all(b"\n"));
        written.map_err(failed)
    }

    /// Adds a JSON value on a line.
    pub(super) fn json(&mut self, value: &impl Serialize) -> Result<(), CliError> {
        let text = serde_json::to_string(value)
            .map_err(|error| CliError::Failed(format!("cannot write JSON: {error}")))?;
        self.line(&text)
    }

    /// Writes out what there is.
    pub(super) fn flush(&mut self) -> Result<(), CliError> {
        self.0.flush().map_err(failed)
    }
}
