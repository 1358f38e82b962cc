//! `cocoon replay`: what it shows of real lives, of deaths, and of journals that are not as they should be.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use cocoon_model::event::vm::{Committed, StoragePrepared};
use serde_json::Value;

use crate::forge::{Forger, Hand, reserved, vm};
use crate::sandbox::{Ended, Sandbox, binary};

/// The objects of a timeline.
fn lines(ended: &Ended) -> Vec<Value> {
    ended.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn field<'a>(lines: &'a [Value], name: &str) -> Vec<&'a str> {
    lines.iter().map(|line| line[name].as_str().unwrap_or("-")).collect()
}

fn timeline(sandbox: &Sandbox, more: &[&str]) -> Vec<Value> {
    let ended = sandbox.cocoon(["replay", "-o", "json"].iter().chain(more));
    assert_eq!(ended.code, 0, "{ended:?}");
    lines(&ended)
}

/// Replays a journal somewhere.
fn replay(journal: &Path, more: &[&str]) -> Ended {
    let mut command = Command::new(binary());
    command.env_clear().arg("replay").arg("--journal").arg(journal).args(more);
    Ended::of(command.output().unwrap())
}

/// A VM that was run, stopped and removed.
fn a_life() -> Sandbox {
    let sandbox = Sandbox::with_guest();
    let verbs: [&[&str]; 3] = [
        &["vm", "run", "--name", "web", "guest"],
        &["vm", "stop", "--force", "web"],
        &["vm", "rm", "web"],
    ];
    for verb in verbs {
        assert_eq!(sandbox.cocoon(verb).code, 0, "{verb:?}");
    }
    sandbox
}

#[test]
fn a_life_is_told_event_by_event() {
    let sandbox = a_life();
    let rows = timeline(&sandbox, &["--vm", "web"]);
    let events = [
        ("Prereserved", "creating", "prepare-storage"),
        ("StoragePrepared", "creating", "-"),
        ("Committed", "created", "choose-launch"),
        ("LaunchBegan", "created", "spawn-vmm"),
        ("Launched", "created", "await-vmm"),
        ("Running", "running", "-"),
        ("StopBegan", "running", "stop-vmm"),
        ("Stopped", "stopped", "-"),
        ("Tombstoned", "leased", "prove-vmm-dead"),
        ("DeleteBegan", "deleting", "remove-run-directory"),
        ("DeleteStepDone", "deleting", "remove-log-directory"),
        ("DeleteStepDone", "deleting", "remove-vmm-lock"),
        ("DeleteStepDone", "deleting", "-"),
        ("Deleted", "-", "-"),
    ];
    let told: Vec<_> = field(&rows, "event")
        .into_iter()
        .zip(field(&rows, "to"))
        .zip(field(&rows, "owed"))
        .map(|((event, to), owed)| (event, to, owed))
        .collect();
    assert_eq!(told, events);
    assert_eq!(rows[0]["from"], Value::Null);
    assert_eq!(rows[6]["actor"]["verb"], "vm stop");
    let locks = |at: usize| field(rows[at]["locks"].as_array().unwrap(), "lock").join(",");
    assert_eq!(
        (locks(0).as_str(), locks(5).as_str(), locks(7).as_str()),
        ("ops", "ops,vmm", "ops")
    );
    assert_eq!(rows[5]["locks"][1]["pid"], rows[4]["body"]["identity"]["pid"]);
    assert_eq!(rows[0]["locks"][0]["pid"], rows[0]["actor"]["pid"]);
}

#[test]
fn rows_are_chosen_by_actor_operation_and_range() {
    let sandbox = a_life();
    let stop = timeline(&sandbox, &["--actor", "stop"]);
    assert_eq!(field(&stop, "event"), ["StopBegan", "Stopped"]);
    let shown = format!("vm-stop[{}]", stop[0]["actor"]["pid"]);
    assert_eq!(timeline(&sandbox, &["--actor", &shown]), stop);
    let operation = stop[0]["operation"].as_str().unwrap();
    assert_eq!(timeline(&sandbox, &["--operation", &operation[..13]]), stop);
    let (from, to) = (stop[0]["seq"].to_string(), stop[1]["seq"].to_string());
    assert_eq!(timeline(&sandbox, &["--since", &from, "--until", &to]), stop);
    let (from, to) = (stop[0]["time"].as_str().unwrap(), stop[1]["time"].as_str().unwrap());
    assert_eq!(timeline(&sandbox, &["--since", from, "--until", to, "--vm", "web"]), stop);
    let unknown = sandbox.cocoon(["replay", "--vm", "nobody"]);
    unknown.says(1, "the journal knows no VM `nobody`");
    sandbox.cocoon(["replay", "--since", "soon"]).says(2, "no point of the history");
}

