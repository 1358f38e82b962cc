//! Breadth-first search over all states of a scope.
//!
//! A state is a [`World`] without times and sequence numbers; its 128-bit hash is kept for ever, the state itself only
//! until its successors are known. What is kept of it besides is from which state, and by which move, it was first
//! reached: enough to tell its story again. Breadth first means that the first counterexample is a shortest one.

use crate::event::VmEvent;

use super::act::{Findings, Flow, OUTCOMES};
use super::books::Books;
use super::moves::{Move, make, moves};
use super::recovery::{Recovered, retell};
use super::scope::Scope;
use super::table::Set;
use super::trace::Line;
use super::world::World;

/// A broken invariant with its shortest story.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counterexample {
    /// The number of the invariant.
    pub invariant: &'static str,
    /// What is wrong.
    pub what: String,
    /// How it came about.
    pub trace: Vec<Line>,
}

/// What a search came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The scope.
    pub scope: String,
    /// Different states.
    pub states: u64,
    /// Moves that were made.
    pub transitions: u64,
    /// Moves from the beginning to the farthest state.
    pub depth: u32,
    /// Different remains of crashes, each of which was recovered.
    pub crashes: u64,
    /// Different folded states of the journal.
    pub folds: u64,
    /// The most bytes that were in use for states.
    pub bytes: u64,
    /// What broke first, if anything did.
    pub violation: Option<Counterexample>,
    /// Events and outcomes that had to be reached and were not.
    pub unreached: Vec<String>,
    /// Why the search ended before all was seen, if it did.
    pub budget_hit: Option<String>,
}

/// How far a search is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Different states so far.
    pub states: u64,
    /// Moves so far.
    pub transitions: u64,
    /// The level that is being looked at.
    pub depth: u32,
}

/// What a search is allowed, and asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The most states.
    pub states: u64,
    /// Whether every state is crashed and recovered.
    pub liveness: bool,
}

/// States between two looks at the clock of the caller.
const BREATH: usize = 1 << 12;

/// Searches a scope. `go_on` is asked now and then, and says why the search has to end, if it has to.
pub fn search(
    scope: &Scope,
    limits: Limits,
    go_on: &mut dyn FnMut(Progress) -> Option<String>,
) -> Report {
    let mut search = Search::new(scope, limits);
    search.run(go_on);
    search.report()
}

struct Search<'a> {
    scope: &'a Scope,
    limits: Limits,
    books: Books,
    first: World,
    seen: Set,
    /// From where, and how, each state was first reached.
    origins: Vec<(u32, Move)>,
    recovered: Recovered,
    transitions: u64,
    depth: u32,
    reached: (u64, u64),
    widest: usize,
    violation: Option<Counterexample>,
    budget_hit: Option<String>,
}

impl<'a> Search<'a> {
    fn new(scope: &'a Scope, limits: Limits) -> Self {
        let mut books = Books::with_ids_from(scope.first_id);
        let mut found = Findings::default();
        let first = scope.first(&mut books, &mut found);
        Self {
            scope,
            limits,
            books,
            first,
            seen: Set::default(),
            origins: Vec::new(),
            recovered: Recovered::default(),
            transitions: 0,
            depth: 0,
            reached: (found.reached, found.outcomes),
            widest: 0,
            violation: found.wrong.map(|(invariant, what)| Counterexample {
                invariant,
                what: format!("before the search began: {what}"),
                trace: Vec::new(),
            }),
            budget_hit: None,
        }
    }

    fn run(&mut self, go_on: &mut dyn FnMut(Progress) -> Option<String>) {
        self.seen.insert(self.hash(&self.first));
        self.origins.push((0, Move::PowerLoss { kept: 0 }));
        let mut level = vec![(self.first, 0)];
        while !level.is_empty() && self.violation.is_none() {
            let mut next = Vec::new();
            for chunk in level.chunks(BREATH) {
                let states = self.seen.len() as u64;
                let progress =
                    Progress { states, transitions: self.transitions, depth: self.depth };
                self.budget_hit = go_on(progress).or_else(|| self.limit(states));
                if self.budget_hit.is_some() {
                    return;
                }
                for (world, index) in chunk {
                    self.expand(world, *index, &mut next);
                    if self.violation.is_some() {
                        return;
                    }
                }
            }
            self.widest = self.widest.max(level.len() + next.len());
            self.depth += u32::from(!next.is_empty());
            level = next;
        }
    }

