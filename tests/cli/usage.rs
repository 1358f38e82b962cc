//! Wrong usage, and references that mean nothing or too much.

use cocoon::engine::{Caller, Engine};
use cocoon::settings::{Given, Settings};
use cocoon_model::command::Command;
use cocoon_model::record::OperationKind;

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
    let cases: [(&[&str], &str); 17] = [
        (&["--memory", "1M"], "at least 64M"),
        (&["--memory", "lots"], "as in 512M"),
        (&["--memory=-1G"], "is not a size"),
        (&["--memory", "100000000T"], "is not a size"),
        (&["--storage", "1M"], "at least 16M"),
        (&["--storage", "16777217"], "512 bytes"),
        (&["--cpu", "0"], "--cpu 0 cannot be"),
        (&["--cpu", "100000"], "--cpu 100000 cannot be"),
        (&["--nics", "2"], "0 or 1"),
        (&["--memory", "-1"], "'-1' for '--memory"),
        (&["--memory", "1e9"], "as in 512M"),
        (&["--memory", "16777216T"], "2^64 bytes or more"),
        (&["--memory", "8000000T"], "at most 64T"),
        (&["--storage", "-1G"], "'-1G' for '--storage"),
        (&["--cpu", "-1"], "'-1' for '--cpu"),
        (&["--nics", "-1"], "'-1' for '--nics"),
        (&["--timeout", "-1"], "'-1' for '--timeout"),
    ];
    for (flags, said) in cases {
        let words = ["vm", "create", "--name", "a"].iter().chain(flags).chain(&["guest"]);
        sandbox.cocoon(words).says(2, said);
    }
    let least = ["vm", "create", "--name", "a", "--memory", "64M", "--storage", "16M", "guest"];
    assert_eq!(sandbox.cocoon(least).code, 0);
}

#[test]
fn command_lines_that_no_kernel_takes_are_refused_before_anything_is_copied() {
    let sandbox = Sandbox::new();
    let import = |cmdline: &str| {
        let words = ["image", "import", "a", "--kernel", "vmlinuz", "--initrd", "initrd.img"];
        sandbox.cocoon(words.into_iter().chain(["--cmdline", cmdline]))
    };
    import(&"x".repeat(2048)).says(2, "--cmdline has 2048 bytes; Linux takes at most 2047");
    import(&"x".repeat(100_000)).says(2, "--cmdline has 100000 bytes");
    import("quiet\ninit=/bin/sh").says(2, "--cmdline has a control character");
    assert_eq!(sandbox.cocoon(["image", "list", "-o", "json"]).stdout, "[]\n");
    assert_eq!(import(&"x".repeat(2047)).code, 0);
    assert_eq!(sandbox.cocoon(["vm", "run", "--name", "a", "a"]).code, 0);
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

/// Two VMs whose ids begin alike; ids are random, so these are chosen through the library.
fn alike(sandbox: &Sandbox) -> [String; 2] {
    let model = sandbox.create("model").parse().unwrap();
    let given = Given { root_dir: Some(sandbox.root()), ..Given::default() };
    let engine = Engine::open(Settings::load(given, None).unwrap()).unwrap();
    let record = engine.vm(model).unwrap().unwrap();
    ["first", "second"].map(|name| {
        let id = format!("abcdef{:a<20}", &name[..1]);
        let command = Command::Prereserve {
            id: id.parse().unwrap(),
            name: name.to_owned(),
            image: record.core.image,
            kind: OperationKind::Create,
            spec: Box::new(record.spec.clone()),
        };
        let caller = Caller::new("test", None).unwrap();
        engine.ledger().submit(&caller, &command).unwrap();
        id
    })
}

#[test]
fn an_ambiguous_reference_names_its_candidates() {
    let sandbox = Sandbox::with_guest();
    let [first, second] = alike(&sandbox);
    for words in [["vm", "inspect", "abc"], ["vm", "rm", "abcdef"]] {
        let ended = sandbox.cocoon(words);
        ended.says(1, "ambiguous ref");
        ended.says(1, &format!("{first} (first)"));
        ended.says(1, &format!("{second} (second)"));
    }
    assert_eq!(sandbox.cocoon(["vm", "inspect", "abcdeff"]).json()["id"], first.as_str());
    sandbox.cocoon(["vm", "inspect", "ab"]).says(1, "vm not found");
}

#[test]
fn a_name_comes_before_the_beginning_of_an_id() {
    let sandbox = Sandbox::with_guest();
    let id = sandbox.create("first");
    let prefix = &id[..8];
    assert_eq!(sandbox.cocoon(["vm", "inspect", prefix]).json()["id"], id.as_str());
    let named = sandbox.create(prefix);
    assert_eq!(sandbox.cocoon(["vm", "inspect", prefix]).json()["id"], named.as_str());
}

#[test]
fn a_file_that_is_no_disk_is_refused_before_it_is_copied() {
    let sandbox = Sandbox::new();
    for (name, content) in
        [("odd", &[1_u8; 513][..]), ("empty", &[]), ("archive", &[0x1f, 0x8b, 8, 0])]
    {
        std::fs::write(sandbox.path().join(name), content).unwrap();
        let ended = sandbox.cocoon(["image", "import", "disk", name]);
        ended.says(2, name);
        assert!(!ended.stderr.contains("blobs"), "it speaks of the user's file: {ended:?}");
    }
    let blobs = sandbox.root().join("images/blobs");
    assert_eq!(blobs.read_dir().unwrap().count(), 0);
    sandbox.cocoon(["image", "import", "disk", "/nowhere"]).says(1, "/nowhere");
    sandbox.cocoon(["image", "import", "disk", "/dev"]).says(2, "/dev is not a file");
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
