//! A root of one test, with its VMs and its daemons.

use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use cocoon::engine::Engine;
use cocoon::settings::{Given, Settings};
use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::process::{LONG, Lines, Running};

/// An interval that no test waits for: whatever happens was woken by an event.
pub(crate) const NEVER: &str = "1h";

/// A root; its VMs end with it.
pub(crate) struct Root {
    directory: TempDir,
    vmm: PathBuf,
}

impl Root {
    /// A root over the fake VMM, with an image `guest`.
    pub(crate) fn new() -> Self {
        let root = Self::with_vmm(cocoon_fake_vmm::find::fake_vmm());
        root.import_payload();
        root
    }

    /// Imports the image `guest`.
    pub(crate) fn import_payload(&self) {
        let payload = self.path().join("payload");
        std::fs::write(&payload, "kernel").unwrap();
        self.import(&payload, &payload);
    }

    pub(crate) fn with_vmm(vmm: PathBuf) -> Self {
        // Sockets have short paths.
        let directory = tempfile::Builder::new().prefix("cd").tempdir_in("/tmp").unwrap();
        Self { directory, vmm }
    }

    pub(crate) fn import(&self, kernel: &Path, initrd: &Path) {
        let (kernel, initrd) = (kernel.to_str().unwrap(), initrd.to_str().unwrap());
        self.ok(&["image", "import", "guest", "--kernel", kernel, "--initrd", initrd]);
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn root_dir(&self) -> PathBuf {
        self.path().join("r")
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cocoon"));
        command.args(args);
        command.env("COCOON_ROOT_DIR", self.root_dir()).env("COCOON_QEMU_BINARY", &self.vmm);
        command.env_remove("NOTIFY_SOCKET").env_remove("WATCHDOG_USEC");
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Runs a command that must succeed; its output.
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        let output = self.run(args);
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "cocoon {}: {told}", args.join(" "));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a command that prints JSON.
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.ok(args)).unwrap()
    }

    /// Starts a VM; the process of its VMM.
    pub(crate) fn vm(&self, name: &str) -> u32 {
        self.ok(&birth("run", name));
        self.pid(name)
    }

    pub(crate) fn inspect(&self, name: &str) -> Value {
        self.json(&["vm", "inspect", name])
    }

    pub(crate) fn pid(&self, name: &str) -> u32 {
        u32::try_from(self.inspect(name)["pid"].as_u64().unwrap()).unwrap()
    }

    pub(crate) fn names(&self) -> Vec<String> {
        let vms = self.json(&["vm", "list", "-o", "json"]);
        let names = vms.as_array().unwrap().iter();
        names.map(|vm| vm["config"]["name"].as_str().unwrap().to_owned()).collect()
    }

    /// The engine of this root in this process.
    pub(crate) fn engine(&self) -> Engine {
        let given = Given {
            root_dir: Some(self.root_dir()),
            qemu_binary: Some(self.vmm.clone()),
            ..Given::default()
        };
        Engine::open(Settings::load(given, None).unwrap()).unwrap()
    }

    /// Starts a daemon and waits until it says that it is ready.
    pub(crate) fn daemon(&self, interval: &str) -> Daemon {
        self.daemon_with(&["--reconcile-interval", interval], &[])
    }

    pub(crate) fn daemon_with(&self, args: &[&str], environment: &[(&str, &str)]) -> Daemon {
        let path = self.path().join("notify");
        let _ = std::fs::remove_file(&path);
        let notify = UnixDatagram::bind(&path).unwrap();
        notify.set_read_timeout(Some(LONG)).unwrap();
        let mut command = self.command(&["daemon"]);
        command.args(args).env("NOTIFY_SOCKET", &path).envs(environment.iter().copied());
        let running = Running::start(&mut command);
        let mut buffer = [0; 128];
        let len = notify.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..len], b"READY=1");
        Daemon { running, socket: self.root_dir().join("run/cocoond.sock"), notify }
    }

    /// Starts `vm status --event --format json` with more arguments.
    pub(crate) fn stream(&self, args: &[&str]) -> Running {
        let mut command = self.command(&["vm", "status", "--event", "--format", "json"]);
        Running::start(command.args(args))
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        if self.root_dir().exists() {
            for name in self.names() {
                let _ = self.run(&["vm", "rm", "--force", &name]);
            }
        }
    }
}

