//! The API: read-only HTTP on a unix socket.
//!
//! | request | answer |
//! |---|---|
//! | `GET /healthz` | `{ok, degraded, last_pass, vms}`; 503 only if VMs cannot be looked at, or were not for three intervals |
//! | `GET /v1/vms` | `{"vms": [...]}`, as last seen |
//! | `GET /v1/events` | server-sent events, see [`events`] |
//! | `GET /metrics` | Prometheus text |
//!
//! One thread with a tokio runtime of its own, because hyper needs one; nothing here waits for the supervisor, and the
//! supervisor waits for nothing here.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::DaemonError;
use super::board::Board;
use crate::engine::Engine;

mod events;
mod metrics;
mod socket;

pub(super) use socket::Listener;
pub use socket::SocketError;

/// How long a client may take to send a request's head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Connections at a time; more wait to be accepted.
const CONNECTIONS: usize = 256;
/// Event streams at a time; more are refused.
const STREAMS: usize = 64;

/// What all requests share.
struct Shared {
    engine: Arc<Engine>,
    board: Arc<Board>,
    streams: Arc<Semaphore>,
}

/// A running API; it ends with this value.
#[derive(Debug)]
pub(super) struct Serving {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    socket: Listener,
    sockets: mpsc::UnboundedSender<std::os::unix::net::UnixListener>,
}

/// Serves on a socket.
pub(super) fn serve(
    listener: Listener,
    engine: Arc<Engine>,
    board: Arc<Board>,
) -> Result<Serving, DaemonError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(DaemonError::system("start the API"))?;
    let accepting = {
        let _entered = runtime.enter();
        let accepting =
            listener.accepting().map_err(DaemonError::system("share the API socket"))?;
        UnixListener::from_std(accepting).map_err(DaemonError::system("listen for the API"))?
    };
    let shared = Shared { engine, board, streams: Arc::new(Semaphore::new(STREAMS)) };
    let (stop, stopped) = oneshot::channel();
    let (sockets, replacements) = mpsc::unbounded_channel();
    let serve = move || {
        runtime.block_on(async {
            tokio::select! {
                () = accept(accepting, replacements, Arc::new(shared)) => {}
                _ = stopped => {}
            }
        });
        runtime.shutdown_background();
    };
    let thread = std::thread::Builder::new()
        .name("api".to_owned())
        .spawn(serve)
        .map_err(DaemonError::system("start a thread"))?;
    Ok(Serving { stop: Some(stop), thread: Some(thread), socket: listener, sockets })
}

impl Serving {
    /// Makes the socket anew if somebody has removed it; whether that was so. Connections that are there stay.
    pub(super) fn restore(&mut self) -> Result<bool, DaemonError> {
        if !self.socket.restore()? {
            return Ok(false);
        }
        let accepting =
            self.socket.accepting().map_err(DaemonError::system("share the API socket"))?;
        // A thread that is gone accepts nothing, wherever its socket is.
        let _ = self.sockets.send(accepting);
        Ok(true)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::warn!("the thread of the API panicked");
        }
    }
}

type Replacements = mpsc::UnboundedReceiver<std::os::unix::net::UnixListener>;

async fn accept(mut listener: UnixListener, mut replacements: Replacements, shared: Arc<Shared>) {
    let connections = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(permit) = Arc::clone(&connections).acquire_owned().await else { return };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(replacement) = replacements.recv() => {
                match UnixListener::from_std(replacement) {
                    Ok(replacement) => listener = replacement,
                    Err(error) => tracing::warn!("cannot listen for the API: {error}"),
                }
                continue;
            }
        };
        match accepted {
            Ok((stream, _)) => {
                let shared = Arc::clone(&shared);
                tokio::spawn(async move {
                    connection(stream, shared).await;
                    drop(permit);
                });
            }
            Err(error) => {
                // No descriptors, most likely: some will be free again.
                tracing::warn!("cannot accept a connection to the API: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn connection(stream: UnixStream, shared: Arc<Shared>) {
    let service = service_fn(move |request| {
        let shared = Arc::clone(&shared);
        async move { Ok::<_, Infallible>(answer(&request, &shared).await) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!("a connection to the API ended: {error}");
    }
}

/// Paths that are served.
const PATHS: [&str; 4] = ["/healthz", "/v1/vms", "/v1/events", "/metrics"];

async fn answer(request: &Request<Incoming>, shared: &Arc<Shared>) -> Response<Answer> {
    let path = request.uri().path();
    if !PATHS.contains(&path) {
        return refusal(
            StatusCode::NOT_FOUND,
            &format!("no such path; there are {}", PATHS.join(", ")),
        );
    }
    if request.method() != Method::GET {
        let mut response = refusal(StatusCode::METHOD_NOT_ALLOWED, "this API can only be read");
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
        return response;
    }
    match path {
        "/healthz" => {
            let health = shared.board.health();
            let code = if health.ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
            json(code, &health)
        }
        "/v1/vms" => json(StatusCode::OK, &serde_json::json!({ "vms": shared.board.lines() })),
        "/metrics" => {
            let text = metrics::render(&shared.board);
            whole(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text.into())
        }
        _ => events::answer(request, shared).await,
    }
}

/// The body of an answer: all of it, or what comes through a channel.
enum Answer {
    Whole(Option<Bytes>),
    Stream(mpsc::Receiver<Bytes>),
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut *self {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Stream(receiver) => {
                receiver.poll_recv(context).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }
}

fn whole(code: StatusCode, kind: &'static str, bytes: Bytes) -> Response<Answer> {
    with_headers(code, kind, Answer::Whole(Some(bytes)))
}

fn with_headers(code: StatusCode, kind: &'static str, body: Answer) -> Response<Answer> {
    let mut response = Response::new(body);
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn json(code: StatusCode, value: &impl Serialize) -> Response<Answer> {
    match serde_json::to_vec(value) {
        Ok(bytes) => whole(code, "application/json", bytes.into()),
        Err(error) => {
            let text = format!("cannot write JSON: {error}\n");
            whole(StatusCode::INTERNAL_SERVER_ERROR, "text/plain", text.into())
        }
    }
}

fn refusal(code: StatusCode, what: &str) -> Response<Answer> {
    json(code, &serde_json::json!({ "error": what }))
}
