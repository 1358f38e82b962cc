//! `docs/damage.md`.

use std::path::Path;

use crate::Table;
use crate::harm::HARMS;
use crate::world::Subject;

const HEAD: &str = "\
# Damage

What comes of a damaged file of the journal. Each file is damaged in each way, at several places, on a copy of a journal
with sealed segments, checkpoints and several generations of the event store; the commands then open, read, write, verify
and repair it. This page is written by that test (`journal/tests/damage.rs`). What to type is on
[another page](journal-trouble.md).

| Word | What happens | What is lost |
|---|---|---|
| goes on | nothing that a user would notice | nothing |
| made anew | the file is derived: it is kept in `quarantine/` and made anew from the segments | nothing |
| named | commands refuse, name the file and say what to type; `cocoon journal repair` clears it | nothing |
| repaired | commands that need it refuse and name it; `cocoon journal repair` puts the very bytes back, and records `JournalSalvaged` | nothing |
| history lost, named | `cocoon journal repair` names the events and refuses; `--accept-loss` goes on from a checkpoint | the events named; no VM is forgotten |
| events lost, named | `cocoon journal repair` names the events and refuses; `--accept-loss` goes on before them | the events named and those after them |

Where a cell has several words, it depends on the place. Nothing ever panics, and no command ever takes a shorter or
other history for the true one. In the last rows of segments, events are lost only where nothing else has them: the
event store follows some events behind, and a root made of a backup (`cocoon journal repair --from DIR`) has the rest.
";

/// Compares the page with what was found; with `COCOON_BLESS` set, writes it.
pub(crate) fn check(subjects: &[Subject], table: &Table) {
    let mut page = HEAD.to_owned();
    for (column, harm) in HARMS.iter().enumerate() {
        page.push_str(&format!(
            "\n## {}\n\n| File | Outcome |\n|---|---|\n",
            capital(harm.title())
        ));
        for (row, subject) in subjects.iter().enumerate() {
            let Some(outcomes) = table.get(&(row, column)) else { continue };
            let words: Vec<String> = outcomes.iter().map(ToString::to_string).collect();
            page.push_str(&format!("| {} | {} |\n", subject.name, words.join("; ")));
        }
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/damage.md");
    if std::env::var_os("COCOON_BLESS").is_some() {
        return std::fs::write(file, page).unwrap();
    }
    let kept = std::fs::read_to_string(file).unwrap_or_default();
    let differing = kept.lines().zip(page.lines()).find(|(kept, made)| kept != made);
    assert!(
        kept == page,
        "docs/damage.md is not what was found now (COCOON_BLESS=1 rewrites it); first difference: {differing:?}"
    );
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}
