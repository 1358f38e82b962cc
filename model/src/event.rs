//! Everything that can have happened, one kind each.
//!
//! A kind has a number that is written down here once and never given to another, and a version that rises when its
//! body changes. `body` modules hold one struct a kind; the tables below give each its number, its version, the
//! release that brought it, who may write it and what it means. `docs/events.md` is made from them.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::id::{ImageId, OperationId, VmId};

pub mod image;
pub mod root;
pub mod supervisor;
pub mod vm;

/// Who may write events of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WrittenBy {
    /// Whoever holds the subject's lock.
    LockHolder,
    /// Whoever saw it; fenced by the generation.
    Observer,
    /// The daemon.
    Supervisor,
}

impl WrittenBy {
    /// The words used in the documentation.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::LockHolder => "the holder of the lock",
            Self::Observer => "any observer",
            Self::Supervisor => "the daemon",
        }
    }
}

/// Turns one body into bytes, whatever its type.
pub trait BodyWriter {
    /// What is written.
    type Written;
    /// What can go wrong.
    type Error;
    /// Writes a body.
    ///
    /// # Errors
    /// Those of the format.
    fn write<T: Serialize>(self, body: &T) -> Result<Self::Written, Self::Error>;
}

/// Turns bytes into one body of the type that is asked for.
pub trait BodyReader {
    /// What can go wrong.
    type Error;
    /// Reads a body.
    ///
    /// # Errors
    /// Those of the format.
    fn read<T: DeserializeOwned>(self) -> Result<T, Self::Error>;
}

/// One line of the table of kinds.
#[derive(Debug, Clone, Copy)]
pub struct KindInfo {
    /// Its number.
    pub kind: u16,
    /// Its newest version.
    pub version: u16,
    /// Its name.
    pub name: &'static str,
    /// The release that brought it.
    pub since: &'static str,
    /// Who may write it.
    pub by: WrittenBy,
    /// What it says.
    pub meaning: &'static str,
}

/// Declares one subject's events: an enum over the body structs, and the table of its kinds.
macro_rules! events {
    ($(#[$doc:meta])* $enum:ident in $module:ident {
        $($kind:literal version $version:literal $name:ident since $since:literal by $by:ident: $meaning:literal;)*
    }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum $enum {
            $(#[doc = $meaning] $name($module::$name),)*
        }

        impl $enum {
            /// The table of these kinds.
            pub const KINDS: &'static [KindInfo] = &[$(KindInfo {
                kind: $kind,
                version: $version,
                name: stringify!($name),
                since: $since,
                by: WrittenBy::$by,
                meaning: $meaning,
            },)*];

            /// The line of this event's kind.
            #[must_use]
            pub fn info(&self) -> &'static KindInfo {
                let kind = match self { $(Self::$name(_) => $kind,)* };
                // Every arm above is a line of KINDS.
                Self::KINDS.iter().find(|info| info.kind == kind).unwrap_or(&Self::KINDS[0])
            }

            /// Writes the body, without its kind.
            ///
            /// # Errors
            /// Those of the writer.
            pub fn write_body<W: BodyWriter>(&self, writer: W) -> Result<W::Written, W::Error> {
                match self { $(Self::$name(body) => writer.write(body),)* }
            }

            /// Reads a body of a given kind and version; `None` if this subject has no such kind or version.
            ///
            /// # Errors
            /// Those of the reader.
            pub fn read_body<R: BodyReader>(
                kind: u16,
                version: u16,
                reader: R,
            ) -> Result<Option<Self>, R::Error> {
                match (kind, version) {
                    $(($kind, $version) => reader.read::<$module::$name>().map(|body| Some(Self::$name(body))),)*
                    _ => Ok(None),
                }
            }
        }

        $(impl From<$module::$name> for $enum {
            fn from(body: $module::$name) -> Self { Self::$name(body) }
        })*
    };
}

