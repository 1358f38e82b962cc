//! What a search came to, for people and for programs.

use cocoon_model::check::{Counterexample, Report, trace_table};
use serde::Serialize;

use crate::{BROKEN, BUDGET, CLEAN, Timed};

/// One search as JSON.
#[derive(Debug, Serialize)]
struct Row<'a> {
    scope: &'a str,
    states: u64,
    transitions: u64,
    seconds: f64,
    states_per_second: u64,
    depth: u32,
    crashes_recovered: u64,
    bytes_per_state: u64,
    violations: Vec<Broken<'a>>,
    unreached: &'a [String],
    budget_hit: Option<&'a str>,
}

#[derive(Debug, Serialize)]
struct Broken<'a> {
    invariant: &'a str,
    what: &'a str,
    trace: Vec<String>,
}

/// All searches as JSON: the sums, and one row a scope.
#[derive(Debug, Serialize)]
struct Whole<'a> {
    scope: String,
    states: u64,
    transitions: u64,
    seconds: f64,
    states_per_second: u64,
    violations: Vec<Broken<'a>>,
    budget_hit: Option<&'a str>,
    rows: Vec<Row<'a>>,
}

fn rate(states: u64, seconds: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "a rate for people"
    )]
    let rate = (states as f64 / seconds.max(1e-6)) as u64;
    rate
}

fn broken(counterexample: &Counterexample) -> Broken<'_> {
    let Counterexample { invariant, what, trace } = counterexample;
    Broken { invariant, what, trace: trace.iter().map(ToString::to_string).collect() }
}

fn row(timed: &Timed) -> Row<'_> {
    let Timed { report, seconds } = timed;
    Row {
        scope: &report.scope,
        states: report.states,
        transitions: report.transitions,
        seconds: *seconds,
        states_per_second: rate(report.states, *seconds),
        depth: report.depth,
        crashes_recovered: report.crashes,
        bytes_per_state: report.bytes / report.states.max(1),
        violations: report.violation.iter().map(broken).collect(),
        unreached: &report.unreached,
        budget_hit: report.budget_hit.as_deref(),
    }
}

pub(crate) fn print_json(timed: &[Timed]) {
    let rows: Vec<Row<'_>> = timed.iter().map(row).collect();
    let seconds = rows.iter().map(|row| row.seconds).sum();
    let states = rows.iter().map(|row| row.states).sum();
    let names: Vec<&str> = rows.iter().map(|row| row.scope).collect();
    let whole = Whole {
        scope: names.join("+"),
        states,
        transitions: rows.iter().map(|row| row.transitions).sum(),
        seconds,
        states_per_second: rate(states, seconds),
        violations: timed
            .iter()
            .filter_map(|one| one.report.violation.as_ref())
            .map(broken)
            .collect(),
        budget_hit: rows.iter().find_map(|row| row.budget_hit),
        rows,
    };
    match serde_json::to_string_pretty(&whole) {
        Ok(text) => println!("{text}"),
        Err(error) => eprintln!("cocoon-check: {error}"),
    }
}

/// A table for the documentation, with the sums in its last line.
pub(crate) fn print_markdown(timed: &[Timed]) {
    println!(
        "| scope | states | moves | depth | crashes recovered | seconds | states a second | bytes a state |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
    for one in timed {
        let Row { scope, states, transitions, depth, crashes_recovered, .. } = row(one);
        let (seconds, rate, bytes) =
            (one.seconds, row(one).states_per_second, row(one).bytes_per_state);
        println!(
            "| {scope} | {states} | {transitions} | {depth} | {crashes_recovered} | {seconds:.1} | {rate} | {bytes} |"
        );
    }
    let states: u64 = timed.iter().map(|one| one.report.states).sum();
    let moves: u64 = timed.iter().map(|one| one.report.transitions).sum();
    let seconds: f64 = timed.iter().map(|one| one.seconds).sum();
    println!("| all | {states} | {moves} | | | {seconds:.1} | {} | |", rate(states, seconds));
}

pub(crate) fn print(timed: &Timed) {
    let Timed { report, seconds } = timed;
    let Report { scope, states, transitions, depth, crashes, folds, bytes, .. } = report;
    println!(
        "{scope}: {states} states, {transitions} moves, depth {depth}, {crashes} crashes recovered, {folds} folded states; \
         {seconds:.1} s, {} states/s, {} bytes a state",
        rate(*states, *seconds),
        bytes / (*states).max(1)
    );
    if let Some(counterexample) = &report.violation {
        println!("  BROKEN {}: {}", counterexample.invariant, counterexample.what);
        print!("{}", trace_table(&counterexample.trace));
    }
    if !report.unreached.is_empty() {
        println!("  NEVER REACHED: {}", report.unreached.join(", "));
    }
    if let Some(budget) = &report.budget_hit {
        println!("  BUDGET HIT: {budget}; not all was seen");
    }
}

/// The exit status: what is broken weighs more than what was not seen.
pub(crate) fn verdict(timed: &[Timed]) -> u8 {
    let broken = |one: &Timed| one.report.violation.is_some() || !one.report.unreached.is_empty();
    if timed.iter().any(broken) {
        BROKEN
    } else if timed.iter().any(|one| one.report.budget_hit.is_some()) {
        BUDGET
    } else {
        CLEAN
    }
}
