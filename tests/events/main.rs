//! Events as bytes for ever, and the documents that are made from the tables of the code.
//!
//! With `COCOON_BLESS=1` golden bytes are added, never changed; documents are rewritten.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod documents;
mod golden;
mod redact;
mod samples;

use std::path::{Path, PathBuf};

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn is_blessed() -> bool {
    std::env::var_os("COCOON_BLESS").is_some()
}

fn golden_directory() -> PathBuf {
    repository().join("tests/golden")
}
