//! Events and records to bytes and back.
//!
//! An event is a kind, a version, a subject and a body. The first three are written by the journal, outside the codec, so
//! the version is known before a byte of the body is read; the body is bincode with the configuration below. Names of
//! kinds never reach the disk, numbers do. `tests/golden/` holds the bytes of every kind and version ever written.

use bincode::config::{Configuration, Limit, LittleEndian, Varint};
use cocoon_journal::reserved::{self, JournalEvent};
use cocoon_journal::{Entry, Subject};
use cocoon_model::event::{
    BodyReader, BodyWriter, Event, ImageEvent, KindInfo, RootEvent, SupervisorEvent, VmEvent,
};
use cocoon_model::id::Id;
use serde::Serialize;
use serde::de::DeserializeOwned;

mod json;
mod record;
mod redact;

pub use json::{describe, event_json, hex, journal_event_json, kind_name};
pub use record::{RECORD_FORMAT, decode_record, encode_record};
pub use redact::Redactor;

/// The longest body of an event, bytes.
const BODY_LIMIT: usize = 4096;

/// Kinds from here on are the journal's own.
pub const JOURNAL_KINDS: u16 = 60_000;

/// Little-endian, integers of variable length, at most [`BODY_LIMIT`] bytes. Written out, so that a change of the
/// library's defaults changes nothing.
type Wire<const LIMIT: usize> = Configuration<LittleEndian, Varint, Limit<LIMIT>>;

fn wire<const LIMIT: usize>() -> Wire<LIMIT> {
    bincode::config::standard()
        .with_little_endian()
        .with_variable_int_encoding()
        .with_limit::<LIMIT>()
}

/// Bytes that are not an event, or an event that does not fit into bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// A newer version of `cocoon` wrote it.
    #[error(
        "event kind {kind} version {version} is not known to this version of cocoon ({}); install the version that wrote it, or a newer one; nothing was written",
        env!("CARGO_PKG_VERSION")
    )]
    Unknown {
        /// Kind number.
        kind: u16,
        /// Version of the kind.
        version: u16,
    },
    /// A newer version of `cocoon` wrote its bodies in another way.
    #[error(
        "the bodies of events are in codec {codec}, which this version of cocoon ({}) does not know; install the version that wrote them, or a newer one; nothing was written",
        env!("CARGO_PKG_VERSION")
    )]
    Codec {
        /// Number of the codec.
        codec: u8,
    },
    /// The subject is not one of this kind.
    #[error(
        "event kind {kind} names the subject `{subject}`, which is none of its own; run `cocoon journal verify`"
    )]
    Subject {
        /// Kind number.
        kind: u16,
        /// The subject.
        subject: String,
    },
    /// The body does not decode.
    #[error(
        "the body of event kind {kind} version {version} does not decode: {what}; run `cocoon journal verify`"
    )]
    Body {
        /// Kind number.
        kind: u16,
        /// Version of the kind.
        version: u16,
        /// What the codec says.
        what: String,
    },
    /// The event is too large to be written.
    #[error("an event {name} cannot be written: {what}")]
    TooLarge {
        /// Name of the kind.
        name: &'static str,
        /// What the codec says.
        what: String,
    },
    /// A record of a checkpoint does not decode.
    #[error("a record of a checkpoint does not decode: {0}; the journal has what it was made from")]
    Record(String),
}

struct ToBytes;

impl BodyWriter for ToBytes {
    type Written = Vec<u8>;
    type Error = bincode::error::EncodeError;

    fn write<T: Serialize>(self, body: &T) -> Result<Vec<u8>, Self::Error> {
        bincode::serde::encode_to_vec(body, wire::<BODY_LIMIT>())
    }
}

struct FromBytes<'a>(&'a [u8]);

impl BodyReader for FromBytes<'_> {
    type Error = String;

    fn read<T: DeserializeOwned>(self) -> Result<T, String> {
        from_bytes::<T, BODY_LIMIT>(self.0)
    }
}

/// Decodes a value that must take up all the bytes.
fn from_bytes<T: DeserializeOwned, const LIMIT: usize>(bytes: &[u8]) -> Result<T, String> {
    let (value, read) = bincode::serde::decode_from_slice(bytes, wire::<LIMIT>())
        .map_err(|error| error.to_string())?;
    if read == bytes.len() {
        Ok(value)
    } else {
        Err(format!("{} bytes are left over", bytes.len() - read))
    }
}

/// The subject under which a VM's events are kept.
///
/// # Errors
/// Never for an id; the journal checks the length of all subjects.
pub fn vm_subject(id: Id) -> Result<Subject, cocoon_journal::FrameError> {
    Subject::new(format!("vm/{id}"))
}

