//! Locks among real processes, real kills and replaced files.

use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::*;
use crate::host::test_support::{Role, await_end, say};

/// Holds the ops lock of VM `a` until let go.
pub(crate) fn hold_ops(arguments: &[&str]) {
    let locks = Locks::open(Path::new(arguments[0])).unwrap();
    let _guard = locks.ops("a", &holder("vm clone"), None).unwrap();
    say("held");
    await_end();
}

fn holder(verb: &str) -> Holder {
    Holder::own(verb, Uuid::from_u128(5)).unwrap()
}

fn root() -> (tempfile::TempDir, Locks) {
    let root = tempfile::tempdir().unwrap();
    let locks = Locks::open(root.path()).unwrap();
    (root, locks)
}

fn soon() -> Option<Instant> {
    Some(Instant::now() + Duration::from_millis(30))
}

fn far() -> Option<Instant> {
    Some(Instant::now() + Duration::from_secs(60))
}

/// Waits until a lock is seen free. Where tests share one process, a child that another test forks
/// has copies of all descriptors until it executes its program.
pub(crate) fn await_free(observe: impl Fn() -> Result<Observed, LockError>) {
    let deadline = far().unwrap();
    while observe().unwrap() != Observed::Free {
        assert!(Instant::now() < deadline, "the lock is not let go");
        thread::yield_now();
    }
}

fn start_holder(root: &tempfile::TempDir) -> Role {
    let mut role = Role::start("hold-ops", &[root.path().to_str().unwrap()]);
    role.await_line("held");
    role
}

#[test]
fn a_held_lock_names_its_holder_and_excludes_others_of_the_same_process() {
    let (_root, locks) = root();
    assert_eq!(locks.observe_ops("a").unwrap(), Observed::NoFile);
    let guard = locks.ops("a", &holder("vm run"), None).unwrap();
    assert_eq!(guard.vm(), "a");
    let Observed::Held(Some(seen)) = locks.observe_ops("a").unwrap() else { panic!("not held") };
    assert_eq!((seen.verb.as_str(), seen.identity.pid), ("vm run", std::process::id()));
    let busy = locks.try_ops("a", &holder("vm rm")).unwrap().unwrap_err();
    assert_eq!(busy.holder, Some(Box::new(seen)));
    let error = locks.ops("a", &holder("vm rm"), soon()).unwrap_err();
    let message = error.to_string();
    for part in ["VM a", "`vm run`", &std::process::id().to_string(), "gave up after"] {
        assert!(message.contains(part), "{message} lacks {part}");
    }
    let _other = locks.try_ops("b", &holder("vm rm")).unwrap().unwrap();
    drop(guard);
    await_free(|| locks.observe_ops("a"));
    let _again = locks.try_ops("a", &holder("vm rm")).unwrap().unwrap();
}

#[test]
fn the_lock_of_a_killed_process_is_free() {
    let (root, locks) = root();
    let mut role = start_holder(&root);
    let busy = locks.try_ops("a", &holder("vm rm")).unwrap().unwrap_err();
    assert_eq!(busy.holder.as_ref().unwrap().identity.pid, role.child.id());
    assert!(busy.to_string().contains("`vm clone`"), "{busy}");
    // Not waited for: what counts is that it was killed, not that it is gone already.
    role.child.kill().unwrap();
    let _guard = locks.try_ops("a", &holder("vm rm")).unwrap().unwrap();
}

#[test]
fn a_waiter_gets_the_lock_at_the_death_of_its_holder() {
    let (root, locks) = root();
    let mut role = start_holder(&root);
    let waiter = thread::spawn(move || locks.ops("a", &holder("vm rm"), far()).map(drop));
    role.kill();
    waiter.join().unwrap().unwrap();
}

#[test]
fn a_stopped_holder_delays_nobody_beyond_the_deadline_and_is_named() {
    let (root, locks) = root();
    let mut role = start_holder(&root);
    let pid = Pid::from_raw(i32::try_from(role.child.id()).unwrap());
    kill(pid, Signal::SIGSTOP).unwrap();
    nix::sys::wait::waitpid(pid, Some(nix::sys::wait::WaitPidFlag::WUNTRACED)).unwrap();
    let message = locks.ops("a", &holder("vm rm"), soon()).unwrap_err().to_string();
    assert!(message.contains(&format!("kill -CONT {pid}")), "{message}");
    kill(pid, Signal::SIGCONT).unwrap();
    role.finish();
    let _guard = locks.ops("a", &holder("vm rm"), far()).unwrap();
}

