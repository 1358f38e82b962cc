//! The loop: sleeps until something happens, and does what that asks for.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cocoon_model::command::VmmSeen;
use cocoon_model::id::VmId;
use cocoon_model::record::{VmRecord, VmState};
use cocoon_model::recover::{Action, Seen, plan_vm, unconfirmed};
use nix::sys::signalfd::SignalFd;

use super::api::Serving;
use super::board::{Board, Sight, now_us};
use super::chores::{Chores, Round};
use super::heartbeat::Heartbeat;
use super::notify::Notifier;
use super::patience::Patience;
use super::poller::{FIRST_PROCESS, JOURNAL, Poller, SIGNAL, Token, WAKER, Waker};
use super::watches::{Exit, Role, Watches};
use super::workers::{Settled, Workers};
use super::{DaemonError, Options, Place};
use crate::engine::follow::{ChangeKind, Follower, Update};
use crate::engine::gc::Settling;
use crate::engine::observe::host_identity;
use crate::engine::{Caller, Engine, EngineError};
use crate::host::lock::Observed;
use crate::host::vmm::RuntimePaths;

/// How long VMs that were spoken of may wait to be looked at, so that a burst of events costs one look.
const SETTLE: Duration = Duration::from_millis(200);
/// How often the heartbeat is written.
const BEAT: Duration = Duration::from_secs(5);
/// VMs that are looked at in a full pass before deaths are looked for again.
const AT_A_TIME: usize = 64;

/// The supervisor.
pub(super) struct Supervisor {
    engine: Arc<Engine>,
    caller: Caller,
    board: Arc<Board>,
    heartbeat: Heartbeat,
    notifier: Notifier,
    signals: SignalFd,
    place: Place,
    poller: Poller,
    waker: Waker,
    follower: Option<Follower>,
    watches: Watches,
    workers: Workers,
    chores: Chores,
    patience: Patience,
    /// Why the root is unconfirmed, if it is.
    unconfirmed: Option<String>,
    /// Proven dead and not journalled yet, with the generations that were seen running.
    dead: Vec<(VmId, u64)>,
    /// To be looked at before the next full pass.
    touched: BTreeSet<VmId>,
    look_at: Option<Instant>,
    interval: Duration,
    next_pass: Instant,
    next_beat: Instant,
    gc: Option<(Duration, Instant)>,
    api: Option<Serving>,
    /// Why the API cannot be reached, as it was told.
    unreachable: Option<String>,
}

impl Supervisor {
    #[expect(clippy::too_many_arguments, reason = "each is another part, given once")]
    pub(super) fn new(
        engine: Arc<Engine>,
        caller: Caller,
        options: &Options,
        board: Arc<Board>,
        heartbeat: Heartbeat,
        signals: SignalFd,
        api: Option<Serving>,
        place: Place,
    ) -> Result<Self, DaemonError> {
        let poller = Poller::new()?;
        let waker = Waker::new()?;
        let watch = DaemonError::system::<rustix::io::Errno>;
        poller.add(&signals, SIGNAL).map_err(watch("wait for signals"))?;
        poller.add(&waker, WAKER).map_err(watch("wait for threads"))?;
        let workers = Workers::new(Arc::clone(&engine), caller.clone(), waker.clone());
        let chores = Chores::start(Arc::clone(&engine))?;
        let now = Instant::now();
        Ok(Self {
            engine,
            caller,
            board,
            heartbeat,
            notifier: Notifier::from_environment(),
            signals,
            place,
            poller,
            waker,
            follower: None,
            watches: Watches::new(),
            workers,
            chores,
            patience: Patience::default(),
            unconfirmed: None,
            dead: Vec::new(),
            touched: BTreeSet::new(),
            look_at: None,
            interval: options.reconcile_interval,
            next_pass: now,
            next_beat: now,
            gc: options.gc_interval.map(|every| (every, now + every)),
            api,
            unreachable: None,
        })
    }

