//! `cocoon journal backup`, `restore`, `import`, `export --redact`, `upgrade` and `archive`.

use std::path::{Path, PathBuf};
use std::process::Command;

use cocoon::host::directory;
use cocoon::host::lock::{Holder, Locks};
use cocoon_journal::reserved::JournalEvent;
use serde_json::Value;

use crate::forge::{Forger, Hand, reserved, vm};
use crate::sandbox::{Ended, Sandbox, binary};
use crate::schemas::check;

impl Sandbox {
    /// Runs a command on another root of this sandbox.
    fn elsewhere(&self, root: &str, words: &[&str]) -> Ended {
        let mut command = self.command(words);
        command.env("COCOON_ROOT_DIR", self.path().join(root));
        Ended::of(command.output().unwrap())
    }

    fn stdout_to(&self, words: &[&str], file: &str) {
        let out = std::fs::File::create(self.path().join(file)).unwrap();
        assert!(self.command(words).stdout(out).status().unwrap().success(), "{words:?}");
    }

    fn events(&self, journal: &str) -> Vec<Value> {
        let lines = self.cocoon(["replay", "-o", "json", "--journal", journal]);
        assert_eq!(lines.code, 0, "{lines:?}");
        lines.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

fn journal_of(dir: &Path, words: &[&str]) -> Ended {
    let mut command = Command::new(binary());
    command.env_clear().args(words).arg("--journal").arg(dir);
    Ended::of(command.output().unwrap())
}

#[test]
fn a_backup_becomes_a_root() {
    let sandbox = Sandbox::with_guest();
    let id = sandbox.create("web");
    let made = sandbox.cocoon(["journal", "backup", "one.backup", "-o", "json"]);
    assert_eq!(made.code, 0, "{made:?}");
    let made = made.json();
    assert_eq!((&made["first_seq"], &made["events"]), (&1.into(), &made["last_seq"]));
    sandbox.create("later");
    let verified = sandbox.cocoon(["journal", "verify", "--journal", "one.backup"]);
    assert_eq!(verified.code, 0, "{verified:?}");
    assert!(verified.stdout.contains("backup: ") && verified.stdout.contains("nothing is wrong"));
    let restored = sandbox.elsewhere("new", &["journal", "restore", "one.backup", "-o", "json"]);
    assert_eq!(restored.code, 0, "{restored:?}");
    assert!(restored.stderr.contains("cocoon adopt"), "{restored:?}");
    let restored = restored.json();
    check("journal-restore.json", &restored);
    check("journal-backup.json", &made);
    assert_eq!(restored["outcome"], "restored");
    for field in ["root", "last_seq", "digest"] {
        assert_eq!(restored[field], made[field], "{field}");
    }
    let vms = sandbox.elsewhere("new", &["vm", "list", "-o", "json"]).json();
    assert_eq!((vms.as_array().unwrap().len(), &vms[0]["id"]), (1, &id.into()));
    assert_eq!(sandbox.elsewhere("new", &["journal", "verify"]).code, 0);
    let replay = sandbox.elsewhere("new", &["replay"]).stdout;
    assert!(replay.contains("JournalRestored") && !replay.contains(":later"), "{replay}");
    assert_eq!(
        sandbox.elsewhere("new", &["vm", "create", "--name", "on", "guest"]).code,
        1,
        "no blobs there"
    );
}

#[test]
fn a_backup_has_a_name_of_its_own_or_replaces_nothing() {
    let sandbox = Sandbox::with_guest();
    std::fs::create_dir(sandbox.path().join("backups")).unwrap();
    for _ in 0..2 {
        assert_eq!(sandbox.cocoon(["journal", "backup", "backups"]).code, 0);
    }
    let names: Vec<_> = std::fs::read_dir(sandbox.path().join("backups"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(names.len() == 2 && names.iter().all(|name| name.ends_with(".backup")), "{names:?}");
    assert_eq!(sandbox.cocoon(["journal", "backup", "a"]).code, 0);
    let before = std::fs::read(sandbox.path().join("a")).unwrap();
    sandbox.cocoon(["journal", "backup", "a"]).says(1, "exists already");
    assert_eq!(std::fs::read(sandbox.path().join("a")).unwrap(), before);
    sandbox.stdout_to(&["journal", "backup", "-"], "piped");
    assert_eq!(sandbox.cocoon(["journal", "verify", "--journal", "piped"]).code, 0);
    sandbox.cocoon(["journal", "backup", "nowhere/b"]).says(1, "cannot write the backup");
}

#[test]
fn a_root_with_a_journal_is_not_written_over() {
    let sandbox = Sandbox::with_guest();
    assert_eq!(sandbox.cocoon(["journal", "backup", "b"]).code, 0);
    sandbox.create("web");
    let refused = sandbox.cocoon(["journal", "restore", "b"]);
    refused.says(1, "is there already");
    let journal = sandbox.root().join("journal");
    let aside = format!("mv {} {}.before", journal.display(), journal.display());
    assert!(refused.stderr.contains(&aside), "{refused:?}");
    assert_eq!(sandbox.shell(&aside).code, 0);
    sandbox.cocoon(["vm", "list"]).says(1, "is gone");
    assert_eq!(sandbox.cocoon(["journal", "restore", "b"]).code, 0);
    let again = sandbox.cocoon(["journal", "restore", "b"]);
    assert_eq!(again.code, 0, "{again:?}");
    assert!(again.stdout.contains("already"), "{again:?}");
    assert_eq!(sandbox.cocoon(["vm", "list", "-o", "json"]).stdout, "[]\n");
    // What was moved aside is put back, for the VM in it to be removed.
    std::fs::remove_dir_all(&journal).unwrap();
    std::fs::rename(sandbox.root().join("journal.before"), journal).unwrap();
}

/// A daemon goes on with the journal that was moved away from under it.
#[test]
fn nothing_is_restored_while_a_daemon_lives() {
    let sandbox = Sandbox::with_guest();
    assert_eq!(sandbox.cocoon(["journal", "backup", "b"]).code, 0);
    let locks = Locks::open(&sandbox.root()).unwrap();
    let holder = Holder::own("daemon", uuid::Uuid::new_v4()).unwrap();
    let daemon = locks.daemon(&holder).unwrap().unwrap();
    std::fs::remove_dir_all(sandbox.root().join("journal")).unwrap();
    sandbox.cocoon(["journal", "restore", "b"]).says(1, "a daemon of this root lives");
    assert!(!sandbox.root().join("journal").exists());
    drop(daemon);
    assert_eq!(sandbox.cocoon(["journal", "restore", "b"]).code, 0);
}

#[test]
fn what_is_damaged_or_of_another_root_is_refused_and_nothing_is_placed() {
    let sandbox = Sandbox::with_guest();
    assert_eq!(sandbox.cocoon(["journal", "backup", "b"]).code, 0);
    let whole = std::fs::read(sandbox.path().join("b")).unwrap();
    let mut damaged = whole.clone();
    damaged[400] ^= 1;
    std::fs::write(sandbox.path().join("damaged"), damaged).unwrap();
    std::fs::write(sandbox.path().join("cut"), &whole[..whole.len() - 1]).unwrap();
    for file in ["damaged", "cut"] {
        sandbox.elsewhere("new", &["journal", "restore", file]).says(1, "use another copy");
        sandbox.cocoon(["journal", "verify", "--journal", file]).says(1, "use another copy");
        sandbox.cocoon(["replay", "--journal", file]).says(1, "damaged");
        assert!(!sandbox.path().join("new").exists());
    }
    assert_eq!(sandbox.elsewhere("other", &["vm", "list"]).code, 0);
    std::fs::remove_dir_all(sandbox.path().join("other/journal")).unwrap();
    sandbox.elsewhere("other", &["journal", "restore", "b"]).says(1, "choose another directory");
    let given = sandbox.cocoon(["journal", "restore", "root"]);
    given.says(2, "is a directory");
}

/// What is behind a damaged place is shown all the same.
#[test]
fn as_much_of_a_damaged_backup_is_shown_as_can_be_found() {
    let sandbox = Sandbox::new();
    root_with_segments(&sandbox, 9);
    assert_eq!(sandbox.cocoon(["journal", "backup", "b"]).code, 0);
    let whole = sandbox.events("b");
    let mut bytes = std::fs::read(sandbox.path().join("b")).unwrap();
    let frames: Vec<usize> = bytes
        .windows(4)
        .enumerate()
        .filter(|(_, word)| word == b"CCNF")
        .map(|(at, _)| at)
        .collect();
    bytes[frames[3] + 60] ^= 1;
    std::fs::write(sandbox.path().join("b"), bytes).unwrap();
    let shown = sandbox.cocoon(["replay", "-o", "json", "--journal", "b"]);
    shown.says(1, "damaged");
    let seqs = |events: Vec<Value>| -> Vec<u64> {
        let events = events.into_iter().filter(|line| line.get("event").is_some());
        events.map(|line| line["seq"].as_u64().unwrap()).filter(|seq| *seq != 4).collect()
    };
    let shown = shown.stdout.lines().map(|line| serde_json::from_str(line).unwrap());
    let (seqs, expected) = (seqs(shown.collect()), seqs(whole));
    assert_eq!(seqs, expected);
    assert_eq!(seqs.len(), 10);
    let verified = sandbox.cocoon(["journal", "verify", "--journal", "b", "-o", "json"]);
    verified.says(1, "use another copy");
    assert_eq!(verified.json()["problems"].as_array().unwrap().len(), 2, "the bytes, and the gap");
}

#[test]
fn an_export_becomes_a_root_in_either_form() {
    let sandbox = Sandbox::with_guest();
    sandbox.create("web");
    sandbox.stdout_to(&["journal", "export"], "lines");
    sandbox.stdout_to(&["journal", "export", "--binary"], "frames");
    let before = sandbox.events("root");
    let mut digests = Vec::new();
    for file in ["lines", "frames"] {
        assert_eq!(sandbox.events(file), before, "{file} is replayed as the root is");
        assert_eq!(sandbox.cocoon(["replay", "--check", "--journal", file]).code, 0);
        let root = format!("of-{file}");
        let imported = sandbox.elsewhere(&root, &["journal", "import", file, "-o", "json"]);
        assert_eq!(imported.code, 0, "{imported:?}");
        check("journal-restore.json", &imported.json());
        assert_eq!(imported.json()["outcome"], "imported");
        digests.push(imported.json()["digest"].clone());
        assert_eq!(sandbox.elsewhere(&root, &["journal", "verify"]).code, 0);
        let after = sandbox.events(&root);
        assert_eq!(after[..before.len()], before, "{file}");
        assert_eq!(after.last().unwrap()["event"], "JournalImported", "{file}");
        let vms = sandbox.elsewhere(&root, &["vm", "list", "-o", "json"]).json();
        assert_eq!(vms[0]["config"]["name"], "web");
        sandbox.elsewhere(&root, &["journal", "import", file]).says(1, "is there already");
    }
    assert_eq!(digests[0], digests[1], "both hold the same frames");
}

#[test]
fn what_cannot_become_a_root_says_what_it_is() {
    let sandbox = Sandbox::with_guest();
    sandbox.create("web");
    sandbox.stdout_to(&["journal", "export", "--binary"], "frames");
    sandbox.stdout_to(&["journal", "export", "--since", "2"], "part");
    sandbox.stdout_to(&["journal", "export", "--since", "900"], "nothing");
    sandbox.stdout_to(&["journal", "export", "--redact"], "redacted-lines");
    sandbox.stdout_to(&["journal", "export", "--redact", "--binary"], "redacted-frames");
    assert_eq!(sandbox.cocoon(["journal", "backup", "b"]).code, 0);
    let refused = |verb, file, words| {
        sandbox.elsewhere("new", &["journal", verb, file]).says(1, words);
        assert!(!sandbox.path().join("new").exists(), "{verb} {file}");
    };
    refused("restore", "frames", "cocoon journal import");
    refused("import", "b", "cocoon journal restore");
    refused("import", "redacted-lines", "redacted");
    refused("import", "redacted-frames", "redacted");
    refused("import", "vmlinuz", "no backup or export");
    refused("import", "part", "begins at seq 2");
    refused("import", "nothing", "holds no event");
}

#[test]
fn a_redacted_export_can_be_asked_but_names_nothing() {
    let sandbox = Sandbox::with_guest();
    sandbox.create("precious");
    sandbox.cocoon(["vm", "rm", "--force", "precious"]);
    sandbox.stdout_to(&["journal", "export", "--redact"], "lines");
    sandbox.stdout_to(&["journal", "export", "--redact", "--binary"], "frames");
    let here = sandbox.path().to_str().unwrap().to_owned();
    for file in ["lines", "frames"] {
        let content = std::fs::read(sandbox.path().join(file)).unwrap();
        let content = String::from_utf8_lossy(&content).into_owned();
        for private in ["precious", "guest", here.as_str(), "blake3:"] {
            assert!(!content.contains(private), "{private} is in {file}");
        }
        let hidden = here.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert!(!content.contains(&hidden), "nor in its bodies");
        let (before, after) = (sandbox.events("root"), sandbox.events(file));
        let told = |events: &[Value]| -> Vec<Value> {
            events
                .iter()
                .map(|event| serde_json::json!([event["seq"], event["event"], event["subject"]]))
                .collect()
        };
        assert_eq!(told(&before), told(&after), "{file}");
        let checked = sandbox.cocoon(["replay", "--check", "--journal", file]);
        assert_eq!(checked.code, 0, "{checked:?}");
        let timeline = sandbox.cocoon(["replay", "--journal", file, "--vm", "name-2"]).stdout;
        let known = sandbox.cocoon(["replay", "--journal", file, "--vm", "name-1"]).stdout;
        assert!(timeline.contains("Prereserved") || known.contains("Prereserved"));
    }
}

/// A root whose journal has short segments, as a backup of a forged one.
fn root_with_segments(sandbox: &Sandbox, events: u8) -> PathBuf {
    let mut forger = Forger::with_segments(5);
    for slot in 1..=events {
        let hand = Hand::new("vm create", u32::from(slot));
        forger.write(&hand, &[vm(slot, reserved(&format!("web-{slot}")))]);
    }
    let path = sandbox.path().join("forged.backup");
    let backup = ["journal", "backup", path.to_str().unwrap()];
    assert_eq!(journal_of(&forger.path(), &backup).code, 0);
    assert_eq!(sandbox.cocoon(["journal", "restore", "forged.backup"]).code, 0);
    sandbox.root()
}

#[test]
fn old_history_goes_and_all_questions_are_answered_still() {
    let sandbox = Sandbox::new();
    root_with_segments(&sandbox, 22);
    let names = |root: &str| -> Vec<String> {
        let vms = sandbox.elsewhere(root, &["replay", "--at", "now", "-o", "json"]).json();
        let names = vms["vms"].as_array().unwrap().iter();
        let mut names: Vec<_> = names.map(|vm| vm["config"]["name"].to_string()).collect();
        names.sort();
        names
    };
    let before = names("root");
    assert_eq!(before.len(), 22);
    let nothing = sandbox.cocoon(["journal", "archive", "--before", "3", "--to", "old"]);
    assert!(nothing.code == 0 && nothing.stdout.contains("nothing to move"), "{nothing:?}");
    let nothing = ["journal", "archive", "--before", "3", "--to", "old", "-o", "json"];
    check("journal-archive.json", &sandbox.cocoon(nothing).json());
    let archive = ["journal", "archive", "--before", "15", "--to", "old", "-o", "json"];
    let moved = sandbox.cocoon(archive);
    assert_eq!(moved.code, 0, "{moved:?}");
    let moved = moved.json();
    check("journal-archive.json", &moved);
    assert_eq!((&moved["from_seq"], &moved["first_seq"]), (&1.into(), &13.into()));
    assert_eq!((&moved["segments"], &moved["outcome"]), (&2.into(), &"archived".into()));
    assert_eq!(names("root"), before, "the state is what it was");
    let listed = sandbox.cocoon(["vm", "list", "-o", "json"]).json();
    assert_eq!(listed.as_array().unwrap().len(), 22);
    for words in [&["replay"][..], &["replay", "--since", "2"]] {
        let replay = sandbox.cocoon(words);
        assert_eq!(replay.code, 0, "{replay:?}");
        let old = sandbox.path().join("old");
        let begins =
            format!("history begins at seq 13; events up to 12 were moved to {}", old.display());
        assert!(replay.stdout.contains(&begins), "{replay:?}");
        assert!(replay.stdout.contains("JournalArchived"), "{replay:?}");
    }
    sandbox.cocoon(["journal", "export", "--since", "2"]).says(1, "history begins at seq 13");
    for root in ["root", "old"] {
        let checked = sandbox.cocoon(["replay", "--check", "--journal", root]);
        assert_eq!(checked.code, 0, "{root}: {checked:?}");
    }
    let verified = sandbox.cocoon(["journal", "verify"]);
    assert_eq!(verified.code, 0, "{verified:?}");
    assert!(verified.stdout.contains("events up to 12 were archived"), "{verified:?}");
    assert_eq!(sandbox.cocoon(["journal", "stats", "-o", "json"]).json()["first_seq"], 13);
    let old = sandbox.cocoon(["replay", "--journal", "old", "-o", "json"]);
    assert!(old.code == 0 && old.stdout.lines().count() == 12, "{old:?}");
    assert_eq!(sandbox.cocoon(["journal", "verify", "--journal", "old"]).code, 0);
    assert_eq!(sandbox.cocoon(["journal", "backup", "archived.backup"]).code, 0);
    let at = ["replay", "--at", "now", "-o", "json", "--journal", "archived.backup"];
    let seen = sandbox.cocoon(at).json();
    assert_eq!((&seen["certain"], seen["vms"].as_array().map(Vec::len)), (&true.into(), Some(22)));
    let checked = sandbox.cocoon(["replay", "--check", "--journal", "archived.backup"]);
    assert_eq!(checked.code, 0, "{checked:?}");
    let restored = sandbox.elsewhere("new", &["journal", "restore", "archived.backup"]);
    assert_eq!(restored.code, 0, "{restored:?}");
    assert_eq!(names("new"), before);
    sandbox.elsewhere("new", &["journal", "import", "archived.backup"]).says(1, "there already");
}

/// An archive that is lost is one thing; segments that are simply gone are damage.
#[test]
fn segments_that_are_gone_are_not_taken_for_archived_ones() {
    let sandbox = Sandbox::new();
    let root = root_with_segments(&sandbox, 12);
    std::fs::remove_file(root.join(format!("journal/seg/{:020}.seg", 1))).unwrap();
    let verified = sandbox.cocoon(["journal", "verify"]);
    verified.says(1, "damaged");
    assert!(verified.stdout.contains("were not archived"), "{verified:?}");
    sandbox.cocoon(["journal", "backup", "b"]).says(1, "is not there");
    let archive = ["journal", "archive", "--before", "9", "--to", "old"];
    assert_eq!(sandbox.cocoon(archive).code, 1);
}

#[test]
fn the_format_rises_only_where_there_is_a_newer_one() {
    let sandbox = Sandbox::with_guest();
    let told = sandbox.cocoon(["journal", "upgrade"]);
    assert!(told.code == 0 && told.stdout.contains("nothing to upgrade"), "{told:?}");
    let json = sandbox.cocoon(["journal", "upgrade", "-o", "json"]).json();
    check("journal-upgrade.json", &json);
    assert_eq!((&json["format"], &json["outcome"]), (&1.into(), &"already".into()));
    let mut forger = Forger::new();
    let event = JournalEvent::Upgraded { from: 1, to: 2, needs: "9.9.0".to_owned() };
    forger.write(&Hand::new("vm create", 1), &[vm(1, reserved("web"))]);
    forger.write_entries(&Hand::new("journal upgrade", 2), vec![event.to_entry().unwrap()]);
    let journal = forger.path();
    let root = journal.parent().unwrap();
    let uuid = cocoon_journal::verify::verify(&journal).unwrap().root.unwrap();
    directory::mark(root, directory::Kind::Root, uuid).unwrap();
    let segment = journal.join(format!("seg/{:020}.seg", 1));
    let before = std::fs::read(&segment).unwrap();
    for words in
        [&["journal", "upgrade"][..], &["vm", "list"], &["gc"], &["journal", "backup", "x"]]
    {
        sandbox.elsewhere(root.to_str().unwrap(), words).says(1, "9.9.0");
    }
    assert_eq!(std::fs::read(&segment).unwrap(), before);
    assert!(!sandbox.path().join("x").exists());
    let replay = sandbox.elsewhere(root.to_str().unwrap(), &["replay"]);
    assert!(replay.stdout.contains("it needs cocoon 9.9.0 or newer"), "it is shown: {replay:?}");
}