#[test]
fn a_dead_holders_lock_is_waited_for_before_it_is_called_busy() {
    let (_root, locks) = root();
    let mut dead = holder("vm clone");
    dead.identity.boot_id = Uuid::from_u128(1);
    let guard = locks.ops("a", &dead, None).unwrap();
    let file = std::fs::metadata(locks.vm("a").unwrap().path).unwrap();
    let trying = locks.clone();
    let taker = thread::spawn(move || trying.try_ops("a", &holder("vm rm")).unwrap().map(drop));
    while !waits_for(&file) && !taker.is_finished() {
        thread::yield_now();
    }
    drop(guard);
    taker.join().unwrap().unwrap();

    let guard = locks.ops("a", &dead, None).unwrap();
    let busy = locks.try_ops("a", &holder("vm rm")).unwrap().unwrap_err();
    assert!(busy.to_string().contains("helper"), "{busy}");
    drop(guard);
}

#[test]
fn an_abandoned_waiter_keeps_nothing_and_serves_the_next_caller() {
    let (_root, locks) = root();
    let path = locks.vm("a").unwrap().path;
    let guard = locks.ops("a", &holder("vm run"), None).unwrap();
    for _ in 0..5 {
        locks.ops("a", &holder("vm rm"), soon()).unwrap_err();
        assert_eq!(wait::parked_for(&path), 1, "one thread waits, however often it is tried");
    }
    let waiting = locks.clone();
    let waiter = thread::spawn(move || waiting.ops("a", &holder("vm rm"), far()).map(drop));
    while wait::parked_for(&path) == 1 {
        thread::yield_now();
    }
    drop(guard);
    waiter.join().unwrap().unwrap();

    let guard = locks.ops("a", &holder("vm run"), None).unwrap();
    locks.ops("a", &holder("vm rm"), soon()).unwrap_err();
    drop(guard);
    while wait::parked_for(&path) == 1 {
        thread::yield_now();
    }
    let _guard = locks.ops("a", &holder("vm rm"), far()).unwrap();
}

#[test]
fn whoever_locked_a_replaced_file_starts_again() {
    let (_root, locks) = root();
    let path = locks.vm("a").unwrap().path;
    let guard = locks.ops("a", &holder("vm run"), None).unwrap();
    let waiting = locks.clone();
    let waiter = thread::spawn(move || waiting.ops("a", &holder("vm rm"), far()));
    // The waiter has the old file open once it waits for it.
    let old = std::fs::metadata(&path).unwrap();
    while !waits_for(&old) {
        thread::yield_now();
    }
    std::fs::remove_file(&path).unwrap();
    drop(guard);
    let guard = waiter.join().unwrap().unwrap();
    assert!(path.exists(), "the waiter holds a lock that nobody else can see");
    assert!(matches!(locks.observe_ops("a").unwrap(), Observed::Held(_)));
    drop(guard);
}

#[test]
fn a_waiter_left_at_a_replaced_file_serves_nobody_at_the_new_one() {
    let (_root, locks) = root();
    let path = locks.vm("a").unwrap().path;
    let old = locks.ops("a", &holder("vm run"), None).unwrap();
    locks.ops("a", &holder("vm rm"), soon()).unwrap_err();
    std::fs::remove_file(&path).unwrap();
    let new = locks.ops("a", &holder("vm run"), far()).unwrap();
    let waiter = thread::spawn(move || locks.ops("a", &holder("vm rm"), far()).map(drop));
    let file = std::fs::metadata(&path).unwrap();
    while !waits_for(&file) && !waiter.is_finished() {
        thread::yield_now();
    }
    drop(new);
    waiter.join().unwrap().unwrap();
    drop(old);
}

/// Whether some thread is blocked on the file, as the kernel lists it.
fn waits_for(file: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    let inode = format!(":{} ", file.ino());
    let locks = std::fs::read_to_string("/proc/locks").unwrap();
    locks.lines().any(|line| line.contains("-> FLOCK") && line.contains(&inode))
}

/// Counts one thread out, however it ends.
struct Leaving<'a>(&'a AtomicU32);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[test]
fn takers_and_sweepers_never_let_two_hold_one_lock() {
    let (_root, locks) = root();
    let inside = AtomicU32::new(0);
    let running = AtomicU32::new(3);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let _leaving = Leaving(&running);
                for _ in 0..300 {
                    let guard = locks.ops("a", &holder("vm run"), far()).unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two hold the lock");
                    inside.fetch_sub(1, Ordering::SeqCst);
                    drop(guard);
                }
            });
        }
        scope.spawn(|| {
            while running.load(Ordering::SeqCst) > 0 {
                locks.sweep(|_| false).unwrap();
            }
        });
    });
}

