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

use std::path::Path;

use uuid::Uuid;

use crate::engine::EngineError;
use crate::host::directory::{self, DirectoryError, Kind};
use crate::settings::Settings;

/// An opened root.
#[derive(Debug, Clone)]
pub struct Home {
    uuid: Uuid,
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
        let uuid = claim(&settings.root_dir, Kind::Root, Uuid::new_v4())?;
        for (path, kind) in marked.into_iter().skip(1) {
            let owner = claim(path, kind, uuid)?;
            if owner != uuid {
                return Err(EngineError::Host(format!(
                    "{} belongs to another root (its uuid is {owner}, this root's is {uuid}); choose a directory of its own with --run-dir or --log-dir",
                    path.display()
                )));
            }
        }
        Ok(Self { uuid })
    }

    /// The mark that this root's directories carry.
    #[must_use]
    pub fn uuid(&self) -> Uuid {
        self.uuid
    }
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
