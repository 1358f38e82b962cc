//! Stands in for QEMU in tests that kill thousands of VMMs.
//!
//! `cocoon-fake-vmm` accepts exactly the command line that the QEMU backend writes, opens the same sockets, speaks the
//! same QMP, leaves the same words in its log, locks its disk images as QEMU does, keeps the descriptors that it
//! inherits, removes its sockets on `quit` and SIGTERM, and leaves them on SIGKILL. It has no guest: what a guest would
//! do is a script, given by words of the kernel command line (`-append`). For VMs that boot from disk there are two
//! other ways: the environment variable `COCOON_FAKE_SCRIPT`, and a file `<program>.script` beside the name under which
//! it is run, so that a test can link the binary to a directory of its own and write the script there.
//!
//! | word | what happens |
//! |---|---|
//! | `cocoon.ignore-power-button` | the guest never heeds the power button |
//! | `cocoon.exit-after=SECONDS` | the guest powers off that long after GUEST-UP |
//! | `cocoon.panic` | the guest panics right after GUEST-UP, and says so |
//! | `cocoon.fake.boot=SECONDS` | GUEST-UP comes that long after the first `cont`, not at once |
//! | `cocoon.fake.lose-presses=N` | the first N presses of the power button are lost, as on a guest that still boots |
//! | `cocoon.fake.crash-at-start` | it writes a line to its log and exits with 1 before it opens a socket |
//! | `cocoon.fake.hang` | it listens and never greets |
//! | `cocoon.fake.refuse=COMMAND` | that QMP command fails |
//! | `cocoon.fake.mute=COMMAND` | that QMP command is done and never answered |
//! | `cocoon.fake.die=COMMAND` | that QMP command kills it, as SIGKILL would |
//!
//! The first three mean the same to the real quickstart guest, so that one suite runs over both.
//!
//! As a library it tells tests where the binary is, and where a real QEMU and a real guest are.

pub mod find;
pub mod image_lock;
pub mod machine;
pub mod monitor;
pub mod options;
pub mod server;
