//! `cocoon adopt`.

use std::io::{BufRead as _, IsTerminal as _, stdin};

use clap::Args;
use cocoon_model::command::VmmSeen;
use serde_json::{Value, json};

use super::args::{Format, LockTimeout, OutputArg};
use super::{CliError, Global, output};
use crate::engine::adopt::{Adoption, Finding, Selection, Survey};
use crate::engine::{Caller, Engine};

#[derive(Debug, Args)]
#[command(after_help = "\
A root is unconfirmed after `journal restore` or `journal import`, after an older copy of its journal was put in place, when
it was copied or moved, or when its marker is gone. Nothing of it is touched then: no VM is stopped, no directory removed.
`cocoon adopt` lists what differs between its records and what is there, and what it would do:

  take-in      a VM without a record gets one, made of the birth certificate in its directory
  bring-up     a record that is older than its VM becomes what the VM is now
  leave        nothing is done; the remark says why
  cannot-tell  it must be told first whether it runs

Confirmed, it journals that. It ends no process and removes no file.")]
pub(super) struct AdoptArgs {
    /// Only show what would be done
    #[arg(long)]
    dry_run: bool,
    /// Do it without asking
    #[arg(long, short = 'y', conflicts_with = "dry_run")]
    yes: bool,
    /// Which VMs without a record are taken in: `all`, `none`, or names and ids; records that are older are always brought up
    #[arg(long, value_name = "WHICH", num_args = 1.., value_delimiter = ',', default_value = "all")]
    take: Vec<String>,
    #[command(flatten)]
    lock: LockTimeout,
    #[command(flatten)]
    output: OutputArg,
}

/// Columns of the table of findings.
const COLUMNS: [&str; 7] = ["ID", "NAME", "RECORD", "FOUND", "VMM", "PROPOSAL", "WHY"];

pub(super) fn run(args: &AdoptArgs, global: Global) -> Result<(), CliError> {
    let engine = global.engine()?;
    let survey = engine.survey_root()?;
    let nothing = survey.unconfirmed.is_none() && survey.findings.is_empty();
    if args.output.format == Format::Table {
        show(&survey)?;
    }
    if nothing || args.dry_run {
        return finish(args, &engine, &survey, &Adoption::default());
    }
    if !(args.yes || asked()?) {
        if args.output.format == Format::Json {
            output::json(&told(&engine, &survey, &Adoption::default()))?;
        }
        return Err(CliError::Failed(
            "nothing was adopted: look at what was found, then say --yes".to_owned(),
        ));
    }
    let caller = Caller::new("adopt", Some(args.lock.timeout))?;
    let adoption = engine.adopt(&survey, &selection(&args.take), &caller)?;
    finish(args, &engine, &survey, &adoption)?;
    crate::cli::tend(engine);
    Ok(())
}

fn selection(take: &[String]) -> Selection {
    match take {
        [all] if all == "all" => Selection::All,
        [none] if none == "none" => Selection::None,
        these => Selection::These(these.to_vec()),
    }
}

/// Asks the person at the terminal; nobody is there to say yes in a script.
fn asked() -> Result<bool, CliError> {
    if !stdin().is_terminal() {
        return Ok(false);
    }
    output::say("Adopt this root as it is shown above? Type yes to do it:");
    let mut answer = String::new();
    stdin().lock().read_line(&mut answer).map_err(CliError::Output)?;
    Ok(answer.trim() == "yes")
}

fn show(survey: &Survey) -> Result<(), CliError> {
    match &survey.unconfirmed {
        Some(reason) => output::say(&format!("This root is unconfirmed: {reason}.")),
        None => output::say("This root is confirmed."),
    }
    if survey.findings.is_empty() {
        output::say("Its records and what is there agree.");
        return Ok(());
    }
    output::table(&COLUMNS, survey.findings.iter().map(row).collect())
}

fn row(finding: &Finding) -> Vec<String> {
    let record = finding.record.map_or_else(
        || "none".to_owned(),
        |(state, generation)| format!("{} {generation}", state.as_str()),
    );
    let found = match (&finding.directory, finding.noted) {
        (None, _) => "no directory".to_owned(),
        (Some(_), Some(noted)) => format!("generation {noted}"),
        (Some(_), None) => "directory".to_owned(),
    };
    let vmm = match &finding.vmm {
        VmmSeen::Alive(identity) => format!("pid {}", identity.pid),
        VmmSeen::Dead => "none".to_owned(),
        VmmSeen::Inconclusive(_) => "cannot tell".to_owned(),
    };
    vec![
        finding.id.to_string(),
        finding.name.clone().unwrap_or_default(),
        record,
        found,
        vmm,
        finding.proposal.as_str().to_owned(),
        finding.remark.clone(),
    ]
}

fn finish(
    args: &AdoptArgs,
    engine: &Engine,
    survey: &Survey,
    adoption: &Adoption,
) -> Result<(), CliError> {
    if args.output.format == Format::Json {
        return output::json(&told(engine, survey, adoption));
    }
    for id in &adoption.taken {
        output::say(&format!("adopted {id}"));
    }
    if adoption.confirmed {
        output::say("The root is confirmed; everything works again.");
    } else if args.dry_run && survey.unconfirmed.is_some() {
        output::say("Nothing was changed; `cocoon adopt` does it.");
    }
    Ok(())
}

fn told(engine: &Engine, survey: &Survey, adoption: &Adoption) -> Value {
    json!({
        "root": engine.settings().root_dir,
        "root_id": engine.root_uuid(),
        "unconfirmed": survey.unconfirmed,
        "found": survey.findings.iter().map(finding_json).collect::<Vec<_>>(),
        "taken": adoption.taken.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "confirmed": adoption.confirmed || survey.unconfirmed.is_none(),
    })
}

fn finding_json(finding: &Finding) -> Value {
    let (vmm, pid, why) = match &finding.vmm {
        VmmSeen::Alive(identity) => ("alive", Some(identity.pid), None),
        VmmSeen::Dead => ("dead", None, None),
        VmmSeen::Inconclusive(reason) => ("unknown", None, Some(reason)),
    };
    json!({
        "id": finding.id.to_string(),
        "name": finding.name,
        "record": finding.record.map(|(state, generation)| {
            json!({ "state": state.as_str(), "transition_generation": generation })
        }),
        "directory": finding.directory,
        "directory_generation": finding.noted,
        "vmm": vmm,
        "pid": pid,
        "vmm_reason": why,
        "proposal": finding.proposal.as_str(),
        "remark": finding.remark,
    })
}
