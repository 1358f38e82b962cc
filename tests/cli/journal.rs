//! `cocoon journal`: verify, stats, export.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::forge::{Forger, Hand, reserved, vm};
use crate::sandbox::{Ended, Sandbox, binary};

fn journal(dir: &Path, verb: &str, more: &[&str]) -> Ended {
    let mut command = Command::new(binary());
    command.env_clear();
    command.args(["journal", verb, "--journal"]).arg(dir).args(more);
    Ended::of(command.output().unwrap())
}

/// A journal of `events` reservations.
fn forged(events: u8) -> Forger {
    let mut forger = Forger::new();
    for slot in 1..=events {
        forger.write(
            &Hand::new("vm create", u32::from(slot)),
            &[vm(slot, reserved(&format!("web-{slot}")))],
        );
    }
    forger
}

fn segment(forger: &Forger) -> std::path::PathBuf {
    forger.path().join(format!("seg/{:020}.seg", 1))
}

#[test]
fn a_sound_journal_is_called_sound() {
    let sandbox = Sandbox::with_guest();
    sandbox.create("web");
    let text = sandbox.cocoon(["journal", "verify"]);
    assert_eq!(text.code, 0, "{text:?}");
    assert!(text.stdout.contains("nothing is wrong"), "{text:?}");
    let report = sandbox.cocoon(["journal", "verify", "-o", "json"]).json();
    assert_eq!(report["sound"], true);
    assert_eq!(report["last_seq"], report["durable_seq"]);
    assert_eq!(report["events"], report["last_seq"]);
    assert_eq!(report["segments"][0]["sealed"], false);
}

#[test]
fn damage_is_named_with_the_next_command() {
    let forger = forged(5);
    let path = segment(&forger);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[400] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let text = journal(&forger.path(), "verify", &[]);
    text.says(1, "damaged");
    assert!(text.stdout.contains(path.to_str().unwrap()), "{text:?}");
    assert!(text.stdout.contains("next: `cocoon journal repair --dry-run`"), "{text:?}");
    let report = journal(&forger.path(), "verify", &["-o", "json"]).json();
    assert_eq!(report["sound"], false);
    assert!(report["problems"][0]["next"].as_str().unwrap().contains("cocoon journal repair"));
    let export = journal(&forger.path(), "export", &[]);
    export.says(1, "passed over");
    assert_eq!(export.stdout.lines().count(), 4 + 1, "and the end");
}

#[test]
fn an_unfinished_tail_is_no_damage() {
    let forger = forged(3);
    let path = segment(&forger);
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, [&whole[..], b"CCNF unfinished"].concat()).unwrap();
    let text = journal(&forger.path(), "verify", &[]);
    assert_eq!(text.code, 0, "{text:?}");
    assert!(text.stdout.contains("leftover: "), "{text:?}");
    assert!(text.stdout.contains("next: nothing"), "{text:?}");
}

#[test]
fn a_log_that_lost_what_the_store_has_is_damaged() {
    let forger = forged(5);
    forger.feed_store();
    assert_eq!(journal(&forger.path(), "verify", &["-o", "json"]).json()["store_seq"], 5);
    let stats = journal(&forger.path(), "stats", &["-o", "json"]).json();
    assert_eq!((&stats["store_seq"], &stats["store_lag"]), (&5.into(), &0.into()));
    let path = segment(&forger);
    let bytes = std::fs::read(&path).unwrap();
    let (.., last) = cocoon_journal::inspect::Inspector::open(&forger.path())
        .unwrap()
        .filter_map(|piece| match piece {
            cocoon_journal::inspect::Piece::Frame(seen) => Some((seen.segment, seen.offset)),
            _ => None,
        })
        .last()
        .unwrap();
    std::fs::write(&path, &bytes[..usize::try_from(last).unwrap()]).unwrap();
    std::fs::remove_file(forger.path().join("HEAD")).unwrap();
    let text = journal(&forger.path(), "verify", &[]);
    text.says(1, "damaged at one place");
    assert!(
        text.stdout.contains("sled, offset 0, seq 5: it includes seq 5, and the log ends at seq 4")
    );
    let mut check = Command::new(binary());
    check.env_clear().args(["replay", "--check", "--journal"]).arg(forger.path());
    let checked = Ended::of(check.output().unwrap());
    checked.says(1, "the journal is damaged");
    assert!(checked.stdout.contains("and the log ends at seq 4"), "{checked:?}");
}

