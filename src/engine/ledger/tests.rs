//! What a command does after its answer.

use cocoon_journal::Writer;
use cocoon_model::event::supervisor::Stopped;

use super::*;

/// A journal of so many events, sixteen a frame.
fn past(dir: &Path, events: u64) {
    let mut log = SegmentedJournal::open(dir, options(None)).unwrap();
    let mut fold = StateFold::default();
    let writer = Writer::of_this_process(Uuid::nil(), "test").unwrap();
    let event = codec::encode(&Event::Supervisor(Stopped {}.into())).unwrap();
    let mut left = events / 16;
    let frames = |_: &StateFold| {
        left = left.checked_sub(1)?;
        Some(Ok(Proposal::Append(vec![event.clone(); 16], ())))
    };
    let deadline = Instant::now() + Duration::from_secs(60);
    log.transact_each(&mut fold, &writer, deadline, frames).unwrap();
}

#[test]
fn a_store_that_is_far_behind_is_caught_up_with_in_steps() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("journal");
    past(&dir, 8000);
    let mut lags = Vec::new();
    for _ in 0..3 {
        let mut ledger = Ledger::open(&dir).unwrap();
        let seq = ledger.refresh().unwrap().applied();
        ledger.tend(|| {});
        lags.push(store::lag(&dir, seq).unwrap());
    }
    assert!(lags[0] > 8000 - FED_AT_ONCE - 16 && lags[0] <= 8000 - FED_AT_ONCE, "{lags:?}");
    assert_eq!(lags[1..], [0, 0], "{lags:?}");
}
