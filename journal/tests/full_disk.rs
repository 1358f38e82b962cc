//! A disk that fills up while derived files are written, and is freed again. Needs the right to mount.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};

use cocoon_journal::checkpoint::{Checkpoint, CheckpointOptions, CheckpointWriter};
use cocoon_journal::error::AnyError;
use cocoon_journal::frame::hash_of;
use cocoon_journal::store::{FrameSource, Frames, Store};
use cocoon_journal::{Entry, Frame, FrameHeader, Hash, Position, Seq, Subject};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use uuid::Uuid;

/// A small file system of its own.
struct Disk {
    scratch: tempfile::TempDir,
}

impl Disk {
    /// `None` without the right to mount.
    fn new(size: &str) -> Option<Self> {
        let disk = Self { scratch: tempfile::tempdir().unwrap() };
        let mounted = disk.mount(size, MsFlags::empty());
        if mounted.is_err() {
            eprintln!("not run: mounting is not permitted here");
        }
        mounted.is_ok().then_some(disk)
    }

    fn dir(&self) -> PathBuf {
        self.scratch.path().join("disk")
    }

    fn mount(&self, size: &str, flags: MsFlags) -> nix::Result<()> {
        fs::create_dir_all(self.dir()).unwrap();
        let options = format!("size={size}");
        mount(Some("tmpfs"), &self.dir(), Some("tmpfs"), flags, Some(options.as_str()))
    }

    fn grow(&self, size: &str) {
        self.mount(size, MsFlags::MS_REMOUNT).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = umount2(&self.dir(), MntFlags::MNT_DETACH);
    }
}

struct Log(Vec<(Frame, Hash)>);

impl Log {
    fn new(frames: u64) -> Self {
        let mut log = Vec::new();
        let mut position = Position::default();
        for n in 0..frames {
            let subject = Subject::new(format!("vm/{}", n % 7)).unwrap();
            let entry = Entry { kind: 1, version: 1, subject, body: vec![n.to_le_bytes()[0]; 900] };
            let header = FrameHeader {
                codec: 1,
                flags: 0,
                prev_len: 0,
                ordinal: 0,
                seq: position.seq + 1,
                count: 1,
                wall_us: 5,
                boottime_us: 5,
                boot_id: Uuid::nil(),
                operation: Uuid::nil(),
                pid: 1,
                start_time: 1,
                verb: "test".to_owned(),
                durable_seq: position.seq,
                prev_hash: position.hash,
            };
            let frame = Frame { header, entries: vec![entry] };
            let hash = hash_of(&frame.encode().unwrap());
            position = frame.position(hash);
            log.push((frame, hash));
        }
        Self(log)
    }

    fn end(&self) -> Position {
        self.0.last().map_or(Position::default(), |(frame, hash)| frame.position(*hash))
    }
}

impl FrameSource for Log {
    fn frames_from(&self, seq: Seq) -> Result<Frames<'_>, AnyError> {
        let from = self.0.partition_point(|(frame, _)| frame.last_seq() < seq);
        Ok(Box::new(self.0[from..].iter().cloned().map(Ok)))
    }

    fn end(&self) -> Result<Position, AnyError> {
        Ok(Self::end(self))
    }
}

fn seqs(dir: &Path) -> Vec<Seq> {
    let mut store = Store::try_open(dir).unwrap().unwrap();
    store.verify().unwrap();
    store.range(1..=Seq::MAX).unwrap().map(|event| event.unwrap().seq).collect()
}

#[test]
fn the_store_goes_on_once_there_is_room() {
    let log = Log::new(3000);
    for size in ["600k", "1m", "1500k", "2500k"] {
        let Some(disk) = Disk::new(size) else { return };
        let mut store = Store::try_open(&disk.dir()).unwrap().unwrap();
        let error = store.catch_up(&log, log.end()).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("No space left"), "{size}: {text}");
        store.catch_up(&log, log.end()).unwrap_err();
        disk.grow("200m");
        let report = store.catch_up(&log, log.end()).unwrap();
        assert_eq!(report.position, log.end(), "{size}");
        drop(store);
        assert_eq!(seqs(&disk.dir()), Vec::from_iter(1..=3000), "{size}");
    }
}

#[test]
fn checkpoints_go_on_once_there_is_room() {
    let at = |seq| Position { seq, hash: [1; 32] };
    let state = |seq: u8| (0..2000).map(move |n: u32| (n.to_be_bytes(), [seq; 600]));
    let Some(disk) = Disk::new("2m") else { return };
    let options = CheckpointOptions::default();
    let mut writer = CheckpointWriter::try_lock(&disk.dir(), options).unwrap().unwrap();
    writer.write_whole(at(1), at(9), state(1)).unwrap();
    let error = writer.write_whole(at(2), at(9), state(2)).unwrap_err();
    assert!(error.to_string().contains("No space left"), "{error}");
    let read = |dir: &Path| {
        let latest = Checkpoint::latest(dir).unwrap();
        assert!(latest.damaged.is_empty());
        let checkpoint = latest.checkpoint.unwrap();
        let values: Vec<u8> = checkpoint.prefix(b"").map(|entry| entry.unwrap().1[0]).collect();
        (checkpoint.position().seq, values)
    };
    assert_eq!(read(&disk.dir()), (1, vec![1; 2000]));
    disk.grow("20m");
    writer.write_whole(at(2), at(9), state(2)).unwrap();
    assert_eq!(read(&disk.dir()), (2, vec![2; 2000]));
}
