//! What a VMM is launched from.

use std::ffi::OsString;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use cocoon_model::record::{Accelerator, DiskFormat};

use super::RuntimePaths;
use crate::host::spawn::VmmCommand;

/// The kernel command line of a direct boot, unless the image has one of its own: the console on the first serial
/// port, a panic or reset that ends the VM at once, and no self-tests of the kernel's cryptography, which are a tenth of
/// the whole boot under emulation.
pub const DIRECT_CMDLINE: &str = "console=ttyS0 quiet panic=-1 reboot=t cryptomgr.notests";

/// Everything that a backend needs to launch one VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchSpec {
    /// The VM's id.
    pub vm_id: String,
    /// The VM's name, shown in the process list.
    pub name: String,
    /// Virtual CPUs, at least one.
    pub cpus: u32,
    /// Guest memory in bytes, a multiple of one MiB.
    pub memory_bytes: u64,
    /// What the guest starts from.
    pub boot: Boot,
    /// Its disks, in the order in which the guest sees them.
    pub disks: Vec<Disk>,
    /// Its network cards.
    pub nics: Vec<Nic>,
    /// What runs its instructions.
    pub accelerator: Accelerator,
    /// Its sockets and logs.
    pub paths: RuntimePaths,
}

/// What a guest starts from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Boot {
    /// A kernel that the VMM loads itself.
    Direct {
        /// The kernel image.
        kernel: PathBuf,
        /// The initial RAM disk.
        initrd: Option<PathBuf>,
        /// The kernel command line.
        cmdline: String,
    },
    /// The boot loader on the first disk whose role is [`DiskRole::Root`].
    Disk,
}

/// One disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// The image file.
    pub path: PathBuf,
    /// Its format.
    pub format: DiskFormat,
    /// Whether the guest may only read it.
    pub readonly: bool,
    /// The serial number that the guest sees, at most 20 characters of `A-Za-z0-9._-`.
    pub serial: String,
    /// What it is for.
    pub role: DiskRole,
}

/// What a disk is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DiskRole {
    /// The disk that holds the guest's system.
    Root,
    /// A read-only layer of an image.
    Layer,
    /// What the guest writes above its layers.
    Cow,
    /// First-boot configuration.
    Cidata,
    /// The user's data.
    Data,
}

/// One network card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Nic {
    /// The VMM translates for the guest; needs no privilege.
    User {
        /// The card's address, `aa:bb:cc:dd:ee:ff`.
        mac: String,
    },
    /// A TAP interface that exists already.
    Tap {
        /// The interface's name in the VMM's network namespace.
        interface: String,
        /// The card's address, `aa:bb:cc:dd:ee:ff`.
        mac: String,
    },
}

/// A program and its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmmCommandLine {
    /// The binary's full path.
    pub program: PathBuf,
    /// Its arguments, without the program's own name.
    pub args: Vec<OsString>,
}

impl VmmCommandLine {
    /// As a command to be spawned, whose output goes to the VMM's log. Placement is the caller's.
    #[must_use]
    pub fn into_command(self, paths: &RuntimePaths) -> VmmCommand {
        VmmCommand { args: self.args, ..VmmCommand::new(self.program, &paths.vmm_log) }
    }
}

/// Why a specification cannot be launched.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LaunchError {
    /// The hypervisor is not on this host.
    #[error(transparent)]
    Missing(#[from] super::MissingBinary),
    /// A value that no hypervisor could take.
    #[error("VM {vm}: {field} cannot be {value:?}: {reason}")]
    Invalid {
        /// The VM's id.
        vm: String,
        /// The field of the specification.
        field: &'static str,
        /// Its value.
        value: String,
        /// What is wrong, and what would be right.
        reason: &'static str,
    },
    /// Something that this backend cannot do.
    #[error("VM {vm}: {backend} has no {what}; choose another backend or leave it out")]
    Unsupported {
        /// The VM's id.
        vm: String,
        /// The backend.
        backend: super::BackendKind,
        /// What is not supported.
        what: &'static str,
    },
}

