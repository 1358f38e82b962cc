//! One QMP socket: it serves one client at a time, the next waits in the queue, as with QEMU.

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

/// A line beyond this ends the connection.
const LINE_MAX: usize = 1 << 20;

/// A listening socket and its client.
#[derive(Debug)]
pub struct Monitor {
    path: PathBuf,
    listener: UnixListener,
    client: Option<Client>,
}

#[derive(Debug)]
struct Client {
    stream: UnixStream,
    buffer: Vec<u8>,
    negotiated: bool,
}

/// One command of a client.
#[derive(Clone, Debug, PartialEq)]
pub struct Command {
    /// Its name.
    pub name: String,
    /// Its arguments.
    pub arguments: Value,
    /// Its id, to be repeated in the answer.
    pub id: Option<Value>,
}

impl Monitor {
    /// Binds `path`, replacing a socket that is there, as QEMU does.
    pub fn bind(path: &Path) -> Result<Self, String> {
        let listener = bind(path)?;
        Ok(Self { path: path.to_owned(), listener, client: None })
    }

    /// Where the socket is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The descriptor to wait for: the client's, or the listener's while there is none.
    #[must_use]
    pub fn descriptor(&self) -> std::os::fd::BorrowedFd<'_> {
        use std::os::fd::AsFd as _;
        match &self.client {
            Some(client) => client.stream.as_fd(),
            None => self.listener.as_fd(),
        }
    }

    /// Takes in what has come: a new client, or commands.
    pub fn receive(&mut self) -> Vec<Command> {
        if self.client.is_none() {
            self.accept();
            return Vec::new();
        }
        let mut commands = Vec::new();
        if self.read().is_err() {
            self.client = None;
            return commands;
        }
        while let Some(line) = self.next_line() {
            match parse(&line) {
                Some(command) if command.name == "qmp_capabilities" => {
                    if let Some(client) = &mut self.client {
                        client.negotiated = true;
                    }
                    self.answer(&command, &json!({ "return": {} }));
                }
                Some(command) if self.is_negotiated() => commands.push(command),
                Some(command) => self.refuse(
                    &command,
                    "CommandNotFound",
                    "Expecting capabilities negotiation with 'qmp_capabilities'",
                ),
                None => self.say(
                    &json!({ "error": { "class": "GenericError", "desc": "JSON parse error" } }),
                ),
            }
        }
        commands
    }

    /// Answers a command; `answer` gets its id.
    pub fn answer(&mut self, command: &Command, answer: &Value) {
        let mut answer = answer.clone();
        if let (Some(object), Some(id)) = (answer.as_object_mut(), &command.id) {
            object.insert("id".to_owned(), id.clone());
        }
        self.say(&answer);
    }

    /// Answers a command with an error.
    pub fn refuse(&mut self, command: &Command, class: &str, description: &str) {
        self.answer(command, &json!({ "error": { "class": class, "desc": description } }));
    }

    /// Tells the client, if one has shaken hands, that something happened.
    pub fn tell(&mut self, event: &str, data: &Value) {
        if !self.is_negotiated() {
            return;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let timestamp = json!({ "seconds": now.as_secs(), "microseconds": now.subsec_micros() });
        let mut message = json!({ "timestamp": timestamp, "event": event });
        if let (Some(object), false) = (message.as_object_mut(), data.is_null()) {
            object.insert("data".to_owned(), data.clone());
        }
        self.say(&message);
    }

    fn is_negotiated(&self) -> bool {
        self.client.as_ref().is_some_and(|client| client.negotiated)
    }

    fn accept(&mut self) {
        let Ok((stream, _)) = self.listener.accept() else { return };
        if stream.set_nonblocking(true).is_ok() {
            self.client = Some(Client { stream, buffer: Vec::new(), negotiated: false });
        }
        let version = json!({ "qemu": { "major": 7, "minor": 2, "micro": 22 }, "package": "cocoon-fake-vmm" });
        self.say(&json!({ "QMP": { "version": version, "capabilities": ["oob"] } }));
    }

    fn read(&mut self) -> io::Result<()> {
        let Some(client) = &mut self.client else { return Ok(()) };
        let mut block = [0_u8; 4096];
        loop {
            match client.stream.read(&mut block) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    client.buffer.extend_from_slice(block.get(..count).unwrap_or_default());
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if client.buffer.len() > LINE_MAX {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
    }

    fn next_line(&mut self) -> Option<Vec<u8>> {
        let client = self.client.as_mut()?;
        let end = client.buffer.iter().position(|byte| *byte == b'\n')?;
        let rest = client.buffer.split_off(end + 1);
        Some(std::mem::replace(&mut client.buffer, rest))
    }

    /// A client that does not take what it is told is dropped: nothing here waits for anyone.
    fn say(&mut self, message: &Value) {
        if let Some(client) = &mut self.client
            && client.stream.write_all(format!("{message}\r\n").as_bytes()).is_err()
        {
            self.client = None;
        }
    }
}

fn parse(line: &[u8]) -> Option<Command> {
    let message: Value = serde_json::from_slice(line).ok()?;
    Some(Command {
        name: message.get("execute")?.as_str()?.to_owned(),
        arguments: message.get("arguments").cloned().unwrap_or(Value::Null),
        id: message.get("id").cloned(),
    })
}

/// A listening socket at `path`, in place of one that is there.
pub fn bind(path: &Path) -> Result<UnixListener, String> {
    let failed = |error: io::Error| format!("Failed to bind socket to {}: {error}", path.display());
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let listener = UnixListener::bind(path).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_line_is_a_command_or_none(line in prop::collection::vec(any::<u8>(), 0..256)) {
            parse(&line);
        }
    }
}
