//! Scopes: who acts, on what, and how much may go wrong. A scope is a small text file.
//!
//! ```text
//! # A comment.
//! vms = 2                      slots for VMs, each with its own id; names are `name0`, `name1`, ...
//! before = create 0 0          done before the search begins: verb, slot, and for births the name
//! first-id = 100               the number of the first id, 0 if left out; nothing may depend on it
//! foreign = 2                  a slot with directories of another installation
//! actor = create 1 0           one that acts: verb, slot, and for births the name
//! actor = gc                   collectors act on all slots, again and again
//! kills = 2                    how often an actor is killed
//! power-losses = 1             how often the host loses its power
//! vmm-deaths = 1               how often a VMM dies by itself
//! failures = 1                 how often an effect fails or a probe is inconclusive
//! sometimes = Committed        an event or an outcome that has to be reached somewhere
//! ```

use std::fmt;

use super::world::{ACTORS, SLOTS};

/// What an actor is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// `vm create`.
    Create,
    /// `vm run`.
    Run,
    /// `vm start`.
    Start,
    /// `vm stop`.
    Stop,
    /// `vm rm`.
    Remove {
        /// `--force`.
        force: bool,
        /// `--wait`.
        wait: bool,
    },
    /// An embedder that starts and has every placeholder reclaimed.
    Sweep,
    /// `gc`.
    Gc,
    /// The daemon.
    Daemon,
}

impl Role {
    const WORDS: [(&'static str, Self); 11] = [
        ("create", Self::Create),
        ("run", Self::Run),
        ("start", Self::Start),
        ("stop", Self::Stop),
        ("rm", Self::Remove { force: false, wait: false }),
        ("rm-wait", Self::Remove { force: false, wait: true }),
        ("rm-force", Self::Remove { force: true, wait: false }),
        ("rm-force-wait", Self::Remove { force: true, wait: true }),
        ("sweep", Self::Sweep),
        ("gc", Self::Gc),
        ("daemon", Self::Daemon),
    ];

    /// The word in scope files and traces.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        Self::WORDS.iter().find(|(_, role)| *role == self).map_or("?", |(word, _)| word)
    }

    fn of_word(word: &str) -> Option<Self> {
        Self::WORDS.iter().find(|(known, _)| *known == word).map(|(_, role)| *role)
    }

    /// Whether it brings a VM into being.
    #[must_use]
    pub fn is_birth(self) -> bool {
        matches!(self, Self::Create | Self::Run)
    }

    /// Whether it acts on all slots, again and again.
    #[must_use]
    pub fn is_collector(self) -> bool {
        matches!(self, Self::Sweep | Self::Gc | Self::Daemon)
    }
}

/// One actor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cast {
    /// What it is.
    pub role: Role,
    /// The VM that it is about; of no meaning for collectors.
    pub slot: u8,
    /// The name that a birth asks for.
    pub name: u8,
}

/// Who acts, on what, and how much may go wrong.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scope {
    /// Its name.
    pub name: String,
    /// Slots for VMs.
    pub vms: u8,
    /// Done one after the other before the search begins.
    pub before: Vec<Cast>,
    /// The number of the first id; the others follow. Nothing may depend on it.
    pub first_id: u8,
    /// Slots that have directories of another installation.
    pub foreign: Vec<u8>,
    /// Who acts.
    pub actors: Vec<Cast>,
    /// How often an actor is killed.
    pub kills: u8,
    /// How often the host loses its power.
    pub power_losses: u8,
    /// How often a VMM dies by itself.
    pub vmm_deaths: u8,
    /// How often an effect fails, or a probe is inconclusive.
    pub failures: u8,
    /// Events and outcomes that have to be reached somewhere.
    pub sometimes: Vec<String>,
}

/// A line of a scope file that is not understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadScope {
    /// Its number, from 1; 0 for the file as a whole.
    pub line: usize,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for BadScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}; see docs/model.md for the form of a scope", self.line, self.what)
    }
}

impl std::error::Error for BadScope {}

