//! One VM under test: launched, driven through the backend, and killed with the test.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cocoon::host::qemu::Qemu;
use cocoon::host::serial::{self, Seen};
use cocoon::host::vmm::{
    Accelerator, Backend, Boot, CALL_TIMEOUT, DIAL_TIMEOUT, DIRECT_CMDLINE, Disk, DiskFormat,
    DiskRole, EventStream, LaunchFailure, LaunchSpec, Nic, RuntimePaths, VmmEvent, VmmState, dial,
    prepare,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tempfile::TempDir;

/// Longer than anything takes on a busy machine; reached only by a failure.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// A QEMU, real or not, and what it boots.
pub(crate) struct Host {
    pub(crate) qemu: Qemu,
    kernel: PathBuf,
    initrd: PathBuf,
    _directory: Option<TempDir>,
}

impl Host {
    pub(crate) fn real() -> Option<Self> {
        let found = cocoon_fake_vmm::find::real_qemu().ok()?;
        let qemu = Qemu::new(found.binary);
        Some(Self { qemu, kernel: found.kernel, initrd: found.initrd, _directory: None })
    }

    pub(crate) fn fake() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (kernel, initrd) = (directory.path().join("kernel"), directory.path().join("initrd"));
        for file in [&kernel, &initrd] {
            File::create(file).unwrap();
        }
        let qemu = Qemu::new(cocoon_fake_vmm::find::fake_vmm());
        Self { qemu, kernel, initrd, _directory: Some(directory) }
    }

    pub(crate) fn image(&self) -> (PathBuf, PathBuf) {
        (self.kernel.clone(), self.initrd.clone())
    }

    /// A VM that is not launched yet. `words` are added to its kernel command line.
    pub(crate) fn vm(&self, words: &str) -> Vm {
        let directory = tempfile::tempdir().unwrap();
        let paths = RuntimePaths::new(directory.path(), directory.path()).unwrap();
        let spec = LaunchSpec {
            vm_id: "vm-1".to_owned(),
            name: "suite, with a comma".to_owned(),
            cpus: 1,
            memory_bytes: 128 << 20,
            boot: Boot::Direct {
                kernel: self.kernel.clone(),
                initrd: Some(self.initrd.clone()),
                cmdline: format!("{DIRECT_CMDLINE} {words}"),
            },
            disks: Vec::new(),
            nics: vec![Nic::User { mac: "52:54:00:00:00:01".to_owned() }],
            accelerator: Accelerator::Tcg,
            paths,
        };
        Vm { qemu: self.qemu.clone(), spec, child: None, directory }
    }

    /// A VM whose guest is in user space.
    pub(crate) fn up(&self, words: &str) -> Vm {
        let mut vm = self.vm(words);
        vm.launch_ready();
        vm.boot();
        vm.wait_up();
        vm
    }
}

pub(crate) struct Vm {
    pub(crate) qemu: Qemu,
    pub(crate) spec: LaunchSpec,
    child: Option<Child>,
    directory: TempDir,
}

