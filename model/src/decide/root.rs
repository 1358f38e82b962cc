//! Doubt about the root, and its adoption.

use super::{Decision, Refusal, Settled};
use crate::event::Event;
use crate::event::root::{RootAdopted, RootUnconfirmed};
use crate::event::vm::Adopted;
use crate::id::VmId;
use crate::record::{Place, RemovalPhase};
use crate::view::{Lookup, View};

pub(super) fn doubt(view: &impl View, reason: &str) -> Lookup<Decision> {
    if view.root()?.doubt.is_some() {
        return Ok(Decision::AlreadySo(Settled::AlreadyRecorded));
    }
    let doubted = RootUnconfirmed { reason: reason.to_owned() };
    Ok(Decision::Accepted(vec![Event::Root(doubted.into())]))
}

/// The record becomes what was found, with a generation above all that was known: whoever still believes the older one is
/// refused from now on.
pub(super) fn take_in(view: &impl View, id: VmId, found: &Adopted) -> Lookup<Decision> {
    if let Some(record) = view.vm(id)? {
        let core = &record.core;
        let going = core.tombstone.as_ref().is_some_and(|t| t.phase == RemovalPhase::Deleting);
        if let Some(operation) = core.operation.filter(|_| going) {
            let (kind, operation) = (operation.kind, operation.id);
            return Ok(Decision::Refused(Refusal::OperationInFlight { id, kind, operation }));
        }
        if core.generation >= found.generation {
            return Ok(Decision::AlreadySo(Settled::NothingOwed));
        }
        if core.name != found.name || core.image != found.image {
            return Ok(Decision::Refused(Refusal::IdTaken(id)));
        }
    } else if let Some(holder) = view.vm_by_name(&found.name)? {
        return Ok(Decision::Refused(Refusal::NameTaken { name: found.name.clone(), holder }));
    }
    Ok(Decision::vm(id, [found.clone().into()]))
}

pub(super) fn adopt(view: &impl View, place: &Place) -> Lookup<Decision> {
    let root = view.root()?;
    if root.doubt.is_none() && root.place.as_ref() == Some(place) {
        return Ok(Decision::AlreadySo(Settled::NothingOwed));
    }
    let adopted = RootAdopted { place: place.clone() };
    Ok(Decision::Accepted(vec![Event::Root(adopted.into())]))
}
