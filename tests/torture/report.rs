//! What a run came to.

use std::collections::BTreeMap;
use std::fmt;

/// Counts, and what was wrong.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// Kills that were tried.
    pub(crate) kills: usize,
    /// Daemons that were killed; not counted among the kills.
    pub(crate) daemons: usize,
    /// Kills that hit a living verb, by the last boundary that it had passed.
    hits: BTreeMap<String, usize>,
    /// Verbs that came to their end, by verb: done, refused or failed.
    ended: BTreeMap<&'static str, (usize, usize)>,
    /// What was wrong.
    pub(crate) complaints: Vec<String>,
}

impl Report {
    pub(crate) fn hit(&mut self, boundary: &str) {
        *self.hits.entry(boundary.to_owned()).or_default() += 1;
    }

    pub(crate) fn ended(&mut self, verb: &'static str, well: bool) {
        let (done, refused) = self.ended.entry(verb).or_default();
        *(if well { done } else { refused }) += 1;
    }

    pub(crate) fn hits(&self) -> usize {
        self.hits.values().sum()
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.kills += other.kills;
        for (boundary, hits) in other.hits {
            *self.hits.entry(boundary).or_default() += hits;
        }
        for (verb, (done, refused)) in other.ended {
            let sum = self.ended.entry(verb).or_default();
            *sum = (sum.0 + done, sum.1 + refused);
        }
        self.complaints.extend(other.complaints);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} kills, {} of them of a living verb, after", self.kills, self.hits())?;
        for (boundary, hits) in &self.hits {
            writeln!(f, "{hits:8}  {boundary}")?;
        }
        writeln!(f, "{} daemons were killed beside them", self.daemons)?;
        writeln!(f, "verbs that came to their end: done, not done")?;
        for (verb, (done, refused)) in &self.ended {
            writeln!(f, "{done:8} {refused:8}  {verb}")?;
        }
        for complaint in &self.complaints {
            writeln!(f, "WRONG: {complaint}")?;
        }
        Ok(())
    }
}
