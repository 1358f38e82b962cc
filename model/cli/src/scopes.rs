//! Scopes: those that are built in, and those in files.

use cocoon_model::check::Scope;

/// What a scope is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum For {
    /// Searched whole, with every change.
    Standard,
    /// Searched whole, for as long as somebody has.
    Deep,
    /// Too large to be searched whole.
    Walks,
}

/// The scopes of `model/scopes/`, the largest first.
const BUILT_IN: [(&str, For, &str); 10] = [
    ("create-remove", For::Standard, include_str!("../../scopes/create-remove.scope")),
    ("create-create-sweep", For::Deep, include_str!("../../scopes/create-create-sweep.scope")),
    ("start-stop-remove", For::Standard, include_str!("../../scopes/start-stop-remove.scope")),
    ("force-remove", For::Standard, include_str!("../../scopes/force-remove.scope")),
    ("create-stop", For::Standard, include_str!("../../scopes/create-stop.scope")),
    ("create-create", For::Standard, include_str!("../../scopes/create-create.scope")),
    ("run-remove", For::Standard, include_str!("../../scopes/run-remove.scope")),
    ("create-sweep", For::Standard, include_str!("../../scopes/create-sweep.scope")),
    ("run-sweep", For::Standard, include_str!("../../scopes/run-sweep.scope")),
    ("wide", For::Walks, include_str!("../../scopes/wide.scope")),
];

/// The scopes of a name: `standard` and `deep` are sets, any other that is not built in is a file.
pub(crate) fn named(name: &str) -> Result<Vec<Scope>, String> {
    let is_wanted = |known: &str, purpose: For| match name {
        "standard" => purpose == For::Standard,
        "deep" => purpose != For::Walks,
        _ => known == name,
    };
    let wanted = BUILT_IN.iter().filter(|(known, purpose, _)| is_wanted(known, *purpose));
    let scopes =
        wanted.map(|(known, _, text)| parse(known, text)).collect::<Result<Vec<_>, _>>()?;
    if !scopes.is_empty() {
        return Ok(scopes);
    }
    let text = std::fs::read_to_string(name).map_err(|error| {
        let known: Vec<&str> = BUILT_IN.iter().map(|(known, ..)| *known).collect();
        let known = known.join(", ");
        format!("cannot read scope `{name}`: {error}; built in are standard, deep, {known}")
    })?;
    Ok(vec![parse(name, &text)?])
}

fn parse(name: &str, text: &str) -> Result<Scope, String> {
    Scope::parse(name, text).map_err(|bad| format!("scope `{name}`: {bad}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_built_in_can_be_read() {
        assert_eq!(named("deep").unwrap().len(), BUILT_IN.len() - 1);
        assert_eq!(named("standard").unwrap().len(), BUILT_IN.len() - 2);
    }

    #[test]
    fn every_scope_of_the_directory_is_built_in() {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../scopes");
        let files = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
        let names: Vec<String> = files.map(|name| name.into_string().unwrap()).collect();
        for name in &names {
            let known = name.strip_suffix(".scope").unwrap();
            assert!(BUILT_IN.iter().any(|(built_in, ..)| *built_in == known), "{name}");
        }
        assert_eq!(names.len(), BUILT_IN.len());
    }

    #[test]
    fn a_scope_that_is_nowhere_is_said_with_those_there_are() {
        assert!(named("nowhere").unwrap_err().contains("create-create"));
    }
}
