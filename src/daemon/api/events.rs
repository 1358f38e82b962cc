//! `/v1/events`: server-sent events, from the journal.
//!
//! ```text
//!   event: sync     data: {"vms": [...]}                        all VMs: forget what you had
//!   event: change   data: {"kind": "MODIFIED", "vm": {...}, "seq": N}
//! ```
//!
//! Each carries `id:`, the number of the last event that it covers. A client that comes back with `Last-Event-ID` (or
//! `?since=N`) gets every change after it, none lost and none twice, however many daemons came and went meanwhile; only if
//! the journal no longer (or not yet) has that place does it begin with a `sync` again.
//!
//! Each stream follows the journal by itself, so a slow reader delays nobody. One that takes nothing for ten seconds while
//! there is something to take is disconnected; it comes back and goes on where it was.

use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use hyper::body::{Bytes, Incoming};
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::{Answer, Shared, StatusCode, refusal, with_headers};
use crate::engine::follow::{Follower, Update};
use crate::engine::{Engine, EngineError};
use hyper::Response;

/// Messages that wait for a reader.
const QUEUE: usize = 128;
/// How long a reader may leave a full queue alone.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often a silent stream says that it is there.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// The reader has gone, or is too slow.
#[derive(Debug)]
struct Gone;

/// Answers with a stream.
pub(super) async fn answer(request: &Request<Incoming>, shared: &Arc<Shared>) -> Response<Answer> {
    let after = match place(request) {
        Ok(after) => after,
        Err(what) => return refusal(StatusCode::BAD_REQUEST, &what),
    };
    let Ok(permit) = Arc::clone(&shared.streams).try_acquire_owned() else {
        return refusal(StatusCode::SERVICE_UNAVAILABLE, "too many event streams; try again later");
    };
    let engine = Arc::clone(&shared.engine);
    let opened = spawn_blocking(move || open(&engine, after)).await;
    let (follower, fresh) = match opened {
        Ok(Ok(opened)) => opened,
        Ok(Err(error)) => return refusal(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
        Err(_) => return refusal(StatusCode::INTERNAL_SERVER_ERROR, "the journal was not opened"),
    };
    // SAFETY: the descriptor is the follower's own for as long as it lives, and it is never given another one.
    let follower = match unsafe { AsyncFd::register(follower) } {
        Ok(follower) => follower,
        Err(error) => return refusal(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    };
    let (sender, receiver) = mpsc::channel(QUEUE);
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        // The end of a stream needs no reason: the client comes back.
        let _ = stream(follower, fresh, &shared, &sender).await;
        drop(permit);
    });
    with_headers(StatusCode::OK, "text/event-stream", Answer::Stream(receiver))
}

/// After which event the client wants to go on.
fn place(request: &Request<Incoming>) -> Result<Option<u64>, String> {
    let header = request.headers().get("last-event-id").map(|value| value.to_str().unwrap_or("?"));
    let query = request.uri().query().unwrap_or_default();
    let since = query.split('&').find_map(|pair| pair.strip_prefix("since="));
    header
        .or(since)
        .filter(|text| !text.is_empty())
        .map(|text| text.parse().map_err(|_| format!("`{text}` is not the number of an event")))
        .transpose()
}

/// A follower from the place that is wanted, and whether it begins afresh instead.
fn open(engine: &Engine, after: Option<u64>) -> Result<(Follower, bool), EngineError> {
    use cocoon_journal::JournalError;
    let Some(after) = after else { return Ok((engine.follow()?, true)) };
    match engine.follow_since(after) {
        Ok(follower) => Ok((follower, false)),
        Err(EngineError::Invalid(_) | EngineError::Journal(JournalError::HistoryBegins { .. })) => {
            Ok((engine.follow()?, true))
        }
        Err(error) => Err(error),
    }
}

async fn stream(
    mut follower: AsyncFd<Follower>,
    fresh: bool,
    shared: &Shared,
    to: &mpsc::Sender<Bytes>,
) -> Result<(), Gone> {
    if fresh {
        send(to, sync(follower.get_ref(), shared)).await?;
    } else {
        send(to, Bytes::from_static(b": resumed\n\n")).await?;
    }
    loop {
        // Read before sleeping: only then does the descriptor tell of what comes after.
        while let Some(update) = next(&mut follower)? {
            if let Some(message) = change(&update, shared) {
                send(to, message).await?;
            }
        }
        match timeout(KEEP_ALIVE, follower.readable_mut()).await {
            Ok(Ok(mut ready)) => ready.clear_ready(),
            Ok(Err(_)) => return Err(Gone),
            Err(_) => send(to, Bytes::from_static(b": here\n\n")).await?,
        }
    }
}

fn next(follower: &mut AsyncFd<Follower>) -> Result<Option<Update>, Gone> {
    follower.get_mut().try_next().map_err(|error| {
        tracing::warn!("an event stream ends: {error}");
        Gone
    })
}

async fn send(to: &mpsc::Sender<Bytes>, message: Bytes) -> Result<(), Gone> {
    send_within(PATIENCE, to, message).await
}

async fn send_within(
    patience: Duration,
    to: &mpsc::Sender<Bytes>,
    message: Bytes,
) -> Result<(), Gone> {
    match timeout(patience, to.send(message)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) | Err(_) => Err(Gone),
    }
}

fn sync(follower: &Follower, shared: &Shared) -> Bytes {
    let vms: Vec<_> = follower.vms().map(|record| shared.board.line_of(record)).collect();
    message("sync", follower.seq(), &serde_json::json!({ "vms": vms }))
}

fn change(update: &Update, shared: &Shared) -> Option<Bytes> {
    let kind = update.kind?.as_str();
    let vm = shared.board.line_of(&update.record);
    let data = serde_json::json!({ "kind": kind, "vm": vm, "seq": update.seq });
    Some(message("change", update.seq, &data))
}

fn message(event: &str, id: u64, data: &serde_json::Value) -> Bytes {
    format!("event: {event}\nid: {id}\ndata: {data}\n\n").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_takes_nothing_is_given_up_and_one_that_comes_late_is_not() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (sender, mut receiver) = mpsc::channel(1);
            let message = || Bytes::from_static(b"x");
            let within = |patience| send_within(patience, &sender, message());
            within(Duration::ZERO).await.unwrap();
            within(Duration::from_millis(1)).await.unwrap_err();
            let (sent, taken) = tokio::join!(within(Duration::from_secs(60)), receiver.recv());
            assert!(sent.is_ok() && taken.is_some());
            drop(receiver);
            within(Duration::from_secs(60)).await.unwrap_err();
        });
    }
}
