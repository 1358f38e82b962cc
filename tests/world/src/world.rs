//! The root of one test.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use cocoon_fake_vmm::find::{RealQemu, fake_vmm};
use serde_json::Value;
use tempfile::TempDir;

use crate::findings::Findings;
use crate::history::History;
use crate::processes;
use crate::run::Ran;

/// The image that VMs of a test are made of.
pub const IMAGE: &str = "guest";

/// The image of VMs that boot from a disk, for whose overlays `qemu-img` is run.
pub const DISK: &str = "disk";

/// A root with nothing in it, and how to run `cocoon` on it.
#[derive(Debug)]
pub struct World {
    directory: TempDir,
    binary: PathBuf,
    vmm: PathBuf,
    kernel: PathBuf,
    initrd: PathBuf,
    /// How much memory a VM needs, as one types it.
    pub memory: &'static str,
    /// Variables beside those that every process gets.
    pub environment: Vec<(&'static str, OsString)>,
    /// What every command is run by, as `nsenter` is: a program and its arguments; the command follows.
    pub wrapper: Vec<String>,
}

impl World {
    /// A world whose VMMs are fake, in memory where the host has room there. `binary` is `cocoon`.
    ///
    /// # Panics
    /// If it cannot be made.
    #[must_use]
    pub fn new(binary: &Path) -> Self {
        let shared_memory = Path::new("/dev/shm");
        let parent = if writable(shared_memory) { shared_memory } else { Path::new("/tmp") };
        Self::fake_in(binary, parent)
    }

    /// A world whose VMMs are fake, below a directory.
    ///
    /// # Panics
    /// If it cannot be made.
    #[must_use]
    pub fn fake_in(binary: &Path, parent: &Path) -> Self {
        let directory = temporary(parent);
        let payload = directory.path().join("payload");
        std::fs::create_dir(&payload).expect("a directory for the payload");
        let (kernel, initrd) = (payload.join("kernel"), payload.join("initrd"));
        std::fs::write(&kernel, b"no kernel").expect("a kernel");
        std::fs::write(&initrd, b"no initrd").expect("an initrd");
        Self::at(directory, binary, fake_vmm(), kernel, initrd)
    }

    /// A world whose VMMs are real, on a disk.
    ///
    /// # Panics
    /// If it cannot be made.
    #[must_use]
    pub fn real(binary: &Path, qemu: RealQemu) -> Self {
        let directory = temporary(Path::new("/tmp"));
        let mut world = Self::at(directory, binary, qemu.binary, qemu.kernel, qemu.initrd);
        world.memory = "256M";
        world
    }

    fn at(
        directory: TempDir,
        binary: &Path,
        vmm: PathBuf,
        kernel: PathBuf,
        initrd: PathBuf,
    ) -> Self {
        Self {
            directory,
            binary: binary.to_owned(),
            vmm,
            kernel,
            initrd,
            memory: "64M",
            environment: Vec::new(),
            wrapper: Vec::new(),
        }
    }

    /// The root directory.
    #[must_use]
    pub fn root(&self) -> PathBuf {
        self.directory.path().join("root")
    }

    /// A directory for whatever the test needs beside the root.
    #[must_use]
    pub fn beside(&self) -> &Path {
        self.directory.path()
    }

    /// `cocoon` on this root, in an environment of its own.
    #[must_use]
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut words = self.wrapper.iter().map(OsString::from).collect::<Vec<_>>();
        words.push(self.binary.clone().into());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).args(arguments).env_clear().stdin(Stdio::null());
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("HOME", self.directory.path());
        command.env("COCOON_ROOT_DIR", self.root());
        command.env("COCOON_QEMU_BINARY", &self.vmm);
        command.env("COCOON_ACCELERATOR", "tcg");
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Runs `cocoon` to its end.
    ///
    /// # Panics
    /// If it cannot be started.
    #[track_caller]
    pub fn run(&self, arguments: &[&str]) -> Ran {
        self.run_with(arguments, &[])
    }

