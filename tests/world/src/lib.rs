//! A small world for one test: a root of its own, real `cocoon` processes on it, and a judge of what they leave.
//!
//! ```text
//!   World      root, run and log directory under a short path; ends its own VMMs when dropped
//!     Ran      what one process came to
//!   History    the state as folded by the judge of invariants, from the journal alone
//!   filled     a journal that the next decision fills
//!   Findings   what is wrong: in the journal, in the directories, among processes, locks and blobs
//! ```
//!
//! Nothing of the caller's environment reaches the processes, and nothing here asks `cocoon` how it is doing: the judge
//! reads the journal, the directories, the locks and `/proc` by itself.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "serves tests alone: what cannot be set up or read ends the test"
)]

pub mod filled;
pub mod findings;
pub mod history;
pub mod processes;
pub mod run;
pub mod world;

pub use history::History;
pub use run::Ran;
pub use world::World;
