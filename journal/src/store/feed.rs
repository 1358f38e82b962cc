//! One thread that owns the store, for a process that runs long.
//!
//! ```text
//!  daemon --CatchUp(durable)--> channel --> thread: drain, keep the furthest position, catch up
//!         --Ask(question)----->                     answer questions in between
//! ```

use std::io;
use std::thread::{Builder, JoinHandle};

use crossbeam_channel::{Receiver, Sender};

use super::{CaughtUp, FrameSource, Store, StoreError};
use crate::frame::Position;

/// Messages that wait before a sender does. A [`FeedMessage::CatchUp`] that finds the channel full
/// may be dropped: the next one covers it.
pub const FEED_CAPACITY: usize = 1024;

/// What the thread that owns the store is asked to do.
pub enum FeedMessage {
    /// The log is durable up to here: follow it. Several that wait become one.
    CatchUp(Position),
    /// Run this with the store; it sends its answer itself.
    Ask(Box<dyn FnOnce(&mut Store) + Send>),
}

/// Starts the one thread that uses the store, with blocking calls. It ends, and returns the store,
/// when all senders are gone and the channel is empty. Each catch-up's outcome goes to `report`.
///
/// # Errors
/// The system refuses another thread.
pub fn spawn_writer<S, R>(
    store: Store,
    source: S,
    report: R,
) -> io::Result<(Sender<FeedMessage>, JoinHandle<Store>)>
where
    S: FrameSource + Send + 'static,
    R: FnMut(Result<CaughtUp, StoreError>) + Send + 'static,
{
    let (sender, receiver) = crossbeam_channel::bounded(FEED_CAPACITY);
    let writer = move || run(store, &source, &receiver, report);
    let thread = Builder::new().name("journal-store".to_owned()).spawn(writer)?;
    Ok((sender, thread))
}

fn run<S: FrameSource>(
    mut store: Store,
    source: &S,
    receiver: &Receiver<FeedMessage>,
    mut report: impl FnMut(Result<CaughtUp, StoreError>),
) -> Store {
    while let Ok(message) = receiver.recv() {
        let mut durable = None;
        // Bounded, or a busy log would put the catch-up off for ever.
        let waiting = receiver.try_iter().take(FEED_CAPACITY);
        for message in std::iter::once(message).chain(waiting) {
            match message {
                FeedMessage::CatchUp(position) => {
                    durable = Some(furthest(durable, position));
                }
                FeedMessage::Ask(question) => {
                    // Whoever told of a position before asking sees it in the answer.
                    if let Some(position) = durable.take() {
                        report(store.catch_up(source, position));
                    }
                    question(&mut store);
                }
            }
        }
        if let Some(position) = durable {
            report(store.catch_up(source, position));
        }
    }
    store
}

fn furthest(known: Option<Position>, position: Position) -> Position {
    known.filter(|known| known.seq > position.seq).unwrap_or(position)
}
