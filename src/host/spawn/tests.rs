//! Real children: what they inherit, what they outlive, and what they are told when they fail.

use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit};
use uuid::Uuid;

use super::*;
use crate::host::lock::tests::await_free;
use crate::host::lock::{Holder, Locks, Observed};
use crate::host::process::{
    self, Liveness, ProcessHandle, ProcessIdentity, Terminated, identify, terminate,
};
use crate::host::test_support::{Role, await_end, say};

const LONG: Duration = Duration::from_secs(60);

fn far() -> Option<Instant> {
    Some(Instant::now() + LONG)
}

fn holder() -> Holder {
    Holder::own("vm start", Uuid::from_u128(9)).unwrap()
}

fn command(root: &Path, program: &str, arguments: &[&str]) -> VmmCommand {
    VmmCommand {
        args: arguments.iter().map(Into::into).collect(),
        env: vec![("VMM".into(), "yes".into())],
        umask: 0o027,
        ..VmmCommand::new(program, root.join("vmm.log"))
    }
}

/// A VMM that is killed with its owner.
struct Scoped(ProcessIdentity);

impl Drop for Scoped {
    fn drop(&mut self) {
        let _ = terminate(&self.0, Duration::ZERO, LONG);
    }
}

fn scoped(pid: &str) -> Scoped {
    Scoped(identify(pid.parse().unwrap()).unwrap().unwrap())
}

fn root() -> (tempfile::TempDir, Locks) {
    let root = tempfile::tempdir().unwrap();
    let locks = Locks::open(root.path()).unwrap();
    (root, locks)
}

/// Makes its own state as unsuitable for a VMM as it can, starts one, and stays.
pub(crate) fn launch(arguments: &[&str]) {
    let root = Path::new(arguments[0]);
    let locks = Locks::open(root).unwrap();
    let _guard = locks.ops("a", &holder(), None).unwrap();
    let leaked = std::fs::File::open("/dev/zero").unwrap();
    rustix::io::fcntl_setfd(leaked.as_fd(), rustix::io::FdFlags::empty()).unwrap();
    nix::sys::signal::SigSet::all().thread_block().unwrap();
    // SAFETY: ignoring a signal installs no code.
    unsafe {
        use nix::sys::signal::{SigHandler, Signal, signal};
        signal(Signal::SIGHUP, SigHandler::SigIgn).unwrap();
    }
    let limit = Rlimit { current: Some(1 << 30), maximum: Some(1 << 40) };
    rustix::process::setrlimit(Resource::Fsize, limit).unwrap();
    std::fs::write("/proc/self/oom_score_adj", "500").unwrap();
    let lock = locks.vmm_for_launch("a").unwrap();
    let vmm = spawn_vmm(&command(root, "sleep", &["1000"]), lock).unwrap();
    say(&format!("pid {}", vmm.identity().pid));
    drop(vmm);
    await_end();
}

fn launched(root: &tempfile::TempDir) -> (Role, Scoped) {
    let mut role = Role::start("launch", &[root.path().to_str().unwrap()]);
    let vmm = scoped(&role.await_line("pid"));
    (role, vmm)
}

#[test]
fn a_vmm_outlives_its_killed_parent_and_holds_its_lock_and_no_other() {
    let (root, locks) = root();
    let (mut role, vmm) = launched(&root);
    assert!(matches!(locks.observe_ops("a").unwrap(), Observed::Held(Some(_))));
    role.kill();
    assert_eq!(process::liveness(&vmm.0), Liveness::Alive);
    drop(locks.ops("a", &holder(), far()).unwrap());
    assert_eq!(locks.observe_vmm("a").unwrap(), Observed::Held(None));
    terminate(&vmm.0, Duration::ZERO, LONG).unwrap();
    drop(locks.vmm_for_launch("a").unwrap());
}

