//! A past for a journal: VMs that were born, ran, stopped, died and were removed, by the decisions that the product takes.
//!
//! ```text
//!   a wave: one operation, one hold of the lock, one sync
//!     VM 1   reserve | commit | launch, spawned, up | stop.. | launch.. | removed step by step
//!     VM 2   ...
//!     the VMs take turns, so that their events interleave
//! ```
//!
//! One decision is one frame, as with real commands; only the syncs are shared, or a million events would take minutes.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cocoon::codec;
use cocoon::engine::Caller;
use cocoon::engine::base::{CheckpointBase, key_change};
use cocoon::engine::fold::{FoldError, StateFold};
use cocoon::engine::ledger::Ledger;
use cocoon_journal::checkpoint::{Checkpoint, CheckpointOptions, CheckpointWriter};
use cocoon_journal::{Fold as _, Journal as _, Options, Position, Proposal, SegmentedJournal, Seq};
use cocoon_model::command::{Command, VmmSeen};
use cocoon_model::decide::{Decision, decide};
use cocoon_model::id::{ImageId, LaunchToken, OperationId, VmId};
use cocoon_model::record::{Accelerator, OperationKind, ProcessIdentity, StopMode, VmRecord};
use cocoon_model::step::{Outcome as StepOutcome, Step, next_step};
use cocoon_model::view::{Unreadable, View as _};

use crate::Outcome;
use crate::worker::{new_id, spec};

/// VMs that live at the same time.
const WAVE: usize = 16;
/// VMs that are made at once to stay.
const BIRTHS: usize = 256;
/// Events after which a checkpoint is written.
const CHECKPOINT_EVERY: Seq = 20_000;
/// Nobody else is at it.
const PATIENCE: Duration = Duration::from_secs(60);

/// Something that happens to a VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Deed {
    Create,
    Run,
    Start,
    Stop,
    Die,
    Remove,
}

/// What is still to happen to a VM.
struct Life {
    id: VmId,
    name: String,
    deeds: VecDeque<Deed>,
}

/// A journal whose past is being made.
pub(crate) struct Past {
    dir: PathBuf,
    home: PathBuf,
    journal: SegmentedJournal,
    fold: StateFold,
    image: ImageId,
    random: u64,
    checkpoint: Position,
}

impl Past {
    /// Of the journal in `home/journal`, which has an image `guest`.
    pub(crate) fn open(home: &Path) -> Outcome<Self> {
        let dir = home.join("journal");
        let image = Ledger::open(&dir)?.refresh()?.image_by_name("guest")?;
        let mut past = Self {
            journal: SegmentedJournal::open(&dir, Options::default())?,
            dir,
            home: home.to_owned(),
            fold: StateFold::default(),
            image: image.ok_or("there is no image")?,
            random: 0x9e37_79b9_7f4a_7c15,
            checkpoint: Position::default(),
        };
        past.rebase()?;
        Ok(past)
    }

    /// Adds VMs that stay: `resident-0` and so on.
    pub(crate) fn residents(&mut self, count: usize) -> Outcome {
        let numbers: Vec<usize> = (0..count).collect();
        for numbers in numbers.chunks(BIRTHS) {
            let born = |number: &usize| Life {
                id: new_id(),
                name: format!("resident-{number}"),
                deeds: VecDeque::from([Deed::Create]),
            };
            self.live(numbers.iter().map(born).collect())?;
        }
        self.checkpoint()
    }

    /// Adds at least so many events of VMs that are all gone again; says how many.
    pub(crate) fn events(&mut self, count: Seq) -> Outcome<Seq> {
        let began = self.journal.durable()?.seq;
        let end = began.saturating_add(count);
        while self.journal.durable()?.seq < end {
            let lives = (0..WAVE).map(|_| self.life()).collect();
            self.live(lives)?;
        }
        self.checkpoint()?;
        Ok(self.journal.durable()?.seq.saturating_sub(began))
    }

    /// Feeds the event store, which takes longer than all else.
    pub(crate) fn feed_store(&self) -> Outcome {
        let mut ledger = Ledger::open(&self.dir)?;
        ledger.refresh()?;
        ledger.tend(|| {});
        Ok(())
    }

    /// Number of the last event.
    pub(crate) fn seq(&self) -> Outcome<Seq> {
        Ok(self.journal.durable()?.seq)
    }

    /// Most are run and stopped once; some are started again, some die by themselves.
    fn life(&mut self) -> Life {
        let mut deeds = VecDeque::new();
        match self.below(10) {
            0..3 => deeds.extend([Deed::Create, Deed::Start]),
            _ => deeds.push_back(Deed::Run),
        }
        for _ in 0..self.below(3) {
            deeds.extend([self.end(), Deed::Start]);
        }
        deeds.extend([self.end(), Deed::Remove]);
        let id = new_id();
        Life { id, name: id.to_string(), deeds }
    }

    fn end(&mut self) -> Deed {
        if self.below(5) == 0 { Deed::Die } else { Deed::Stop }
    }

    /// Random enough (xorshift), and the same each time.
    fn below(&mut self, limit: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % limit
    }

