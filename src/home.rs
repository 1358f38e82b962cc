//! A root: the directories of one installation, and the mark that says so.
//!
//! ```text
//!   ROOT/  journal/  what happened, and so what is
//!          locks/    who works on what
//!          images/   blobs by hash
//!          run/      RUN: disks and sockets, a directory a VM
//!          log/      LOG: logs, a directory a VM
//! ```
//!
//! Root, run and log directory carry the root's uuid, so that nothing of another installation is ever touched.

use std::fs::File;
use std::path::Path;

use uuid::Uuid;

use crate::engine::EngineError;
use crate::engine::effect::perform;
use crate::engine::ledger::Ledger;
use crate::engine::standing::Presence;
use crate::host::directory::{self, DirectoryError, Kind};
use crate::settings::Settings;

/// The file that says that the root has a journal.
const JOURNAL_NOTE: &str = ".cocoon-journal";

/// An opened root.
#[derive(Debug, Clone)]
pub struct Home {
    uuid: Uuid,
    presence: Presence,
}

impl Home {
    /// Opens a root, making its directories on first use.
    ///
    /// # Errors
    /// A root on a network file system, of another program, of another uid, or that cannot be written.
    pub fn open(settings: &Settings) -> Result<Self, EngineError> {
        let marked = [
            (&settings.root_dir, Kind::Root),
            (&settings.run_dir, Kind::Run),
            (&settings.log_dir, Kind::Log),
        ];
        for (path, _) in marked {
            if path.exists() {
                directory::refuse_foreign_store(path).map_err(told)?;
            }
        }
        Self::refuse_lost_journal(&settings.root_dir)?;
        let uuid = identify(&settings.root_dir)?;
        let presence = Presence::read(&settings.root_dir).map_err(told)?;
        for (path, kind) in marked.into_iter().skip(1) {
            let owner = claim(path, kind, uuid)?;
            if owner != uuid {
                return Err(EngineError::Host(format!(
                    "{} belongs to another root (its uuid is {owner}, this root's is {uuid}); choose a directory of its own with --run-dir or --log-dir",
                    path.display()
                )));
            }
        }
        Ok(Self { uuid, presence })
    }

    /// The uuid that a root is marked with, if it is; makes nothing.
    ///
    /// # Errors
    /// If the mark cannot be read.
    pub fn uuid_of(root: &Path) -> Result<Option<Uuid>, EngineError> {
        let marker = directory::marker(root, Kind::Root).map_err(told)?;
        Ok(marker.map(|marker| marker.root))
    }

    /// Refuses a root that had a journal and has none: a new one would know of none of its VMs.
    ///
    /// # Errors
    /// If the journal is gone.
    pub fn refuse_lost_journal(root: &Path) -> Result<(), EngineError> {
        let journal = root.join("journal");
        if !has_journal(root)? && root.join(JOURNAL_NOTE).exists() {
            return Err(EngineError::Host(format!(
                "the journal of {} is gone: {} holds no segment, and VMs may be there that nobody would know of; `cocoon journal repair` puts back what is kept elsewhere, `cocoon journal restore FILE` a backup; or choose another root",
                root.display(),
                journal.display()
            )));
        }
        Ok(())
    }

    /// Notes, once, that the root has a journal.
    ///
    /// # Errors
    /// If the note cannot be written.
    pub fn note_journal(root: &Path) -> Result<(), EngineError> {
        let note = root.join(JOURNAL_NOTE);
        if note.exists() {
            return Ok(());
        }
        let noted = perform("home.note-journal", || {
            File::create(&note)?;
            File::open(root)?.sync_all()
        });
        noted.map_err(EngineError::io("note the journal in", note))
    }

    /// The mark that this root's directories carry.
    #[must_use]
    pub fn uuid(&self) -> Uuid {
        self.uuid
    }

    /// Where it is, and where it was when it was marked.
    #[must_use]
    pub fn presence(&self) -> &Presence {
        &self.presence
    }

    /// Marks a root whose marker is gone as the one that it is.
    ///
    /// # Errors
    /// If the marker cannot be written.
    pub fn mark_again(root: &Path, uuid: Uuid) -> Result<(), EngineError> {
        perform("home.mark-root", || directory::mark(root, Kind::Root, uuid)).map_err(told)?;
        Ok(())
    }
}

/// Whether there is a journal with something in it.
fn has_journal(root: &Path) -> Result<bool, EngineError> {
    let segments = root.join("journal/seg");
    match std::fs::read_dir(&segments) {
        Ok(mut entries) => Ok(entries.next().is_some()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        // What cannot be looked at is not gone.
        Err(error) => Err(EngineError::io("list", segments)(error)),
    }
}

/// The uuid of a root. One whose marker is gone is not a new one: its journal says which it is, and nobody marks it again
/// before somebody has looked at it.
fn identify(root: &Path) -> Result<Uuid, EngineError> {
    if has_journal(root)? && directory::marker(root, Kind::Root).map_err(told)?.is_none() {
        return Ok(Ledger::open(&root.join("journal"))?.journal().root());
    }
    claim(root, Kind::Root, Uuid::new_v4())
}

/// The uuid that a directory is marked with; makes and marks it if nobody did.
fn claim(path: &Path, kind: Kind, uuid: Uuid) -> Result<Uuid, EngineError> {
    if let Some(marker) = directory::marker(path, kind).map_err(told)? {
        return Ok(marker.root);
    }
    let marker = directory::mark(path, kind, uuid).map_err(told)?;
    directory::refuse_network_file_system(path).map_err(told)?;
    Ok(marker.root)
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn told(error: DirectoryError) -> EngineError {
    EngineError::Host(error.to_string())
}