/// Takes and frees the ops lock of VM `a` for ever. Inside, a file stands for this process; those
/// of others must be left by dead ones.
pub(crate) fn contend(arguments: &[&str]) {
    let root = Path::new(arguments[0]);
    let locks = Locks::open(root).unwrap();
    let own = process::own_identity().unwrap();
    let ours = root.join("inside").join(serde_json::to_string(&own).unwrap());
    loop {
        say("round");
        let guard = locks.ops("a", &holder("vm run"), far()).unwrap();
        for entry in std::fs::read_dir(root.join("inside")).unwrap() {
            let entry = entry.unwrap();
            let other = serde_json::from_str(entry.file_name().to_str().unwrap()).unwrap();
            // The kernel frees the locks of a killed process just before it calls it dead.
            let gone = process::is_dying(&other) || process::liveness(&other) == Liveness::Dead;
            assert!(gone, "two hold the lock");
            std::fs::remove_file(entry.path()).unwrap();
        }
        std::fs::write(&ours, "").unwrap();
        std::fs::remove_file(&ours).unwrap();
        drop(guard);
    }
}

#[test]
fn killed_processes_and_a_sweeper_never_let_two_hold_one_lock() {
    let (root, locks) = root();
    std::fs::create_dir(root.path().join("inside")).unwrap();
    let start = || Role::start("contend", &[root.path().to_str().unwrap()]);
    let mut roles = [start(), start(), start()];
    let running = AtomicU32::new(1);
    thread::scope(|scope| {
        scope.spawn(|| {
            while running.load(Ordering::SeqCst) > 0 {
                locks.sweep(|_| false).unwrap();
            }
        });
        let _leaving = Leaving(&running);
        // A fixed sequence of pseudo-random numbers; when exactly a kill strikes is up to the
        // scheduler.
        let mut random = 0x2545_f491_4f6c_dd1d_u64;
        for _ in 0..40 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let role = &mut roles[usize::try_from(random % 3).unwrap()];
            for _ in 0..random % 50 {
                role.await_line("round");
            }
            assert_eq!(role.child.try_wait().unwrap(), None, "it failed by itself");
            role.kill();
            *role = start();
        }
    });
    for role in &mut roles {
        role.await_line("round");
        role.kill();
    }
    drop(locks.ops("a", &holder("vm rm"), far()).unwrap());
}

#[test]
fn a_sweep_removes_what_is_unknown_and_free_and_nothing_else() {
    let (_root, locks) = root();
    for vm in ["known", "gone", "busy"] {
        drop(locks.ops(vm, &holder("vm run"), None).unwrap());
    }
    drop(locks.vmm_for_launch("gone").unwrap());
    drop(locks.snapshot_exclusive("gone", &holder("snapshot save"), None).unwrap());
    std::fs::write(locks.directory.join("vm/notes.txt"), "not ours").unwrap();
    let guard = locks.ops("busy", &holder("vm run"), None).unwrap();
    await_free(|| locks.observe_ops("gone"));
    await_free(|| locks.observe_vmm("gone"));
    await_free(|| locks.observe_snapshot("gone"));
    let sweep = locks.sweep(|id| id == "known").unwrap();
    let path = |name: &str| locks.directory.join(name);
    let removed = ["vm/gone.lock", "vmm/gone.lock", "snapshot/gone.lease"].map(path);
    assert_eq!(sweep.removed, removed);
    assert_eq!(sweep.held, vec![path("vm/busy.lock")]);
    for kept in ["vm/known.lock", "vm/busy.lock", "vm/notes.txt"] {
        assert!(path(kept).exists(), "{kept}");
    }
    drop(guard);
}

#[test]
fn a_sweep_believes_only_what_it_is_told_under_the_lock() {
    let (_root, locks) = root();
    drop(locks.ops("a", &holder("vm run"), None).unwrap());
    await_free(|| locks.observe_ops("a"));
    let asked = std::cell::Cell::new(0);
    let becomes_known = |_: &str| {
        asked.set(asked.get() + 1);
        asked.get() > 1
    };
    assert_eq!(locks.sweep(becomes_known).unwrap(), Sweep::default());
    assert!(locks.vm("a").unwrap().path.exists());
}