#[test]
fn a_vmm_has_a_session_and_nothing_of_its_parents_but_the_vmm_lock() {
    let (root, _locks) = root();
    let (_role, vmm) = launched(&root);
    let proc = PathBuf::from(format!("/proc/{}", vmm.0.pid));
    let log = root.path().join("vmm.log");
    let mut expected =
        vec!["/dev/null".into(), root.path().join("locks/vmm/a.lock"), log.clone(), log.clone()];
    expected.sort();
    // At its start a program has the libraries open that it is linked to, for a moment.
    let deadline = far().unwrap();
    let mut open = open_files(&proc);
    while open != expected && Instant::now() < deadline {
        std::thread::yield_now();
        open = open_files(&proc);
    }
    assert_eq!(open, expected);

    assert_eq!(std::fs::read_link(proc.join("cwd")).unwrap(), Path::new("/"));
    let pid = nix::unistd::Pid::from_raw(i32::try_from(vmm.0.pid).unwrap());
    assert_eq!(nix::unistd::getsid(Some(pid)).unwrap(), pid);
    let status = std::fs::read_to_string(proc.join("status")).unwrap();
    for line in ["Umask:\t0027", "SigBlk:\t0000000000000000", "SigIgn:\t0000000000000000"] {
        assert!(status.contains(line), "{line} is not in {status}");
    }
    let limits = std::fs::read_to_string(proc.join("limits")).unwrap();
    let limit = |name| {
        let line = limits.lines().find(|line| line.starts_with(name)).unwrap();
        line[26..].split_whitespace().next().unwrap().to_owned()
    };
    assert_ne!(limit("Max file size"), (1_u64 << 30).to_string());
    assert_eq!(limit("Max core file size"), "0");
    let environment = std::fs::read(proc.join("environ")).unwrap();
    let names: Vec<&str> = std::str::from_utf8(&environment)
        .unwrap()
        .split_terminator('\0')
        .map(|variable| variable.split('=').next().unwrap())
        .collect();
    assert_eq!(names, ["PATH", "VMM"]);
    assert_eq!(std::fs::metadata(log).unwrap().permissions().mode() & 0o777, 0o600);
    let score = std::fs::read_to_string(proc.join("oom_score_adj")).unwrap();
    assert_eq!(score.trim(), "0");
}

/// What the descriptors of a process lead to; one that is closed meanwhile is passed over.
fn open_files(proc: &Path) -> Vec<PathBuf> {
    let descriptors = std::fs::read_dir(proc.join("fd")).unwrap();
    let mut open: Vec<PathBuf> =
        descriptors.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok()).collect();
    open.sort();
    open
}

#[test]
fn a_vmm_that_cannot_start_is_an_error_and_leaves_its_lock_free() {
    let (root, locks) = root();
    let plain = root.path().join("plain");
    std::fs::write(&plain, "not a program").unwrap();
    let launch = |command: &VmmCommand| {
        let error = spawn_vmm(command, locks.vmm_for_launch("a").unwrap()).unwrap_err();
        await_free(|| locks.observe_vmm("a"));
        error
    };
    let missing = launch(&command(root.path(), "/nonexistent/vmm", &[]));
    assert!(matches!(missing, SpawnError::NotFound { .. }), "{missing}");
    let unknown = launch(&command(root.path(), "no-such-vmm-program", &[]));
    assert!(matches!(unknown, SpawnError::NotFound { .. }), "{unknown}");
    let refused = launch(&command(root.path(), plain.to_str().unwrap(), &[]));
    assert!(matches!(refused, SpawnError::Start { .. }), "{refused}");
    let relative = launch(&command(root.path(), "./vmm", &[]));
    assert!(matches!(relative, SpawnError::RelativeProgram { .. }), "{relative}");
    let mut logless = command(root.path(), "sleep", &["1"]);
    logless.log_file = root.path().join("missing/vmm.log");
    assert!(matches!(launch(&logless), SpawnError::Log { .. }));
}

