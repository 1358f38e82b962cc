//! The VM object of the JSON contract, and how its parts are shown to people.

use cocoon_model::command::VmmSeen;
use cocoon_model::record::{VmRecord, VmState};
use jiff::Timestamp;
use serde::Serialize;

use crate::engine::{Engine, EngineError};

/// A VM, as `vm inspect`, `vm list -o json` and the lifecycle verbs print it. Field names are a contract with embedders;
/// fields may be added, never renamed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VmObject {
    /// Id.
    pub id: String,
    /// `qemu`, `cloud-hypervisor` or `firecracker`.
    pub hypervisor: &'static str,
    /// The state, or `stopped (stale)` if the record says running and the VMM is dead.
    pub state: &'static str,
    /// What was asked for.
    pub config: ConfigObject,
    /// The VMM's process, 0 if none.
    pub pid: u32,
    /// The VMM's API socket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket_path: Option<String>,
    /// Network cards.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub network_configs: Vec<NetworkObject>,
    /// Disks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub storage_configs: Vec<StorageObject>,
    /// It has run at least once.
    pub first_booted: bool,
    /// Counts committed changes of state.
    #[serde(skip_serializing_if = "is_zero")]
    pub transition_generation: u64,
    /// Why it entered its state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_reason: Option<&'static str>,
    /// When it entered its state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_at: Option<String>,
    /// When it was reserved.
    pub created_at: String,
    /// When its record last changed.
    pub updated_at: String,
    /// When it last started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<String>,
    /// When it last stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped_at: Option<String>,
    /// How instructions are run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accelerator: Option<&'static str>,
    /// The last failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<String>,
    /// What the VMM of the last unexpected exit left word of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_evidence: Option<String>,
    /// The operation in flight, or what a dead one left.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation: Option<&'static str>,
    /// The event that last changed it.
    pub seq: u64,
    /// The root is unconfirmed: all of this may be older than what is there.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub root_unconfirmed: bool,
}

/// What was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConfigObject {
    name: String,
    pub(super) cpu: u32,
    pub(super) memory: u64,
    storage: u64,
    queue_size: u32,
    disk_queue_size: u32,
    pub(super) image: String,
    image_digest: String,
    image_type: &'static str,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    no_direct_io: bool,
}

/// A network card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NetworkObject {
    tap: String,
    mac: String,
    num_queues: u32,
    queue_size: u32,
    backend: &'static str,
}

