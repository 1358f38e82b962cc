//! Following what happens to VMs, one event at a time.
//!
//! A follower begins with the VMs as they are, or as they were after some event, and then yields what each later event
//! did, in order, none left out and none twice. It reads the journal as any other process does and holds no lock.
//!
//! ```text
//!   checkpoint at or below the place --> events up to the place, in silence --> updates, as frames become durable
//! ```
//!
//! It keeps the VMs that are there and nothing of those that are gone, so it may live for as long as it likes.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cocoon_journal::checkpoint::Checkpoint;
use cocoon_journal::{Frame, Position, Tail};
use cocoon_model::apply::{IllegalEvent, apply_vm};
use cocoon_model::event::{Event, Stamp, VmEvent};
use cocoon_model::id::VmId;
use cocoon_model::record::VmRecord;
use cocoon_model::view::Base as _;

use super::base::CheckpointBase;
use super::fold::{FoldError, stamp};
use super::{Engine, EngineError};
use crate::codec;

/// What an event did to the list of VMs, as an observer sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    /// It is there now.
    Added,
    /// It entered another state.
    Modified,
    /// It is gone.
    Deleted,
}

impl ChangeKind {
    /// The word in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
        }
    }
}

/// What one event did to one VM.
#[derive(Debug, Clone)]
pub struct Update {
    /// The event's number.
    pub seq: u64,
    /// What observers are told; `None` if it changed only what is being done, not what is.
    pub kind: Option<ChangeKind>,
    /// The record after the event; of a VM that is gone, the last one.
    pub record: Arc<VmRecord>,
}

/// A follower of the VMs of one root.
///
/// Its descriptor is readable whenever [`try_next`](Self::try_next) should be called again.
#[derive(Debug)]
pub struct Follower {
    tail: Tail,
    vms: BTreeMap<VmId, Arc<VmRecord>>,
    seq: u64,
    silent_until: u64,
    pending: VecDeque<Update>,
}

impl Engine {
    /// The directory of the journal.
    #[must_use]
    pub fn journal_dir(&self) -> PathBuf {
        self.settings().root_dir.join("journal")
    }

    /// Follows from now on: [`Follower::vms`] are those that are there.
    ///
    /// # Errors
    /// If the state or the journal cannot be read.
    pub fn follow(&self) -> Result<Follower, EngineError> {
        let (vms, seq) = {
            let mut ledger = self.ledger();
            let state = ledger.refresh()?;
            (state.vms()?, state.applied())
        };
        Follower::open(self, vms, seq, seq)
    }

    /// Follows from after an event on: the next update is that of event `after + 1`.
    ///
    /// # Errors
    /// [`EngineError::Invalid`] if there is no such event yet; history that was retired; or the journal cannot be read.
    pub fn follow_since(&self, after: u64) -> Result<Follower, EngineError> {
        let end = self.ledger().refresh()?.applied();
        if after > end {
            let what = format!("event {after} has not happened yet; the last one is {end}");
            return Err(EngineError::Invalid(what));
        }
        let latest = Checkpoint::latest_before(&self.journal_dir(), after.saturating_add(1))
            .map_err(|error| EngineError::Host(error.to_string()))?;
        let position: Position =
            latest.checkpoint.as_ref().map(Checkpoint::position).unwrap_or_default();
        let vms = CheckpointBase::new(latest.checkpoint).vms("")?;
        Follower::open(self, vms.into_iter().map(Arc::new).collect(), position.seq, after)
    }
}

impl Follower {
    fn open(
        engine: &Engine,
        vms: Vec<Arc<VmRecord>>,
        seq: u64,
        silent_until: u64,
    ) -> Result<Self, EngineError> {
        let tail = Tail::open(&engine.journal_dir(), seq.saturating_add(1))?;
        let vms = vms.into_iter().map(|record| (record.core.id, record)).collect();
        Ok(Self { tail, vms, seq, silent_until, pending: VecDeque::new() })
    }

    /// The VMs after the last event that was read.
    pub fn vms(&self) -> impl Iterator<Item = &Arc<VmRecord>> {
        self.vms.values()
    }

    /// A VM after the last event that was read.
    #[must_use]
    pub fn vm(&self, id: VmId) -> Option<&Arc<VmRecord>> {
        self.vms.get(&id)
    }

    /// The last event that was read.
    #[must_use]
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// The next update, waiting for it; `None` if none came within `timeout`.
    ///
    /// # Errors
    /// If the journal cannot be read.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<Update>, EngineError> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(update) = self.pending.pop_front() {
                return Ok(Some(update));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match self.tail.next(left)? {
                Some((frame, _)) => self.take(&frame)?,
                None => return Ok(None),
            }
        }
    }

    /// The next update, if there is one. If there is none, the descriptor becomes readable later.
    ///
    /// # Errors
    /// If the journal cannot be read.
    pub fn try_next(&mut self) -> Result<Option<Update>, EngineError> {
        loop {
            if let Some(update) = self.pending.pop_front() {
                return Ok(Some(update));
            }
            match self.tail.try_next()? {
                Some((frame, _)) => self.take(&frame)?,
                None => return Ok(None),
            }
        }
    }

    fn take(&mut self, frame: &Frame) -> Result<(), FoldError> {
        for (seq, entry) in frame.events() {
            if seq <= self.seq {
                continue;
            }
            if seq != self.seq.saturating_add(1) {
                let gap = IllegalEvent::Gap { applied: self.seq, seq };
                return Err(FoldError::Illegal(gap.into()));
            }
            if let Some(Event::Vm(id, event)) = codec::decode(entry)? {
                self.apply(id, &stamp(frame, seq), &event)?;
            }
            self.seq = seq;
        }
        Ok(())
    }

    fn apply(&mut self, id: VmId, stamp: &Stamp, event: &VmEvent) -> Result<(), FoldError> {
        let before = self.vms.get(&id).cloned();
        let after = apply_vm(before.as_deref(), id, stamp, event)
            .map_err(|illegal| FoldError::Illegal(illegal.into()))?
            .map(Arc::new);
        let kind = change(before.as_deref(), after.as_deref());
        match &after {
            Some(record) => self.vms.insert(id, Arc::clone(record)),
            None => self.vms.remove(&id),
        };
        if let Some(record) = after.or(before).filter(|_| stamp.seq > self.silent_until) {
            self.pending.push_back(Update { seq: stamp.seq, kind, record });
        }
        Ok(())
    }
}

impl AsFd for Follower {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tail.as_fd()
    }
}

impl AsRawFd for Follower {
    fn as_raw_fd(&self) -> RawFd {
        self.tail.as_fd().as_raw_fd()
    }
}

/// What an observer is told of a step from one record to the next.
fn change(before: Option<&VmRecord>, after: Option<&VmRecord>) -> Option<ChangeKind> {
    match (before, after) {
        (None, Some(_)) => Some(ChangeKind::Added),
        (Some(_), None) => Some(ChangeKind::Deleted),
        (Some(before), Some(after)) => {
            let (before, after) = (&before.core, &after.core);
            let moved = before.state != after.state || before.generation != after.generation;
            moved.then_some(ChangeKind::Modified)
        }
        (None, None) => None,
    }
}
