//! The rate of a storm against clients, residents and history.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::Outcome;
use crate::plot::{Line, Panel, draw};
use crate::storm::{Storm, prepare, scratch, storms};
use crate::table::{median, ms, quantile};
use crate::worker::Kind;

#[derive(Debug, Args)]
pub(crate) struct SweepArgs {
    /// Numbers of processes at once
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32,64,128")]
    clients: Vec<u64>,
    /// Numbers of VMs that are there already
    #[arg(long, value_delimiter = ',', default_value = "0,100,1000,10000")]
    residents: Vec<u64>,
    /// Numbers of events that have happened already
    #[arg(long, value_delimiter = ',', default_value = "0,10000,100000,1000000")]
    events: Vec<u64>,
    /// Rounds at each point
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Draws the plot into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// What the others stand at while one of them varies.
const BASE: Place = Place { clients: 64, residents: 100, events: 0 };

#[derive(Debug, Clone, Copy)]
struct Place {
    clients: u64,
    residents: u64,
    events: u64,
}

/// Rates of both stores at one place.
struct Point {
    at: u64,
    cocoon: f64,
    sqlite: f64,
}

const KINDS: [Kind; 2] = [Kind::Cocoon, Kind::Sqlite];

pub(crate) fn run(args: &SweepArgs) -> Outcome {
    println!("varied,clients,residents,events,store,vms_per_second,p50_ms,p99_ms");
    let clients = clients(args)?;
    let residents = args.residents.iter().map(|residents| {
        point(args, "residents", *residents, Place { residents: *residents, ..BASE })
    });
    let residents = residents.collect::<Outcome<Vec<_>>>()?;
    let events = args
        .events
        .iter()
        .map(|events| point(args, "events", *events, Place { events: *events, ..BASE }));
    let events = events.collect::<Outcome<Vec<_>>>()?;
    let Some(path) = &args.svg else { return Ok(()) };
    let panels = [
        panel("processes at once", &clients),
        panel("VMs that are there", &residents),
        panel("events in the past", &events),
    ];
    write(path, &draw("VMs reserved and committed a second", &panels))
}

/// One place serves all numbers of clients.
fn clients(args: &SweepArgs) -> Outcome<Vec<Point>> {
    let dir = scratch()?;
    prepare(dir.path(), usize::try_from(BASE.residents)?, BASE.events)?;
    let points = args.clients.iter().map(|clients| {
        measure(args, "clients", *clients, Place { clients: *clients, ..BASE }, dir.path())
    });
    points.collect()
}

fn point(args: &SweepArgs, varied: &str, at: u64, place: Place) -> Outcome<Point> {
    let dir = scratch()?;
    prepare(dir.path(), usize::try_from(place.residents)?, place.events)?;
    measure(args, varied, at, place, dir.path())
}

fn measure(args: &SweepArgs, varied: &str, at: u64, place: Place, dir: &Path) -> Outcome<Point> {
    let storms = storms(&KINDS, usize::try_from(place.clients)?, args.rounds, dir)?;
    for storm in &storms {
        line(varied, place, storm)?;
    }
    let rate = |kind: Kind| storms.iter().find(|storm| storm.kind == kind).map(Storm::rate);
    Ok(Point {
        at,
        cocoon: rate(Kind::Cocoon).unwrap_or_default(),
        sqlite: rate(Kind::Sqlite).unwrap_or_default(),
    })
}

/// A line of CSV, at once: a long run can be watched.
fn line(varied: &str, place: Place, storm: &Storm) -> Outcome {
    let Place { clients, residents, events } = place;
    let (rate, walls) = (storm.rate(), storm.walls());
    let store = format!("{:?}", storm.kind).to_lowercase();
    println!(
        "{varied},{clients},{residents},{events},{store},{rate:.1},{},{}",
        ms(median(&walls)),
        ms(quantile(&walls, 0.99))
    );
    Ok(std::io::stdout().flush()?)
}

fn panel(label: &str, points: &[Point]) -> Panel {
    let line = |name: &str, rate: fn(&Point) -> f64| Line {
        name: name.to_owned(),
        values: points.iter().map(rate).collect(),
    };
    Panel {
        label: label.to_owned(),
        ticks: points.iter().map(|point| short(point.at)).collect(),
        lines: vec![line("cocoon", |point| point.cocoon), line("SQLite", |point| point.sqlite)],
    }
}

/// A number as a tick has room for it.
fn short(number: u64) -> String {
    match number {
        1_000_000.. if number.is_multiple_of(1_000_000) => format!("{}M", number / 1_000_000),
        1000.. if number.is_multiple_of(1000) => format!("{}k", number / 1000),
        _ => number.to_string(),
    }
}

fn write(path: &Path, text: &str) -> Outcome {
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir)?;
    }
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()).into())
}
