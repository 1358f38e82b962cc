//! The pure half of `cocoon`.
