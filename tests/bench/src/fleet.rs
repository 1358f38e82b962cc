//! Many running VMs, on the fake VMM.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Outcome;

/// A root with running VMs; they are removed when it is dropped.
pub(crate) struct Fleet {
    root: tempfile::TempDir,
    cocoon: PathBuf,
    vmm: PathBuf,
    vms: usize,
}

impl Fleet {
    /// Starts `vms` VMs.
    pub(crate) fn start(cocoon: &Path, vmm: &Path, vms: usize) -> Outcome<Self> {
        // Sockets have short paths.
        let root = tempfile::Builder::new().prefix("cb").tempdir_in("/tmp")?;
        let mut fleet =
            Self { root, cocoon: cocoon.canonicalize()?, vmm: vmm.canonicalize()?, vms: 0 };
        let kernel = fleet.root.path().join("kernel");
        std::fs::write(&kernel, "kernel")?;
        let kernel = kernel.to_string_lossy().into_owned();
        fleet.cocoon(&["image", "import", "guest", "--kernel", &kernel, "--initrd", &kernel])?;
        for number in 0..vms {
            fleet.vms = number + 1;
            fleet.cocoon(&[
                "vm",
                "run",
                "--nics",
                "0",
                "--cpu",
                "1",
                "--memory",
                "64M",
                "--storage",
                "16M",
                "--name",
                &format!("vm{number}"),
                "guest",
            ])?;
        }
        Ok(fleet)
    }

    /// The command with this fleet's root.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.cocoon);
        command.env("COCOON_ROOT_DIR", self.root()).env("COCOON_QEMU_BINARY", &self.vmm);
        command
    }

    /// The root.
    pub(crate) fn root(&self) -> PathBuf {
        self.root.path().join("r")
    }

    /// The directory beside the root.
    pub(crate) fn dir(&self) -> &Path {
        self.root.path()
    }

    pub(crate) fn cocoon(&self, args: &[&str]) -> Outcome {
        let output = self.command().args(args).output()?;
        if output.status.success() {
            return Ok(());
        }
        Err(format!("cocoon {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr))
            .into())
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        let names: Vec<String> = (0..self.vms).map(|number| format!("vm{number}")).collect();
        for names in names.chunks(50) {
            let mut args = vec!["vm", "rm", "--force"];
            args.extend(names.iter().map(String::as_str));
            if let Err(error) = self.cocoon(&args) {
                eprintln!("{error}");
            }
        }
    }
}
