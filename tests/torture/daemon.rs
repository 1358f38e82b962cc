//! A daemon beside the load, which does not live long.

use std::time::Duration;

use crate::load::Load;
use crate::random::Random;

/// The most that a daemon lives, milliseconds.
const LIFE_MS: u64 = 1500;

/// Starts a daemon and kills it, again and again for as long as there is load. Gives how many were killed.
pub(crate) fn supervise(load: &Load<'_>, seed: u64) -> usize {
    let mut random = Random::new(seed ^ 0xda3);
    let mut killed = 0;
    while load.goes_on() {
        let mut daemon = load.world().start(&["daemon", "--no-api", "--gc-interval", "1"], &[]);
        // How long it lives is what is random here.
        std::thread::sleep(Duration::from_millis(random.below(LIFE_MS)));
        daemon.kill().unwrap();
        let ran = load.world().wait(daemon);
        assert!(ran.was_killed(), "the daemon ended by itself: {}", ran.told());
        killed += 1;
    }
    killed
}