#[test]
fn lines_for_people_have_one_format() {
    let sandbox = a_life();
    let ended = sandbox.cocoon(["replay"]);
    let lines: Vec<Vec<&str>> =
        ended.stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    let header = ["SEQ", "TIME", "ACTOR", "EVENT", "SUBJECT", "STATE", "LOCKS", "OWED", "NOTE"];
    assert_eq!(lines[0], header);
    for (line, seq) in lines[1..].iter().zip(1..) {
        assert_eq!(line[0], seq.to_string());
        assert!(line.len() >= header.len() - 1, "{line:?}");
    }
    let stopped = lines.iter().find(|line| line[3..].first() == Some(&"Stopped")).unwrap();
    assert!(stopped[2].starts_with("vm-stop["), "{stopped:?}");
    assert!(stopped[4].starts_with("vm/") && stopped[4].ends_with(":web"), "{stopped:?}");
    assert_eq!((stopped[5], stopped[7]), ("running->stopped", "-"));
}

#[test]
fn the_state_at_any_point_is_shown() {
    let sandbox = a_life();
    let rows = timeline(&sandbox, &["--vm", "web"]);
    let running = rows.iter().find(|row| row["event"] == "Running").unwrap();
    for point in [running["seq"].to_string(), running["time"].as_str().unwrap().to_owned()] {
        let state = sandbox.cocoon(["replay", "--at", &point, "-o", "json"]).json();
        assert_eq!(state["seq"], running["seq"]);
        assert_eq!(state["vms"][0]["state"], "running");
        assert_eq!(state["vms"][0]["pid"], running["body"]["identity"]["pid"]);
        assert_eq!(state["images"][0]["name"], "guest");
    }
    let end = sandbox.cocoon(["replay", "--at", "now", "-o", "json"]).json();
    assert_eq!(end["vms"], Value::Array(Vec::new()));
    let start = sandbox.cocoon(["replay", "--at", "0"]);
    start.says(0, "nothing had happened yet");
    let table = sandbox.cocoon(["replay", "--at", &running["seq"].to_string()]);
    assert!(table.stdout.contains("web") && table.stdout.contains("running"), "{table:?}");
}

#[test]
fn a_view_of_one_vm_shows_no_other_and_what_cannot_choose_is_refused() {
    let sandbox = a_life();
    sandbox.create("db");
    let vms = |point: &str, vm: &str| {
        let state = sandbox.cocoon(["replay", "--at", point, "--vm", vm, "-o", "json"]).json();
        state["vms"].as_array().unwrap().len()
    };
    assert_eq!((vms("now", "db"), vms("now", "web"), vms("1", "db")), (1, 0, 0));
    let diff = ["replay", "--diff", "0", "now", "--vm", "db", "-o", "json"];
    assert_eq!(sandbox.cocoon(diff).json()["vms"][0]["name"], "db");
    let diff = ["replay", "--diff", "0", "now", "--vm", "web", "-o", "json"];
    assert_eq!(sandbox.cocoon(diff).json()["vms"], Value::Array(Vec::new()));
    let unknown = ["replay", "--at", "now", "--vm", "nobody"];
    sandbox.cocoon(unknown).says(1, "the journal knows no VM `nobody`");
    let filters: [&[&str]; 4] =
        [&["--since", "1"], &["--until", "1"], &["--actor", "rm"], &["--operation", "0"]];
    let views: [&[&str]; 4] =
        [&["--at", "now"], &["--diff", "0", "1"], &["--check"], &["--explain", "db"]];
    for view in views {
        for filter in filters {
            let ended = sandbox.cocoon(["replay"].iter().chain(view).chain(filter));
            ended.says(2, &format!("`{}` looks at", view[0]));
            ended.says(2, &format!("leave out {}", filter[0]));
            assert_eq!(ended.stdout, "");
        }
    }
    sandbox.cocoon(["replay", "--check", "--vm", "db"]).says(2, "leave out --vm");
    sandbox.cocoon(["replay", "--explain", "db", "--vm", "web"]).says(2, "leave out --vm");
}

