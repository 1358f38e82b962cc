//! Histories that come from elsewhere: restoring a backup, importing an export.
//!
//! ```text
//!   file --checked whole--> ROOT/journal.placing --> ROOT marked --> ROOT/journal
//! ```
//!
//! The journal says of itself that it was restored or imported, before anybody can meet it. What the host does may be
//! ahead of what such a journal knows.

use std::fs::DirBuilder;
use std::io::BufRead;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use cocoon_journal::bundle::{BundleReader, Bundled};
use cocoon_journal::error::AnyError;
use cocoon_journal::export::lines::JsonFrames;
use cocoon_journal::inspect::{Inspector, Piece};
use cocoon_journal::reserved::JournalEvent;
use cocoon_journal::staging::{Staging, StagingError};
use cocoon_journal::{Entry, Hash, Position};
use uuid::Uuid;

use super::effect::{self, perform};
use super::{Caller, EngineError};
use crate::codec;
use crate::home::Home;
use crate::host::directory::{self, Kind};
use crate::host::lock::Locks;
use crate::settings::Settings;

/// A journal that was made, or had been.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    /// The root.
    pub root: Uuid,
    /// Last event of the source.
    pub last: u64,
    /// Events in the source.
    pub events: u64,
    /// Digest of the backup, or of the frames of the export.
    pub digest: Hash,
    /// Nothing was done: the journal had been made from this source, and nothing happened since.
    pub already: bool,
}

fn told(error: impl std::fmt::Display) -> EngineError {
    EngineError::Host(error.to_string())
}

/// Makes the journal of a root from a backup.
///
/// # Errors
/// If the root has a journal, or is another one; or the backup is not whole. Nothing was placed then.
pub fn restore(
    settings: &Settings,
    caller: &Caller,
    input: impl BufRead,
) -> Result<Received, EngineError> {
    let mut backup = BundleReader::new(input).map_err(told)?;
    let header = backup.header().clone();
    if !header.is_backup {
        return Err(told("this is an export; make a root of it with `cocoon journal import`"));
    }
    let root = &settings.root_dir;
    let mut ground = Ground::prepare(settings, caller, Some(header.root))?;
    let place = root.join("journal");
    let mut staging = match Staging::begin(&place, header.root, effect::journal_options()) {
        Err(StagingError::Exists { path }) => {
            return already(&place, backup, StagingError::Exists { path });
        }
        staging => staging.map_err(told)?,
    };
    let before = Position { seq: header.first.saturating_sub(1), hash: header.prev_hash };
    if (before.seq > 0) != (header.stub_len > 0) {
        return Err(told(
            "the backup does not hold the state that it begins with; use another copy",
        ));
    }
    if header.stub_len > 0 {
        staging.stub(before, |file| backup.copy_stub(file)).map_err(told)?;
    }
    let last = staging.fill(before, backup.by_ref(), check).map_err(told)?;
    let end = backup.end();
    let origin =
        JournalEvent::Restored { last: last.seq, taken_us: header.made_us, backup: end.digest };
    ground.mark(header.root)?;
    perform("transfer.place", || staging.place(last, &origin, &caller.writer())).map_err(told)?;
    Home::note_journal(root)?;
    Ok(Received {
        root: header.root,
        last: last.seq,
        events: end.events,
        digest: end.digest,
        already: false,
    })
}

/// There is a journal: was it restored from this very backup, and has nothing happened since?
fn already(
    place: &Path,
    mut backup: BundleReader<impl BufRead>,
    refusal: StagingError,
) -> Result<Received, EngineError> {
    for bundled in backup.by_ref() {
        bundled.map_err(told)?;
    }
    let end = backup.end();
    let pieces = Inspector::open(place).map_err(|_| told(&refusal))?;
    let last = pieces.filter_map(|piece| match piece {
        Piece::Frame(seen) => Some(seen.frame),
        Piece::Segment(_) | Piece::Fault(_) => None,
    });
    let last = last.last().and_then(|frame| JournalEvent::from_entry(frame.entries.last()?));
    match last {
        Some(JournalEvent::Restored { backup: digest, last, .. }) if digest == end.digest => {
            let root = backup.header().root;
            Ok(Received { root, last, events: end.events, digest, already: true })
        }
        _ => Err(told(refusal)),
    }
}

/// Makes the journal of an empty root from an export, in either form.
///
/// # Errors
/// If the root has a journal; or the export is not whole, not from the first event on, redacted, or of a newer version.
/// Nothing was placed then.
pub fn import(
    settings: &Settings,
    caller: &Caller,
    mut input: impl BufRead,
) -> Result<Received, EngineError> {
    let is_lines = input.fill_buf().map_err(told)?.first() == Some(&b'{');
    let mut export = if is_lines {
        Export::new(Form::Lines(JsonFrames::new(input)))
    } else {
        Export::new(Form::Bundle(Box::new(BundleReader::new(input).map_err(told)?)))
    };
    let mut ground = Ground::prepare(settings, caller, None)?;
    let root = ground.uuid.unwrap_or_else(Uuid::new_v4);
    let place = settings.root_dir.join("journal");
    let mut staging = Staging::begin(&place, root, effect::journal_options()).map_err(told)?;
    let last = staging.fill(Position::default(), export.by_ref(), check).map_err(told)?;
    if export.events == 0 {
        return Err(told("this export holds no event; there is nothing to make a root of"));
    }
    let digest = *export.hasher.finalize().as_bytes();
    let from = export.root();
    let origin = JournalEvent::Imported { last: last.seq, from, export: digest };
    ground.mark(root)?;
    perform("transfer.place", || staging.place(last, &origin, &caller.writer())).map_err(told)?;
    Home::note_journal(&settings.root_dir)?;
    Ok(Received { root, last: last.seq, events: export.events, digest, already: false })
}

