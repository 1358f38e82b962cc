//! Finding a VMM by what it is: its program and the socket in its command line.
//!
//! The scan is for what leaves no other trace: a removed pid file, a jailer that closed the VMM
//! lock. An empty answer is a statement ("no such process lives"), so anything that could hide one
//! makes the scan inconclusive.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use super::stat::Stat;
use super::{ProcessError, ProcessIdentity, ProcessTable, vanished};

/// How often, and how far apart, a process without a command line is looked at again: it is most
/// likely being executed at this moment, which takes well under a millisecond.
const EMPTY_RETRIES: u32 = 40;
const EMPTY_PAUSE: Duration = Duration::from_millis(5);

/// The longest command line that is read, in bytes; the kernel's own limit is 128 KiB an argument.
const COMMAND_LINE_MAX: u64 = 4 << 20;

/// Why a scan proves nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the scan for {binary_name} is inconclusive: {reason}; nothing that it may be using was touched"
)]
pub struct Inconclusive {
    /// The program that was looked for.
    pub binary_name: String,
    /// What stood in the way.
    pub reason: String,
}

/// All live processes that run `binary_name` with `needle`, a socket path, in their command line.
///
/// The needle matches as a whole argument or as a whole value in one (`path=S`,
/// `unix:S,server=on`), so that `/run/vm1` is not found in `/run/vm10`. Processes that vanish
/// meanwhile are passed over.
pub fn scan(binary_name: &str, needle: &Path) -> Result<Vec<ProcessIdentity>, Inconclusive> {
    let table = ProcessTable::host().map_err(|error| Inconclusive {
        binary_name: binary_name.to_owned(),
        reason: error.to_string(),
    })?;
    table.scan(binary_name, needle)
}

impl ProcessTable {
    /// As [`scan`], over this proc file system.
    pub fn scan(
        &self,
        binary_name: &str,
        needle: &Path,
    ) -> Result<Vec<ProcessIdentity>, Inconclusive> {
        let search = Search { table: self, binary_name, needle };
        search.run().map_err(|reason| Inconclusive { binary_name: binary_name.to_owned(), reason })
    }
}

struct Search<'a> {
    table: &'a ProcessTable,
    binary_name: &'a str,
    needle: &'a Path,
}

/// What one look at a process says.
enum Look {
    Other,
    Match(ProcessIdentity),
    /// It has no command line: being executed, or exiting.
    Empty,
}

