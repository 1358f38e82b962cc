//! What is wrong in a root, as sentences, each with the invariant that it breaks.
//!
//! Two judgements: [`Findings::now`] holds at every instant at which no `cocoon` process lives, crash or not;
//! [`Findings::at_rest`] adds what recovery has to bring about.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use cocoon::host::directory::{self, Found as Directory};
use cocoon_model::record::{OperationKind, RemovalPhase, StopMode, VmRecord, VmState};
use rustix::fs::{FlockOperation, flock};

use crate::history::History;
use crate::processes::{self, Found as Process};

/// What is wrong; empty if nothing.
#[derive(Debug, Default)]
pub struct Findings(Vec<String>);

impl Findings {
    /// What is wrong although nothing of it may be wrong at any instant.
    #[must_use]
    pub fn now(root: &Path) -> Self {
        Self::judge(root, Seen::judge_always)
    }

    /// What is wrong once recovery is through.
    #[must_use]
    pub fn at_rest(root: &Path) -> Self {
        Self::judge(root, Seen::judge_rest)
    }

    /// Which records and processes are not at rest. May be asked while somebody recovers.
    #[must_use]
    pub fn unrest(root: &Path) -> Self {
        Self::judge(root, Seen::judge_records_at_rest)
    }

    fn judge(root: &Path, judge: impl FnOnce(&Seen, &mut Self)) -> Self {
        let mut judged = Self::default();
        match History::of(root) {
            Err(error) => judged.add("V6", error),
            Ok(history) => {
                let processes = processes::of_root(root);
                judge(&Seen { root: root.to_owned(), processes, history }, &mut judged);
            }
        }
        judged
    }

