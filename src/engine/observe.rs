//! What can be seen of a VM: its ops lock, and whether its VMM lives.
//!
//! The VMM lock is the proof of life: every launch takes it, and the VMM alone inherits it. Free means dead. Held means
//! alive or starting; then the recorded identity, or a scan of the processes, says which process it is. Whatever cannot be
//! told is inconclusive, and an inconclusive look never ends anything.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cocoon_model::command::{Command, VmmSeen};
use cocoon_model::decide::Decision;
use cocoon_model::id::VmId;
use cocoon_model::record::{self, LaunchPhase, VmRecord};
use cocoon_model::recover::{LockSeen, Seen};
use cocoon_model::sight::{Conclusion, HOLDER_NOT_FOUND, VmmLock, conclude};
use uuid::Uuid;

use super::drive::cut_text;
use super::{Caller, Engine, EngineError};
use crate::host::boot;
use crate::host::lock::{Observed, OpsGuard};
use crate::host::process::{Liveness, ProcessIdentity, ProcessTable};
use crate::host::vmm::{ExitReason, RuntimePaths, early_exit_report};

/// The identity as the host knows it.
pub(crate) fn host_identity(identity: &record::ProcessIdentity) -> ProcessIdentity {
    ProcessIdentity {
        pid: identity.pid,
        start_time: identity.start_time,
        boot_id: Uuid::from_u128(identity.boot_id),
        pid_namespace: identity.pid_namespace,
    }
}

/// The identity as the journal knows it.
pub(crate) fn journal_identity(identity: &ProcessIdentity) -> record::ProcessIdentity {
    record::ProcessIdentity {
        pid: identity.pid,
        start_time: identity.start_time,
        boot_id: identity.boot_id.as_u128(),
        pid_namespace: identity.pid_namespace,
    }
}

/// How long a process may take to be torn down, on a busy machine.
const TEARDOWN_PATIENCE: Duration = Duration::from_secs(2);
const TEARDOWN_RETRY: Duration = Duration::from_millis(5);

impl Engine {
    /// What is seen of the VMM of a record.
    ///
    /// # Errors
    /// If its lock cannot be looked at.
    pub fn observe_vmm(&self, record: &VmRecord) -> Result<VmmSeen, EngineError> {
        let known = record.core.launch.and_then(|launch| launch.identity);
        let recorded = self.recorded_process(known.as_ref());
        let foreign = known.is_some_and(|identity| self.is_foreign(&identity));
        let lock = || {
            Ok::<_, EngineError>(match self.locks().observe_vmm(record.core.id.as_str())? {
                Observed::Free => VmmLock::Free,
                Observed::Held(_) => VmmLock::Held,
                Observed::NoFile => VmmLock::NoFile,
            })
        };
        Ok(match conclude(&record.core, recorded, foreign, lock)? {
            Conclusion::Seen(seen) => seen,
            Conclusion::Scan { otherwise } => self.scan(record, otherwise),
        })
    }

    /// What is seen of the VMM of the guarded VM. Nobody starts one meanwhile, so a lock whose holder cannot be found is
    /// that of a process which is being torn down, a launcher that was killed or the VMM itself: it is given its time.
    pub(super) fn see_vmm(
        &self,
        _guard: &OpsGuard,
        record: &VmRecord,
    ) -> Result<VmmSeen, EngineError> {
        let deadline = Instant::now() + TEARDOWN_PATIENCE;
        loop {
            match self.observe_vmm(record)? {
                VmmSeen::Inconclusive(reason)
                    if reason == HOLDER_NOT_FOUND && Instant::now() < deadline =>
                {
                    // Waiting in the lock itself would make others believe that a VMM lives.
                    std::thread::sleep(TEARDOWN_RETRY);
                }
                seen => return Ok(seen),
            }
        }
    }

    /// What a list shows of the VMM of a record. Its held lock is enough of a proof of life for that, and cheaper to look at
    /// than its process; whatever is not plain is looked at closely.
    ///
    /// # Errors
    /// If its lock cannot be looked at.
    pub fn glance(&self, record: &VmRecord) -> Result<VmmSeen, EngineError> {
        let up = record.core.launch.filter(|launch| launch.phase == LaunchPhase::Up);
        match up.and_then(|launch| launch.identity) {
            Some(identity) if self.locks().vmm_is_held(record.core.id.as_str())? => {
                Ok(VmmSeen::Alive(identity))
            }
            Some(_) | None => self.observe_vmm(record),
        }
    }

    /// What is seen of the process that a record names; `Dead` if it names none.
    fn recorded_process(&self, known: Option<&record::ProcessIdentity>) -> VmmSeen {
        let Some(identity) = known else { return VmmSeen::Dead };
        match self.liveness(identity) {
            Liveness::Dead => VmmSeen::Dead,
            Liveness::Alive => VmmSeen::Alive(*identity),
            Liveness::Inconclusive(reason) => VmmSeen::Inconclusive(reason),
        }
    }