    /// Runs `cocoon` to its end with further variables.
    ///
    /// # Panics
    /// If it cannot be started.
    #[track_caller]
    pub fn run_with(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Ran {
        let mut command = self.command(arguments);
        command.envs(variables.iter().copied());
        let output = command.output().expect("cocoon starts");
        Ran { command: format!("cocoon {}", arguments.join(" ")), output }
    }

    /// Starts `cocoon` and returns at once; what it says is kept for [`World::wait`].
    ///
    /// # Panics
    /// If it cannot be started.
    #[track_caller]
    pub fn start(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Child {
        let mut command = self.command(arguments);
        command.envs(variables.iter().copied()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("cocoon starts")
    }

    /// Waits for what [`World::start`] started.
    ///
    /// # Panics
    /// If it cannot be waited for.
    #[track_caller]
    #[must_use]
    pub fn wait(&self, child: Child) -> Ran {
        let command = format!("process {}", child.id());
        Ran { command, output: child.wait_with_output().expect("cocoon ends") }
    }

    /// Imports the image of VMs; `words` go to the kernel's command line, where the fake VMM reads its script.
    ///
    /// # Panics
    /// If that fails.
    #[track_caller]
    pub fn import(&self, words: &str) {
        self.run(&self.import_arguments(IMAGE, words)).ok();
    }

    /// Whether the host has the tool that makes overlays of disks. `COCOON_REQUIRE` with the word `qemu` makes it a failure
    /// if not.
    ///
    /// # Panics
    /// If it is required and not there.
    #[must_use]
    pub fn makes_overlays() -> bool {
        let found = Command::new("qemu-img").arg("--version").output().is_ok();
        let required = std::env::var("COCOON_REQUIRE").unwrap_or_default();
        let required = required.split([',', ' ']).any(|word| word == "qemu");
        assert!(found || !required, "COCOON_REQUIRE asks for qemu, and there is no qemu-img");
        if !found {
            eprintln!("skipped: qemu-img is not installed (Debian: qemu-utils)");
        }
        found
    }

    /// Imports the image of VMs that boot from a disk.
    ///
    /// # Panics
    /// If that fails.
    #[track_caller]
    pub fn import_disk(&self) {
        let file = self.beside().join("disk.raw");
        // Empty, but for the mark of a boot sector.
        let mut bytes = vec![0; 1 << 20];
        bytes[510..512].copy_from_slice(&[0x55, 0xaa]);
        std::fs::write(&file, bytes).expect("a disk");
        self.run(&["image", "import", DISK, file.to_str().expect("a path that is text")]).ok();
    }

    /// The arguments of an import.
    ///
    /// # Panics
    /// If a path is no text.
    #[must_use]
    pub fn import_arguments<'a>(&'a self, name: &'a str, words: &'a str) -> [&'a str; 9] {
        let kernel = self.kernel.to_str().expect("a path that is text");
        let initrd = self.initrd.to_str().expect("a path that is text");
        let cmdline = if words.is_empty() { "console=ttyS0 quiet" } else { words };
        ["image", "import", name, "--kernel", kernel, "--initrd", initrd, "--cmdline", cmdline]
    }

    /// What `cocoon vm list` says.
    ///
    /// # Panics
    /// If it fails.
    #[must_use]
    #[track_caller]
    pub fn list(&self) -> Vec<Value> {
        let ran = self.run(&["vm", "list", "-o", "json"]).ok();
        ran.json().as_array().cloned().unwrap_or_default()
    }

    /// Requires that `cocoon` sees what the journal says from its first event on: a checkpoint with what follows it is the
    /// same as the whole, and the event store holds the same as the segments.
    ///
    /// # Panics
    /// If it does not, or the journal cannot be read.
    #[track_caller]
    pub fn requires_agreement(&self) {
        let history = self.history().expect("a history");
        let told = |id: &str, name: &str, state: &str, generation: u64| {
            format!("{id} {name} {state} {generation}")
        };
        let mut folded: Vec<_> = history
            .vms
            .values()
            .map(|vm| {
                let core = &vm.core;
                told(core.id.as_str(), &core.name, core.state.as_str(), core.generation)
            })
            .collect();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut listed: Vec<_> = self
            .list()
            .iter()
            .map(|vm| {
                let generation = vm["transition_generation"].as_u64().unwrap_or_default();
                let name = text(&vm["config"]["name"]);
                told(&text(&vm["id"]), &name, &text(&vm["state"]), generation)
            })
            .collect();
        folded.sort();
        listed.sort();
        assert_eq!(listed, folded, "`vm list` does not say what the journal says");
        self.run(&["journal", "verify"]).ok();
        self.run(&["replay", "--check"]).ok();
    }

    /// What `cocoon vm inspect` says.
    ///
    /// # Panics
    /// If it fails.
    #[must_use]
    #[track_caller]
    pub fn inspect(&self, vm: &str) -> Value {
        self.run(&["vm", "inspect", vm]).ok().json()
    }

    /// The history as it is on disk, read from a copy: reading changes nothing here.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn history(&self) -> Result<History, String> {
        History::of(&self.root())
    }

    /// What is wrong now, with every `cocoon` process dead: nothing may ever be.
    #[must_use]
    pub fn findings(&self) -> Findings {
        Findings::now(&self.root())
    }

    /// What is wrong once recovery is through: whatever is left half done is wrong as well.
    #[must_use]
    pub fn findings_at_rest(&self) -> Findings {
        Findings::at_rest(&self.root())
    }

    /// Processes of this root, `cocoon` aside.
    #[must_use]
    pub fn processes(&self) -> Vec<processes::Found> {
        processes::of_root(&self.root())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        processes::end_all_of(&self.root());
        if std::thread::panicking() && std::env::var_os("COCOON_KEEP").is_some() {
            eprintln!("kept: {}", self.directory.path().display());
            self.directory.disable_cleanup(true);
        }
    }
}

fn temporary(parent: &Path) -> TempDir {
    // Short: the paths of sockets below it have 107 bytes.
    tempfile::Builder::new().prefix("c").tempdir_in(parent).expect("a directory for the world")
}

fn writable(directory: &Path) -> bool {
    tempfile::tempfile_in(directory).is_ok()
}
