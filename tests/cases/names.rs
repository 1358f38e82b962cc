//! Names: one record each, however many want it.

use crate::{birth, world};

#[test]
fn of_two_creations_of_a_name_exactly_one_succeeds_each_time() {
    let world = world("");
    for round in 0..50 {
        let racers = [0, 1].map(|_| world.start(&birth("create", "x", "guest"), &[]));
        let ran = racers.map(|child| world.wait(child));
        let (won, lost): (Vec<_>, Vec<_>) = ran.iter().partition(|ran| ran.output.status.success());
        let told = || ran.iter().map(|ran| ran.told()).collect::<String>();
        assert_eq!((won.len(), lost.len()), (1, 1), "round {round}: {}", told());
        let id = world.inspect("x")["id"].as_str().unwrap().to_owned();
        assert!(lost[0].stderr().contains(&format!("already exists (id: {id})")), "{}", told());
        assert_eq!(world.list().len(), 1);
        world.run(&["vm", "rm", "x"]).ok();
    }
    world.findings_at_rest().none();
}
