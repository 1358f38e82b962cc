//! Every verb, killed at every boundary between its effects, and recovered by every actor.
//!
//! ```text
//!   prepare ─► verb, SIGKILL at boundary n ─► judge ─► recovery by one actor ─► judge ─► gc ─► judge at rest
//!                                                                              ─► the same name once more ─► judge at rest
//! ```
//!
//! The boundaries of each verb are listed in `boundaries/<verb>.txt`, so that a new effect cannot come in without being
//! seen; `COCOON_BLESS=1` writes the lists anew. A failure prints a table of the cases that failed, and for each the
//! command that repeats it alone.
//!
//! What is judged, and by what, is in the crate `cocoon-test-world`: it reads the journal, the directories, the locks
//! and the processes by itself.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod actors;
mod matrix;
mod verbs;

use cocoon_test_world::World;
use matrix::{adopts, survives, survives_for_real};

#[test]
fn image_import() {
    survives(&verbs::IMAGE_IMPORT);
}

#[test]
fn image_rm() {
    survives(&verbs::IMAGE_RM);
}

#[test]
fn adopt() {
    adopts(&verbs::ADOPT);
}

#[test]
fn adopt_unmarked() {
    adopts(&verbs::ADOPT_UNMARKED);
}

#[test]
fn create() {
    survives(&verbs::CREATE);
}

#[test]
fn create_overlay() {
    if World::makes_overlays() {
        survives(&verbs::CREATE_OVERLAY);
    }
}

#[test]
fn run() {
    survives(&verbs::RUN);
}

#[test]
fn start() {
    survives(&verbs::START);
}

#[test]
fn stop() {
    survives(&verbs::STOP);
}

#[test]
fn stop_deaf() {
    survives(&verbs::STOP_DEAF);
}

#[test]
fn stop_force() {
    survives(&verbs::STOP_FORCE);
}

#[test]
fn rm() {
    survives(&verbs::RM);
}

#[test]
fn rm_force() {
    survives(&verbs::RM_FORCE);
}

#[test]
fn reconcile() {
    survives(&verbs::RECONCILE);
}

#[test]
fn gc_stale_create() {
    survives(&verbs::GC_STALE_CREATE);
}

#[test]
fn gc_half_removed() {
    survives(&verbs::GC_HALF_REMOVED);
}

#[test]
fn gc_half_started() {
    survives(&verbs::GC_HALF_STARTED);
}

#[test]
fn gc_half_stopped() {
    survives(&verbs::GC_HALF_STOPPED);
}

#[test]
fn gc_dead_vmm() {
    survives(&verbs::GC_DEAD_VMM);
}

#[test]
fn gc_image() {
    survives(&verbs::GC_IMAGE);
}

#[test]
fn create_on_full_segment() {
    survives(&verbs::CREATE_ON_FULL_SEGMENT);
}

#[test]
fn real_run() {
    survives_for_real(&verbs::RUN);
}

#[test]
fn real_stop() {
    survives_for_real(&verbs::STOP_DEAF);
}

#[test]
fn real_rm_force() {
    survives_for_real(&verbs::RM_FORCE);
}
