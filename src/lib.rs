//! The `cocoon` engine: runs microVMs on a host and never loses track of one.
//!
//! The way of a request: [`cli`] parses it, [`engine`] takes the lock that it needs ([`host::lock`]), has the journal
//! decide it, performs the steps that the record then owes through one door ([`engine::effect`]), and journals each
//! outcome. Recovery is the same way, entered in the middle.
//!
//! A program that embeds the engine does what the command line does:
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use cocoon::engine::{Caller, Engine};
//! use cocoon::settings::{Given, Settings};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let given = Given { root_dir: Some("/srv/vms".into()), ..Given::default() };
//! let engine = Engine::open(Settings::load(given, None)?)?;
//! let web = engine.resolve("web")?;
//! // One operation of this process: its verb is what others read who meet its lock.
//! let caller = Caller::new("my-service start", Some(Duration::from_secs(60)))?;
//! let record = engine.start(web, &caller)?;
//! println!("{} is {}", record.core.name, record.core.state.as_str());
//! # Ok(())
//! # }
//! ```
//!
//! Calls block; each may be made from any thread.

pub mod cli;
pub mod codec;
pub mod daemon;
pub mod engine;
pub mod home;
pub mod host;
pub mod replay;
pub mod settings;