#[test]
fn observers_create_nothing_and_disturb_nobody() {
    let (_root, locks) = root();
    for observed in [locks.observe_ops("a"), locks.observe_vmm("a"), locks.observe_snapshot("a")] {
        assert_eq!(observed.unwrap(), Observed::NoFile);
    }
    assert_eq!(std::fs::read_dir(locks.directory.join("vm")).unwrap().count(), 0);
    let lock = locks.vmm_for_launch("a").unwrap();
    assert_eq!(locks.observe_vmm("a").unwrap(), Observed::Held(None));
    assert!(matches!(locks.vmm_for_launch("a"), Err(LockError::VmmAlive { .. })));
    drop(lock);
    await_free(|| locks.observe_vmm("a"));
}

#[test]
fn readers_share_a_snapshot_and_keep_collectors_out() {
    let (_root, locks) = root();
    let first = locks.snapshot_shared("s", &holder("vm clone"), None).unwrap();
    let second = locks.snapshot_shared("s", &holder("vm clone"), soon()).unwrap();
    let busy = locks.try_snapshot_exclusive("s", &holder("gc")).unwrap().unwrap_err();
    assert_eq!(busy.holder.unwrap().verb, "vm clone");
    assert!(matches!(locks.observe_snapshot("s").unwrap(), Observed::Held(Some(_))));
    drop((first, second));
    await_free(|| locks.observe_snapshot("s"));
    let _build = locks.try_snapshot_exclusive("s", &holder("gc")).unwrap().unwrap();
    locks.snapshot_shared("s", &holder("vm clone"), soon()).unwrap_err();
}

#[test]
fn images_are_used_together_and_collected_alone() {
    let (_root, locks) = root();
    let user = locks.images_shared(&holder("vm create"), None).unwrap();
    drop(locks.images_shared(&holder("vm create"), soon()).unwrap());
    locks.images_exclusive(&holder("gc"), soon()).unwrap_err();
    drop(user);
    drop(locks.images_exclusive(&holder("gc"), far()).unwrap());
}

#[test]
fn there_is_one_daemon() {
    let (_root, locks) = root();
    let guard = locks.daemon(&holder("daemon")).unwrap().unwrap();
    let busy = locks.daemon(&holder("daemon")).unwrap().unwrap_err();
    assert!(busy.to_string().contains("the daemon's place is in use by `daemon`"), "{busy}");
    assert!(matches!(locks.observe_daemon().unwrap(), Observed::Held(Some(_))));
    drop(guard);
    let _guard = locks.daemon(&holder("daemon")).unwrap().unwrap();
}

#[test]
fn ids_that_lead_elsewhere_are_refused() {
    let (_root, locks) = root();
    let long = "x".repeat(129);
    for id in ["", "..", ".hidden", "a/b", "a\0b", "ü", long.as_str()] {
        assert!(matches!(locks.observe_ops(id), Err(LockError::BadId { .. })), "{id:?}");
    }
}

#[test]
fn garbage_in_a_lock_file_locks_nothing() {
    let (_root, locks) = root();
    let path = locks.vm("a").unwrap().path;
    std::fs::write(&path, [0xff, 0x00, b'{', b'\n']).unwrap();
    await_free(|| locks.observe_ops("a"));
    let _guard = locks.try_ops("a", &holder("vm rm")).unwrap().unwrap();
}

#[test]
fn lock_directories_of_others_and_links_are_refused() {
    let (root, locks) = root();
    std::fs::set_permissions(&locks.directory, PermissionsExt::from_mode(0o755)).unwrap();
    assert!(matches!(Locks::open(root.path()), Err(LockError::Insecure { .. })));
    std::fs::set_permissions(&locks.directory, PermissionsExt::from_mode(0o700)).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", locks.directory.join("vm/a.lock")).unwrap();
    assert!(matches!(locks.observe_ops("a"), Err(LockError::Io { .. })));
    assert!(locks.try_ops("a", &holder("vm rm")).is_err());
}

#[test]
fn locks_are_close_on_exec() {
    let (_root, locks) = root();
    let guard = locks.ops("a", &holder("vm run"), None).unwrap();
    let mut child =
        std::process::Command::new("/bin/sleep").arg("1000").spawn().expect("sleep is there");
    drop(guard);
    let taken = locks.ops("a", &holder("vm rm"), far());
    child.kill().unwrap();
    child.wait().unwrap();
    taken.map(drop).unwrap();
}
