//! What the daemon last saw, for whoever asks: written by the supervisor, read by the API.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cocoon_model::id::VmId;
use cocoon_model::record::{VmRecord, VmState};
use serde::Serialize;

use crate::cli::vm_object::rfc3339;
use crate::host::boot;

/// A pass that is older than so many intervals is a reason for alarm.
const STALE_INTERVALS: u32 = 3;

/// One VM, as the API shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct VmLine {
    backend: &'static str,
    id: String,
    name: String,
    state: &'static str,
    transition_generation: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_transition_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_transition_at: Option<String>,
    live: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    watched_pid: Option<u32>,
    quiesce_pending: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    verified_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    operation: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_failure: Option<String>,
    seq: u64,
}

/// What was seen of a VM beside its record.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Sight {
    pub(super) live: bool,
    pub(super) watched_pid: Option<u32>,
    /// When, microseconds since 1970.
    pub(super) verified_us: Option<i64>,
}

impl VmLine {
    pub(super) fn new(record: &VmRecord, sight: Sight) -> Self {
        let (core, notes) = (&record.core, &record.notes);
        Self {
            backend: record.spec.backend.as_str(),
            id: core.id.to_string(),
            name: core.name.clone(),
            state: core.state.as_str(),
            transition_generation: core.generation,
            last_transition_reason: notes.transition_reason.map(|reason| reason.as_str()),
            last_transition_at: notes.transition_us.map(rfc3339),
            live: sight.live,
            watched_pid: sight.watched_pid,
            quiesce_pending: false,
            verified_at: sight.verified_us.map(rfc3339),
            operation: core.operation.map(|operation| operation.kind.as_str()),
            last_failure: core.failure.clone(),
            seq: notes.last_seq,
        }
    }
}

/// Things that are counted.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    pub(super) passes: u64,
    pub(super) failed_passes: u64,
    pub(super) failures: u64,
    pub(super) exits: u64,
    pub(super) settled: u64,
    pub(super) degraded: usize,
    pub(super) settling: usize,
    pub(super) watched: usize,
    pub(super) seq: u64,
}

#[derive(Debug, Default)]
struct Inner {
    vms: BTreeMap<VmId, (Arc<VmRecord>, Sight)>,
    last_pass: Option<(Instant, i64)>,
    scan_error: Option<String>,
    unconfirmed: Option<String>,
    counts: Counts,
}

/// The board.
#[derive(Debug)]
pub(super) struct Board {
    inner: Mutex<Inner>,
    interval: Duration,
}

/// The body of `/healthz`.
#[derive(Debug, Serialize)]
pub(super) struct Health {
    pub(super) ok: bool,
    degraded: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_pass: Option<String>,
    vms: usize,
    seq: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unconfirmed: Option<String>,
}

impl Board {
    pub(super) fn new(interval: Duration) -> Self {
        Self { inner: Mutex::default(), interval }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Every change is whole after each statement.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over a newer record; what was seen of the VM stays, if it is of the same generation.
    pub(super) fn learn(&self, record: &Arc<VmRecord>) {
        let mut inner = self.lock();
        let sight = match inner.vms.get(&record.core.id) {
            Some((known, sight)) if known.core.generation == record.core.generation => *sight,
            _ => recorded(record),
        };
        inner.vms.insert(record.core.id, (Arc::clone(record), sight));
    }

    /// Takes over what was seen of a VM.
    pub(super) fn see(&self, record: &Arc<VmRecord>, sight: Sight) {
        self.lock().vms.insert(record.core.id, (Arc::clone(record), sight));
    }

    /// A VM is gone.
    pub(super) fn forget(&self, id: VmId) {
        self.lock().vms.remove(&id);
    }

    /// A full pass has ended; these are the VMs that there are.
    pub(super) fn passed(&self, is_known: impl Fn(VmId) -> bool) {
        let mut inner = self.lock();
        inner.vms.retain(|id, _| is_known(*id));
        inner.scan_error = None;
        inner.last_pass = Some((Instant::now(), now_us()));
        inner.counts.passes += 1;
    }

    /// A full pass could not be made; says whether the reason is news.
    pub(super) fn pass_failed(&self, reason: &str) -> bool {
        let mut inner = self.lock();
        inner.counts.failed_passes += 1;
        inner.scan_error.replace(reason.to_owned()).as_deref() != Some(reason)
    }

    /// Why the root is unconfirmed, if it is: then nothing is done but to look. Says whether that is news.
    pub(super) fn confirm(&self, unconfirmed: Option<&String>) -> bool {
        let mut inner = self.lock();
        let before = std::mem::replace(&mut inner.unconfirmed, unconfirmed.cloned());
        before.as_ref() != unconfirmed
    }

    /// Whether the root is unconfirmed.
    pub(super) fn is_unconfirmed(&self) -> bool {
        self.lock().unconfirmed.is_some()
    }

    /// Changes what is counted.
    pub(super) fn count(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut self.lock().counts);
    }