    fn hash(&self, world: &World) -> u128 {
        world.hash(self.scope.actors.len(), self.scope.vms)
    }

    fn limit(&self, states: u64) -> Option<String> {
        (states >= self.limits.states).then(|| format!("{} states", self.limits.states))
    }

    fn expand(&mut self, world: &World, index: u32, next: &mut Vec<(World, u32)>) {
        let mut possible = Vec::new();
        moves(world, &self.scope.actors, self.scope.vms, &mut possible);
        for what in possible {
            let mut after = *world;
            let mut found = Findings::default();
            let actors = &self.scope.actors;
            if make(&mut after, &mut self.books, actors, &mut found, what) == Flow::Blocked {
                continue;
            }
            self.transitions += 1;
            self.reached.0 |= found.reached;
            self.reached.1 |= found.outcomes;
            if let Some(overflow) = found.overflow {
                self.budget_hit = Some(overflow.to_owned());
            }
            if let Some((invariant, what_broke)) = found.wrong {
                let trace = self.story(index, Some(what));
                self.violation = Some(Counterexample { invariant, what: what_broke, trace });
                return;
            }
            let new = u32::try_from(self.origins.len()).unwrap_or(u32::MAX);
            if self.seen.insert(self.hash(&after)) {
                self.origins.push((index, what));
                next.push((after, new));
                if self.limits.liveness && self.is_stuck(&after, new) {
                    return;
                }
            }
        }
    }

    fn is_stuck(&mut self, world: &World, index: u32) -> bool {
        let vms = self.scope.vms;
        if self.recovered.check(world, &mut self.books, vms).is_none() {
            return false;
        }
        let Some(stuck) = retell(world, &mut self.books, vms) else { return false };
        let mut trace = self.story(index, None);
        trace.push(Line::of_crash());
        trace.extend(stuck.lines);
        let (invariant, what) = (stuck.invariant, stuck.what);
        self.violation = Some(Counterexample { invariant, what, trace });
        true
    }

    /// Tells how a state was reached, by doing it again.
    fn story(&mut self, mut index: u32, last: Option<Move>) -> Vec<Line> {
        let mut path: Vec<Move> = last.into_iter().collect();
        while index != 0 {
            let (from, what) = self.origins[index as usize];
            path.push(what);
            index = from;
        }
        path.reverse();
        tell(self.scope, &mut self.books, &self.first, &path)
    }

    fn report(self) -> Report {
        let states = self.seen.len() as u64;
        let frontier = self.widest * size_of::<(World, u32)>();
        let kept = self.seen.bytes() + self.origins.len() * size_of::<(u32, Move)>();
        let bytes = frontier + kept + self.books.bytes() + self.recovered.bytes();
        let complete = self.budget_hit.is_none() && self.violation.is_none();
        let unreached = if complete { unreached(self.scope, self.reached) } else { Vec::new() };
        Report {
            scope: self.scope.name.clone(),
            states,
            transitions: self.transitions,
            depth: self.depth,
            crashes: self.recovered.len() as u64,
            folds: self.books.len() as u64,
            bytes: bytes as u64,
            violation: self.violation,
            unreached,
            budget_hit: self.budget_hit,
        }
    }
}

/// What a scope wanted to be reached and was not.
fn unreached(scope: &Scope, (events, outcomes): (u64, u64)) -> Vec<String> {
    let is_reached = |wanted: &&String| {
        let event = VmEvent::KINDS.iter().position(|info| info.name == wanted.as_str());
        let outcome = OUTCOMES.iter().position(|outcome| *outcome == wanted.as_str());
        event.is_some_and(|bit| events & (1 << bit) != 0)
            || outcome.is_some_and(|bit| outcomes & (1 << bit) != 0)
    };
    scope.sometimes.iter().filter(|wanted| !is_reached(wanted)).cloned().collect()
}

/// Makes moves one after the other and tells of each.
pub(crate) fn tell(scope: &Scope, books: &mut Books, first: &World, path: &[Move]) -> Vec<Line> {
    let mut world = *first;
    let mut found = Findings { lines: Some(Vec::new()), ..Findings::default() };
    for what in path {
        make(&mut world, books, &scope.actors, &mut found, *what);
    }
    found.lines.unwrap_or_default()
}
