//! The log, against what processes were told of it.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::Path;

use cocoon_journal::reserved::FIRST_KIND;
use cocoon_journal::{Fold, Frame, Hash, Journal as _, Options, Position, SegmentedJournal, Seq};

use super::mix::hex;

/// The whole log: of each event its body if it is a user's, the hash of its frame, and whether it ends that.
#[derive(Debug, Default)]
pub(super) struct Whole {
    pub(super) position: Position,
    events: BTreeMap<Seq, (Option<String>, Hash)>,
    /// Where frames end, and how many events of users there are up to there.
    ends: BTreeMap<Seq, u64>,
    users: u64,
    /// The last decision of each process.
    decisions: BTreeMap<String, u64>,
}

impl Fold for Whole {
    type Error = Infallible;

    fn position(&self) -> Position {
        self.position
    }

    fn apply(&mut self, frame: &Frame, hash: Hash) -> Result<(), Infallible> {
        assert_eq!(frame.header.seq, self.position.seq + 1, "no gap");
        for (place, (seq, entry)) in frame.events().enumerate() {
            let user = entry.kind < FIRST_KIND;
            let body = user.then(|| String::from_utf8(entry.body.clone()).unwrap());
            if let Some(body) = &body {
                self.users += 1;
                self.check_decision(body, place, frame.entries.len());
            }
            self.events.insert(seq, (body, hash));
        }
        self.position = frame.position(hash);
        self.ends.insert(self.position.seq, self.users);
        Ok(())
    }
}

impl Whole {
    pub(super) fn read(journal: &Path) -> Self {
        let mut whole = Self::default();
        SegmentedJournal::open(journal, Options::default()).unwrap().refresh(&mut whole).unwrap();
        whole
    }

    /// Each decision is there wholly and once, and those of a process in their order.
    fn check_decision(&mut self, body: &str, place: usize, of: usize) {
        let mut words = body.split('.');
        let (id, mut numbers) = (words.next().unwrap(), words.map(str::parse::<u64>));
        let number = numbers.next().unwrap().unwrap();
        let told = (numbers.next().unwrap().unwrap(), numbers.next().unwrap().unwrap());
        assert_eq!(told, (place as u64, of as u64), "half a decision: {body}");
        let last = self.decisions.entry(id.to_owned()).or_default();
        // Counted from one, so that none is zero.
        let ordered = if place == 0 { number + 1 > *last } else { number + 1 == *last };
        assert!(ordered, "decision {number} of {id} after {last}");
        *last = number + 1;
    }

    /// Holds the lines of one process against the log; gives how many there were.
    pub(super) fn check(&self, told: &Path, context: &str) -> u64 {
        let text = std::fs::read_to_string(told).unwrap_or_default();
        // The last line may be cut by the death of its writer.
        let lines = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
        lines.map(|line| self.check_line(line, context)).count() as u64
    }

    fn check_line(&self, line: &str, context: &str) {
        let mut words = line.splitn(3, ' ');
        let sign = words.next().unwrap();
        assert_ne!(sign, "!", "{context}: {line}");
        let seq: Seq = words.next().unwrap().parse().unwrap();
        let rest = words.next().unwrap_or_default();
        let found = self.events.get(&seq);
        let holds = match sign {
            "+" => found.is_some_and(|(body, _)| body.as_deref() == Some(rest)),
            "~" => found.is_some_and(|(_, hash)| hex(hash) == rest),
            "=" if seq == 0 => true,
            "=" => {
                let (hash, events) = rest.split_once(' ').unwrap();
                found.is_some_and(|(_, found)| hex(found) == hash)
                    && self.ends.get(&seq).is_some_and(|users| users.to_string() == events)
            }
            _ => false,
        };
        assert!(holds, "{context}: `{line}` was told, and the log has {found:?}");
    }
}
