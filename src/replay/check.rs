//! Every invariant that the journal alone can judge, over every prefix of it.

use cocoon_journal::inspect::{Fault, Piece};
use cocoon_model::event::Stamp;
use cocoon_model::id::OperationId;
use cocoon_model::invariant::{Judge, Violation};
use cocoon_model::view::Base;
use serde_json::{Value, json};

use super::line::{Content, Line, Note, Row, fault_json};
use super::timeline::Timeline;
use crate::cli::vm_object::rfc3339;

/// What a check found.
#[derive(Debug, Default)]
pub struct Checked {
    /// Events that were judged.
    pub events: u64,
    /// The last of them, and its time in microseconds since 1970.
    pub last: (u64, i64),
    /// Broken invariants, in order.
    pub violations: Vec<Violation>,
    /// The first event that broke one.
    pub offender: Option<Row>,
    /// What is wrong with the journal itself.
    pub faults: Vec<Fault>,
    /// Why nothing was judged after the last event, if there is more.
    pub stopped: Option<String>,
}

impl Checked {
    /// Whether nothing is broken, and everything could be judged.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.violations.is_empty() && self.stopped.is_none() && self.damage().next().is_none()
    }

    /// Faults that are damage.
    pub fn damage(&self) -> impl Iterator<Item = &Fault> {
        self.faults.iter().filter(|fault| fault.kind.is_damage())
    }

    /// The findings as a JSON object.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let violations = self.violations.iter().map(|violation| {
            json!({ "invariant": violation.invariant, "seq": violation.seq, "what": violation.what })
        });
        json!({
            "sound": self.is_sound(),
            "events": self.events,
            "last_seq": self.last.0,
            "last_time": (self.last.0 > 0).then(|| rfc3339(self.last.1)),
            "violations": violations.collect::<Vec<_>>(),
            "first_offender": self.offender.as_ref().map(Row::to_json),
            "faults": self.faults.iter().map(fault_json).collect::<Vec<_>>(),
            "stopped": self.stopped,
        })
    }
}

/// Judges a history from its first event on, or from where the judge begins. What comes after an event that cannot be
/// folded in cannot be judged.
pub fn check<I: Iterator<Item = Piece>, B: Base>(
    timeline: &mut Timeline<I>,
    mut judge: Judge<B>,
) -> Checked {
    let mut checked = Checked::default();
    for line in timeline.by_ref() {
        match line {
            Line::Row(row) if checked.stopped.is_none() => checked.judge(&mut judge, row),
            Line::Note(noted) => match noted.note {
                Note::Begins(_) if judge.state().applied().checked_add(1) == Some(noted.seq) => {}
                Note::Begins(_) => {
                    let why = format!(
                        "the history begins at seq {}, and what was before is not here",
                        noted.seq
                    );
                    checked.stopped.get_or_insert(why);
                }
                Note::Fault(fault) => {
                    if fault.lost.is_some() {
                        let why = format!("events are missing from seq {} on", fault.seq);
                        checked.stopped.get_or_insert(why);
                    }
                    checked.faults.push(fault);
                }
                _ => {}
            },
            Line::Row(_) => {}
        }
    }
    checked.violations = judge.violations().to_vec();
    checked
}

impl Checked {
    fn judge<B: Base>(&mut self, judge: &mut Judge<B>, row: Row) {
        let known = judge.violations().len();
        match &row.content {
            Content::Model(event) => {
                let operation = OperationId(row.operation.as_u128());
                judge.next(&Stamp { seq: row.seq, at_us: row.at_us, operation }, event);
            }
            Content::Journal(_) => judge.skip(row.seq),
            Content::Unreadable(_, why) => {
                self.stopped = Some(format!("the event at seq {} cannot be read: {why}", row.seq));
                self.offender.get_or_insert(row);
                return;
            }
        }
        self.events += 1;
        self.last = (row.seq, row.at_us);
        if judge.state().applied() != row.seq {
            self.stopped =
                Some(format!("the event at seq {} cannot be folded into the state", row.seq));
        }
        if judge.violations().len() > known {
            self.offender.get_or_insert(row);
        }
    }
}