#[test]
fn what_differs_between_two_points_is_shown() {
    let sandbox = a_life();
    let rows = timeline(&sandbox, &["--vm", "web"]);
    let seq = |event: &str| {
        rows.iter().find(|row| row["event"] == event).unwrap()["seq"].as_u64().unwrap()
    };
    let diff = |from: u64, to: u64| {
        let (from, to) = (from.to_string(), to.to_string());
        sandbox.cocoon(["replay", "--diff", &from, &to, "-o", "json"]).json()
    };
    let changed = diff(seq("Committed"), seq("Running"));
    let fields = changed["vms"][0]["fields"].as_array().unwrap();
    let state = fields.iter().find(|field| field["field"] == "state").unwrap();
    assert_eq!((&state["from"], &state["to"]), (&"created".into(), &"running".into()));
    assert_eq!(diff(0, seq("Committed"))["vms"][0]["change"], "added");
    assert_eq!(diff(seq("Committed"), seq("Deleted"))["vms"][0]["change"], "removed");
    assert_eq!(diff(seq("Deleted"), seq("Deleted"))["vms"], Value::Array(Vec::new()));
}

/// A `qemu-img` that never ends, and the moment at which it has begun.
struct Hang {
    dir: tempfile::TempDir,
}

impl Hang {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (fifo, script) = (dir.path().join("begun"), dir.path().join("qemu-img"));
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let text = format!("#!/bin/sh\necho begun > {}\nexec sleep 1000\n", fifo.display());
        std::fs::write(&script, text).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&script, mode).unwrap();
        Self { dir }
    }

    /// A `vm create` of this name that hangs while it makes its disk.
    fn create(&self, sandbox: &Sandbox, name: &str) -> Child {
        std::fs::write(sandbox.path().join("disk.raw"), vec![0; 1 << 20]).unwrap();
        assert_eq!(sandbox.cocoon(["image", "import", "disk", "disk.raw"]).code, 0);
        let mut paths = vec![self.dir.path().to_owned()];
        paths.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
        let mut command = sandbox.command(["vm", "create", "--name", name, "disk"]);
        command.env("PATH", std::env::join_paths(paths).unwrap()).stderr(Stdio::null());
        let child = command.spawn().unwrap();
        let begun = std::fs::read_to_string(self.dir.path().join("begun")).unwrap();
        assert_eq!(begun, "begun\n");
        child
    }
}

fn said<'a>(explanation: &'a Value, about: &str) -> &'a str {
    let statements = explanation["statements"].as_array().unwrap();
    let found = statements.iter().find(|statement| statement["about"] == about);
    found.and_then(|statement| statement["text"].as_str()).unwrap_or_default()
}

#[test]
fn a_killed_create_is_explained_and_its_death_is_told() {
    let (sandbox, hang) = (Sandbox::new(), Hang::new());
    let mut creator = hang.create(&sandbox, "web");
    let explain = || sandbox.cocoon(["replay", "--explain", "web", "-o", "json"]).json();
    let alive = explain();
    assert!(said(&alive, "life").starts_with("It lives: process"), "{alive}");
    assert!(said(&alive, "next").contains("busy"), "{alive}");
    creator.kill().unwrap();
    creator.wait().unwrap();
    let dead = explain();
    let owner = format!("vm-create[{}]", creator.id());
    assert!(said(&dead, "owner").contains(&owner), "{dead}");
    assert!(said(&dead, "life").starts_with("It is dead"), "{dead}");
    assert!(said(&dead, "owed").contains("prepare-storage"), "{dead}");
    assert!(said(&dead, "daemon").contains("none ever ran"), "{dead}");
    assert!(said(&dead, "next").contains("cocoon vm reconcile-stale-create web"), "{dead}");
    let outcome = sandbox.cocoon(["vm", "reconcile-stale-create", "web", "-o", "json"]).json();
    assert_eq!(outcome["outcome"], "collected", "{outcome}");
    let lines = timeline(&sandbox, &["--vm", "web"]);
    let kinds = field(&lines, "type");
    assert_eq!(kinds[..3], ["event", "death", "event"]);
    assert_eq!(lines[1]["actor"]["pid"], creator.id());
    assert_eq!(lines[1]["last_event"], "Prereserved");
    assert_eq!(lines[1]["found_by"]["verb"], "vm reconcile-stale-create");
    assert_eq!(lines[2]["event"], "ReclaimBegan");
    assert_eq!(lines.last().unwrap()["event"], "Deleted");
    let text = sandbox.cocoon(["replay"]).stdout;
    assert!(text.lines().any(|line| line.starts_with('!') && line.contains(&owner)), "{text}");
}

