//! Scopes: those that are built in, and those in files.

use cocoon_model::check::Scope;

/// Too large to be searched whole.
const WIDE: &str = "wide";

/// The scopes of `model/scopes/`: name and text, the largest first. The last is for walks only.
const BUILT_IN: [(&str, &str); 9] = [
    ("create-sweep", include_str!("../../scopes/create-sweep.scope")),
    ("create-stop", include_str!("../../scopes/create-stop.scope")),
    ("create-create", include_str!("../../scopes/create-create.scope")),
    ("create-remove", include_str!("../../scopes/create-remove.scope")),
    ("force-remove", include_str!("../../scopes/force-remove.scope")),
    ("run-remove", include_str!("../../scopes/run-remove.scope")),
    ("run-sweep", include_str!("../../scopes/run-sweep.scope")),
    ("start-stop-remove", include_str!("../../scopes/start-stop-remove.scope")),
    (WIDE, include_str!("../../scopes/wide.scope")),
];

/// The scopes of a name: `standard` is all that are built in, any other that is not built in is a file.
pub(crate) fn named(name: &str) -> Result<Vec<Scope>, String> {
    let is_wanted = |known: &str| known == name || (name == "standard" && known != WIDE);
    let wanted = BUILT_IN.iter().filter(|(known, _)| is_wanted(known));
    let scopes = wanted.map(|(known, text)| parse(known, text)).collect::<Result<Vec<_>, _>>()?;
    if !scopes.is_empty() {
        return Ok(scopes);
    }
    let text = std::fs::read_to_string(name).map_err(|error| {
        let known: Vec<&str> = BUILT_IN.iter().map(|(known, _)| *known).collect();
        let known = known.join(", ");
        format!("cannot read scope `{name}`: {error}; built in are standard, {known}")
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
        assert_eq!(named("standard").unwrap().len(), BUILT_IN.len() - 1);
    }

    #[test]
    fn every_scope_of_the_directory_is_built_in() {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../scopes");
        let files = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
        let names: Vec<String> = files.map(|name| name.into_string().unwrap()).collect();
        for name in &names {
            let known = name.strip_suffix(".scope").unwrap();
            assert!(BUILT_IN.iter().any(|(built_in, _)| *built_in == known), "{name}");
        }
        assert_eq!(names.len(), BUILT_IN.len());
    }

    #[test]
    fn a_scope_that_is_nowhere_is_said_with_those_there_are() {
        assert!(named("nowhere").unwrap_err().contains("create-create"));
    }
}
