//! Whether KVM on this host really runs a guest.
//!
//! That `/dev/kvm` opens, and that QEMU says `running`, prove nothing: there are kernels on which a guest then never
//! reaches user space. So `auto` means emulation until a Linux guest has said `GUEST-UP` under KVM here. The verdict
//! is remembered in a small file and holds for one boot, one kernel and one QEMU binary:
//!
//! ```json
//! {"format":1,"boot_id":"...","kernel":"6.1.0-57-cloud-amd64",
//!  "qemu":{"path":"/usr/bin/qemu-system-x86_64","size":1,"modified_ns":1},
//!  "qemu_version":"7.2.22","usable":false,"reason":"...","probed_at_us":1}
//! ```

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{Qemu, qmp::Qmp};
use crate::host::boot::{self, BootError};
use crate::host::serial::{self, Seen};
use crate::host::vmm::{
    Accelerator, Backend as _, Boot, CALL_TIMEOUT, DIRECT_CMDLINE, LaunchError, LaunchSpec,
    PathError, RuntimePaths,
};

/// How long a guest may take to reach user space under KVM before it is said that it does not.
pub const PROBE_LIMIT: Duration = Duration::from_secs(10);

/// What the quickstart guest writes to its console when user space runs.
pub const GUEST_UP: &[u8] = b"GUEST-UP";

const FORMAT: u32 = 1;

/// What the user asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum AcceleratorChoice {
    /// KVM if a guest was seen to reach user space under it on this host, emulation otherwise
    #[default]
    Auto,
    /// The hardware
    Kvm,
    /// Emulation
    Tcg,
}

/// What a verdict depends on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostIdentity {
    /// This boot.
    pub boot_id: String,
    /// The running kernel's release.
    pub kernel: String,
    /// The QEMU binary.
    pub qemu: BinaryIdentity,
}

/// A binary, so that an upgrade is noticed without running it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BinaryIdentity {
    /// Its path.
    pub path: PathBuf,
    /// Its size in bytes.
    pub size: u64,
    /// When it was last modified, in nanoseconds since 1970.
    pub modified_ns: i64,
}

/// What a probe found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvmVerdict {
    format: u32,
    #[serde(flatten)]
    host: HostIdentity,
    /// QEMU's version, as it said; empty if it was not reached.
    pub qemu_version: String,
    /// Whether a guest reached user space.
    pub usable: bool,
    /// Why, in words.
    pub reason: String,
    /// When, in microseconds since 1970.
    pub probed_at_us: u64,
}

/// A kernel and an initial RAM disk that write [`GUEST_UP`] to `ttyS0`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestImage {
    /// The kernel.
    pub kernel: PathBuf,
    /// The initial RAM disk.
    pub initrd: PathBuf,
}

/// Why a probe could not be made. A guest that does not come up is no error but a verdict.
#[derive(Debug, Error)]
pub enum ProbeError {
    /// QEMU is missing, or the guest image's paths are unusable.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The scratch directory is unusable.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The boot cannot be told.
    #[error(transparent)]
    Boot(#[from] BootError),
    /// The host refused something.
    #[error("cannot probe KVM: {what} failed: {source}")]
    Io {
        /// What was being done.
        what: String,
        /// What the kernel said.
        source: io::Error,
    },
}

fn io_error(what: &str, path: &Path) -> impl FnOnce(io::Error) -> ProbeError {
    let what = format!("{what} {}", path.display());
    move |source| ProbeError::Io { what, source }
}

impl HostIdentity {
    /// The host as it is now, with the QEMU at `qemu`.
    pub fn now(qemu: &Path) -> Result<Self, ProbeError> {
        let path = fs::canonicalize(qemu).map_err(io_error("finding", qemu))?;
        let meta = fs::metadata(&path).map_err(io_error("reading", &path))?;
        let release = Path::new("/proc/sys/kernel/osrelease");
        let kernel = fs::read_to_string(release).map_err(io_error("reading", release))?;
        let modified_ns =
            meta.mtime().saturating_mul(1_000_000_000).saturating_add(meta.mtime_nsec());
        Ok(Self {
            boot_id: boot::boot_id()?.to_string(),
            kernel: kernel.trim_end().to_owned(),
            qemu: BinaryIdentity { path, size: meta.len(), modified_ns },
        })
    }
}

impl KvmVerdict {
    fn new(host: HostIdentity, usable: bool, reason: String) -> Self {
        let probed_at_us = boot::wall_us();
        Self { format: FORMAT, host, qemu_version: String::new(), usable, reason, probed_at_us }
    }

