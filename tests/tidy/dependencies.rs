//! Licences, sources and bans of the dependencies, by what cargo says of them; `cargo deny` does it more thoroughly
//! where it is installed.

use std::process::Command;

use serde_json::Value;

use crate::{report, repository};

/// Licences that anyone may combine with ours.
const LICENCES: [&str; 9] = [
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "CC0-1.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Crates that are not wanted, with the reason.
const BANNED: [(&str, &str); 5] = [
    ("openssl-sys", "needs a C library that the host may not have"),
    ("native-tls", "needs a C library that the host may not have"),
    ("async-std", "there is one asynchronous runtime here"),
    ("smol", "there is one asynchronous runtime here"),
    ("chrono", "jiff does times here"),
];

/// All packages that the workspace needs on this platform.
fn packages() -> Vec<Value> {
    let asked = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked", "--all-features"])
        .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
        .current_dir(repository())
        .output()
        .expect("cargo describes the workspace");
    assert!(asked.status.success(), "{}", String::from_utf8_lossy(&asked.stderr));
    let metadata: Value = serde_json::from_slice(&asked.stdout).expect("cargo writes JSON");
    metadata["packages"].as_array().expect("packages are a list").clone()
}

/// Whether an SPDX expression can be satisfied by what is allowed; a slash is an old way to write `OR`.
fn is_allowed(expression: &str) -> bool {
    let expression = expression.replace('/', " OR ").replace(['(', ')'], "");
    expression.split(" AND ").all(|all| {
        all.split(" OR ").any(|one| {
            let licence = one.split(" WITH ").next().unwrap_or_default().trim();
            LICENCES.contains(&licence)
        })
    })
}

#[test]
fn licences_are_compatible() {
    let mut faults = Vec::new();
    for package in packages() {
        let licence = package["license"].as_str().unwrap_or("none");
        if !is_allowed(licence) {
            faults.push(format!("{}: {licence}", package["name"]));
        }
    }
    report("a dependency's licence is one of LICENCES (see deny.toml)", &faults);
}

#[test]
fn sources_are_crates_io_and_this_repository() {
    let mut faults = Vec::new();
    for package in packages() {
        let source = package["source"].as_str();
        let known = source.is_none_or(|source| source.starts_with("registry+"));
        if !known {
            faults.push(format!("{}: {}", package["name"], package["source"]));
        }
    }
    report("a dependency comes from crates.io", &faults);
}

#[test]
fn banned_crates_are_absent() {
    let packages = packages();
    let is_there = |name: &str| packages.iter().any(|package| package["name"] == name);
    let faults: Vec<_> = BANNED
        .iter()
        .filter(|(name, _)| is_there(name))
        .map(|(name, why)| format!("{name}: {why}"))
        .collect();
    report("a banned crate came in; `cargo tree -i NAME` says through whom", &faults);
}

#[test]
fn the_minimum_rust_version_is_stated_once_and_builds_this() {
    let mut faults = Vec::new();
    for package in packages() {
        let ours = package["source"].is_null();
        let stated = package["rust_version"].as_str().unwrap_or("none");
        if ours && stated != env!("CARGO_PKG_RUST_VERSION") {
            faults.push(format!("{}: {stated}", package["name"]));
        }
    }
    report("every crate of the workspace inherits rust-version", &faults);
}

/// `docs/libraries.md` says of each library why it is here.
#[test]
fn every_library_is_explained() {
    let page = std::fs::read_to_string(repository().join("docs/libraries.md")).expect("the page");
    let mut faults = Vec::new();
    for package in packages().iter().filter(|package| package["source"].is_null()) {
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let name = dependency["name"].as_str().unwrap_or_default();
            let ours = dependency["path"].is_string();
            if !ours && !page.contains(&format!("`{name}`")) {
                faults.push(format!("{name}, of {}", package["name"]));
            }
        }
    }
    report("docs/libraries.md lists every direct dependency", &faults);
}

#[test]
fn expressions_are_understood() {
    assert!(is_allowed("MIT OR GPL-3.0"));
    assert!(is_allowed("(MIT OR Apache-2.0) AND Unicode-3.0"));
    assert!(is_allowed("Apache-2.0 WITH LLVM-exception"));
    assert!(is_allowed("MIT/Apache-2.0"));
    assert!(!is_allowed("GPL-3.0"));
    assert!(!is_allowed("MIT AND GPL-3.0"));
    assert!(!is_allowed("none"));
}
