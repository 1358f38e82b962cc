//! Questions to the store. Every answer is checked against what it was asked for.

use std::ops::{Range, RangeInclusive};
use std::vec;

use uuid::Uuid;

use super::event::{self, StoredEvent};
use super::extent::Extent;
use super::generation::{Generation, Unfit};
use super::repair::Repair;
use super::{Store, StoreError, generations};
use crate::frame::{Seq, Subject};

/// The events that a question found, in order of their sequence numbers, the newest last. It ends
/// after the first error.
pub struct Events<'a> {
    store: &'a mut Store,
    found: Found,
    firsts: Vec<Seq>,
}

enum Found {
    /// All from the first number to the second; those read ahead come first.
    Range {
        next: Seq,
        last: Seq,
        ready: vec::IntoIter<StoredEvent>,
    },
    /// Those with these numbers, if they answer the question.
    Listed {
        seqs: vec::IntoIter<Seq>,
        asked: Asked,
    },
    Failed(Option<StoreError>),
}

/// What was asked of an index.
#[derive(Debug, Clone)]
enum Asked {
    Subject(Subject),
    Operation(Uuid),
    Time(Range<i64>),
}

impl Asked {
    fn keys(&self) -> (Vec<u8>, Vec<u8>) {
        let under = |prefix: Vec<u8>| (prefix.clone(), event::end_of(&prefix));
        match self {
            Self::Subject(subject) => under(event::subject_prefix(subject)),
            Self::Operation(operation) => under(event::operation_prefix(*operation)),
            Self::Time(time) => (event::time_prefix(time.start), event::time_prefix(time.end)),
        }
    }

    fn may_be_in(&self, extent: &Extent) -> bool {
        match self {
            Self::Time(time) => extent.wall.0 < time.end && time.start <= extent.wall.1,
            Self::Subject(_) | Self::Operation(_) => true,
        }
    }

    fn answers(&self, event: &StoredEvent) -> bool {
        match self {
            Self::Subject(subject) => event.entry.subject == *subject,
            Self::Operation(operation) => event.header.operation == *operation,
            Self::Time(time) => time.contains(&event.header.wall_us),
        }
    }
}

impl Store {
    /// The event `seq`; `None` if the store does not hold it (yet).
    ///
    /// # Errors
    /// [`StoreError::Before`] if it is no longer kept, [`StoreError::Unfit`], [`StoreError::Io`].
    pub fn event(&mut self, seq: Seq) -> Result<Option<StoredEvent>, StoreError> {
        self.range(seq..=seq)?.next().transpose()
    }

    /// All events with these sequence numbers, as far as the store reaches.
    ///
    /// # Errors
    /// [`StoreError::Before`] if the range begins before the history that is kept; the iterator
    /// gives [`StoreError::Unfit`] and [`StoreError::Io`].
    pub fn range(&mut self, seqs: RangeInclusive<Seq>) -> Result<Events<'_>, StoreError> {
        let firsts = generations(&self.dir)?;
        let (asked, last) = (*seqs.start().max(&1), *seqs.end());
        if let Some(begins) = firsts.first().copied().filter(|begins| *begins > asked) {
            return Err(StoreError::Before { begins, asked });
        }
        let found = Found::Range { next: asked, last, ready: Vec::new().into_iter() };
        Ok(Events { store: self, found, firsts })
    }

    /// All events about a subject.
    ///
    /// # Errors
    /// [`StoreError::Unfit`], [`StoreError::Io`].
    pub fn by_subject(&mut self, subject: &Subject) -> Result<Events<'_>, StoreError> {
        self.listed(Asked::Subject(*subject))
    }

    /// All events of an operation.
    ///
    /// # Errors
    /// [`StoreError::Unfit`], [`StoreError::Io`].
    pub fn by_operation(&mut self, operation: Uuid) -> Result<Events<'_>, StoreError> {
        self.listed(Asked::Operation(operation))
    }

    /// All events whose wall clock is in a range of microseconds since 1970. Their order is that of
    /// the journal, even where the clock was set back.
    ///
    /// # Errors
    /// [`StoreError::Unfit`], [`StoreError::Io`].
    pub fn by_time(&mut self, wall_us: Range<i64>) -> Result<Events<'_>, StoreError> {
        self.listed(Asked::Time(wall_us))
    }

    fn listed(&mut self, asked: Asked) -> Result<Events<'_>, StoreError> {
        let firsts = generations(&self.dir)?;
        let (from, to) = asked.keys();
        let mut seqs = Vec::new();
        for first in &firsts {
            let extent = self.extent(*first).map_err(|unfit| unfit.into_error(*first))?;
            if asked.may_be_in(&extent) && from < to {
                seqs.extend(self.ask(*first, |generation| generation.indexed(&from, &to))?);
            }
        }
        seqs.sort_unstable();
        Ok(Events { store: self, found: Found::Listed { seqs: seqs.into_iter(), asked }, firsts })
    }

    /// Asks a generation; one that fails is looked at closely when it is opened next.
    fn ask<T>(
        &mut self,
        first: Seq,
        question: impl FnOnce(&Generation) -> Result<T, Unfit>,
    ) -> Result<T, StoreError> {
        let answer = question(self.generation(first)?);
        answer.map_err(|unfit| {
            if matches!(unfit, Unfit::Repair(_)) {
                self.doubt(first);
            }
            unfit.into_error(first)
        })
    }
}