    /// The verdict remembered at `path`; `None` if there is none that this version can read.
    #[must_use]
    pub fn remembered(path: &Path) -> Option<Self> {
        let verdict: Self = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
        (verdict.format == FORMAT).then_some(verdict)
    }

    /// Remembers the verdict at `path`, replacing an older one in one step.
    pub fn remember(&self, path: &Path) -> io::Result<()> {
        let mut partial = path.as_os_str().to_owned();
        partial.push(format!(".{}", std::process::id()));
        let partial = PathBuf::from(partial);
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&partial)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        fs::rename(&partial, path)
    }

    /// Whether the verdict is about this boot, kernel and QEMU.
    #[must_use]
    pub fn holds_for(&self, host: &HostIdentity) -> bool {
        self.host == *host
    }
}

/// The accelerator to use, and why in words.
#[must_use]
pub fn choose(
    choice: AcceleratorChoice,
    verdict: Option<&KvmVerdict>,
    host: &HostIdentity,
) -> (Accelerator, String) {
    match (choice, verdict) {
        (AcceleratorChoice::Kvm, _) => (Accelerator::Kvm, "KVM was asked for".to_owned()),
        (AcceleratorChoice::Tcg, _) => (Accelerator::Tcg, "emulation was asked for".to_owned()),
        (AcceleratorChoice::Auto, Some(verdict)) if verdict.holds_for(host) => {
            let accelerator = if verdict.usable { Accelerator::Kvm } else { Accelerator::Tcg };
            (accelerator, verdict.reason.clone())
        }
        (AcceleratorChoice::Auto, _) => {
            let reason = "no guest has reached user space under KVM here since this boot; `cocoon doctor --probe-kvm` tries";
            (Accelerator::Tcg, reason.to_owned())
        }
    }
}

/// Starts `guest` under KVM and waits until it says that user space runs, at most `limit`. `scratch` is an empty
/// directory for its sockets and logs; the VMM is gone when this returns.
pub fn probe_kvm(
    qemu: &Qemu,
    guest: &GuestImage,
    scratch: &Path,
    limit: Duration,
) -> Result<KvmVerdict, ProbeError> {
    let spec = probe_spec(guest, RuntimePaths::new(scratch, scratch)?);
    let command = qemu.command(&spec)?;
    let host = HostIdentity::now(&command.program)?;
    if let Err(error) = OpenOptions::new().read(true).write(true).open("/dev/kvm") {
        return Ok(KvmVerdict::new(host, false, format!("/dev/kvm cannot be opened: {error}")));
    }
    let log =
        fs::File::create(&spec.paths.vmm_log).map_err(io_error("creating", &spec.paths.vmm_log))?;
    let mut process = Command::new(&command.program);
    process.args(&command.args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    let mut child =
        KillOnDrop(spawn_bound(process).map_err(io_error("starting", &command.program))?);
    let deadline = Instant::now() + limit;
    let mut alive = || matches!(child.0.try_wait(), Ok(None));
    if let Err(failure) = qemu.wait_ready(&spec.paths, &mut alive, limit) {
        return Ok(KvmVerdict::new(host, false, failure.to_string()));
    }
    let qemu_version = version(&spec.paths).unwrap_or_default();
    if let Err(error) = qemu.boot(&spec.paths, CALL_TIMEOUT) {
        return Ok(KvmVerdict { qemu_version, ..KvmVerdict::new(host, false, error.to_string()) });
    }
    let seen = serial::wait_for(&spec.paths.console_log, GUEST_UP, &mut alive, deadline)
        .map_err(io_error("reading", &spec.paths.console_log))?;
    let (usable, reason) = match seen {
        Seen::Found => (true, "a guest reached user space under KVM".to_owned()),
        Seen::Gone => (false, format!("under KVM, {}", qemu.exit_reason(&spec.paths))),
        Seen::TimedOut => (
            false,
            format!("no guest reached user space under KVM within {} s", limit.as_secs_f32()),
        ),
    };
    Ok(KvmVerdict { qemu_version, ..KvmVerdict::new(host, usable, reason) })
}

fn version(paths: &RuntimePaths) -> Option<String> {
    let qmp = Qmp::connect(&paths.api_socket, Instant::now() + CALL_TIMEOUT).ok()?;
    Some(qmp.version().to_owned())
}

fn probe_spec(guest: &GuestImage, paths: RuntimePaths) -> LaunchSpec {
    LaunchSpec {
        vm_id: "kvm-probe".to_owned(),
        name: "kvm-probe".to_owned(),
        cpus: 1,
        memory_bytes: 256 << 20,
        boot: Boot::Direct {
            kernel: guest.kernel.clone(),
            initrd: Some(guest.initrd.clone()),
            cmdline: DIRECT_CMDLINE.to_owned(),
        },
        disks: Vec::new(),
        nics: Vec::new(),
        accelerator: Accelerator::Kvm,
        paths,
    }
}

/// Spawns a process that dies with this one.
fn spawn_bound(mut command: Command) -> io::Result<Child> {
    // SAFETY: the closure runs between fork and exec and makes one system call, which is async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)
                .map_err(io::Error::from)
        });
    }
    command.spawn()
}

struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        // A child that was not waited for keeps its pid, so this can hit nobody else.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> HostIdentity {
        HostIdentity::now(Path::new("/proc/self/exe")).unwrap()
    }

    #[test]
    fn a_verdict_is_remembered_for_one_host_as_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("kvm.json");
        assert_eq!(KvmVerdict::remembered(&file), None);
        let verdict = KvmVerdict::new(host(), true, "up".to_owned());
        verdict.remember(&file).unwrap();
        let remembered = KvmVerdict::remembered(&file).unwrap();
        assert_eq!(remembered, verdict);
        assert!(remembered.holds_for(&host()));
        let kernel = HostIdentity { kernel: "other".to_owned(), ..host() };
        let boot = HostIdentity { boot_id: "other".to_owned(), ..host() };
        let qemu = BinaryIdentity { modified_ns: 1, ..host().qemu };
        let upgraded = HostIdentity { qemu, ..host() };
        for other in [kernel, boot, upgraded] {
            assert!(!remembered.holds_for(&other), "{other:?}");
            assert_eq!(choose(AcceleratorChoice::Auto, Some(&verdict), &other).0, Accelerator::Tcg);
        }
        assert_eq!(choose(AcceleratorChoice::Auto, Some(&verdict), &host()).0, Accelerator::Kvm);
    }

    #[test]
    fn auto_is_emulation_until_kvm_is_proven_and_choices_are_kept() {
        let unusable = KvmVerdict::new(host(), false, "hangs".to_owned());
        assert_eq!(choose(AcceleratorChoice::Auto, None, &host()).0, Accelerator::Tcg);
        let (accelerator, reason) = choose(AcceleratorChoice::Auto, Some(&unusable), &host());
        assert_eq!((accelerator, reason.as_str()), (Accelerator::Tcg, "hangs"));
        assert_eq!(choose(AcceleratorChoice::Kvm, Some(&unusable), &host()).0, Accelerator::Kvm);
        assert_eq!(choose(AcceleratorChoice::Tcg, None, &host()).0, Accelerator::Tcg);
    }

    #[test]
    fn a_newer_or_broken_file_is_no_verdict() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("kvm.json");
        let newer =
            KvmVerdict { format: FORMAT + 1, ..KvmVerdict::new(host(), true, String::new()) };
        newer.remember(&file).unwrap();
        assert_eq!(KvmVerdict::remembered(&file), None);
        fs::write(&file, b"{\"format\":1").unwrap();
        assert_eq!(KvmVerdict::remembered(&file), None);
    }
}
