//! Effects only behind the one door.
//!
//! The world is changed in `src/host`, by the journal in its own directory, and nowhere else. The engine calls the host
//! inside `perform`, so that a crash can be provoked on both sides of everything that a crash could leave half done.

use std::collections::BTreeSet;

use crate::rust::{functions, product};
use crate::{Source, report, sources};

/// What changes the world by itself.
const RAW: [&str; 25] = [
    "fs::write(",
    "fs::remove_",
    "fs::rename(",
    "fs::create_dir",
    "fs::copy(",
    "fs::hard_link(",
    "fs::set_permissions(",
    "symlink(",
    "File::create",
    "File::options(",
    "OpenOptions::new(",
    "Command::new(",
    "signal::kill(",
    "kill(Pid",
    "pidfd_send_signal(",
    "killpg(",
    "raise(",
    "mount(",
    "umount",
    "unistd::unlink",
    "fs::unlink",
    "unistd::mkdir",
    "fs::mkdir",
    "mknod",
    "setns(",
];

/// What of the host changes the world.
const HOST: [&str; 15] = [
    "spawn_vmm(",
    "helper.run(",
    "process::terminate(",
    "directory::create(",
    "directory::remove(",
    "disk::create_raw(",
    "disk::clone_or_copy(",
    "disk::rebase(",
    "directory::note_generation(",
    ".remove_vmm(",
    ".remove_ops(",
    ".sweep(",
    ".boot(",
    ".request_power_off(",
    "serial::begin_log(",
];

/// Where the world may be changed without passing the door, with the reason.
const EXEMPT: [(&str, &str); 6] = [
    ("src/host/", "is what lies behind the door"),
    ("src/engine/effect.rs", "is the door; its own crash log serves the tests"),
    ("src/home.rs", "makes the root before there is a journal that could record it"),
    ("src/cli/completion.rs", "writes manual pages where the user wants them"),
    ("src/cli/doctor", "writes what it found out about the host, which no VM depends on"),
    ("src/main.rs", "only calls the command line"),
];

fn is_exempt(path: &str) -> bool {
    EXEMPT.iter().any(|(prefix, _)| path.starts_with(prefix))
}

#[test]
fn the_world_is_changed_behind_the_door() {
    let mut faults = Vec::new();
    for source in sources(&[".rs"]) {
        if source.path.starts_with("src/") && !is_exempt(&source.path) {
            faults.extend(unguarded(&source));
        }
    }
    report("an effect belongs into engine::effect::perform (or into src/host)", &faults);
}

/// Effects of a source that no `perform` stands around.
fn unguarded(source: &Source) -> Vec<String> {
    let text = without_comments(product(source));
    let guarded = guarded(&text);
    let mut faults = Vec::new();
    for function in functions(&text) {
        let inside = guarded.contains(function.name);
        let body = function.body.join("\n");
        // What is opened to be read only is no effect.
        let mut outside = body.replace("OpenOptions::new().read(true).open(", "");
        for call in performed(&body) {
            outside = outside.replace(call, "");
        }
        for effect in RAW.iter().chain(&HOST) {
            if !inside && calls(&outside, effect) {
                let place = format!("{}:{}", source.path, function.line + 1);
                faults.push(format!("{place}: {} calls {effect}", function.name));
            }
        }
    }
    faults
}

/// Whether a text calls an effect, and not merely something whose name ends like it.
fn calls(text: &str, effect: &str) -> bool {
    text.match_indices(effect).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        effect.starts_with('.') || !before.is_some_and(|c| c.is_alphanumeric() || "_.".contains(c))
    })
}

/// Names of functions that are called inside a `perform`, directly or by one that is.
fn guarded(text: &str) -> BTreeSet<&str> {
    let all = functions(text);
    let mut guarded = BTreeSet::new();
    let mut to_see: Vec<String> = performed(text).into_iter().map(str::to_owned).collect();
    while let Some(call) = to_see.pop() {
        for function in &all {
            let name = function.name;
            let is_called =
                calls(&call, &format!("{name}(")) || call.contains(&format!("self.{name}("));
            if is_called && guarded.insert(name) {
                to_see.push(function.body[1..].join("\n"));
            }
        }
    }
    guarded
}

/// What stands inside the parentheses of each `perform(`.
fn performed(text: &str) -> Vec<&str> {
    let begins = text.match_indices("perform(").map(|(at, word)| at + word.len());
    begins.filter_map(|begin| Some(&text[begin..begin + closing(&text[begin..])?])).collect()
}

/// Where the parenthesis closes that is open at the beginning of a text.
fn closing(text: &str) -> Option<usize> {
    let mut open = 1;
    for (at, c) in text.char_indices() {
        match c {
            '(' => open += 1,
            ')' => open -= 1,
            _ => {}
        }
        if open == 0 {
            return Some(at);
        }
    }
    None
}

fn without_comments(text: &str) -> String {
    let kept = text.lines().map(|line| if line.trim_start().starts_with("//") { "" } else { line });
    kept.collect::<Vec<_>>().join("\n")
}

#[test]
fn an_effect_outside_is_found_and_one_inside_is_not() {
    let text = "fn inside() {\n    perform(\"a\", || (fs::write(x), ()));\n}\n\nfn helper() {\n    \
                fs::rename(x);\n}\n\nfn caller() {\n    perform(\"b\", || helper());\n}\n\nfn outside() {\n    \
                fs::remove_file(x);\n}\n\nfn spawner() {\n    spawn_vmm(x);\n}\n";
    let source = Source { path: "src/engine/example.rs".to_owned(), text: text.to_owned() };
    let faults = unguarded(&source);
    assert_eq!(faults.len(), 2, "{faults:?}");
    assert!(faults[0].contains("outside calls fs::remove_"), "{faults:?}");
    assert!(faults[1].contains("spawner calls spawn_vmm("), "{faults:?}");
}
