//! A creation that is held up in the middle of an effect, for as long as a test wants.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Child;

use cocoon_test_world::World;
use cocoon_test_world::world::DISK;
use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::birth;

/// The arguments of such a creation.
pub(crate) fn creation(name: &str) -> [&str; 11] {
    birth("create", name, DISK)
}

/// Puts a disk tool in front of the real one that says when it was called, and then waits to be let go.
#[derive(Debug)]
pub(crate) struct Hold {
    began: PathBuf,
    go: PathBuf,
}

impl Hold {
    /// Imports a disk image and puts the tool in place. `None`, said aloud, where there is no such tool.
    pub(crate) fn new(world: &mut World) -> Option<Self> {
        if !World::makes_overlays() {
            return None;
        }
        world.import_disk();
        let hold = Self { began: world.beside().join("began"), go: world.beside().join("go") };
        for pipe in [&hold.began, &hold.go] {
            mknodat(CWD, pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        }
        let path = std::env::var("PATH").unwrap_or_default();
        let tools = world.beside().join("tools");
        fs::create_dir(&tools).unwrap();
        let tool = tools.join("qemu-img");
        let script = format!(
            "#!/bin/sh\necho > {}\nread line < {}\nPATH={path} exec qemu-img \"$@\"\n",
            hold.began.display(),
            hold.go.display()
        );
        fs::write(&tool, script).unwrap();
        fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
        world.environment.push(("PATH", format!("{}:{path}", tools.display()).into()));
        Some(hold)
    }

    /// Starts a creation and returns once it is in the middle of its effect.
    pub(crate) fn create(&self, world: &World, name: &str) -> Child {
        let child = world.start(&creation(name), &[]);
        fs::read(&self.began).unwrap();
        child
    }

    /// Lets the tool go on.
    pub(crate) fn release(&self) {
        fs::write(&self.go, "\n").unwrap();
    }
}
