//! `cocoon daemon`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::args::duration;
use super::{CliError, Global};
use crate::daemon::{self, Options};

/// Name of the API socket in the run directory.
const SOCKET: &str = "cocoond.sock";
/// The interval that stands for "as usual".
const USUAL_INTERVAL: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
#[command(after_help = "\
The daemon is optional: every command works without it. It journals the death of a VM within milliseconds, finishes what
dead commands left, caps logs, and serves /healthz, /v1/vms, /v1/events and /metrics on its socket. It never starts a VM,
and VMs go on running when it stops.")]
pub(super) struct DaemonArgs {
    /// Time between looks at all VMs; 0 is 5s
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration)]
    reconcile_interval: Duration,
    /// Time between collections of what nobody owns; 0 is never
    #[arg(long, value_name = "DURATION", default_value = "0", value_parser = duration)]
    gc_interval: Duration,
    /// Socket of the API [default: RUN/cocoond.sock]
    #[arg(long, value_name = "PATH")]
    api_socket: Option<PathBuf>,
    /// Permissions of the socket, octal
    #[arg(long, value_name = "MODE", default_value = "0660", value_parser = mode)]
    api_socket_mode: u32,
    /// Serve no API
    #[arg(long, conflicts_with_all = ["api_socket", "api_socket_mode"])]
    no_api: bool,
}

pub(super) fn run(args: &DaemonArgs, global: Global) -> Result<(), CliError> {
    let settings = global.settings()?;
    let socket = args.api_socket.clone().unwrap_or_else(|| settings.run_dir.join(SOCKET));
    let socket = std::path::absolute(&socket).unwrap_or(socket);
    let interval = args.reconcile_interval;
    let options = Options {
        reconcile_interval: if interval.is_zero() { USUAL_INTERVAL } else { interval },
        gc_interval: Some(args.gc_interval).filter(|every| !every.is_zero()),
        api_socket: (!args.no_api).then_some(socket),
        api_socket_mode: args.api_socket_mode,
    };
    let engine = crate::engine::Engine::open(settings)?;
    Ok(daemon::run(engine, &options)?)
}

fn mode(text: &str) -> Result<u32, String> {
    let wrong = || format!("`{text}` is not a mode; write it in octal, as in 0660");
    let mode = u32::from_str_radix(text.trim_start_matches("0o"), 8).map_err(|_| wrong())?;
    if mode <= 0o777 { Ok(mode) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_octal() {
        assert_eq!(mode("0660"), Ok(0o660));
        assert_eq!(mode("600"), Ok(0o600));
        for bad in ["", "rw", "0888", "1777", "-1"] {
            assert!(mode(bad).is_err(), "{bad}");
        }
    }
}
