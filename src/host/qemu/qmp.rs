//! A QMP client: JSON lines over a unix socket, blocking, every call with a deadline.
//!
//! QEMU serves one client at a time on a QMP socket. Another one's connection waits in the queue and sees no greeting,
//! so a client stays only for one exchange, and observers have a socket of their own.

pub mod decoder;

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use thiserror::Error;

use self::decoder::{Decoder, Message, ProtocolError};
pub use self::decoder::{Event, LINE_MAX};
use crate::host::vmm::{DIAL_TIMEOUT, DialFailure, dial};

/// How many events are kept for a reader that does not take them. The oldest are dropped first.
const EVENTS_MAX: usize = 1024;

/// Why a QMP exchange failed.
#[derive(Debug, Error)]
pub enum QmpError {
    /// The socket could not be dialled.
    #[error(transparent)]
    Dial(#[from] DialFailure),
    /// QEMU hung up.
    #[error("QEMU closed the connection during {during}")]
    Closed {
        /// The command, or `greeting`.
        during: String,
    },
    /// No answer in time.
    #[error("QEMU did not answer {during} in time; another client may hold its socket")]
    TimedOut {
        /// The command, or `greeting`.
        during: String,
    },
    /// What came is not QMP.
    #[error("QEMU sent {0}")]
    Protocol(#[from] ProtocolError),
    /// The command was refused.
    #[error("QEMU refused {command}: {description} ({class})")]
    Refused {
        /// The command.
        command: String,
        /// QEMU's error class.
        class: String,
        /// QEMU's words.
        description: String,
    },
    /// The socket failed.
    #[error("the QMP socket failed: {0}")]
    Io(#[from] io::Error),
}

/// A connection whose handshake is done.
#[derive(Debug)]
pub struct Qmp {
    stream: UnixStream,
    decoder: Decoder,
    events: VecDeque<Event>,
    next_id: u64,
    version: String,
}

impl Qmp {
    /// Dials `socket` and shakes hands.
    pub fn connect(socket: &Path, deadline: Instant) -> Result<Self, QmpError> {
        Self::handshake(dial(socket, left(deadline).min(DIAL_TIMEOUT))?, deadline)
    }

    /// Shakes hands on a connected stream.
    pub fn handshake(stream: UnixStream, deadline: Instant) -> Result<Self, QmpError> {
        let mut qmp = Self {
            stream,
            decoder: Decoder::default(),
            events: VecDeque::new(),
            next_id: 0,
            version: String::new(),
        };
        qmp.version = loop {
            match qmp.receive("greeting", deadline)? {
                Message::Greeting { version } => break version,
                Message::Event(event) => qmp.keep(event),
                Message::Return { .. } | Message::Error { .. } => {
                    let wrong =
                        ProtocolError::NotMessage("an answer before the greeting".to_owned());
                    return Err(wrong.into());
                }
            }
        };
        qmp.execute("qmp_capabilities", None, deadline)?;
        Ok(qmp)
    }

    /// QEMU's version, `major.minor.micro`.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Runs a command and gives what it returned. Events that come meanwhile are kept for [`Self::next_event`].
    pub fn execute(
        &mut self,
        command: &str,
        arguments: Option<Value>,
        deadline: Instant,
    ) -> Result<Value, QmpError> {
        let expected = self.next_id;
        self.next_id += 1;
        let mut request = json!({ "execute": command, "id": expected });
        if let (Some(arguments), Some(request)) = (arguments, request.as_object_mut()) {
            request.insert("arguments".to_owned(), arguments);
        }
        self.send(&request, command, deadline)?;
        loop {
            match self.receive(command, deadline)? {
                Message::Return { id: Some(id), value } if id == expected => return Ok(value),
                Message::Error { id, class, description } if id.is_none_or(|id| id == expected) => {
                    return Err(QmpError::Refused {
                        command: command.to_owned(),
                        class,
                        description,
                    });
                }
                Message::Event(event) => self.keep(event),
                // An answer to nothing that was asked: not ours to interpret.
                Message::Return { .. } | Message::Error { .. } | Message::Greeting { .. } => {}
            }
        }
    }

    /// The next event; `None` when `deadline` passes without one.
    pub fn next_event(&mut self, deadline: Instant) -> Result<Option<Event>, QmpError> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(Some(event));
            }
            match self.receive("an event", deadline) {
                Ok(Message::Event(event)) => return Ok(Some(event)),
                Ok(Message::Return { .. } | Message::Error { .. } | Message::Greeting { .. }) => {}
                Err(QmpError::TimedOut { .. }) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    fn keep(&mut self, event: Event) {
        if self.events.len() == EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    fn send(&mut self, request: &Value, during: &str, deadline: Instant) -> Result<(), QmpError> {
        let line = format!("{request}\r\n");
        let mut rest = line.as_bytes();
        while !rest.is_empty() {
            let left = some_time(deadline).ok_or_else(|| timed_out(during))?;
            self.stream.set_write_timeout(Some(left))?;
            match self.stream.write(rest) {
                Ok(0) => return Err(closed(during)),
                Ok(written) => rest = rest.get(written..).unwrap_or_default(),
                Err(error) => check(error, during)?,
            }
        }
        Ok(())
    }

    fn receive(&mut self, during: &str, deadline: Instant) -> Result<Message, QmpError> {
        let mut block = [0_u8; 16 << 10];
        loop {
            if let Some(message) = self.decoder.next_message()? {
                return Ok(message);
            }
            let left = some_time(deadline).ok_or_else(|| timed_out(during))?;
            self.stream.set_read_timeout(Some(left))?;
            match self.stream.read(&mut block) {
                Ok(0) => return Err(closed(during)),
                Ok(count) => self.decoder.push(block.get(..count).unwrap_or_default()),
                Err(error) => check(error, during)?,
            }
        }
    }
}

impl AsFd for Qmp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Sorts what a read or write failed with: an interruption, a timeout that the loop will see, or an end.
fn check(error: io::Error, during: &str) -> Result<(), QmpError> {
    match error.kind() {
        io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Ok(()),
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Err(closed(during)),
        _ => Err(error.into()),
    }
}

fn closed(during: &str) -> QmpError {
    QmpError::Closed { during: during.to_owned() }
}

fn timed_out(during: &str) -> QmpError {
    QmpError::TimedOut { during: during.to_owned() }
}

fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// The time left, if any. A socket timeout of zero would mean none.
fn some_time(deadline: Instant) -> Option<Duration> {
    let left = left(deadline);
    (!left.is_zero()).then(|| left.max(Duration::from_millis(1)))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::thread::JoinHandle;

    use super::*;

    const GREETING: &str = r#"{"QMP": {"version": {"qemu": {"major": 7, "minor": 2, "micro": 1}}, "capabilities": []}}"#;

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(50)
    }

    fn far() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    /// A server that says `first`, then answers each line with the next of `answers`, then hangs up.
    fn server(first: String, answers: Vec<String>) -> (UnixStream, JoinHandle<Vec<String>>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let thread = std::thread::spawn(move || {
            let mut reader = BufReader::new(theirs.try_clone().unwrap());
            let mut writer = theirs;
            writer.write_all(first.as_bytes()).unwrap();
            let mut heard = Vec::new();
            for answer in answers {
                let mut line = String::new();
                if reader.read_line(&mut line).unwrap() == 0 {
                    break;
                }
                heard.push(line);
                writer.write_all(answer.as_bytes()).unwrap();
            }
            heard
        });
        (ours, thread)
    }

    fn greeted(answers: &[&str]) -> (Result<Qmp, QmpError>, JoinHandle<Vec<String>>) {
        let answers = answers.iter().map(|answer| format!("{answer}\n")).collect();
        let (stream, thread) = server(format!("{GREETING}\n"), answers);
        (Qmp::handshake(stream, far()), thread)
    }

    #[test]
    fn an_answer_is_found_among_events() {
        let (qmp, server) = greeted(&[
            r#"{"return": {}, "id": 0}"#,
            "{\"event\": \"STOP\"}\n{\"return\": 1, \"id\": 0}\n{\"return\": 2, \"id\": 1}\n{\"event\": \"RESUME\"}",
        ]);
        let mut qmp = qmp.unwrap();
        assert_eq!(qmp.version(), "7.2.1");
        let answer = qmp.execute("query-x", Some(json!({"a": 1})), far()).unwrap();
        assert_eq!(answer, json!(2));
        assert_eq!(qmp.next_event(far()).unwrap().unwrap().name, "STOP");
        assert_eq!(qmp.next_event(far()).unwrap().unwrap().name, "RESUME");
        assert!(matches!(qmp.next_event(far()), Err(QmpError::Closed { .. })));
        let heard = server.join().unwrap();
        let request: Value = serde_json::from_str(&heard[1]).unwrap();
        assert_eq!(request, json!({"execute": "query-x", "arguments": {"a": 1}, "id": 1}));
    }

    #[test]
    fn a_refusal_carries_qemus_words() {
        let (qmp, _server) = greeted(&[
            r#"{"return": {}, "id": 0}"#,
            r#"{"error": {"class": "GenericError", "desc": "no"}, "id": 1}"#,
        ]);
        let error = qmp.unwrap().execute("cont", None, far()).unwrap_err();
        assert_eq!(error.to_string(), "QEMU refused cont: no (GenericError)");
    }

    #[test]
    fn silence_times_out_and_is_not_a_hang_up() {
        let (stream, _kept) = UnixStream::pair().unwrap();
        let error = Qmp::handshake(stream, soon()).unwrap_err();
        assert!(matches!(error, QmpError::TimedOut { .. }), "{error}");
    }

    #[test]
    fn a_hang_up_is_told_from_silence() {
        let (qmp, _server) = greeted(&[r#"{"return": {}, "id": 0}"#]);
        let error = qmp.unwrap().execute("quit", None, far()).unwrap_err();
        assert!(matches!(error, QmpError::Closed { .. }), "{error}");
    }

    #[test]
    fn events_nobody_takes_are_bounded() {
        let flood = "{\"event\": \"E\"}\n".repeat(EVENTS_MAX + 10);
        let last = format!("{flood}{{\"event\": \"LAST\"}}\n{{\"return\": {{}}, \"id\": 1}}");
        let (qmp, _server) = greeted(&[r#"{"return": {}, "id": 0}"#, &last]);
        let mut qmp = qmp.unwrap();
        qmp.execute("x", None, far()).unwrap();
        assert_eq!(qmp.events.len(), EVENTS_MAX);
        assert_eq!(qmp.events.back().unwrap().name, "LAST");
    }

    #[test]
    fn noise_is_an_error() {
        let (stream, _server) = server("SSH-2.0-OpenSSH\r\n".to_owned(), Vec::new());
        let error = Qmp::handshake(stream, far()).unwrap_err();
        assert!(matches!(error, QmpError::Protocol(ProtocolError::NotJson(_))), "{error}");
    }
}
