//! Bytes on disk, all files of the journal counted.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::files;
use crate::Outcome;
use crate::table::{head, row};

/// Which files of a journal belong together.
const PARTS: [(&str, &str); 3] =
    [("seg", "segments"), ("ckpt", "checkpoints"), ("sled", "event store")];

/// Prints lengths, and what is allocated for them: the live segment has blocks beyond its end.
pub(super) fn report(journal: &Path, events: u64) -> Outcome {
    let mut sums = [[0; 3]; PARTS.len() + 1];
    for (path, meta) in files(journal)? {
        let below = path.strip_prefix(journal)?;
        let part = PARTS.iter().position(|(dir, _)| below.starts_with(dir));
        if let Some(sums) = sums.get_mut(part.unwrap_or(PARTS.len())) {
            sums[0] += 1;
            sums[1] += meta.len();
            sums[2] += meta.blocks() * 512;
        }
    }
    head(&["on disk", "files", "bytes", "bytes an event", "allocated, bytes an event"]);
    let names = PARTS.iter().map(|(_, name)| *name).chain(["the rest"]);
    for (name, sums) in names.zip(sums) {
        print(name, sums, events);
    }
    let all = sums.iter().fold([0; 3], |all, sums| std::array::from_fn(|at| all[at] + sums[at]));
    print("all", all, events);
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "sizes far below 2^52")]
fn print(what: &str, [files, bytes, allocated]: [u64; 3], events: u64) {
    let each = |bytes: u64| format!("{:.1}", bytes as f64 / events.max(1) as f64);
    row(&[what.to_owned(), files.to_string(), bytes.to_string(), each(bytes), each(allocated)]);
}