    /// Supervises until a signal says stop, or the root is gone.
    pub(super) fn run(&mut self) -> Result<(), DaemonError> {
        self.do_what_is_due();
        self.notifier.tell("READY=1");
        tracing::info!(vms = self.watches.vmms(), "supervising");
        loop {
            let deadline = self.next_deadline();
            let woken = self.poller.wait(deadline)?;
            if woken.contains(&SIGNAL) && matches!(self.signals.read_signal(), Ok(Some(_))) {
                self.notifier.tell("STOPPING=1");
                tracing::info!("stopping; VMs go on running");
                return Ok(());
            }
            // Whatever follows would act on another root.
            if !self.place.is_ours() {
                return Ok(());
            }
            self.exits(&woken);
            if woken.contains(&WAKER) {
                self.waker.clear();
                self.collect_settled();
            }
            if woken.contains(&JOURNAL) {
                self.listen();
            }
            self.do_what_is_due();
        }
    }

    fn next_deadline(&mut self) -> Instant {
        let watchdog = self.notifier.watchdog(Instant::now());
        let gc = self.gc.map(|(_, next)| next);
        let others = [self.look_at, watchdog, gc].into_iter().flatten();
        others.fold(self.next_pass.min(self.next_beat), Instant::min)
    }

    fn do_what_is_due(&mut self) {
        let now = Instant::now();
        if self.next_beat <= now {
            self.heartbeat.beat();
            self.next_beat = now + BEAT;
        }
        if self.next_pass <= now {
            self.full_pass();
            self.stay_reachable();
            // After the pass: one that takes longer than the interval must not starve everything else.
            self.next_pass = Instant::now() + self.interval;
        } else if self.look_at.is_some_and(|at| at <= now) {
            self.look_at_touched();
        }
        if let Some((every, next)) = self.gc.filter(|(_, next)| *next <= now) {
            if self.unconfirmed.is_none() {
                self.chores.collect(&self.caller);
            }
            self.gc = Some((every, next.max(now) + every));
        }
    }

    /// Gives the API its socket back if somebody has removed it; what stands in the way is told once.
    fn stay_reachable(&mut self) {
        let Some(api) = &mut self.api else { return };
        let trouble = match api.restore() {
            Ok(false) => None,
            Ok(true) => {
                tracing::warn!("somebody had removed the API socket; it is there again");
                None
            }
            Err(error) => Some(error.to_string()),
        };
        if let Some(error) = trouble.as_ref().filter(|_| trouble != self.unreachable) {
            tracing::warn!("{error}");
        }
        self.unreachable = trouble;
    }

    /// Journals the deaths that woke us, all together.
    fn exits(&mut self, woken: &[Token]) {
        let processes = woken.iter().filter(|token| **token >= FIRST_PROCESS);
        let exits: Vec<Exit> =
            processes.filter_map(|token| self.watches.exited(&self.poller, *token)).collect();
        let vmms = exits.iter().filter(|exit| exit.role == Role::Vmm);
        self.dead.extend(vmms.map(|exit| (exit.id, exit.generation)));
        self.record_dead();
        for exit in exits {
            self.touch(exit.id);
        }
    }

    fn record_dead(&mut self) {
        if self.dead.is_empty() {
            return;
        }
        let (dead, began) = (std::mem::take(&mut self.dead), Instant::now());
        if self.unconfirmed.is_some() {
            // The first pass after the adoption finds them again.
            return;
        }
        match self.engine.record_exits(&self.caller.another(), &dead) {
            Ok(recorded) => {
                for id in &recorded {
                    tracing::info!("VM {id}: its VMM ended and nobody had asked for that");
                }
                tracing::debug!(exits = dead.len(), recorded = recorded.len(), took = ?began.elapsed());
                let count = u64::try_from(recorded.len()).unwrap_or(u64::MAX);
                self.board.count(|counts| counts.exits += count);
            }
            Err(error) => {
                let reason = format!("its exit cannot be recorded: {error}");
                for (id, _) in dead {
                    self.fail(id, &reason);
                }
            }
        }
    }