impl Search<'_> {
    fn run(&self) -> Result<Vec<ProcessIdentity>, String> {
        self.require_everything_shown()?;
        let mut found = Vec::new();
        let mut empty = Vec::new();
        for pid in self.pids()? {
            match self.look(pid)? {
                Look::Match(identity) => found.push(identity),
                Look::Empty => empty.push(pid),
                Look::Other => {}
            }
        }
        self.settle(empty, &mut found)?;
        found.sort_by_key(|identity| identity.pid);
        Ok(found)
    }

    /// The first process always exists; where it is not shown, others may be hidden as well.
    fn require_everything_shown(&self) -> Result<(), String> {
        match self.table.read_stat(1) {
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err(format!(
                "{} hides the processes of other users; run as root",
                self.table.root.display()
            )),
            Err(error) => Err(error.to_string()),
        }
    }

    fn pids(&self) -> Result<Vec<u32>, String> {
        let root = &self.table.root;
        let unreadable = |error: std::io::Error| format!("cannot list {}: {error}", root.display());
        let mut pids = Vec::new();
        for entry in std::fs::read_dir(root).map_err(unreadable)? {
            let name = entry.map_err(unreadable)?.file_name();
            pids.extend(name.to_str().and_then(|name| name.parse::<u32>().ok()));
        }
        Ok(pids)
    }

    /// Looks again at processes without a command line until each has one, has gone, or has used up
    /// its time.
    fn settle(&self, mut empty: Vec<u32>, found: &mut Vec<ProcessIdentity>) -> Result<(), String> {
        for _ in 0..EMPTY_RETRIES {
            if empty.is_empty() {
                return Ok(());
            }
            sleep(EMPTY_PAUSE);
            let mut still_empty = Vec::new();
            for pid in empty {
                match self.look(pid)? {
                    Look::Match(identity) => found.push(identity),
                    Look::Empty => still_empty.push(pid),
                    Look::Other => {}
                }
            }
            empty = still_empty;
        }
        match empty.first() {
            None => Ok(()),
            Some(pid) => Err(format!("process {pid} has no command line, so it may be anything")),
        }
    }

    fn look(&self, pid: u32) -> Result<Look, String> {
        let Some(stat) = self.live_stat(pid)? else { return Ok(Look::Other) };
        let Some(command_line) = self.command_line(pid)? else { return Ok(Look::Other) };
        if command_line.is_empty() {
            return Ok(Look::Empty);
        }
        if !self.names_needle(&command_line) || !self.runs_binary(pid, &command_line)? {
            return Ok(Look::Other);
        }
        // The pid could have changed hands between the two reads.
        match self.live_stat(pid)? {
            Some(now) if now.start_time == stat.start_time => {
                Ok(Look::Match(self.table.identity(pid, &stat)))
            }
            Some(_) => Ok(Look::Empty),
            None => Ok(Look::Other),
        }
    }

    fn live_stat(&self, pid: u32) -> Result<Option<Stat>, String> {
        let stat = self.table.stat(pid).map_err(|error| error.to_string())?;
        Ok(stat.filter(|stat| !stat.is_dead() && !stat.is_kernel_thread()))
    }

    fn command_line(&self, pid: u32) -> Result<Option<Vec<u8>>, String> {
        let path = self.table.root.join(format!("{pid}/cmdline"));
        match read_capped(&path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if vanished(&error) => Ok(None),
            Err(source) => Err(ProcessError::Unreadable { path, source }.to_string()),
        }
    }

    fn names_needle(&self, command_line: &[u8]) -> bool {
        let needle = self.needle.as_os_str().as_bytes();
        command_line.split(|byte| *byte == 0).any(|argument| holds_value(argument, needle))
    }

    /// Whether the process runs the program, by its first argument or by its executable.
    fn runs_binary(&self, pid: u32, command_line: &[u8]) -> Result<bool, String> {
        let first = command_line.split(|byte| *byte == 0).next().unwrap_or_default();
        if base_name(Path::new(OsStr::from_bytes(first))) == self.binary_name.as_bytes() {
            return Ok(true);
        }
        let path = self.table.root.join(format!("{pid}/exe"));
        match std::fs::read_link(&path) {
            Ok(executable) => Ok(base_name(&executable) == self.binary_name.as_bytes()),
            Err(error) if vanished(&error) => Ok(false),
            Err(source) => Err(ProcessError::Unreadable { path, source }.to_string()),
        }
    }
}

fn read_capped(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(COMMAND_LINE_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The last component; an executable that was replaced on disk is shown with a suffix, which does
/// not count.
fn base_name(path: &Path) -> &[u8] {
    let name = path.file_name().map_or(&[][..], OsStr::as_bytes);
    name.strip_suffix(b" (deleted)").unwrap_or(name)
}

/// Whether `argument` is `needle`, or holds it between an opening `=`, `:` or `,` and a closing
/// `,`.
fn holds_value(argument: &[u8], needle: &[u8]) -> bool {
    if needle.is_empty() {
        return false;
    }
    let opens = |at: usize| at == 0 || matches!(argument[at - 1], b'=' | b':' | b',');
    let closes = |end: usize| end == argument.len() || argument[end] == b',';
    argument
        .windows(needle.len())
        .enumerate()
        .any(|(at, window)| window == needle && opens(at) && closes(at + needle.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_path_matches_as_a_whole_value_only() {
        let needle = b"/run/vm1";
        for argument in ["/run/vm1", "path=/run/vm1", "unix:/run/vm1,server=on", "a=b,/run/vm1"] {
            assert!(holds_value(argument.as_bytes(), needle), "{argument}");
        }
        for argument in ["/run/vm10", "/x/run/vm1", "unix:/run/vm1.qmp", "", "/run/vm"] {
            assert!(!holds_value(argument.as_bytes(), needle), "{argument}");
        }
        assert!(!holds_value(b"anything", b""));
    }

    #[test]
    fn the_base_name_survives_an_upgrade_of_the_binary() {
        assert_eq!(base_name(Path::new("/usr/bin/qemu (deleted)")), b"qemu");
        assert_eq!(base_name(Path::new("qemu")), b"qemu");
        assert_eq!(base_name(Path::new("/")), b"");
    }
}
