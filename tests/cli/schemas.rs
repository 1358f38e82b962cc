//! What is printed as JSON is what the schemas say.

use serde_json::Value;

use crate::sandbox::Sandbox;
use crate::{repository, schema};

fn check(name: &str, value: &Value) {
    let schema = schema::load(name);
    let faults = schema::faults(&schema, &schema, value, "$");
    assert!(faults.is_empty(), "{name}: {faults:#?}");
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
    // A boot sector is what tells a raw disk from any other file.
    let mut bytes = vec![0; 1 << 20];
    bytes[510..512].copy_from_slice(&[0x55, 0xaa]);
    std::fs::write(&disk, bytes).unwrap();
    let imported = sandbox.cocoon(["image", "import", "disk", "disk.raw", "-o", "json"]);
    assert_eq!(imported.code, 0, "{imported:?}");
    check("image.json", &imported.json());
    check("image.json", &sandbox.cocoon(["image", "inspect", "guest"]).json());
    check("image-list.json", &sandbox.cocoon(["image", "list", "-o", "json"]).json());
    check("gc.json", &sandbox.cocoon(["gc", "-o", "json"]).json());
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