    fn add(&mut self, invariant: &str, what: impl fmt::Display) {
        self.0.push(format!("{invariant}: {what}"));
    }

    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Requires that nothing is wrong.
    ///
    /// # Panics
    /// If something is.
    #[track_caller]
    pub fn none(&self) {
        assert!(self.is_empty(), "{self}");
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

struct Seen {
    root: PathBuf,
    processes: Vec<Process>,
    history: History,
}

impl Seen {
    fn judge_always(&self, judged: &mut Findings) {
        for violation in &self.history.violations {
            judged.add(violation.invariant, format!("seq {}: {}", violation.seq, violation.what));
        }
        self.judge_processes(judged);
        self.judge_directories(judged);
        for vm in self.history.vms.values() {
            self.judge_storage(vm, judged);
        }
        for (id, path) in lock_files(&self.root, "vm") {
            if is_held(&path) {
                judged.add("V7", format!("the ops lock of {id} is held by nobody who lives"));
            }
        }
    }

    /// A VMM is known by a record that says that it may live.
    fn judge_processes(&self, judged: &mut Findings) {
        for process in &self.processes {
            let record = process.vm.as_ref().and_then(|id| self.history.vms.get(id));
            match record.and_then(|record| record.core.launch) {
                None => judged.add("V5", format!("no record knows of the process {process:?}")),
                Some(launch) => {
                    let same = launch.identity.is_none_or(|identity| {
                        (identity.pid, identity.start_time) == (process.pid, process.start_time)
                    });
                    if !same {
                        judged.add("V5", format!("another process was recorded: {process:?}"));
                    }
                }
            }
        }
    }

    /// A directory is known by the record that it is named after.
    fn judge_directories(&self, judged: &mut Findings) {
        for kind in ["run", "log"] {
            let parent = self.root.join(kind).join("qemu");
            match directory::survey(&parent) {
                Err(error) => judged.add("V7", error),
                Ok(found) => {
                    for (path, _) in found {
                        let known = name_of(&path).is_some_and(|id| self.knows(&id));
                        if !known {
                            judged.add("V7", format!("no record knows of {}", path.display()));
                        }
                    }
                }
            }
        }
    }

    /// What a record says is there is there, until a removal is past the point at which it may go.
    fn judge_storage(&self, vm: &VmRecord, judged: &mut Findings) {
        let going = vm.core.tombstone.as_ref().is_some_and(|t| t.phase == RemovalPhase::Deleting);
        if going || !vm.core.storage_prepared {
            return;
        }
        for path in [&vm.spec.run_dir, &vm.spec.log_dir] {
            let id = vm.core.id.as_str();
            match directory::inspect(Path::new(path)) {
                Ok(Directory::Certified(certificate)) if certificate.vm == id => {}
                found => judged.add("V7", format!("{path} of a living record is {found:?}")),
            }
        }
        for disk in vm.spec.disks.iter().filter(|disk| !Path::new(&disk.path).is_file()) {
            judged.add("V7", format!("the disk {} of a living record is not there", disk.path));
        }
    }

    fn judge_records_at_rest(&self, judged: &mut Findings) {
        for vm in self.history.vms.values() {
            self.judge_record_at_rest(vm, judged);
        }
    }

    fn judge_rest(&self, judged: &mut Findings) {
        self.judge_always(judged);
        self.judge_records_at_rest(judged);
        for kind in ["vm", "vmm"] {
            for (id, path) in lock_files(&self.root, kind) {
                if !self.knows(&id) {
                    judged.add("V7", format!("no record knows of {}", path.display()));
                }
            }
        }
        for (id, path) in lock_files(&self.root, "vmm") {
            let runs =
                self.history.vms.get(&id).is_some_and(|vm| vm.core.state == VmState::Running);
            if is_held(&path) != runs {
                judged.add("V5", format!("the VMM lock of {id} is held: {}", is_held(&path)));
            }
        }
        self.judge_control_groups_at_rest(judged);
        self.judge_images_at_rest(judged);
    }

    /// A control group is there for as long as the record of its VM, and no longer.
    fn judge_control_groups_at_rest(&self, judged: &mut Findings) {
        for slice in control_groups() {
            for id in &self.history.ever {
                let path = slice.join(format!("vm-{id}.scope"));
                if !self.knows(id) && path.exists() {
                    judged.add("V7", format!("{} was left behind", path.display()));
                }
            }
        }
    }

    fn judge_record_at_rest(&self, vm: &VmRecord, judged: &mut Findings) {
        let core = &vm.core;
        let who = format!("VM {} \"{}\"", core.id, core.name);
        if let Some(operation) = core.operation.filter(|_| !guest_has_time(vm)) {
            judged.add("V9", format!("{who} is in the middle of {}", operation.kind.as_str()));
        }
        if core.state == VmState::Creating {
            judged.add("V2", format!("{who} is still a placeholder"));
        }
        if core.tombstone.is_some() {
            judged.add("V9", format!("{who} is half removed"));
        }
        let runs = self.processes.iter().filter(|p| p.vm.as_deref() == Some(core.id.as_str()));
        let (runs, state) = (runs.count(), core.state);
        if runs != usize::from(state == VmState::Running) {
            judged.add("V5", format!("{who} is {}, and {runs} processes run it", state.as_str()));
        }
    }

    fn judge_images_at_rest(&self, judged: &mut Findings) {
        let images = self.root.join("images");
        let wanted: BTreeSet<String> = self
            .history
            .images
            .values()
            .flat_map(|image| image.content.blobs())
            .map(|blob| blob.hash.clone())
            .collect();
        let blobs: BTreeSet<String> =
            files(&images.join("blobs")).iter().filter_map(|path| name_of(path)).collect();
        if blobs != wanted {
            judged.add("V7", format!("blobs are {blobs:?}, images need {wanted:?}"));
        }
        for path in files(&images.join("incoming")) {
            judged.add("V7", format!("{} was left behind", path.display()));
        }
        for image in self.history.images.values().filter(|image| image.core.removing.is_some()) {
            judged.add("V9", format!("image \"{}\" is half removed", image.core.name));
        }
    }

    fn knows(&self, id: &str) -> bool {
        self.history.vms.contains_key(id)
    }
}

/// Whether a stop waits for a guest that still has the time it was given: nobody is to cut that short but by force.
fn guest_has_time(vm: &VmRecord) -> bool {
    let (Some(operation), Some(began)) = (vm.core.operation, vm.notes.operation_us) else {
        return false;
    };
    let OperationKind::Stop(StopMode::Graceful { timeout_ms }) = operation.kind else {
        return false;
    };
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let over = u128::from(began.unsigned_abs()) + u128::from(timeout_ms) * 1000;
    vm.core.state == VmState::Running && now.as_micros() < over
}

fn lock_files(root: &Path, kind: &str) -> Vec<(String, PathBuf)> {
    let id = |path: &PathBuf| Some(name_of(path)?.strip_suffix(".lock")?.to_owned());
    let paths = files(&root.join("locks").join(kind));
    paths.into_iter().filter_map(|path| Some((id(&path)?, path))).collect()
}

/// Where control groups of VMs may be, whichever way the host mounts them.
fn control_groups() -> impl Iterator<Item = PathBuf> {
    let mounts = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(Path::new);
    mounts.into_iter().map(|mount| mount.join("cocoon.slice")).filter(|slice| slice.is_dir())
}

fn is_held(path: &Path) -> bool {
    let Ok(file) = std::fs::File::open(path) else { return false };
    flock(&file, FlockOperation::NonBlockingLockExclusive).is_err()
}

fn name_of(path: &Path) -> Option<String> {
    Some(path.file_name()?.to_str()?.to_owned())
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}