#[test]
fn events_of_a_newer_version_are_told_apart_from_damage() {
    let mut forger = forged(1);
    let subject = cocoon_journal::Subject::new("vm/x").unwrap();
    let entry = cocoon_journal::Entry { kind: 59_999, version: 1, subject, body: vec![1, 2] };
    forger.write_entries(&Hand::new("vm fly", 9), vec![entry]);
    let text = journal(&forger.path(), "verify", &[]);
    assert_eq!(text.code, 1);
    assert!(text.stdout.contains("next: install the version of cocoon"), "{text:?}");
    let mut replay = Command::new(binary());
    replay.env_clear().args(["replay", "--journal"]);
    let told = Ended::of(replay.arg(forger.path()).output().unwrap());
    assert_eq!(told.code, 0);
    assert!(told.stdout.contains("kind-59999"), "{told:?}");
    let lines = journal(&forger.path(), "export", &[]).stdout;
    let last: Value = serde_json::from_str(lines.lines().rev().nth(1).unwrap()).unwrap();
    assert_eq!((&last["kind"], &last["body"]), (&59_999.into(), &"0102".into()));
}

#[test]
fn figures_count_what_is_there() {
    let forger = forged(7);
    let figures = journal(&forger.path(), "stats", &["-o", "json"]).json();
    assert_eq!((&figures["events"], &figures["frames"]), (&7.into(), &7.into()));
    assert_eq!((&figures["boots"], &figures["operations"]), (&1.into(), &7.into()));
    assert_eq!(figures["kinds"][0]["name"], "Prereserved");
    assert_eq!((&figures["checkpoint_lag"], &figures["store_lag"]), (&7.into(), &7.into()));
    let bytes = std::fs::metadata(segment(&forger)).unwrap().len();
    assert_eq!(figures["disk"]["seg"], bytes);
    assert!(figures["disk_bytes"].as_u64().unwrap() > bytes);
    let text = journal(&forger.path(), "stats", &[]).stdout;
    assert!(text.contains("7 events behind") || text.contains("none"), "{text}");
}

#[test]
fn what_is_exported_can_be_read() {
    let forger = forged(4);
    let lines = journal(&forger.path(), "export", &["--since", "2", "--until", "3"]).stdout;
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2 + 1, "and the end");
    assert_eq!((&lines[0]["seq"], &lines[0]["name"]), (&2.into(), &"Prereserved".into()));
    assert_eq!(lines[0]["event"]["name"], "web-2");
    let mut command = Command::new(binary());
    command.env_clear().args(["journal", "export", "--binary"]);
    let bytes = command.arg("--journal").arg(forger.path()).output().unwrap().stdout;
    let frames = cocoon_journal::bundle::BundleReader::new(bytes.as_slice()).unwrap();
    assert_eq!(frames.map(Result::unwrap).count(), 4);
}

#[test]
fn a_root_that_is_not_there_is_not_made() {
    let sandbox = Sandbox::new();
    for verb in ["verify", "stats", "export", "upgrade"] {
        sandbox.cocoon(["journal", verb]).says(1, "holds no journal");
    }
    sandbox.cocoon(["journal", "backup", "file"]).says(1, "holds no journal");
    let archive = ["journal", "archive", "--before", "9", "--to", "old"];
    sandbox.cocoon(archive).says(1, "holds no journal");
    sandbox.cocoon(["journal", "restore", "vmlinuz"]).says(1, "no backup or export");
    sandbox.cocoon(["journal", "import", "vmlinuz"]).says(1, "no backup or export");
    assert!(!sandbox.root().exists());
}

#[test]
fn a_journal_that_cannot_be_read_is_told_by_what_is_in_the_way() {
    let sandbox = Sandbox::with_guest();
    let root = sandbox.root();
    std::fs::create_dir(sandbox.path().join("empty")).unwrap();
    let verbs: [&[&str]; 4] =
        [&["journal", "stats"], &["journal", "verify"], &["replay"], &["replay", "--check"]];
    for verb in verbs {
        let ended = sandbox.cocoon(verb.iter().copied().chain(["--journal", "/dev/zero"]));
        ended.says(1, "/dev/zero is neither a directory nor a file");
        sandbox
            .cocoon(verb.iter().copied().chain(["--journal", "empty"]))
            .says(1, "holds no journal");
        sandbox
            .cocoon(verb.iter().copied().chain(["--journal", "none"]))
            .says(1, "holds no journal");
    }
    if !nix::unistd::geteuid().is_root() {
        return eprintln!("skipped: only root can ask as somebody else");
    }
    // Others get as far as the journal, and no further.
    for dir in [sandbox.path(), &root] {
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(dir, open).unwrap();
    }
    let copy = sandbox.path().join("cocoon");
    std::fs::copy(binary(), &copy).unwrap();
    for verb in verbs {
        let mut nobody = Command::new("setpriv");
        nobody.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&copy).args(verb);
        let ended = Ended::of(sandbox.settle(&mut nobody).output().unwrap());
        let dir = root.join("journal");
        let told = format!("user 65534 may not read {}, which belongs to user 0", dir.display());
        ended.says(1, &told);
    }
}
