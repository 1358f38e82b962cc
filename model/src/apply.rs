//! The fold: how each event changes the record of its subject.
//!
//! The same functions serve a running command and a replay. Each event says what it needs of the record; anything else
//! is an [`IllegalEvent`]: an event applied twice, one of an operation that lost the record, one out of order.

use crate::event::Stamp;
use crate::event::image::Imported;
use crate::event::supervisor::Started;
use crate::event::{ImageEvent, RootEvent, SupervisorEvent};
use crate::id::ImageId;
use crate::record::{Doubt, ImageCore, ImageRecord, RootRecord, SupervisorRecord};
use crate::view::Unreadable;

mod vm;

pub use vm::apply_vm;

/// An event that does not fit the record of its subject.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IllegalEvent {
    /// Events before it are missing.
    #[error("event {seq} cannot follow event {applied}: events are missing in between")]
    Gap {
        /// The last event that was folded in.
        applied: u64,
        /// This event.
        seq: u64,
    },
    /// There is no such record.
    #[error("{event} at {seq} is about {subject}, which is not there")]
    Absent {
        /// Kind of the event.
        event: &'static str,
        /// Its number.
        seq: u64,
        /// Its subject.
        subject: String,
    },
    /// The record is not in a state for it.
    #[error("{event} at {seq} does not fit {subject}: {why}")]
    Misfit {
        /// Kind of the event.
        event: &'static str,
        /// Its number.
        seq: u64,
        /// Its subject.
        subject: String,
        /// What it needs.
        why: &'static str,
    },
}

/// Why an event could not be folded in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// It does not fit.
    #[error(transparent)]
    Illegal(#[from] IllegalEvent),
    /// The base could not be read.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
}

/// Folds an event into the record of its image.
///
/// # Errors
/// [`IllegalEvent`] if it does not fit.
pub fn apply_image(
    record: Option<&ImageRecord>,
    id: ImageId,
    stamp: &Stamp,
    event: &ImageEvent,
) -> Result<Option<ImageRecord>, IllegalEvent> {
    let name = event.info().name;
    let misfit = |why| IllegalEvent::Misfit {
        event: name,
        seq: stamp.seq,
        subject: format!("image {id}"),
        why,
    };
    let absent =
        || IllegalEvent::Absent { event: name, seq: stamp.seq, subject: format!("image {id}") };
    match event {
        ImageEvent::Imported(body) => match record {
            Some(_) => Err(misfit("it is there already")),
            None => Ok(Some(imported(id, stamp, body))),
        },
        ImageEvent::RemoveBegan(_) => {
            let mut record = record.ok_or_else(absent)?.clone();
            if record.core.removing == Some(stamp.operation) {
                return Err(misfit("this operation removes it already"));
            }
            record.core.removing = Some(stamp.operation);
            Ok(Some(record))
        }
        ImageEvent::Removed(_) => {
            let record = record.ok_or_else(absent)?;
            if record.core.removing == Some(stamp.operation) {
                Ok(None)
            } else {
                Err(misfit("this operation does not remove it"))
            }
        }
    }
}

fn imported(id: ImageId, stamp: &Stamp, body: &Imported) -> ImageRecord {
    let core =
        ImageCore { id, name: body.name.clone(), digest: body.digest.clone(), removing: None };
    ImageRecord { core, content: body.content.clone(), created_us: stamp.at_us }
}

/// Folds an event into what is known of the daemon; there is none that does not fit, since a daemon may die at any time.
#[must_use]
pub fn apply_supervisor(
    record: &SupervisorRecord,
    stamp: &Stamp,
    event: &SupervisorEvent,
) -> SupervisorRecord {
    match event {
        SupervisorEvent::Started(Started { previous_alive_until_us, .. }) => SupervisorRecord {
            instance: stamp.operation,
            running: true,
            started_us: stamp.at_us,
            stopped_us: None,
            previous_alive_until_us: *previous_alive_until_us,
        },
        SupervisorEvent::Stopped(_) => {
            SupervisorRecord { running: false, stopped_us: Some(stamp.at_us), ..record.clone() }
        }
    }
}

/// Folds an event into what is known of the root. Several may find the same, and a root may be adopted twice.
#[must_use]
pub fn apply_root(record: &RootRecord, stamp: &Stamp, event: &RootEvent) -> RootRecord {
    match event {
        RootEvent::RootUnconfirmed(body) => doubted(record, stamp.seq, &body.reason),
        RootEvent::RootAdopted(body) => RootRecord {
            doubt: None,
            place: Some(body.place.clone()),
            adopted_us: Some(stamp.at_us),
        },
    }
}

/// The first reason stays: it is what somebody has to look into.
#[must_use]
pub(crate) fn doubted(record: &RootRecord, seq: u64, reason: &str) -> RootRecord {
    let doubt = || Doubt { seq, reason: reason.to_owned() };
    RootRecord { doubt: Some(record.doubt.clone().unwrap_or_else(doubt)), ..record.clone() }
}
