//! A launch specification as a QEMU command line.
//!
//! What is chosen here, and why:
//!
//! * `q35` with virtio over PCI: what a stock distribution kernel finds without help, and what can be powered off.
//! * `-nodefaults -no-user-config`: nothing that was not asked for.
//! * `-S`: the guest waits until someone has spoken to QEMU and says `cont`.
//! * `-no-reboot`: a reset ends the VM, as everywhere in this project; nothing restarts behind its record.
//! * `-sandbox on,...`: QEMU can neither start programs nor gain privileges.
//! * `-trace`: QEMU writes why it goes to its log, which is there even if nobody was listening.
//! * `pvpanic-pci`: a stock kernel tells of its panic, which else looks like a reboot.
//! * the console log is opened with `logappend=on`, which lets an observer cut it while QEMU writes.
//! * block devices are given as JSON, in which a path needs no escaping.

use std::ffi::OsString;
use std::path::Path;

use serde_json::json;

use crate::host::vmm::{
    Accelerator, BackendKind, Boot, Disk, DiskRole, LaunchError, LaunchSpec, Nic,
};

/// The trace points that tell why a QEMU goes.
pub(super) const TRACES: [&str; 3] =
    ["qemu_system_shutdown_request", "qemu_system_powerdown_request", "runstate_set"];

const SANDBOX: &str = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny";

/// The arguments that launch `spec`, without the program's name.
pub(super) fn arguments(spec: &LaunchSpec) -> Result<Vec<OsString>, LaunchError> {
    spec.validate()?;
    let mut line = Line::default();
    line.option("-name", format!("guest={}", escape(&spec.name)));
    machine(&mut line, spec);
    monitors(&mut line, spec);
    boot(&mut line, &spec.boot);
    line.option("-device", "virtio-rng-pci");
    line.option("-device", "pvpanic-pci");
    let root = spec.disks.iter().position(|disk| disk.role == DiskRole::Root);
    for (index, disk) in spec.disks.iter().enumerate() {
        let bootable = spec.boot == Boot::Disk && root == Some(index);
        block_device(&mut line, index, disk, bootable);
    }
    for (index, nic) in spec.nics.iter().enumerate() {
        network_card(&mut line, spec, index, nic)?;
    }
    for trace in TRACES {
        line.option("-trace", trace);
    }
    Ok(line.0)
}

fn machine(line: &mut Line, spec: &LaunchSpec) {
    line.option("-machine", "q35,usb=off,vmport=off");
    match spec.accelerator {
        Accelerator::Kvm => {
            line.option("-accel", "kvm");
            line.option("-cpu", "host");
        }
        Accelerator::Tcg => line.option("-accel", "tcg,thread=multi"),
    }
    line.option("-smp", spec.cpus.to_string());
    line.option("-m", format!("{}M", spec.memory_bytes >> 20));
    for flag in ["-nodefaults", "-no-user-config", "-no-reboot", "-S"] {
        line.flag(flag);
    }
    line.option("-display", "none");
    line.option("-sandbox", SANDBOX);
    line.option("-msg", "timestamp=on");
}

/// Two QMP sockets, one for commands and one for observers, and the console.
fn monitors(line: &mut Line, spec: &LaunchSpec) {
    let paths = &spec.paths;
    for (id, socket) in [("api", &paths.api_socket), ("events", &paths.event_socket)] {
        line.option(
            "-chardev",
            format!("socket,id={id},path={},server=on,wait=off", socket.display()),
        );
        line.option("-mon", format!("chardev={id},mode=control"));
    }
    let (socket, log) = (paths.console_socket.display(), paths.console_log.display());
    line.option(
        "-chardev",
        format!("socket,id=console,path={socket},server=on,wait=off,logfile={log},logappend=on"),
    );
    line.option("-serial", "chardev:console");
}

fn boot(line: &mut Line, boot: &Boot) {
    match boot {
        Boot::Direct { kernel, initrd, cmdline } => {
            line.option("-kernel", kernel.as_os_str());
            if let Some(initrd) = initrd {
                line.option("-initrd", initrd.as_os_str());
            }
            line.option("-append", cmdline);
        }
        Boot::Disk => line.option("-boot", "strict=on"),
    }
}

fn block_device(line: &mut Line, index: usize, disk: &Disk, bootable: bool) {
    let node = format!("disk{index}");
    let blockdev = json!({
        "driver": disk.format.as_str(),
        "node-name": node,
        "read-only": disk.readonly,
        "discard": "unmap",
        "file": {
            "driver": "file",
            "filename": utf8(&disk.path),
            "read-only": disk.readonly,
            "discard": "unmap",
        },
    });
    line.option("-blockdev", blockdev.to_string());
    let boot = if bootable { ",bootindex=0" } else { "" };
    line.option("-device", format!("virtio-blk-pci,drive={node},serial={}{boot}", disk.serial));
}

