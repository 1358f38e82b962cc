//! `cocoon doctor`: what this host can do, what is missing, and the command that mends it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::args::{Format, OutputArg};
use super::{CliError, Global, output};
use crate::engine::Engine;
use crate::host::lock::Observed;
use crate::host::process;
use crate::host::qemu::probe::{self, GuestImage};
use crate::host::spawn::Scope;
use crate::host::vmm::{Accelerator, find_executable};
use crate::settings::Settings;

/// How long a guest may take to reach user space under KVM.
const PROBE_LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    /// Boot a guest under KVM, and remember whether it reached user space
    #[arg(long)]
    probe_kvm: bool,
    /// Kernel for the probe [default: that of the quickstart guest]
    #[arg(long, value_name = "FILE", requires = "probe_kvm")]
    kernel: Option<PathBuf>,
    /// Initrd for the probe; it prints GUEST-UP on the first serial port
    #[arg(long, value_name = "FILE", requires = "probe_kvm")]
    initrd: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArg,
}

/// How a check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Ok,
    /// Something is slower or less safe than it could be.
    Note,
    /// VMs cannot run.
    Missing,
}

impl Verdict {
    fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Missing => "MISSING",
        }
    }
}

/// One thing that was looked at.
#[derive(Debug, Serialize)]
struct Check {
    name: &'static str,
    verdict: Verdict,
    detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    mend: Option<String>,
}

impl Check {
    fn new(name: &'static str, verdict: Verdict, detail: impl Into<String>) -> Self {
        Self { name, verdict, detail: detail.into(), mend: None }
    }

    fn mend(mut self, command: impl Into<String>) -> Self {
        self.mend = Some(command.into());
        self
    }
}

pub(super) fn run(args: &DoctorArgs, global: Global) -> Result<(), CliError> {
    let settings = global.settings()?;
    let mut checks = vec![hypervisor(&settings), image_tool(), processes(), scope()];
    match Engine::open(settings) {
        Ok(engine) => {
            if args.probe_kvm {
                probe_kvm(&engine, args)?;
            }
            checks.push(accelerator(&engine));
            checks.push(root(&engine));
            checks.push(daemon(&engine));
        }
        Err(error) => checks.push(Check::new("root", Verdict::Missing, error.to_string())),
    }
    match args.output.format {
        Format::Json => output::json(&checks)?,
        Format::Table => print(&checks)?,
    }
    let missing = checks.iter().filter(|check| check.verdict == Verdict::Missing).count();
    match missing {
        0 => Ok(()),
        failed => Err(CliError::Batch { failed, all: checks.len() }),
    }
}

fn print(checks: &[Check]) -> Result<(), CliError> {
    let row = |check: &Check| {
        vec![check.name.to_owned(), check.verdict.as_str().to_owned(), check.detail.clone()]
    };
    output::table(&["CHECK", "RESULT", "DETAIL"], checks.iter().map(row).collect())?;
    for check in checks {
        if let Some(mend) = &check.mend {
            output::line(&format!("\nTo mend `{}`:\n  {mend}", check.name))?;
        }
    }
    Ok(())
}

fn hypervisor(settings: &Settings) -> Check {
    let name = &settings.qemu_binary;
    match find_executable(name) {
        Some(path) => Check::new("hypervisor", Verdict::Ok, path.display().to_string()),
        None => {
            Check::new("hypervisor", Verdict::Missing, format!("{} is not here", name.display()))
                .mend("apt-get install qemu-system-x86")
        }
    }
}

fn image_tool() -> Check {
    match find_executable(Path::new("qemu-img")) {
        Some(path) => Check::new("image tool", Verdict::Ok, path.display().to_string()),
        None => Check::new("image tool", Verdict::Missing, "qemu-img is not here")
            .mend("apt-get install qemu-utils"),
    }
}

/// Whether a look at the processes can be trusted.
fn processes() -> Check {
    match process::scan("cocoon-doctor", Path::new("/nonexistent/cocoon-doctor.sock")) {
        Ok(_) => Check::new("processes", Verdict::Ok, "all processes of this host can be seen"),
        Err(inconclusive) => Check::new("processes", Verdict::Note, inconclusive.to_string())
            .mend("run as root, or mount /proc without hidepid"),
    }
}

