//! The journal from outside: as many handles and processes as it takes.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod basics;
mod child;
mod crash;
mod failing;
mod faults;
mod hostile;
mod many;
mod newer;
mod power;
mod support;
mod surroundings;
mod tailing;
mod torn;
mod torture;
mod transfer;
mod whole;
