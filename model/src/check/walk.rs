//! Walks: one way through a scope, chosen by numbers that somebody else draws.
//!
//! For scopes that are too large to be searched whole. The same numbers give the same walk, and fewer or smaller numbers
//! give a simpler one, so that whoever draws them can shrink what was found.

use super::act::{Findings, Flow};
use super::books::Books;
use super::moves::{Move, make, moves};
use super::recovery::{Recovered, retell};
use super::scope::Scope;
use super::search::{Counterexample, tell};
use super::trace::Line;
use super::world::World;

/// Of so many choices, one prefers that something goes wrong.
const FAULTS: u32 = 6;

/// What a walk came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Walk {
    /// Moves that were made.
    pub moves: usize,
    /// What broke, if anything did.
    pub violation: Option<Counterexample>,
    /// The whole story, if it was wanted.
    pub trace: Vec<Line>,
}

/// Walks through one scope; what was learned on one walk makes the next one faster.
#[derive(Debug)]
pub struct Walker {
    scope: Scope,
    books: Books,
    first: World,
    recovered: Recovered,
}

impl Walker {
    /// Stands at the beginning of a scope.
    #[must_use]
    pub fn new(scope: Scope) -> Self {
        let mut books = Books::with_ids_from(scope.first_id);
        let first = scope.first(&mut books, &mut Findings::default());
        Self { scope, books, first, recovered: Recovered::default() }
    }

    /// Makes one move for each number, until an invariant breaks or nothing is possible any more.
    pub fn walk(&mut self, choices: impl IntoIterator<Item = u32>, tells: bool) -> Walk {
        let (mut world, mut path) = (self.first, Vec::new());
        let mut broken = None;
        for choice in choices {
            let Some((what, found)) = self.step(&mut world, choice) else { break };
            path.push(what);
            broken = found.wrong.map(|(invariant, what)| (invariant, what, Vec::new()));
            if broken.is_none() {
                broken = self.crash(&world);
            }
            if broken.is_some() {
                break;
            }
        }
        let mut trace = Vec::new();
        if tells || broken.is_some() {
            trace = tell(&self.scope, &mut self.books, &self.first, &path);
        }
        let violation = broken.map(|(invariant, what, rest)| {
            let trace = trace.iter().cloned().chain(rest).collect();
            Counterexample { invariant, what, trace }
        });
        Walk { moves: path.len(), violation, trace }
    }

    fn step(&mut self, world: &mut World, choice: u32) -> Option<(Move, Findings)> {
        let mut possible = Vec::new();
        moves(world, &self.scope.actors, self.scope.vms, &mut possible);
        let wants_fault = choice % FAULTS == FAULTS - 1;
        // A stable sort: what is preferred comes first, else all keep their order.
        possible.sort_by_key(|what| what.is_fault() != wants_fault);
        let preferred = possible.iter().filter(|what| what.is_fault() == wants_fault).count();
        let start = (choice / FAULTS) as usize % preferred.max(1);
        possible[..preferred].rotate_left(start.min(preferred));
        for what in possible {
            let (mut after, mut found) = (*world, Findings::default());
            let actors = &self.scope.actors;
            if make(&mut after, &mut self.books, actors, &mut found, what) == Flow::Went {
                *world = after;
                return Some((what, found));
            }
        }
        None
    }

    /// Everyone dies here, and recovery has to come to rest.
    fn crash(&mut self, world: &World) -> Option<(&'static str, String, Vec<Line>)> {
        let vms = self.scope.vms;
        self.recovered.check(world, &mut self.books, vms)?;
        let stuck = retell(world, &mut self.books, vms)?;
        let mut lines = vec![Line::of_crash()];
        lines.extend(stuck.lines);
        Some((stuck.invariant, stuck.what, lines))
    }
}

/// Numbers that look random and follow from a seed alone (splitmix64).
pub fn choices(seed: u64) -> impl Iterator<Item = u32> {
    let mut state = seed;
    std::iter::repeat_with(move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        u32::try_from((word ^ (word >> 31)) >> 32).unwrap_or_default()
    })
}