#[test]
fn a_journal_in_use_is_followed_until_the_reader_goes() {
    let sandbox = Sandbox::with_guest();
    let mut command = sandbox.command(["replay", "--follow", "--vm", "web", "-o", "json"]);
    let mut follower = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(follower.stdout.take().unwrap());
    sandbox.create("web");
    let mut seen = Vec::new();
    while seen.last().is_none_or(|event| event != "Committed") {
        let mut line = String::new();
        assert!(output.read_line(&mut line).unwrap() > 0, "it goes on: {seen:?}");
        let line: Value = serde_json::from_str(&line).unwrap();
        seen.push(line["event"].as_str().unwrap().to_owned());
    }
    assert_eq!(seen, ["Prereserved", "StoragePrepared", "Committed"]);
    drop(output);
    assert_eq!(
        follower.wait().unwrap().code(),
        Some(0),
        "nothing happens, and it ends all the same"
    );
}

#[test]
fn a_run_that_dies_while_its_vmm_starts_is_told_with_who_took_over() {
    let sandbox = Sandbox::new();
    let silent = ["--kernel", "vmlinuz", "--initrd", "initrd.img", "--cmdline", "cocoon.fake.hang"];
    assert_eq!(sandbox.cocoon(["image", "import", "guest"].iter().chain(&silent)).code, 0);
    assert_eq!(sandbox.cocoon(["replay"]).code, 0);
    let mut command = sandbox.command(["replay", "--follow", "--vm", "web", "-o", "json"]);
    let mut follower = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(follower.stdout.take().unwrap()).lines();
    let mut run = sandbox.command(["vm", "run", "--name", "web", "guest"]).spawn().unwrap();
    assert!(output.any(|line| line.unwrap().contains("\"event\":\"Launched\"")));
    run.kill().unwrap();
    run.wait().unwrap();
    let explained = sandbox.cocoon(["replay", "--explain", "web", "-o", "json"]).json();
    assert!(said(&explained, "life").starts_with("It is dead"), "{explained}");
    assert!(said(&explained, "vmm").ends_with("lives."), "{explained}");
    assert!(said(&explained, "owed").contains("await-vmm"), "{explained}");
    sandbox.cocoon(["vm", "rm", "--force", "web"]).says(0, "deleted");
    drop(output);
    assert_eq!(follower.wait().unwrap().code(), Some(0));
    let lines = timeline(&sandbox, &["--vm", "web"]);
    let death = lines.iter().position(|line| line["type"] == "death").unwrap();
    assert_eq!(lines[death]["actor"]["pid"], run.id());
    assert_eq!(lines[death]["last_event"], "Launched");
    assert_eq!(lines[death + 1]["event"], "OperationTakenOver");
    assert_eq!(lines[death + 1]["owed"], "settle-launch");
    assert_eq!(lines.last().unwrap()["event"], "Deleted");
    sandbox.cocoon(["replay", "--check"]).says(0, "");
}

#[test]
fn an_illegal_event_is_found_and_named() {
    let mut forger = Forger::new();
    let (one, two) = (Hand::new("vm create", 11), Hand::new("vm create", 22));
    forger.write(&one, &[vm(1, reserved("web"))]);
    forger.write(&one, &[vm(1, Committed {})]);
    forger.write(&two, &[vm(2, reserved("db"))]);
    let checked = replay(&forger.path(), &["--check", "-o", "json"]);
    checked.says(1, "V6 is broken at seq 2");
    let checked = checked.json();
    assert_eq!((&checked["sound"], &checked["events"]), (&false.into(), &2.into()));
    assert_eq!(checked["first_offender"]["event"], "Committed");
    assert_eq!(checked["first_offender"]["actor"]["pid"], 11);
    let told = replay(&forger.path(), &[]);
    assert!(told.stdout.contains("x       2"), "{}", told.stdout);
    assert!(told.stdout.contains("its storage is not prepared"), "{}", told.stdout);
}