#[test]
fn output_is_appended_to_the_log_and_the_exit_is_known() {
    let (root, locks) = root();
    std::fs::write(root.path().join("vmm.log"), "before\n").unwrap();
    let script = "echo out; echo err >&2; exit 3";
    let lock = locks.vmm_for_launch("a").unwrap();
    let mut vmm = spawn_vmm(&command(root.path(), "/bin/sh", &["-c", script]), lock).unwrap();
    if let Some(handle) = ProcessHandle::open(vmm.identity()).unwrap() {
        assert!(handle.wait_exit(far()).unwrap());
    }
    assert_eq!(process::liveness(vmm.identity()), Liveness::Dead, "a zombie is dead");
    assert_eq!(vmm.exit_status().unwrap().unwrap().code(), Some(3));
    let log = std::fs::read_to_string(root.path().join("vmm.log")).unwrap();
    assert_eq!(log, "before\nout\nerr\n");
    drop(locks.vmm_for_launch("a").unwrap());
}

#[test]
fn a_vmm_lives_in_a_cgroup_of_its_own_or_says_why_not() {
    let (root, locks) = root();
    let slice = format!("cocoon-test-{}.slice", std::process::id());
    let scope = Scope::within(&slice, "a");
    let mut command = command(root.path(), "sleep", &["1000"]);
    command.scope = Some(scope.clone());
    let vmm = spawn_vmm(&command, locks.vmm_for_launch("a").unwrap()).unwrap();
    let alive = Scoped(*vmm.identity());
    let own = std::fs::read_to_string(format!("/proc/{}/cgroup", alive.0.pid)).unwrap();
    match vmm.placement() {
        Placement::Scope(path) => {
            assert!(own.contains(&format!("{slice}/vm-a.scope")), "{own}");
            assert!(matches!(scope.remove(), Err(ScopeError::Populated { .. })));
            let path = path.clone();
            drop((alive, vmm));
            scope.remove().unwrap();
            scope.remove().unwrap();
            assert!(!path.exists());
            std::fs::remove_dir(path.parent().unwrap()).unwrap();
        }
        Placement::Inherited(reason) => {
            assert!(!reason.is_empty());
            assert!(!own.contains(&slice));
        }
    }
}

#[test]
fn a_vmm_is_started_in_its_network_namespace() {
    let (root, locks) = root();
    let mut command = command(root.path(), "sleep", &["1000"]);
    command.network_namespace = Some(root.path().join("missing"));
    let error = spawn_vmm(&command, locks.vmm_for_launch("a").unwrap()).unwrap_err();
    assert!(matches!(error, SpawnError::Network { .. }), "{error}");
    command.network_namespace = Some(root.path().join("vmm.log"));
    let error = spawn_vmm(&command, locks.vmm_for_launch("a").unwrap()).unwrap_err();
    assert!(error.to_string().contains("enter its network namespace"), "{error}");

    let mut other = Role::start("unshare-network", &[]);
    let outcome = other.await_line("network");
    if outcome.starts_with("skipped") {
        eprintln!("namespaces are not permitted here, so this was not tested: {outcome}");
        return;
    }
    let (path, name) = outcome.split_once(' ').unwrap();
    command.network_namespace = Some(path.into());
    let vmm = spawn_vmm(&command, locks.vmm_for_launch("a").unwrap()).unwrap();
    let _scoped = Scoped(*vmm.identity());
    let link = format!("/proc/{}/ns/net", vmm.identity().pid);
    assert_eq!(std::fs::read_link(link).unwrap(), Path::new(name));
    assert_ne!(std::fs::read_link("/proc/self/ns/net").unwrap(), Path::new(name));
}

