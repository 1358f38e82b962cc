//! The journal with the state folded from it: where decisions are taken and become true.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cocoon_journal::checkpoint::{self, Checkpoint, CheckpointOptions, CheckpointWriter};
use cocoon_journal::frame::MAX_EVENTS;
use cocoon_journal::store::{self, Repaired, STORE_EVERY, Store, StoreError, StoreOptions};
use cocoon_journal::{
    Fold as _, Journal as _, JournalError, Options, Outcome, Position, Proposal, SegmentedJournal,
    Seq, Witness,
};
use cocoon_model::command::Command;
use cocoon_model::decide::{Decision, Refusal, decide};
use cocoon_model::event::root::RootUnconfirmed;
use cocoon_model::event::{Event, ImageEvent, VmEvent};
use cocoon_model::id::{OperationId, VmId};
use cocoon_model::state::State;
use cocoon_model::view::View as _;
use uuid::Uuid;

use super::base::{CheckpointBase, key_change};
use super::caller::Caller;
use super::effect;
use super::error::EngineError;
use super::fold::{FoldError, StateFold};
use super::room;
use super::standing::{Presence, WITNESS};
use crate::codec;

/// How long one transaction may wait for the journal's lock; nobody holds it for longer than a write.
const TRANSACTION_PATIENCE: Duration = Duration::from_secs(10);

/// What a journal has named in its history: nothing else is ever collected.
#[derive(Debug, Default)]
pub struct Named {
    /// VMs.
    pub vms: BTreeSet<VmId>,
    /// Hashes of blobs.
    pub blobs: BTreeSet<String>,
}

impl Named {
    /// Takes in what an event names.
    pub(super) fn learn(&mut self, event: Option<&Event>) {
        match event {
            Some(Event::Vm(id, VmEvent::Prereserved(_) | VmEvent::Adopted(_))) => {
                self.vms.insert(*id);
            }
            Some(Event::Image(_, ImageEvent::Imported(body))) => {
                let hashes = body.content.blobs().into_iter().map(|blob| blob.hash.clone());
                self.blobs.extend(hashes);
            }
            _ => {}
        }
    }
}

fn options(root: Option<Uuid>) -> Options {
    Options { root, ..effect::journal_options() }
}

/// Events that a command puts into the store at most: some tenths of a second.
const FED_AT_ONCE: u64 = 2 * STORE_EVERY;

/// Events after which a command looks at how far the store is behind.
const LOOK_AT_STORE_EVERY: Seq = 256;

/// Commands that are decided under one hold of the journal's lock: some milliseconds of it.
const COMMANDS_AT_ONCE: usize = 1024;

/// The journal, and the state folded from it.
#[derive(Debug)]
pub struct Ledger {
    dir: PathBuf,
    journal: SegmentedJournal,
    fold: StateFold,
    checkpoint: Position,
    /// Where the journal stood when this process first read it.
    first_read: Option<Seq>,
    witness: Option<Witness>,
    presence: Option<Presence>,
}

impl Ledger {
    /// Opens the journal in `dir`, creating it on first use; the state is folded when it is first asked for.
    ///
    /// # Errors
    /// Those of the journal.
    pub fn open(dir: &Path) -> Result<Self, EngineError> {
        Self::on(dir, SegmentedJournal::open(dir, options(None))?, None)
    }

    /// As [`open`](Self::open), for a journal that must be there and belong to the root with this uuid.
    ///
    /// # Errors
    /// Those of the journal.
    pub fn open_existing(dir: &Path, root: Uuid) -> Result<Self, EngineError> {
        Self::on(dir, SegmentedJournal::open_existing(dir, options(Some(root)))?, Some(root))
    }

    /// As [`open`](Self::open), for the root with this uuid; a journal that belongs to another is refused.
    ///
    /// # Errors
    /// Those of the journal.
    pub fn of_root(dir: &Path, root: Uuid) -> Result<Self, EngineError> {
        Self::on(dir, SegmentedJournal::open(dir, options(Some(root)))?, Some(root))
    }

