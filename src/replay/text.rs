//! Lines of a timeline for people: one format for all traces.
//!
//! Columns are separated by blanks and have none inside, but for the last one, which is prose.

use cocoon_journal::frame::hex_prefix;
use cocoon_journal::reserved::JournalEvent;
use cocoon_model::event::{Event, ImageEvent, RootEvent, SupervisorEvent, VmEvent};
use cocoon_model::record::{OperationKind, RemovalKind, StopMode};

use super::line::{Actor, Content, Death, Held, Line, Note, Noted, Row};
use crate::cli::vm_object::rfc3339_fixed as rfc3339;

/// Characters of an id that are shown beside a name.
const SHORT_ID: usize = 8;

/// The names of the columns.
#[must_use]
pub fn header() -> String {
    columns(' ', "SEQ", "TIME", ["ACTOR", "EVENT", "SUBJECT", "STATE", "LOCKS", "OWED"], "NOTE")
}

/// Text that a terminal shows and does not obey, on one line: what guests and damaged files say gets in here.
#[must_use]
pub fn plain(text: String) -> String {
    if !text.contains(char::is_control) {
        return text;
    }
    let escaped = |letter: char| match letter {
        letter if letter.is_control() => letter.escape_default().to_string(),
        letter => letter.to_string(),
    };
    text.chars().map(escaped).collect()
}

/// A line as text, without its line feed.
#[must_use]
pub fn line(line: &Line) -> String {
    match line {
        Line::Row(it) => row(it),
        Line::Note(it) => noted(it),
    }
}

fn columns(mark: char, seq: &str, time: &str, words: [&str; 6], note: &str) -> String {
    let [actor, event, subject, state, locks, owed] = words;
    let line = format!(
        "{mark} {seq:>7}  {time:<27}  {actor:<18}  {event:<19}  {subject:<22}  {state:<18}  {locks:<19}  {owed:<20}  {note}"
    );
    plain(line.trim_end().to_owned())
}

/// A row as text.
#[must_use]
pub fn row(row: &Row) -> String {
    let states = match &row.states {
        None => "-".to_owned(),
        Some((before, after)) if before == after => after.to_string(),
        Some((before, after)) => format!("{before}->{after}"),
    };
    let (actor, event, locks) = (row.actor.to_string(), row.event(), locks(&row.locks));
    let subject = subject(&row.subject, &row.name);
    let owed = row.owed.unwrap_or("-");
    let words = [&*actor, &*event, &*subject, &*states, &*locks, owed];
    let mark = if row.illegal.is_some() { 'x' } else { ' ' };
    columns(mark, &row.seq.to_string(), &rfc3339(row.at_us), words, &note_of(row))
}

fn locks(held: &[Held]) -> String {
    if held.is_empty() {
        return "-".to_owned();
    }
    let pid = |pid: u32| if pid == 0 { "?".to_owned() } else { pid.to_string() };
    let held: Vec<String> =
        held.iter().map(|held| format!("{}:{}", held.lock, pid(held.pid))).collect();
    held.join(",")
}

/// `vm/<beginning of the id>:<name>`.
#[must_use]
pub fn subject(subject: &str, name: &str) -> String {
    let short = match subject.split_once('/') {
        Some((kind, id)) => format!("{kind}/{}", id.get(..SHORT_ID).unwrap_or(id)),
        None => subject.to_owned(),
    };
    if name.is_empty() { short } else { format!("{short}:{name}") }
}

/// What an event says that no column shows.
fn note_of(row: &Row) -> String {
    if let Some(illegal) = &row.illegal {
        return format!("cannot have happened: {illegal}");
    }
    match &row.content {
        Content::Model(Event::Vm(_, event)) => vm_note(event),
        Content::Model(Event::Image(_, event)) => image_note(event),
        Content::Model(Event::Supervisor(event)) => supervisor_note(event),
        Content::Model(Event::Root(event)) => root_note(event),
        Content::Journal(event) => journal_note(event),
        Content::Unreadable(entry, why) => format!("{} bytes: {why}", entry.body.len()),
    }
}

fn vm_note(event: &VmEvent) -> String {
    match event {
        VmEvent::Prereserved(body) => format!("for {}", body.operation.as_str()),
        VmEvent::LaunchBegan(body) => body.accelerator.as_str().to_owned(),
        VmEvent::Launched(body) => format!("pid {}", body.identity.pid),
        VmEvent::Running(body) => format!("pid {}", body.identity.pid),
        VmEvent::LaunchFailed(body) => body.reason.clone(),
        VmEvent::StopBegan(body) => stop_note(body.operation),
        VmEvent::StopFailed(body) => body.reason.clone(),
        VmEvent::ExitObserved(body) => match &body.evidence {
            Some(evidence) => format!("of generation {}: {evidence}", body.generation),
            None => format!("of generation {}", body.generation),
        },
        VmEvent::Tombstoned(body) => removal(body.kind).to_owned(),
        VmEvent::TombstoneRolledBack(body) => body.reason.clone(),
        VmEvent::DeleteStepDone(body) => body.step.as_str().to_owned(),
        VmEvent::StepFailed(body) => format!("{}: {}", body.step, body.reason),
        VmEvent::Adopted(body) => match &body.identity {
            Some(identity) => format!("pid {}, as generation {}", identity.pid, body.generation),
            None => format!("as generation {}", body.generation),
        },
        VmEvent::StoragePrepared(_)
        | VmEvent::Committed(_)
        | VmEvent::Stopped(_)
        | VmEvent::DeleteBegan(_)
        | VmEvent::Deleted(_)
        | VmEvent::ReclaimBegan(_)
        | VmEvent::OperationTakenOver(_)
        | VmEvent::OperationAbandoned(_) => String::new(),
    }
}

