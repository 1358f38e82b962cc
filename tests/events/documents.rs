//! Pages of the book that are made from the tables of the code.

use std::fmt::Write as _;

use cocoon::codec;
use cocoon_journal::reserved;
use cocoon_model::event::{Event, ImageEvent, KindInfo, RootEvent, SupervisorEvent, VmEvent};
use cocoon_model::invariant::{Evidence, INVARIANTS};

use crate::{is_blessed, repository, samples};

const MADE: &str =
    "<!-- Made from the tables of the code by tests/events; COCOON_BLESS=1 rewrites it. -->";

fn check(page: &str, made: &str) {
    let path = repository().join(page);
    if is_blessed() {
        return std::fs::write(path, made).unwrap();
    }
    let kept = std::fs::read_to_string(path).unwrap_or_default();
    let differing = kept.lines().zip(made.lines()).find(|(kept, made)| kept != made);
    assert!(
        kept == made,
        "{page} is not what is made now (COCOON_BLESS=1 rewrites it); first difference: {differing:?}"
    );
}

#[test]
fn the_page_of_events_is_up_to_date() {
    let mut page = format!(
        "# Events\n\n{MADE}\n\n\
         Everything that can have happened, one kind each. A kind has a number that is never given to another, and a\n\
         version that rises when its body changes; every version ever written stays readable. Names never reach the disk.\n\
         Who may write a kind is part of it: the holder of the subject's lock, any observer (whose word is fenced by the\n\
         generation that it saw), the daemon, or the journal itself.\n"
    );
    section(&mut page, "Of a VM", "vm/<id>", VmEvent::KINDS);
    section(&mut page, "Of an image", "image/<id>", ImageEvent::KINDS);
    section(&mut page, "Of the daemon", "supervisor", SupervisorEvent::KINDS);
    section(&mut page, "Of the root", "root", RootEvent::KINDS);
    journal_section(&mut page);
    bodies(&mut page);
    check("docs/events.md", &page);
}

const COLUMNS: &str =
    "| number | version | name | since | written by | meaning |\n|---|---|---|---|---|---|\n";

fn section(page: &mut String, title: &str, subject: &str, kinds: &[KindInfo]) {
    write!(page, "\n## {title}\n\nSubject: `{subject}`.\n\n{COLUMNS}").unwrap();
    for KindInfo { kind, version, name, since, by, meaning } in kinds {
        let by = by.as_str();
        writeln!(page, "| {kind} | {version} | `{name}` | {since} | {by} | {meaning} |").unwrap();
    }
}

fn journal_section(page: &mut String) {
    let subject = reserved::SUBJECT;
    write!(page, "\n## Of the journal itself\n\nSubject: `{subject}`.\n\n{COLUMNS}").unwrap();
    for line in reserved::KINDS {
        let reserved::ReservedKind { kind, version, name, since, meaning } = line;
        writeln!(page, "| {kind} | {version} | `{name}` | {since} | the journal | {meaning} |")
            .unwrap();
    }
}

fn bodies(page: &mut String) {
    page.push_str(
        "\n## Bodies\n\nOne of each kind, as `cocoon replay -o json` and `cocoon journal export` show it. Kinds that are not here have no body.\n",
    );
    let samples = samples::events();
    for info in Event::kinds() {
        let sample = samples.iter().find(|event| event.info().kind == info.kind).unwrap();
        let body = codec::event_json(sample);
        if body.as_object().is_some_and(|fields| !fields.is_empty()) {
            let body = serde_json::to_string_pretty(&body).unwrap();
            write!(page, "\n### {}\n\n```json\n{body}\n```\n", info.name).unwrap();
        }
    }
}

#[test]
fn the_page_of_invariants_is_up_to_date() {
    let mut page = format!(
        "# Invariants\n\n{MADE}\n\n\
         What must always hold. `cocoon replay --check` judges every prefix of a journal by those that the journal alone can\n\
         prove; the others need the world (files, processes, locks) and are judged by the model checker and by the crash\n\
         tests.\n\n\
         | number | name | what must hold | judged by |\n|---|---|---|---|\n"
    );
    for invariant in INVARIANTS {
        let by = match invariant.evidence {
            Evidence::Journal => "the journal: `cocoon replay --check`",
            Evidence::World => "the journal and the world: the checker and the crash tests",
        };
        let (id, name, sentence) = (invariant.id, invariant.name, invariant.sentence);
        writeln!(page, "| {id} | {name} | {sentence} | {by} |").unwrap();
    }
    check("docs/invariants.md", &page);
}
