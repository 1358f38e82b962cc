//! Asking a guest to power off, and asking again.
//!
//! A guest that still boots has nobody who listens to its power button, and the press is lost, as on any machine. One
//! that is asked to stop right after its start would then sit out its whole time and be killed. So the button is
//! pressed again while there is time; a guest that is already on its way down does not mind.

use std::time::{Duration, Instant};

use super::{ApiError, Backend, CALL_TIMEOUT, RuntimePaths};

/// How long a guest has before the button is pressed again.
pub const PRESS_AGAIN: Duration = Duration::from_secs(2);

/// Presses the power button until the VMM is gone or `deadline` has passed; whether it is gone.
///
/// `wait_gone` waits until the VMM's process has ended, at most until the instant that it is given, and tells whether
/// it has. It is asked at least once if the button could be pressed or the VMM is dead already.
pub fn power_off(
    backend: &dyn Backend,
    paths: &RuntimePaths,
    wait_gone: &mut dyn FnMut(Instant) -> bool,
    deadline: Instant,
) -> Result<bool, ApiError> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match backend.request_power_off(paths, CALL_TIMEOUT.min(left)) {
            // No answer says nothing; the process will show.
            Ok(()) | Err(ApiError::Inconclusive { .. }) => {}
            Err(ApiError::Dead(_)) => return Ok(wait_gone(deadline)),
            Err(refused @ ApiError::Refused { .. }) => return Err(refused),
        }
        if wait_gone(deadline.min(Instant::now() + PRESS_AGAIN)) {
            return Ok(true);
        }
        if Instant::now() >= deadline {
            return Ok(false);
        }
    }
}
