//! The `cocoon` engine: runs microVMs on a host and never loses track of one.
//!
//! The way of a request: [`cli`] parses it, [`engine`] takes the lock that it needs ([`host::lock`]), has the journal
//! decide it, performs the steps that the record then owes through one door ([`engine::effect`]), and journals each
//! outcome. Recovery is the same way, entered in the middle.

pub mod cli;
pub mod codec;
pub mod daemon;
pub mod engine;
pub mod home;
pub mod host;
pub mod replay;
pub mod settings;
