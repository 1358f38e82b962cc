//! The daemon: an optional supervisor of one root.
//!
//! It watches running VMMs and journals their deaths within milliseconds, finishes what dead commands left, keeps logs
//! within bounds, and serves what it sees over HTTP on a unix socket. Nothing depends on it: every verb works without it,
//! while it is stopped, and while it hangs. It only ever tries locks, so it never blocks a verb; it never starts a VM,
//! never guesses a cause, and leaves all VMs running when it ends.
//!
//! ```text
//!   lock --> SupervisorStarted --> full pass --> ready --+--> signal ----------> SupervisorStopped --> unlock
//!                                                        |
//!       one epoll:   pidfd of a VMM    --> ObserveExit, at once, many in one write
//!                    pidfd of an owner --> look at its VM
//!                    journal           --> (un)watch at once; look at the VMs it spoke of, 200 ms later
//!                    timer             --> full pass; heartbeat
//!                    worker is done    --> next in the queue
//! ```
//!
//! A pass makes the plan that gc makes and settles a VM by the body that gc and the verbs use. Settling may take as long
//! as a guest needs to power off, so it runs on a thread of its own, never two for one VM, and passes go on meanwhile.
//!
//! Plain threads: the engine is blocking by design, and the loop must not wait for it. Only the API runs on tokio, on one
//! thread, because hyper does.
//!
//! A root may be removed under it, and another be made in its place. It then ends at the next waking, with an error that a
//! service manager starts it again for, and has touched nothing of the new one: its lock file is no longer the root's.
//! If only its socket is removed, it makes that again.
//!
//! Its own life is journalled. While it lives it overwrites a heartbeat file; the next daemon copies that into its
//! `SupervisorStarted`, so that the journal tells until when the one before was there, however it ended.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cocoon_model::command::Command;

use crate::engine::{Caller, Engine, EngineError};
use crate::host::lock::{LockGuard, Locks};

mod api;
mod board;
mod chores;
mod heartbeat;
mod notify;
mod patience;
mod poller;
mod supervisor;
mod watches;
mod workers;

pub use api::SocketError;

/// The verb under which the daemon acts.
const VERB: &str = "daemon";

/// How a daemon works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Time between full passes.
    pub reconcile_interval: Duration,
    /// Time between collections; `None` leaves them to `cocoon gc`.
    pub gc_interval: Option<Duration>,
    /// Where the API listens; `None` for no API.
    pub api_socket: Option<PathBuf>,
    /// Permissions of the socket.
    pub api_socket_mode: u32,
}

/// Why a daemon did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// There is one.
    #[error("another cocoon daemon is already running{}", who.as_deref().map(|who| format!(": {who}")).unwrap_or_default())]
    AlreadyRunning {
        /// Who it is, where that is recorded.
        who: Option<String>,
    },
    /// The root is not the one that it began with.
    #[error(
        "the root {} was removed under the daemon, and perhaps made anew; the daemon has ended and touched nothing of what is there now. `cocoon daemon` starts one for it",
        path.display()
    )]
    RootGone {
        /// The root directory.
        path: PathBuf,
    },
    /// The engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The socket of the API.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The system refused something that the daemon cannot do without.
    #[error("cannot {what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system says.
        source: std::io::Error,
    },
}

impl DaemonError {
    fn system<E: Into<std::io::Error>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::System { what, source: source.into() }
    }
}

/// Runs the daemon until it is told to stop by SIGTERM, SIGINT or SIGHUP.
///
/// Must be called while the process has one thread: it blocks those signals for all later ones.
///
/// # Errors
/// [`DaemonError`]; if another daemon runs, nothing was touched.
pub fn run(engine: Engine, options: &Options) -> Result<(), DaemonError> {
    let caller = Caller::new(VERB, None)?;
    let lock = engine.locks().daemon(&caller.holder()?).map_err(EngineError::from)?;
    let lock = lock.map_err(|busy| DaemonError::AlreadyRunning {
        who: busy.holder.map(|holder| holder.to_string()),
    })?;
    let signals = poller::block_signals()?;
    poller::raise_descriptor_limit();
    let place = Place::new(engine.locks().clone(), lock);
    let engine = Arc::new(engine);
    let board = Arc::new(board::Board::new(options.reconcile_interval));
    let api = match &options.api_socket {
        Some(path) => {
            let listener = api::Listener::bind(path, options.api_socket_mode)?;
            Some(api::serve(listener, Arc::clone(&engine), Arc::clone(&board))?)
        }
        None => None,
    };
    let heartbeat = heartbeat::Heartbeat::new(&engine.settings().root_dir);
    begin(&engine, &caller, &heartbeat)?;
    let mut supervisor = supervisor::Supervisor::new(
        Arc::clone(&engine),
        caller.clone(),
        options,
        board,
        heartbeat,
        signals,
        api,
        place.clone(),
    )?;
    let outcome = supervisor.run();
    drop(supervisor);
    outcome?;
    if !place.is_ours() {
        return Err(DaemonError::RootGone { path: engine.settings().root_dir.clone() });
    }
    engine.submit(&caller, &Command::StopSupervising)?;
    Ok(())
}

/// The daemon's place in its root: the lock that it holds.
#[derive(Debug, Clone)]
struct Place {
    locks: Locks,
    lock: Arc<LockGuard>,
}

impl Place {
    fn new(locks: Locks, lock: LockGuard) -> Self {
        Self { locks, lock: Arc::new(lock) }
    }

    /// Whether the root is still the one that the lock was taken in.
    fn is_ours(&self) -> bool {
        self.locks.is_daemon_of(&self.lock)
    }
}

/// Journals the beginning, with what is known of the one before.
fn begin(
    engine: &Engine,
    caller: &Caller,
    heartbeat: &heartbeat::Heartbeat,
) -> Result<(), EngineError> {
    use cocoon_model::view::View as _;
    let before = engine.ledger().refresh()?.supervisor()?;
    let previous_alive_until_us = heartbeat.read();
    if before.running {
        let until = previous_alive_until_us
            .map_or_else(|| "an unknown time".to_owned(), crate::cli::vm_object::rfc3339);
        tracing::warn!(
            "the daemon before this one did not stop in good order; it was alive until {until}"
        );
    }
    let version = env!("CARGO_PKG_VERSION").to_owned();
    engine.submit(caller, &Command::StartSupervising { version, previous_alive_until_us })?;
    Ok(())
}
