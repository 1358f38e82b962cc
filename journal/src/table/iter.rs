//! Walks the entries of a table in order.

use std::sync::Arc;

use super::block::Block;
use super::{Place, Table, TableEntry, TableError};

/// The entries of a table from some key on. It ends after the first error.
pub struct TableIter<'a> {
    table: &'a Table,
    from: Vec<u8>,
    prefix: Vec<u8>,
    /// From the root down to the block being read, each with the slot that comes next.
    path: Vec<(Arc<Block>, usize)>,
    last_key: Option<Vec<u8>>,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Fresh,
    Walking,
    Done,
}

impl<'a> TableIter<'a> {
    pub(super) fn new(table: &'a Table, from: Vec<u8>, prefix: Vec<u8>) -> Self {
        Self { table, from, prefix, path: Vec::new(), last_key: None, state: State::Fresh }
    }

    fn seek(&mut self) -> Result<(), TableError> {
        self.state = State::Walking;
        let Some(mut block) = self.table.root.clone() else { return Ok(()) };
        while block.level() > 0 {
            let slot = block.last_at_or_below(&self.from).unwrap_or(0);
            let child = self.table.child(&block, slot)?;
            self.path.push((block, slot + 1));
            block = Arc::new(child);
        }
        let slot = block.first_at_or_above(&self.from);
        self.path.push((block, slot));
        Ok(())
    }

    fn step(&mut self) -> Result<Option<TableEntry>, TableError> {
        if self.state == State::Fresh {
            self.seek()?;
        }
        while let Some((block, slot)) = self.path.last_mut() {
            if *slot == block.len() {
                self.path.pop();
                continue;
            }
            let (block, at) = (block.clone(), *slot);
            *slot += 1;
            if block.level() == 0 {
                return self.entry(&block, at);
            }
            let child = self.table.child(&block, at)?;
            self.path.push((Arc::new(child), 0));
        }
        Ok(None)
    }

    fn entry(&mut self, block: &Block, slot: usize) -> Result<Option<TableEntry>, TableError> {
        let key = block.key(slot);
        // Within a block the order was checked; this catches two blocks in the wrong order.
        if self.last_key.as_deref().is_some_and(|last| last >= key) {
            return Err(self
                .table
                .damaged(Place::Block(block.offset()), "its keys do not follow those before"));
        }
        if !key.starts_with(&self.prefix) {
            return Ok(None);
        }
        self.last_key = Some(key.to_vec());
        Ok(Some((key.to_vec(), block.value(slot).map(<[u8]>::to_vec))))
    }
}

impl Iterator for TableIter<'_> {
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
