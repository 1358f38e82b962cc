//! Measures what a fresh process pays to look three keys up in a checkpoint.
//!
//! ```text
//! lookup write DIR COUNT    writes a checkpoint of COUNT entries of 600 bytes, and seven deltas of 512
//! lookup read DIR COUNT     opens it, looks three keys up, prints microseconds
//! ```

use std::error::Error;
use std::path::Path;
use std::time::Instant;

use cocoon_journal::Position;
use cocoon_journal::checkpoint::{Checkpoint, CheckpointOptions, CheckpointWriter};

const DELTAS: u64 = 7;
const DELTA_KEYS: u64 = 512;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, verb, dir, count] = arguments.as_slice() else {
        return Err("usage: lookup write|read DIR COUNT".into());
    };
    let (dir, count) = (Path::new(dir), count.parse()?);
    match verb.as_str() {
        "write" => write(dir, count),
        "read" => read(dir, count),
        _ => Err("usage: lookup write|read DIR COUNT".into()),
    }
}

fn key(n: u64) -> Vec<u8> {
    format!("vm/{:026}", n.wrapping_mul(0x9E37_79B9_7F4A_7C15)).into_bytes()
}

fn at(seq: u64) -> Position {
    Position { seq, hash: *blake3::hash(&seq.to_le_bytes()).as_bytes() }
}

fn write(dir: &Path, count: u64) -> Result<(), Box<dyn Error>> {
    std::fs::create_dir_all(dir)?;
    let options = CheckpointOptions { max_delta_percent: 100, ..CheckpointOptions::default() };
    let writer = CheckpointWriter::try_lock(dir, options)?;
    let mut writer = writer.ok_or("another process writes checkpoints here")?;
    let mut keys: Vec<_> = (0..count).map(key).collect();
    keys.sort();
    let began = Instant::now();
    writer.write_whole(at(1), at(1), keys.iter().map(|key| (key, [1; 600])))?;
    println!("base of {count} entries: {:?}", began.elapsed());
    for seq in 2..2 + DELTAS {
        let mut keys: Vec<_> = (0..DELTA_KEYS).map(|n| key((n * 37 + seq) % count)).collect();
        keys.sort();
        keys.dedup();
        let began = Instant::now();
        let changes = keys.iter().map(|key| (key, Some([2; 600])));
        writer.write_changes(at(seq - 1), at(seq), at(seq), changes)?;
        println!("delta of {} entries: {:?}", keys.len(), began.elapsed());
    }
    let latest = Checkpoint::latest(dir)?.checkpoint.ok_or("nothing was written")?;
    println!("{} deltas, {} bytes on disk", latest.deltas(), latest.bytes());
    Ok(())
}

fn read(dir: &Path, count: u64) -> Result<(), Box<dyn Error>> {
    let began = Instant::now();
    let latest = Checkpoint::latest(dir)?.checkpoint.ok_or("no checkpoint here")?;
    let opened = began.elapsed();
    for n in [count / 7, count / 3, count - 1] {
        latest.get(&key(n))?.ok_or("a key is missing")?;
    }
    println!("{} {}", opened.as_micros(), began.elapsed().as_micros());
    Ok(())
}
