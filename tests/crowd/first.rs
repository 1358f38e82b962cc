//! First commands, all at once.

use cocoon_test_world::Ran;

use crate::acknowledged::{Done, Written};
use crate::empty_world;

/// How many.
const COMMANDS: usize = 64;

#[test]
fn sixty_four_first_commands_make_one_root() {
    let world = empty_world();
    let names: Vec<_> = (0..COMMANDS).map(|number| format!("image{number}")).collect();
    let children: Vec<_> = names
        .iter()
        .enumerate()
        .map(|(number, name)| match number % 4 {
            0 => world.start(&["vm", "list", "-o", "json"], &[]),
            1 => world.start(&["gc"], &[]),
            _ => world.start(&world.import_arguments(name, ""), &[]),
        })
        .collect();
    let done: Vec<Done> = children
        .into_iter()
        .map(|child| {
            let (pid, ran): (u32, Ran) = (child.id(), world.wait(child).ok());
            Done { pid, kind: "Imported", ran }
        })
        .collect();
    let written = Written::of(&world);
    for (number, done) in done.into_iter().enumerate().filter(|(number, _)| number % 4 > 1) {
        written.check(&[done]);
        assert!(world.run(&["image", "list"]).ok().stdout().contains(&names[number]));
    }
    world.findings_at_rest().none();
    world.requires_agreement();
}