/// Moves to a network namespace of its own, names it and stays.
pub(crate) fn unshare_network(_: &[&str]) {
    // SAFETY: another thread of this process may go on in the old namespace.
    let unshared = unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) };
    match unshared {
        Ok(()) => {
            // Only this thread moved.
            let thread = rustix::thread::gettid().as_raw_nonzero();
            let path = format!("/proc/{}/task/{thread}/ns/net", std::process::id());
            say(&format!("network {path} {}", std::fs::read_link(&path).unwrap().display()));
            await_end();
        }
        Err(error) => say(&format!("network skipped: {error}")),
    }
}

#[test]
fn dropped_vmms_are_reaped_by_whoever_lives_on() {
    let (root, locks) = root();
    let spawn = |vm: &str| {
        let lock = locks.vmm_for_launch(vm).unwrap();
        spawn_vmm(&command(root.path(), "sleep", &["1000"]), lock).unwrap()
    };
    let first = spawn("a");
    let identity = *first.identity();
    drop(first);
    assert_eq!(terminate(&identity, LONG, LONG).unwrap(), Terminated::ByTerm);
    let second = spawn("b");
    let _scoped = Scoped(*second.identity());
    drop(second);
    assert!(!Path::new(&format!("/proc/{}", identity.pid)).exists(), "still a zombie");
}

/// Runs a helper under the ops lock: a shell script, with a directory as its argument.
pub(crate) fn run_helper(arguments: &[&str]) {
    let locks = Locks::open(Path::new(arguments[0])).unwrap();
    let guard = locks.ops("a", &holder(), None).unwrap();
    let helper = HelperCommand::new("/bin/sh")
        .args(["-c", arguments[1], "sh", arguments[0]])
        .holding(guard.inheritable_fd());
    helper.run(None).unwrap();
}

/// Opening a FIFO waits for its other end, so a script that writes its pid into one is awaited
/// without polling.
fn fifo_in(root: &tempfile::TempDir) -> PathBuf {
    let path = root.path().join("fifo");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    path
}

#[test]
fn a_helper_dies_with_its_parent_and_then_the_lock_is_free() {
    let (root, locks) = root();
    let fifo = fifo_in(&root);
    let script = "echo $$ > $1/fifo; exec sleep 1000";
    let mut role = Role::start("run-helper", &[root.path().to_str().unwrap(), script]);
    let helper = scoped(std::fs::read_to_string(fifo).unwrap().trim());
    let handle = ProcessHandle::open(&helper.0).unwrap().unwrap();
    role.kill();
    assert!(handle.wait_exit(far()).unwrap(), "the helper outlived its parent");
    drop(locks.ops("a", &holder(), far()).unwrap());
}

#[test]
fn the_lock_is_held_for_as_long_as_anything_of_a_helper_runs() {
    let (root, locks) = root();
    let fifo = fifo_in(&root);
    // The parent-death signal does not reach children of the helper.
    let script = "sleep 1000 & echo $! > $1/fifo; wait";
    let mut role = Role::start("run-helper", &[root.path().to_str().unwrap(), script]);
    let leftover = scoped(std::fs::read_to_string(fifo).unwrap().trim());
    role.kill();
    let Observed::Held(Some(dead)) = locks.observe_ops("a").unwrap() else { panic!("free") };
    assert_eq!(process::liveness(&dead.identity), Liveness::Dead);
    let busy = locks.try_ops("a", &holder()).unwrap().unwrap_err();
    assert!(busy.to_string().contains("a helper of it still runs"), "{busy}");
    drop(leftover);
    drop(locks.ops("a", &holder(), far()).unwrap());
}

#[test]
fn a_dropped_guard_leaves_the_lock_to_its_running_helper() {
    let (root, locks) = root();
    let fifo = fifo_in(&root);
    let guard = locks.ops("a", &holder(), None).unwrap();
    let path = fifo.clone();
    let helper = HelperCommand::new("/bin/sh")
        .args(["-c", "echo $$ > $0; read line < $0", path.to_str().unwrap()])
        .holding(guard.inheritable_fd());
    let running = std::thread::spawn(move || helper.run(far()));
    std::fs::read_to_string(&fifo).unwrap();
    drop(guard);
    assert_eq!(locks.observe_ops("a").unwrap(), Observed::Held(None));
    std::fs::write(&fifo, "end\n").unwrap();
    running.join().unwrap().unwrap();
    drop(locks.ops("a", &holder(), far()).unwrap());
}

