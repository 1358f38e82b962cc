//! The engine: runs decisions and what they owe against a real host.
//!
//! ```text
//!   verb -> enter: ops lock, finish what a dead operation left -> decide -> drive: step, effect, outcome, ... -> answer
//! ```
//!
//! [`effect`] is the only door to the world; [`drive`] the only loop. [`ledger`] holds the journal and the folded state.

pub mod adopt;
pub mod archive;
pub mod base;
pub mod birth;
pub mod caller;
pub mod drive;
pub mod effect;
mod enter;
pub mod error;
pub mod fold;
pub mod follow;
pub mod gc;
pub mod image;
mod launch;
pub mod ledger;
pub mod observe;
mod power;
pub(crate) mod random;
pub mod reclaim;
pub mod removal;
pub mod resolve;
mod room;
pub mod standing;
mod steps;
mod storage;
mod strays;
pub mod transfer;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use cocoon_model::id::VmId;
use cocoon_model::record::{Accelerator, VmRecord};
use cocoon_model::view::View as _;
use uuid::Uuid;

pub use caller::Caller;
pub use error::{EngineError, ErrorKind};
use ledger::Ledger;

use crate::home::Home;
use crate::host::lock::Locks;
use crate::host::process::ProcessTable;
use crate::host::qemu::{Qemu, probe};
use crate::host::vmm::Backend;
use crate::settings::Settings;

/// The engine of one root.
#[derive(Debug)]
pub struct Engine {
    settings: Settings,
    home: Home,
    locks: Locks,
    ledger: Mutex<Ledger>,
    backend: Box<dyn Backend>,
    processes: OnceLock<ProcessTable>,
}

impl Engine {
    /// Opens a root, creating it on first use.
    ///
    /// # Errors
    /// A root that cannot be used, with the reason.
    pub fn open(settings: Settings) -> Result<Self, EngineError> {
        let home = Home::open(&settings)?;
        let locks = Locks::open(&settings.root_dir)?;
        let mut ledger = Ledger::of_root(&settings.root_dir.join("journal"), home.uuid())?;
        ledger.stand_at(home.presence().clone());
        let ledger = Mutex::new(ledger);
        Home::note_journal(&settings.root_dir)?;
        let backend = Box::new(Qemu::new(settings.qemu_binary.clone()));
        Ok(Self { settings, home, locks, ledger, backend, processes: OnceLock::new() })
    }

    /// The settings in force.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The locks of this root.
    #[must_use]
    pub fn locks(&self) -> &Locks {
        &self.locks
    }

    /// The hypervisor.
    #[must_use]
    pub fn backend(&self) -> &dyn Backend {
        self.backend.as_ref()
    }

    /// The mark that this root's directories carry.
    #[must_use]
    pub fn root_uuid(&self) -> Uuid {
        self.home.uuid()
    }

    /// The journal with the state. A thread that panicked while it held it leaves nothing half done in memory: each
    /// transaction begins by catching up with the disk.
    pub fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the journal has ever named; read beside the state, so that nobody waits for this walk over all of history.
    fn named(&self) -> Result<ledger::Named, EngineError> {
        ledger::named(&self.settings.root_dir.join("journal"))
    }

    /// A VM as of now.
    ///
    /// # Errors
    /// If the state cannot be read.
    pub fn vm(&self, id: VmId) -> Result<Option<Arc<VmRecord>>, EngineError> {
        Ok(self.ledger().refresh()?.vm(id)?)
    }

    /// All VMs, oldest first.
    ///
    /// # Errors
    /// If the state cannot be read.
    pub fn vms(&self) -> Result<Vec<Arc<VmRecord>>, EngineError> {
        let mut vms = self.ledger().refresh()?.vms()?;
        vms.sort_by_key(|record| (record.notes.created_us, record.core.id));
        Ok(vms)
    }

    /// The VM that a reference means.
    ///
    /// # Errors
    /// If there is none, or several.
    pub fn resolve(&self, reference: &str) -> Result<VmId, EngineError> {
        resolve::vm(self.ledger().refresh()?, reference)
    }

    /// The accelerator of the next launch.
    #[must_use]
    pub fn accelerator(&self) -> Accelerator {
        let (accelerator, reason) = self.choose_accelerator();
        tracing::debug!(?accelerator, "{reason}");
        accelerator
    }

    /// The accelerator of the next launch, and why. A host that cannot be told gets emulation.
    #[must_use]
    pub fn choose_accelerator(&self) -> (Accelerator, String) {
        let host = self.backend.binary().map_err(|error| error.to_string()).and_then(|binary| {
            probe::HostIdentity::now(&binary).map_err(|error| error.to_string())
        });
        match host {
            Ok(host) => {
                let verdict = probe::KvmVerdict::remembered(&self.kvm_verdict_path());
                probe::choose(self.settings.accelerator, verdict.as_ref(), &host)
            }
            Err(reason) => (Accelerator::Tcg, reason),
        }
    }

    /// Where the verdict about KVM on this host is remembered.
    #[must_use]
    pub fn kvm_verdict_path(&self) -> PathBuf {
        self.settings.root_dir.join("kvm.json")
    }

    fn vmm_binary_name(&self) -> String {
        let binary: &Path = &self.settings.qemu_binary;
        binary.file_name().unwrap_or(binary.as_os_str()).to_string_lossy().into_owned()
    }
}