/// The arguments that bring a small VM into being.
pub(crate) fn birth<'a>(verb: &'a str, name: &'a str) -> [&'a str; 13] {
    [
        "vm",
        verb,
        "--name",
        name,
        "--cpu",
        "1",
        "--memory",
        "64M",
        "--storage",
        "16M",
        "--nics",
        "0",
        "guest",
    ]
}

/// A daemon that is ready.
pub(crate) struct Daemon {
    pub(crate) running: Running,
    socket: PathBuf,
    notify: UnixDatagram,
}

impl Daemon {
    /// Tells it to stop, and waits.
    pub(crate) fn stop(mut self) {
        self.running.signal(Signal::SIGTERM);
        let mut buffer = [0; 128];
        let len = self.notify.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..len], b"STOPPING=1");
        assert!(self.running.wait().success());
        assert!(!self.socket.exists(), "it leaves no socket");
    }

    /// Kills it, and waits.
    pub(crate) fn kill(mut self) {
        self.running.signal(Signal::SIGKILL);
        self.running.wait();
    }

    fn request(&self, head: &str) -> UnixStream {
        let mut stream = UnixStream::connect(&self.socket).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        // HTTP/1.0: the answer ends with the connection and is not cut into chunks.
        write!(stream, "{head}\r\n\r\n").unwrap();
        stream
    }

    /// The status line and the body of an answer.
    pub(crate) fn get(&self, path: &str) -> (String, String) {
        let mut answer = String::new();
        self.request(&format!("GET {path} HTTP/1.0")).read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.lines().next().unwrap().to_owned(), body.to_owned())
    }

    pub(crate) fn get_json(&self, path: &str) -> Value {
        let (status, body) = self.get(path);
        assert!(status.contains("200"), "{status}: {body}");
        serde_json::from_str(&body).unwrap()
    }

    /// The VMs of `/v1/vms` by name.
    pub(crate) fn vms(&self) -> std::collections::BTreeMap<String, Value> {
        let vms = self.get_json("/v1/vms");
        let vms = vms["vms"].as_array().unwrap().iter();
        vms.map(|vm| (vm["name"].as_str().unwrap().to_owned(), vm.clone())).collect()
    }

    /// An event stream, perhaps from where another ended.
    pub(crate) fn events(&self, last: Option<u64>) -> Events {
        let header = last.map_or(String::new(), |last| format!("\r\nLast-Event-ID: {last}"));
        Events(Lines::of(self.request(&format!("GET /v1/events HTTP/1.0{header}"))))
    }
}

/// An event stream.
pub(crate) struct Events(Lines);

/// One event.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Event {
    pub(crate) name: String,
    pub(crate) id: u64,
    pub(crate) data: Value,
}

impl Events {
    pub(crate) fn next(&self) -> Event {
        let field = |prefix: &str| {
            let line = self.0.until(prefix).pop().unwrap();
            line.strip_prefix(prefix).unwrap().to_owned()
        };
        let (name, id) = (field("event: "), field("id: ").parse().unwrap());
        Event { name, id, data: serde_json::from_str(&field("data: ")).unwrap() }
    }

    /// The changes up to the first of this kind about this VM, as `KIND name state`.
    pub(crate) fn until(&self, kind: &str, name: &str) -> Vec<(u64, String)> {
        let mut changes = Vec::new();
        loop {
            let event = self.next();
            assert_eq!(event.name, "change");
            assert_eq!(event.data["seq"], event.id);
            let told = event.told();
            let found = event.data["kind"] == kind && event.data["vm"]["name"] == name;
            changes.push((event.id, told));
            if found {
                return changes;
            }
        }
    }
}

impl Event {
    fn told(&self) -> String {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let vm = &self.data["vm"];
        format!("{} {} {}", text(&self.data["kind"]), text(&vm["name"]), text(&vm["state"]))
    }
}
