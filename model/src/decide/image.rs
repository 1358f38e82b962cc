//! Decisions about images.

use super::{Decision, Refusal, Settled};
use crate::event::image::{Imported, RemoveBegan, Removed};
use crate::event::{Event, ImageEvent};
use crate::id::{ImageId, OperationId};
use crate::record::ImageContent;
use crate::view::{Lookup, View};

/// Names of users that a refusal lists.
const USERS_LISTED: usize = 8;

fn accepted(id: ImageId, event: ImageEvent) -> Decision {
    Decision::Accepted(vec![Event::Image(id, event)])
}

pub(super) fn import(
    view: &impl View,
    id: ImageId,
    name: &str,
    digest: &str,
    content: &ImageContent,
) -> Lookup<Decision> {
    if let Some(holder) = view.image_by_name(name)? {
        let same = view
            .image(holder)?
            .is_some_and(|image| image.core.digest == digest && image.core.removing.is_none());
        if same {
            return Ok(Decision::AlreadySo(Settled::ImageThere(holder)));
        }
        let name = name.to_owned();
        return Ok(Decision::Refused(Refusal::ImageNameTaken { name, holder }));
    }
    let event =
        Imported { name: name.to_owned(), digest: digest.to_owned(), content: content.clone() };
    Ok(accepted(id, event.into()))
}

pub(super) fn remove(view: &impl View, operation: OperationId, id: ImageId) -> Lookup<Decision> {
    let Some(image) = view.image(id)? else {
        return Ok(Decision::Refused(Refusal::ImageNotFound(id)));
    };
    let users = view.image_users(id, USERS_LISTED)?;
    if !users.is_empty() {
        let mut names = Vec::new();
        for user in users {
            names.push(view.vm(user)?.map_or_else(|| user.to_string(), |vm| vm.core.name.clone()));
        }
        let name = image.core.name.clone();
        return Ok(Decision::Refused(Refusal::ImageInUse { name, users: names }));
    }
    if image.core.removing == Some(operation) {
        return Ok(Decision::AlreadySo(Settled::AlreadyRecorded));
    }
    Ok(accepted(id, RemoveBegan {}.into()))
}

pub(super) fn finish_removal(
    view: &impl View,
    operation: OperationId,
    id: ImageId,
) -> Lookup<Decision> {
    match view.image(id)? {
        None => Ok(Decision::AlreadySo(Settled::Gone)),
        Some(image) if image.core.removing == Some(operation) => {
            Ok(accepted(id, Removed {}.into()))
        }
        Some(_) => Ok(Decision::Refused(Refusal::ImageGone(id))),
    }
}
