//! The records of all subjects as of the last event that was read.
//!
//! Each subject is folded on its own by the model's fold, so that one illegal event, or events lost to damage, spoil
//! what is known of no other subject. After a loss every record is uncertain (shown with `?`) until its VM is made anew.

use std::collections::BTreeMap;
use std::sync::Arc;

use cocoon_journal::FrameHeader;
use cocoon_model::apply::{IllegalEvent, apply_image, apply_root, apply_supervisor, apply_vm};
use cocoon_model::event::vm::{Adopted, Prereserved};
use cocoon_model::event::{Event, ImageEvent, Stamp, SupervisorEvent, VmEvent};
use cocoon_model::id::{ImageId, OperationId, VmId};
use cocoon_model::record::{ImageRecord, RemovalPhase, RootRecord, SupervisorRecord, VmRecord};
use cocoon_model::view::{Base as _, Lookup};
use uuid::Uuid;

use super::line::{Actor, Death};
use crate::engine::base::CheckpointBase;

/// An operation in flight: who it is, and what it wrote last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// The process.
    pub actor: Actor,
    /// The operation.
    pub operation: OperationId,
    /// The boot in which it wrote.
    pub boot_id: Uuid,
    /// Its last event.
    pub seq: u64,
    /// When that was, microseconds since 1970.
    pub at_us: i64,
    /// The kind of its last event.
    pub event: &'static str,
    /// Its death was told already.
    pub told_dead: bool,
}

/// A subject that is there, or was.
#[derive(Debug, Clone)]
pub struct Tracked<R> {
    /// Its record; `None` once it is gone.
    pub record: Option<Arc<R>>,
    /// Its name, or its last one.
    pub name: String,
    /// The operation in flight on it.
    pub owner: Option<Owner>,
    /// Nothing that happened to it is missing.
    pub certain: bool,
    /// The last event about it, and who wrote it.
    pub last: (u64, Actor),
}

/// All subjects.
#[derive(Debug, Clone, Default)]
pub struct Tracker {
    vms: BTreeMap<VmId, Tracked<VmRecord>>,
    images: BTreeMap<ImageId, Tracked<ImageRecord>>,
    supervisor: SupervisorRecord,
    root: RootRecord,
    daemon: Option<Owner>,
    lossy: bool,
}

/// What an event did to its subject.
#[derive(Debug, Default)]
pub struct Effect {
    /// The owner that must be dead for this event to have happened.
    pub death: Option<Death>,
    /// The event does not fit.
    pub illegal: Option<IllegalEvent>,
}

impl Tracker {
    /// A VM that is there, or was.
    #[must_use]
    pub fn vm(&self, id: VmId) -> Option<&Tracked<VmRecord>> {
        self.vms.get(&id)
    }

    /// All VMs that are there, or were.
    pub fn vms(&self) -> impl Iterator<Item = (VmId, &Tracked<VmRecord>)> {
        self.vms.iter().map(|(id, vm)| (*id, vm))
    }

    /// An image that is there, or was.
    #[must_use]
    pub fn image(&self, id: ImageId) -> Option<&Tracked<ImageRecord>> {
        self.images.get(&id)
    }

    /// All images that are there, or were.
    pub fn images(&self) -> impl Iterator<Item = (ImageId, &Tracked<ImageRecord>)> {
        self.images.iter().map(|(id, image)| (*id, image))
    }

    /// What is known of the daemon.
    #[must_use]
    pub fn supervisor(&self) -> &SupervisorRecord {
        &self.supervisor
    }

    /// The root itself.
    #[must_use]
    pub fn root(&self) -> &RootRecord {
        &self.root
    }

    /// The daemon that started last and did not stop in good order, as far as is known.
    #[must_use]
    pub fn daemon(&self) -> Option<&Owner> {
        self.daemon.as_ref()
    }

