//! Single verbs, as whole processes.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use cocoon_model::id::ID_LEN;

use crate::fleet::Fleet;
use crate::process::{Cost, measure};
use crate::table::{head, median, ms, quantile, ratio, row};
use crate::{Outcome, peer};

/// The programs that are measured.
#[derive(Debug, Args)]
struct Programs {
    /// The `cocoon` binary, a release build
    #[arg(long, default_value = "target/release/cocoon")]
    cocoon: PathBuf,
    /// The fake VMM
    #[arg(long, default_value = "target/release/cocoon-fake-vmm")]
    vmm: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    programs: Programs,
    /// Running VMs
    #[arg(long, default_value_t = 1000)]
    vms: usize,
    /// Runs
    #[arg(long, default_value_t = 21)]
    runs: usize,
}

#[derive(Debug, Args)]
pub(crate) struct ReconcileArgs {
    #[command(flatten)]
    programs: Programs,
    /// Running VMs
    #[arg(long, default_value_t = 1000)]
    vms: usize,
    /// Runs
    #[arg(long, default_value_t = 21)]
    runs: usize,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    programs: Programs,
    /// Directory with the guest image
    #[arg(long)]
    guest: PathBuf,
    /// Runs
    #[arg(long, default_value_t = 20)]
    runs: usize,
}

fn empty() -> Outcome<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["worker", "empty", "/"]);
    Ok(command)
}

fn print(rows: &[(&str, &[Cost])]) {
    head(&["what", "wall ms (median)", "wall ms (p99)", "CPU ms (median)"]);
    for (what, costs) in rows {
        let walls: Vec<Duration> = costs.iter().map(|cost| cost.wall).collect();
        let cpus: Vec<Duration> = costs.iter().map(|cost| cost.cpu).collect();
        row(&[
            (*what).to_owned(),
            ms(median(&walls)),
            ms(quantile(&walls, 0.99)),
            ms(median(&cpus)),
        ]);
    }
}

pub(crate) fn list(args: &ListArgs) -> Outcome {
    let fleet = Fleet::start(&args.programs.cocoon, &args.programs.vmm, args.vms)?;
    let (mut lists, mut versions, mut empties) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..args.runs {
        lists.push(measure(fleet.command().args(["vm", "list", "-o", "json"]))?);
        versions.push(measure(fleet.command().arg("version"))?);
        empties.push(measure(&mut empty()?)?);
    }
    println!("vm list -o json over {} running VMs, {} runs\n", args.vms, args.runs);
    print(&[("vm list", &lists), ("version", &versions), ("empty process", &empties)]);
    Ok(())
}

/// Leaves a placeholder: a creation that hangs in its disk tool, killed.
fn placeholder(fleet: &Fleet, name: &str) -> Outcome {
    let disk = fleet.dir().join("disk.raw");
    let tools = fleet.dir().join("tools");
    if !disk.exists() {
        std::fs::write(&disk, vec![0; 1 << 20])?;
        fleet.cocoon(&["image", "import", "disk", &disk.to_string_lossy()])?;
        std::fs::create_dir(&tools)?;
        let tool = tools.join("qemu-img");
        std::fs::write(&tool, "#!/bin/sh\nexec sleep 1000\n")?;
        std::fs::set_permissions(&tool, PermissionsExt::from_mode(0o755))?;
    }
    let small = ["--nics", "0", "--cpu", "1", "--storage", "16M", "--memory", "64M"];
    let mut child = fleet
        .command()
        .env("PATH", format!("{}:/usr/bin:/bin", tools.display()))
        .args(["vm", "create", "--name", name])
        .args(small)
        .arg("disk")
        .stderr(Stdio::null())
        .spawn()?;
    let began = Instant::now();
    while !fleet.command().args(["vm", "inspect", name]).output()?.status.success() {
        if began.elapsed() > Duration::from_secs(30) {
            return Err(format!("{name} was never reserved").into());
        }
    }
    child.kill()?;
    child.wait()?;
    Ok(())
}

pub(crate) fn reconcile(args: &ReconcileArgs) -> Outcome {
    let fleet = Fleet::start(&args.programs.cocoon, &args.programs.vmm, args.vms)?;
    peer::create(&fleet.dir().join("peer.db"), args.vms)?;
    let mut sqlite = Command::new(std::env::current_exe()?);
    sqlite.args(["worker", "sqlite-reclaim"]).arg(fleet.dir());
    let (mut ours, mut theirs, mut empties) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..args.runs {
        let name = format!("placeholder{number}");
        placeholder(&fleet, &name)?;
        ours.push(measure(fleet.command().args([
            "vm",
            "reconcile-stale-create",
            &name,
            "-o",
            "json",
        ]))?);
        theirs.push(measure(&mut sqlite)?);
        empties.push(measure(&mut empty()?)?);
        if fleet.command().args(["vm", "inspect", &name]).output()?.status.success() {
            return Err(format!("{name} is still there; is this a build with crash-points?").into());
        }
    }
    println!("vm reconcile-stale-create with {} VMMs alive, {} runs\n", args.vms, args.runs);
    print(&[
        ("reconcile-stale-create", &ours),
        ("SQLite, as many commits", &theirs),
        ("empty process", &empties),
    ]);
    let walls = |costs: &[Cost]| median(&costs.iter().map(|cost| cost.wall).collect::<Vec<_>>());
    println!("\n{}x of SQLite", ratio(walls(&ours), walls(&theirs)));
    Ok(())
}