    fn on(dir: &Path, journal: SegmentedJournal, root: Option<Uuid>) -> Result<Self, EngineError> {
        let beside = dir.parent().unwrap_or(dir).join(WITNESS);
        let witness = root.map(|root| Witness::new(&beside, root));
        let mut ledger = Self {
            dir: dir.to_owned(),
            journal,
            fold: StateFold::default(),
            checkpoint: Position::default(),
            first_read: None,
            witness,
            presence: None,
        };
        ledger.rebase()?;
        Ok(ledger)
    }

    /// Puts the fold on the newest checkpoint that can be read.
    pub(crate) fn rebase(&mut self) -> Result<(), EngineError> {
        let latest =
            Checkpoint::latest(&self.dir).map_err(|error| EngineError::Host(error.to_string()))?;
        for damaged in &latest.damaged {
            tracing::warn!(
                seq = damaged.seq,
                "a checkpoint is damaged and passed over: {}",
                damaged.error
            );
        }
        self.checkpoint = latest.checkpoint.as_ref().map(Checkpoint::position).unwrap_or_default();
        self.fold = StateFold::on(CheckpointBase::new(latest.checkpoint), self.checkpoint);
        self.fold.expect(self.witnessed());
        Ok(())
    }

    /// Brings the state up to the durable end of the journal.
    ///
    /// # Errors
    /// Those of the journal and of the fold.
    pub fn refresh(&mut self) -> Result<&State<CheckpointBase>, EngineError> {
        let read = self.journal.refresh(&mut self.fold);
        self.after_reading(read)
    }

    /// Brings the state up to the end of the journal, of which the last events may not be durable yet: only for
    /// preparing a command. Whoever answers or refuses from it refreshes first.
    ///
    /// # Errors
    /// Those of the journal and of the fold.
    pub fn look_ahead(&mut self) -> Result<&State<CheckpointBase>, EngineError> {
        let read = self.journal.look_ahead(&mut self.fold);
        self.after_reading(read)
    }

    fn after_reading(
        &mut self,
        read: Result<(), JournalError>,
    ) -> Result<&State<CheckpointBase>, EngineError> {
        if let Err(error) = read {
            return Err(self.failed(error));
        }
        self.first_read.get_or_insert(self.fold.position().seq);
        Ok(self.fold.state())
    }

    /// The state as of the last refresh or decision of this process.
    #[must_use]
    pub fn state(&self) -> &State<CheckpointBase> {
        self.fold.state()
    }

    /// The frame up to which the state is folded.
    #[must_use]
    pub fn position(&self) -> Position {
        self.fold.position()
    }

    /// The journal itself, for reading.
    #[must_use]
    pub fn journal(&self) -> &SegmentedJournal {
        &self.journal
    }

    /// Has a command decided on the newest state; what is accepted is durable when this returns.
    ///
    /// # Errors
    /// Those of the journal and of the fold. After a failed write the state is built anew at the next use.
    pub fn submit(&mut self, caller: &Caller, command: &Command) -> Result<Decision, EngineError> {
        match self.submit_once(caller, command)? {
            // That the root is older than its world is on record now: what needs no confirmation can be decided.
            Decision::Refused(Refusal::Unconfirmed(_)) if command.needs_no_confirmation() => {
                self.submit_once(caller, command)
            }
            decision => Ok(decision),
        }
    }

    fn submit_once(&mut self, caller: &Caller, command: &Command) -> Result<Decision, EngineError> {
        let deadline = Instant::now() + TRANSACTION_PATIENCE;
        let operation = caller.id();
        let (witness, presence) = (self.witness.as_ref(), self.presence.as_ref());
        let decided = self.journal.transact(&mut self.fold, &caller.writer(), deadline, |fold| {
            if let Some(refused) = refuse_unconfirmed(fold, witness, presence, command)? {
                return Ok(refused);
            }
            let decision = decide(fold.state(), operation, command)?;
            match &decision {
                Decision::Accepted(events) => {
                    let entries =
                        events.iter().map(codec::encode).collect::<Result<Vec<_>, _>>()?;
                    Ok(room::propose([command], entries, decision))
                }
                Decision::AlreadySo(_) | Decision::Refused(_) => Ok(Proposal::Answer(decision)),
            }
        });
        match decided {
            Ok(outcome) => {
                self.witnesses(&outcome);
                Ok(outcome.answer)
            }
            Err(error) => Err(self.failed(error)),
        }
    }

