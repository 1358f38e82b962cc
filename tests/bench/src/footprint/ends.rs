//! Time to open after each kind of end.
//!
//! ```text
//!   end --> vm inspect (reads) --> vm create (writes, and so heals) --> end ...
//!              |-- answer --|-- what is derived is brought up to date --| process gone
//! ```

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::create;
use crate::Outcome;
use crate::fleet::Fleet;
use crate::table::{head, median, ms, ratio, row};

/// How the journal was left.
#[derive(Debug, Clone, Copy)]
enum End {
    Clean,
    Killed,
    TornTail,
    NoHead,
    NoCheckpoints,
    NoStore,
}

const ENDS: [(End, &str); 6] = [
    (End::Clean, "in good order"),
    (End::Killed, "a writer killed"),
    (End::TornTail, "a torn tail"),
    (End::NoHead, "HEAD lost"),
    (End::NoCheckpoints, "checkpoints lost"),
    (End::NoStore, "event store lost"),
];

/// What a command took until its answer, and until it ended.
#[derive(Default)]
struct Times {
    answer: Vec<Duration>,
    end: Vec<Duration>,
}

pub(super) fn report(fleet: &Fleet, runs: usize) -> Outcome {
    head(&[
        "end",
        "vm inspect: answer ms",
        "vm inspect: gone ms",
        "vm create: answer ms",
        "vm create: gone ms",
        "inspect, of good order",
    ]);
    let mut good = None;
    for (end, what) in ENDS {
        let (mut reads, mut writes) = (Times::default(), Times::default());
        for _ in 0..runs {
            end.bring_about(&fleet.root())?;
            reads.measure(fleet.command().args(["vm", "inspect", "resident-0"]))?;
            writes.measure(fleet.command().args(create("measured")).args(["-o", "json"]))?;
            fleet.cocoon(&["vm", "rm", "measured"])?;
        }
        let cells = [&reads.answer, &reads.end, &writes.answer, &writes.end];
        let cells = cells.map(|times| ms(median(times)));
        let answer = median(&reads.answer);
        let ratio = ratio(answer, *good.get_or_insert(answer));
        row(&std::iter::once(what.to_owned()).chain(cells).chain([ratio]).collect::<Vec<_>>());
    }
    Ok(())
}

impl Times {
    fn measure(&mut self, command: &mut Command) -> Outcome {
        let began = Instant::now();
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let mut said = child.stdout.take().ok_or("no stdout")?;
        let mut first = [0];
        let answered = said.read(&mut first)? == 1;
        self.answer.push(began.elapsed());
        said.read_to_end(&mut Vec::new())?;
        let output = child.wait_with_output()?;
        self.end.push(began.elapsed());
        if answered && output.status.success() {
            return Ok(());
        }
        Err(String::from_utf8_lossy(&output.stderr).into_owned().into())
    }
}

impl End {
    fn bring_about(self, root: &Path) -> Outcome {
        let journal = root.join("journal");
        match self {
            Self::Clean => Ok(()),
            Self::Killed => kill_a_writer(root),
            Self::TornTail => tear(&journal),
            Self::NoHead => Ok(fs::remove_file(journal.join("HEAD"))?),
            Self::NoCheckpoints => Ok(fs::remove_dir_all(journal.join("ckpt"))?),
            Self::NoStore => Ok(fs::remove_dir_all(journal.join("sled"))?),
        }
    }
}

fn kill_a_writer(root: &Path) -> Outcome {
    let mut writer = Command::new(std::env::current_exe()?)
        .args(["worker", "births"])
        .arg(root)
        .stdout(Stdio::piped())
        .spawn()?;
    let said = writer.stdout.take().ok_or("no stdout")?;
    let born = BufReader::new(said).lines().take(5).filter(Result::is_ok).count();
    writer.kill()?;
    writer.wait()?;
    if born == 5 { Ok(()) } else { Err("a writer ended early".into()) }
}

/// Puts the beginning of a frame at the end of the last segment: its writer died within its write.
fn tear(journal: &Path) -> Outcome {
    let files = fs::read_dir(journal.join("seg"))?;
    let mut segments =
        files.map(|file| Ok(file?.path())).collect::<Result<Vec<PathBuf>, std::io::Error>>()?;
    segments.sort();
    let (first, last) = (segments.first().ok_or("no segment")?, segments.last());
    let mut frame = [0; 100];
    File::open(first)?.read_exact_at(&mut frame, FIRST_FRAME)?;
    let mut live = OpenOptions::new().append(true).open(last.unwrap_or(first))?;
    Ok(live.write_all(&frame)?)
}

/// Where the first frame of a segment begins.
const FIRST_FRAME: u64 = 128;
