//! Directories that are cut short, foreign, linked and mounted.

use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;
use crate::host::test_support::{Role, say};
use cocoon_model::record::Place;

const ROOT: Uuid = Uuid::from_u128(11);
const OTHER: Uuid = Uuid::from_u128(12);

fn certificate() -> BirthCertificate {
    BirthCertificate::new(ROOT, "a")
}

fn born() -> (tempfile::TempDir, PathBuf) {
    let run = tempfile::tempdir().unwrap();
    let path = run.path().join("a");
    assert_eq!(create(&path, &certificate()).unwrap(), Created::New);
    (run, path)
}

/// Every path below a directory.
fn listing(path: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path).unwrap() {
        let entry = entry.unwrap();
        found.push(entry.path());
        if entry.file_type().unwrap().is_dir() {
            found.extend(listing(&entry.path()));
        }
    }
    found.sort();
    found
}

#[test]
fn a_directory_is_born_private_and_certified_and_removed_whole() {
    let (run, path) = born();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
    let Found::Certified(found) = inspect(&path).unwrap() else { panic!("not certified") };
    assert_eq!((found.root, found.vm.as_str()), (ROOT, "a"));
    assert_eq!(create(&path, &certificate()).unwrap(), Created::Existing);
    std::fs::create_dir_all(path.join("x/y/z")).unwrap();
    std::fs::write(path.join("x/y/disk"), "data").unwrap();
    let socket = std::os::unix::net::UnixListener::bind(path.join("api.sock")).unwrap();
    assert_eq!(remove(&path, ROOT, "a").unwrap(), Removed::Removed);
    assert_eq!(remove(&path, ROOT, "a").unwrap(), Removed::NothingThere);
    assert_eq!(listing(run.path()), Vec::<PathBuf>::new());
    drop(socket);
}

#[test]
fn foreign_and_uncertified_directories_are_left_alone() {
    let (run, path) = born();
    std::fs::write(path.join("disk"), "data").unwrap();
    let before = listing(run.path());
    for (root, vm) in [(OTHER, "a"), (ROOT, "b")] {
        let error = remove(&path, root, vm).unwrap_err();
        assert!(matches!(error, DirectoryError::Foreign { .. }), "{error}");
        let error = create(&path, &BirthCertificate::new(root, vm)).unwrap_err();
        assert!(matches!(error, DirectoryError::Foreign { .. }), "{error}");
    }
    std::fs::remove_file(path.join(".cocoon-birth.json")).unwrap();
    assert_eq!(inspect(&path).unwrap(), Found::Uncertified);
    let error = remove(&path, ROOT, "a").unwrap_err();
    assert!(matches!(error, DirectoryError::Uncertified { .. }), "{error}");
    assert!(matches!(create(&path, &certificate()), Err(DirectoryError::Uncertified { .. })));
    assert_eq!(listing(run.path()).len(), before.len() - 1);
}

#[test]
fn a_damaged_or_newer_certificate_protects_its_directory() {
    let (_run, path) = born();
    let file = path.join(".cocoon-birth.json");
    let newer = serde_json::to_string(&certificate()).unwrap().replace(":1,", ":2,");
    for text in ["", "{", "[]", "{\"format\":1}", newer.as_str()] {
        std::fs::write(&file, text).unwrap();
        let error = remove(&path, ROOT, "a").unwrap_err();
        assert!(matches!(error, DirectoryError::Damaged { .. }), "{text}: {error}");
        assert!(path.exists());
    }
}

#[test]
fn a_creation_that_was_cut_short_is_repeated_or_removed() {
    let run = tempfile::tempdir().unwrap();
    let (path, unborn) = (run.path().join("a"), run.path().join(".birth-a"));
    for content in [None, Some(""), Some("{\"for")] {
        for finish in [false, true] {
            std::fs::create_dir(&unborn).unwrap();
            if let Some(content) = content {
                std::fs::write(unborn.join(".cocoon-birth.json"), content).unwrap();
            }
            assert_eq!(inspect(&path).unwrap(), Found::Nothing);
            if finish {
                assert_eq!(create(&path, &certificate()).unwrap(), Created::New);
            }
            assert_eq!(remove(&path, ROOT, "a").unwrap(), Removed::Removed);
            assert_eq!(listing(run.path()), Vec::<PathBuf>::new());
        }
    }
}

#[test]
fn a_removal_that_was_cut_short_is_repeated() {
    let (run, path) = born();
    std::fs::remove_file(path.join(".cocoon-birth.json")).unwrap();
    assert_eq!(inspect(&path).unwrap(), Found::Empty);
    assert_eq!(create(&path, &certificate()).unwrap(), Created::New);
    std::fs::remove_file(path.join(".cocoon-birth.json")).unwrap();
    assert_eq!(remove(&path, ROOT, "a").unwrap(), Removed::Removed);
    assert_eq!(listing(run.path()), Vec::<PathBuf>::new());
}

