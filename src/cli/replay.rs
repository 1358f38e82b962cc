//! `cocoon replay`: what happened.

use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use clap::Args;
use cocoon_journal::Tail;
use serde_json::json;

use super::args::{Format, OutputArg};
use super::output::Lines;
use super::vm::COLUMNS;
use super::vm_object::rfc3339;
use super::{CliError, Global, output, waiting};
use crate::replay::check::Checked;
use crate::replay::diff::Difference;
use crate::replay::filter::{Filter, Wanted};
use crate::replay::point::Point;
use crate::replay::snapshot::{self, Snapshot};
use crate::replay::{Pieces, ReplayError, Timeline, check, diff, explain, text};

#[derive(Debug, Args)]
pub(super) struct ReplayArgs {
    /// A root, a copy of its journal directory, a backup or an export, instead of the configured root
    #[arg(long, value_name = "DIR")]
    journal: Option<PathBuf>,
    /// Only this VM (its name, its id, or the beginning of its id)
    #[arg(long, value_name = "VM")]
    vm: Option<String>,
    /// Only events of this operation (the beginning of its id)
    #[arg(long, value_name = "ID")]
    operation: Option<String>,
    /// Only events of this actor (verb, pid, or both as shown: `vm-run[812]`)
    #[arg(long, value_name = "ACTOR")]
    actor: Option<String>,
    /// From this point on (sequence number, time, or duration before now)
    #[arg(long, value_name = "POINT", value_parser = Point::parse)]
    since: Option<Point>,
    /// Up to this point
    #[arg(long, value_name = "POINT", value_parser = Point::parse)]
    until: Option<Point>,
    /// The state at this point instead of events
    #[arg(long, value_name = "POINT", value_parser = Point::parse, group = "view")]
    at: Option<Point>,
    /// What differs between two points
    #[arg(long, value_names = ["FROM", "TO"], num_args = 2, value_parser = Point::parse, group = "view")]
    diff: Option<Vec<Point>>,
    /// Judge every event by every invariant that the journal alone can prove
    #[arg(long, group = "view")]
    check: bool,
    /// Say in words who owns this VM, since when it is dead, what is owed, and who could have acted
    #[arg(long, value_name = "VM", group = "view")]
    explain: Option<String>,
    /// Go on as the journal grows
    #[arg(short, long, group = "view")]
    follow: bool,
    #[command(flatten)]
    output: OutputArg,
}

pub(super) fn run(args: &ReplayArgs, global: Global) -> Result<(), CliError> {
    refuse_what_would_be_ignored(args)?;
    let dir = journal_dir(args.journal.as_deref(), global)?;
    let open = || crate::replay::open(&dir);
    let format = args.output.format;
    if args.follow && dir.is_file() {
        let what =
            format!("{} is a file that is complete; there is nothing to follow", dir.display());
        return Err(CliError::Usage(what));
    }
    if let Some(point) = args.at {
        let mut timeline = open()?;
        let snapshot = snapshot::at(&mut timeline, point).of_vm(args.vm.as_deref());
        show_snapshot(&snapshot, format)?;
        return whole(args, timeline);
    }
    if let Some([from, to]) = args.diff.as_deref() {
        let (vm, mut timeline) = (args.vm.as_deref(), open()?);
        let before = snapshot::at(&mut open()?, *from).of_vm(vm);
        let after = snapshot::at(&mut timeline, *to).of_vm(vm);
        show_differences(&before, &after, &diff::diff(&before, &after), format)?;
        return whole(args, timeline);
    }
    if let Some(reference) = &args.explain {
        let explanation = explain::explain(open, reference)?;
        return match format {
            Format::Json => output::json(&explanation.to_json()),
            Format::Table => output::write(explanation.to_text().as_bytes()),
        };
    }
    if args.check {
        return show_check(&check::check(&mut open()?, crate::replay::judge(&dir)), format);
    }
    show_timeline(args, &dir, open()?)
}

/// The directory of the journal that is asked about.
pub(super) fn journal_dir(given: Option<&Path>, global: Global) -> Result<PathBuf, CliError> {
    match given {
        Some(given) => Ok(crate::replay::locate(given)?),
        None => Ok(crate::replay::locate(&global.settings()?.root_dir)?),
    }
}

