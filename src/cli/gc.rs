//! `cocoon gc`.

use std::time::Instant;

use clap::Args;
use serde_json::json;

use super::args::{Format, OutputArg};
use super::{CliError, Global, failure, output};
use crate::engine::Caller;
use crate::engine::gc::Collection;

#[derive(Debug, Args)]
pub(super) struct GcArgs {
    #[command(flatten)]
    output: OutputArg,
}

pub(super) fn run(args: &GcArgs, global: Global) -> Result<(), CliError> {
    let began = Instant::now();
    let engine = global.engine()?;
    let collection = engine.gc(&Caller::new("gc", None)?)?;
    match args.output.format {
        Format::Json => print_json(&collection)?,
        Format::Table => say(&collection, began),
    }
    for error in &collection.failures {
        failure::tell(&error.to_string(), error.hint().as_deref());
    }
    crate::cli::tend(engine);
    let all = collection.collected.len() + collection.failures.len();
    match collection.failures.len() {
        0 => Ok(()),
        failed => Err(CliError::Batch { failed, all }),
    }
}

fn print_json(collection: &Collection) -> Result<(), CliError> {
    let collected = collection
        .collected
        .iter()
        .map(|item| json!({ "module": item.module, "what": item.what, "reason": item.reason }));
    let left = collection.left.iter().map(|(id, why)| json!({ "id": id, "reason": why }));
    let failures = collection.failures.iter().map(ToString::to_string);
    output::json(&json!({
        "collected": collected.collect::<Vec<_>>(),
        "left": left.collect::<Vec<_>>(),
        "failures": failures.collect::<Vec<_>>(),
    }))
}

fn say(collection: &Collection, began: Instant) {
    for item in &collection.collected {
        output::say(&format!("gc.{} collected {} reason={}", item.module, item.what, item.reason));
    }
    for (id, why) in &collection.left {
        output::say(&format!("gc.vm left {id} for the next time: {why}"));
    }
    if collection.collected.is_empty() && collection.failures.is_empty() {
        return output::say("nothing to collect");
    }
    let mut counts = std::collections::BTreeMap::new();
    for item in &collection.collected {
        *counts.entry(item.module).or_insert(0) += 1;
    }
    let counts: Vec<String> = counts.iter().map(|(module, n)| format!("{module}={n}")).collect();
    output::say(&format!(
        "gc.Run completed: {} (failures: {}, duration: {:.0?})",
        counts.join(" "),
        collection.failures.len(),
        began.elapsed()
    ));
}
