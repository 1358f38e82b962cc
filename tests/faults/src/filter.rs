//! The filter that has the kernel ask first.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use nix::libc::{self, c_long, sock_filter, sock_fprog};

use crate::call::NUMBERS;

/// Installs the filter for this thread, and for all that it starts; gives the descriptor that a supervisor is asked
/// through. It can never be taken away again.
pub(crate) fn install() -> io::Result<OwnedFd> {
    let mut program = program();
    let program = sock_fprog {
        len: u16::try_from(program.len()).expect("a short program"),
        filter: program.as_mut_ptr(),
    };
    // SAFETY: the call takes numbers alone.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // A call that the supervisor has seen is not repeated because of a signal.
    let flags =
        libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    // SAFETY: the program is valid for the length of the call, which copies it.
    let listener = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            std::ptr::from_ref(&program),
        )
    };
    match i32::try_from(listener) {
        // SAFETY: the kernel has just made this descriptor, and nobody else knows of it.
        Ok(listener) if listener >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(listener) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Asks for each of the numbers, and lets everything else pass.
fn program() -> Vec<sock_filter> {
    const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    const EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
    let code = |code| u16::try_from(code).expect("codes have 16 bits");
    let op = |operation, k, jt| sock_filter { code: code(operation), jt, jf: 0, k };
    // The number is the first word of what a filter is shown.
    let mut program = vec![op(LOAD, 0, 0)];
    let count = NUMBERS.len();
    for (index, (number, ..)) in NUMBERS.iter().enumerate() {
        let skip = u8::try_from(count - index).expect("a short program");
        program.push(op(EQUAL, word(*number), skip));
    }
    program.push(op(RETURN, libc::SECCOMP_RET_ALLOW, 0));
    program.push(op(RETURN, libc::SECCOMP_RET_USER_NOTIF, 0));
    program
}

fn word(number: c_long) -> u32 {
    u32::try_from(number).expect("a number of a call")
}
