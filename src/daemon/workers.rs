//! Threads that settle VMs: at most so many, never two for one VM.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use cocoon_model::id::VmId;
use crossbeam_channel::{Receiver, Sender, unbounded};

use super::poller::Waker;
use crate::engine::gc::Settling;
use crate::engine::{Caller, Engine, EngineError};

/// What settling a VM came to.
#[derive(Debug)]
pub(super) struct Settled {
    pub(super) id: VmId,
    pub(super) outcome: Result<Settling, EngineError>,
}

/// The threads, and who waits for one.
#[derive(Debug)]
pub(super) struct Workers {
    engine: Arc<Engine>,
    caller: Caller,
    waker: Waker,
    limit: usize,
    busy: BTreeSet<VmId>,
    waiting: BTreeSet<VmId>,
    done: (Sender<Settled>, Receiver<Settled>),
}

impl Workers {
    pub(super) fn new(engine: Arc<Engine>, caller: Caller, waker: Waker) -> Self {
        let limit = engine.settings().pool_size;
        let (busy, waiting) = (BTreeSet::new(), BTreeSet::new());
        Self { engine, caller, waker, limit, busy, waiting, done: unbounded() }
    }

    /// Has a VM settled, as soon as a thread is free. One that is being settled, or waits, is not taken twice.
    pub(super) fn settle(&mut self, id: VmId) {
        if !self.busy.contains(&id) {
            self.waiting.insert(id);
            self.start();
        }
    }

    /// Whether a VM is being settled, or waits for it.
    pub(super) fn has(&self, id: VmId) -> bool {
        self.busy.contains(&id) || self.waiting.contains(&id)
    }

    /// How many are being settled.
    pub(super) fn running(&self) -> usize {
        self.busy.len()
    }

    /// What has been done since the last call.
    pub(super) fn finished(&mut self) -> Vec<Settled> {
        let finished: Vec<Settled> = self.done.1.try_iter().collect();
        for settled in &finished {
            self.busy.remove(&settled.id);
        }
        self.start();
        finished
    }

    fn start(&mut self) {
        while self.busy.len() < self.limit {
            let Some(id) = self.waiting.pop_first() else { return };
            self.busy.insert(id);
            if let Err(error) = self.spawn(id) {
                let error = EngineError::Host(format!("cannot start a thread: {error}"));
                self.report(Settled { id, outcome: Err(error) });
            }
        }
    }

    fn report(&self, settled: Settled) {
        // The receiver lives as long as this does.
        let _ = self.done.0.send(settled);
        self.waker.wake();
    }

    fn spawn(&self, id: VmId) -> std::io::Result<()> {
        let (engine, caller) = (Arc::clone(&self.engine), self.caller.another());
        let (done, waker) = (self.done.0.clone(), self.waker.clone());
        let settle = move || {
            // A VM whose settling hits a bug of ours must not stay busy for ever.
            let outcome = catch_unwind(AssertUnwindSafe(|| engine.settle(id, &caller)));
            let bug = |_| Err(EngineError::Bug(format!("settling vm {id} panicked")));
            let _ = done.send(Settled { id, outcome: outcome.unwrap_or_else(bug) });
            waker.wake();
        };
        std::thread::Builder::new().name("settle".to_owned()).spawn(settle).map(drop)
    }
}
