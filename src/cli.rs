//! The command line: one file a noun.
//!
//! stdout is data, stderr is talk. Exit codes: 0 done or already so, 1 refused or failed, 2 wrong usage, 70 our bug; a
//! closed pipe is 0.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory as _, Parser, Subcommand};

use crate::engine::Engine;
use crate::host::process;
use crate::settings::{AcceleratorChoice, Given, Settings};

mod adopt;
mod args;
mod completion;
mod daemon;
mod doctor;
mod failure;
mod gc;
mod image;
mod journal;
mod later;
mod output;
mod replay;
mod vm;
pub mod vm_object;
mod waiting;

pub use failure::CliError;

/// Runs microVMs on this host and never loses track of one
#[derive(Debug, Parser)]
#[command(name = "cocoon", version, disable_help_subcommand = true, max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// Flags that every verb takes.
#[derive(Debug, Args)]
struct Global {
    /// Configuration file (TOML)
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "COCOON_CONFIG",
        hide_env_values = true,
        help_heading = "Global options"
    )]
    config: Option<PathBuf>,
    /// Where records, images and locks live [env: COCOON_ROOT_DIR]
    #[arg(long, global = true, value_name = "DIR", help_heading = "Global options")]
    root_dir: Option<PathBuf>,
    /// Where disks and sockets of VMs live [env: COCOON_RUN_DIR] [default: ROOT/run]
    #[arg(long, global = true, value_name = "DIR", help_heading = "Global options")]
    run_dir: Option<PathBuf>,
    /// Where logs of VMs live [env: COCOON_LOG_DIR]
    #[arg(long, global = true, value_name = "DIR", help_heading = "Global options")]
    log_dir: Option<PathBuf>,
    /// How much is told on stderr: error, warn, info, debug or trace [env: COCOON_LOG_LEVEL]
    #[arg(long, global = true, value_name = "LEVEL", help_heading = "Global options")]
    log_level: Option<String>,
    /// How instructions of guests are run [env: COCOON_ACCELERATOR]
    #[arg(long, global = true, value_name = "ACCEL", help_heading = "Global options")]
    accelerator: Option<AcceleratorChoice>,
    /// Accepted for compatibility; CNI networks are not there yet
    #[arg(long, global = true, value_name = "DIR", hide = true)]
    cni_conf_dir: Option<PathBuf>,
    /// Accepted for compatibility; CNI networks are not there yet
    #[arg(long, global = true, value_name = "DIR", hide = true)]
    cni_bin_dir: Option<PathBuf>,
    /// Accepted for compatibility; CNI networks are not there yet
    #[arg(long, global = true, value_name = "ADDRESSES", hide = true)]
    dns: Option<String>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Create, run, look at and remove VMs
    #[command(subcommand)]
    Vm(vm::VmCommand),
    /// Import, list and remove images
    #[command(subcommand, visible_alias = "images")]
    Image(image::ImageCommand),
    /// Finish what dead commands left, and collect what nobody owns
    Gc(gc::GcArgs),
    /// Look at a root that was restored, copied or moved, and confirm it with the VMs that are there
    Adopt(adopt::AdoptArgs),
    /// Supervise this root: journal deaths at once, finish what dead commands left, serve an API
    Daemon(daemon::DaemonArgs),
    /// Show what happened: who did what, who held what, who died, what was owed
    Replay(replay::ReplayArgs),
    /// Check, count, back up, restore, export and archive the journal
    #[command(subcommand)]
    Journal(journal::JournalCommand),
    /// Say what this host can do, what is missing, and the command that mends it
    Doctor(doctor::DoctorArgs),
    /// Print the version
    Version(VersionArgs),
    /// Print a completion script for a shell
    Completion(completion::CompletionArgs),
    /// Print manual pages into a directory
    #[command(hide = true)]
    Man(completion::ManArgs),
    /// Save, list and restore snapshots (not there yet)
    #[command(hide = true)]
    Snapshot(later::LaterArgs),
    /// Manage the store of the original cocoon (has no counterpart)
    #[command(hide = true)]
    Meta(later::LaterArgs),
}

