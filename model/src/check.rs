//! The model checker: all interleavings of some actors in a small world, and every crash in between.
//!
//! ```text
//!   scope (who acts, what may go wrong) --> world --moves--> worlds --> ... until no new one is met
//!                                             |                |
//!                                             |                +--> each step: is an invariant broken?
//!                                             +--> everyone dies, faults stop: does recovery come to rest?
//! ```
//!
//! The actors take their decisions from the crate itself: [`decide`](crate::decide::decide),
//! [`next_step`](crate::step::next_step) and [`recover`](crate::recover::recover) are those of the product, and folded
//! states are folded by the product's fold. What is simulated is the host: locks, processes, directories, the un-synced
//! end of the journal, and the order in which things happen.

mod act;
mod books;
mod moves;
mod recovery;
mod scope;
mod search;
mod setting;
mod table;
mod trace;
mod walk;
mod world;

pub use scope::{BadScope, Cast, Role, Scope};
pub use search::{Counterexample, Limits, Progress, Report, search};
pub use trace::{Line, table as trace_table};
pub use walk::{Walk, Walker, choices};
