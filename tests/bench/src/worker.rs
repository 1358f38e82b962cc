//! One process of a storm.

use std::path::Path;

use clap::ValueEnum;
use cocoon::engine::Caller;
use cocoon::engine::ledger::Ledger;
use cocoon_model::command::Command;
use cocoon_model::decide::Decision;
use cocoon_model::id::{ID_LEN, Id};
use cocoon_model::record::{
    BackendKind, Blob, Boot, DiskFormat, ImageContent, ImageType, OperationKind, VmConfig, VmSpec,
};
use cocoon_model::step::{Outcome as StepOutcome, Step};
use cocoon_model::view::View as _;
use uuid::Uuid;

use crate::{Outcome, peer};

/// What a process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// Nothing
    Empty,
    /// Reserves and commits a VM in cocoon's journal
    Cocoon,
    /// Reserves and commits VMs until it is killed, and says so after each
    Births,
    /// Reserves and commits a VM in SQLite
    Sqlite,
    /// Commits twice as often as a reclaim of cocoon appends
    SqliteReclaim,
}

pub(crate) fn run(kind: Kind, place: &Path) -> Outcome {
    match kind {
        Kind::Empty => Ok(()),
        Kind::Cocoon => {
            let mut ledger = Ledger::open(&place.join("journal"))?;
            birth(&mut ledger, place)?;
            // As every verb does once its answer is out.
            if ledger.owes_tending() {
                ledger.tend(cocoon::host::process::step_back);
            }
            // As a verb does: the process ends here.
            std::mem::forget(ledger);
            Ok(())
        }
        Kind::Births => births(place),
        Kind::Sqlite => peer::reserve_and_commit(&place.join("peer.db")),
        Kind::SqliteReclaim => peer::commits(&place.join("peer.db"), RECLAIM_COMMITS),
    }
}

fn births(place: &Path) -> Outcome {
    let mut ledger = Ledger::open(&place.join("journal"))?;
    loop {
        birth(&mut ledger, place)?;
        println!("born");
    }
}

/// Frames that a reclaim appends: tombstone, begin, and one a step.
pub(crate) const RECLAIM_COMMITS: usize = 5;

/// A new id.
pub(crate) fn new_id() -> Id {
    let mut bytes = [0; ID_LEN];
    let random = Uuid::new_v4().into_bytes().into_iter().chain(Uuid::new_v4().into_bytes());
    for (to, from) in bytes.iter_mut().zip(random) {
        *to = from;
    }
    Id::from_random(bytes)
}

fn accepted(decision: Decision) -> Outcome {
    match decision {
        Decision::Accepted(_) => Ok(()),
        other => Err(format!("not accepted: {other:?}").into()),
    }
}

/// Takes in the image that all stand on.
pub(crate) fn image(ledger: &mut Ledger) -> Outcome {
    let content = ImageContent::Disk {
        disk: Blob { hash: "0".repeat(64), size: 1 << 20 },
        format: DiskFormat::Qcow2,
        virtual_size: 1 << 30,
    };
    let command = Command::ImportImage {
        id: new_id(),
        name: "guest".into(),
        digest: "blake3:0".into(),
        content,
    };
    accepted(ledger.submit(&Caller::new("image import", None)?, &command)?)
}

/// Reserves and commits a VM: two frames.
pub(crate) fn birth(ledger: &mut Ledger, home: &Path) -> Outcome {
    let caller = Caller::new("vm create", None)?;
    let image = ledger.look_ahead()?.image_by_name("guest")?.ok_or("there is no image")?;
    let id = new_id();
    let spec = Box::new(spec(id, home));
    let command =
        Command::Prereserve { id, name: id.to_string(), image, kind: OperationKind::Create, spec };
    accepted(ledger.submit(&caller, &command)?)?;
    let report = Command::Report { id, step: Step::PrepareStorage, outcome: StepOutcome::Done };
    accepted(ledger.submit(&caller, &report)?)
}

/// What is fixed at the birth of a VM of the root in `home`.
pub(crate) fn spec(id: Id, home: &Path) -> VmSpec {
    VmSpec {
        backend: BackendKind::Qemu,
        config: VmConfig {
            cpu: 2,
            memory: 1 << 30,
            storage: 10 << 30,
            queue_size: 0,
            disk_queue_size: 0,
            image: "guest".into(),
            image_digest: format!("blake3:{}", "0".repeat(64)),
            image_type: ImageType::Cloudimg,
            no_direct_io: false,
        },
        boot: Boot::Disk,
        disks: Vec::new(),
        nics: Vec::new(),
        run_dir: home.join(format!("run/qemu/{id}")).to_string_lossy().into_owned(),
        log_dir: home.join(format!("log/qemu/{id}")).to_string_lossy().into_owned(),
    }
}