#[test]
fn a_survey_lists_each_vm_once_with_what_it_says() {
    let (run, path) = born();
    for name in [".birth-a", ".birth-b", "c", "d", ".hidden"] {
        std::fs::create_dir(run.path().join(name)).unwrap();
    }
    std::fs::write(run.path().join("d/disk"), "data").unwrap();
    std::fs::write(run.path().join("file"), "data").unwrap();
    symlink(&path, run.path().join("link")).unwrap();
    let at = |name: &str| run.path().join(name);
    let found = survey(run.path()).unwrap();
    assert!(matches!(&found[0], (first, Found::Certified(_)) if *first == path));
    let rest = [(at("b"), Found::Nothing), (at("c"), Found::Empty), (at("d"), Found::Uncertified)];
    assert_eq!(found[1..], rest);
    assert_eq!(survey(&at("missing")).unwrap(), vec![]);
}

#[test]
fn links_are_removed_and_never_followed() {
    let (run, path) = born();
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("precious"), "data").unwrap();
    symlink(outside.path(), path.join("link")).unwrap();
    symlink(outside.path().join("precious"), path.join("file")).unwrap();
    symlink("nowhere", path.join("dangling")).unwrap();
    remove(&path, ROOT, "a").unwrap();
    assert!(outside.path().join("precious").exists());

    // A link in the place of the directory itself, to one with a valid certificate.
    let (_elsewhere, real) = born();
    symlink(&real, &path).unwrap();
    let error = remove(&path, ROOT, "a").unwrap_err();
    assert!(matches!(error, DirectoryError::NotADirectory { .. }), "{error}");
    assert!(matches!(create(&path, &certificate()), Err(DirectoryError::NotADirectory { .. })));
    assert!(matches!(inspect(&real).unwrap(), Found::Certified(_)));

    // A link in the place of the certificate.
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    symlink(real.join(".cocoon-birth.json"), path.join(".cocoon-birth.json")).unwrap();
    assert!(remove(&path, ROOT, "a").is_err());
    assert!(path.exists() && run.path().exists());
}

#[test]
fn hostile_nesting_is_an_error_and_no_overflow() {
    let (_run, path) = born();
    let mut deep = path.clone();
    for _ in 0..200 {
        deep.push("d");
    }
    std::fs::create_dir_all(&deep).unwrap();
    let error = remove(&path, ROOT, "a").unwrap_err();
    assert!(matches!(error, DirectoryError::TooDeep { .. }), "{error}");
    assert!(matches!(inspect(&path).unwrap(), Found::Certified(_)));
}

#[test]
fn paths_without_a_name_or_a_parent_are_refused() {
    for path in ["/", "..", ""] {
        let refused = remove(Path::new(path), ROOT, "a");
        assert!(matches!(refused, Err(DirectoryError::BadName { .. })), "{path}");
    }
    let run = tempfile::tempdir().unwrap();
    let missing = run.path().join("missing/a");
    assert_eq!(remove(&missing, ROOT, "a").unwrap(), Removed::NothingThere);
    assert_eq!(inspect(&missing).unwrap(), Found::Nothing);
    assert!(create(&missing, &certificate()).is_err());
}

/// Mounts a directory into a VM directory, in a mount namespace of its own, and tries to remove
/// that.
pub(crate) fn remove_mounted(arguments: &[&str]) {
    use nix::mount::{MsFlags, mount};
    use nix::sched::{CloneFlags, unshare};
    let (path, outside) = (Path::new(arguments[0]), Path::new(arguments[1]));
    if let Err(error) = unshare(CloneFlags::CLONE_NEWNS) {
        return say(&format!("outcome skipped: {error}"));
    }
    let private = MsFlags::MS_PRIVATE | MsFlags::MS_REC;
    mount(None::<&str>, "/", None::<&str>, private, None::<&str>).unwrap();
    let point = path.join("sub/point");
    std::fs::create_dir_all(&point).unwrap();
    mount(Some(outside), &point, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    say(&format!("outcome {}", remove(path, ROOT, "a").unwrap_err()));
}

#[test]
fn what_is_mounted_in_a_directory_is_never_emptied() {
    let (_run, path) = born();
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("precious"), "data").unwrap();
    let arguments = [path.to_str().unwrap(), outside.path().to_str().unwrap()];
    let mut role = Role::start("remove-mounted", &arguments);
    let outcome = role.await_line("outcome");
    if outcome.starts_with("skipped") {
        eprintln!("mounting is not permitted here, so this was not tested: {outcome}");
        return;
    }
    role.finish();
    assert!(outcome.contains("something is mounted at"), "{outcome}");
    assert!(outside.path().join("precious").exists());
    assert_eq!(remove(&path, ROOT, "a").unwrap(), Removed::Removed, "unmounted, it can go");
}

#[test]
fn a_root_keeps_its_first_id_and_others_belong_to_it() {
    let base = tempfile::tempdir().unwrap();
    let (root, run) = (base.path().join("deep/root"), base.path().join("run"));
    assert_eq!(marker(&root, Kind::Root).unwrap(), None);
    let first = mark(&root, Kind::Root, ROOT).unwrap();
    assert_eq!(mark(&root, Kind::Root, OTHER).unwrap(), first);
    assert_eq!(marker(&root, Kind::Root).unwrap(), Some(first));
    assert_eq!(std::fs::metadata(&root).unwrap().permissions().mode() & 0o777, 0o700);
    mark(&run, Kind::Run, ROOT).unwrap();
    mark(&run, Kind::Run, ROOT).unwrap();
    let error = mark(&run, Kind::Run, OTHER).unwrap_err();
    assert!(matches!(error, DirectoryError::ForeignRoot { .. }), "{error}");
    assert_eq!(listing(&root), [root.join(".cocoon-root.json")]);
}

