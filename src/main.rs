//! The `cocoon` command.

fn main() {}
