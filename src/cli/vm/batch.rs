//! Verbs on several subjects: each succeeds or fails by itself, and all are told.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;

use crate::cli::args::Format;
use crate::cli::{CliError, failure, output};
use crate::engine::{Engine, EngineError};

#[derive(Debug, Serialize)]
struct Failed {
    id: String,
    error: String,
}

/// A batch in JSON.
#[derive(Debug, Serialize)]
struct Told<'a> {
    succeeded: &'a [String],
    #[serde(skip_serializing_if = "<[Failed]>::is_empty")]
    failed: &'a [Failed],
}

/// The outcomes of a batch.
#[derive(Debug)]
pub(in crate::cli) struct Batch {
    verb: &'static str,
    format: Format,
    succeeded: Vec<String>,
    failed: Vec<Failed>,
}

impl Batch {
    /// An empty batch; `verb` is how a success is told, as a participle.
    pub(in crate::cli) fn new(verb: &'static str, format: Format) -> Self {
        Self { verb, format, succeeded: Vec::new(), failed: Vec::new() }
    }

    /// Adds the outcome for one reference: the id of what it meant, or why it failed.
    pub(in crate::cli) fn add(&mut self, reference: &str, outcome: Result<String, EngineError>) {
        match outcome {
            Ok(id) => {
                if self.format == Format::Table {
                    output::say(&format!("{}: {id}", self.verb));
                }
                self.succeeded.push(id);
            }
            Err(error) => {
                if self.format == Format::Table {
                    failure::tell(&error.to_string(), error.hint().as_deref());
                }
                self.failed.push(Failed { id: reference.to_owned(), error: error.to_string() });
            }
        }
    }

    /// Tells the whole.
    pub(in crate::cli) fn finish(self) -> Result<(), CliError> {
        if self.format == Format::Json {
            output::json(&Told { succeeded: &self.succeeded, failed: &self.failed })?;
        }
        match self.failed.len() {
            0 => Ok(()),
            failed => Err(CliError::Batch { failed, all: failed + self.succeeded.len() }),
        }
    }
}

/// Runs a verb on several VMs, a few at once, and keeps the order in which they were named.
pub(super) fn on_vms(
    engine: &Engine,
    references: &[String],
    batch: &mut Batch,
    verb: impl Fn(&Engine, cocoon_model::id::VmId) -> Result<(), EngineError> + Sync,
) {
    let mut named = Vec::new();
    for reference in references {
        let id = engine.resolve(reference);
        let twice = matches!(&id, Ok(id) if named.iter().any(|(_, known)| matches!(known, Ok(known) if known == id)));
        if !twice {
            named.push((reference, id));
        }
    }
    let next = AtomicUsize::new(0);
    let outcomes = Mutex::new(Vec::new());
    let work = || {
        while let Some((reference, id)) = named.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Ok(id) = id {
                let outcome = verb(engine, *id).map(|()| id.to_string());
                let mut outcomes =
                    outcomes.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                outcomes.push((*reference, outcome));
            }
        }
    };
    let workers = engine.settings().pool_size.min(named.len());
    if workers <= 1 {
        work();
    } else {
        std::thread::scope(|scope| {
            for _ in 0..workers {
                scope.spawn(work);
            }
        });
    }
    let mut outcomes = outcomes.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    for (reference, id) in named {
        match id {
            Err(error) => batch.add(reference, Err(error)),
            Ok(_) => {
                if let Some(at) = outcomes.iter().position(|(done, _)| *done == reference) {
                    let (_, outcome) = outcomes.swap_remove(at);
                    batch.add(reference, outcome);
                }
            }
        }
    }
}