#[test]
fn many_that_mark_one_root_agree_on_its_id() {
    let base = tempfile::tempdir().unwrap();
    let ids: std::collections::BTreeSet<Uuid> = std::thread::scope(|scope| {
        let marking: Vec<_> = (0..8)
            .map(|id| {
                let path = base.path().join("root");
                scope.spawn(move || mark(&path, Kind::Root, Uuid::from_u128(id)).unwrap().root)
            })
            .collect();
        marking.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(ids.len(), 1);
}

#[test]
fn a_writer_that_was_killed_does_not_stand_in_the_way() {
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join(".cocoon-root.json.new"), "{\"for").unwrap();
    mark(root.path(), Kind::Root, ROOT).unwrap();
    assert_eq!(listing(root.path()), [root.path().join(".cocoon-root.json")]);
}

#[test]
fn a_copied_root_is_noticed() {
    let base = tempfile::tempdir().unwrap();
    let (root, copy) = (base.path().join("root"), base.path().join("copy"));
    let original = mark(&root, Kind::Root, ROOT).unwrap();
    let here = place(&root).unwrap();
    assert_eq!(moved(&original.place(), &here), None);
    std::fs::create_dir(&copy).unwrap();
    std::fs::copy(root.join(".cocoon-root.json"), copy.join(".cocoon-root.json")).unwrap();
    let copied = marker(&copy, Kind::Root).unwrap().unwrap();
    assert_eq!(moved(&copied.place(), &place(&copy).unwrap()), Some(Moved::Place));
    let elsewhere = RootMarker { machine_id: Some(OTHER), ..original };
    assert_eq!(moved(&elsewhere.place(), &here), Some(Moved::Machine));
}

#[test]
fn reboots_and_bind_mounts_move_nothing_and_clones_do() {
    let root = tempfile::tempdir().unwrap();
    let then = Place { born_ns: Some(5), ..place(root.path()).unwrap() };
    let differs = |change: fn(&mut Place)| {
        let mut now = then.clone();
        change(&mut now);
        moved(&then, &now)
    };
    let renumbered = differs(|now| now.device += 1);
    assert_eq!(renumbered, None, "device numbers change at a reboot");
    let with_its_id = differs(|now| (now.device, now.file_system) = (now.device + 1, 99));
    assert_eq!(with_its_id, None, "and with them the ids of some file systems");
    let bound = differs(|now| now.path = "/mnt".to_owned());
    assert_eq!(bound, None, "a bind mount");
    let clone = differs(|now| (now.device, now.path) = (now.device + 1, "/mnt".to_owned()));
    assert_eq!(clone, Some(Moved::Place), "a clone of its file system, mounted elsewhere");
    assert_eq!(differs(|now| now.inode += 1), Some(Moved::Place), "a copy");
    assert_eq!(differs(|now| now.born_ns = Some(6)), Some(Moved::Place), "the inode was reused");
    let unborn = Place { born_ns: None, path: String::new(), ..then.clone() };
    let other = Place { device: unborn.device + 1, file_system: 99, ..unborn.clone() };
    assert_eq!(moved(&unborn, &other), Some(Moved::Place), "nothing says that it is the same");
}

#[test]
fn a_generation_is_noted_and_nothing_is_believed_of_a_torn_note() {
    let (_run, path) = born();
    assert_eq!(noted_generation(&path), None);
    for generation in [1, 12_345_678, 2] {
        note_generation(&path, generation).unwrap();
        assert_eq!(noted_generation(&path), Some(generation));
    }
    let note = path.join(".cocoon-generation");
    let whole = std::fs::read(&note).unwrap();
    for torn in [&whole[..20], &whole[..0], &vec![0; whole.len()]] {
        std::fs::write(&note, torn).unwrap();
        assert_eq!(noted_generation(&path), None);
    }
    note_generation(&path.with_file_name("gone"), 3).unwrap();
    assert_eq!(remove(&path, ROOT, "a").unwrap(), Removed::Removed);
}

#[test]
fn directories_that_others_may_change_are_refused() {
    let base = tempfile::tempdir().unwrap();
    std::fs::set_permissions(base.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let error = mark(base.path(), Kind::Root, ROOT).unwrap_err();
    assert!(matches!(error, DirectoryError::Insecure { .. }), "{error}");
    std::fs::set_permissions(base.path(), PermissionsExt::from_mode(0o750)).unwrap();
    mark(base.path(), Kind::Root, ROOT).unwrap();
    std::fs::write(base.path().join("file"), "").unwrap();
    assert!(mark(&base.path().join("file"), Kind::Run, ROOT).is_err());
}
