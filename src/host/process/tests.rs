//! Real processes where the kernel's answer matters, a made-up proc tree where it cannot be
//! provoked.

use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Signal, WaitId, WaitIdOptions, waitid};

use super::*;
use crate::host::test_support::{Role, say};

/// A child that is killed and reaped with its owner.
struct Scoped(Child);

impl Drop for Scoped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn sleeper() -> Scoped {
    Scoped(Command::new("/bin/sleep").arg("1000").spawn().unwrap())
}

/// A shell that ignores SIGTERM, and does so already when this returns.
fn deaf_to_term() -> Scoped {
    let mut child = Command::new("/bin/sh")
        .args(["-c", "trap '' TERM; echo deaf; exec sleep 1000"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = [0; 5];
    child.stdout.take().unwrap().read_exact(&mut line).unwrap();
    Scoped(child)
}

fn identity_of(child: &Scoped) -> ProcessIdentity {
    identify(child.0.id()).unwrap().unwrap()
}

/// Waits until the child is a zombie, without reaping it.
fn await_zombie(child: &Scoped) {
    let pid = Pid::from_raw(i32::try_from(child.0.id()).unwrap()).unwrap();
    waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap();
}

fn far() -> Option<Instant> {
    Some(Instant::now() + Duration::from_secs(60))
}

#[test]
fn this_process_is_alive_and_serialises() {
    let own = own_identity().unwrap();
    assert_eq!(own.pid, std::process::id());
    assert_eq!(own.boot_id, boot::boot_id().unwrap());
    assert_eq!(own.pid_namespace, boot::pid_namespace().unwrap());
    assert_eq!(liveness(&own), Liveness::Alive);
    let text = serde_json::to_string(&own).unwrap();
    assert_eq!(serde_json::from_str::<ProcessIdentity>(&text).unwrap(), own);
}

#[test]
fn a_stopped_process_is_alive_and_a_zombie_is_dead() {
    let mut child = sleeper();
    let identity = identity_of(&child);
    let handle = ProcessHandle::open(&identity).unwrap().unwrap();
    assert!(!is_stopped(&identity));
    handle.signal(Signal::STOP).unwrap();
    waitid(WaitId::PidFd(handle.as_fd()), WaitIdOptions::STOPPED).unwrap();
    assert!(is_stopped(&identity));
    assert_eq!(liveness(&identity), Liveness::Alive);
    child.0.kill().unwrap();
    await_zombie(&child);
    assert_eq!(liveness(&identity), Liveness::Dead);
    assert_eq!(identify(identity.pid).unwrap(), None);
    assert!(handle.wait_exit(far()).unwrap());
    child.0.wait().unwrap();
    assert_eq!(liveness(&identity), Liveness::Dead);
    assert!(!handle.signal(Signal::TERM).unwrap());
}

#[test]
fn a_killed_process_that_has_not_noticed_is_dying() {
    let child = sleeper();
    let identity = identity_of(&child);
    assert!(!is_dying(&identity));
    let fake = FakeProc::new();
    let line = |flags: u32, pending: u64| {
        format!("1 (x) D 1 1 1 0 -1 {flags} 0 0 0 0 0 0 0 0 20 0 1 0 99 0 0 0 0 0 0 0 0 {pending}")
    };
    for (flags, pending, dying) in [(0, 0, false), (4, 0, true), (0, 0x100, true), (0, 1, false)] {
        std::fs::write(fake.0.path().join("1/stat"), line(flags, pending)).unwrap();
        assert_eq!(fake.table().stat(1).unwrap().unwrap().is_dying(), dying);
    }
}

#[test]
fn a_wait_ends_at_its_deadline() {
    let child = sleeper();
    let handle = ProcessHandle::open(&identity_of(&child)).unwrap().unwrap();
    assert!(!handle.wait_exit(Some(Instant::now() + Duration::from_millis(20))).unwrap());
}

#[test]
fn a_reused_pid_is_never_signalled() {
    let mut child = sleeper();
    let mut earlier = identity_of(&child);
    earlier.start_time -= 1;
    assert_eq!(liveness(&earlier), Liveness::Dead);
    assert!(ProcessHandle::open(&earlier).unwrap().is_none());
    let outcome = terminate(&earlier, Duration::ZERO, Duration::from_secs(1)).unwrap();
    assert_eq!(outcome, Terminated::AlreadyDead);
    assert!(child.0.try_wait().unwrap().is_none(), "the innocent process was hit");
}

#[test]
fn a_process_of_another_boot_is_never_signalled() {
    let mut child = sleeper();
    let identity = ProcessIdentity { boot_id: Uuid::from_u128(1), ..identity_of(&child) };
    assert_eq!(liveness(&identity), Liveness::Dead);
    let outcome = terminate(&identity, Duration::ZERO, Duration::from_secs(1)).unwrap();
    assert_eq!(outcome, Terminated::AlreadyDead);
    assert!(child.0.try_wait().unwrap().is_none(), "the innocent process was hit");
}

#[test]
fn a_process_of_another_pid_namespace_is_neither_judged_nor_signalled() {
    let mut child = sleeper();
    let identity = ProcessIdentity { pid_namespace: 1, ..identity_of(&child) };
    assert!(matches!(liveness(&identity), Liveness::Inconclusive(_)));
    let refused = terminate(&identity, Duration::ZERO, Duration::from_secs(1));
    assert!(matches!(refused, Err(TerminateError::Process(ProcessError::Inconclusive { .. }))));
    assert!(child.0.try_wait().unwrap().is_none(), "the unjudged process was hit");
}

#[test]
fn terminate_asks_first_and_kills_what_does_not_listen() {
    let (grace, wait) = (Duration::from_secs(60), Duration::from_secs(60));
    let polite = sleeper();
    let identity = identity_of(&polite);
    assert_eq!(terminate(&identity, grace, wait).unwrap(), Terminated::ByTerm);
    assert_eq!(terminate(&identity, grace, wait).unwrap(), Terminated::AlreadyDead);

    let deaf = deaf_to_term();
    let identity = identity_of(&deaf);
    let grace = Duration::from_millis(10);
    assert_eq!(terminate(&identity, grace, wait).unwrap(), Terminated::ByKill);
    assert_eq!(liveness(&identity), Liveness::Dead);
}

#[test]
fn a_scan_finds_the_process_by_program_and_socket() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("api.sock");
    let spawn = |name: &str, socket: &Path| {
        let argument = format!("unix:{},server=on", socket.display());
        // `sh -c 'read x' name ARG` waits for its input with ARG in its command line.
        Scoped(
            Command::new("/bin/sh")
                .arg0(format!("/opt/{name}"))
                .args(["-c", "read line", "x", &argument])
                .stdin(Stdio::piped())
                .spawn()
                .unwrap(),
        )
    };
    let wanted = spawn("some-vmm", &socket);
    let _other_program = spawn("another", &socket);
    let _other_vm = spawn("some-vmm", &directory.path().join("api.sock2"));
    assert_eq!(scan("some-vmm", &socket).unwrap(), vec![identity_of(&wanted)]);
    let gone = directory.path().join("nobody.sock");
    assert_eq!(scan("some-vmm", &gone).unwrap(), vec![]);
}

/// Judges a process after "a reboot": in a mount namespace in which the kernel has another boot id.
pub(crate) fn other_boot(arguments: &[&str]) {
    use nix::mount::{MsFlags, mount};
    use nix::sched::{CloneFlags, unshare};
    if let Err(error) = unshare(CloneFlags::CLONE_NEWNS) {
        return say(&format!("verdict skipped: {error}"));
    }
    let private = MsFlags::MS_PRIVATE | MsFlags::MS_REC;
    mount(None::<&str>, "/", None::<&str>, private, None::<&str>).unwrap();
    let path = boot::BOOT_ID_PATH;
    mount(Some(arguments[1]), path, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    judge(arguments);
}

/// Says what it takes a process for.
pub(crate) fn judge(arguments: &[&str]) {
    let identity: ProcessIdentity = serde_json::from_str(arguments[0]).unwrap();
    let outcome = terminate(&identity, Duration::ZERO, Duration::from_secs(60));
    say(&format!("verdict {:?}, terminate: {outcome:?}", liveness(&identity)));
}

/// Has a process in a new pid namespace judge another one outside of it.
pub(crate) fn enter_pid_namespace(arguments: &[&str]) {
    use nix::sched::{CloneFlags, unshare};
    if let Err(error) = unshare(CloneFlags::CLONE_NEWPID) {
        return say(&format!("verdict skipped: {error}"));
    }
    let mut inner = Role::start("judge", arguments);
    say(&format!("verdict {}", inner.await_line("verdict")));
}

/// What a role makes of a process, or `None` where it cannot be tried.
fn verdict(role: &str, arguments: &[&str]) -> Option<String> {
    let verdict = Role::start(role, arguments).await_line("verdict");
    if verdict.starts_with("skipped") {
        eprintln!("namespaces are not permitted here, so this was not tested: {verdict}");
        return None;
    }
    Some(verdict)
}

#[test]
fn after_a_reboot_the_old_pid_is_dead_and_not_signalled() {
    let mut child = sleeper();
    let directory = tempfile::tempdir().unwrap();
    let boot_id = directory.path().join("boot_id");
    std::fs::write(&boot_id, "00000000-0000-0000-0000-000000000007\n").unwrap();
    let identity = serde_json::to_string(&identity_of(&child)).unwrap();
    let arguments = [identity.as_str(), boot_id.to_str().unwrap()];
    let Some(verdict) = verdict("other-boot", &arguments) else { return };
    assert_eq!(verdict, "Dead, terminate: Ok(AlreadyDead)");
    assert!(child.0.try_wait().unwrap().is_none(), "a foreign process was hit");
}

#[test]
fn from_within_another_pid_namespace_nothing_is_judged_or_signalled() {
    let mut child = sleeper();
    let identity = serde_json::to_string(&identity_of(&child)).unwrap();
    let Some(verdict) = verdict("enter-pid-namespace", &[&identity]) else { return };
    assert!(verdict.starts_with("Inconclusive("), "{verdict}");
    assert!(verdict.contains("terminate: Err("), "{verdict}");
    assert!(child.0.try_wait().unwrap().is_none(), "an unjudged process was hit");
}

/// A proc tree on disk. Its pids are beyond the kernel's largest, so that no real process answers
/// for them.
struct FakeProc(tempfile::TempDir);

const FIRST: u32 = 5_000_000;

impl FakeProc {
    fn new() -> Self {
        let fake = Self(tempfile::tempdir().unwrap());
        let own = std::process::id().to_string();
        let root = fake.0.path();
        std::fs::create_dir_all(root.join(&own).join("ns")).unwrap();
        std::os::unix::fs::symlink(&own, root.join("self")).unwrap();
        std::os::unix::fs::symlink("pid:[77]", root.join("self/ns/pid")).unwrap();
        std::fs::create_dir_all(root.join("sys/kernel/random")).unwrap();
        let boot_id = Uuid::from_u128(7).to_string();
        std::fs::write(root.join("sys/kernel/random/boot_id"), boot_id).unwrap();
        fake.process(1, 'S', 0, b"/sbin/init\0");
        fake.process(std::process::id(), 'R', 0, b"test\0");
        fake
    }

    fn process(&self, pid: u32, state: char, flags: u32, command_line: &[u8]) -> PathBuf {
        let path = self.0.path().join(pid.to_string());
        std::fs::create_dir_all(&path).unwrap();
        let stat = format!("{pid} (x) {state} 1 1 1 0 -1 {flags} 0 0 0 0 0 0 0 0 20 0 1 0 99 0 0");
        std::fs::write(path.join("stat"), stat).unwrap();
        std::fs::write(path.join("cmdline"), command_line).unwrap();
        path
    }

    fn table(&self) -> ProcessTable {
        ProcessTable::at(self.0.path()).unwrap()
    }

    fn scan(&self) -> Result<Vec<ProcessIdentity>, Inconclusive> {
        self.table().scan("vmm", Path::new("/run/s"))
    }
}

#[test]
fn a_scan_passes_over_what_cannot_be_a_vmm() {
    let fake = FakeProc::new();
    fake.process(FIRST, 'S', 0x0020_0000, b"");
    fake.process(FIRST + 1, 'Z', 0, b"");
    std::fs::create_dir(fake.0.path().join((FIRST + 2).to_string())).unwrap();
    let wanted = fake.process(FIRST + 3, 'S', 0, b"/bin/vmm\0--api\0path=/run/s\0");
    let found = fake.scan().unwrap();
    let expected = ProcessIdentity {
        pid: FIRST + 3,
        start_time: 99,
        boot_id: Uuid::from_u128(7),
        pid_namespace: 77,
    };
    assert_eq!(found, vec![expected]);
    assert_eq!(fake.table().liveness(&expected), Liveness::Alive);
    std::fs::remove_dir_all(wanted).unwrap();
    assert_eq!(fake.scan().unwrap(), vec![]);
    assert_eq!(fake.table().liveness(&expected), Liveness::Dead);
}

#[test]
fn a_program_under_another_name_is_known_by_its_executable() {
    let fake = FakeProc::new();
    let path = fake.process(FIRST, 'S', 0, b"renamed\0/run/s\0");
    std::os::unix::fs::symlink("/opt/vmm (deleted)", path.join("exe")).unwrap();
    assert_eq!(fake.scan().unwrap().len(), 1);
}

#[test]
fn a_process_that_keeps_an_empty_command_line_makes_the_scan_inconclusive() {
    let fake = FakeProc::new();
    fake.process(FIRST, 'S', 0, b"");
    let error = fake.scan().unwrap_err();
    assert!(error.to_string().contains("5000000"), "{error}");
}

#[test]
fn a_process_that_is_executed_meanwhile_is_found() {
    let fake = FakeProc::new();
    let path = fake.process(FIRST, 'S', 0, b"");
    // The reader opens the command line, finds nothing, and has to come back: a FIFO makes the
    // first look wait until the writer has replaced it.
    let command_line = path.join("cmdline");
    std::fs::remove_file(&command_line).unwrap();
    nix::unistd::mkfifo(&command_line, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let writer = std::thread::spawn(move || {
        let fifo = std::fs::OpenOptions::new().write(true).open(&command_line).unwrap();
        std::fs::write(path.join("next"), b"vmm\0/run/s\0").unwrap();
        std::fs::rename(path.join("next"), &command_line).unwrap();
        drop(fifo);
    });
    assert_eq!(fake.scan().unwrap().len(), 1);
    writer.join().unwrap();
}

#[test]
fn an_unreadable_entry_of_a_live_process_makes_the_scan_inconclusive() {
    for entry in ["stat", "cmdline"] {
        let fake = FakeProc::new();
        let path = fake.process(FIRST, 'S', 0, b"other\0");
        // Root reads everything, but nobody reads a directory as a file.
        std::fs::remove_file(path.join(entry)).unwrap();
        std::fs::create_dir(path.join(entry)).unwrap();
        let error = fake.scan().unwrap_err();
        assert!(error.reason.contains(entry), "{error}");
    }
}

#[test]
fn a_malformed_entry_makes_the_scan_and_the_liveness_inconclusive() {
    let fake = FakeProc::new();
    let path = fake.process(FIRST, 'S', 0, b"vmm\0/run/s\0");
    let identity = fake.table().identify(FIRST).unwrap().unwrap();
    std::fs::write(path.join("stat"), "garbage").unwrap();
    assert!(fake.scan().is_err());
    assert!(matches!(fake.table().liveness(&identity), Liveness::Inconclusive(_)));
}

#[test]
fn a_proc_that_hides_processes_proves_nothing() {
    let fake = FakeProc::new();
    std::fs::remove_dir_all(fake.0.path().join("1")).unwrap();
    assert!(fake.scan().unwrap_err().reason.contains("hides"));

    // A real process that the tree does not show exists all the same.
    let child = sleeper();
    let identity =
        ProcessIdentity { boot_id: Uuid::from_u128(7), pid_namespace: 77, ..identity_of(&child) };
    assert!(matches!(fake.table().liveness(&identity), Liveness::Inconclusive(_)));
}

#[test]
fn a_proc_of_another_pid_namespace_is_refused() {
    let fake = FakeProc::new();
    std::fs::remove_file(fake.0.path().join("self")).unwrap();
    std::os::unix::fs::symlink("1", fake.0.path().join("self")).unwrap();
    assert!(matches!(ProcessTable::at(fake.0.path()), Err(ProcessError::ForeignProc { .. })));
}

#[test]
fn no_recorded_number_panics() {
    for pid in [0, 1, u32::MAX, 1 << 31] {
        let identity = ProcessIdentity { pid, start_time: u64::MAX, ..own_identity().unwrap() };
        assert_eq!(liveness(&identity), Liveness::Dead);
        assert!(ProcessHandle::open(&identity).unwrap().is_none());
    }
}
