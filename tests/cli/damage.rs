//! A damaged journal directory: every verb says which file it is and what to type, and never takes less for the whole.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::sandbox::{Ended, Sandbox};

/// Verbs that look, and verbs that change something.
const VERBS: [&[&str]; 8] = [
    &["vm", "list"],
    &["vm", "inspect", "a"],
    &["vm", "create", "--name", "c", "guest"],
    &["vm", "start", "a"],
    &["vm", "stop", "a"],
    &["vm", "rm", "b"],
    &["image", "list"],
    &["gc"],
];

fn journal(sandbox: &Sandbox) -> PathBuf {
    sandbox.root().join("journal")
}

fn segment(sandbox: &Sandbox) -> PathBuf {
    journal(sandbox).join(format!("seg/{:020}.seg", 1))
}

fn two_vms() -> Sandbox {
    let sandbox = Sandbox::with_guest();
    sandbox.create("a");
    sandbox.create("b");
    sandbox
}

fn names(sandbox: &Sandbox) -> Vec<String> {
    let listed = sandbox.cocoon(["vm", "list", "-o", "json"]).json();
    let name = |vm: &Value| vm["config"]["name"].as_str().unwrap().to_owned();
    listed.as_array().unwrap().iter().map(name).collect()
}

/// Every file below a directory with its content.
fn content(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(content(&path));
        } else if !path.ends_with("LOCK") {
            found.push((path.clone(), fs::read(path).unwrap()));
        }
    }
    found.sort();
    found
}

/// The verb failed, named the file and a way out, and panicked nowhere.
fn refused(ended: &Ended, file: &str) {
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.stderr.contains(file), "{file}: {ended:?}");
    for way in ["`cocoon journal verify`", "`cocoon journal repair`", "`cocoon journal restore`"] {
        assert!(ended.stderr.contains(way), "{way}: {ended:?}");
    }
    assert!(!ended.stderr.contains("panicked"), "{ended:?}");
}

fn every_verb_refuses(sandbox: &Sandbox, file: &str) {
    let before = content(&journal(sandbox).join("seg"));
    for verb in VERBS {
        refused(&sandbox.cocoon(verb), file);
    }
    assert_eq!(content(&journal(sandbox).join("seg")), before, "nothing was changed");
    assert_eq!(sandbox.cocoon(["journal", "verify"]).code, 1);
    assert_eq!(sandbox.cocoon(["replay", "--check"]).code, 1);
}

#[test]
fn flipped_bits_are_named_and_put_back() {
    let sandbox = two_vms();
    let path = segment(&sandbox);
    let whole = fs::read(&path).unwrap();
    for at in [200, whole.len() / 3, whole.len() / 2, whole.len() - 40] {
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&[fs::read(&path).unwrap()[at] ^ 4], at as u64).unwrap();
        every_verb_refuses(&sandbox, path.file_name().unwrap().to_str().unwrap());
        let dry = sandbox.cocoon(["journal", "repair", "--dry-run"]);
        assert!(dry.stdout.contains("would be put back: seq"), "{dry:?}");
        assert_ne!(fs::read(&path).unwrap()[..whole.len()], whole[..], "a dry run changes nothing");
        let done = sandbox.cocoon(["journal", "repair", "-o", "json"]);
        let report = done.json();
        assert_eq!((done.code, &report["lost"], &report["done"]), (0, &0.into(), &true.into()));
        assert_eq!(report["restored"][0]["source"], "one flipped bit");
        assert_eq!(fs::read(&path).unwrap()[..whole.len()], whole[..], "byte for byte");
        assert_eq!(names(&sandbox), ["a", "b"]);
        assert_eq!(sandbox.cocoon(["journal", "verify"]).code, 0);
    }
    let told = sandbox.cocoon(["replay"]);
    assert_eq!(told.stdout.matches("JournalSalvaged").count(), 4, "{told:?}");
    let nothing = sandbox.cocoon(["journal", "repair"]);
    assert_eq!((nothing.code, nothing.stdout.as_str()), (0, "nothing is wrong with the log\n"));
    let collected = sandbox.cocoon(["gc"]);
    assert_eq!(collected.code, 0, "nothing was lost, so nothing is in doubt: {collected:?}");
}

#[test]
fn a_file_cut_short_is_named_and_a_backup_has_the_rest() {
    let sandbox = two_vms();
    let backup = sandbox.path().join("before");
    fs::create_dir_all(backup.join("seg")).unwrap();
    fs::copy(segment(&sandbox), backup.join("seg").join(segment(&sandbox).file_name().unwrap()))
        .unwrap();
    let len = fs::metadata(segment(&sandbox)).unwrap().len();
    fs::OpenOptions::new().write(true).open(segment(&sandbox)).unwrap().set_len(len / 2).unwrap();
    every_verb_refuses(&sandbox, ".seg");
    let refused = sandbox.cocoon(["journal", "repair"]);
    refused.says(1, "are lost for good (seq ");
    assert!(refused.stdout.contains("lost: "), "{refused:?}");
    let from = sandbox.cocoon(["journal", "repair", "--from", backup.to_str().unwrap()]);
    assert_eq!(from.code, 0, "{from:?}");
    assert!(from.stdout.contains("from: copy"), "{from:?}");
    assert_eq!(names(&sandbox), ["a", "b"]);
    assert_eq!(sandbox.cocoon(["journal", "verify"]).code, 0);
}

#[test]
fn a_loss_is_gone_on_from_only_when_it_is_accepted() {
    let sandbox = two_vms();
    let path = segment(&sandbox);
    let len = fs::metadata(&path).unwrap().len();
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(len - len / 4).unwrap();
    let report = sandbox.cocoon(["journal", "repair", "--dry-run", "-o", "json"]);
    assert_eq!(report.code, 1);
    let report = report.json();
    let (first, last) = (&report["losses"][0]["first_seq"], &report["losses"][0]["last_seq"]);
    assert_eq!(report["lost"].as_u64(), Some(last.as_u64().unwrap() - first.as_u64().unwrap() + 1));
    assert_eq!(report["goes_on"]["seq"].as_u64(), Some(first.as_u64().unwrap() - 1));
    let done = sandbox.cocoon(["journal", "repair", "--accept-loss", "-o", "json"]);
    assert_eq!(done.code, 0, "{done:?}");
    let kept = PathBuf::from(done.json()["kept"].as_str().unwrap());
    assert!(kept.join("seg").join(path.file_name().unwrap()).is_file(), "the damaged file is kept");
    assert_eq!(sandbox.cocoon(["journal", "verify"]).code, 0);
    let left = sandbox.cocoon(["replay", "--journal", kept.to_str().unwrap()]);
    assert!(left.stdout.lines().count() > 3, "what is left of it can be read: {left:?}");
    let told = sandbox.cocoon(["replay"]);
    assert!(told.stdout.contains("JournalSalvaged"), "{told:?}");
    sandbox.cocoon(["gc"]).says(1, "`cocoon adopt");
    assert_eq!(sandbox.cocoon(["adopt", "--yes"]).code, 0);
    assert_eq!(sandbox.cocoon(["gc"]).code, 0, "the root is confirmed");
}

#[test]
fn what_is_no_file_is_named_and_cleared() {
    let sandbox = two_vms();
    let path = segment(&sandbox);
    fs::rename(&path, sandbox.path().join("elsewhere")).unwrap();
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    for verb in VERBS {
        let ended = sandbox.cocoon(verb);
        ended.says(1, "it is a named pipe");
        assert!(ended.stderr.contains("`cocoon journal"), "{ended:?}");
    }
}
