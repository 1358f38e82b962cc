//! Clearing away a placeholder whose creator is dead.
//!
//! The one body of the verb `vm reconcile-stale-create`, of gc and of the daemon, and of `vm create` on a name that such a
//! placeholder holds. The free ops lock is the whole proof: a creator holds it from before the record is there until after
//! it is committed, and it dies with its holder. No age is looked at.

use cocoon_model::id::VmId;
use cocoon_model::record::VmState;

use super::caller::Caller;
use super::drive::Haste;
use super::{Engine, EngineError};
use crate::host::lock::Holder;

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reconciled {
    /// The placeholder is gone, the name free.
    Collected,
    /// Its creator lives; nothing was touched.
    Busy(Option<Box<Holder>>),
    /// It is no placeholder.
    NotCreating,
    /// There is no such record.
    NotFound,
}

impl Reconciled {
    /// The word in JSON.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Collected => "collected",
            Self::Busy(_) => "busy",
            Self::NotCreating => "not-creating",
            Self::NotFound => "not-found",
        }
    }
}

impl Engine {
    /// Clears a placeholder away if its creator is dead.
    ///
    /// # Errors
    /// The journal, the lock, or a VMM that will not die.
    pub fn reclaim(&self, id: VmId, caller: &Caller) -> Result<Reconciled, EngineError> {
        self.require_confirmed()?;
        match self.vm(id)? {
            None => return Ok(Reconciled::NotFound),
            Some(record) if record.core.state != VmState::Creating => {
                return Ok(Reconciled::NotCreating);
            }
            Some(_) => {}
        }
        let guard = match self.locks().try_ops(id.as_str(), &caller.holder()?)? {
            Ok(guard) => guard,
            Err(busy) => return Ok(Reconciled::Busy(busy.holder)),
        };
        // Between the look and the lock its creator may have finished: only what is seen under the lock counts.
        match self.vm(id)? {
            None => {
                self.sweep_ops_lock(&guard);
                return Ok(Reconciled::NotFound);
            }
            Some(record) if record.core.state != VmState::Creating => {
                return Ok(Reconciled::NotCreating);
            }
            Some(_) => {}
        }
        self.recover_locked(&guard, caller, id, Haste::None)?;
        Ok(Reconciled::Collected)
    }
}
