//! `cocoon vm create` and `cocoon vm run`.

use std::time::Duration;

use clap::Args;

use crate::cli::args::{Format, OutputArg, duration, size};
use crate::cli::vm_object::VmObject;
use crate::cli::{CliError, Global, output};
use crate::engine::Caller;
use crate::engine::birth::BirthRequest;

#[derive(Debug, Args)]
pub(in crate::cli) struct BirthArgs {
    /// Image, by name or id
    image: String,
    /// Name of the VM [default: cocoon-IMAGE]
    #[arg(long)]
    name: Option<String>,
    /// Virtual processors
    #[arg(long, default_value_t = 2, allow_negative_numbers = true)]
    cpu: u32,
    /// Memory, at least 64M
    #[arg(long, default_value = "1G", value_parser = size, allow_hyphen_values = true)]
    memory: u64,
    /// Size of the root disk, at least 16M
    #[arg(long, default_value = "10G", value_parser = size, allow_hyphen_values = true)]
    storage: u64,
    /// Network cards, 0 or 1 (user-mode)
    #[arg(long, default_value_t = 1, allow_negative_numbers = true)]
    nics: u8,
    /// Descriptors a network queue; only 0 yet, which leaves it to the hypervisor
    #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
    queue_size: u32,
    /// Descriptors a disk queue; only 0 yet, which leaves it to the hypervisor
    #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
    disk_queue_size: u32,
    /// Let disks go through the page cache of the host
    #[arg(long)]
    no_direct_io: bool,
    /// How long to wait for locks
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration, allow_hyphen_values = true)]
    timeout: Duration,
    #[command(flatten)]
    output: OutputArg,
    #[command(flatten)]
    later: Later,
}

/// Flags of the contract whose parts are not there yet: they parse, and are refused by name.
#[derive(Debug, Args)]
struct Later {
    #[arg(long, hide = true)]
    fc: bool,
    #[arg(long, hide = true)]
    pci: bool,
    #[arg(long, hide = true, value_name = "CONFLIST")]
    network: Option<String>,
    #[arg(long, hide = true, value_name = "DEVICE")]
    bridge: Option<String>,
    #[arg(long, hide = true)]
    user: Option<String>,
    #[arg(long, hide = true)]
    password: Option<String>,
    #[arg(long, hide = true)]
    windows: bool,
    #[arg(long, hide = true)]
    shared_memory: bool,
    #[arg(long, hide = true)]
    hugepages: bool,
    #[arg(long, hide = true)]
    mergeable: bool,
    #[arg(long, hide = true)]
    no_balloon: bool,
    #[arg(long, hide = true)]
    no_watchdog: bool,
    #[arg(long, hide = true, value_name = "SPEC")]
    data_disk: Vec<String>,
    #[arg(long, hide = true)]
    cpu_weight: Option<u64>,
    #[arg(long, hide = true)]
    cpu_quota_us: Option<u64>,
    #[arg(long, hide = true)]
    cpu_period_us: Option<u64>,
    #[arg(long, hide = true)]
    cpu_burst_us: Option<u64>,
    #[arg(long, hide = true)]
    cpuset_cpus: Option<String>,
}

impl Later {
    fn refuse(&self) -> Result<(), CliError> {
        let cgroup = "limits by cgroup are not there yet";
        let cloud_init = "guests are not configured by cloud-init yet";
        let given = [
            (self.fc, "--fc", "the Firecracker backend is not there yet"),
            (self.pci, "--pci", "the Firecracker backend is not there yet"),
            (
                self.network.is_some(),
                "--network",
                "CNI networks are not there yet; --nics gives user-mode networking",
            ),
            (
                self.bridge.is_some(),
                "--bridge",
                "TAP devices are not there yet; --nics gives user-mode networking",
            ),
            (self.user.is_some(), "--user", cloud_init),
            (self.password.is_some(), "--password", cloud_init),
            (self.windows, "--windows", "Windows guests are not there yet"),
            (self.shared_memory, "--shared-memory", "shared memory is not there yet"),
            (self.hugepages, "--hugepages", "huge pages are not there yet"),
            (self.mergeable, "--mergeable", "page merging is not there yet"),
            (!self.data_disk.is_empty(), "--data-disk", "data disks are not there yet"),
            (self.cpu_weight.is_some(), "--cpu-weight", cgroup),
            (self.cpu_quota_us.is_some(), "--cpu-quota-us", cgroup),
            (self.cpu_period_us.is_some(), "--cpu-period-us", cgroup),
            (self.cpu_burst_us.is_some(), "--cpu-burst-us", cgroup),
            (self.cpuset_cpus.is_some(), "--cpuset-cpus", cgroup),
        ];
        match given.iter().find(|(given, _, _)| *given) {
            Some((_, flag, why)) => Err(CliError::Failed(format!("{flag}: {why}"))),
            // A VM has no balloon and no watchdog yet: --no-balloon and --no-watchdog are true already.
            None => Ok(()),
        }
    }
}

pub(super) fn run(args: &BirthArgs, run: bool, global: Global) -> Result<(), CliError> {
    args.later.refuse()?;
    if args.queue_size != 0 || args.disk_queue_size != 0 {
        let why = "queues have the size that the hypervisor gives them yet";
        return Err(CliError::Failed(format!("--queue-size, --disk-queue-size: {why}")));
    }
    let request = BirthRequest {
        image: args.image.clone(),
        name: args.name.clone(),
        cpu: args.cpu,
        memory: args.memory,
        storage: args.storage,
        nics: args.nics,
        queue_size: args.queue_size,
        disk_queue_size: args.disk_queue_size,
        no_direct_io: args.no_direct_io,
    };
    let engine = global.engine()?;
    let caller = Caller::new(if run { "vm run" } else { "vm create" }, Some(args.timeout))?;
    let record = engine.create(&request, run, &caller)?;
    let vm = VmObject::now(&engine, &record)?;
    match args.output.format {
        Format::Json => output::json(&vm)?,
        Format::Table => {
            output::say(&format!(
                "VM created: {} (name: {}, state: {})",
                vm.id,
                vm.name(),
                vm.state
            ));
        }
    }
    crate::cli::tend(engine);
    Ok(())
}
