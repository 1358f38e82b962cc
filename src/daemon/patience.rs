//! Failures of single VMs: told once for each changed reason, and tried again ever more rarely.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use cocoon_model::id::VmId;

/// The first pause after a failure; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

#[derive(Debug)]
struct Failing {
    reason: String,
    pause: Duration,
    again: Instant,
}

/// What is failing now.
#[derive(Debug, Default)]
pub(super) struct Patience {
    failing: BTreeMap<VmId, Failing>,
}

impl Patience {
    /// Takes note of a failure; says whether it is news.
    pub(super) fn failed(&mut self, id: VmId, reason: &str, now: Instant) -> bool {
        let before = self.failing.get(&id);
        let news = before.is_none_or(|before| before.reason != reason);
        let pause = match before {
            Some(before) if !news => (before.pause * 2).min(LONGEST_PAUSE),
            _ => FIRST_PAUSE,
        };
        self.failing.insert(id, Failing { reason: reason.to_owned(), pause, again: now + pause });
        news
    }

    /// Whether it is too early to try again.
    pub(super) fn waits(&self, id: VmId, now: Instant) -> bool {
        self.failing.get(&id).is_some_and(|failing| now < failing.again)
    }

    /// It is well again, or gone.
    pub(super) fn forget(&mut self, id: VmId) {
        self.failing.remove(&id);
    }

    /// Forgets those of whom nothing is known any more.
    pub(super) fn retain(&mut self, is_known: impl Fn(VmId) -> bool) {
        self.failing.retain(|id, _| is_known(*id));
    }

    /// How many are failing.
    pub(super) fn len(&self) -> usize {
        self.failing.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_told_once_and_pauses_grow() {
        let (id, now) = (VmId::from_slot(1), Instant::now());
        let mut patience = Patience::default();
        assert!(!patience.waits(id, now));
        assert!(patience.failed(id, "no", now));
        assert!(patience.waits(id, now));
        assert!(!patience.waits(id, now + FIRST_PAUSE));
        assert!(!patience.failed(id, "no", now), "told already");
        assert!(patience.waits(id, now + FIRST_PAUSE));
        assert!(!patience.waits(id, now + 2 * FIRST_PAUSE));
        for _ in 0..20 {
            patience.failed(id, "no", now);
        }
        assert!(!patience.waits(id, now + LONGEST_PAUSE));
        assert!(patience.failed(id, "something else", now));
        assert!(!patience.waits(id, now + FIRST_PAUSE));
        patience.forget(id);
        assert_eq!(patience.len(), 0);
        assert!(patience.failed(id, "no", now), "news again after it was well");
    }
}
