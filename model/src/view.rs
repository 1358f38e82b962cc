//! What a decision can look up.
//!
//! No decision walks over the residents: each looks up a few subjects by id or name. So the whole state in memory and a
//! checkpoint on disk with the events after it serve equally well.

use std::sync::Arc;

use crate::id::{Id, ImageId, VmId};
use crate::record::{ImageRecord, RootRecord, SupervisorRecord, VmRecord};

/// A state that could not be read (a damaged checkpoint); nothing was decided.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unreadable(pub String);

/// The outcome of a look-up.
pub type Lookup<T> = Result<T, Unreadable>;

/// What a decision can look up.
pub trait View {
    /// A VM by its id.
    ///
    /// # Errors
    /// [`Unreadable`], as for all look-ups.
    fn vm(&self, id: VmId) -> Lookup<Option<Arc<VmRecord>>>;

    /// The VM that holds a name.
    ///
    /// # Errors
    /// [`Unreadable`].
    fn vm_by_name(&self, name: &str) -> Lookup<Option<VmId>>;

    /// VMs whose ids begin so, in order; at most `limit`.
    ///
    /// # Errors
    /// [`Unreadable`].
    fn vms_by_prefix(&self, prefix: &str, limit: usize) -> Lookup<Vec<VmId>>;

    /// An image by its id.
    ///
    /// # Errors
    /// [`Unreadable`].
    fn image(&self, id: ImageId) -> Lookup<Option<Arc<ImageRecord>>>;

    /// The image that holds a name.
    ///
    /// # Errors
    /// [`Unreadable`].
    fn image_by_name(&self, name: &str) -> Lookup<Option<ImageId>>;

    /// VMs that use an image, in order; at most `limit`.
    ///
    /// # Errors
    /// [`Unreadable`].
    fn image_users(&self, id: ImageId, limit: usize) -> Lookup<Vec<VmId>>;

    /// What is known of the daemon.
    ///
    /// # Errors
    /// [`Unreadable`].
    fn supervisor(&self) -> Lookup<SupervisorRecord>;

    /// What is known of the root itself. A view that knows nothing of it is of a root that nobody doubts.
    ///
    /// # Errors
    /// [`Unreadable`].
    fn root(&self) -> Lookup<RootRecord> {
        Ok(RootRecord::default())
    }
}

/// What a state stands on: nothing, or a checkpoint.
pub trait Base {
    /// A VM by its id.
    ///
    /// # Errors
    /// [`Unreadable`], as for all look-ups.
    fn vm(&self, id: VmId) -> Lookup<Option<VmRecord>>;

    /// VMs whose ids begin so, in order, with their records.
    ///
    /// # Errors
    /// [`Unreadable`].
    fn vms(&self, prefix: &str) -> Lookup<Vec<VmRecord>>;

    /// An image by its id.
    ///
    /// # Errors
    /// [`Unreadable`].
    fn image(&self, id: ImageId) -> Lookup<Option<ImageRecord>>;

    /// All images, in order of their ids.
    ///
    /// # Errors
    /// [`Unreadable`].
    fn images(&self) -> Lookup<Vec<ImageRecord>>;

    /// The subject that holds a name in a name space.
    ///
    /// # Errors
    /// [`Unreadable`].
    fn name(&self, space: NameSpace, name: &str) -> Lookup<Option<Id>>;

    /// VMs that use an image, in order.
    ///
    /// # Errors
    /// [`Unreadable`].
    fn image_users(&self, id: ImageId) -> Lookup<Vec<VmId>>;

    /// What is known of the daemon.
    ///
    /// # Errors
    /// [`Unreadable`].
    fn supervisor(&self) -> Lookup<SupervisorRecord>;

    /// What is known of the root itself.
    ///
    /// # Errors
    /// [`Unreadable`].
    fn root(&self) -> Lookup<RootRecord> {
        Ok(RootRecord::default())
    }
}

/// The spaces in which names are unique.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NameSpace {
    /// Names of VMs.
    Vm,
    /// Names of images.
    Image,
}

/// The base of a state that is all in memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Nothing;

impl Base for Nothing {
    fn vm(&self, _: VmId) -> Lookup<Option<VmRecord>> {
        Ok(None)
    }

    fn vms(&self, _: &str) -> Lookup<Vec<VmRecord>> {
        Ok(Vec::new())
    }

    fn image(&self, _: ImageId) -> Lookup<Option<ImageRecord>> {
        Ok(None)
    }

    fn images(&self) -> Lookup<Vec<ImageRecord>> {
        Ok(Vec::new())
    }

    fn name(&self, _: NameSpace, _: &str) -> Lookup<Option<Id>> {
        Ok(None)
    }

    fn image_users(&self, _: ImageId) -> Lookup<Vec<VmId>> {
        Ok(Vec::new())
    }

    fn supervisor(&self) -> Lookup<SupervisorRecord> {
        Ok(SupervisorRecord::default())
    }
}