    /// What is counted.
    pub(super) fn counts(&self) -> Counts {
        self.lock().counts
    }

    /// All VMs.
    pub(super) fn lines(&self) -> Vec<VmLine> {
        self.lock().vms.values().map(|(record, sight)| VmLine::new(record, *sight)).collect()
    }

    /// How many VMs are in each state.
    pub(super) fn by_state(&self) -> BTreeMap<&'static str, usize> {
        let states = [
            VmState::Creating,
            VmState::Created,
            VmState::Running,
            VmState::Stopped,
            VmState::Error,
        ];
        let mut counts: BTreeMap<_, _> = states.map(|state| (state.as_str(), 0)).into();
        for (record, _) in self.lock().vms.values() {
            *counts.entry(record.core.state.as_str()).or_default() += 1;
        }
        counts
    }

    /// A record with what was seen of its VM; of an older record, what it says itself.
    pub(super) fn line_of(&self, record: &VmRecord) -> VmLine {
        let inner = self.lock();
        let sight = match inner.vms.get(&record.core.id) {
            Some((known, sight)) if known.core.generation == record.core.generation => *sight,
            _ => recorded(record),
        };
        VmLine::new(record, sight)
    }

    /// Seconds since the last full pass.
    pub(super) fn pass_age(&self) -> Option<Duration> {
        self.lock().last_pass.map(|(at, _)| at.elapsed())
    }

    /// Whether all is well. Only what makes the daemon blind is a reason to say no: VMs that cannot be helped are told
    /// as `degraded`, because restarting the daemon would not help them either.
    pub(super) fn health(&self) -> Health {
        let limit = self.interval * STALE_INTERVALS;
        let inner = self.lock();
        let late = inner.last_pass.is_none_or(|(at, _)| at.elapsed() > limit);
        let late = late.then(|| format!("no full pass within {} s", limit.as_secs_f64()));
        let reason = inner.scan_error.clone().or(late);
        Health {
            ok: reason.is_none(),
            degraded: inner.counts.degraded,
            last_pass: inner.last_pass.map(|(_, us)| rfc3339(us)),
            vms: inner.vms.len(),
            seq: inner.counts.seq,
            reason,
            unconfirmed: inner.unconfirmed.clone(),
        }
    }
}

/// What a record says by itself.
fn recorded(record: &VmRecord) -> Sight {
    let runs = record.core.state == VmState::Running;
    Sight { live: runs, watched_pid: None, verified_us: None }
}

pub(super) fn now_us() -> i64 {
    i64::try_from(boot::wall_us()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_blindness_makes_it_unwell() {
        let board = Board::new(Duration::from_secs(60));
        assert!(!board.health().ok, "it has not looked yet");
        board.passed(|_| true);
        board.count(|counts| counts.degraded = 3);
        let health = board.health();
        assert!(health.ok && health.degraded == 3);
        assert!(board.pass_failed("the journal is gone"));
        assert!(!board.pass_failed("the journal is gone"), "told once");
        assert_eq!(board.health().reason.as_deref(), Some("the journal is gone"));
        board.passed(|_| true);
        assert!(board.health().ok);
        let reason = "the journal was restored from a backup".to_owned();
        assert!(board.confirm(Some(&reason)) && !board.confirm(Some(&reason)), "told once");
        let health = board.health();
        assert!(health.ok, "to start the daemon anew would not help");
        assert_eq!(health.unconfirmed, Some(reason));
        assert!(board.confirm(None));
        let board = Board::new(Duration::ZERO);
        board.passed(|_| true);
        assert!(!board.health().ok, "its last pass is older than three intervals");
    }
}