#[test]
fn a_name_that_is_taken_twice_is_found() {
    let mut forger = Forger::new();
    let (one, two) = (Hand::new("vm create", 11), Hand::new("vm create", 22));
    forger.write(&one, &[vm(1, reserved("web"))]);
    forger.write(&one, &[vm(1, StoragePrepared {}), vm(1, Committed {})]);
    forger.write(&two, &[vm(2, reserved("web"))]);
    let checked = replay(&forger.path(), &["--check"]);
    checked.says(1, "V4 is broken at seq 4");
    assert!(checked.stdout.contains("vm-create[22]"), "{}", checked.stdout);
    let sound = Forger::new();
    let mut sound = sound;
    sound.write(&one, &[vm(1, reserved("web"))]);
    replay(&sound.path(), &["--check"]).says(0, "");
}

#[test]
fn reboots_and_clocks_that_were_set_are_told() {
    let mut forger = Forger::new();
    forger.write(&Hand::new("vm create", 11), &[vm(1, reserved("web"))]);
    forger.set_clock(1_767_225_600_000_000 - 3_600_000_000, 3_000_000);
    forger.write(&Hand::new("vm create", 22), &[vm(2, reserved("db"))]);
    forger.reboot(2);
    forger.set_clock(1_767_225_700_000_000, 500_000);
    forger.write(&Hand::new("vm create", 33), &[vm(3, reserved("cache"))]);
    let told = lines(&replay(&forger.path(), &["-o", "json"]));
    let types = field(&told, "type");
    assert_eq!(types, ["event", "clock-set", "event", "reboot", "death", "death", "event"]);
    let by = told[1]["by_us"].as_i64().unwrap();
    assert!((-3_602_000_000..-3_598_000_000).contains(&by), "{by}");
    let died: Vec<_> = told[4..6].iter().map(|death| &death["actor"]["pid"]).collect();
    assert_eq!(died, [11, 22]);
    let text = replay(&forger.path(), &[]).stdout;
    let marks: String = text.lines().skip(1).filter_map(|line| line.chars().next()).collect();
    assert_eq!(marks, " ~ ^!! ");
    assert!(text.contains("host rebooted") && text.contains("wall clock set back by 36"), "{text}");
    // A time names the last event before the first that is later, whatever the clock said in between.
    let at = replay(&forger.path(), &["--at", "2026-01-01T00:00:00.5Z", "-o", "json"]).json();
    assert_eq!(at["seq"], 2);
    let explained = replay(&forger.path(), &["--explain", "web", "-o", "json"]).json();
    assert!(said(&explained, "life").contains("rebooted"), "{explained}");
}

/// All files below a directory with their contents.
fn contents(dir: &Path) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.push((path.clone(), Vec::new()));
            all.extend(contents(&path));
        } else {
            all.push((path.clone(), std::fs::read(&path).unwrap()));
        }
    }
    all.sort();
    all
}

