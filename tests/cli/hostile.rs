//! Journals with arbitrary content, and with arbitrary damage: replay shows what it can, and never panics.

use cocoon::replay::point::Point;
use cocoon::replay::{check, diff, explain, snapshot, text};
use cocoon_journal::{Entry, Subject};
use cocoon_model::event::Event;
use cocoon_model::event::vm::{Committed, StoragePrepared};
use proptest::prelude::*;

use crate::forge::{Forger, Hand, reserved, vm};

/// Looks at a journal in every way; gives the events that were shown.
fn look(journal: &std::path::Path) -> Vec<u64> {
    let open = || cocoon::replay::open(journal);
    let mut shown = Vec::new();
    for line in open().unwrap() {
        assert!(!text::line(&line).contains(char::is_control));
        assert!(line.to_json().is_object());
        if let cocoon::replay::line::Line::Row(row) = line {
            shown.push(row.seq);
        }
    }
    let judge = cocoon::replay::judge(journal);
    assert!(check::check(&mut open().unwrap(), judge).to_json().is_object());
    let at = |point| snapshot::at(&mut open().unwrap(), point);
    let (before, after) = (at(Point::Seq(2)), at(Point::Time(i64::MAX)));
    diff::diff(&before, &after).iter().for_each(|difference| drop(difference.to_json()));
    if let Ok(explanation) = explain::explain(open, "web") {
        assert!(explanation.to_json().is_object());
        assert!(!explanation.to_text().is_empty());
    }
    shown
}

fn kinds() -> impl Strategy<Value = u16> {
    let known: Vec<u16> = Event::kinds().map(|info| info.kind).chain([60_000, 60_001]).collect();
    prop_oneof![4 => prop::sample::select(known), 1 => any::<u16>()]
}

fn entries() -> impl Strategy<Value = Entry> {
    let subjects = prop_oneof![
        Just(format!("vm/{}", cocoon_model::id::Id::from_slot(1))),
        Just("supervisor".to_owned()),
        "[!-~]{1,40}",
    ];
    let bodies = prop::collection::vec(any::<u8>(), 0..80);
    (kinds(), 0..3_u16, subjects, bodies).prop_map(|(kind, version, subject, body)| Entry {
        kind,
        version,
        subject: Subject::new(subject).unwrap(),
        body,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_events_are_shown(all in prop::collection::vec(entries(), 1..12)) {
        // A seal would lead to a segment that is not there.
        let all: Vec<Entry> = all.into_iter().filter(|entry| entry.kind != 60_000).collect();
        let mut forger = Forger::new();
        forger.write(&Hand::new("vm create", 1), &[vm(1, reserved("web"))]);
        for entry in all.iter().cloned() {
            forger.write_entries(&Hand::new("vm \u{1b}[31m", 2), vec![entry]);
        }
        let shown = look(&forger.path());
        prop_assert_eq!(shown, (1..=1 + all.len() as u64).collect::<Vec<_>>());
    }

    #[test]
    fn arbitrary_damage_costs_what_it_hits(hits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let mut forger = Forger::new();
        forger.write(&Hand::new("vm create", 1), &[vm(1, reserved("web"))]);
        forger.write(&Hand::new("vm create", 1), &[vm(1, StoragePrepared {}), vm(1, Committed {})]);
        for slot in 2..6 {
            forger.write(&Hand::new("vm create", 1), &[vm(slot, reserved(&format!("web-{slot}")))]);
        }
        let path = forger.path().join(format!("seg/{:020}.seg", 1));
        let mut bytes = std::fs::read(&path).unwrap();
        for (at, byte) in &hits {
            let at = at.index(bytes.len());
            bytes[at] = *byte;
        }
        std::fs::write(&path, bytes).unwrap();
        let shown = look(&forger.path());
        prop_assert!(shown.is_sorted());
        // A hit costs the frame that it falls into, of at most two events, and what only that frame leads to.
        prop_assert!(shown.len() + 2 * hits.len() >= 7, "{shown:?}");
    }
}
