//! Whoever the kernel asks.

use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use nix::libc::{self, seccomp_notif, seccomp_notif_resp};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::{Call, Verdict, call};

type Judge = Box<dyn FnMut(&Call) -> Verdict + Send>;

/// A judge that can be sent home.
#[derive(Clone)]
pub(crate) struct Judging(Arc<Mutex<Option<Judge>>>);

/// The same judge for whoever ends it and for the supervisor.
pub(crate) fn judge(judge: impl FnMut(&Call) -> Verdict + Send + 'static) -> (Judging, Judging) {
    let judging = Judging(Arc::new(Mutex::new(Some(Box::new(judge)))));
    (judging.clone(), judging)
}

impl Judging {
    /// From now on every call is made.
    pub(crate) fn end(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn verdict(&self, call: &Call) -> Verdict {
        let mut judge = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        judge.as_mut().map_or(Verdict::Go, |judge| judge(call))
    }
}

/// Answers until every thread and process that asks is gone.
pub(crate) fn serve(listener: OwnedFd, judging: &Judging) {
    let listener = Arc::new(listener);
    loop {
        let mut waited = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
        match poll(&mut waited, PollTimeout::NONE) {
            Ok(_) => {}
            Err(nix::errno::Errno::EINTR) => continue,
            Err(_) => return,
        }
        let events = waited[0].revents().unwrap_or(PollFlags::POLLHUP);
        if !events.contains(PollFlags::POLLIN) {
            return;
        }
        let Some(asked) = receive(&listener) else { continue };
        answer(&listener, asked, judging);
    }
}

fn receive(listener: &OwnedFd) -> Option<seccomp_notif> {
    // SAFETY: a structure of numbers, for which zeroes are valid; the kernel wants them.
    let mut asked: seccomp_notif = unsafe { std::mem::zeroed() };
    let request = libc::SECCOMP_IOCTL_NOTIF_RECV;
    // SAFETY: the descriptor is a listener, and the kernel fills in the structure that the request names.
    let received =
        unsafe { libc::ioctl(listener.as_raw_fd(), request, std::ptr::from_mut(&mut asked)) };
    // Whoever asked may have been killed meanwhile.
    (received == 0).then_some(asked)
}

fn answer(listener: &Arc<OwnedFd>, asked: seccomp_notif, judging: &Judging) {
    let thread = asked.pid.cast_signed();
    let call = call::read(thread, asked.data.nr, &asked.data.args);
    match call.map_or(Verdict::Go, |call| judging.verdict(&call)) {
        Verdict::Go => respond(listener, &asked, 0, CONTINUE),
        Verdict::Fail(errno) => respond(listener, &asked, errno, 0),
        Verdict::Pretend => respond(listener, &asked, 0, 0),
        Verdict::Wait(time) => {
            let listener = listener.clone();
            // Others are not to wait with it.
            std::thread::spawn(move || {
                std::thread::sleep(time);
                respond(&listener, &asked, 0, CONTINUE);
            });
        }
    }
}

/// Has the call fail, or succeed without an errno, or be made with [`CONTINUE`].
fn respond(listener: &OwnedFd, asked: &seccomp_notif, errno: i32, flags: u32) {
    let mut response = seccomp_notif_resp { id: asked.id, val: 0, error: -errno, flags };
    let request = libc::SECCOMP_IOCTL_NOTIF_SEND;
    // SAFETY: the descriptor is a listener, and the request reads the structure that it names. That it fails because
    // whoever asked has been killed is as good.
    unsafe { libc::ioctl(listener.as_raw_fd(), request, std::ptr::from_mut(&mut response)) };
}

/// `SECCOMP_USER_NOTIF_FLAG_CONTINUE`.
const CONTINUE: u32 = 1;
