//! The daemon and the streams, from outside: real processes, killed and stopped for real, over the fake VMM; one test over
//! a real QEMU with a real guest, skipped where there is none unless `COCOON_REQUIRE` names `qemu`.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test ends at what it did not expect")]

mod adopt;
mod api;
mod deaths;
mod embedder;
mod leftovers;
mod life;
mod process;
mod root;
mod status;
