//! Sleeping until there is more to show, or nobody is there to read it.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::CliError;

/// Sleeps until `source` can be read, or until `deadline`; for ever without either. A reader of the output that goes away
/// ends the command, even if nothing ever happens again.
pub(super) fn sleep(
    source: Option<BorrowedFd<'_>>,
    deadline: Option<Instant>,
) -> Result<(), CliError> {
    let stdout = io::stdout();
    let mut fds = vec![PollFd::from_borrowed_fd(stdout.as_fd(), PollFlags::empty())];
    fds.extend(source.map(|source| PollFd::from_borrowed_fd(source, PollFlags::IN)));
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Ok(());
        }
        let timeout = left.map(|left| Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(left.subsec_nanos()),
        });
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(CliError::Failed(format!("cannot wait: {errno}"))),
        }
        let gone = PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL;
        if fds.first().is_some_and(|fd| fd.revents().intersects(gone)) {
            return Err(CliError::ClosedPipe);
        }
        if fds.get(1).is_some_and(|fd| !fd.revents().is_empty()) {
            return Ok(());
        }
    }
}
