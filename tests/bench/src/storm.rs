//! Many processes at once.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum as _};
use cocoon::engine::ledger::Ledger;
use cocoon_journal::checkpoint::Checkpoint;
use tempfile::TempDir;

use crate::past::Past;
use crate::process::{Cost, crowd};
use crate::table::{head, median, ms, quantile, ratio, row};
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
    events: u64,
    /// Only these, for a profiler
    #[arg(long, value_name = "KIND")]
    only: Vec<Kind>,
}

/// All rounds of one kind of process.
pub(crate) struct Storm {
    pub(crate) kind: Kind,
    pub(crate) rounds: Vec<Round>,
}

/// One round.
pub(crate) struct Round {
    wall: Duration,
    costs: Vec<Cost>,
    /// Whether a checkpoint was written meanwhile.
    checkpoint: bool,
}

impl Storm {
    pub(crate) fn walls(&self) -> Vec<Duration> {
        self.of_rounds(|_| true)
    }

    fn of_rounds(&self, wanted: impl Fn(&Round) -> bool) -> Vec<Duration> {
        let rounds = self.rounds.iter().filter(|round| wanted(round));
        rounds.flat_map(|round| round.costs.iter().map(|cost| cost.wall)).collect()
    }

    fn cpus(&self) -> Vec<Duration> {
        let costs = self.rounds.iter().flat_map(|round| &round.costs);
        costs.map(|cost| cost.cpu).collect()
    }

    /// Processes a second, in the median round.
    pub(crate) fn rate(&self) -> f64 {
        let walls: Vec<Duration> = self.rounds.iter().map(|round| round.wall).collect();
        let processes = self.rounds.first().map_or(0, |round| round.costs.len());
        #[expect(clippy::cast_precision_loss, reason = "a small count")]
        let processes = processes as f64;
        processes / median(&walls).as_secs_f64().max(1e-9)
    }
}

pub(crate) fn run(args: &StormArgs) -> Outcome {
    let dir = scratch()?;
    let began = Instant::now();
    let events = prepare(dir.path(), args.residents, args.events)?;
    eprintln!("the past was made in {:.1} s", began.elapsed().as_secs_f64());
    let kinds = [Kind::Empty, Kind::Cocoon, Kind::Sqlite];
    let wanted = |kind: &Kind| args.only.is_empty() || args.only.contains(kind);
    let kinds: Vec<Kind> = kinds.into_iter().filter(wanted).collect();
    let storms = storms(&kinds, args.processes, args.rounds, dir.path())?;
    println!(
        "{} processes at once, each two commits; {} rounds, {} residents, {events} past events\n",
        args.processes, args.rounds, args.residents
    );
    report(&storms);
    for storm in storms.iter().filter(|storm| storm.kind == Kind::Cocoon) {
        report_checkpoints(storm);
    }
    Ok(())
}

/// A directory on the file system that is measured: below `COCOON_BENCH_DIR`, else `/var/tmp`.
pub(crate) fn scratch() -> Outcome<TempDir> {
    let parent = std::env::var_os("COCOON_BENCH_DIR").map_or("/var/tmp".into(), PathBuf::from);
    tempfile::tempdir_in(&parent).map_err(|error| format!("{}: {error}", parent.display()).into())
}

/// Makes both stores; gives the number of events that ours has.
pub(crate) fn prepare(dir: &Path, residents: usize, events: u64) -> Outcome<u64> {
    let past = past(dir, residents, events)?;
    past.feed_store()?;
    peer::create(&dir.join("peer.db"), residents)?;
    past.seq()
}

/// Makes our journal alone, without its event store.
pub(crate) fn past(dir: &Path, residents: usize, events: u64) -> Outcome<Past> {
    worker::image(&mut Ledger::open(&dir.join("journal"))?)?;
    let mut past = Past::open(dir)?;
    past.residents(residents)?;
    past.events(events)?;
    Ok(past)
}

/// Rounds of each kind, in turn.
pub(crate) fn storms(
    kinds: &[Kind],
    processes: usize,
    rounds: usize,
    dir: &Path,
) -> Outcome<Vec<Storm>> {
    let mut storms: Vec<Storm> =
        kinds.iter().map(|kind| Storm { kind: *kind, rounds: Vec::new() }).collect();
    for _ in 0..rounds {
        for storm in &mut storms {
            storm.rounds.push(round(storm.kind, processes, dir)?);
        }
    }
    Ok(storms)
}

fn round(kind: Kind, processes: usize, dir: &Path) -> Outcome<Round> {
    let name =
        kind.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
    let program = std::env::current_exe()?;
    let workers = (0..processes).map(|_| {
        let mut command = Command::new(&program);
        command.args(["worker", &name]).arg(dir);
        command
    });
    let newest = || -> Outcome<_> {
        let latest = Checkpoint::latest(&dir.join("journal"))?;
        Ok(latest.checkpoint.map(|checkpoint| checkpoint.position().seq))
    };
    let before = newest()?;
    let began = Instant::now();
    let costs = crowd(workers)?;
    let wall = began.elapsed();
    Ok(Round { wall, costs, checkpoint: kind == Kind::Cocoon && newest()? != before })
}

fn report(storms: &[Storm]) {
    head(&[
        "what",
        "VMs/s (median round)",
        "p50 ms",
        "p99 ms",
        "p99 above empty ms",
        "CPU ms (median)",
    ]);
    let empty = storms.iter().find(|storm| storm.kind == Kind::Empty);
    let empty = empty.map(|storm| quantile(&storm.walls(), 0.99)).unwrap_or_default();
    for storm in storms {
        let p99 = quantile(&storm.walls(), 0.99);
        row(&[
            format!("{:?}", storm.kind),
            format!("{:.0}", storm.rate()),
            ms(median(&storm.walls())),
            ms(p99),
            ms(p99.saturating_sub(empty)),
            ms(median(&storm.cpus())),
        ]);
    }
    if let [Storm { kind: Kind::Empty, .. }, cocoon, sqlite] = storms {
        let above = |storm: &Storm| quantile(&storm.walls(), 0.99).saturating_sub(empty);
        println!(
            "\nthroughput {:.2}x of SQLite, p99 above empty {}x of SQLite",
            cocoon.rate() / sqlite.rate(),
            ratio(above(cocoon), above(sqlite))
        );
    }
}

/// Some process of a round writes a checkpoint once its answer is out; the others of that round meet it.
fn report_checkpoints(storm: &Storm) {
    println!();
    head(&["rounds of cocoon", "processes", "p50 ms", "p99 ms"]);
    let mut p99s = Vec::new();
    for (what, checkpoint) in [("with a checkpoint written", true), ("without", false)] {
        let walls = storm.of_rounds(|round| round.checkpoint == checkpoint);
        if walls.is_empty() {
            continue;
        }
        let rounds = storm.rounds.iter().filter(|round| round.checkpoint == checkpoint).count();
        let p99 = quantile(&walls, 0.99);
        row(&[format!("{rounds} {what}"), walls.len().to_string(), ms(median(&walls)), ms(p99)]);
        p99s.push(p99);
    }
    if let [with, without] = p99s[..] {
        println!("\np99 with a checkpoint {}x of that without", ratio(with, without));
    }
}
