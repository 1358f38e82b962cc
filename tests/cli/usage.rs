//! Wrong usage, and references that mean nothing or too much.

use crate::sandbox::Sandbox;

#[test]
fn wrong_usage_ends_with_2_and_a_word_of_help() {
    let sandbox = Sandbox::new();
    let cases: [(&[&str], &str); 10] = [
        (&[], "Usage"),
        (&["vm"], "Usage"),
        (&["vm", "rum"], "run"),
        (&["vm", "run"], "<IMAGE>"),
        (&["vm", "rm"], "VM"),
        (&["vm", "list", "--nope"], "--nope"),
        (&["vm", "list", "-o", "yaml"], "json"),
        (&["vm", "stop", "a", "--timeout", "soon"], "write it as in 500ms"),
        (&["image", "import", "a"], "Usage"),
        (&["image", "import", "a", "--kernel", "k"], "--initrd"),
    ];
    for (words, said) in cases {
        let ended = sandbox.cocoon(words);
        ended.says(2, said);
        assert_eq!(ended.stdout, "", "{words:?}");
    }
}

#[test]
fn sizes_that_cannot_be_are_refused_with_what_can() {
    let sandbox = Sandbox::with_guest();
    let cases: [(&[&str], &str); 9] = [
        (&["--memory", "1M"], "at least 64M"),
        (&["--memory", "lots"], "as in 512M"),
        (&["--memory=-1G"], "is not a size"),
        (&["--memory", "100000000T"], "is not a size"),
        (&["--storage", "1M"], "at least 16M"),
        (&["--storage", "16777217"], "512 bytes"),
        (&["--cpu", "0"], "--cpu 0 cannot be"),
        (&["--cpu", "100000"], "--cpu 100000 cannot be"),
        (&["--nics", "2"], "0 or 1"),
    ];
    for (flags, said) in cases {
        let words = ["vm", "create", "--name", "a"].iter().chain(flags).chain(&["guest"]);
        sandbox.cocoon(words).says(2, said);
    }
    let least = ["vm", "create", "--name", "a", "--memory", "64M", "--storage", "16M", "guest"];
    assert_eq!(sandbox.cocoon(least).code, 0);
}

#[test]
fn names_that_cannot_be_are_refused() {
    let sandbox = Sandbox::with_guest();
    let long = "a".repeat(64);
    for name in ["", ".", "..", "-a", "a/b", "a b", "a\nb", "ä", &long] {
        let made = sandbox.cocoon(["vm", "create", &format!("--name={name}"), "guest"]);
        assert_eq!(made.code, 2, "{name:?}: {made:?}");
        let imported = sandbox.cocoon(["image", "import", "--", name, "vmlinuz"]);
        assert_ne!(imported.code, 0, "{name:?}: {imported:?}");
    }
    assert_eq!(sandbox.cocoon(["vm", "list", "-o", "json"]).stdout, "[]\n");
}

#[test]
fn an_unknown_vm_is_not_found_by_any_verb() {
    let sandbox = Sandbox::with_guest();
    let verbs: [&[&str]; 9] = [
        &["vm", "inspect", "nobody"],
        &["vm", "logs", "nobody"],
        &["vm", "console", "nobody"],
        &["vm", "start", "nobody"],
        &["vm", "stop", "nobody"],
        &["vm", "rm", "nobody"],
        &["vm", "rm", "--force", "nobody"],
        &["vm", "wait", "nobody"],
        &["vm", "inspect", "no"],
    ];
    for words in verbs {
        sandbox.cocoon(words).says(1, "vm not found");
    }
    sandbox.cocoon(["image", "inspect", "nothing"]).says(1, "image not found");
    sandbox.cocoon(["image", "rm", "nothing"]).says(1, "image not found");
    sandbox.cocoon(["vm", "create", "nothing"]).says(1, "image not found");
    assert_eq!(sandbox.cocoon(["vm", "wait", "nobody", "--state", "gone"]).code, 0);
}

#[test]
fn an_ambiguous_reference_names_its_candidates() {
    let sandbox = Sandbox::with_guest();
    // Beginnings of three characters out of 32 meet after a few hundred ids; two of a name and an id need none.
    let id = sandbox.create("first");
    let prefix = &id[..8];
    assert_eq!(sandbox.cocoon(["vm", "inspect", prefix]).json()["id"], id.as_str());
    let named = sandbox.create(prefix);
    let found = sandbox.cocoon(["vm", "inspect", prefix]).json();
    assert_eq!(found["id"], named.as_str(), "a name comes before the beginning of an id");
    sandbox.cocoon(["vm", "inspect", &id[..2]]).says(1, "vm not found");
}

#[test]
fn a_name_is_taken_once() {
    let sandbox = Sandbox::with_guest();
    let id = sandbox.create("web");
    let again = sandbox.cocoon(["vm", "create", "--name", "web", "guest"]);
    again.says(1, "already exists");
    again.says(1, &id);
    again.says(1, "Hint: ");
}

#[test]
fn an_image_in_use_names_its_users() {
    let sandbox = Sandbox::with_guest();
    sandbox.create("web");
    sandbox.cocoon(["image", "rm", "guest"]).says(1, "in use by web");
    assert_eq!(sandbox.cocoon(["vm", "rm", "web"]).code, 0);
    assert_eq!(sandbox.cocoon(["image", "rm", "guest"]).code, 0);
}