/// Whether VMMs get a control group of their own.
fn scope() -> Check {
    match Scope::of_vm("doctor").is_possible() {
        Ok(()) => Check::new("control groups", Verdict::Ok, "each VMM gets a scope of its own"),
        Err(reason) => Check::new(
            "control groups",
            Verdict::Note,
            format!(
                "VMMs share the control group of the command that starts them, and die with it: {reason}"
            ),
        ),
    }
}

fn accelerator(engine: &Engine) -> Check {
    let (accelerator, reason) = engine.choose_accelerator();
    match accelerator {
        Accelerator::Kvm => Check::new("accelerator", Verdict::Ok, format!("KVM: {reason}")),
        Accelerator::Tcg => {
            Check::new("accelerator", Verdict::Note, format!("emulation: {reason}"))
        }
    }
}

fn root(engine: &Engine) -> Check {
    let dir = &engine.settings().root_dir;
    let free = nix::sys::statvfs::statvfs(dir.as_path())
        .map(|stat| stat.blocks_available().saturating_mul(stat.fragment_size()));
    let seq = engine.ledger().refresh().map(cocoon_model::state::State::applied);
    match (seq, free) {
        (Err(error), _) => Check::new("root", Verdict::Missing, error.to_string()),
        (Ok(_), Err(errno)) => {
            Check::new("root", Verdict::Missing, format!("{}: {errno}", dir.display()))
        }
        (Ok(seq), Ok(free)) => Check::new(
            "root",
            Verdict::Ok,
            format!("{}, {seq} events, {} free", dir.display(), super::vm_object::human_size(free)),
        ),
    }
}

fn daemon(engine: &Engine) -> Check {
    match engine.locks().observe_daemon() {
        Ok(Observed::Held(Some(holder))) => {
            Check::new("daemon", Verdict::Ok, format!("runs: {holder}"))
        }
        Ok(Observed::Held(None)) => Check::new("daemon", Verdict::Ok, "runs"),
        Ok(Observed::Free | Observed::NoFile) => Check::new(
            "daemon",
            Verdict::Note,
            "none; every verb works without, but a VMM that dies is noticed only when someone looks",
        )
        .mend("cocoon daemon"),
        Err(error) => Check::new("daemon", Verdict::Note, error.to_string()),
    }
}

fn guest(args: &DoctorArgs) -> Result<GuestImage, CliError> {
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))
        .map(|cache| cache.join("cocoon").join("guest"));
    let file = |given: &Option<PathBuf>, name: &str| {
        given.clone().or_else(|| Some(cache.as_ref()?.join(name))).filter(|path| path.is_file())
    };
    match (file(&args.kernel, "vmlinuz"), file(&args.initrd, "initrd.img")) {
        (Some(kernel), Some(initrd)) => Ok(GuestImage { kernel, initrd }),
        _ => Err(CliError::Failed(
            "there is no guest to probe with; build one with `scripts/guest-image`, or name --kernel and --initrd".to_owned(),
        )),
    }
}

fn probe_kvm(engine: &Engine, args: &DoctorArgs) -> Result<(), CliError> {
    let failed = |error: String| CliError::Failed(format!("KVM cannot be probed: {error}"));
    let guest = guest(args)?;
    let scratch = std::env::temp_dir().join(format!("cocoon-probe-{}", std::process::id()));
    std::fs::create_dir(&scratch).map_err(|error| failed(error.to_string()))?;
    output::say("Booting a guest under KVM; this takes at most 10 s.");
    let qemu = crate::host::qemu::Qemu::new(engine.settings().qemu_binary.clone());
    let verdict = probe::probe_kvm(&qemu, &guest, &scratch, PROBE_LIMIT);
    // A scratch directory that stays is only untidy.
    let _ = std::fs::remove_dir_all(&scratch);
    let verdict = verdict.map_err(|error| failed(error.to_string()))?;
    output::say(&verdict.reason);
    verdict.remember(&engine.kvm_verdict_path()).map_err(|error| failed(error.to_string()))
}
