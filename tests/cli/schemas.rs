//! What is printed as JSON is what the schemas say.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;

use crate::sandbox::Sandbox;
use crate::{repository, schema};

pub(crate) fn check(name: &str, value: &Value) {
    let schema = schema::load(name);
    let faults = schema::faults(&schema, &schema, value, "$");
    assert!(faults.is_empty(), "{name}: {faults:#?}");
}

/// A raw disk: any whole number of sectors is one.
pub(crate) fn write_disk(path: &Path) {
    std::fs::write(path, [0; 2 << 10]).unwrap();
}

#[test]
fn vms_in_every_state() {
    let sandbox = Sandbox::with_guest();
    check("vm-list.json", &sandbox.cocoon(["vm", "list", "-o", "json"]).json());
    let run = ["vm", "run", "--name", "a", "--nics", "0", "--no-direct-io", "guest", "-o", "json"];
    let ran = sandbox.cocoon(run).json();
    check("vm.json", &ran);
    assert_eq!(ran["state"], "running");
    assert_ne!(ran["pid"], 0);
    sandbox.create("b");
    check("vm-list.json", &sandbox.cocoon(["vm", "list", "-o", "json"]).json());
    check("vm.json", &sandbox.cocoon(["vm", "inspect", "b"]).json());
    assert_eq!(sandbox.cocoon(["vm", "stop", "--force", "a"]).code, 0);
    let stopped = sandbox.cocoon(["vm", "inspect", "a"]).json();
    check("vm.json", &stopped);
    assert_eq!((&stopped["state"], &stopped["pid"]), (&"stopped".into(), &0.into()));
    check(
        "vm.json",
        &sandbox.cocoon(["vm", "wait", "a", "--state", "stopped", "-o", "json"]).json(),
    );
}

#[test]
fn a_vm_whose_hypervisor_was_killed_is_stale() {
    let sandbox = Sandbox::with_guest();
    let ran = sandbox.cocoon(["vm", "run", "--name", "a", "guest", "-o", "json"]).json();
    let pid = i32::try_from(ran["pid"].as_i64().unwrap()).unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL)
        .unwrap();
    let waited = sandbox.cocoon(["vm", "wait", "a", "--state", "stopped", "-o", "json"]);
    assert_eq!(waited.code, 0, "{waited:?}");
    check("vm.json", &waited.json());
    assert_eq!(waited.json()["state"], "stopped (stale)");
}

#[test]
fn batches() {
    let sandbox = Sandbox::with_guest();
    sandbox.create("a");
    for words in [&["start", "a"][..], &["stop", "nobody"], &["rm", "a"]] {
        let words = ["vm"].iter().chain(words).chain(&["-o", "json"]);
        check("batch.json", &sandbox.cocoon(words).json());
    }
    check("batch.json", &sandbox.cocoon(["image", "rm", "guest", "nothing", "-o", "json"]).json());
}

#[test]
fn outcomes_of_a_reconcile() {
    let sandbox = Sandbox::with_guest();
    sandbox.create("a");
    for name in ["a", "nobody"] {
        check(
            "reconcile.json",
            &sandbox.cocoon(["vm", "reconcile-stale-create", name, "-o", "json"]).json(),
        );
    }
}

#[test]
fn images_and_collections() {
    let sandbox = Sandbox::with_guest();
    let disk = sandbox.path().join("disk.raw");
    write_disk(&disk);
    let imported = sandbox.cocoon(["image", "import", "disk", "disk.raw", "-o", "json"]);
    assert_eq!(imported.code, 0, "{imported:?}");
    check("image.json", &imported.json());
    check("image.json", &sandbox.cocoon(["image", "inspect", "guest"]).json());
    check("image-list.json", &sandbox.cocoon(["image", "list", "-o", "json"]).json());
    check("gc.json", &sandbox.cocoon(["gc", "-o", "json"]).json());
}

#[test]
fn what_happens_to_vms() {
    let sandbox = Sandbox::with_guest();
    let id = sandbox.create("a");
    let mut status = sandbox.command(["vm", "status", "--event", "--format", "json"]);
    let mut stream = status.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(stream.stdout.take().unwrap()).lines();
    let mut next = || -> Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    let there = next();
    check("status-event.json", &there);
    assert_eq!((&there["event"], &there["vm"]["id"]), (&"ADDED".into(), &id.into()));
    assert_eq!(sandbox.cocoon(["vm", "rm", "a"]).code, 0);
    let mut seq = there["seq"].as_u64().unwrap();
    loop {
        let line = next();
        check("status-event.json", &line);
        assert!(line["seq"].as_u64().unwrap() > seq, "events come in order: {line}");
        seq = line["seq"].as_u64().unwrap();
        if line["event"] == "DELETED" {
            break;
        }
    }
    stream.kill().unwrap();
    stream.wait().unwrap();
}

#[test]
fn what_the_host_can_do() {
    let sandbox = Sandbox::new();
    check("doctor.json", &sandbox.cocoon(["doctor", "-o", "json"]).json());
}

#[test]
fn every_schema_is_one_and_has_a_title() {
    for entry in std::fs::read_dir(repository().join("docs/schemas")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let schema = schema::load(&name);
        assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema", "{name}");
        assert!(schema["title"].is_string(), "{name}");
    }
}