impl Events<'_> {
    fn step(&mut self) -> Result<Option<StoredEvent>, StoreError> {
        match &mut self.found {
            Found::Range { next, last, ready } => {
                if let Some(event) = ready.next() {
                    return Ok(Some(event));
                }
                let (from, to) = (*next, *last);
                let events = self.read(from, to)?;
                let after = events.last().map_or(to, |event| event.seq).saturating_add(1);
                let mut events = events.into_iter();
                let event = events.next();
                self.found = Found::Range { next: after, last: to, ready: events };
                Ok(event)
            }
            Found::Listed { seqs, asked } => match seqs.next() {
                Some(seq) => {
                    let asked = asked.clone();
                    self.lookup(seq, &asked).map(Some)
                }
                None => Ok(None),
            },
            Found::Failed(error) => error.take().map_or(Ok(None), Err),
        }
    }

    /// The next few events of a range; none if the store does not reach there.
    fn read(&mut self, from: Seq, to: Seq) -> Result<Vec<StoredEvent>, StoreError> {
        let Some((first, next)) = self.holder(from).filter(|_| from <= to) else {
            return Ok(Vec::new());
        };
        let to = next.map_or(to, |next| to.min(next - 1));
        let events = self.store.ask(first, |generation| generation.events(from, to))?;
        if events.is_empty() && next.is_some() {
            let what = format!("event {from} is missing");
            self.store.doubt(first);
            let repair = Repair::Damaged { what };
            return Err(StoreError::Unfit { generation: first, repair });
        }
        Ok(events)
    }

    fn lookup(&mut self, seq: Seq, asked: &Asked) -> Result<StoredEvent, StoreError> {
        let first = self.holder(seq).map_or(seq, |(first, _)| first);
        match self.store.ask(first, |generation| generation.event(seq))? {
            Some(event) if asked.answers(&event) => Ok(event),
            _ => {
                self.store.doubt(first);
                let what = format!("an index names event {seq}, which is not there");
                let repair = Repair::Damaged { what };
                Err(StoreError::Unfit { generation: first, repair })
            }
        }
    }

    /// The generation whose part of the history `seq` falls into, and the one after it.
    fn holder(&self, seq: Seq) -> Option<(Seq, Option<Seq>)> {
        let after = self.firsts.partition_point(|first| *first <= seq);
        let first = self.firsts.get(after.checked_sub(1)?)?;
        Some((*first, self.firsts.get(after).copied()))
    }
}

impl Iterator for Events<'_> {
    type Item = Result<StoredEvent, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        let step = self.step().transpose();
        if matches!(step, Some(Err(_))) {
            self.found = Found::Failed(None);
        }
        step
    }
}
