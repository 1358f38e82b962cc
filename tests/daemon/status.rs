//! `vm status` and `vm wait`.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use serde_json::Value;

use crate::process::Running;
use crate::root::{NEVER, Root, birth};

#[test]
fn once_shows_those_that_were_asked_for() {
    let root = Root::new();
    root.ok(&birth("create", "a"));
    root.ok(&birth("create", "b"));
    let table = root.ok(&["vm", "status"]);
    assert_eq!(table.lines().count(), 3, "{table}");
    assert!(table.starts_with("ID "), "{table}");
    let id = root.inspect("b")["id"].as_str().unwrap().to_owned();
    for reference in ["b", &id, &id[..3]] {
        let vms = root.json(&["vm", "status", "--format", "json", reference]);
        assert_eq!(vms.as_array().unwrap().len(), 1);
        assert_eq!(vms[0]["config"]["name"], "b");
    }
    assert_eq!(root.run(&["vm", "status", "nobody"]).status.code(), Some(1));
    assert_eq!(root.run(&["vm", "status", "--event", "--watch"]).status.code(), Some(2));
    assert_eq!(root.run(&["vm", "status", "--since", "1"]).status.code(), Some(2));
}

#[test]
fn the_whole_history_is_a_stream_too() {
    let root = Root::new();
    root.vm("a");
    root.ok(&birth("create", "other"));
    root.ok(&["vm", "rm", "--force", "a"]);
    let stream = root.stream(&["--since", "0", "a"]);
    let told: Vec<Value> =
        (0..5).map(|_| serde_json::from_str(&stream.out.next()).unwrap()).collect();
    let lines: Vec<String> =
        told.iter().map(|line| format!("{} {}", line["event"], line["vm"]["state"])).collect();
    let expected = [
        "\"ADDED\" \"creating\"",
        "\"MODIFIED\" \"created\"",
        "\"MODIFIED\" \"running\"",
        "\"MODIFIED\" \"stopped\"",
        "\"DELETED\" \"stopped\"",
    ];
    assert_eq!(lines, expected);
    assert!(told.iter().all(|line| line["vm"]["config"]["name"] == "a"));
    let middle = told[2]["seq"].to_string();
    let rest = root.stream(&["--since", &middle, "a"]);
    assert_eq!(serde_json::from_str::<Value>(&rest.out.next()).unwrap(), told[3]);
    let future = root.run(&["vm", "status", "--event", "--since", "1000000"]);
    assert_eq!(future.status.code(), Some(2));
}

#[test]
fn a_stream_for_people_has_a_header_and_ends_with_its_reader() {
    let root = Root::new();
    root.ok(&birth("create", "a"));
    let mut command = root.command(&["vm", "status", "--event", "--interval", NEVER]);
    let mut stream = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut reader = BufReader::new(stream.stdout.take().unwrap());
    let mut text = String::new();
    while text.lines().count() < 2 {
        reader.read_line(&mut text).unwrap();
    }
    let words =
        |line: usize| text.lines().nth(line).unwrap().split_whitespace().collect::<Vec<_>>();
    assert_eq!(words(0), ["EVENT", "ID", "NAME", "STATE", "CPU", "MEMORY", "IP", "IMAGE"]);
    assert_eq!((words(1)[0], words(1)[2], words(1)[3]), ("ADDED", "a", "created"));
    drop(reader);
    assert!(stream.wait().unwrap().success(), "nothing happens, and yet it ends");
}

#[test]
fn a_watch_draws_again_when_something_happens() {
    let root = Root::new();
    root.ok(&birth("create", "a"));
    let mut command = root.command(&["vm", "status", "--watch", "--interval", NEVER, "-o", "json"]);
    let watch = Running::start(&mut command);
    assert_eq!(
        serde_json::from_str::<Value>(&watch.out.next()).unwrap().as_array().unwrap().len(),
        1
    );
    root.ok(&birth("create", "b"));
    watch.out.until("\"b\"");
}

#[test]
fn a_wait_ends_with_what_it_waits_for() {
    let root = Root::new();
    root.vm("a");
    let mut gone = Running::start(&mut root.command(&["vm", "wait", "a", "--state", "gone"]));
    let mut stopped = Running::start(&mut root.command(&["vm", "wait", "a", "--state", "stopped"]));
    root.ok(&["vm", "stop", "a"]);
    assert!(stopped.wait().success());
    root.ok(&["vm", "rm", "a"]);
    assert!(gone.wait().success());
}
