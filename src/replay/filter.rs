//! Which lines are shown.

use cocoon_model::id::VmId;
use cocoon_model::record::VmRecord;

use super::line::{Actor, Death, Line, Note, Row};
use super::point::Point;
use super::track::{Tracked, Tracker};

/// What is wanted; everything that is given must fit.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// A VM: its name, its id, or the beginning of its id.
    pub vm: Option<String>,
    /// The beginning of the id of an operation.
    pub operation: Option<String>,
    /// An actor: its verb, its pid, or both as shown.
    pub actor: Option<String>,
    /// From here on.
    pub since: Option<Point>,
    /// Up to here.
    pub until: Option<Point>,
}

/// Decides line by line.
#[derive(Debug, Clone)]
pub struct Filter {
    wanted: Wanted,
    begun: bool,
    ended: bool,
}

impl Filter {
    /// Shows what is wanted.
    #[must_use]
    pub fn new(wanted: Wanted) -> Self {
        Self { wanted, begun: false, ended: false }
    }

    /// Whether a line is shown. Lines must come in their order.
    pub fn shows(&mut self, line: &Line) -> bool {
        self.is_in_range(line)
            && match line {
                Line::Row(row) => self.fits(row),
                Line::Note(noted) => match &noted.note {
                    Note::Death(death) => self.fits_death(death),
                    _ => true,
                },
            }
    }

    /// The VM that is wanted, if the history has none such.
    #[must_use]
    pub fn unknown_vm(&self, tracker: &Tracker) -> Option<&str> {
        let vm = self.wanted.vm.as_deref()?;
        let fits =
            |(id, tracked): (VmId, &Tracked<VmRecord>)| fits_vm(vm, id.as_str(), &tracked.name);
        (!tracker.vms().any(fits)).then_some(vm)
    }

    /// Whether no later line can be shown.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.ended
    }

    fn is_in_range(&mut self, line: &Line) -> bool {
        let (seq, at_us) = match line {
            Line::Row(row) => (row.seq, Some(row.at_us)),
            Line::Note(noted) => (noted.seq, noted.at_us),
        };
        // Where something without a time stands, only what stands around it can tell.
        let reached = |point: Point| match (point, at_us) {
            (Point::Time(_), None) => false,
            (point, at_us) => point.is_reached(seq, at_us.unwrap_or_default()),
        };
        self.begun |= self.wanted.since.is_none_or(reached);
        let past = |point: Point| match (point, at_us) {
            (Point::Time(_), None) => false,
            (point, at_us) => !point.includes(seq, at_us.unwrap_or_default()),
        };
        self.ended |= self.wanted.until.is_some_and(past);
        self.begun && !self.ended
    }

    fn fits(&self, row: &Row) -> bool {
        self.fits_vm(&row.subject, &row.name)
            && self.fits_operation(&row.operation.to_string())
            && self.fits_actor(&row.actor)
    }

    fn fits_death(&self, death: &Death) -> bool {
        self.fits_vm(&death.subject, &death.name)
            && self.fits_operation(&death.operation.to_string())
            && self.fits_actor(&death.actor)
    }

    fn fits_vm(&self, subject: &str, name: &str) -> bool {
        self.wanted
            .vm
            .as_deref()
            .is_none_or(|vm| subject.strip_prefix("vm/").is_some_and(|id| fits_vm(vm, id, name)))
    }

    fn fits_operation(&self, operation: &str) -> bool {
        self.wanted.operation.as_deref().is_none_or(|wanted| operation.starts_with(wanted))
    }

    fn fits_actor(&self, actor: &Actor) -> bool {
        self.wanted.actor.as_deref().is_none_or(|wanted| {
            let verb = actor.verb.split(' ').next_back().unwrap_or_default();
            [&*actor.verb, verb].contains(&wanted)
                || wanted == actor.pid.to_string()
                || wanted == actor.to_string()
                || wanted == actor.verb.replace(' ', "-")
        })
    }
}

/// The shortest beginning of an id that counts.
const SHORTEST_PREFIX: usize = 3;

/// Whether a reference means a VM: its id, its name, or the beginning of its id.
pub(super) fn fits_vm(reference: &str, id: &str, name: &str) -> bool {
    name == reference || (reference.len() >= SHORTEST_PREFIX && id.starts_with(reference))
}