events! {
    /// What happened to a VM.
    VmEvent in vm {
        100 version 1 Prereserved since "0.1.0" by LockHolder: "An id and a name were taken; the record is `creating`.";
        101 version 1 StoragePrepared since "0.1.0" by LockHolder: "Its directories and disks are made.";
        102 version 1 Committed since "0.1.0" by LockHolder: "It is complete: `created`.";
        110 version 1 LaunchBegan since "0.1.0" by LockHolder: "A VMM may be spawned from now on.";
        111 version 1 Launched since "0.1.0" by LockHolder: "The VMM was spawned; this is its process.";
        112 version 1 Running since "0.1.0" by LockHolder: "The VMM reported that the guest runs: `running`.";
        113 version 1 LaunchFailed since "0.1.0" by LockHolder: "The launch failed and its VMM is proven dead: `error`.";
        120 version 1 StopBegan since "0.1.0" by LockHolder: "The VMM is being stopped.";
        121 version 1 Stopped since "0.1.0" by LockHolder: "The VMM is proven dead, as was asked: `stopped`.";
        122 version 1 StopFailed since "0.1.0" by LockHolder: "The VMM could not be ended or proven dead: `error`.";
        130 version 1 ExitObserved since "0.1.0" by Observer: "The VMM is proven dead and nobody had asked for it: `stopped`.";
        140 version 1 Tombstoned since "0.1.0" by LockHolder: "It is to be removed; nothing was touched yet.";
        141 version 1 TombstoneRolledBack since "0.1.0" by LockHolder: "The removal was given up before anything was touched.";
        142 version 1 DeleteBegan since "0.1.0" by LockHolder: "Its VMM is proven dead; files go from now on.";
        143 version 1 DeleteStepDone since "0.1.0" by LockHolder: "One step of the removal is done.";
        144 version 1 Deleted since "0.1.0" by LockHolder: "The record is gone and the name is free.";
        150 version 1 StepFailed since "0.1.0" by LockHolder: "A step failed, for this reason; what is owed stays owed.";
        160 version 1 ReclaimBegan since "0.1.0" by LockHolder: "The owner of a `creating` record is dead: its lock was free.";
        161 version 1 OperationTakenOver since "0.1.0" by LockHolder: "The owner of an operation is dead; the writer goes on with it.";
        162 version 1 OperationAbandoned since "0.1.0" by LockHolder: "The owner of an operation is dead and nothing of it is left to do.";
        170 version 1 Adopted since "0.1.0" by LockHolder: "It was taken in as it was found: the journal had not known it, or only as it was before.";
    }
}

events! {
    /// What happened to an image.
    ImageEvent in image {
        200 version 1 Imported since "0.1.0" by LockHolder: "Its files are in the store, durable; it can be used.";
        201 version 1 RemoveBegan since "0.1.0" by LockHolder: "No VM uses it; from now on none can, and its files go.";
        202 version 1 Removed since "0.1.0" by LockHolder: "The record is gone and the name is free.";
    }
}

events! {
    /// What happened to the daemon.
    SupervisorEvent in supervisor {
        300 version 1 Started since "0.1.0" by Supervisor: "A daemon began to supervise; says until when the one before lived.";
        301 version 1 Stopped since "0.1.0" by Supervisor: "The daemon stopped in good order.";
    }
}

events! {
    /// What happened to the root itself.
    RootEvent in root {
        400 version 1 RootUnconfirmed since "0.1.0" by Observer: "The journal is older than its world; nothing is touched from now on.";
        401 version 1 RootAdopted since "0.1.0" by LockHolder: "Somebody looked at what is there and confirmed the root, at this place.";
    }
}

/// An event with its subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Of a VM.
    Vm(VmId, VmEvent),
    /// Of an image.
    Image(ImageId, ImageEvent),
    /// Of the daemon.
    Supervisor(SupervisorEvent),
    /// Of the root.
    Root(RootEvent),
}

impl Event {
    /// The line of this event's kind.
    #[must_use]
    pub fn info(&self) -> &'static KindInfo {
        match self {
            Self::Vm(_, event) => event.info(),
            Self::Image(_, event) => event.info(),
            Self::Supervisor(event) => event.info(),
            Self::Root(event) => event.info(),
        }
    }

    /// All kinds of all subjects.
    pub fn kinds() -> impl Iterator<Item = &'static KindInfo> {
        let kinds = VmEvent::KINDS.iter().chain(ImageEvent::KINDS);
        kinds.chain(SupervisorEvent::KINDS).chain(RootEvent::KINDS)
    }
}

/// What the journal knows of an event beside its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stamp {
    /// Its number in the journal, from 1.
    pub seq: u64,
    /// Wall clock when it was written, microseconds since 1970.
    pub at_us: i64,
    /// The operation that wrote it.
    pub operation: OperationId,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn numbers_and_names_are_unique() {
        let numbers: BTreeSet<u16> = Event::kinds().map(|info| info.kind).collect();
        let names: BTreeSet<&str> = VmEvent::KINDS.iter().map(|info| info.name).collect();
        assert_eq!(numbers.len(), Event::kinds().count());
        assert_eq!(names.len(), VmEvent::KINDS.len());
        assert!(numbers.iter().all(|&kind| kind < 60_000), "60000 and above belong to the journal");
    }
}