/// Refuses events of a newer version.
fn check(entry: &Entry) -> Result<(), AnyError> {
    codec::decode(entry).map(|_| ()).map_err(AnyError::from)
}

/// The two forms of an export.
enum Form<R> {
    Bundle(Box<BundleReader<R>>),
    Lines(JsonFrames<R>),
}

/// The frames of an export that may become a root.
struct Export<R> {
    form: Form<R>,
    hasher: blake3::Hasher,
    events: u64,
}

impl<R: BufRead> Export<R> {
    fn new(form: Form<R>) -> Self {
        Self { form, hasher: blake3::Hasher::new(), events: 0 }
    }

    fn root(&self) -> Uuid {
        match &self.form {
            Form::Bundle(bundle) => bundle.header().root,
            Form::Lines(lines) => lines.root().unwrap_or_default(),
        }
    }

    fn read(&mut self) -> Option<Result<Bundled, StagingError>> {
        match &mut self.form {
            Form::Bundle(bundle) => Some(bundle.next()?.map_err(StagingError::from)),
            Form::Lines(lines) => Some(lines.next()?.map_err(StagingError::from)),
        }
    }

    /// Why it cannot become a root, beginning with this frame.
    fn refusal(&self, bundled: &Bundled) -> Option<String> {
        let (is_redacted, is_backup) = match &self.form {
            Form::Bundle(bundle) => (bundle.header().is_redacted, bundle.header().is_backup),
            Form::Lines(lines) => (lines.is_redacted(), false),
        };
        let seq = bundled.frame.header.seq;
        if is_backup {
            Some("this is a backup; restore it with `cocoon journal restore`".to_owned())
        } else if is_redacted {
            Some("this export is redacted: its names and paths are placeholders, so no root can go on from it; look at it with `cocoon replay --journal FILE`".to_owned())
        } else if self.events == 0 && seq != 1 {
            Some(format!(
                "this export begins at seq {seq}, and what was before is not in it; export all of it, or restore a backup"
            ))
        } else {
            None
        }
    }
}

impl<R: BufRead> Iterator for Export<R> {
    type Item = Result<Bundled, StagingError>;

    fn next(&mut self) -> Option<Self::Item> {
        let bundled = match self.read()? {
            Ok(bundled) => bundled,
            Err(error) => return Some(Err(error)),
        };
        if let Some(refusal) = self.refusal(&bundled) {
            return Some(Err(StagingError::Source(refusal)));
        }
        self.hasher.update(&bundled.bytes);
        self.events += u64::from(bundled.frame.header.count);
        Some(Ok(bundled))
    }
}

/// A root that may get a journal. Dropped before it was marked, a directory that was made for it goes again.
struct Ground<'a> {
    root: &'a Path,
    /// Its mark, if it has one.
    uuid: Option<Uuid>,
    made: bool,
    /// No daemon comes up meanwhile, nor did one live on after its journal was moved away.
    _daemon: Option<crate::host::lock::LockGuard>,
}

impl<'a> Ground<'a> {
    fn prepare(
        settings: &'a Settings,
        caller: &Caller,
        expected: Option<Uuid>,
    ) -> Result<Self, EngineError> {
        let root = settings.root_dir.as_path();
        if root.exists() {
            directory::refuse_foreign_store(root).map_err(told)?;
        }
        let uuid = directory::marker(root, Kind::Root).map_err(told)?.map(|marker| marker.root);
        if let (Some(expected), Some(found)) = (expected, uuid)
            && expected != found
        {
            return Err(told(format!(
                "the backup is of root {expected}, and {} is root {found}; choose another directory with --root-dir",
                root.display()
            )));
        }
        let made = !root.exists();
        if made {
            perform("transfer.make-root", || {
                DirBuilder::new().recursive(true).mode(0o700).create(root)
            })
            .map_err(EngineError::io("create", root))?;
        }
        directory::refuse_network_file_system(root).map_err(told)?;
        let daemon = match root.join("locks").is_dir() {
            false => None,
            true => match Locks::open(root)?.daemon(&caller.holder()?)? {
                Ok(guard) => Some(guard),
                Err(busy) => {
                    return Err(told(format!(
                        "a daemon of this root lives ({busy}); stop it first, it knows another journal"
                    )));
                }
            },
        };
        Ok(Self { root, uuid, made, _daemon: daemon })
    }

    /// Says whose root it is.
    fn mark(&mut self, uuid: Uuid) -> Result<(), EngineError> {
        let marked = perform("transfer.mark-root", || directory::mark(self.root, Kind::Root, uuid));
        let found = marked.map_err(told)?.root;
        self.made = false;
        if found == uuid {
            return Ok(());
        }
        Err(told(format!(
            "{} became root {found} meanwhile; choose another directory with --root-dir",
            self.root.display()
        )))
    }
}

impl Drop for Ground<'_> {
    fn drop(&mut self) {
        if self.made {
            // Whatever has come into it meanwhile keeps it.
            let _ = perform("transfer.remove-root", || std::fs::remove_dir(self.root));
        }
    }
}