/// Flips a bit in the last byte of the frame that holds an event.
fn damage(journal: &Path, seq: u64) {
    use cocoon_journal::inspect::{Inspector, Piece};
    let seen = Inspector::open(journal).unwrap().find_map(|piece| match piece {
        Piece::Frame(seen) if seen.frame.last_seq() >= seq => Some(seen),
        _ => None,
    });
    let seen = seen.unwrap();
    let path = journal.join(format!("seg/{:020}.seg", seen.segment));
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[usize::try_from(seen.end()).unwrap() - 1] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn a_damaged_copy_is_shown_as_far_as_it_goes_and_stays_as_it_is() {
    let mut forger = Forger::new();
    for slot in 1..=6 {
        let hand = Hand::new("vm create", u32::from(slot));
        forger.write(&hand, &[vm(slot, reserved(&format!("web-{slot}")))]);
    }
    let journal = forger.path();
    damage(&journal, 3);
    let before = contents(&journal);
    let told = replay(&journal, &["-o", "json"]);
    told.says(1, "cocoon journal verify");
    let told = lines(&told);
    let seqs: Vec<_> = told
        .iter()
        .filter(|line| line["type"] == "event")
        .map(|line| line["seq"].as_u64().unwrap())
        .collect();
    assert_eq!(seqs, [1, 2, 4, 5, 6]);
    let damage: Vec<_> = told.iter().filter(|line| line["type"] == "damage").collect();
    assert_eq!(damage[0]["seq"], 3);
    assert!(damage[0]["what"].as_str().unwrap().contains("checksum"));
    assert_eq!(damage[1]["lost"], serde_json::json!([3, 3]));
    assert_eq!(told[1]["certain"], true);
    let text = replay(&journal, &[]).stdout;
    assert!(text.lines().any(|line| line.starts_with("x       3") && line.contains("DAMAGE")));
    for view in [&["--at", "6"][..], &["--check"], &["--diff", "1", "6"]] {
        replay(&journal, view).says(1, "");
    }
    assert_eq!(replay(&journal, &["--at", "2", "-o", "json"]).json()["certain"], true);
    assert_eq!(replay(&journal, &["--at", "6", "-o", "json"]).json()["certain"], false);
    assert_eq!(contents(&journal), before);
}

#[test]
fn a_root_in_use_is_left_alone_and_none_is_made() {
    let sandbox = a_life();
    let before = contents(&sandbox.root());
    for view in
        [&[][..], &["--at", "now"], &["--check"], &["--explain", "web"], &["--diff", "1", "9"]]
    {
        let ended = sandbox.cocoon(["replay"].iter().chain(view));
        assert_eq!(ended.code, 0, "{ended:?}");
    }
    let whole = sandbox.cocoon(["replay"]).stdout;
    for path in ["root", "root/journal", "root/journal/seg"] {
        let told = replay(&sandbox.path().join(path), &[]);
        assert_eq!((told.code, told.stdout == whole), (0, true), "{path}");
    }
    assert_eq!(contents(&sandbox.root()), before);
    let nowhere = sandbox.path().join("nowhere");
    replay(&nowhere, &[]).says(1, "holds no journal");
    assert!(!nowhere.exists());
}

#[test]
fn a_reader_that_goes_early_is_no_failure() {
    let mut forger = Forger::new();
    let hand = Hand::new("vm create", 1);
    for slot in 0..100 {
        let events: Vec<_> =
            (0..4).map(|n| vm(slot, reserved(&format!("web-{slot}-{n}")))).take(1).collect();
        forger.write(&hand, &events);
    }
    for view in [&[][..], &["-o", "json"], &["--at", "now", "-o", "json"]] {
        let mut command = Command::new(binary());
        command.env_clear().args(["replay", "--journal"]);
        command.arg(forger.path()).args(view).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut first = [0];
        let mut stdout = child.stdout.take().unwrap();
        stdout.read_exact(&mut first).unwrap();
        drop(stdout);
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(
            (child.wait().unwrap().code(), said.contains("Error")),
            (Some(0), false),
            "{said}"
        );
    }
}

/// Prints how long 100,000 events take; run it by hand, on a release build.
#[test]
#[ignore = "measures; proves nothing"]
fn a_hundred_thousand_events() {
    let mut forger = Forger::new();
    for n in 0..6250_u32 {
        let hand = Hand::new("vm create", n + 1);
        let id = cocoon_model::id::Id::from_random(std::array::from_fn(|at| {
            u8::try_from(n >> (5 * at.min(5)) & 31).unwrap()
        }));
        let event = |event| cocoon_model::event::Event::Vm(id, event);
        let mut events = vec![event(reserved(&format!("web-{n}")).into())];
        events.extend([event(StoragePrepared {}.into()), event(Committed {}.into())]);
        let token = cocoon_model::id::LaunchToken(1);
        let accelerator = cocoon_model::record::Accelerator::Tcg;
        for _ in 0..6 {
            events.push(event(cocoon_model::event::vm::LaunchBegan { token, accelerator }.into()));
            let reason = "no such binary".to_owned();
            events.push(event(cocoon_model::event::vm::LaunchFailed { reason }.into()));
        }
        events.push(event(cocoon_model::event::vm::LaunchBegan { token, accelerator }.into()));
        forger.write(&hand, &events);
    }
    for view in [&[][..], &["-o", "json"], &["--check"], &["--at", "now"]] {
        let began = std::time::Instant::now();
        let ended = replay(&forger.path(), view);
        let took = began.elapsed();
        eprintln!("{view:?}: {took:?}, {} bytes, code {}", ended.stdout.len(), ended.code);
    }
}