    /// Begins with the state that a base holds.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn stand_on(&mut self, base: &CheckpointBase) -> Lookup<()> {
        for record in base.vms("")? {
            let (id, name, last) =
                (record.core.id, record.core.name.clone(), record.notes.last_seq);
            self.vms.insert(id, Tracked::known(record, name, last));
        }
        for record in base.images()? {
            let (id, name) = (record.core.id, record.core.name.clone());
            self.images.insert(id, Tracked::known(record, name, 0));
        }
        self.supervisor = base.supervisor()?;
        Ok(())
    }

    /// Events are missing from here on: nothing is certain any more.
    pub fn lose(&mut self) {
        self.lossy = true;
        self.vms.values_mut().for_each(|vm| vm.certain = false);
        self.images.values_mut().for_each(|image| image.certain = false);
    }

    /// Whether events are missing.
    #[must_use]
    pub fn is_lossy(&self) -> bool {
        self.lossy
    }

    /// The host went down: whoever was at work died with it.
    pub fn reboot(&mut self) -> Vec<Death> {
        let vms = self
            .vms
            .iter_mut()
            .filter_map(|(id, vm)| Some((format!("vm/{id}"), vm.name.clone(), vm.owner.as_mut()?)));
        let images = self.images.iter_mut().filter_map(|(id, image)| {
            Some((format!("image/{id}"), image.name.clone(), image.owner.as_mut()?))
        });
        let daemon =
            self.daemon.iter_mut().map(|owner| ("supervisor".to_owned(), String::new(), owner));
        vms.chain(images)
            .chain(daemon)
            .filter_map(|(subject, name, owner)| Death::of(owner, subject, &name, None))
            .collect()
    }

    /// Folds an event in.
    pub fn apply(&mut self, header: &FrameHeader, stamp: &Stamp, event: &Event) -> Effect {
        match event {
            Event::Vm(id, event) => self.apply_vm(header, stamp, *id, event),
            Event::Image(id, event) => self.apply_image(header, stamp, *id, event),
            Event::Supervisor(event) => self.apply_supervisor(header, stamp, event),
            Event::Root(event) => {
                self.root = apply_root(&self.root, stamp, event);
                Effect::default()
            }
        }
    }

    fn apply_vm(
        &mut self,
        header: &FrameHeader,
        stamp: &Stamp,
        id: VmId,
        event: &VmEvent,
    ) -> Effect {
        let actor = Actor::of(header);
        let lossy = self.lossy;
        let vm = self.vms.entry(id).or_insert_with(|| Tracked::new(lossy, &actor));
        let mut effect = Effect::default();
        if let Some(previous) = took_over(event) {
            let subject = format!("vm/{id}");
            let owner = vm.owner.as_mut().filter(|owner| owner.operation == previous);
            effect.death =
                owner.and_then(|owner| Death::of(owner, subject, &vm.name, Some(&actor)));
        }
        if let VmEvent::Prereserved(Prereserved { name, .. })
        | VmEvent::Adopted(Adopted { name, .. }) = event
        {
            vm.name.clone_from(name);
        }
        match apply_vm(vm.record.as_deref(), id, stamp, event) {
            Ok(record) => {
                let owner = record.as_ref().and_then(|record| record.core.operation);
                vm.own(header, stamp, owner.map(|owner| owner.id), event.info().name);
                vm.certain |= matches!(event, VmEvent::Prereserved(_) | VmEvent::Adopted(_));
                vm.record = record.map(Arc::new);
            }
            Err(illegal) => effect.illegal = vm.certain.then_some(illegal),
        }
        vm.last = (stamp.seq, actor);
        effect
    }

    fn apply_image(
        &mut self,
        header: &FrameHeader,
        stamp: &Stamp,
        id: ImageId,
        event: &ImageEvent,
    ) -> Effect {
        let actor = Actor::of(header);
        let lossy = self.lossy;
        let image = self.images.entry(id).or_insert_with(|| Tracked::new(lossy, &actor));
        let mut effect = Effect::default();
        if let ImageEvent::RemoveBegan(_) = event {
            let owner = image.owner.as_mut().filter(|owner| owner.operation != stamp.operation);
            effect.death = owner.and_then(|owner| {
                Death::of(owner, format!("image/{id}"), &image.name, Some(&actor))
            });
        }
        if let ImageEvent::Imported(body) = event {
            image.name.clone_from(&body.name);
        }
        match apply_image(image.record.as_deref(), id, stamp, event) {
            Ok(record) => {
                let owner = record.as_ref().and_then(|record| record.core.removing);
                image.own(header, stamp, owner, event.info().name);
                image.certain |= matches!(event, ImageEvent::Imported(_));
                image.record = record.map(Arc::new);
            }
            Err(illegal) => effect.illegal = image.certain.then_some(illegal),
        }
        image.last = (stamp.seq, actor);
        effect
    }

    fn apply_supervisor(
        &mut self,
        header: &FrameHeader,
        stamp: &Stamp,
        event: &SupervisorEvent,
    ) -> Effect {
        let actor = Actor::of(header);
        let mut effect = Effect::default();
        let is_start = matches!(event, SupervisorEvent::Started(_));
        if is_start && let Some(owner) = &mut self.daemon {
            effect.death = Death::of(owner, "supervisor".to_owned(), "", Some(&actor));
        }
        self.supervisor = apply_supervisor(&self.supervisor, stamp, event);
        self.daemon = is_start.then(|| Owner::of(header, stamp, event.info().name));
        effect
    }
}

