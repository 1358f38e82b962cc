//! Bytes to QMP messages. No I/O; whatever the bytes are, the outcome is a message or an error.

use serde_json::{Map, Value};
use thiserror::Error;

/// The longest line that is accepted, in bytes. QEMU's own answers to what is asked here stay far below.
pub const LINE_MAX: usize = 1 << 20;

/// One message of a QMP server.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// The first line of a connection.
    Greeting {
        /// QEMU's version, `major.minor.micro`.
        version: String,
    },
    /// The answer to a command.
    Return {
        /// The id that the command carried.
        id: Option<u64>,
        /// What it returned.
        value: Value,
    },
    /// A command was refused.
    Error {
        /// The id that the command carried.
        id: Option<u64>,
        /// The class, such as `GenericError` or `CommandNotFound`.
        class: String,
        /// QEMU's words.
        description: String,
    },
    /// Something happened.
    Event(Event),
}

/// Something that happened, as QEMU says it.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Its name, such as `SHUTDOWN`.
    pub name: String,
    /// What belongs to it.
    pub data: Map<String, Value>,
}

/// Bytes that are not QMP. The connection is of no use afterwards.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ProtocolError {
    /// A line beyond [`LINE_MAX`].
    #[error("a line of more than {LINE_MAX} bytes")]
    TooLong,
    /// A line that is no JSON object.
    #[error("a line that is no JSON object: {0}")]
    NotJson(String),
    /// An object that is no message.
    #[error("an object that is no message: {0}")]
    NotMessage(String),
}

/// Cuts a byte stream into messages.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    /// Bytes of `buffer` that are known to hold no line end.
    scanned: usize,
}

impl Decoder {
    /// Takes bytes in. Memory stays within [`LINE_MAX`] and one push as long as [`Self::next_message`] is called
    /// until it gives `None` before the next push.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole message.
    pub fn next_message(&mut self) -> Result<Option<Message>, ProtocolError> {
        while let Some(line) = self.next_line()? {
            let line = line.trim_ascii();
            if !line.is_empty() {
                return parse(line).map(Some);
            }
        }
        Ok(None)
    }

    fn next_line(&mut self) -> Result<Option<Vec<u8>>, ProtocolError> {
        let unscanned = self.buffer.get(self.scanned..).unwrap_or_default();
        let Some(at) = unscanned.iter().position(|byte| *byte == b'\n') else {
            self.scanned = self.buffer.len();
            return if self.scanned > LINE_MAX { Err(ProtocolError::TooLong) } else { Ok(None) };
        };
        let end = self.scanned + at;
        if end > LINE_MAX {
            return Err(ProtocolError::TooLong);
        }
        let rest = self.buffer.split_off(end + 1);
        let line = std::mem::replace(&mut self.buffer, rest);
        self.scanned = 0;
        Ok(Some(line))
    }
}

fn parse(line: &[u8]) -> Result<Message, ProtocolError> {
    let object: Map<String, Value> =
        serde_json::from_slice(line).map_err(|_| ProtocolError::NotJson(excerpt(line)))?;
    message(object).ok_or_else(|| ProtocolError::NotMessage(excerpt(line)))
}

fn message(mut object: Map<String, Value>) -> Option<Message> {
    let id = object.get("id").and_then(Value::as_u64);
    if let Some(value) = object.remove("return") {
        return Some(Message::Return { id, value });
    }
    if let Some(error) = object.get("error") {
        let class = error.get("class")?.as_str()?.to_owned();
        let description = error.get("desc")?.as_str()?.to_owned();
        return Some(Message::Error { id, class, description });
    }
    if let Some(Value::String(name)) = object.remove("event") {
        let data = match object.remove("data") {
            Some(Value::Object(data)) => data,
            _ => Map::new(),
        };
        return Some(Message::Event(Event { name, data }));
    }
    let version = object.get("QMP")?.get("version")?.get("qemu")?;
    let part = |name| version.get(name).and_then(Value::as_u64);
    let version = format!("{}.{}.{}", part("major")?, part("minor")?, part("micro")?);
    Some(Message::Greeting { version })
}

