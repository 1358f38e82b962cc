//! Roots and hosts that cannot be used: refused with the reason, before anything is written.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::sandbox::Sandbox;

fn is_empty(path: &Path) -> bool {
    path.read_dir().unwrap().next().is_none()
}

#[test]
fn another_programs_store_is_refused_by_every_verb() {
    let sandbox = Sandbox::new();
    let meta = sandbox.root().join("meta");
    std::fs::create_dir_all(&meta).unwrap();
    let verbs: [&[&str]; 5] = [
        &["vm", "list"],
        &["vm", "create", "guest"],
        &["image", "import", "a", "vmlinuz"],
        &["gc"],
        &["vm", "reconcile-stale-create", "a"],
    ];
    for words in verbs {
        sandbox.cocoon(words).says(1, "holds the store of another program");
    }
    assert!(is_empty(&meta));
    assert_eq!(sandbox.root().read_dir().unwrap().count(), 1, "nothing was written beside it");
}

#[test]
fn a_run_directory_with_another_programs_store_is_refused() {
    let sandbox = Sandbox::new();
    let run = sandbox.path().join("run");
    std::fs::create_dir_all(run.join("cloudhypervisor/db")).unwrap();
    let listed = sandbox.command(["vm", "list"]).env("COCOON_RUN_DIR", &run).output().unwrap();
    assert_eq!(listed.status.code(), Some(1));
    assert!(!sandbox.root().exists(), "nothing was written");
}

#[test]
fn a_root_that_cannot_be_made_is_refused_with_its_path() {
    let sandbox = Sandbox::new();
    let file = sandbox.path().join("file");
    std::fs::write(&file, "").unwrap();
    // Also refused to root, whom permissions do not stop.
    let root = file.join("root");
    let listed = sandbox.cocoon(["vm", "list", "--root-dir", root.to_str().unwrap()]);
    listed.says(1, root.to_str().unwrap());
    let listed = sandbox.cocoon(["vm", "list", "--root-dir", "/proc/cocoon"]);
    listed.says(1, "/proc/cocoon");
}

#[test]
fn a_root_that_others_may_change_is_refused() {
    let sandbox = Sandbox::new();
    let root = sandbox.root();
    std::fs::create_dir(&root).unwrap();
    std::fs::set_permissions(&root, std::fs::Permissions::from_mode(0o777)).unwrap();
    sandbox.cocoon(["vm", "list"]).says(1, "that its user alone may change");
}

#[test]
fn a_run_directory_that_is_too_long_for_sockets_is_refused() {
    let sandbox = Sandbox::with_guest();
    let run = sandbox.path().join("r".repeat(90));
    let mut create = sandbox.command(["vm", "create", "--name", "a", "guest"]);
    let created = create.env("COCOON_RUN_DIR", &run).output().unwrap();
    let said = String::from_utf8_lossy(&created.stderr);
    assert_ne!(created.status.code(), Some(0), "{said}");
    assert!(said.contains("107"), "{said}");
    assert!(said.contains("shorter run directory"), "{said}");
}

#[test]
fn two_roots_do_not_share_a_run_directory() {
    let sandbox = Sandbox::with_guest();
    let other = sandbox.path().join("other");
    let mut list = sandbox.command(["vm", "list", "--root-dir", other.to_str().unwrap()]);
    let listed = list.env("COCOON_RUN_DIR", sandbox.root().join("run")).output().unwrap();
    let said = String::from_utf8_lossy(&listed.stderr);
    assert_eq!(listed.status.code(), Some(1), "{said}");
    assert!(said.contains("another root"), "{said}");
}

#[test]
fn a_missing_hypervisor_names_the_package() {
    let sandbox = Sandbox::with_guest();
    let mut run = sandbox.command(["vm", "run", "--name", "a", "guest"]);
    let ran = run
        .env("COCOON_QEMU_BINARY", "qemu-system-x86_64")
        .env("PATH", sandbox.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(1), "{said}");
    assert!(said.contains("qemu-system-x86"), "{said}");
}

#[test]
fn a_configuration_that_cannot_be_understood_is_told() {
    let sandbox = Sandbox::new();
    let config = sandbox.path().join("config.toml");
    let with = |text: &str| {
        std::fs::write(&config, text).unwrap();
        sandbox.cocoon(["vm", "list", "--config", config.to_str().unwrap()])
    };
    with("pool_size = 'many'").says(1, "cannot be understood");
    with("pool_size = ").says(1, "cannot be understood");
    with("colour = 'red'").says(0, "`colour`");
    sandbox.cocoon(["vm", "list", "--config", "/no/such.toml"]).says(1, "/no/such.toml");
    let mut list = sandbox.command(["vm", "list"]);
    let listed = list.env("COCOON_POOL_SIZE", "many").output().unwrap();
    assert!(String::from_utf8_lossy(&listed.stderr).contains("COCOON_POOL_SIZE=many"));
    sandbox.cocoon(["vm", "list", "--log-level", "loud"]).says(2, "loud");
}

#[test]
fn a_root_whose_journal_is_gone_is_not_taken_for_an_empty_one() {
    let sandbox = Sandbox::with_guest();
    sandbox.create("web");
    let journal = sandbox.root().join("journal");
    let aside = sandbox.path().join("aside");
    std::fs::rename(&journal, &aside).unwrap();
    sandbox.cocoon(["vm", "list"]).says(1, "is gone");
    std::fs::create_dir(&journal).unwrap();
    sandbox.cocoon(["gc"]).says(1, "is gone");
    std::fs::remove_dir(&journal).unwrap();
    std::fs::rename(&aside, &journal).unwrap();
    sandbox.cocoon(["vm", "inspect", "web"]).says(0, "");
}