    /// As [`submit`](Self::submit), for commands about different subjects: as many as fit share a frame, and frames
    /// share a write and a sync. Answers in the order of the commands; after an error, some of them may stand.
    ///
    /// # Errors
    /// Those of [`submit`](Self::submit).
    pub fn submit_together(
        &mut self,
        caller: &Caller,
        commands: &[Command],
    ) -> Result<Vec<Decision>, EngineError> {
        if let Some(reason) = self.unconfirmed()? {
            let refused = || Decision::Refused(Refusal::Unconfirmed(reason.clone()));
            return Ok(commands.iter().map(|_| refused()).collect());
        }
        let mut decisions = Vec::with_capacity(commands.len());
        for commands in commands.chunks(COMMANDS_AT_ONCE) {
            decisions.extend(self.submit_in_one_write(caller, commands)?);
        }
        Ok(decisions)
    }

    fn submit_in_one_write(
        &mut self,
        caller: &Caller,
        commands: &[Command],
    ) -> Result<Vec<Decision>, EngineError> {
        let deadline = Instant::now() + TRANSACTION_PATIENCE;
        let operation = caller.id();
        let mut rest = commands;
        let decided =
            self.journal.transact_each(&mut self.fold, &caller.writer(), deadline, |fold| {
                if rest.is_empty() {
                    return None;
                }
                Some(fill_frame(fold, operation, &mut rest))
            });
        match decided {
            Ok(outcomes) => {
                outcomes.last().into_iter().for_each(|outcome| self.witnesses(outcome));
                Ok(outcomes.into_iter().flat_map(|outcome| outcome.answer).collect())
            }
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Where the root is; without that, its place is no reason to doubt it.
    pub fn stand_at(&mut self, presence: Presence) {
        self.presence = Some(presence);
    }

    /// Why the root is unconfirmed, as the end of that sentence.
    ///
    /// # Errors
    /// Those of the journal and of the fold.
    pub fn unconfirmed(&mut self) -> Result<Option<String>, EngineError> {
        let witnessed = self.witnessed();
        self.look_ahead()?;
        if self.reason(witnessed)?.is_none() {
            // Nothing is answered from it: the decision that follows asks again.
            return Ok(None);
        }
        let witnessed = self.witnessed();
        self.refresh()?;
        self.reason(witnessed)
    }

    /// What speaks against the state as it is, and as the witness had seen it before.
    fn reason(&self, witnessed: Option<Position>) -> Result<Option<String>, EngineError> {
        let root = self.state().root()?;
        let older = || self.fold.is_older(witnessed);
        let moved = || self.presence.as_ref().and_then(|at| at.doubt(root.place.as_ref()));
        Ok(root.doubt.map(|doubt| doubt.reason).or_else(older).or_else(moved))
    }

    /// Makes sure that it is on record if the witness proves the journal older, before anything else is.
    ///
    /// # Errors
    /// Those of [`submit`](Self::submit).
    pub fn record_doubt(&mut self, caller: &Caller) -> Result<(), EngineError> {
        let witnessed = self.witnessed();
        self.refresh()?;
        if let Some(reason) = self.fold.is_older(witnessed) {
            self.submit(caller, &Command::Doubt { reason })?;
        }
        Ok(())
    }

    /// Has the witness take this journal for the right one, as far as it goes now.
    ///
    /// # Errors
    /// If the witness cannot be written.
    pub fn convince_witness(&mut self) -> Result<(), EngineError> {
        self.refresh()?;
        let Some(witness) = &self.witness else { return Ok(()) };
        let beside = self.dir.parent().unwrap_or(&self.dir).join(WITNESS);
        let position = self.position();
        let written = effect::perform("adopt.convince-witness", || witness.reset(position));
        written.map_err(EngineError::io("write", beside))?;
        self.fold.expect(None);
        Ok(())
    }

    fn witnessed(&self) -> Option<Position> {
        self.witness.as_ref().and_then(Witness::read)
    }

    /// Tells the witness how far the journal has come, if this transaction made it longer.
    fn witnesses<T>(&self, outcome: &Outcome<T>) {
        let Some(witness) = self.witness.as_ref().filter(|_| outcome.seqs.is_some()) else {
            return;
        };
        if let Err(error) = witness.reach(outcome.position) {
            tracing::debug!("the witness of the journal's end cannot be written: {error}");
        }
    }

    /// A failure may leave the fold ahead of the disk: it is dropped, and built anew from what is there.
    fn failed(&mut self, error: JournalError) -> EngineError {
        let root = self.journal.root();
        if let Ok(journal) = SegmentedJournal::open_existing(&self.dir, options(Some(root))) {
            self.journal = journal;
        }
        if let Err(error) = self.rebase() {
            tracing::warn!("the state cannot be built anew: {error}");
        }
        match error.into_caller_error::<FoldError>() {
            Ok(error) => EngineError::Fold(error),
            Err(error) => EngineError::Journal(error),
        }
    }

    /// Whether this process should [`tend`](Self::tend) before it ends. A process that others stood in the way of leaves
    /// it to a calmer one for a while: among many at once, the last finds none, and then nobody is kept from anything.
    #[must_use]
    pub fn owes_tending(&self) -> bool {
        let piece = |seq: Seq| seq / LOOK_AT_STORE_EVERY;
        let filled_one =
            || self.first_read.is_some_and(|then| piece(then) != piece(self.position().seq));
        let look = !self.journal.met_others() || filled_one();
        let lag = || store::lag(&self.dir, self.position().seq);
        self.checkpoint_is_due() || look && lag().map_or(true, |lag| self.store_is_due(lag))
    }

    fn checkpoint_is_due(&self) -> bool {
        checkpoint::due(self.position().seq, self.checkpoint.seq)
    }

    fn store_is_due(&self, lag: u64) -> bool {
        let put_off = if self.journal.met_others() { 3 * STORE_EVERY } else { 0 };
        store::due(lag.saturating_sub(put_off))
    }

    /// Writes what is derived from the journal, if it is due and nobody else does: a checkpoint, then the store. Called
    /// after the answer is out; a failure is told and changes nothing. `begins` is called before either is written.
    pub fn tend(&mut self, begins: impl Fn()) {
        if self.checkpoint_is_due()
            && let Err(error) = self.write_checkpoint(&begins)
        {
            tracing::warn!("no checkpoint was written: {error}");
        }
        if let Err(error) = self.feed_store(&begins) {
            tracing::warn!("the event store was not brought up to date: {error}");
        }
    }

    fn write_checkpoint(&mut self, begins: &impl Fn()) -> Result<(), EngineError> {
        let told = |error: cocoon_journal::checkpoint::CheckpointError| {
            EngineError::Host(error.to_string())
        };
        let options =
            CheckpointOptions { boundary: effect::journal_boundary, ..Default::default() };
        let Some(mut writer) = CheckpointWriter::try_lock(&self.dir, options).map_err(told)? else {
            return Ok(());
        };
        let previous = writer.previous().map(Checkpoint::position).unwrap_or_default();
        if previous != self.checkpoint {
            // Somebody else wrote one since; the next command stands on that.
            return Ok(());
        }
        begins();
        self.refresh()?;
        let durable = self.journal.durable()?;
        let changes = self.fold.state().changes();
        let mut changes =
            changes.map(|change| key_change(&change)).collect::<Result<Vec<_>, _>>()?;
        changes.sort_unstable();
        writer.write_changes(self.checkpoint, self.position(), durable, changes).map_err(told)?;
        self.rebase()?;
        self.refresh().map(|_| ())
    }

    /// Brings the event store up to date, if it is far behind and nobody else has it open.
    fn feed_store(&mut self, begins: &impl Fn()) -> Result<(), EngineError> {
        let told = |error: StoreError| EngineError::Host(error.to_string());
        let durable = self.journal.durable()?;
        if !self.store_is_due(store::lag(&self.dir, durable.seq).map_err(told)?) {
            return Ok(());
        }
        let options = StoreOptions { boundary: effect::journal_boundary };
        let Some(mut store) = Store::try_open_with(&self.dir, options).map_err(told)? else {
            return Ok(());
        };
        begins();
        let until = self.next_feed(store.position().map_err(told)?.seq, durable)?;
        tell_repairs(&store.catch_up(&self.journal, until).map_err(told)?.repairs);
        Ok(())
    }

    /// How far the store is brought from `stored`: whoever gave the command waits for its process to end, so a store that
    /// was lost, or left behind by a long past, is caught up with by many commands, or by the daemon.
    fn next_feed(&self, stored: Seq, durable: Position) -> Result<Position, EngineError> {
        let goal = stored.saturating_add(FED_AT_ONCE);
        if goal >= durable.seq {
            return Ok(durable);
        }
        let mut frames = match self.journal.frames_from(goal) {
            Err(JournalError::HistoryBegins { first, .. }) => {
                self.journal.frames_from(first.saturating_add(FED_AT_ONCE))
            }
            frames => frames,
        }?;
        match frames.next() {
            Some(frame) => frame.map(|(frame, hash)| frame.position(hash)).map_err(Into::into),
            None => Ok(durable),
        }
    }
}

/// Refuses what an unconfirmed root does not allow. That the journal is an older one is put on record at once: its next
/// events would take that proof away.
fn refuse_unconfirmed(
    fold: &StateFold,
    witness: Option<&Witness>,
    presence: Option<&Presence>,
    command: &Command,
) -> Result<Option<Proposal<Decision>>, FoldError> {
    let root = fold.state().root()?;
    if root.doubt.is_some() {
        return Ok(None);
    }
    let refused = |reason| Decision::Refused(Refusal::Unconfirmed(reason));
    if let Some(reason) = fold.is_older(witness.and_then(Witness::read)) {
        let doubted = Event::Root(RootUnconfirmed { reason: reason.clone() }.into());
        let entries = vec![codec::encode(&doubted)?];
        return Ok(Some(Proposal::AppendFromReserve(entries, refused(reason))));
    }
    let moved = presence.and_then(|presence| presence.doubt(root.place.as_ref()));
    let moved = moved.filter(|_| !command.needs_no_confirmation());
    Ok(moved.map(|reason| Proposal::Answer(refused(reason))))
}

/// Tells what was repaired of the event store; a repair that shows that the journal itself has lost something is told
/// as what it is.
pub(crate) fn tell_repairs(repairs: &[Repaired]) {
    for Repaired { generation, cause, kept } in repairs {
        let kept = kept.as_deref().map_or("nowhere".into(), |kept| kept.display().to_string());
        if cause.accuses_log() {
            tracing::error!(
                "the journal lacks events that were durable: generation {generation} of the event store says that {cause}; it is kept in {kept}. Type `cocoon journal verify`, then `cocoon journal repair`"
            );
        } else {
            tracing::info!(
                "generation {generation} of the event store was rebuilt: {cause}; kept: {kept}"
            );
        }
    }
}

/// Decides at least the first of the commands, and as many after it as fit into its frame.
fn fill_frame(
    fold: &StateFold,
    operation: OperationId,
    rest: &mut &[Command],
) -> Result<Proposal<Vec<Decision>>, FoldError> {
    let (mut entries, mut decisions, mut accepted) = (Vec::new(), Vec::new(), Vec::new());
    while let Some((command, after)) = rest.split_first() {
        let decision = decide(fold.state(), operation, command)?;
        if let Decision::Accepted(events) = &decision {
            if !decisions.is_empty() && entries.len() + events.len() > MAX_EVENTS {
                break;
            }
            for event in events {
                entries.push(codec::encode(event)?);
            }
            accepted.push(command);
        }
        decisions.push(decision);
        *rest = after;
    }
    Ok(if entries.is_empty() {
        Proposal::Answer(decisions)
    } else {
        room::propose(accepted, entries, decisions)
    })
}

/// What the journal in `dir` has ever named, by a walk over all of its history.
///
/// # Errors
/// Those of the journal.
pub(super) fn named(dir: &Path) -> Result<Named, EngineError> {
    let journal = SegmentedJournal::open_existing(dir, options(None))?;
    let frames = match journal.frames_from(1) {
        Err(JournalError::HistoryBegins { first, .. }) => journal.frames_from(first)?,
        frames => frames?,
    };
    let mut named = Named::default();
    super::archive::remembered(dir, &mut named)?;
    for frame in frames {
        let (frame, _) = frame?;
        for (_, entry) in frame.events() {
            named.learn(codec::decode(entry)?.as_ref());
        }
    }
    Ok(named)
}

#[cfg(test)]
mod tests;
