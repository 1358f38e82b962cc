//! Waiting in `flock` with a deadline, without polling.
//!
//! A timer that belongs to the waiting thread alone sends it `SIGURG`, whose handler does nothing and
//! is installed without `SA_RESTART`: `flock` returns `EINTR`. The timer repeats, so that a signal
//! which arrives just before `flock` begins to sleep is made good by the next. `SIGURG` is ignored by
//! default, hence harmless to whoever else it may reach. Where no timer is to be had (their number is
//! limited), the waiter asks again every few milliseconds.

use std::fs::File;
use std::io;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use nix::errno::Errno as NixErrno;
use nix::sys::signal::{
    SaFlags, SigAction, SigEvent, SigHandler, SigSet, SigevNotify, SigmaskHow, Signal, sigaction,
};
use nix::sys::timer::{Expiration, Timer, TimerSetTimeFlags};
use nix::time::ClockId;
use nix::unistd::gettid;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::Holder;

/// After this time, and then as often, a waiter looks at the holder.
const LOOK_AT_HOLDER: Duration = Duration::from_millis(100);

/// How often a waiter without a timer asks.
const ASK_AGAIN: Duration = Duration::from_millis(5);

/// Locks `file`; `false` if the deadline came first.
pub(super) fn until(file: &File, deadline: Instant) -> io::Result<bool> {
    install_handler()?;
    let _unblocked = Unblocked::new()?;
    let Ok(_timer) = arm(deadline) else { return ask_again(file, deadline) };
    loop {
        match flock(file, FlockOperation::LockExclusive) {
            Ok(()) => return Ok(true),
            Err(Errno::INTR) if Instant::now() >= deadline => return Ok(false),
            Err(Errno::INTR) => {
                if let Some(holder) = Holder::read(file) {
                    holder.wake_if_stopped();
                }
            }
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// The same without a timer.
fn ask_again(file: &File, deadline: Instant) -> io::Result<bool> {
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(true),
            Err(Errno::INTR | Errno::WOULDBLOCK) if Instant::now() >= deadline => return Ok(false),
            Err(Errno::INTR | Errno::WOULDBLOCK) => std::thread::sleep(ASK_AGAIN),
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// A repeating timer for this thread; deleted when dropped.
fn arm(deadline: Instant) -> io::Result<Timer> {
    let notify = SigevNotify::SigevThreadId {
        signal: Signal::SIGURG,
        thread_id: gettid().as_raw(),
        si_value: 0,
    };
    let mut timer = Timer::new(ClockId::CLOCK_MONOTONIC, SigEvent::new(notify))?;
    let left = deadline.saturating_duration_since(Instant::now());
    // A zero first expiry would disarm it.
    let first = left.clamp(Duration::from_micros(1), LOOK_AT_HOLDER);
    let expiration = Expiration::IntervalDelayed(first.into(), LOOK_AT_HOLDER.into());
    timer.set(expiration, TimerSetTimeFlags::empty())?;
    Ok(timer)
}

extern "C" fn interrupt(_: nix::libc::c_int) {}

fn install_handler() -> io::Result<()> {
    static INSTALLED: OnceLock<Result<(), NixErrno>> = OnceLock::new();
    let install = || {
        let action =
            SigAction::new(SigHandler::Handler(interrupt), SaFlags::empty(), SigSet::empty());
        // SAFETY: the handler does nothing at all, which is safe at any point of any thread.
        unsafe { sigaction(Signal::SIGURG, &action) }.map(|_| ())
    };
    INSTALLED.get_or_init(install).map_err(io::Error::from)
}

/// `SIGURG` unblocked in this thread, as before again when dropped.
struct Unblocked(SigSet);

impl Unblocked {
    fn new() -> io::Result<Self> {
        let mut set = SigSet::empty();
        set.add(Signal::SIGURG);
        Ok(Self(set.thread_swap_mask(SigmaskHow::SIG_UNBLOCK)?))
    }
}

impl Drop for Unblocked {
    fn drop(&mut self) {
        // Fails only for an invalid `how`.
        let _ = self.0.thread_set_mask();
    }
}
