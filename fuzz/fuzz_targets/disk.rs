//! A file to what kind of disk image it is: hostile headers are refused, never believed.

#![no_main]

use std::io::Write as _;

use cocoon::host::disk;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut file = tempfile::NamedTempFile::new_in(scratch()).expect("a file");
    file.write_all(bytes).expect("written");
    if let Ok(info) = disk::inspect(file.path()) {
        let _ = info.check_import(file.path());
        let _ = info.disk_format(file.path());
    }
});

/// Memory where there is some, so that the disk is not what is tested.
fn scratch() -> &'static std::path::Path {
    let memory = std::path::Path::new("/dev/shm");
    if memory.is_dir() { memory } else { std::path::Path::new("/tmp") }
}