impl Vm {
    pub(crate) fn paths(&self) -> &RuntimePaths {
        &self.spec.paths
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn add_disk(&mut self, path: &Path, format: DiskFormat) {
        let serial = format!("disk-{}", self.spec.disks.len());
        let (path, role) = (path.to_owned(), DiskRole::Data);
        self.spec.disks.push(Disk { path, format, readonly: false, serial, role });
    }

    pub(crate) fn launch(&mut self) {
        prepare(self.paths()).unwrap();
        let command = self.qemu.command(&self.spec).unwrap();
        let log = OpenOptions::new().append(true).open(&self.paths().vmm_log).unwrap();
        let child = Command::new(command.program)
            .args(command.args)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn();
        self.child = Some(child.unwrap());
    }

    pub(crate) fn wait_ready(&mut self, timeout: Duration) -> Result<VmmState, LaunchFailure> {
        let child = self.child.as_mut().unwrap();
        let mut liveness = || child.try_wait().unwrap().is_none();
        self.qemu.wait_ready(&self.spec.paths, &mut liveness, timeout)
    }

    pub(crate) fn launch_ready(&mut self) {
        self.launch();
        let ready = self.wait_ready(LONG);
        assert!(matches!(ready, Ok(VmmState::Prelaunch)), "{ready:?}");
    }

    pub(crate) fn boot(&self) {
        self.qemu.boot(self.paths(), CALL_TIMEOUT).unwrap();
    }

    pub(crate) fn wait_up(&mut self) {
        assert_eq!(self.wait_console("GUEST-UP"), Seen::Found, "{}", self.logs());
    }

    pub(crate) fn wait_console(&mut self, word: &str) -> Seen {
        let mut child = self.child.as_mut();
        let mut liveness =
            || child.as_mut().is_none_or(|child| child.try_wait().unwrap().is_none());
        let log = &self.spec.paths.console_log;
        serial::wait_for(log, word.as_bytes(), &mut liveness, Instant::now() + LONG).unwrap()
    }

    /// Types a line on the console and reads until `word` comes back.
    pub(crate) fn ask(&self, line: &str, word: &str) {
        let mut console = dial(&self.paths().console_socket, DIAL_TIMEOUT).unwrap();
        console.set_read_timeout(Some(LONG)).unwrap();
        console.write_all(format!("{line}\n").as_bytes()).unwrap();
        let (mut heard, mut block) = (Vec::new(), [0; 4096]);
        while !String::from_utf8_lossy(&heard).contains(word) {
            let count = console.read(&mut block).unwrap();
            assert!(count > 0, "the console ended\n{}", self.logs());
            heard.extend_from_slice(&block[..count]);
        }
    }

    pub(crate) fn status(&self) -> VmmState {
        self.qemu.status(self.paths(), CALL_TIMEOUT).unwrap()
    }

    pub(crate) fn watch(&self) -> Box<dyn EventStream> {
        self.qemu.watch(self.paths(), CALL_TIMEOUT).unwrap()
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(self.child.as_ref().unwrap())
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(self.pid(), signal).unwrap();
    }

    /// Waits until the process has ended by itself, and reaps it.
    pub(crate) fn wait_exit(&mut self) {
        assert!(self.exits_by(Instant::now() + LONG), "it lives\n{}", self.logs());
    }

    /// Whether the process ends by itself until then; reaps it if so.
    pub(crate) fn exits_by(&mut self, until: Instant) -> bool {
        let Some(child) = &mut self.child else { return true };
        if child.try_wait().unwrap().is_none() {
            let pidfd = pidfd_open(Pid::from_child(child), PidfdFlags::empty()).unwrap();
            let left = until.saturating_duration_since(Instant::now());
            let limit = Timespec::try_from(left).unwrap();
            let mut polled = [PollFd::from_borrowed_fd(pidfd.as_fd(), PollFlags::IN)];
            if poll(&mut polled, Some(&limit)).unwrap() == 0 {
                return false;
            }
            child.wait().unwrap();
        }
        self.child = None;
        true
    }

    pub(crate) fn logs(&self) -> String {
        let read = |path| serial::tail(path, 4096).unwrap_or_default();
        let paths = self.paths();
        format!("vmm: {}\nconsole: {}", read(&paths.vmm_log), read(&paths.console_log))
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The events up to the one that `last` accepts, without those that have no part in a VM's life.
pub(crate) fn events_until(
    stream: &mut dyn EventStream,
    last: impl Fn(&VmmEvent) -> bool,
) -> Vec<VmmEvent> {
    let mut seen = Vec::new();
    loop {
        let event = stream.next(Instant::now() + LONG).unwrap();
        let event = event.unwrap_or_else(|| panic!("no more events after {seen:?}"));
        if matches!(event, VmmEvent::Other(_)) {
            continue;
        }
        let done = last(&event);
        seen.push(event);
        if done {
            return seen;
        }
    }
}
