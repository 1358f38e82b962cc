//! The pure half of `cocoon`: what can happen to a VM, what it means, and what is owed next.
//!
//! ```text
//!   command --decide(view)--> Accepted(events) | AlreadySo | Refused
//!   events  --apply--------> state                      the same fold for running and for replay
//!   record  --next_step----> Step --(effect)--> Outcome --decide--> events ...   until nothing is owed
//!   records + what was seen of the world --recover--> Plan                        for the daemon, gc and start-up
//! ```
//!
//! Nothing here does I/O, reads a clock, draws a random number or walks an unordered map; `clippy.toml` of this crate
//! refuses them. So the very decisions that the product takes can be explored by a checker.

pub mod apply;
pub mod check;
pub mod command;
pub mod decide;
pub mod event;
pub mod id;
pub mod invariant;
pub mod mutant;
pub mod record;
pub mod recover;
pub mod removal;
pub mod sight;
pub mod state;
pub mod step;
pub mod view;