impl<R> Tracked<R> {
    /// A subject whose record is known, and whose events are not here; the last of them is.
    fn known(record: R, name: String, last: u64) -> Self {
        let nobody = Actor { verb: String::new(), pid: 0, start_time: 0 };
        let record = Some(Arc::new(record));
        Self { record, name, owner: None, certain: true, last: (last, nobody) }
    }

    fn new(lossy: bool, actor: &Actor) -> Self {
        Self {
            record: None,
            name: String::new(),
            owner: None,
            certain: !lossy,
            last: (0, actor.clone()),
        }
    }

    /// Notes who owns the subject after an event.
    fn own(
        &mut self,
        header: &FrameHeader,
        stamp: &Stamp,
        owner: Option<OperationId>,
        event: &'static str,
    ) {
        match owner {
            None => self.owner = None,
            Some(operation) if operation == stamp.operation => {
                self.owner = Some(Owner::of(header, stamp, event));
            }
            // An observer's event leaves the owner alone.
            Some(_) => {}
        }
    }
}

impl Owner {
    fn of(header: &FrameHeader, stamp: &Stamp, event: &'static str) -> Self {
        Self {
            actor: Actor::of(header),
            operation: stamp.operation,
            boot_id: header.boot_id,
            seq: stamp.seq,
            at_us: stamp.at_us,
            event,
            told_dead: false,
        }
    }
}

/// The operation whose owner must be dead for this event to happen.
fn took_over(event: &VmEvent) -> Option<OperationId> {
    match event {
        VmEvent::ReclaimBegan(body) => Some(body.previous),
        VmEvent::OperationTakenOver(body) => Some(body.previous),
        VmEvent::OperationAbandoned(body) => Some(body.previous),
        _ => None,
    }
}

/// Where a VM stands, its removal included.
#[must_use]
pub fn vm_state(record: &VmRecord) -> &'static str {
    match record.core.tombstone.as_ref().map(|tombstone| tombstone.phase) {
        Some(RemovalPhase::Leased) => "leased",
        Some(RemovalPhase::Deleting) => "deleting",
        None => record.core.state.as_str(),
    }
}

/// Where an image stands.
#[must_use]
pub fn image_state(record: &ImageRecord) -> &'static str {
    if record.core.removing.is_some() { "removing" } else { "imported" }
}
