//! Verbs and flags of the contract that come later: they parse, change nothing, and say what is missing.

use crate::sandbox::Sandbox;

#[test]
fn later_verbs_say_what_is_missing() {
    let sandbox = Sandbox::new();
    let verbs: [(&[&str], &str); 12] = [
        (&["vm", "clone", "--name", "b", "snap"], "snapshots are not there yet"),
        (&["vm", "restore", "a", "snap"], "snapshots are not there yet"),
        (&["vm", "hibernate", "a"], "snapshots are not there yet"),
        (&["vm", "exec", "a", "--", "ls", "-l"], "the guest agent is not there yet"),
        (&["vm", "reseed", "a"], "the guest agent is not there yet"),
        (&["vm", "export", "a", "ref"], "not there yet"),
        (&["vm", "disk", "attach", "a", "--path", "d"], "devices cannot be attached yet"),
        (&["vm", "net", "a", "--nics", "2"], "fixed at creation"),
        (&["vm", "debug", "guest"], "cocoon vm logs"),
        (&["snapshot", "save", "a", "--name", "s"], "snapshots are not there yet"),
        (&["image", "pull", "ubuntu"], "cocoon image import"),
        (&["meta", "init"], "records live in a journal"),
    ];
    for (words, missing) in verbs {
        let ended = sandbox.cocoon(words);
        ended.says(1, missing);
        assert_eq!(ended.stdout, "", "{words:?}");
    }
    assert!(!sandbox.root().exists());
}

#[test]
fn later_flags_are_refused_by_name_and_nothing_is_made() {
    let sandbox = Sandbox::with_guest();
    let flags: [&[&str]; 9] = [
        &["--fc"],
        &["--network", "net"],
        &["--bridge", "br0"],
        &["--user", "u"],
        &["--windows"],
        &["--hugepages"],
        &["--data-disk", "size=1G"],
        &["--cpu-weight", "100"],
        &["--cpuset-cpus", "0"],
    ];
    for flag in flags {
        let words = ["vm", "create", "--name", "a"].iter().chain(flag).chain(&["guest"]);
        sandbox.cocoon(words).says(1, &format!("{}: ", flag[0]));
    }
    assert_eq!(sandbox.cocoon(["vm", "list", "-o", "json"]).stdout, "[]\n");
}
