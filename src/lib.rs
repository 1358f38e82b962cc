//! The `cocoon` engine.

pub mod host;
