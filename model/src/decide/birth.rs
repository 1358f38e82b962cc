//! The birth of a VM.

use super::{Decision, Refusal};
use crate::event::vm::Prereserved;
use crate::id::{ImageId, VmId};
use crate::record::{OperationKind, VmSpec};
use crate::view::{Lookup, View};

pub(super) fn prereserve(
    view: &impl View,
    id: VmId,
    name: &str,
    image: ImageId,
    kind: OperationKind,
    spec: &VmSpec,
) -> Lookup<Decision> {
    if view.vm(id)?.is_some() {
        return Ok(Decision::Refused(Refusal::IdTaken(id)));
    }
    if let Some(holder) = view.vm_by_name(name)? {
        return Ok(Decision::Refused(Refusal::NameTaken { name: name.to_owned(), holder }));
    }
    match view.image(image)? {
        Some(record) if record.core.removing.is_none() => {}
        _ => return Ok(Decision::Refused(Refusal::ImageGone(image))),
    }
    let event =
        Prereserved { name: name.to_owned(), image, operation: kind, spec: Box::new(spec.clone()) };
    Ok(Decision::vm(id, [event.into()]))
}