/// A view that does not choose by what is given says so, rather than showing more than was asked for.
fn refuse_what_would_be_ignored(args: &ReplayArgs) -> Result<(), CliError> {
    let view = [
        (args.at.is_some(), "--at", "the state at one point, of all VMs or of one (--vm)"),
        (args.diff.is_some(), "--diff", "two points, for all VMs or for one (--vm)"),
        (args.explain.is_some(), "--explain", "all that is known of the VM that it names"),
        (args.check, "--check", "the whole history, event by event"),
    ];
    let Some((_, view, what)) = view.into_iter().find(|(given, ..)| *given) else { return Ok(()) };
    let of_vms = args.at.is_some() || args.diff.is_some();
    let given = [
        (args.vm.is_some() && !of_vms, "--vm"),
        (args.operation.is_some(), "--operation"),
        (args.actor.is_some(), "--actor"),
        (args.since.is_some(), "--since"),
        (args.until.is_some(), "--until"),
    ];
    match given.into_iter().find(|(given, _)| *given) {
        None => Ok(()),
        Some((_, flag)) => Err(CliError::Usage(format!(
            "`{view}` looks at {what}; leave out {flag}, which chooses events of the timeline"
        ))),
    }
}

/// What was shown up to a point is right only if the journal holds, and knows the VM that was asked for at some time.
fn whole(args: &ReplayArgs, mut timeline: Timeline<Pieces>) -> Result<(), CliError> {
    let shown = sound(&timeline);
    if let Some(vm) = &args.vm {
        let filter = Filter::new(Wanted { vm: Some(vm.clone()), ..Wanted::default() });
        timeline.by_ref().for_each(drop);
        if filter.unknown_vm(timeline.tracker()).is_some() {
            return Err(ReplayError::UnknownVm { reference: vm.clone() }.into());
        }
    }
    shown
}

/// What was shown of a damaged journal is not the whole of it.
fn sound(timeline: &Timeline<Pieces>) -> Result<(), CliError> {
    match timeline.faults().iter().find(|fault| fault.kind.is_damage()) {
        None => Ok(()),
        Some(fault) => Err(CliError::Failed(format!(
            "the journal is damaged: {fault}; what is shown is what is left. `cocoon journal verify` lists all of it"
        ))),
    }
}

fn show_timeline(
    args: &ReplayArgs,
    dir: &Path,
    mut timeline: Timeline<Pieces>,
) -> Result<(), CliError> {
    let mut filter = Filter::new(Wanted {
        vm: args.vm.clone(),
        operation: args.operation.clone(),
        actor: args.actor.clone(),
        since: args.since,
        until: args.until,
    });
    let mut lines = Lines::new();
    if args.output.format == Format::Table {
        lines.line(&text::header())?;
    }
    show_lines(args, &mut timeline, &mut filter, &mut lines)?;
    if args.follow && !filter.is_over() {
        follow(args, dir, &mut timeline, &mut filter, &mut lines)?;
    }
    lines.flush()?;
    if let Some(vm) = filter.unknown_vm(timeline.tracker()) {
        return Err(ReplayError::UnknownVm { reference: vm.to_owned() }.into());
    }
    sound(&timeline)
}

fn show_lines(
    args: &ReplayArgs,
    timeline: &mut Timeline<Pieces>,
    filter: &mut Filter,
    lines: &mut Lines,
) -> Result<(), CliError> {
    for line in timeline {
        if filter.shows(&line) {
            match args.output.format {
                Format::Json => lines.json(&line.to_json())?,
                Format::Table => lines.line(&text::line(&line))?,
            }
        }
        if filter.is_over() {
            break;
        }
    }
    Ok(())
}