    /// Lets VMs live to their ends.
    fn live(&mut self, lives: Vec<Life>) -> Outcome {
        let caller = Caller::new("vm run", None)?;
        let (operation, writer) = (caller.id(), caller.writer());
        let (image, home) = (self.image, &self.home);
        let mut turns = VecDeque::from(lives);
        let deadline = Instant::now() + PATIENCE;
        self.journal.transact_each(&mut self.fold, &writer, deadline, |fold| {
            loop {
                let mut life = turns.pop_front()?;
                let record = match fold.state().vm(life.id) {
                    Ok(record) => record,
                    Err(error) => return Some(Err(error.into())),
                };
                let Some(command) = life.next(record.as_deref(), image, home) else { continue };
                turns.push_back(life);
                return Some(propose(fold, operation, &command));
            }
        })?;
        let since = self.fold.position().seq.saturating_sub(self.checkpoint.seq);
        if since < CHECKPOINT_EVERY { Ok(()) } else { self.checkpoint() }
    }

    /// A checkpoint, as commands write it, though they do it sooner.
    fn checkpoint(&mut self) -> Outcome {
        let at = self.fold.position();
        if at.seq == self.checkpoint.seq {
            return Ok(());
        }
        let writer = CheckpointWriter::try_lock(&self.dir, CheckpointOptions::default())?;
        let mut writer = writer.ok_or("somebody else writes a checkpoint")?;
        let changes = self.fold.state().changes();
        let mut changes =
            changes.map(|change| key_change(&change)).collect::<Result<Vec<_>, _>>()?;
        changes.sort_unstable();
        writer.write_changes(self.checkpoint, at, self.journal.durable()?, changes)?;
        self.rebase()
    }

    /// Puts the fold on the newest checkpoint, or it would grow with the past.
    fn rebase(&mut self) -> Outcome {
        let checkpoint = Checkpoint::latest(&self.dir)?.checkpoint;
        let position = checkpoint.as_ref().map(Checkpoint::position).unwrap_or_default();
        self.fold = StateFold::on(CheckpointBase::new(checkpoint), position);
        self.checkpoint = position;
        Ok(())
    }
}

fn propose(
    fold: &StateFold,
    operation: OperationId,
    command: &Command,
) -> Result<Proposal<()>, FoldError> {
    match decide(fold.state(), operation, command)? {
        Decision::Accepted(events) => {
            let entries = events.iter().map(codec::encode).collect::<Result<Vec<_>, _>>()?;
            Ok(Proposal::Append(entries, ()))
        }
        other => Err(Unreadable(format!("{command:?} was not accepted: {other:?}")).into()),
    }
}

impl Life {
    /// What the record owes, else the next deed; `None` at the end.
    fn next(&mut self, record: Option<&VmRecord>, image: ImageId, home: &Path) -> Option<Command> {
        let id = self.id;
        let core = record.map(|record| &record.core);
        if let Some(step) = core.and_then(next_step) {
            return Some(Command::Report { id, step, outcome: outcome(id, step) });
        }
        let generation = core.map(|core| core.generation).unwrap_or_default();
        let deed = self.deeds.pop_front()?;
        Some(match deed {
            Deed::Create | Deed::Run => Command::Prereserve {
                id,
                name: self.name.clone(),
                image,
                kind: if deed == Deed::Run { OperationKind::Run } else { OperationKind::Create },
                spec: Box::new(spec(id, home)),
            },
            Deed::Start => Command::Start {
                id,
                generation,
                seen: VmmSeen::Dead,
                token: token(id),
                accelerator: Accelerator::Kvm,
            },
            Deed::Stop => Command::Stop {
                id,
                seen: VmmSeen::Alive(identity(id)),
                mode: StopMode::Graceful { timeout_ms: 30_000 },
            },
            Deed::Die => Command::ObserveExit {
                id,
                generation,
                evidence: Some("the guest shut down".to_owned()),
            },
            Deed::Remove => Command::Delete { id, seen: VmmSeen::Dead, force: false },
        })
    }
}

fn outcome(id: VmId, step: Step) -> StepOutcome {
    match step {
        Step::ChooseLaunch => StepOutcome::Chosen(token(id), Accelerator::Kvm),
        Step::SpawnVmm => StepOutcome::Spawned(identity(id)),
        Step::AwaitVmm | Step::SettleLaunch => StepOutcome::Up(identity(id)),
        Step::PrepareStorage | Step::StopVmm(_) | Step::ProveVmmDead { .. } | Step::Remove(_) => {
            StepOutcome::Done
        }
    }
}

/// A number of the VM's own.
fn number(id: VmId) -> u64 {
    id.as_str().bytes().fold(0, |number, byte| number.rotate_left(5) ^ u64::from(byte))
}

fn token(id: VmId) -> LaunchToken {
    LaunchToken(number(id))
}

/// A process of another boot: nobody mistakes it for one that is there.
fn identity(id: VmId) -> ProcessIdentity {
    let number = number(id);
    ProcessIdentity {
        pid: u32::try_from(number % 4_000_000).unwrap_or_default(),
        start_time: number >> 24,
        boot_id: 0x00c0_ffee,
        pid_namespace: 4_026_531_836,
    }
}
