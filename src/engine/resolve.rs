//! What a user's reference means.
//!
//! An exact id, else an exact name, else the beginning of an id, of at least three characters.

use cocoon_model::id::Id;
use cocoon_model::view::View;

use super::EngineError;

/// The shortest beginning of an id that counts.
const SHORTEST_PREFIX: usize = 3;

/// Candidates that an error lists.
const CANDIDATES: usize = 8;

/// The VM that a reference means.
///
/// # Errors
/// [`EngineError::NotFound`] or [`EngineError::Ambiguous`]; or the state cannot be read.
pub fn vm(view: &impl View, reference: &str) -> Result<Id, EngineError> {
    if let Ok(id) = reference.parse()
        && view.vm(id)?.is_some()
    {
        return Ok(id);
    }
    if let Some(id) = view.vm_by_name(reference)? {
        return Ok(id);
    }
    let is_prefix = reference.len() >= SHORTEST_PREFIX;
    let found = if is_prefix { view.vms_by_prefix(reference, CANDIDATES)? } else { Vec::new() };
    match found.as_slice() {
        [one] => Ok(*one),
        [] => Err(EngineError::NotFound { what: "vm", reference: reference.to_owned() }),
        several => {
            let mut candidates = Vec::new();
            for id in several {
                let name = view.vm(*id)?.map(|record| record.core.name.clone()).unwrap_or_default();
                candidates.push(format!("{id} ({name})"));
            }
            Err(EngineError::Ambiguous { reference: reference.to_owned(), candidates })
        }
    }
}

/// The image that a reference means: its name, or its id.
///
/// # Errors
/// [`EngineError::NotFound`]; or the state cannot be read.
pub fn image(view: &impl View, reference: &str) -> Result<Id, EngineError> {
    if let Some(id) = view.image_by_name(reference)? {
        return Ok(id);
    }
    if let Ok(id) = reference.parse()
        && view.image(id)?.is_some()
    {
        return Ok(id);
    }
    Err(EngineError::NotFound { what: "image", reference: reference.to_owned() })
}