fn network_card(
    line: &mut Line,
    spec: &LaunchSpec,
    index: usize,
    nic: &Nic,
) -> Result<(), LaunchError> {
    let mac = match nic {
        // User-mode networking is one network of its own for each card; a guest with two would have the same
        // addresses twice.
        Nic::User { .. } if index > 0 => {
            let what = "second card in user mode";
            return Err(LaunchError::Unsupported {
                vm: spec.vm_id.clone(),
                backend: BackendKind::Qemu,
                what,
            });
        }
        Nic::User { mac } => {
            line.option("-netdev", format!("user,id=nic{index}"));
            mac
        }
        Nic::Tap { interface, mac } => {
            let scripts = "script=no,downscript=no,vhost=off";
            line.option("-netdev", format!("tap,id=nic{index},ifname={interface},{scripts}"));
            mac
        }
    };
    // Without a boot ROM: nothing boots from the network here, and loading it takes time.
    line.option("-device", format!("virtio-net-pci,netdev=nic{index},mac={mac},romfile="));
    Ok(())
}

/// In QEMU's option lists a comma ends a value unless it is doubled.
fn escape(value: &str) -> String {
    value.replace(',', ",,")
}

/// Paths were checked to be UTF-8 when the specification was validated.
fn utf8(path: &Path) -> std::borrow::Cow<'_, str> {
    path.to_string_lossy()
}

#[derive(Default)]
struct Line(Vec<OsString>);

impl Line {
    fn flag(&mut self, flag: &str) {
        self.0.push(flag.into());
    }

    fn option(&mut self, flag: &str, value: impl Into<OsString>) {
        self.flag(flag);
        self.0.push(value.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::vmm::{DiskFormat, RuntimePaths};

    fn spec() -> LaunchSpec {
        let root = Disk {
            path: "/vm/a, b.qcow2".into(),
            format: DiskFormat::Qcow2,
            readonly: false,
            serial: "root".to_owned(),
            role: DiskRole::Root,
        };
        LaunchSpec {
            vm_id: "id".to_owned(),
            name: "a, b".to_owned(),
            cpus: 2,
            memory_bytes: 1 << 30,
            boot: Boot::Disk,
            disks: vec![root],
            nics: vec![Nic::Tap {
                interface: "tap0".to_owned(),
                mac: "52:54:00:12:34:56".to_owned(),
            }],
            accelerator: Accelerator::Kvm,
            paths: RuntimePaths::new(Path::new("/run/v"), Path::new("/log/v")).unwrap(),
        }
    }

    fn words(spec: &LaunchSpec) -> Vec<String> {
        let arguments = arguments(spec).unwrap();
        arguments.into_iter().map(|word| word.into_string().unwrap()).collect()
    }

    /// The values of an option, in their order.
    fn values<'a>(words: &'a [String], option: &str) -> Vec<&'a str> {
        words.windows(2).filter(|pair| pair[0] == option).map(|pair| pair[1].as_str()).collect()
    }

    #[test]
    fn a_disk_is_given_with_its_path_as_it_is_and_boots() {
        let words = words(&spec());
        let disk: serde_json::Value = serde_json::from_str(values(&words, "-blockdev")[0]).unwrap();
        assert_eq!(disk["file"]["filename"], "/vm/a, b.qcow2");
        assert_eq!((&disk["driver"], &disk["read-only"]), (&json!("qcow2"), &json!(false)));
        assert!(
            values(&words, "-device")
                .contains(&"virtio-blk-pci,drive=disk0,serial=root,bootindex=0")
        );
        assert_eq!(values(&words, "-kernel"), Vec::<&str>::new());
    }

    #[test]
    fn a_direct_boot_gives_kernel_and_words_as_they_are() {
        let cmdline = "console=ttyS0 a,b";
        let (kernel, initrd) = ("/k, x".into(), Some("/i".into()));
        let boot = Boot::Direct { kernel, initrd, cmdline: cmdline.to_owned() };
        let words = words(&LaunchSpec { boot, ..spec() });
        assert_eq!(values(&words, "-kernel"), ["/k, x"]);
        assert_eq!(values(&words, "-initrd"), ["/i"]);
        assert_eq!(values(&words, "-append"), [cmdline]);
        assert!(!words.iter().any(|word| word.contains("bootindex")));
    }

    #[test]
    fn the_machine_is_what_was_asked_for() {
        let words = words(&spec());
        assert_eq!(values(&words, "-name"), ["guest=a,, b"]);
        assert_eq!(values(&words, "-accel"), ["kvm"]);
        assert_eq!(values(&words, "-smp"), ["2"]);
        assert_eq!(values(&words, "-m"), ["1024M"]);
        assert_eq!(
            values(&words, "-netdev"),
            ["tap,id=nic0,ifname=tap0,script=no,downscript=no,vhost=off"]
        );
        let sockets = values(&words, "-chardev");
        assert!(sockets[0].contains("path=/run/v/api.sock,"), "{sockets:?}");
        assert!(sockets[2].contains("logfile=/log/v/console.log,logappend=on"), "{sockets:?}");
    }

    #[test]
    fn a_second_card_in_user_mode_is_refused() {
        let card = || Nic::User { mac: "52:54:00:12:34:56".to_owned() };
        let error = arguments(&LaunchSpec { nics: vec![card(), card()], ..spec() }).unwrap_err();
        assert!(matches!(error, LaunchError::Unsupported { .. }), "{error}");
    }
}