/// Shows events as they come, until the reader of the output goes.
fn follow(
    args: &ReplayArgs,
    dir: &Path,
    timeline: &mut Timeline<Pieces>,
    filter: &mut Filter,
    lines: &mut Lines,
) -> Result<(), CliError> {
    let next = timeline.as_of().0.saturating_add(1);
    let mut tail = Tail::open(dir, next).map_err(ReplayError::from)?;
    while !filter.is_over() {
        match tail.try_next().map_err(ReplayError::from)? {
            Some((frame, _)) => {
                timeline.push(frame);
                show_lines(args, timeline, filter, lines)?;
            }
            None => {
                lines.flush()?;
                waiting::sleep(Some(tail.as_fd()), None)?;
            }
        }
    }
    Ok(())
}

fn show_snapshot(snapshot: &Snapshot, format: Format) -> Result<(), CliError> {
    if format == Format::Json {
        return output::json(&snapshot.to_json());
    }
    let vms = snapshot.vms();
    let rows = vms.into_iter().map(|record| {
        let mut object = snapshot::object(record);
        if !snapshot.is_certain(record) {
            object.state = "unknown";
        }
        object.row()
    });
    output::table(&COLUMNS, rows.collect())?;
    output::say(&as_of(snapshot));
    Ok(())
}

fn as_of(snapshot: &Snapshot) -> String {
    match snapshot.seq {
        0 => "as of the beginning: nothing had happened yet".to_owned(),
        seq => format!("as of seq {seq}, {}", rfc3339(snapshot.at_us)),
    }
}

fn show_differences(
    before: &Snapshot,
    after: &Snapshot,
    differences: &[Difference],
    format: Format,
) -> Result<(), CliError> {
    if format == Format::Json {
        let all: Vec<_> = differences.iter().map(Difference::to_json).collect();
        return output::json(&json!({ "from": before.seq, "to": after.seq, "vms": all }));
    }
    let mut rows = Vec::new();
    for difference in differences {
        let vm = text::subject(&format!("vm/{}", difference.id), &difference.name);
        match difference.there {
            (false, true) => rows.push(vec![vm, "(added)".into(), String::new(), String::new()]),
            (true, false) => rows.push(vec![vm, "(removed)".into(), String::new(), String::new()]),
            _ => rows.extend(difference.fields.iter().map(|(field, from, to)| {
                vec![vm.clone(), field.clone(), from.to_string(), to.to_string()]
            })),
        }
    }
    output::table(&["VM", "FIELD", "FROM", "TO"], rows)?;
    output::say(&format!("from: {}; to: {}", as_of(before), as_of(after)));
    Ok(())
}

fn show_check(checked: &Checked, format: Format) -> Result<(), CliError> {
    match format {
        Format::Json => output::json(&checked.to_json())?,
        Format::Table => output::write(check_text(checked).as_bytes())?,
    }
    if checked.is_sound() {
        return Ok(());
    }
    let what = match (checked.violations.first(), checked.damage().next(), &checked.stopped) {
        (Some(first), ..) => {
            format!("invariant {} is broken at seq {}: {}", first.invariant, first.seq, first.what)
        }
        (None, Some(fault), _) => {
            format!("the journal is damaged: {fault}; `cocoon journal verify` lists all of it")
        }
        (None, None, Some(why)) => format!("not everything could be judged: {why}"),
        (None, None, None) => return Ok(()),
    };
    Err(CliError::Failed(what))
}

fn check_text(checked: &Checked) -> String {
    let mut out = String::new();
    for fault in &checked.faults {
        let word = if fault.kind.is_damage() { "damage" } else { "leftover" };
        out.push_str(&format!("{word}: {fault}\n"));
    }
    for violation in &checked.violations {
        let (invariant, seq) = (violation.invariant, violation.seq);
        out.push_str(&format!("{invariant} broken at seq {seq}: {}\n", violation.what));
    }
    if let Some(row) = &checked.offender {
        out.push_str(&format!(
            "\nfirst offending event:\n{}\n{}\n\n",
            text::header(),
            text::row(row)
        ));
    }
    let verdict = if checked.violations.is_empty() { "nothing is broken" } else { "broken" };
    out.push_str(&format!(
        "{} events judged, up to seq {}: {verdict}\n",
        checked.events, checked.last.0
    ));
    if let Some(why) = &checked.stopped {
        out.push_str(&format!("nothing was judged after that: {why}\n"));
    }
    out
}
