//! A root of its own, with the fake VMM, for one test.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// The `cocoon` that is tested.
pub(crate) fn binary() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_cocoon"))
}

/// What a command came to.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    pub(crate) fn of(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout).expect("stdout is UTF-8"),
            stderr: String::from_utf8(output.stderr).expect("stderr is UTF-8"),
        }
    }

    /// Fails unless it ended with this code and said this on standard error.
    pub(crate) fn says(&self, code: i32, words: &str) {
        assert_eq!(self.code, code, "{self:?}");
        assert!(self.stderr.contains(words), "no {words:?} in {self:?}");
    }

    /// The JSON on standard output.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// A temporary directory with a root, and what VMs need.
pub(crate) struct Sandbox {
    dir: tempfile::TempDir,
}

impl Sandbox {
    pub(crate) fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("cocoon").tempdir().unwrap();
        std::fs::write(dir.path().join("vmlinuz"), "a kernel").unwrap();
        std::fs::write(dir.path().join("initrd.img"), "an initrd").unwrap();
        Self { dir }
    }

    /// One with an image `guest`.
    pub(crate) fn with_guest() -> Self {
        let sandbox = Self::new();
        let import = ["image", "import", "guest", "--kernel", "vmlinuz", "--initrd", "initrd.img"];
        assert_eq!(sandbox.cocoon(import).code, 0);
        sandbox
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    /// Gives a command the sandbox's environment, and none of the caller's `COCOON_*`.
    pub(crate) fn settle<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("COCOON_") {
                command.env_remove(name);
            }
        }
        command
            .current_dir(self.path())
            .stdin(Stdio::null())
            .env("COCOON_ROOT_DIR", self.root())
            .env("COCOON_QEMU_BINARY", cocoon_fake_vmm::find::fake_vmm())
            .env("HOME", self.path())
            .env_remove("XDG_DATA_HOME")
            .env_remove("XDG_CONFIG_HOME")
            .env("TERM", "dumb")
            .env("COLUMNS", "100")
    }

    pub(crate) fn command(&self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
        let mut command = Command::new(binary());
        command.args(args);
        self.settle(&mut command);
        command
    }

    pub(crate) fn cocoon(&self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Ended {
        Ended::of(self.command(args).output().expect("cocoon runs"))
    }

    /// Runs a line of a shell in which `cocoon` is the tested one; standard error goes where standard output goes.
    pub(crate) fn shell(&self, line: &str) -> Ended {
        let mut paths = vec![binary().parent().unwrap().to_owned()];
        paths.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("{line} 2>&1")]);
        self.settle(&mut shell).env("PATH", std::env::join_paths(paths).unwrap());
        Ended::of(shell.output().expect("sh runs"))
    }

    /// Creates a VM of the image `guest` and gives its id.
    pub(crate) fn create(&self, name: &str) -> String {
        let made = self.cocoon(["vm", "create", "--name", name, "guest", "-o", "json"]);
        assert_eq!(made.code, 0, "{made:?}");
        made.json()["id"].as_str().unwrap().to_owned()
    }
}

impl Drop for Sandbox {
    /// No VMM outlives its test.
    fn drop(&mut self) {
        let listed = self.cocoon(["vm", "list", "-o", "json"]);
        let vms: Value = serde_json::from_str(&listed.stdout).unwrap_or_default();
        for vm in vms.as_array().into_iter().flatten() {
            self.cocoon(["vm", "rm", "--force", vm["id"].as_str().unwrap_or_default()]);
        }
    }
}
