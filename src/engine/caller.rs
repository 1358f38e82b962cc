//! Who acts: one operation of one process.

use std::time::{Duration, Instant};

use cocoon_journal::Writer;
use cocoon_model::id::OperationId;
use uuid::Uuid;

use super::EngineError;
use crate::host::lock::Holder;
use crate::host::process::{self, ProcessIdentity};

/// One operation: everything that one command, or one recovery, does to one subject.
#[derive(Debug, Clone)]
pub struct Caller {
    /// Its id.
    pub operation: Uuid,
    /// The verb, as typed.
    pub verb: &'static str,
    identity: ProcessIdentity,
    deadline: Option<Instant>,
}

impl Caller {
    /// A new operation of this process.
    ///
    /// # Errors
    /// If this process cannot be identified.
    pub fn new(verb: &'static str, timeout: Option<Duration>) -> Result<Self, EngineError> {
        let identity = process::own_identity()?;
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        Ok(Self { operation: Uuid::new_v4(), verb, identity, deadline })
    }

    /// The same process and deadline, for another subject.
    #[must_use]
    pub fn another(&self) -> Self {
        Self { operation: Uuid::new_v4(), ..self.clone() }
    }

    /// The operation as the model knows it.
    #[must_use]
    pub fn id(&self) -> OperationId {
        OperationId(self.operation.as_u128())
    }

    /// Until when locks are waited for.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// What the journal writes of the actor.
    #[must_use]
    pub fn writer(&self) -> Writer {
        Writer {
            operation: self.operation,
            pid: self.identity.pid,
            start_time: self.identity.start_time,
            verb: self.verb.to_owned(),
        }
    }

    /// What a lock file says of its holder.
    ///
    /// # Errors
    /// If this process cannot be identified.
    pub fn holder(&self) -> Result<Holder, EngineError> {
        Ok(Holder::own(self.verb, self.operation)?)
    }
}
