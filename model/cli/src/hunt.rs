//! The hunt for mutants: each historical fault is put back, and has to be found by the invariant that names it.

/// This build has no mutants.
#[cfg(not(feature = "mutants"))]
pub(crate) fn run(_: &crate::Args, _: &str) -> Result<u8, String> {
    Err("this build has no mutants; build it with `cargo build -p cocoon-check --features mutants`"
        .to_owned())
}

#[cfg(feature = "mutants")]
pub(crate) use with_mutants::run;

#[cfg(feature = "mutants")]
mod with_mutants {
    use cocoon_model::check::{Counterexample, trace_table};
    use cocoon_model::mutant::{About, MUTANTS, by_name, switch};
    use serde::Serialize;

    use crate::{Args, BROKEN, CLEAN, explore, scopes};

    #[derive(Debug, Serialize)]
    struct Row {
        name: &'static str,
        found: bool,
        invariant: Option<&'static str>,
        search: &'static str,
        scope: &'static str,
        states: u64,
        seconds: f64,
        trace_len: usize,
        #[serde(skip)]
        counterexample: Option<Counterexample>,
    }

    #[derive(Debug, Serialize)]
    struct Whole<'a> {
        mutants: usize,
        found: usize,
        rows: &'a [Row],
    }

    pub(crate) fn run(args: &Args, name: &str) -> Result<u8, String> {
        let one = by_name(name);
        if one.is_none() && name != "all" {
            let known: Vec<&str> = MUTANTS.iter().map(|about| about.name).collect();
            return Err(format!(
                "there is no mutant `{name}`; there are all, {}",
                known.join(", ")
            ));
        }
        let mut rows = Vec::new();
        for about in one.map_or(MUTANTS, std::slice::from_ref) {
            rows.push(hunt(args, about)?);
            if let (false, Some(row)) = (args.json || args.markdown, rows.last()) {
                print(about, row, one.is_some());
            }
        }
        if args.markdown {
            print_markdown(&rows);
        }
        let found = rows.iter().filter(|row| row.found).count();
        if args.json {
            let whole = Whole { mutants: rows.len(), found, rows: &rows };
            match serde_json::to_string_pretty(&whole) {
                Ok(text) => println!("{text}"),
                Err(error) => return Err(error.to_string()),
            }
        } else if !args.markdown {
            println!("{found} of {} mutants found", rows.len());
        }
        Ok(if found == rows.len() { CLEAN } else { BROKEN })
    }

    fn hunt(args: &Args, about: &'static About) -> Result<Row, String> {
        let scope = scopes::named(about.scope)?.remove(0);
        switch(Some(about.mutant));
        let timed = explore(&scope, args);
        switch(None);
        let counterexample = timed.report.violation;
        let invariant = counterexample.as_ref().map(|found| found.invariant);
        Ok(Row {
            name: about.name,
            found: invariant == Some(about.breaks),
            invariant,
            search: "exhaustive",
            scope: about.scope,
            states: timed.report.states,
            seconds: timed.seconds,
            trace_len: counterexample.as_ref().map_or(0, |found| found.trace.len()),
            counterexample,
        })
    }

    fn print_markdown(rows: &[Row]) {
        println!("| mutant | fault | source | breaks | scope | states | seconds | lines |");
        println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
        for row in rows {
            let Row { name, found, scope, states, seconds, trace_len, .. } = row;
            let Some(about) = by_name(name) else { continue };
            let breaks = if *found { about.breaks } else { "not found" };
            println!(
                "| `{name}` | {} | {} | {breaks} | {scope} | {states} | {seconds:.2} | {trace_len} |",
                about.sentence, about.source
            );
        }
    }

    fn print(about: &About, row: &Row, tells: bool) {
        let verdict = match (row.found, row.invariant) {
            (true, _) => "found".to_owned(),
            (false, None) => "NOT FOUND".to_owned(),
            (false, Some(other)) => format!("NOT FOUND: {other} broke instead of {}", about.breaks),
        };
        println!(
            "{}: {verdict} by {} in {}, {} states, {:.2} s, {} lines",
            about.name, about.breaks, row.scope, row.states, row.seconds, row.trace_len
        );
        if let (true, Some(counterexample)) = (tells || !row.found, &row.counterexample) {
            println!("  {}: {}", counterexample.invariant, counterexample.what);
            print!("{}", trace_table(&counterexample.trace));
        }
    }
}
