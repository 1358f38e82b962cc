//! `docs/configuration.md` lists every setting, and each is read from where it says.

use crate::repository;
use crate::sandbox::Sandbox;

/// Keys and variables of the page.
fn documented() -> Vec<(String, String)> {
    let page = std::fs::read_to_string(repository().join("docs/configuration.md")).unwrap();
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| {
        let mut cells = row.split('`');
        let key = cells.nth(1).unwrap().to_owned();
        (key, cells.nth(1).unwrap().to_owned())
    })
    .collect()
}

#[test]
fn every_key_is_documented() {
    let source = std::fs::read_to_string(repository().join("src/settings.rs")).unwrap();
    let (_, keys) = source.split_once("const KEYS").unwrap();
    let (keys, _) = keys.split_once("];").unwrap();
    let mut known: Vec<_> = keys.split('"').skip(1).step_by(2).collect();
    let documented = documented();
    let mut listed: Vec<_> = documented.iter().map(|(key, _)| key.as_str()).collect();
    known.sort_unstable();
    listed.sort_unstable();
    assert_eq!(listed, known);
}

#[test]
fn every_setting_is_read_from_its_variable_and_from_its_key() {
    let sandbox = Sandbox::new();
    let config = sandbox.path().join("config.toml");
    for (key, variable) in documented() {
        // What no setting can be: where it is read, it is refused or leads into nothing.
        let nonsense = "/proc/nonsense";
        let by_variable = sandbox.command(["doctor"]).env(&variable, nonsense).output().unwrap();
        assert_ne!(by_variable.status.code(), Some(0), "{variable} is not read");
        std::fs::write(&config, format!("{key} = '{nonsense}'\n")).unwrap();
        let mut doctor = sandbox.command(["doctor", "--config", config.to_str().unwrap()]);
        let by_key = doctor.env_remove(&variable).output().unwrap();
        assert_ne!(by_key.status.code(), Some(0), "{key} is not read");
    }
}