#[derive(Debug, Args)]
struct VersionArgs {
    #[command(flatten)]
    output: args::OutputArg,
}

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    name_oversized_files();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return failure::usage(&error),
    };
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure::report(&error),
    }
}

/// A file that must not grow further (`ulimit -f`) gives an error that can be told, not a silent death. What is started
/// gets its signals back.
fn name_oversized_files() {
    use nix::sys::signal::{SigHandler, Signal, signal};
    // SAFETY: no handler of ours is involved.
    if let Err(error) = unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) } {
        tracing::debug!(%error, "SIGXFSZ keeps ending this process");
    }
}

fn run(cli: Cli) -> Result<(), CliError> {
    let global = cli.global;
    match cli.command {
        Command::Vm(command) => vm::run(command, global),
        Command::Image(command) => image::run(command, global),
        Command::Gc(args) => gc::run(&args, global),
        Command::Adopt(args) => adopt::run(&args, global),
        Command::Daemon(args) => daemon::run(&args, global),
        Command::Replay(args) => replay::run(&args, global),
        Command::Journal(command) => journal::run(command, global),
        Command::Doctor(args) => doctor::run(&args, global),
        Command::Version(args) => version(&args),
        Command::Completion(args) => completion::run(&args, Cli::command()),
        Command::Man(args) => completion::man(&args, Cli::command()),
        Command::Snapshot(_) => Err(later::missing("snapshot", "snapshots are not there yet")),
        Command::Meta(_) => Err(later::missing(
            "meta",
            "records live in a journal that needs no set-up; see `cocoon journal --help`",
        )),
    }
}

impl Global {
    /// The settings in force; unknown keys of the file are told.
    fn settings(self) -> Result<Settings, CliError> {
        let given = Given {
            root_dir: self.root_dir,
            run_dir: self.run_dir,
            log_dir: self.log_dir,
            log_level: self.log_level,
            accelerator: self.accelerator,
            ..Given::default()
        };
        let settings = Settings::load(given, self.config.as_deref())?;
        output::start_log(&settings.log_level)?;
        for key in &settings.unknown_keys {
            tracing::warn!("the configuration file has a key `{key}` that means nothing here");
        }
        Ok(settings)
    }

    /// The engine of the root that the settings name.
    fn engine(self) -> Result<Engine, CliError> {
        Ok(Engine::open(self.settings()?)?)
    }

    /// The same, for a verb that only reads, and whether the root is unconfirmed: there it works too, and says so.
    fn reading_engine(self) -> Result<(Engine, bool), CliError> {
        let engine = self.engine()?;
        let unconfirmed = engine.unconfirmed()?;
        if let Some(reason) = &unconfirmed {
            output::say(&format!(
                "Warning: this root is unconfirmed: {reason}; what is shown may be older than what is there, and nothing is changed before `cocoon adopt`"
            ));
        }
        Ok((engine, unconfirmed.is_some()))
    }
}

/// Writes what is derived from the journal, once the answer is out: nobody waits for it, so it makes nobody wait.
/// The process ends next.
fn tend(engine: Engine) {
    if engine.ledger().owes_tending() {
        engine.ledger().tend(process::step_back);
    }
    // The kernel takes the folded state back faster than we could, piece by piece.
    std::mem::forget(engine);
}

fn version(args: &VersionArgs) -> Result<(), CliError> {
    let version = env!("CARGO_PKG_VERSION");
    match args.output.format {
        args::Format::Json => output::json(&serde_json::json!({ "version": version })),
        args::Format::Table => output::line(&format!("cocoon {version}")),
    }
}

/// The whole command line, for the generated reference.
#[must_use]
pub fn command() -> clap::Command {
    Cli::command()
}
