//! The folded state: a base (nothing, or a checkpoint) and what later events changed.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::apply::{
    ApplyError, IllegalEvent, apply_image, apply_root, apply_supervisor, apply_vm, doubted,
};
use crate::event::{Event, Stamp, VmEvent};
use crate::id::{Id, ImageId, VmId};
use crate::mutant::{self, Mutant};
use crate::record::{ImageRecord, RootRecord, SupervisorRecord, VmRecord};
use crate::view::{Base, Lookup, NameSpace, Nothing, View};

/// The folded state. A look-up finds what events changed, and asks the base for the rest.
#[derive(Debug, Clone, Default)]
pub struct State<B = Nothing> {
    base: B,
    applied: u64,
    vms: BTreeMap<VmId, Option<Arc<VmRecord>>>,
    images: BTreeMap<ImageId, Option<Arc<ImageRecord>>>,
    names: BTreeMap<(NameSpace, String), Option<Id>>,
    users: BTreeMap<(ImageId, VmId), bool>,
    supervisor: Option<SupervisorRecord>,
    root: Option<RootRecord>,
}

/// One thing that events changed since the base, for a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change<'a> {
    /// A VM, or its absence.
    Vm(VmId, Option<&'a VmRecord>),
    /// An image, or its absence.
    Image(ImageId, Option<&'a ImageRecord>),
    /// Who holds a name, or nobody.
    Name(NameSpace, &'a str, Option<Id>),
    /// Whether a VM uses an image.
    User(ImageId, VmId, bool),
    /// The daemon.
    Supervisor(&'a SupervisorRecord),
    /// The root.
    Root(&'a RootRecord),
}

impl<B: Base> State<B> {
    /// The state of a base whose last event was `applied`.
    pub fn on(base: B, applied: u64) -> Self {
        Self {
            base,
            applied,
            vms: BTreeMap::new(),
            images: BTreeMap::new(),
            names: BTreeMap::new(),
            users: BTreeMap::new(),
            supervisor: None,
            root: None,
        }
    }

    /// The last event that was folded in.
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// The base that this state stands on.
    pub fn base(&self) -> &B {
        &self.base
    }

    /// How many subjects events changed since the base.
    pub fn changed(&self) -> usize {
        self.vms.len() + self.images.len()
    }

    /// Folds one event in. An event at or below the last one is skipped; one that leaves a gap, or that does not fit
    /// the record, is illegal and changes nothing.
    ///
    /// # Errors
    /// [`ApplyError`]: illegal, or the base could not be read.
    pub fn apply(&mut self, stamp: &Stamp, event: &Event) -> Result<(), ApplyError> {
        if stamp.seq <= self.applied {
            return Ok(());
        }
        if stamp.seq != self.applied + 1 {
            return Err(IllegalEvent::Gap { applied: self.applied, seq: stamp.seq }.into());
        }
        match event {
            Event::Vm(id, event) => {
                let before = match event {
                    // It was decided on a state that knew no such VM. Asking the base again would be the most costly part
                    // of folding a history that is mostly births.
                    VmEvent::Prereserved(_) => self.vms.get(id).cloned().flatten(),
                    _ => self.vm(*id)?,
                };
                let after = apply_vm(before.as_deref(), *id, stamp, event)?;
                self.put_vm(*id, before.as_deref(), after);
            }
            Event::Image(id, event) => {
                let before = self.image(*id)?;
                let after = apply_image(before.as_deref(), *id, stamp, event)?;
                self.put_image(*id, before.as_deref(), after);
            }
            Event::Supervisor(event) => {
                self.supervisor = Some(apply_supervisor(&self.supervisor()?, stamp, event));
            }
            Event::Root(event) => self.root = Some(apply_root(&self.root()?, stamp, event)),
        }
        self.applied = stamp.seq;
        Ok(())
    }

    /// Passes over an event that changes nothing here (those of the journal itself).
    ///
    /// # Errors
    /// [`IllegalEvent::Gap`] if an event before it is missing.
    pub fn skip(&mut self, seq: u64) -> Result<(), IllegalEvent> {
        if seq > self.applied + 1 {
            return Err(IllegalEvent::Gap { applied: self.applied, seq });
        }
        self.applied = self.applied.max(seq);
        Ok(())
    }

    /// Takes an event of the journal about itself for a reason to doubt the root: after a restore, an import or a loss,
    /// the world may be newer than the journal.
    ///
    /// # Errors
    /// [`ApplyError`]: an event before it is missing, or the base could not be read.
    pub fn doubt(&mut self, seq: u64, reason: &str) -> Result<(), ApplyError> {
        if seq > self.applied {
            let root = doubted(&self.root()?, seq, reason);
            self.skip(seq)?;
            self.root = Some(root);
        }
        Ok(())
    }

    fn put_vm(&mut self, id: VmId, before: Option<&VmRecord>, after: Option<VmRecord>) {
        match (before, &after) {
            (None, Some(record)) => {
                self.names.insert((NameSpace::Vm, record.core.name.clone()), Some(id));
                self.users.insert((record.core.image, id), true);
            }
            (Some(record), None) => {
                self.names.insert((NameSpace::Vm, record.core.name.clone()), None);
                self.users.insert((record.core.image, id), false);
            }
            (Some(_), Some(record)) => {
                if mutant::on(Mutant::NameBeforeRecord) && record.core.tombstone.is_some() {
                    self.names.insert((NameSpace::Vm, record.core.name.clone()), None);
                }
            }
            (None, None) => {}
        }
        self.vms.insert(id, after.map(Arc::new));
    }

    fn put_image(&mut self, id: ImageId, before: Option<&ImageRecord>, after: Option<ImageRecord>) {
        match (before, &after) {
            (None, Some(record)) => {
                self.names.insert((NameSpace::Image, record.core.name.clone()), Some(id));
            }
            (Some(record), None) => {
                self.names.insert((NameSpace::Image, record.core.name.clone()), None);
            }
            (Some(_), Some(_)) | (None, None) => {}
        }
        self.images.insert(id, after.map(Arc::new));
    }

    fn name(&self, space: NameSpace, name: &str) -> Lookup<Option<Id>> {
        match self.names.get(&(space, name.to_owned())) {
            Some(holder) => Ok(*holder),
            None => self.base.name(space, name),
        }
    }

    /// All VMs, in order of their ids. No decision calls this; listings do.
    ///
    /// # Errors
    /// `Unreadable`.
    pub fn vms(&self) -> Lookup<Vec<Arc<VmRecord>>> {
        let mut all: BTreeMap<VmId, Arc<VmRecord>> = self
            .base
            .vms("")?
            .into_iter()
            .filter(|record| !self.vms.contains_key(&record.core.id))
            .map(|record| (record.core.id, Arc::new(record)))
            .collect();
        all.extend(self.vms.iter().filter_map(|(id, vm)| Some((*id, vm.clone()?))));
        Ok(all.into_values().collect())
    }

    /// All images, in order of their ids. No decision calls this; listings and gc do.
    ///
    /// # Errors
    /// `Unreadable`.
    pub fn images(&self) -> Lookup<Vec<Arc<ImageRecord>>> {
        let mut all: BTreeMap<ImageId, Arc<ImageRecord>> = self
            .base
            .images()?
            .into_iter()
            .filter(|record| !self.images.contains_key(&record.core.id))
            .map(|record| (record.core.id, Arc::new(record)))
            .collect();
        all.extend(self.images.iter().filter_map(|(id, image)| Some((*id, image.clone()?))));
        Ok(all.into_values().collect())
    }

    /// What events changed since the base.
    pub fn changes(&self) -> impl Iterator<Item = Change<'_>> {
        let vms = self.vms.iter().map(|(id, vm)| Change::Vm(*id, vm.as_deref()));
        let images = self.images.iter().map(|(id, image)| Change::Image(*id, image.as_deref()));
        let names =
            self.names.iter().map(|((space, name), id)| Change::Name(*space, name.as_str(), *id));
        let users = self.users.iter().map(|((image, vm), uses)| Change::User(*image, *vm, *uses));
        let supervisor = self.supervisor.iter().map(Change::Supervisor);
        let root = self.root.iter().map(Change::Root);
        vms.chain(images).chain(names).chain(users).chain(supervisor).chain(root)
    }
}

impl<B: Base> View for State<B> {
    fn vm(&self, id: VmId) -> Lookup<Option<Arc<VmRecord>>> {
        match self.vms.get(&id) {
            Some(vm) => Ok(vm.clone()),
            None => Ok(self.base.vm(id)?.map(Arc::new)),
        }
    }

    fn vm_by_name(&self, name: &str) -> Lookup<Option<VmId>> {
        self.name(NameSpace::Vm, name)
    }

    fn vms_by_prefix(&self, prefix: &str, limit: usize) -> Lookup<Vec<VmId>> {
        let mut found: Vec<VmId> = self
            .base
            .vms(prefix)?
            .into_iter()
            .map(|record| record.core.id)
            .filter(|id| !self.vms.contains_key(id))
            .collect();
        let changed =
            self.vms.iter().filter(|(id, vm)| vm.is_some() && id.as_str().starts_with(prefix));
        found.extend(changed.map(|(id, _)| *id));
        found.sort_unstable();
        found.truncate(limit);
        Ok(found)
    }

    fn image(&self, id: ImageId) -> Lookup<Option<Arc<ImageRecord>>> {
        match self.images.get(&id) {
            Some(image) => Ok(image.clone()),
            None => Ok(self.base.image(id)?.map(Arc::new)),
        }
    }

    fn image_by_name(&self, name: &str) -> Lookup<Option<ImageId>> {
        self.name(NameSpace::Image, name)
    }

    fn image_users(&self, id: ImageId, limit: usize) -> Lookup<Vec<VmId>> {
        let mut users: Vec<VmId> = self
            .base
            .image_users(id)?
            .into_iter()
            .filter(|vm| !self.users.contains_key(&(id, *vm)))
            .collect();
        users.extend(
            self.users
                .iter()
                .filter(|((image, _), uses)| *image == id && **uses)
                .map(|((_, vm), _)| *vm),
        );
        users.sort_unstable();
        users.truncate(limit);
        Ok(users)
    }

    fn supervisor(&self) -> Lookup<SupervisorRecord> {
        match &self.supervisor {
            Some(supervisor) => Ok(supervisor.clone()),
            None => self.base.supervisor(),
        }
    }

    fn root(&self) -> Lookup<RootRecord> {
        match &self.root {
            Some(root) => Ok(root.clone()),
            None => self.base.root(),
        }
    }
}