fn shell(script: &str) -> HelperCommand {
    HelperCommand::new("/bin/sh").args(["-c", script])
}

#[test]
fn the_output_of_a_helper_is_returned() {
    let output = shell("echo $GREETING; pwd; echo careful >&2; cat")
        .env("GREETING", "hello")
        .current_dir("/usr")
        .run(far())
        .unwrap();
    assert_eq!(output.stdout, b"hello\n/usr\n");
    assert_eq!((output.stderr.as_str(), output.stdout_truncated), ("careful", false));
}

#[test]
fn a_helper_reads_all_of_its_input() {
    let input = vec![b'x'; 300_000];
    let output = shell("cat").input(input.clone()).run(far()).unwrap();
    assert!(output.stdout == input);
}

#[test]
fn a_failed_helper_is_quoted_with_its_last_lines() {
    let error = shell("seq 1 100 >&2; echo said; exit 4").run(far()).unwrap_err();
    let HelperError::Failed { status, stderr, stdout, .. } = &error else { panic!("{error}") };
    assert_eq!((status.code(), stdout.as_slice()), (Some(4), &b"said\n"[..]));
    assert_eq!(
        stderr.lines().collect::<Vec<_>>(),
        ["91", "92", "93", "94", "95", "96", "97", "98", "99", "100"]
    );
    let missing = HelperCommand::new("no-such-helper").run(None).unwrap_err();
    assert!(matches!(missing, HelperError::NotFound { .. }), "{missing}");
}

#[test]
fn a_helper_that_prints_without_end_is_cut_and_ended_at_its_deadline() {
    let output = shell("seq 1 100000").output_max(5).run(far()).unwrap();
    assert_eq!((output.stdout.as_slice(), output.stdout_truncated), (&b"1\n2\n3"[..], true));
    let deadline = Instant::now() + Duration::from_millis(50);
    let error = shell("yes & yes >&2").output_max(10).run(Some(deadline)).unwrap_err();
    let HelperError::TimedOut { stderr, .. } = &error else { panic!("{error}") };
    assert_eq!(stderr.lines().count(), 10);
}

#[test]
fn the_deadline_kills_the_children_of_a_helper_too() {
    let (root, _locks) = root();
    let fifo = fifo_in(&root);
    let script = format!("sleep 1000 & echo $! > {}; wait", fifo.display());
    let running = std::thread::spawn(move || {
        // The script gets as far as it needs to: it is killed only some time after it has reported.
        let (reported, deadline) = (fifo, Instant::now() + Duration::from_millis(300));
        let reader = std::thread::spawn(move || std::fs::read_to_string(reported).unwrap());
        let outcome = shell(&script).run(Some(deadline));
        (outcome, reader.join().unwrap())
    });
    let (outcome, pid) = running.join().unwrap();
    assert!(matches!(outcome, Err(HelperError::TimedOut { .. })));
    let pid = pid.trim().parse().unwrap();
    if let Some(identity) = identify(pid).unwrap()
        && let Some(handle) = ProcessHandle::open(&identity).unwrap()
    {
        assert!(handle.wait_exit(far()).unwrap(), "a child of the helper lives on");
    }
}

#[test]
fn what_a_helper_leaves_behind_does_not_delay_its_end() {
    let output = shell("sleep 1000 & echo $!").run(far()).unwrap();
    let leftover = scoped(std::str::from_utf8(&output.stdout).unwrap().trim());
    assert_eq!(process::liveness(&leftover.0), Liveness::Alive);
}