impl Scope {
    /// Reads a scope.
    ///
    /// # Errors
    /// [`BadScope`], with the line.
    pub fn parse(name: &str, text: &str) -> Result<Self, BadScope> {
        let mut scope = Self { name: name.to_owned(), ..Self::default() };
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if !line.is_empty() {
                scope.line(line).map_err(|what| BadScope { line: number + 1, what })?;
            }
        }
        scope.check().map_err(|what| BadScope { line: 0, what })?;
        Ok(scope)
    }

    /// Allows so many more of each kind of fault that it allows at all.
    pub fn add_faults(&mut self, more: u8) {
        let kinds =
            [&mut self.kills, &mut self.power_losses, &mut self.vmm_deaths, &mut self.failures];
        for kind in kinds.into_iter().filter(|kind| **kind > 0) {
            *kind = kind.saturating_add(more);
        }
    }

    fn line(&mut self, line: &str) -> Result<(), String> {
        let (key, value) = line.split_once('=').ok_or("a line reads `key = value`")?;
        let (key, value) = (key.trim(), value.trim());
        let number = || value.parse::<u8>().map_err(|_| format!("`{value}` is not a small number"));
        match key {
            "vms" => self.vms = number()?,
            "first-id" => self.first_id = number()?,
            "foreign" => self.foreign.push(number()?),
            "kills" => self.kills = number()?,
            "power-losses" => self.power_losses = number()?,
            "vmm-deaths" => self.vmm_deaths = number()?,
            "failures" => self.failures = number()?,
            "before" => self.before.push(cast(value)?),
            "actor" => self.actors.push(cast(value)?),
            "sometimes" => self.sometimes.extend(value.split_whitespace().map(str::to_owned)),
            _ => return Err(format!("there is no key `{key}`")),
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        if self.vms == 0 || usize::from(self.vms) > SLOTS {
            return Err(format!("`vms` is 1 to {SLOTS}"));
        }
        if self.first_id > 200 {
            return Err("`first-id` is at most 200".to_owned());
        }
        if self.actors.is_empty() || self.actors.len() > ACTORS {
            return Err(format!("there are 1 to {ACTORS} actors"));
        }
        let all = || self.before.iter().chain(&self.actors);
        if all().any(|cast| cast.slot >= self.vms || cast.name >= self.vms) {
            return Err("a slot or a name is beyond `vms`".to_owned());
        }
        if self.before.iter().any(|cast| cast.role.is_collector()) {
            return Err("collectors never end, so none can go before".to_owned());
        }
        let births: Vec<u8> = all().filter(|c| c.role.is_birth()).map(|c| c.slot).collect();
        if self.foreign.iter().any(|slot| *slot >= self.vms || births.contains(slot)) {
            return Err("a `foreign` slot is below `vms`, and no birth has it".to_owned());
        }
        if births.iter().enumerate().any(|(at, slot)| births[..at].contains(slot)) {
            return Err("each birth needs a slot of its own: ids are never reused".to_owned());
        }
        Ok(())
    }
}

fn cast(value: &str) -> Result<Cast, String> {
    let mut words = value.split_whitespace();
    let word = words.next().unwrap_or_default();
    let role = Role::of_word(word).ok_or_else(|| format!("there is no actor `{word}`"))?;
    let mut number = || match words.next() {
        None => Ok(0),
        Some(word) => word.parse::<u8>().map_err(|_| format!("`{word}` is not a slot")),
    };
    Ok(Cast { role, slot: number()?, name: number()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_is_read() {
        let text = "vms = 2 # two\nbefore = run 0 0\nactor = rm-force 0\nactor = gc\nkills=2\nsometimes = Deleted\n";
        let scope = Scope::parse("s", text).unwrap();
        assert_eq!((scope.vms, scope.kills, scope.actors.len()), (2, 2, 2));
        assert_eq!(scope.actors[0].role.as_str(), "rm-force");
        assert_eq!(scope.before, [Cast { role: Role::Run, slot: 0, name: 0 }]);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        for (text, line) in [
            ("vms = 2\nactor = fly 0", 2),
            ("vms = many", 1),
            ("vms = 9\nactor = gc", 0),
            ("vms = 1\nactor = gc\nkill = 2", 3),
            ("vms = 1\nactor = create 1", 0),
            ("vms = 1\nactor = create 0\nactor = run 0", 0),
            ("vms = 1\nbefore = gc\nactor = gc", 0),
            ("", 0),
        ] {
            assert_eq!(Scope::parse("s", text).unwrap_err().line, line, "{text}");
        }
    }
}