    /// Whether a recorded process lived in a pid namespace that cannot be seen from here; it may have ended with it.
    fn is_foreign(&self, identity: &record::ProcessIdentity) -> bool {
        self.processes().is_ok_and(|table| table.is_foreign(&host_identity(identity)))
    }

    /// Whether a recorded process lives. The boot and the namespace of this process are read once.
    pub(super) fn liveness(&self, identity: &record::ProcessIdentity) -> Liveness {
        match self.processes() {
            Ok(table) => table.liveness(&host_identity(identity)),
            Err(reason) => Liveness::Inconclusive(reason),
        }
    }

    /// A view that could not be had is tried again by the next who asks.
    fn processes(&self) -> Result<&ProcessTable, String> {
        if let Some(table) = self.processes.get() {
            return Ok(table);
        }
        let table = ProcessTable::host().map_err(|error| error.to_string())?;
        Ok(self.processes.get_or_init(|| table))
    }

    /// Looks for a process that runs this VM's API socket; `otherwise` if there is none.
    fn scan(&self, record: &VmRecord, otherwise: VmmSeen) -> VmmSeen {
        let (run_dir, log_dir) = (Path::new(&record.spec.run_dir), Path::new(&record.spec.log_dir));
        let seen = match RuntimePaths::new(run_dir, log_dir) {
            Ok(paths) => self.scan_for(&paths.api_socket),
            Err(error) => VmmSeen::Inconclusive(error.to_string()),
        };
        if seen == VmmSeen::Dead { otherwise } else { seen }
    }

    /// Looks for a VMM by the path of its API socket.
    pub(super) fn scan_for(&self, api_socket: &Path) -> VmmSeen {
        let table = match self.processes() {
            Ok(table) => table,
            Err(reason) => return VmmSeen::Inconclusive(reason),
        };
        match table.scan(&self.vmm_binary_name(), api_socket) {
            Err(inconclusive) => VmmSeen::Inconclusive(inconclusive.to_string()),
            Ok(found) => match found.as_slice() {
                [] => VmmSeen::Dead,
                [one] => VmmSeen::Alive(journal_identity(one)),
                several => {
                    let pids: Vec<String> =
                        several.iter().map(|found| found.pid.to_string()).collect();
                    VmmSeen::Inconclusive(format!("several processes run it: {}", pids.join(", ")))
                }
            },
        }
    }

    /// What is seen of a VM by somebody who holds no lock of it.
    ///
    /// # Errors
    /// If its locks cannot be looked at.
    pub fn observe(&self, record: &VmRecord) -> Result<Seen, EngineError> {
        let lock = match self.locks().observe_ops(record.core.id.as_str())? {
            Observed::Free | Observed::NoFile => LockSeen::Free,
            Observed::Held(_) => LockSeen::Held,
        };
        Ok(Seen { lock, vmm: self.observe_vmm(record)? })
    }

    /// What is seen of many, each with its record. What cannot be looked at cannot be told, and stands in nobody's way.
    pub fn survey(&self, records: Vec<Arc<VmRecord>>) -> Vec<(Arc<VmRecord>, Seen)> {
        let look = |record: Arc<VmRecord>| {
            let seen = self.observe(&record).unwrap_or_else(|error| Seen {
                lock: LockSeen::Held,
                vmm: VmmSeen::Inconclusive(error.to_string()),
            });
            (record, seen)
        };
        records.into_iter().map(look).collect()
    }

    /// Journals that VMMs are proven dead, each with the generation that was seen running. Needs no lock; of those whose
    /// record has moved on, or on which an operation is in flight, nothing is said. Returns those that were news.
    ///
    /// # Errors
    /// Those of the journal; exits before the failing one may be recorded.
    pub fn record_exits(
        &self,
        caller: &Caller,
        exits: &[(VmId, u64)],
    ) -> Result<Vec<VmId>, EngineError> {
        let mut commands = Vec::with_capacity(exits.len());
        for &(id, generation) in exits {
            let record = self.vm(id)?;
            if let Some(record) = &record {
                // An exit would bring an older record up to the generation that proves it older.
                self.refuse_older(caller, record)?;
            }
            let evidence = record.and_then(|record| self.exit_evidence(&record));
            commands.push(Command::ObserveExit { id, generation, evidence });
        }
        let decisions = self.ledger().submit_together(caller, &commands)?;
        let recorded = exits.iter().zip(decisions);
        let recorded = recorded.filter(|(_, decision)| matches!(decision, Decision::Accepted(_)));
        Ok(recorded.map(|((id, _), _)| *id).collect())
    }

    /// What the VMM left word of when it ended; with the ends of its logs if that was soon after its start.
    pub(crate) fn exit_evidence(&self, record: &VmRecord) -> Option<String> {
        let paths = super::launch::paths(record).ok()?;
        let reason = self.backend().exit_reason(&paths);
        let age = boot::wall_us().checked_sub(record.notes.started_us?.unsigned_abs());
        let age = Duration::from_micros(age.unwrap_or(u64::MAX));
        let early = early_exit_report(&paths, &reason, record.spec.config.memory, age);
        let known = (reason != ExitReason::Unknown).then(|| reason.to_string());
        early.or(known).map(cut_text)
    }
}
