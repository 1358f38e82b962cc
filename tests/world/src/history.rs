//! The journal of a root, read by the judge of invariants.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use cocoon::codec::{self, CodecError};
use cocoon::engine::fold::stamp;
use cocoon_journal::{Fold, Frame, Hash, Journal as _, Options, Position, SegmentedJournal};
use cocoon_model::event::Event;
use cocoon_model::invariant::{Judge, Violation};
use cocoon_model::record::{ImageRecord, VmRecord, VmState};

/// Everything that a journal says, folded from its first event on, without a checkpoint.
#[derive(Debug)]
pub struct History {
    /// Records by their ids.
    pub vms: BTreeMap<String, Arc<VmRecord>>,
    /// Images by their ids.
    pub images: BTreeMap<String, Arc<ImageRecord>>,
    /// What the judge found.
    pub violations: Vec<Violation>,
    /// All VMs that ever were.
    pub ever: BTreeSet<String>,
    /// Where it ends.
    pub end: Position,
}

#[derive(Debug, Default)]
struct Reader {
    judge: Judge,
    ever: BTreeSet<String>,
    position: Position,
}

impl Fold for Reader {
    type Error = CodecError;

    fn position(&self) -> Position {
        self.position
    }

    fn apply(&mut self, frame: &Frame, hash: Hash) -> Result<(), CodecError> {
        for (seq, entry) in frame.events() {
            match codec::decode(entry)? {
                Some(event) => {
                    if let Event::Vm(id, _) = &event {
                        self.ever.insert(id.to_string());
                    }
                    self.judge.next(&stamp(frame, seq), &event);
                }
                None => self.judge.skip(seq),
            }
        }
        self.position = frame.position(hash);
        Ok(())
    }
}

impl History {
    /// Reads the journal of a root; one that nobody made yet is empty.
    ///
    /// # Errors
    /// If it is damaged or cannot be read.
    pub fn of(root: &Path) -> Result<Self, String> {
        let mut reader = Reader::default();
        let journal = root.join("journal");
        if journal.exists() {
            read(&journal, &mut reader).map_err(|error| format!("the journal: {error}"))?;
        }
        let state = reader.judge.state();
        let told = |error: cocoon_model::view::Unreadable| error.to_string();
        let vms = state.vms().map_err(told)?;
        let images = state.images().map_err(told)?;
        Ok(Self {
            vms: vms.into_iter().map(|vm| (vm.core.id.to_string(), vm)).collect(),
            images: images.into_iter().map(|image| (image.core.id.to_string(), image)).collect(),
            violations: reader.judge.violations().to_vec(),
            ever: reader.ever,
            end: reader.position,
        })
    }

    /// The record that holds a name.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&VmRecord> {
        self.vms.values().find(|vm| vm.core.name == name).map(AsRef::as_ref)
    }

    /// The state of the VM that holds a name.
    #[must_use]
    pub fn state_of(&self, name: &str) -> Option<VmState> {
        self.named(name).map(|vm| vm.core.state)
    }
}

/// A reader syncs what it relies on and writes down how far that reaches. So a copy is read, and a crash stays as it is.
fn read(journal: &Path, reader: &mut Reader) -> Result<(), Box<dyn std::error::Error>> {
    let root = journal.parent().unwrap_or(journal);
    let beside = root.parent().unwrap_or(root);
    let copy = tempfile::Builder::new().prefix("journal-").tempdir_in(beside)?;
    copy_files(journal, copy.path())?;
    for part in ["seg", "quarantine"] {
        let from = journal.join(part);
        if from.exists() {
            std::fs::create_dir(copy.path().join(part))?;
            copy_files(&from, &copy.path().join(part))?;
        }
    }
    SegmentedJournal::open(copy.path(), Options::default())?.refresh(reader)?;
    Ok(())
}

fn copy_files(from: &Path, to: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            std::fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}
