//! Where tests find VMMs and guests.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

/// The fake VMM's binary. `COCOON_FAKE_VMM` names it; else it is beside the running test, and is built if it is
/// missing or older than its sources.
///
/// # Panics
///
/// If it cannot be built, which ends the test that needs it.
#[must_use]
pub fn fake_vmm() -> PathBuf {
    if let Some(path) = std::env::var_os("COCOON_FAKE_VMM") {
        return path.into();
    }
    let directory = target_directory();
    let binary = directory.join("cocoon-fake-vmm");
    if is_current(&binary) {
        return binary;
    }
    // Tests are processes of their own and may all come here at once.
    let lock = File::create(directory.join(".cocoon-fake-vmm.lock"))
        .and_then(|file| file.lock().map(|()| file));
    if !is_current(&binary) {
        build(&directory);
        touch(&binary);
    }
    drop(lock);
    binary
}

/// A real QEMU and a real guest, or the reason why a test of them is skipped. `COCOON_REQUIRE` with the word `qemu`
/// turns that reason into a failure.
///
/// # Panics
///
/// If they are required and not there.
pub fn real_qemu() -> Result<RealQemu, String> {
    let found = find_real_qemu();
    let required = std::env::var("COCOON_REQUIRE").unwrap_or_default();
    if let Err(reason) = &found {
        let words = required.split([',', ' ']).collect::<Vec<_>>();
        assert!(!words.contains(&"qemu"), "COCOON_REQUIRE asks for qemu: {reason}");
        eprintln!("skipped: {reason}");
    }
    found
}

/// A QEMU and what it can boot.
#[derive(Clone, Debug)]
pub struct RealQemu {
    /// The QEMU binary.
    pub binary: PathBuf,
    /// The quickstart guest's kernel.
    pub kernel: PathBuf,
    /// The quickstart guest's initial RAM disk.
    pub initrd: PathBuf,
}

fn find_real_qemu() -> Result<RealQemu, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let binary = std::env::split_paths(&path)
        .map(|directory| directory.join("qemu-system-x86_64"))
        .find(|binary| binary.is_file())
        .ok_or("qemu-system-x86_64 is not installed (Debian: qemu-system-x86)")?;
    let guest = guest_directory()?;
    let (kernel, initrd) = (guest.join("vmlinuz"), guest.join("initrd.img"));
    if !is_newer(&guest.join("VERSION"), &guest_sources()) {
        build_guest(&guest)?;
    }
    Ok(RealQemu { binary, kernel, initrd })
}

fn guest_directory() -> Result<PathBuf, String> {
    if let Some(directory) = std::env::var_os("COCOON_GUEST") {
        return Ok(directory.into());
    }
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let cache = cache.or_else(home).ok_or("neither XDG_CACHE_HOME nor HOME is set")?;
    Ok(cache.join("cocoon/guest"))
}

fn build_guest(directory: &Path) -> Result<(), String> {
    let io = |error: std::io::Error| format!("cannot build the guest: {error}");
    std::fs::create_dir_all(directory).map_err(io)?;
    let lock = File::create(directory.join(".lock")).map_err(io)?;
    lock.lock().map_err(io)?;
    if is_newer(&directory.join("VERSION"), &guest_sources()) {
        return Ok(());
    }
    let script = repository().join("scripts/guest-image");
    let output = Command::new(script).arg("--output").arg(directory).output().map_err(io)?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("there is no guest: {}", String::from_utf8_lossy(&output.stderr).trim_end()))
}

/// The recipe of the guest. Its script says by VERSION's time that it has looked at it.
fn guest_sources() -> Vec<PathBuf> {
    let scripts = repository().join("scripts");
    let mut sources = files_in(&scripts.join("guest-image.d"));
    sources.push(scripts.join("guest-image"));
    sources
}

fn repository() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here)
}

/// `target/debug` or its like: tests run from `deps/` below it, other binaries from itself.
fn target_directory() -> PathBuf {
    let running = std::env::current_exe().unwrap_or_default();
    let directory = running.parent().unwrap_or(Path::new(".")).to_owned();
    match directory.file_name() {
        Some(name) if name == "deps" => directory.parent().map(Path::to_owned).unwrap_or(directory),
        _ => directory,
    }
}

fn is_current(binary: &Path) -> bool {
    is_newer(binary, &files_in(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src")))
}

fn files_in(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
}

/// Whether `made` is there and no older than any of its `sources`.
fn is_newer(made: &Path, sources: &[PathBuf]) -> bool {
    let changed = |path: &Path| path.metadata().and_then(|meta| meta.modified()).ok();
    let newest = sources.iter().filter_map(|path| changed(path)).max();
    changed(made).is_some_and(|made| newest.is_none_or(|newest| newest <= made))
}

#[expect(clippy::panic, reason = "a test cannot go on without its VMM")]
fn build(directory: &Path) {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(repository()).args(["build", "--quiet", "--package", "cocoon-fake-vmm"]);
    if let Some(target) = directory.parent() {
        command.arg("--target-dir").arg(target);
    }
    if directory.file_name().is_some_and(|name| name == "release") {
        command.arg("--release");
    }
    match command.status() {
        Ok(status) if status.success() => {}
        outcome => panic!("cannot build cocoon-fake-vmm: {outcome:?}"),
    }
}

/// Cargo leaves a binary alone that is as it should be, however old; its time then says that it was looked at.
fn touch(binary: &Path) {
    if let Ok(file) = File::options().append(true).open(binary) {
        let _ = file.set_modified(SystemTime::now());
    }
}