impl LaunchSpec {
    /// Refuses what no backend could launch. Backends call it first.
    pub fn validate(&self) -> Result<(), LaunchError> {
        self.require(self.cpus > 0, "cpus", self.cpus.to_string(), "a VM has at least one CPU")?;
        let whole = self.memory_bytes > 0 && self.memory_bytes.is_multiple_of(1 << 20);
        self.require(whole, "memory", self.memory_bytes.to_string(), "it is given in whole MiB")?;
        self.plain("name", &self.name)?;
        self.plain("id", &self.vm_id)?;
        self.validate_boot()?;
        for disk in &self.disks {
            self.file("disk", &disk.path)?;
            self.word("serial", &disk.serial)?;
            let fits = disk.serial.len() <= 20;
            self.require(fits, "serial", disk.serial.clone(), "at most 20 characters are allowed")?;
        }
        self.nics.iter().try_for_each(|nic| self.validate_nic(nic))
    }

    fn validate_boot(&self) -> Result<(), LaunchError> {
        match &self.boot {
            Boot::Direct { kernel, initrd, cmdline } => {
                self.file("kernel", kernel)?;
                if let Some(initrd) = initrd {
                    self.file("initrd", initrd)?;
                    let no_comma = !initrd.as_os_str().as_encoded_bytes().contains(&b',');
                    self.require(
                        no_comma,
                        "initrd",
                        initrd.display().to_string(),
                        "no comma is allowed",
                    )?;
                }
                self.plain("cmdline", cmdline)?;
                let fits = cmdline.len() < 2048;
                self.require(fits, "cmdline", cmdline.clone(), "kernels take at most 2047 bytes")
            }
            Boot::Disk => {
                let root = self.disks.iter().any(|disk| disk.role == DiskRole::Root);
                self.require(root, "boot", "disk".to_owned(), "there is no root disk to boot from")
            }
        }
    }

    fn validate_nic(&self, nic: &Nic) -> Result<(), LaunchError> {
        let mac = match nic {
            Nic::User { mac } => mac,
            Nic::Tap { interface, mac } => {
                self.word("interface", interface)?;
                let fits = interface.len() <= 15;
                self.require(
                    fits,
                    "interface",
                    interface.clone(),
                    "at most 15 characters are allowed",
                )?;
                mac
            }
        };
        let octets: Vec<&str> = mac.split(':').collect();
        let octet = |text: &&str| text.len() == 2 && u8::from_str_radix(text, 16).is_ok();
        let valid = octets.len() == 6 && octets.iter().all(octet) && !mac.contains('+');
        self.require(valid, "mac", mac.clone(), "write aa:bb:cc:dd:ee:ff")
    }

    fn file(&self, field: &'static str, path: &std::path::Path) -> Result<(), LaunchError> {
        let value = path.display().to_string();
        let Some(text) = path.to_str() else {
            return self.require(false, field, value, "the path is not UTF-8");
        };
        self.require(path.is_absolute(), field, value, "the path is not absolute")?;
        self.plain(field, text)
    }

    fn plain(&self, field: &'static str, text: &str) -> Result<(), LaunchError> {
        let valid = !text.chars().any(char::is_control);
        self.require(valid, field, text.to_owned(), "it contains a control character")
    }

    fn word(&self, field: &'static str, text: &str) -> Result<(), LaunchError> {
        let valid = !text.is_empty()
            && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'));
        self.require(valid, field, text.to_owned(), "it is made of A-Za-z0-9._-")
    }

