//! Random walks through scopes that are too large to be searched whole.

use std::time::{Duration, Instant};

use cocoon_model::check::{Walk, Walker, choices, trace_table};
use serde::Serialize;

use crate::{Args, BROKEN, BUDGET, CLEAN, scopes};

/// The most moves of a walk.
const MOVES: usize = 200;

#[derive(Debug, Serialize)]
struct Row {
    scope: String,
    search: &'static str,
    first_seed: u64,
    walks: u64,
    moves: u64,
    seconds: f64,
    violations: Vec<Broken>,
    budget_hit: Option<String>,
}

#[derive(Debug, Serialize)]
struct Broken {
    seed: u64,
    invariant: &'static str,
    what: String,
    trace: Vec<String>,
}

/// Walks through each scope of a name.
pub(crate) fn run(args: &Args) -> Result<u8, String> {
    let mut worst = CLEAN;
    for scope in scopes::named(&args.scope)? {
        let name = scope.name.clone();
        let row = walk(args, name, &mut Walker::new(scope));
        let code = match (row.violations.is_empty(), &row.budget_hit) {
            (false, _) => BROKEN,
            (true, Some(_)) => BUDGET,
            (true, None) => CLEAN,
        };
        // What is broken weighs more than what was not walked.
        worst = if worst == BROKEN || code == CLEAN { worst } else { code };
        print(args, &row)?;
    }
    Ok(worst)
}

fn walk(args: &Args, scope: String, walker: &mut Walker) -> Row {
    let (began, budget) = (Instant::now(), Duration::from_secs(args.budget));
    let first_seed = args.seed.unwrap_or(1);
    let wanted = args.walks.unwrap_or(1);
    let tells = args.walks.is_none();
    let (mut walks, mut moves, mut budget_hit) = (0, 0, None);
    let mut violations = Vec::new();
    for seed in first_seed..first_seed.saturating_add(wanted) {
        if began.elapsed() > budget {
            budget_hit = Some(format!("{} s, after {walks} of {wanted} walks", args.budget));
            break;
        }
        let Walk { moves: made, violation, trace } = walker.walk(choices(seed).take(MOVES), tells);
        walks += 1;
        moves += made as u64;
        if let Some(found) = violation {
            let trace = found.trace.iter().map(ToString::to_string).collect();
            violations.push(Broken { seed, invariant: found.invariant, what: found.what, trace });
            break;
        }
        if tells && !args.json {
            print!("{}", trace_table(&trace));
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    Row { scope, search: "random", first_seed, walks, moves, seconds, violations, budget_hit }
}

fn print(args: &Args, row: &Row) -> Result<(), String> {
    if args.json {
        println!("{}", serde_json::to_string_pretty(row).map_err(|error| error.to_string())?);
        return Ok(());
    }
    let Row { scope, walks, moves, seconds, .. } = row;
    println!("{scope}: {walks} walks, {moves} moves, each crashed and recovered; {seconds:.1} s");
    for Broken { seed, invariant, what, trace } in &row.violations {
        println!("  BROKEN {invariant} with --seed {seed}: {what}");
        trace.iter().for_each(|line| println!("  {line}"));
    }
    if let Some(budget) = &row.budget_hit {
        println!("  BUDGET HIT: {budget}");
    }
    Ok(())
}