/// A disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StorageObject {
    path: String,
    ro: bool,
    serial: String,
    role: &'static str,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl VmObject {
    /// A VM as it is now, its VMM looked at.
    ///
    /// # Errors
    /// If its lock cannot be looked at.
    pub fn now(engine: &Engine, record: &VmRecord) -> Result<Self, EngineError> {
        let looks_alive = record.core.launch.is_some() || record.core.interval_open;
        let seen = if looks_alive { engine.observe_vmm(record)? } else { VmmSeen::Dead };
        Ok(Self::new(record, &seen))
    }

    /// A VM as its record has it, its VMM not looked at: for what happened in the past.
    #[must_use]
    pub fn recorded(record: &VmRecord) -> Self {
        let launched = record.core.launch.and_then(|launch| launch.identity);
        let seen = match launched.filter(|_| record.core.state == VmState::Running) {
            Some(identity) => VmmSeen::Alive(identity),
            None => VmmSeen::Inconclusive("it was not looked at".to_owned()),
        };
        Self::new(record, &seen)
    }

    /// What a list shows of a VM's VMM.
    ///
    /// # Errors
    /// If its lock cannot be looked at.
    pub fn glance(engine: &Engine, record: &VmRecord) -> Result<VmmSeen, EngineError> {
        let looks_alive = record.core.launch.is_some() || record.core.interval_open;
        if looks_alive { engine.glance(record) } else { Ok(VmmSeen::Dead) }
    }

    /// A VM with what was seen of its VMM.
    #[must_use]
    pub fn new(record: &VmRecord, seen: &VmmSeen) -> Self {
        let (core, spec, notes) = (&record.core, &record.spec, &record.notes);
        let alive = match seen {
            VmmSeen::Alive(identity) => Some(identity.pid),
            VmmSeen::Dead | VmmSeen::Inconclusive(_) => None,
        };
        let stale = core.state == VmState::Running && *seen == VmmSeen::Dead;
        let config = &spec.config;
        Self {
            id: core.id.to_string(),
            hypervisor: spec.backend.as_str(),
            state: if stale { "stopped (stale)" } else { core.state.as_str() },
            config: ConfigObject {
                name: core.name.clone(),
                cpu: config.cpu,
                memory: config.memory,
                storage: config.storage,
                queue_size: config.queue_size,
                disk_queue_size: config.disk_queue_size,
                image: config.image.clone(),
                image_digest: config.image_digest.clone(),
                image_type: config.image_type.as_str(),
                no_direct_io: config.no_direct_io,
            },
            pid: alive.unwrap_or(0),
            socket_path: alive.map(|_| format!("{}/api.sock", spec.run_dir)),
            network_configs: spec
                .nics
                .iter()
                .map(|nic| NetworkObject {
                    tap: String::new(),
                    mac: nic.mac.clone(),
                    num_queues: 1,
                    queue_size: config.queue_size,
                    backend: "user",
                })
                .collect(),
            storage_configs: spec
                .disks
                .iter()
                .map(|disk| StorageObject {
                    path: disk.path.clone(),
                    ro: false,
                    serial: disk.serial.clone(),
                    role: "cow",
                })
                .collect(),
            first_booted: core.first_booted,
            transition_generation: core.generation,
            last_transition_reason: notes.transition_reason.map(|reason| reason.as_str()),
            last_transition_at: notes.transition_us.map(rfc3339),
            created_at: rfc3339(notes.created_us),
            updated_at: rfc3339(notes.updated_us),
            started_at: notes.started_us.map(rfc3339),
            stopped_at: notes.stopped_us.map(rfc3339),
            accelerator: notes.accelerator.map(cocoon_model::record::Accelerator::as_str),
            last_failure: core.failure.clone(),
            exit_evidence: notes.exit_evidence.clone(),
            operation: core.operation.map(|operation| operation.kind.as_str()),
            seq: notes.last_seq,
            root_unconfirmed: false,
        }
    }

    /// The row of a table: id, name, state, processors, memory, storage, address, image, creation.
    #[must_use]
    pub fn row(&self) -> Vec<String> {
        vec![
            self.id.clone(),
            self.config.name.clone(),
            self.state.to_owned(),
            self.config.cpu.to_string(),
            human_size(self.config.memory),
            human_size(self.config.storage),
            "-".to_owned(),
            "-".to_owned(),
            self.config.image.clone(),
            self.created_at.clone(),
        ]
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.config.name
    }
}

/// A time in RFC 3339, in UTC, to the microsecond. Times out of its range are shown as its bounds.
#[must_use]
pub fn rfc3339(us: i64) -> String {
    timestamp(us).to_string()
}

/// The same with all six digits of the microseconds, for columns.
#[must_use]
pub fn rfc3339_fixed(us: i64) -> String {
    format!("{:.6}", timestamp(us))
}

fn timestamp(us: i64) -> Timestamp {
    let bound = if us < 0 { Timestamp::MIN } else { Timestamp::MAX };
    Timestamp::from_microsecond(us).unwrap_or(bound)
}

/// A size for people, in powers of 1024.
#[must_use]
pub fn human_size(bytes: u64) -> String {
    for (shift, unit) in [(40, "T"), (30, "G"), (20, "M"), (10, "K")] {
        if bytes >= 1 << shift {
            let whole = bytes >> shift;
            let tenth = ((bytes >> (shift - 10)) & 1023) * 10 / 1024;
            return if tenth == 0 {
                format!("{whole}{unit}")
            } else {
                format!("{whole}.{tenth}{unit}")
            };
        }
    }
    format!("{bytes}B")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_for_people() {
        assert_eq!(human_size(0), "0B");
        assert_eq!(human_size(512 << 20), "512M");
        assert_eq!(human_size(3 << 29), "1.5G");
    }

    #[test]
    fn times() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339_fixed(1_500_000), "1970-01-01T00:00:01.500000Z");
        assert!(!rfc3339(i64::MAX).is_empty());
        assert!(!rfc3339(i64::MIN).is_empty());
    }
}
