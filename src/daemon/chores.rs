//! Housekeeping, on a thread of its own: logs of running VMs are capped, and what is derived from the journal follows it.
//!
//! The daemon owns the event store while it lives, so that no command has to feed it; if another process has it just now,
//! the next round tries again. A round that finds the thread busy is dropped: the next one covers it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use cocoon_journal::store::{FeedMessage, Store, StoreOptions, spawn_writer};
use cocoon_journal::{Journal as _, Options, SegmentedJournal, checkpoint};
use crossbeam_channel::{Receiver, Sender, bounded};

use super::DaemonError;
use crate::engine::effect::{self, perform};
use crate::engine::ledger::{Ledger, tell_repairs};
use crate::engine::{Caller, Engine, EngineError};
use crate::host::serial::{self, Capped};

/// What a round is about.
#[derive(Debug)]
pub(super) struct Round {
    /// Logs of VMs that run.
    pub(super) logs: Vec<std::path::PathBuf>,
    /// The last event that was read.
    pub(super) seq: u64,
}

/// The thread.
#[derive(Debug)]
pub(super) struct Chores {
    sender: Option<Sender<Round>>,
    thread: Option<JoinHandle<()>>,
    engine: Arc<Engine>,
    collecting: Arc<AtomicBool>,
}

impl Chores {
    pub(super) fn start(engine: Arc<Engine>) -> Result<Self, DaemonError> {
        let (sender, receiver) = bounded(1);
        let worker = Worker { engine: Arc::clone(&engine), checkpoint: 0, fed: 0, feed: None };
        let thread = std::thread::Builder::new()
            .name("chores".to_owned())
            .spawn(move || worker.run(&receiver))
            .map_err(DaemonError::system("start a thread"))?;
        let collecting = Arc::new(AtomicBool::new(false));
        Ok(Self { sender: Some(sender), thread: Some(thread), engine, collecting })
    }

    /// Has a round done, unless one is under way.
    pub(super) fn round(&self, round: Round) {
        if let Some(sender) = &self.sender {
            // Full: the round that waits there is as good.
            let _ = sender.try_send(round);
        }
    }

    /// Has what nobody owns collected, unless that is under way.
    pub(super) fn collect(&self, caller: &Caller) {
        let Some(collecting) = Collecting::begin(&self.collecting) else { return };
        let (engine, caller) = (Arc::clone(&self.engine), caller.another());
        let collect = move || {
            let _collecting = collecting;
            tell_collection(engine.gc(&caller));
        };
        if let Err(error) = std::thread::Builder::new().name("gc".to_owned()).spawn(collect) {
            tracing::warn!("nothing was collected: cannot start a thread: {error}");
        }
    }
}

/// A collection under way: it ends with this value, also where the thread panics or never begins.
#[derive(Debug)]
struct Collecting(Arc<AtomicBool>);

impl Collecting {
    /// `None` if one is under way.
    fn begin(under_way: &Arc<AtomicBool>) -> Option<Self> {
        let begun = !under_way.swap(true, Ordering::AcqRel);
        begun.then(|| Self(Arc::clone(under_way)))
    }
}

impl Drop for Collecting {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Drop for Chores {
    /// Lets the thread end what it is at, so that the event store is closed and not abandoned.
    fn drop(&mut self) {
        self.sender = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::warn!("the housekeeping thread panicked");
        }
    }
}

fn tell_collection(outcome: Result<crate::engine::gc::Collection, EngineError>) {
    let collection = match outcome {
        Ok(collection) => collection,
        Err(error) => return tracing::warn!("nothing was collected: {error}"),
    };
    for item in &collection.collected {
        tracing::info!("gc.{} collected {} reason={}", item.module, item.what, item.reason);
    }
    for error in &collection.failures {
        tracing::warn!("gc: {error}");
    }
}

/// The thread that owns the event store, and the way to it.
type Feed = (Sender<FeedMessage>, JoinHandle<Store>);

struct Worker {
    engine: Arc<Engine>,
    checkpoint: u64,
    fed: u64,
    feed: Option<Feed>,
}

impl Worker {
    fn run(mut self, rounds: &Receiver<Round>) {
        for round in rounds {
            self.cap(&round.logs);
            if checkpoint::due(round.seq, self.checkpoint) {
                self.tend(round.seq);
            }
            if round.seq > self.fed {
                match self.feed() {
                    Ok(()) => {}
                    Err(error) => tracing::warn!("the event store does not follow: {error}"),
                }
            }
        }
        if let Some((sender, thread)) = self.feed.take() {
            drop(sender);
            if thread.join().is_err() {
                tracing::warn!("the thread of the event store panicked");
            }
        }
    }

    fn cap(&self, logs: &[std::path::PathBuf]) {
        let cap = self.engine.settings().log_cap;
        for log in logs {
            match perform("daemon.cap-log", || serial::cap_log(log, cap)) {
                Ok(Capped::Within) => {}
                Ok(Capped::Cut(kept)) => {
                    tracing::info!("{} had outgrown {cap} bytes; {kept} are kept", log.display());
                }
                Err(error) => tracing::warn!("cannot cap {}: {error}", log.display()),
            }
        }
    }

    /// Writes a checkpoint from a state of its own, so that nobody waits for it; then the daemon's state stands on it.
    fn tend(&mut self, seq: u64) {
        let tended = Ledger::open_existing(&self.engine.journal_dir(), self.engine.root_uuid())
            .and_then(|mut ledger| {
                ledger.refresh()?;
                ledger.tend(|| {});
                self.engine.ledger().rebase()
            });
        match tended {
            Ok(()) => self.checkpoint = seq,
            Err(error) => tracing::warn!("no checkpoint was written: {error}"),
        }
    }

    fn feed(&mut self) -> Result<(), EngineError> {
        if self.feed.is_none() {
            self.feed = open_feed(&self.engine.journal_dir(), self.engine.root_uuid())?;
        }
        let Some((sender, _)) = &self.feed else { return Ok(()) };
        let durable = self.engine.ledger().journal().durable()?;
        if sender.try_send(FeedMessage::CatchUp(durable)).is_ok() {
            self.fed = durable.seq;
        }
        Ok(())
    }
}

/// The store with its thread; `None` if another process has it.
fn open_feed(journal_dir: &Path, root: uuid::Uuid) -> Result<Option<Feed>, EngineError> {
    let options = StoreOptions { boundary: effect::journal_boundary };
    let store = Store::try_open_with(journal_dir, options)
        .map_err(|error| EngineError::Host(error.to_string()))?;
    let Some(store) = store else { return Ok(None) };
    let of_root = Options { root: Some(root), ..Options::default() };
    let source = SegmentedJournal::open_existing(journal_dir, of_root)?;
    let report = |outcome: Result<cocoon_journal::store::CaughtUp, _>| match outcome {
        Ok(caught_up) => tell_repairs(&caught_up.repairs),
        Err(error) => tracing::warn!("the event store does not follow: {error}"),
    };
    let feed = spawn_writer(store, source, report)
        .map_err(|error| EngineError::Host(format!("cannot start a thread: {error}")))?;
    Ok(Some(feed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collection_that_panics_does_not_keep_others_from_collecting() {
        let under_way = Arc::new(AtomicBool::new(false));
        let collecting = Collecting::begin(&under_way).unwrap();
        assert!(Collecting::begin(&under_way).is_none(), "one at a time");
        let collection = std::thread::spawn(move || {
            let _collecting = collecting;
            panic!("a bug");
        });
        assert!(collection.join().is_err());
        assert!(Collecting::begin(&under_way).is_some());
    }
}