pub(crate) fn run(args: &RunArgs) -> Outcome {
    let root = tempfile::Builder::new().prefix("cb").tempdir_in("/tmp")?;
    let (kernel, initrd) = (args.guest.join("vmlinuz"), args.guest.join("initrd.img"));
    let cocoon = |arguments: &[&str]| -> Outcome<String> {
        let output = Command::new(&args.programs.cocoon)
            .env("COCOON_ROOT_DIR", root.path().join("r"))
            .args(arguments)
            .output()?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let text = |path: &PathBuf| path.to_string_lossy().into_owned();
    cocoon(&["image", "import", "guest", "--kernel", &text(&kernel), "--initrd", &text(&initrd)])?;
    let (mut ours, mut by_hand, mut shares) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..args.runs {
        let began = Instant::now();
        cocoon(&[
            "vm",
            "run",
            "--cpu",
            "1",
            "--memory",
            "256M",
            "--storage",
            "1G",
            "--name",
            "bench",
            "guest",
        ])?;
        let returned = began.elapsed();
        cocoon(&["vm", "logs", "bench", "--console", "--until", "GUEST-UP", "--timeout", "60s"])?;
        ours.push(began.elapsed());
        shares.push(returned);
        let line = command_line(root.path())?;
        cocoon(&["vm", "rm", "--force", "bench"])?;
        by_hand.push(boot_by_hand(&line, root.path())?);
    }
    println!("vm run until GUEST-UP, {} runs in turn\n", args.runs);
    head(&["what", "ms (median)"]);
    row(&["vm run until the guest is up".into(), ms(median(&ours))]);
    row(&["the same QEMU by hand".into(), ms(median(&by_hand))]);
    row(&["vm run until it returns".into(), ms(median(&shares))]);
    let differences: Vec<f64> = ours
        .iter()
        .zip(&by_hand)
        .map(|(ours, theirs)| ours.as_secs_f64() - theirs.as_secs_f64())
        .collect();
    let mut sorted = differences;
    sorted.sort_by(f64::total_cmp);
    println!(
        "\npaired difference: median {:.1} ms",
        sorted.get(sorted.len() / 2).copied().unwrap_or_default() * 1e3
    );
    Ok(())
}

/// The command line of the one VMM of a root, from its process.
fn command_line(root: &std::path::Path) -> Outcome<Vec<String>> {
    let needle = root.to_string_lossy().into_owned();
    for entry in std::fs::read_dir("/proc")? {
        let Ok(line) = std::fs::read(entry?.path().join("cmdline")) else { continue };
        let arguments: Vec<String> = line
            .split(|byte| *byte == 0)
            .filter(|argument| !argument.is_empty())
            .map(|argument| String::from_utf8_lossy(argument).into_owned())
            .collect();
        let is_vmm = arguments.first().is_some_and(|program| program.contains("qemu-system"));
        if is_vmm && arguments.iter().any(|argument| argument.contains(&needle)) {
            return Ok(arguments);
        }
    }
    Err("the VMM is not to be seen".into())
}

/// Boots the same QEMU without cocoon: same arguments, its files in a directory of its own, not held at its start.
fn boot_by_hand(line: &[String], root: &std::path::Path) -> Outcome<Duration> {
    let dir = root.join("hand");
    let disk = dir.join("cow.raw");
    std::fs::create_dir_all(&dir)?;
    std::fs::File::create(&disk)?.set_len(1 << 30)?;
    let (program, arguments) = line.split_first().ok_or("an empty command line")?;
    let moved = |argument: &String| {
        // `<root>/r/run/qemu/<id>` and `<root>/r/log/qemu/<id>`: 26 characters of id.
        ["run", "log"].iter().fold(argument.clone(), |argument, kind| {
            let parent = root.join("r").join(kind).join("qemu").to_string_lossy().into_owned();
            match argument.split_once(&parent) {
                Some((_, rest)) if rest.len() > ID_LEN => {
                    let vm = format!("{parent}{}", &rest[..=ID_LEN]);
                    argument.replace(&vm, &dir.to_string_lossy())
                }
                _ => argument,
            }
        })
    };
    let arguments: Vec<String> =
        arguments.iter().filter(|argument| *argument != "-S").map(moved).collect();
    let log = dir.join("console.log");
    // The log of the run before would end the wait at once.
    let _ = std::fs::remove_file(&log);
    let began = Instant::now();
    let mut child = Command::new(program)
        .args(&arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()?;
    loop {
        if std::fs::read(&log).is_ok_and(|log| log.windows(8).any(|text| text == b"GUEST-UP")) {
            break;
        }
        if began.elapsed() > Duration::from_secs(60) {
            return Err("the guest did not come up by hand".into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let up = began.elapsed();
    child.kill()?;
    child.wait()?;
    Ok(up)
}