fn excerpt(line: &[u8]) -> String {
    let start = line.get(..80).unwrap_or(line);
    String::from_utf8_lossy(start).escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn all(bytes: &[u8], cuts: &[usize]) -> (Vec<Message>, Option<ProtocolError>) {
        let mut decoder = Decoder::default();
        let mut messages = Vec::new();
        let mut rest = bytes;
        for cut in cuts.iter().chain([&usize::MAX]) {
            let (head, tail) = rest.split_at((*cut).min(rest.len()));
            rest = tail;
            decoder.push(head);
            loop {
                match decoder.next_message() {
                    Ok(Some(message)) => messages.push(message),
                    Ok(None) => break,
                    Err(error) => return (messages, Some(error)),
                }
            }
        }
        (messages, None)
    }

    #[test]
    fn what_qemu_says_is_understood() {
        let bytes = concat!(
            r#"{"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}, "package": "Debian"}, "capabilities": ["oob"]}}"#,
            "\r\n\r\n",
            r#"{"return": {"status": "running"}, "id": 7}"#,
            "\r\n",
            r#"{"id": 8, "error": {"class": "CommandNotFound", "desc": "The command x has not been found"}}"#,
            "\r\n",
            r#"{"timestamp": {"seconds": 1, "microseconds": 2}, "event": "SHUTDOWN", "data": {"guest": true, "reason": "guest-shutdown"}}"#,
            "\r\n",
        );
        let (messages, error) = all(bytes.as_bytes(), &[]);
        assert_eq!(error, None);
        let data = json!({"guest": true, "reason": "guest-shutdown"});
        let expected = vec![
            Message::Greeting { version: "7.2.22".to_owned() },
            Message::Return { id: Some(7), value: json!({"status": "running"}) },
            Message::Error {
                id: Some(8),
                class: "CommandNotFound".to_owned(),
                description: "The command x has not been found".to_owned(),
            },
            Message::Event(Event {
                name: "SHUTDOWN".to_owned(),
                data: data.as_object().unwrap().clone(),
            }),
        ];
        assert_eq!(messages, expected);
    }

    #[test]
    fn a_line_without_end_is_refused_at_the_limit() {
        let mut decoder = Decoder::default();
        decoder.push(&vec![b' '; LINE_MAX]);
        assert_eq!(decoder.next_message(), Ok(None));
        decoder.push(b" ");
        assert_eq!(decoder.next_message(), Err(ProtocolError::TooLong));
    }

    #[test]
    fn deep_nesting_is_an_error_and_no_overflow() {
        let bytes = [vec![b'['; 500_000], vec![b'\n']].concat();
        assert!(matches!(all(&bytes, &[]).1, Some(ProtocolError::NotJson(_))));
        let bytes = [br#"{"return":"#.to_vec(), vec![b'['; 500_000], vec![b'\n']].concat();
        assert!(matches!(all(&bytes, &[]).1, Some(ProtocolError::NotJson(_))));
    }

    fn json_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            ".{0,12}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 16, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec((key(), inner), 0..4)
                    .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
            ]
        })
    }

    /// Keys that the decoder looks for, so that nearly valid messages are common.
    fn key() -> impl Strategy<Value = String> {
        prop::sample::select(vec![
            "return", "error", "class", "desc", "event", "data", "id", "QMP", "version", "qemu",
            "major",
        ])
        .prop_map(str::to_owned)
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..2048)) {
            all(&bytes, &[]);
        }

        #[test]
        fn arbitrary_objects_never_panic(values in prop::collection::vec(json_value(), 0..6)) {
            for value in values {
                all(format!("{value}\n").as_bytes(), &[]);
            }
        }

        #[test]
        fn where_the_stream_is_cut_does_not_matter(
            values in prop::collection::vec(json_value(), 0..6),
            cuts in prop::collection::vec(0_usize..40, 0..20),
        ) {
            let mut bytes = Vec::new();
            for (id, value) in values.iter().enumerate() {
                bytes.extend(format!("{}\n", json!({"return": value, "id": id})).bytes());
            }
            let whole = all(&bytes, &[]);
            prop_assert_eq!(whole.0.len(), values.len());
            prop_assert_eq!(&whole, &all(&bytes, &cuts));
        }
    }
}
