//! The journal from outside: as many handles and processes as it takes.

mod basics;
mod support;
