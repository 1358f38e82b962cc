//! `cocoon vm`.

use clap::Subcommand;

use super::{CliError, Global, later};

pub(super) mod batch;
mod birth;
mod console;
mod list;
mod logs;
mod power;
mod reconcile;
mod rm;
mod status;
mod wait;

pub(super) use list::COLUMNS;

#[derive(Debug, Subcommand)]
pub(super) enum VmCommand {
    /// Create a VM without starting it
    Create(birth::BirthArgs),
    /// Create a VM and start it; returns when the hypervisor reports it running
    Run(birth::BirthArgs),
    /// Start VMs; those that run already are fine
    Start(power::StartArgs),
    /// Stop VMs; those that are stopped already are fine
    Stop(power::StopArgs),
    /// List VMs
    #[command(visible_alias = "ls")]
    List(list::ListArgs),
    /// Show one VM as JSON
    Inspect(list::InspectArgs),
    /// Show the log of a VM's hypervisor, or its serial console
    Logs(logs::LogsArgs),
    /// Connect this terminal to a VM's serial console
    Console(console::ConsoleArgs),
    /// Show VMs as they are, and follow what happens to them
    Status(status::StatusArgs),
    /// Wait until a VM is in a state
    Wait(wait::WaitArgs),
    /// Remove VMs
    #[command(visible_alias = "delete")]
    Rm(rm::RmArgs),
    /// Clear away a VM whose creation died, and nothing else
    ReconcileStaleCreate(reconcile::ReconcileArgs),
    /// Clone a VM from a snapshot (not there yet)
    #[command(hide = true)]
    Clone(later::LaterArgs),
    /// Restore a VM to a snapshot (not there yet)
    #[command(hide = true)]
    Restore(later::LaterArgs),
    /// Save a VM and stop it (not there yet)
    #[command(hide = true)]
    Hibernate(later::LaterArgs),
    /// Run a command inside a VM (not there yet)
    #[command(hide = true)]
    Exec(later::LaterArgs),
    /// Give a VM fresh entropy (not there yet)
    #[command(hide = true)]
    Reseed(later::LaterArgs),
    /// Export a VM as an image (not there yet)
    #[command(hide = true)]
    Export(later::LaterArgs),
    /// Show the command line of a VM's hypervisor (not there yet)
    #[command(hide = true)]
    Debug(later::LaterArgs),
    /// Share directories with a VM (not there yet)
    #[command(hide = true)]
    Fs(later::LaterArgs),
    /// Pass devices to a VM (not there yet)
    #[command(hide = true)]
    Device(later::LaterArgs),
    /// Attach disks to a VM (not there yet)
    #[command(hide = true)]
    Disk(later::LaterArgs),
    /// Change the number of network cards of a VM (not there yet)
    #[command(hide = true)]
    Net(later::LaterArgs),
}

pub(super) fn run(command: VmCommand, global: Global) -> Result<(), CliError> {
    let later = |verb: &str, why: &str| Err(later::missing(&format!("vm {verb}"), why));
    let snapshots = "snapshots are not there yet";
    let agent = "the guest agent is not there yet";
    let devices = "devices cannot be attached yet";
    match command {
        VmCommand::Create(args) => birth::run(&args, false, global),
        VmCommand::Run(args) => birth::run(&args, true, global),
        VmCommand::Start(args) => power::start(&args, global),
        VmCommand::Stop(args) => power::stop(&args, global),
        VmCommand::List(args) => list::list(&args, global),
        VmCommand::Inspect(args) => list::inspect(&args, global),
        VmCommand::Logs(args) => logs::run(&args, global),
        VmCommand::Console(args) => console::run(&args, global),
        VmCommand::Status(args) => status::run(&args, global),
        VmCommand::Wait(args) => wait::run(&args, global),
        VmCommand::Rm(args) => rm::run(&args, global),
        VmCommand::ReconcileStaleCreate(args) => reconcile::run(&args, global),
        VmCommand::Clone(_) => later("clone", snapshots),
        VmCommand::Restore(_) => later("restore", snapshots),
        VmCommand::Hibernate(_) => later("hibernate", snapshots),
        VmCommand::Exec(_) => later("exec", agent),
        VmCommand::Reseed(_) => later("reseed", agent),
        VmCommand::Export(_) => later("export", snapshots),
        VmCommand::Debug(_) => {
            later("debug", "`cocoon vm logs` shows the command line of a VM that was started")
        }
        VmCommand::Fs(_) => later("fs", devices),
        VmCommand::Device(_) => later("device", devices),
        VmCommand::Disk(_) => later("disk", devices),
        VmCommand::Net(_) => later("net", "the number of network cards is fixed at creation yet"),
    }
}
