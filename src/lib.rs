//! The `cocoon` engine.
