//! `cocoon-check`: explores every interleaving and every crash of cocoon's decisions in a small scope.
//!
//! The search is in `cocoon_model::check` and pure; this binary owns the clock, the files and the printing.

mod hunt;
mod report;
mod scopes;
mod walks;

use std::collections::BTreeMap;
use std::num::NonZero;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::Parser;
use cocoon_model::check::{Limits, Progress, Report, Scope, search};

/// Nothing is broken, and all was seen.
const CLEAN: u8 = 0;
/// An invariant broke, or a mutant was not found.
const BROKEN: u8 = 1;
/// Wrong usage.
const USAGE: u8 = 2;
/// A budget was hit before all was seen.
const BUDGET: u8 = 3;

/// Explores every interleaving and every crash of cocoon's decisions in small scopes.
///
/// Exit status: 0 nothing is broken, 1 an invariant broke or a mutant was not found, 2 wrong usage, 3 a budget was hit
/// before all was seen.
#[derive(Debug, Parser)]
#[command(name = "cocoon-check", version)]
struct Args {
    /// A scope file, the name of a built-in scope, or a set of these: `standard` or `deep`.
    #[arg(long, default_value = "standard")]
    scope: String,
    /// Put a historical fault back, by name, or `all` of them one after the other.
    #[arg(long)]
    mutant: Option<String>,
    /// Do not search: walk, with the choices that follow from this seed. One walk with its whole trace, or with --walks
    /// so many, each with the next seed.
    #[arg(long)]
    seed: Option<u64>,
    /// How many walks; without --seed, from seed 1 on.
    #[arg(long)]
    walks: Option<u64>,
    /// Seconds for each search.
    #[arg(long, default_value_t = 300)]
    budget: u64,
    /// The most states of each search.
    #[arg(long, default_value_t = 20_000_000)]
    states: u64,
    /// So many more of each kind of fault than the scope says.
    #[arg(long, default_value_t = 0)]
    extra: u8,
    /// Searches at a time; 0 is one for each processor.
    #[arg(long, default_value_t = 0)]
    jobs: usize,
    /// Leave out the recovery of every crash.
    #[arg(long)]
    no_liveness: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Print a table for the documentation.
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
    /// Print nothing of how far it is.
    #[arg(long)]
    quiet: bool,
}

/// A search and how long it took.
struct Timed {
    report: Report,
    seconds: f64,
}

fn main() -> ExitCode {
    let args = Args::parse();
    ExitCode::from(run(&args).unwrap_or_else(|complaint| {
        eprintln!("cocoon-check: {complaint}");
        USAGE
    }))
}

fn run(args: &Args) -> Result<u8, String> {
    if let Some(mutant) = &args.mutant {
        return hunt::run(args, mutant);
    }
    if args.seed.is_some() || args.walks.is_some() {
        return walks::run(args);
    }
    let mut scopes = scopes::named(&args.scope)?;
    scopes.iter_mut().for_each(|scope| scope.add_faults(args.extra));
    let timed = explore_all(&scopes, args);
    if args.json {
        report::print_json(&timed);
    }
    if args.markdown {
        report::print_markdown(&timed);
    }
    Ok(report::verdict(&timed))
}

/// Searches all scopes, some at a time; results in the order of the scopes.
fn explore_all(scopes: &[Scope], args: &Args) -> Vec<Timed> {
    let processors = || std::thread::available_parallelism().map_or(1, NonZero::get);
    let jobs = if args.jobs == 0 { processors() } else { args.jobs };
    let next = AtomicUsize::new(0);
    let done = Mutex::new(BTreeMap::new());
    std::thread::scope(|threads| {
        for _ in 0..jobs.min(scopes.len()) {
            threads.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(scope) = scopes.get(at) else { break };
                    let one = explore(scope, args);
                    if !args.json && !args.markdown {
                        report::print(&one);
                    }
                    done.lock().unwrap_or_else(PoisonError::into_inner).insert(at, one);
                }
            });
        }
    });
    done.into_inner().unwrap_or_else(PoisonError::into_inner).into_values().collect()
}

/// Searches one scope within the budgets.
fn explore(scope: &Scope, args: &Args) -> Timed {
    let limits = Limits { states: args.states, liveness: !args.no_liveness };
    let (began, budget) = (Instant::now(), Duration::from_secs(args.budget));
    let mut told = Instant::now();
    let mut go_on = |progress: Progress| {
        if !args.quiet && told.elapsed() > Duration::from_secs(5) {
            told = Instant::now();
            let Progress { states, transitions, depth } = progress;
            eprintln!("{}: {states} states, {transitions} moves, depth {depth}", scope.name);
        }
        (began.elapsed() > budget).then(|| format!("{} s", args.budget))
    };
    let report = search(scope, limits, &mut go_on);
    Timed { report, seconds: began.elapsed().as_secs_f64() }
}
