//! The state as it was at a point.

use cocoon_journal::inspect::Piece;
use cocoon_model::command::VmmSeen;
use cocoon_model::record::VmRecord;
use serde_json::{Value, json};

use super::filter::fits_vm;
use super::point::Point;
use super::timeline::Timeline;
use super::track::{Tracker, image_state, vm_state};
use crate::cli::vm_object::{VmObject, rfc3339};

/// The state as it was right after an event.
#[derive(Debug)]
pub struct Snapshot {
    /// The last event; 0 if there was none yet.
    pub seq: u64,
    /// Its time, microseconds since 1970.
    pub at_us: i64,
    /// All subjects.
    pub tracker: Tracker,
    /// The VM that is shown (its name, its id, or the beginning of its id); all if none is named.
    pub only: Option<String>,
}

/// Goes through a history up to a point.
pub fn at<I: Iterator<Item = Piece>>(timeline: &mut Timeline<I>, point: Point) -> Snapshot {
    timeline.advance(point);
    let (seq, at_us) = timeline.as_of();
    Snapshot { seq, at_us, tracker: timeline.tracker().clone(), only: None }
}

impl Snapshot {
    /// Shows of the VMs only the one that a reference means.
    #[must_use]
    pub fn of_vm(self, reference: Option<&str>) -> Self {
        Self { only: reference.map(str::to_owned), ..self }
    }

    /// VMs that were there and are shown, oldest first.
    #[must_use]
    pub fn vms(&self) -> Vec<&VmRecord> {
        let only = self.only.as_deref();
        let records = self.tracker.vms().filter_map(|(_, vm)| vm.record.as_deref());
        let shown = records.filter(|VmRecord { core, .. }| {
            only.is_none_or(|only| fits_vm(only, core.id.as_str(), &core.name))
        });
        let mut vms: Vec<&VmRecord> = shown.collect();
        vms.sort_by_key(|record| (record.notes.created_us, record.core.id));
        vms
    }

    /// Whether something of a VM's history is missing.
    #[must_use]
    pub fn is_certain(&self, record: &VmRecord) -> bool {
        self.tracker.vm(record.core.id).is_some_and(|vm| vm.certain)
    }

    /// The state as a JSON object.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let images = self.tracker.images().filter_map(|(id, image)| {
            let record = image.record.as_deref()?;
            Some(json!({
                "id": id,
                "name": record.core.name,
                "digest": record.core.digest,
                "state": image_state(record),
                "created_at": rfc3339(record.created_us),
            }))
        });
        let daemon = self.tracker.supervisor();
        json!({
            "seq": self.seq,
            "time": (self.seq > 0).then(|| rfc3339(self.at_us)),
            "certain": !self.tracker.is_lossy(),
            "vms": self.vms().into_iter().map(object).collect::<Vec<_>>(),
            "images": images.collect::<Vec<_>>(),
            "daemon": {
                "running": daemon.running,
                "started_at": (daemon.started_us != 0).then(|| rfc3339(daemon.started_us)),
                "stopped_at": daemon.stopped_us.map(rfc3339),
            },
        })
    }
}

/// A VM as its record says, the state of its removal included.
#[must_use]
pub fn object(record: &VmRecord) -> VmObject {
    let identity = record.core.launch.and_then(|launch| launch.identity);
    // What became of the process since then is not the question.
    let recorded = identity.map_or_else(
        || VmmSeen::Inconclusive("only the journal was looked at".to_owned()),
        VmmSeen::Alive,
    );
    VmObject { state: vm_state(record), ..VmObject::new(record, &recorded) }
}
