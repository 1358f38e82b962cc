//! The command line, from outside: what it prints, how it ends, and whether the documentation tells the truth of it.
//!
//! VMs run on the fake VMM, so that everything of `cocoon` is real. `COCOON_BLESS=1` rewrites what is generated.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

mod completions;
mod configuration;
mod console;
mod damage;
mod examples;
mod failing;
mod forge;
mod help;
mod hostile;
mod in_flight;
mod journal;
mod later;
mod logs;
mod output;
mod reference;
mod refused;
mod replay;
mod sandbox;
mod schema;
mod schemas;
mod transfer;
mod troubleshooting;
mod usage;
mod windows;

use std::path::{Path, PathBuf};

/// The root of the repository.
fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Compares a file of the repository with what was made; with `COCOON_BLESS` set, writes it.
fn golden(path: &str, made: &str) {
    let file: PathBuf = repository().join(path);
    if std::env::var_os("COCOON_BLESS").is_some() {
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        return std::fs::write(file, made).unwrap();
    }
    let kept = std::fs::read_to_string(file).unwrap_or_default();
    let differing = kept.lines().zip(made.lines()).find(|(kept, made)| kept != made);
    assert!(
        kept == made,
        "{path} is not what is made now (COCOON_BLESS=1 rewrites it); first difference: {differing:?}"
    );
}