fn subject_of(event: &Event) -> String {
    match event {
        Event::Vm(id, _) => format!("vm/{id}"),
        Event::Image(id, _) => format!("image/{id}"),
        Event::Supervisor(_) => "supervisor".to_owned(),
        Event::Root(_) => "root".to_owned(),
    }
}

/// Turns an event into an entry of the journal.
///
/// # Errors
/// [`CodecError::TooLarge`] if its body is longer than an event may be.
pub fn encode(event: &Event) -> Result<Entry, CodecError> {
    let info = event.info();
    let body = match event {
        Event::Vm(_, event) => event.write_body(ToBytes),
        Event::Image(_, event) => event.write_body(ToBytes),
        Event::Supervisor(event) => event.write_body(ToBytes),
        Event::Root(event) => event.write_body(ToBytes),
    };
    let too_large = |what: String| CodecError::TooLarge { name: info.name, what };
    let body = body.map_err(|error| too_large(error.to_string()))?;
    if body.len() > BODY_LIMIT {
        return Err(too_large(format!("{} bytes, of {BODY_LIMIT} allowed", body.len())));
    }
    let subject = Subject::new(subject_of(event)).map_err(|error| too_large(error.to_string()))?;
    Ok(Entry { kind: info.kind, version: info.version, subject, body })
}

/// Refuses a frame whose bodies are in a codec that is not known here.
///
/// # Errors
/// [`CodecError::Codec`].
pub fn check_codec(codec: u8) -> Result<(), CodecError> {
    if codec == cocoon_journal::frame::CODEC_BINCODE {
        Ok(())
    } else {
        Err(CodecError::Codec { codec })
    }
}

/// Turns an entry of the journal into an event; `None` for the journal's own kinds.
///
/// # Errors
/// [`CodecError`]: an unknown kind or version, a subject that does not fit, or a body that does not decode.
pub fn decode(entry: &Entry) -> Result<Option<Event>, CodecError> {
    let (kind, version) = (entry.kind, entry.version);
    if kind >= JOURNAL_KINDS {
        return match JournalEvent::from_entry(entry) {
            Some(_) => Ok(None),
            None => Err(CodecError::Unknown { kind, version }),
        };
    }
    let body = |what| CodecError::Body { kind, version, what };
    let reader = || FromBytes(&entry.body);
    if let Some(event) = VmEvent::read_body(kind, version, reader()).map_err(body)? {
        return Ok(Some(Event::Vm(id_of(entry, "vm/")?, event)));
    }
    if let Some(event) = ImageEvent::read_body(kind, version, reader()).map_err(body)? {
        return Ok(Some(Event::Image(id_of(entry, "image/")?, event)));
    }
    if let Some(event) = SupervisorEvent::read_body(kind, version, reader()).map_err(body)? {
        return Ok(Some(Event::Supervisor(event)));
    }
    if let Some(event) = RootEvent::read_body(kind, version, reader()).map_err(body)? {
        return Ok(Some(Event::Root(event)));
    }
    Err(CodecError::Unknown { kind, version })
}

fn id_of(entry: &Entry, prefix: &str) -> Result<Id, CodecError> {
    let subject = entry.subject.as_str();
    subject
        .strip_prefix(prefix)
        .and_then(|id| id.parse().ok())
        .ok_or_else(|| CodecError::Subject { kind: entry.kind, subject: subject.to_owned() })
}

/// The line of the table of kinds for a number, if it is one of ours.
#[must_use]
pub fn kind_info(kind: u16) -> Option<&'static KindInfo> {
    Event::kinds().find(|info| info.kind == kind)
}

/// Why the root is unconfirmed after an event of the journal about itself, as the end of a sentence: the world may be newer
/// than what the journal says from here on.
#[must_use]
pub fn doubt(entry: &Entry) -> Option<&'static str> {
    match entry.kind {
        reserved::JOURNAL_SALVAGED if lost_nothing(entry) => None,
        reserved::JOURNAL_SALVAGED => Some("the journal was salvaged, and events of it are lost"),
        reserved::JOURNAL_RESTORED => Some("the journal was restored from a backup"),
        reserved::JOURNAL_IMPORTED => Some("the journal was imported"),
        _ => None,
    }
}

/// Whether a salvage put back everything, from what was kept elsewhere.
fn lost_nothing(entry: &Entry) -> bool {
    matches!(JournalEvent::from_entry(entry), Some(JournalEvent::Salvaged { lost: 0, .. }))
}