    fn require(
        &self,
        valid: bool,
        field: &'static str,
        value: String,
        reason: &'static str,
    ) -> Result<(), LaunchError> {
        if valid {
            return Ok(());
        }
        Err(LaunchError::Invalid { vm: self.vm_id.clone(), field, value, reason })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;

    fn spec() -> LaunchSpec {
        LaunchSpec {
            vm_id: "id".to_owned(),
            name: "name".to_owned(),
            cpus: 1,
            memory_bytes: 64 << 20,
            boot: Boot::Direct {
                kernel: "/k".into(),
                initrd: Some("/i".into()),
                cmdline: DIRECT_CMDLINE.to_owned(),
            },
            disks: vec![disk("/d", "serial")],
            nics: vec![nic("52:54:00:12:34:56")],
            accelerator: Accelerator::Tcg,
            paths: RuntimePaths::new(Path::new("/r"), Path::new("/l")).unwrap(),
        }
    }

    fn disk(path: &str, serial: &str) -> Disk {
        let (format, role) = (DiskFormat::Raw, DiskRole::Data);
        Disk { path: path.into(), format, readonly: true, serial: serial.to_owned(), role }
    }

    fn nic(mac: &str) -> Nic {
        Nic::User { mac: mac.to_owned() }
    }

    fn tap(interface: &str) -> Nic {
        Nic::Tap { interface: interface.to_owned(), mac: "52:54:00:12:34:56".to_owned() }
    }

    fn direct(kernel: &str, initrd: &str, cmdline: &str) -> Boot {
        let (kernel, initrd) = (kernel.into(), Some(initrd.into()));
        Boot::Direct { kernel, initrd, cmdline: cmdline.to_owned() }
    }

    #[test]
    fn a_sound_specification_passes() {
        spec().validate().unwrap();
    }

    #[test]
    fn what_no_hypervisor_could_take_is_named() {
        let long = "x".repeat(2048);
        let cases = [
            ("cpus", LaunchSpec { cpus: 0, ..spec() }),
            ("memory", LaunchSpec { memory_bytes: 0, ..spec() }),
            ("memory", LaunchSpec { memory_bytes: (64 << 20) + 1, ..spec() }),
            ("name", LaunchSpec { name: "a\nb".to_owned(), ..spec() }),
            ("boot", LaunchSpec { boot: Boot::Disk, ..spec() }),
            ("kernel", LaunchSpec { boot: direct("k", "/i", ""), ..spec() }),
            ("initrd", LaunchSpec { boot: direct("/k", "/i,/j", ""), ..spec() }),
            ("cmdline", LaunchSpec { boot: direct("/k", "/i", &long), ..spec() }),
            ("cmdline", LaunchSpec { boot: direct("/k", "/i", "a\0b"), ..spec() }),
            ("disk", LaunchSpec { disks: vec![disk("relative", "s")], ..spec() }),
            ("serial", LaunchSpec { disks: vec![disk("/d", "")], ..spec() }),
            ("serial", LaunchSpec { disks: vec![disk("/d", "a,b=c")], ..spec() }),
            ("serial", LaunchSpec { disks: vec![disk("/d", &long)], ..spec() }),
            ("mac", LaunchSpec { nics: vec![nic("52:54:00:12:34")], ..spec() }),
            ("mac", LaunchSpec { nics: vec![nic("52:54:00:12:34:5g")], ..spec() }),
            ("mac", LaunchSpec { nics: vec![nic("52:54:00:12:34:+6")], ..spec() }),
            ("interface", LaunchSpec { nics: vec![tap("a,script=/x")], ..spec() }),
            ("interface", LaunchSpec { nics: vec![tap("longer-than-a-name")], ..spec() }),
        ];
        for (expected, spec) in cases {
            match spec.validate() {
                Err(LaunchError::Invalid { field, .. }) => assert_eq!(field, expected, "{spec:?}"),
                other => panic!("{expected}: {other:?}"),
            }
        }
    }

    proptest! {
        /// Option lists are cut at commas: nothing that passes may bring one where it would be cut.
        #[test]
        fn nothing_that_passes_can_add_options(mac in "\\PC{0,20}", serial in "\\PC{0,24}") {
            let spec = LaunchSpec { disks: vec![disk("/d", &serial)], nics: vec![nic(&mac)], ..spec() };
            if spec.validate().is_ok() {
                prop_assert!(!mac.contains(',') && !serial.contains(','));
            }
        }
    }
}
