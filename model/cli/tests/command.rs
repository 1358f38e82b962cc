//! Goal: what `cocoon-check` prints and how it exits can be relied upon by scripts.

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::process::{Command, Output};

fn check(args: &[&str]) -> Output {
    let binary = env!("CARGO_BIN_EXE_cocoon-check");
    Command::new(binary).args(args).output().expect("it runs")
}

fn small() -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let text =
        "vms = 1\nactor = create 0\nactor = gc\nkills = 1\nsometimes = Committed ReclaimBegan";
    std::fs::write(file.path(), text).expect("written");
    file
}

fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn a_clean_search_is_0_and_its_json_has_all_fields() {
    let scope = small();
    let path = scope.path().to_str().expect("a path");
    let output = check(&["--scope", path, "--json"]);
    assert_eq!(output.status.code(), Some(0));
    let json = json(&output);
    assert!(json["states"].as_u64().is_some_and(|states| states > 40), "{json}");
    for field in ["scope", "transitions", "seconds", "states_per_second"] {
        assert!(!json[field].is_null(), "{field}");
    }
    assert_eq!(json["violations"], serde_json::json!([]));
    assert!(json["budget_hit"].is_null());
}

#[test]
fn a_budget_that_was_hit_is_3_and_said() {
    let scope = small();
    let path = scope.path().to_str().expect("a path");
    let output = check(&["--scope", path, "--states", "10"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&output.stdout).contains("BUDGET HIT: 10 states"));
}

#[test]
fn what_is_never_reached_is_1() {
    let scope = small();
    std::fs::write(scope.path(), "vms = 1\nactor = create 0\nsometimes = Running")
        .expect("written");
    let output = check(&["--scope", scope.path().to_str().expect("a path")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stdout).contains("NEVER REACHED: Running"));
}

#[test]
fn wrong_usage_is_2_with_a_sentence() {
    for args in [&["--scope", "nowhere"][..], &["--mutant", "nothing-of-the-kind"][..]] {
        let output = check(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(!output.stderr.is_empty());
    }
}

#[cfg(feature = "mutants")]
#[test]
fn a_mutant_that_is_found_is_0() {
    let output = check(&["--mutant", "stale-view", "--json"]);
    assert_eq!(output.status.code(), Some(0));
    let json = json(&output);
    assert_eq!((&json["mutants"], &json["found"]), (&1.into(), &1.into()));
    assert_eq!(json["rows"][0]["search"], "exhaustive");
}

#[cfg(not(feature = "mutants"))]
#[test]
fn a_plain_build_has_no_mutants() {
    const { assert!(!cocoon_model::mutant::BUILT) };
    let output = check(&["--mutant", "all"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("no mutants"));
}

#[test]
fn the_documentation_knows_every_scope_and_every_mutant() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/model.md");
    let page = std::fs::read_to_string(page).expect("the page");
    for about in cocoon_model::mutant::MUTANTS {
        let row = format!(
            "| `{}` | {} | {} | {} | {} |",
            about.name, about.sentence, about.source, about.breaks, about.scope
        );
        assert!(page.contains(&row), "`just model-tables` would add: {row}");
    }
    let output = check(&["--scope", "nowhere"]);
    let complaint = String::from_utf8_lossy(&output.stderr);
    let names = complaint.split("standard, deep, ").nth(1).expect("a list").trim();
    for name in names.split(", ").filter(|name| *name != "wide") {
        assert!(page.contains(&format!("\n| {name} |")), "`just model-tables` would add {name}");
    }
}
