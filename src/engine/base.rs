//! A checkpoint as the base of the folded state.
//!
//! Keys are texts: `v/<id>` and `i/<id>` hold records, `n/v/<name>` and `n/i/<name>` the id that holds a name,
//! `u/<image>/<vm>` says that a VM uses an image, `s` is the daemon, `r` the root. A look-up reads a few blocks, however many VMs reside.

use cocoon_journal::checkpoint::Checkpoint;
use cocoon_model::id::{Id, ImageId, VmId};
use cocoon_model::record::{ImageRecord, RootRecord, SupervisorRecord, VmRecord};
use cocoon_model::state::Change;
use cocoon_model::view::{Base, Lookup, NameSpace, Unreadable};
use serde::de::DeserializeOwned;

use crate::codec::{CodecError, decode_record, encode_record};

/// Nothing, or a checkpoint.
#[derive(Debug, Default)]
pub struct CheckpointBase(Option<Checkpoint>);

impl CheckpointBase {
    /// Stands on a checkpoint, if there is one.
    #[must_use]
    pub fn new(checkpoint: Option<Checkpoint>) -> Self {
        Self(checkpoint)
    }

    fn get<T: DeserializeOwned>(&self, key: &str) -> Lookup<Option<T>> {
        let Some(checkpoint) = &self.0 else { return Ok(None) };
        match checkpoint.get(key.as_bytes()).map_err(unreadable)? {
            Some(bytes) => decode_record(&bytes).map(Some).map_err(unreadable),
            None => Ok(None),
        }
    }

    fn all<T: DeserializeOwned>(&self, prefix: &str) -> Lookup<Vec<T>> {
        let Some(checkpoint) = &self.0 else { return Ok(Vec::new()) };
        let entries = checkpoint.prefix(prefix.as_bytes());
        entries
            .map(|entry| {
                entry
                    .map_err(unreadable)
                    .and_then(|(_, bytes)| decode_record(&bytes).map_err(unreadable))
            })
            .collect()
    }
}

fn unreadable(error: impl std::fmt::Display) -> Unreadable {
    Unreadable(error.to_string())
}

fn space(space: NameSpace) -> &'static str {
    match space {
        NameSpace::Vm => "v",
        NameSpace::Image => "i",
    }
}

impl Base for CheckpointBase {
    fn vm(&self, id: VmId) -> Lookup<Option<VmRecord>> {
        self.get(&format!("v/{id}"))
    }

    fn vms(&self, prefix: &str) -> Lookup<Vec<VmRecord>> {
        self.all(&format!("v/{prefix}"))
    }

    fn image(&self, id: ImageId) -> Lookup<Option<ImageRecord>> {
        self.get(&format!("i/{id}"))
    }

    fn images(&self) -> Lookup<Vec<ImageRecord>> {
        self.all("i/")
    }

    fn name(&self, in_space: NameSpace, name: &str) -> Lookup<Option<Id>> {
        self.get(&format!("n/{}/{name}", space(in_space)))
    }

    fn image_users(&self, id: ImageId) -> Lookup<Vec<VmId>> {
        self.all(&format!("u/{id}/"))
    }

    fn supervisor(&self) -> Lookup<SupervisorRecord> {
        Ok(self.get("s")?.unwrap_or_default())
    }

    fn root(&self) -> Lookup<RootRecord> {
        Ok(self.get("r")?.unwrap_or_default())
    }
}

/// One key of a checkpoint with its new value; `None` removes it.
pub type KeyChange = (Vec<u8>, Option<Vec<u8>>);

/// The key and value by which a change enters the next checkpoint.
///
/// # Errors
/// [`CodecError::Record`] if a record is too long.
pub fn key_change(change: &Change<'_>) -> Result<KeyChange, CodecError> {
    let (key, value) = match change {
        Change::Vm(id, vm) => (format!("v/{id}"), vm.map(encode_record).transpose()?),
        Change::Image(id, image) => (format!("i/{id}"), image.map(encode_record).transpose()?),
        Change::Name(in_space, name, id) => {
            let id = id.as_ref().map(encode_record).transpose()?;
            (format!("n/{}/{name}", space(*in_space)), id)
        }
        Change::User(image, vm, uses) => {
            let vm_bytes = uses.then(|| encode_record(vm)).transpose()?;
            (format!("u/{image}/{vm}"), vm_bytes)
        }
        Change::Supervisor(supervisor) => ("s".to_owned(), Some(encode_record(*supervisor)?)),
        Change::Root(root) => ("r".to_owned(), Some(encode_record(*root)?)),
    };
    Ok((key.into_bytes(), value))
}
