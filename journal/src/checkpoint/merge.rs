//! Reads several sorted sources as one.

use crate::table::{TableEntry, TableError};

/// One sorted source.
pub(super) type Source<'a> = Box<dyn Iterator<Item = Result<TableEntry, TableError>> + 'a>;

/// The entries of all sources in ascending order; of equal keys only that of the last source that
/// has it. Deletions come through. It ends after the first error.
pub(super) struct Merge<'a> {
    sources: Vec<Source<'a>>,
    heads: Vec<Option<TableEntry>>,
    state: State,
}

#[derive(PartialEq, Eq)]
enum State {
    Fresh,
    Walking,
    Done,
}

impl<'a> Merge<'a> {
    /// The oldest source comes first.
    pub(super) fn new(sources: Vec<Source<'a>>) -> Self {
        Self { heads: vec![None; sources.len()], sources, state: State::Fresh }
    }

    fn step(&mut self) -> Result<Option<TableEntry>, TableError> {
        if self.state == State::Fresh {
            self.state = State::Walking;
            for source in 0..self.sources.len() {
                self.advance(source)?;
            }
        }
        let Some(key) = self.heads.iter().flatten().map(|(key, _)| key).min().cloned() else {
            return Ok(None);
        };
        let mut newest = None;
        for source in 0..self.sources.len() {
            if self.heads[source].as_ref().is_some_and(|(head, _)| *head == key) {
                newest = self.heads[source].take();
                self.advance(source)?;
            }
        }
        Ok(newest)
    }

    fn advance(&mut self, source: usize) -> Result<(), TableError> {
        self.heads[source] = self.sources[source].next().transpose()?;
        Ok(())
    }
}

impl Iterator for Merge<'_> {
    type Item = Result<TableEntry, TableError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.state == State::Done {
            return None;
        }
        let step = self.step().transpose();
        if !matches!(step, Some(Ok(_))) {
            self.state = State::Done;
        }
        step
    }
}
