//! Many processes at once.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum as _};
use cocoon::engine::ledger::Ledger;

use crate::process::{Cost, crowd};
use crate::table::{head, median, ms, quantile, row};
use crate::worker::Kind;
use crate::{Outcome, peer, worker};

#[derive(Debug, Args)]
pub(crate) struct StormArgs {
    /// Processes at once
    #[arg(long, default_value_t = 64)]
    processes: usize,
    /// Rounds
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// VMs that are there already
    #[arg(long, default_value_t = 100)]
    residents: usize,
    /// Events that have happened already, beyond those of the residents
    #[arg(long, default_value_t = 0)]
    events: usize,
    /// Only these, for a profiler
    #[arg(long, value_name = "KIND")]
    only: Vec<Kind>,
}

struct Storm {
    kind: Kind,
    walls: Vec<Duration>,
    cpus: Vec<Duration>,
    rounds: Vec<Duration>,
}

pub(crate) fn run(args: &StormArgs) -> Outcome {
    let dir =
        tempfile::tempdir_in(std::env::var_os("COCOON_BENCH_DIR").unwrap_or("/var/tmp".into()))?;
    prepare(dir.path(), args.residents)?;
    worker::history(dir.path(), args.events)?;
    let kinds = [Kind::Empty, Kind::Cocoon, Kind::Sqlite];
    let wanted = |kind: &Kind| args.only.is_empty() || args.only.contains(kind);
    let mut storms: Vec<Storm> = kinds
        .into_iter()
        .filter(wanted)
        .map(|kind| Storm { kind, walls: Vec::new(), cpus: Vec::new(), rounds: Vec::new() })
        .collect();
    for _ in 0..args.rounds {
        for storm in &mut storms {
            let (costs, wall) = round(storm.kind, args.processes, dir.path())?;
            storm.rounds.push(wall);
            storm.walls.extend(costs.iter().map(|cost| cost.wall));
            storm.cpus.extend(costs.iter().map(|cost| cost.cpu));
        }
    }
    report(args, &storms);
    Ok(())
}

pub(crate) fn prepare(dir: &Path, residents: usize) -> Outcome {
    let mut ledger = Ledger::open(&dir.join("journal"))?;
    worker::image(&mut ledger)?;
    for number in 0..residents {
        worker::birth(&mut ledger)?;
        if number % 256 == 0 {
            ledger.tend();
        }
    }
    ledger.tend();
    peer::create(&dir.join("peer.db"), residents)
}

fn round(kind: Kind, processes: usize, dir: &Path) -> Outcome<(Vec<Cost>, Duration)> {
    let name =
        kind.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
    let program = std::env::current_exe()?;
    let workers = (0..processes).map(|_| {
        let mut command = Command::new(&program);
        command.args(["worker", &name]).arg(dir);
        command
    });
    let began = Instant::now();
    let costs = crowd(workers)?;
    Ok((costs, began.elapsed()))
}

fn report(args: &StormArgs, storms: &[Storm]) {
    println!(
        "{} processes at once, each two commits; {} rounds, {} residents, {} past events\n",
        args.processes, args.rounds, args.residents, args.events
    );
    head(&[
        "what",
        "VMs/s (median round)",
        "p50 ms",
        "p99 ms",
        "p99 above empty ms",
        "CPU ms (median)",
    ]);
    let empty = storms.first().map(|storm| quantile(&storm.walls, 0.99)).unwrap_or_default();
    #[expect(clippy::cast_precision_loss, reason = "a small count")]
    let rate = |storm: &Storm| args.processes as f64 / median(&storm.rounds).as_secs_f64();
    for storm in storms {
        let p99 = quantile(&storm.walls, 0.99);
        row(&[
            format!("{:?}", storm.kind),
            format!("{:.0}", rate(storm)),
            ms(median(&storm.walls)),
            ms(p99),
            ms(p99.saturating_sub(empty)),
            ms(median(&storm.cpus)),
        ]);
    }
    if let [Storm { kind: Kind::Empty, .. }, cocoon, sqlite] = storms {
        let above =
            |storm: &Storm| quantile(&storm.walls, 0.99).saturating_sub(empty).as_secs_f64();
        println!(
            "\nthroughput {:.2}x of SQLite, p99 above empty {:.2}x of SQLite",
            rate(cocoon) / rate(sqlite),
            above(cocoon) / above(sqlite)
        );
    }
}
