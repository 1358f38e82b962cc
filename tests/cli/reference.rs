//! The command-line reference, `docs/cli.md`, made from the command line itself.

use std::fmt::Write as _;

use clap::{Arg, Command};

use crate::golden;

/// The whole command line, with the flags of the whole at every verb.
pub(crate) fn command() -> Command {
    let mut command = cocoon::cli::command();
    command.build();
    command
}

/// The words of every verb that is shown, the command itself first.
pub(crate) fn verbs() -> Vec<Vec<String>> {
    fn collect(command: &Command, path: &[String], found: &mut Vec<Vec<String>>) {
        found.push(path.to_vec());
        for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()) {
            let path: Vec<_> = path.iter().cloned().chain([verb.get_name().to_owned()]).collect();
            collect(verb, &path, found);
        }
    }
    let mut found = Vec::new();
    collect(&command(), &[], &mut found);
    found
}

fn find<'a>(command: &'a Command, path: &[String]) -> &'a Command {
    path.iter().fold(command, |command, word| command.find_subcommand(word).expect("a known verb"))
}

const HEAD: &str = "\
# Command line

Made from the program itself; `cocoon VERB --help` says the same. Flags of the whole program may stand behind any verb.
Settings come from the flag, else from the environment, else from the configuration file
(`/etc/cocoon/config.toml` for root, `~/.config/cocoon/config.toml` otherwise), else from the default.
";

fn render() -> String {
    let command = command();
    let mut page = HEAD.to_owned();
    for path in verbs() {
        section(&mut page, find(&command, &path), &path);
    }
    later(&mut page, &command);
    page
}

fn section(page: &mut String, command: &Command, path: &[String]) {
    let words = format!("cocoon {}", path.join(" "));
    let level = "#".repeat((path.len() + 1).clamp(2, 4));
    writeln!(page, "\n{level} `{}`\n", words.trim_end()).unwrap();
    if let Some(about) = command.get_about() {
        writeln!(page, "{about}.").unwrap();
    }
    if !command.has_subcommands() {
        let usage = command.clone().render_usage().to_string();
        let usage = usage.trim_start_matches("Usage:").trim();
        writeln!(page, "\n```text\n{usage}\n```").unwrap();
    }
    let global = |arg: &&Arg| arg.is_global_set() || arg.get_id() == "help";
    let own = command.get_arguments().filter(|arg| path.is_empty() || !global(arg));
    let rows: Vec<_> = own.filter(|arg| !arg.is_hide_set()).map(row).collect();
    if !rows.is_empty() {
        writeln!(page, "\n| Argument | Meaning | Default |\n| --- | --- | --- |").unwrap();
        rows.iter().for_each(|row| writeln!(page, "{row}").unwrap());
    }
    if let Some(after) = command.get_after_help() {
        writeln!(page, "\n```text\n{}\n```", after.to_string().trim_end()).unwrap();
    }
    let aliases: Vec<_> = command.get_visible_aliases().map(|alias| format!("`{alias}`")).collect();
    if !aliases.is_empty() {
        writeln!(page, "\nAlso called {}.", aliases.join(", ")).unwrap();
    }
}

fn row(arg: &Arg) -> String {
    let mut names = Vec::new();
    names.extend(arg.get_short().map(|short| format!("-{short}")));
    names.extend(arg.get_long().map(|long| format!("--{long}")));
    names.extend(
        arg.get_visible_aliases().unwrap_or_default().iter().map(|alias| format!("--{alias}")),
    );
    let values: Vec<_> =
        arg.get_value_names().unwrap_or_default().iter().map(|name| name.to_string()).collect();
    let takes_value = arg.get_action().takes_values();
    let name = match (names.is_empty(), takes_value) {
        (true, _) => values.join(" "),
        (false, true) => format!("{} {}", names.join(", "), values.join(" ")),
        (false, false) => names.join(", "),
    };
    let choices: Vec<_> = arg
        .get_possible_values()
        .iter()
        .filter(|_| takes_value)
        .map(|value| format!("`{}`", value.get_name()))
        .collect();
    let mut meaning = arg.get_help().map(ToString::to_string).unwrap_or_default();
    if !choices.is_empty() {
        write!(meaning, ": {}", choices.join(", ")).unwrap();
    }
    let shown = takes_value && !arg.is_hide_default_value_set();
    let default = arg.get_default_values().iter().filter(|_| shown);
    let default: Vec<_> = default.map(|value| format!("`{}`", value.to_string_lossy())).collect();
    let meaning = meaning.replace('|', "\\|").replace('<', "\\<");
    format!("| `{name}` | {meaning} | {} |", default.join(" "))
}

/// Verbs that only say what is missing.
fn later(page: &mut String, command: &Command) {
    let hidden = |command: &Command, prefix: &str| -> Vec<String> {
        let verbs =
            command.get_subcommands().filter(|verb| verb.is_hide_set() && verb.get_name() != "man");
        verbs.map(|verb| format!("`{prefix}{}`", verb.get_name())).collect()
    };
    let mut names = hidden(command, "");
    for noun in command.get_subcommands() {
        names.extend(hidden(noun, &format!("{} ", noun.get_name())));
    }
    writeln!(page, "\n## Not there yet\n").unwrap();
    writeln!(page, "These verbs exist and say what is missing: {}.", names.join(", ")).unwrap();
}

#[test]
fn the_reference_is_up_to_date() {
    golden("docs/cli.md", &render());
}