fn stop_note(kind: OperationKind) -> String {
    match kind {
        OperationKind::Stop(StopMode::Graceful { timeout_ms }) => {
            format!("graceful, {timeout_ms} ms")
        }
        OperationKind::Stop(StopMode::Kill) => "kill".to_owned(),
        other => format!("for {}", other.as_str()),
    }
}

fn removal(kind: RemovalKind) -> &'static str {
    match kind {
        RemovalKind::Delete => "as asked",
        RemovalKind::ForcedDelete => "as asked, by force",
        RemovalKind::Rollback => "its creator failed and takes it back",
        RemovalKind::Reclaim => "its creator is dead",
    }
}

fn image_note(event: &ImageEvent) -> String {
    match event {
        ImageEvent::Imported(body) => body.digest.clone(),
        ImageEvent::RemoveBegan(_) | ImageEvent::Removed(_) => String::new(),
    }
}

fn supervisor_note(event: &SupervisorEvent) -> String {
    match event {
        SupervisorEvent::Started(body) => match body.previous_alive_until_us {
            Some(until) => {
                format!("version {}; the one before lived until {}", body.version, rfc3339(until))
            }
            None => format!("version {}", body.version),
        },
        SupervisorEvent::Stopped(_) => String::new(),
    }
}

fn root_note(event: &RootEvent) -> String {
    match event {
        RootEvent::RootUnconfirmed(body) => body.reason.clone(),
        RootEvent::RootAdopted(body) => body.place.path.clone(),
    }
}

fn journal_note(event: &JournalEvent) -> String {
    match event {
        JournalEvent::Sealed { next } => format!("the next segment is {next}"),
        JournalEvent::TailCut { segment, offset, length, .. } => format!(
            "{length} bytes that a dead writer left at offset {offset} of segment {segment} were put aside"
        ),
        JournalEvent::Salvaged { last_kept, first_lost, lost } => {
            format!("kept up to {last_kept}, lost from {first_lost} on ({lost} events, 0: unknown)")
        }
        JournalEvent::Restored { last, taken_us, backup } => format!(
            "from backup {}, taken {}, which ends at seq {last}; later events are not here",
            hex_prefix(backup),
            rfc3339(*taken_us)
        ),
        JournalEvent::Imported { last, from, .. } => {
            format!("from an export of root {from} that ends at seq {last}")
        }
        JournalEvent::Upgraded { from, to, needs } => {
            format!("from format {from} to {to}; it needs cocoon {needs} or newer")
        }
        JournalEvent::Archived { from, first, .. } => {
            format!("events {from} to {} were moved away", first.saturating_sub(1))
        }
        _ => String::new(),
    }
}

fn noted(noted: &Noted) -> String {
    let (seq, at_us) = (noted.seq, noted.at_us);
    match &noted.note {
        Note::Begins(moved_to) => marked('>', seq, at_us, &begins(seq, moved_to.as_deref())),
        Note::NotDurable => {
            marked('>', seq, at_us, "what follows was written and is not known to be durable yet")
        }
        Note::Reboot(from, to) => {
            marked('^', seq, at_us, &format!("host rebooted (boot {from} ended, boot {to} began)"))
        }
        Note::ClockSet(by_us) => marked('~', seq, at_us, &clock_set(*by_us)),
        Note::Fault(fault) if fault.kind.is_damage() => {
            marked('x', seq, at_us, &format!("DAMAGE {fault}"))
        }
        Note::Fault(fault) => marked('>', seq, at_us, &fault.to_string()),
        Note::Death(it) => death(seq, at_us, it),
    }
}

fn begins(seq: u64, moved_to: Option<&str>) -> String {
    let before = seq.saturating_sub(1);
    let moved = moved_to.map(|to| format!("; events up to {before} were moved to {to}"));
    format!("history begins at seq {seq}{}", moved.unwrap_or_default())
}

fn marked(mark: char, seq: u64, at_us: Option<i64>, text: &str) -> String {
    let time = at_us.map_or_else(|| "-".to_owned(), rfc3339);
    plain(format!("{mark} {seq:>7}  {time:<27}  {text}"))
}

fn clock_set(by_us: i64) -> String {
    let direction = if by_us < 0 { "back" } else { "forward" };
    let us = by_us.unsigned_abs();
    format!("wall clock set {direction} by {}.{:03} s", us / 1_000_000, us / 1000 % 1000)
}

fn death(seq: u64, at_us: Option<i64>, death: &Death) -> String {
    let (last_seq, last_us, event) = &death.last;
    let after = format!("after {event} at seq {last_seq}, {}", rfc3339(*last_us));
    let found = match &death.found_by {
        Some(actor) => format!("; {} found its lock free", Actor::to_string(actor)),
        None => "; with its host".to_owned(),
    };
    let subject = subject(&death.subject, &death.name);
    marked('!', seq, at_us, &format!("{} on {subject} died {after}{found}", death.actor))
}
