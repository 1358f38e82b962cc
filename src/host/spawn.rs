//! Starting processes: a VMM, which outlives us, and a helper, which does not.
//!
//! | | VMM ([`spawn_vmm`]) | helper ([`HelperCommand`]) |
//! |---|---|---|
//! | when we die | lives on | is killed (parent-death signal) |
//! | inherits | the VMM lock | the ops lock, and whatever other lock it works under |
//! | session, cgroup | its own, where the host allows it | its own session, our cgroup |
//! | streams | `/dev/null` and a log file | `/dev/null` and two pipes, capped |
//! | working directory | `/` | ours, unless told otherwise |
//!
//! Both start with every other descriptor closed, no signal blocked or ignored, and a umask of
//! their own. What a child does between fork and exec are async-signal-safe calls only; a step that
//! fails there is reported through a close-on-exec pipe, so that the caller learns which one it
//! was.
//!
//! ```text
//!  parent: open log, cgroup, pipe ─► fork ─────────► read reports until exec ends them ─► identity
//!                                     │                        ▲
//!  child:                             └► prepare step by step ─┴─► exec
//! ```
//!
//! Needs Linux 5.11 or newer (`close_range` with close-on-exec).

mod cgroup;
mod child;
mod helper;
mod vmm;

pub use cgroup::{Scope, ScopeError};
pub use helper::{HelperCommand, HelperError, HelperOutput};
pub use vmm::{Placement, SpawnError, VmmCommand, VmmProcess, spawn_vmm};

#[cfg(test)]
pub(crate) mod tests;
