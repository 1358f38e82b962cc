//! Traces that people read: `seq  actor  event|effect  subject  state->state  locks  owed`.

use std::fmt;

use crate::step::next_step;

use super::act::Act;
use super::books::{Books, Facts, Told};
use super::world::{ACTORS, BY_HELPER, BY_VMM, World};
use crate::check::scope::Cast;
use crate::record::RemovalPhase;

/// One line of a trace.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Line {
    /// `!` for a kill or a power loss, `^` for a beginning, else a blank.
    pub mark: char,
    /// Who.
    pub actor: String,
    /// What was written or done.
    pub what: String,
    /// To what.
    pub subject: String,
    /// From which state to which.
    pub states: String,
    /// Who holds the lock of the subject.
    pub locks: String,
    /// What its record owes.
    pub owed: String,
}

impl Line {
    /// Everyone dies, nothing fails any more, and recovery begins.
    pub(crate) fn of_crash() -> Self {
        let what = "die; faults stop; recovery begins".to_owned();
        Self { mark: '!', actor: "all".to_owned(), what, ..Self::default() }
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mark, actor, what, subject, states, locks, owed } = self;
        let text =
            format!("{mark} {actor:<14} {what:<34} {subject:<5} {states:<24} {locks:<16} {owed}");
        f.write_str(text.trim_end())
    }
}

/// A trace as a table.
#[must_use]
pub fn table(lines: &[Line]) -> String {
    let head = Line {
        mark: ' ',
        actor: "actor".to_owned(),
        what: "event|effect".to_owned(),
        subject: "vm".to_owned(),
        states: "state->state".to_owned(),
        locks: "locks".to_owned(),
        owed: "owed".to_owned(),
    };
    let mut text = format!(" seq {head}\n");
    for (seq, line) in lines.iter().enumerate() {
        text.push_str(&format!("{:>4} {line}\n", seq + 1));
    }
    text
}

fn state_of(facts: Option<Facts>) -> String {
    let Some(facts) = facts else { return "none".to_owned() };
    let phase = match facts.phase {
        Some(RemovalPhase::Leased) => "+leased",
        Some(RemovalPhase::Deleting) => "+deleting",
        None => "",
    };
    format!("{}{phase}", facts.state.as_str())
}

fn holders(casts: &[Cast], held: u8) -> String {
    let actors = (0..ACTORS.min(casts.len())).filter(|at| held & (1 << at) != 0);
    let mut names: Vec<String> = actors.map(|at| name(casts, at)).collect();
    if held & BY_HELPER != 0 {
        names.push("helper".to_owned());
    }
    if held & BY_VMM != 0 {
        names.push("vmm".to_owned());
    }
    names.join("+")
}

/// The name of an actor in traces.
pub(crate) fn name(casts: &[Cast], at: usize) -> String {
    format!("{}#{at}", casts[at].role.as_str())
}

/// A line about a slot, as it is now.
pub(crate) fn line(books: &Books, casts: &[Cast], world: &World, slot: u8) -> Line {
    let fold = world.journal.top();
    let owed = books.core(fold, slot).and_then(next_step).map_or("", |step| step.as_str());
    Line {
        mark: ' ',
        subject: format!("vm{slot}"),
        locks: holders(casts, world.places[usize::from(slot)].ops_held),
        owed: owed.to_owned(),
        ..Line::default()
    }
}

impl Act<'_> {
    /// An effect on the world.
    pub(crate) fn effect(&mut self, name: &str) {
        self.note(name, "");
    }

    /// Anything that is worth a line.
    pub(crate) fn note(&mut self, what: &str, how: &str) {
        if self.found.lines.is_none() {
            return;
        }
        let mut line = line(self.books, self.casts, self.world, self.now().at);
        line.actor = name(self.casts, self.me);
        line.what = what.to_owned();
        line.states = how.to_owned();
        if let Some(lines) = &mut self.found.lines {
            lines.push(line);
        }
    }

    /// An event that was written.
    pub(crate) fn tell(&mut self, told: &Told) {
        if self.found.lines.is_none() {
            return;
        }
        let mut line = line(self.books, self.casts, self.world, told.slot);
        line.actor = name(self.casts, self.me);
        line.what = told.name.to_owned();
        let (before, after) = (state_of(told.before), state_of(told.after));
        line.states = if before == after { before } else { format!("{before}->{after}") };
        line.owed = told.after.and_then(|facts| facts.next).map_or("", |step| step.as_str()).into();
        if let Some(lines) = &mut self.found.lines {
            lines.push(line);
        }
    }
}