    /// Hears what the journal says, and watches at once whatever began to run.
    fn listen(&mut self) {
        loop {
            let Some(follower) = &mut self.follower else { return };
            match follower.try_next() {
                Ok(Some(update)) => self.hear(&update),
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!("cannot follow the journal, will try again: {error}");
                    self.unfollow();
                }
            }
        }
        let seq = self.follower.as_ref().map_or(0, Follower::seq);
        self.board.count(|counts| counts.seq = seq);
        self.record_dead();
    }

    fn hear(&mut self, update: &Update) {
        let (record, id) = (&update.record, update.record.core.id);
        if update.kind == Some(ChangeKind::Deleted) {
            self.board.forget(id);
            self.patience.forget(id);
            self.watches.unwatch(&self.poller, id, Role::Vmm);
            self.watches.unwatch(&self.poller, id, Role::Owner);
            self.touched.remove(&id);
            return;
        }
        self.board.learn(record);
        let launched = record.core.launch.and_then(|launch| launch.identity);
        match launched.filter(|_| record.core.state == VmState::Running) {
            Some(identity) => {
                self.watch_vmm(record, &identity);
            }
            None => self.watches.unwatch(&self.poller, id, Role::Vmm),
        }
        self.touch(id);
    }

    fn follow(&mut self) -> Result<(), EngineError> {
        if self.follower.is_none() {
            let follower = self.engine.follow()?;
            self.poller.add(&follower, JOURNAL).map_err(|errno| {
                EngineError::Host(format!("cannot wait for the journal: {errno}"))
            })?;
            self.follower = Some(follower);
        }
        Ok(())
    }

    fn unfollow(&mut self) {
        if let Some(follower) = self.follower.take() {
            self.poller.remove(&follower);
        }
    }

    fn touch(&mut self, id: VmId) {
        self.touched.insert(id);
        self.look_at.get_or_insert_with(|| Instant::now() + SETTLE);
    }

    fn look_at_touched(&mut self) {
        self.look_at = None;
        let Some(follower) = &self.follower else { return };
        let touched = std::mem::take(&mut self.touched);
        let records = touched.into_iter().filter_map(|id| follower.vm(id).cloned()).collect();
        self.look(records);
        self.tell_counts();
    }

    /// Looks at every VM there is.
    fn full_pass(&mut self) {
        self.look_at = None;
        self.touched.clear();
        let followed = self.follow();
        // The journal tells of later events only to those who have read the earlier ones.
        self.listen();
        let standing = followed.and_then(|()| self.look_at_root());
        let records = standing.and_then(|()| self.engine.vms());
        let records = match records {
            Ok(records) => records,
            Err(error) => {
                if self.board.pass_failed(&error.to_string()) {
                    tracing::warn!("cannot look at the VMs: {error}");
                }
                return;
            }
        };
        let ids: BTreeSet<VmId> = records.iter().map(|record| record.core.id).collect();
        let confirmed = self.unconfirmed.is_none();
        let logs =
            records.iter().filter(|record| confirmed && record.core.state == VmState::Running);
        let logs = logs.flat_map(|record| logs_of(record)).collect();
        for some in records.chunks(AT_A_TIME) {
            self.look(some.to_vec());
            if let Ok(woken) = self.poller.wait(Instant::now()) {
                self.exits(&woken);
            }
        }
        self.watches.retain(&self.poller, |id| ids.contains(&id));
        self.patience.retain(|id| ids.contains(&id));
        self.board.passed(|id| ids.contains(&id));
        self.tell_counts();
        let seq = self.follower.as_ref().map_or(0, Follower::seq);
        self.board.count(|counts| counts.seq = seq);
        self.chores.round(Round { logs, seq });
    }

    /// Whether the root is confirmed. What has been adopted since is acted upon in this very pass.
    fn look_at_root(&mut self) -> Result<(), EngineError> {
        self.engine.look_at_place()?;
        self.unconfirmed = self.engine.unconfirmed()?;
        if self.board.confirm(self.unconfirmed.as_ref()) {
            match &self.unconfirmed {
                Some(reason) => tracing::warn!(
                    "this root is unconfirmed: {reason}; nothing is done before `cocoon adopt`"
                ),
                None => tracing::info!("this root is confirmed"),
            }
        }
        Ok(())
    }

    fn tell_counts(&self) {
        self.board.count(|counts| {
            counts.degraded = self.patience.len();
            counts.settling = self.workers.running();
            counts.watched = self.watches.vmms();
        });
    }

    /// Looks at some VMs, and has done what is owed to them.
    fn look(&mut self, records: Vec<Arc<VmRecord>>) {
        for (record, seen) in self.engine.survey(records) {
            self.act(&record, &seen);
            let live = matches!(seen.vmm, VmmSeen::Alive(_));
            let watched_pid = self.watches.pid(record.core.id, Role::Vmm);
            let sight = Sight { live, watched_pid, verified_us: Some(now_us()) };
            self.board.see(&record, sight);
        }
        self.record_dead();
    }

    fn act(&mut self, record: &VmRecord, seen: &Seen) {
        let id = record.core.id;
        let action = match &self.unconfirmed {
            None => plan_vm(&record.core, seen),
            Some(reason) => unconfirmed(plan_vm(&record.core, seen), reason),
        };
        if action != Action::Busy {
            self.watches.unwatch(&self.poller, id, Role::Owner);
        }
        match action {
            Action::Leave => {
                self.watches.unwatch(&self.poller, id, Role::Vmm);
                self.patience.forget(id);
            }
            Action::Watch(identity) => {
                if self.watch_vmm(record, &identity) {
                    self.patience.forget(id);
                }
            }
            Action::Busy => self.watch_owner(id),
            // Told once, of the whole root.
            Action::CannotTell(_) if self.unconfirmed.is_some() => {}
            Action::CannotTell(reason) => self.fail(id, &reason),
            Action::TakeOver | Action::Adopt(_) if self.patience.waits(id, Instant::now()) => {}
            Action::RecordExit => self.dead.push((id, record.core.generation)),
            Action::TakeOver | Action::Adopt(_) => self.workers.settle(id),
        }
    }

    /// Watches a VMM; says whether nothing stands in the way of that.
    fn watch_vmm(
        &mut self,
        record: &VmRecord,
        identity: &cocoon_model::record::ProcessIdentity,
    ) -> bool {
        let (id, generation) = (record.core.id, record.core.generation);
        let exit = Exit { id, role: Role::Vmm, generation };
        match self.watches.watch(&self.poller, exit, &host_identity(identity)) {
            Ok(true) => {}
            Ok(false) => self.dead.push((id, generation)),
            Err(error) => {
                self.fail(id, &error.to_string());
                return false;
            }
        }
        true
    }

    /// Somebody works on it: when that process ends, its VM is looked at, without waiting for the next pass.
    fn watch_owner(&mut self, id: VmId) {
        if self.workers.has(id) {
            return;
        }
        let Ok(Observed::Held(Some(holder))) = self.engine.locks().observe_ops(id.as_str()) else {
            return;
        };
        let exit = Exit { id, role: Role::Owner, generation: 0 };
        // One that is dead already is about to lose its lock; one that cannot be watched is met by the next pass.
        if let Ok(false) = self.watches.watch(&self.poller, exit, &holder.identity) {
            self.touch(id);
        }
    }

    fn collect_settled(&mut self) {
        for Settled { id, outcome } in self.workers.finished() {
            match outcome {
                Ok(Settling::Collected(reason)) => {
                    tracing::info!("VM {id}: brought to rest, reason={reason}");
                    self.patience.forget(id);
                    self.board.count(|counts| counts.settled += 1);
                }
                Ok(Settling::Nothing | Settling::Busy | Settling::Waiting) => {}
                Err(error) => self.fail(id, &error.to_string()),
            }
            self.touch(id);
        }
        self.tell_counts();
    }

    fn fail(&mut self, id: VmId, reason: &str) {
        self.board.count(|counts| counts.failures += 1);
        if self.patience.failed(id, reason, Instant::now()) {
            tracing::warn!("VM {id}: {reason}");
        }
    }
}

/// The logs that a running VM writes.
fn logs_of(record: &VmRecord) -> Vec<std::path::PathBuf> {
    let spec = &record.spec;
    RuntimePaths::new(Path::new(&spec.run_dir), Path::new(&spec.log_dir))
        .map(|paths| vec![paths.console_log, paths.vmm_log])
        .unwrap_or_default()
}
