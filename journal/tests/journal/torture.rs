//! Kills, damage of what is derived, torn tails and failing calls, mixed at random over processes that append, read,
//! follow, seal, checkpoint and feed the store.
//!
//! ```text
//!   life:   an empty journal ─► round, round, ...  ─► everything works, and nothing promised is lost
//!   round:  1 to 5 processes at once, each with a fate:  killed at a boundary, killed after a while, ends by itself;
//!           some with calls that fail (files may not grow beyond a point, or few may be open)
//!           ─► all dead ─► a torn tail, damage of a derived file, an older HEAD, or none of it
//! ```
//!
//! Each process writes down what it was told (events acknowledged, positions read, what checkpoints and the store
//! said); all of it is held against the log, which is read from its beginning.
//!
//! `JOURNAL_TORTURE` is the number of kills (300), `JOURNAL_SEED` repeats the choices of a run, though not its schedule.

mod damage;
mod life;
pub(crate) mod mix;
mod promises;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime};

use life::{Counts, Life};

fn number(variable: &str, default: impl FnOnce() -> u64) -> u64 {
    std::env::var(variable).map_or_else(|_| default(), |text| text.parse().expect("a number"))
}

fn seed_of_now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    u64::from(since.subsec_nanos())
}

#[test]
fn whatever_happens_nothing_promised_is_lost() {
    let kills = number("JOURNAL_TORTURE", || 300);
    let seed = number("JOURNAL_SEED", seed_of_now);
    println!("seed {seed}: JOURNAL_SEED={seed} JOURNAL_TORTURE={kills} repeats its choices");
    let began = Instant::now();
    let (killed, lives) = (AtomicU64::new(0), AtomicU64::new(0));
    let counts = Mutex::new(Counts::default());
    let work = || {
        while killed.load(Ordering::Relaxed) < kills {
            let number = lives.fetch_add(1, Ordering::Relaxed);
            let lived = Life::new(seed, number).live(&killed, kills);
            counts.lock().unwrap().add(&lived);
        }
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(work);
        }
    });
    let counts = counts.into_inner().unwrap();
    println!("{counts}{} s", began.elapsed().as_secs());
    assert!(counts.killed >= kills && counts.promises > 0, "seed {seed}");
}
