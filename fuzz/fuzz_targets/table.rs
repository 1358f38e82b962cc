//! A file to a sorted table of a checkpoint: looked up, walked and verified.

#![no_main]

use std::io::Write as _;

use cocoon_journal::table::Table;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let memory = std::path::Path::new("/dev/shm");
    let scratch = if memory.is_dir() { memory } else { std::path::Path::new("/tmp") };
    let mut file = tempfile::NamedTempFile::new_in(scratch).expect("a file");
    file.write_all(bytes).expect("written");
    if let Ok(table) = Table::open(file.path()) {
        let _ = table.get(b"a");
        let _ = table.get(b"");
        let _ = table.prefix(b"vm/").take(64).count();
        let _ = table.range(b"").take(64).count();
        let _ = table.verify();
    }
});
