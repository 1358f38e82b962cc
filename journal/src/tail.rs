//! Following the journal as it grows, from any sequence number, without gaps, across seals.
//!
//! ```text
//!   frames at or below HEAD           delivered at once
//!   a frame above HEAD                kept back until HEAD reaches it,
//!                                     or HEAD has stood still for 5 ms: its writer may be dead, or its
//!                                     sync may have failed, so the follower writes it again under the
//!                                     lock, syncs and delivers
//!   nothing new                       sleep: woken by inotify on HEAD and on seg/, and by a timer
//! ```
//!
//! Plain reads, no mapping, and no lock but for that. The timer is a floor: a lost or impossible notification only
//! costs time.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::fs::inotify;
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use crate::cursor::{Cursor, Found, From, Step};
use crate::directory::Directory;
use crate::error::JournalError;
use crate::frame::{Frame, Hash, Seq};
use crate::head::HeadFile;
use crate::segmented::{make_sure, read_durable};

/// How long HEAD may stand still below a whole frame before the follower sees to it.
const STANDS_STILL: Duration = Duration::from_millis(5);
/// How often to look although nothing was notified.
const FLOOR: Duration = Duration::from_millis(250);
/// The same where no notification can be had.
const FLOOR_WITHOUT_INOTIFY: Duration = Duration::from_millis(20);

/// A follower of a journal.
///
/// Its descriptor ([`AsFd`]) is readable whenever [`try_next`](Self::try_next) should be called again:
/// register that with an event loop, or use [`next`](Self::next) and block.
#[derive(Debug)]
pub struct Tail {
    cursor: Cursor,
    from: Seq,
    head: Option<HeadFile>,
    /// Read but not known to be durable.
    kept_back: VecDeque<Found>,
    /// Everything up to here was durable when last looked at.
    durable: Seq,
    /// Since when `durable` has stood still below a whole frame.
    still_since: Option<Instant>,
    wakeup: Wakeup,
}

impl Tail {
    /// Follows the journal in `dir` from the frame that holds `from`. That may lie in the future.
    ///
    /// # Errors
    ///
    /// [`JournalError::Missing`] if there is no journal, [`JournalError::HistoryBegins`] if `from` was
    /// retired.
    pub fn open(dir: &Path, from: Seq) -> Result<Self, JournalError> {
        let directory = Directory::new(dir);
        let head = HeadFile::open(&directory.head())?;
        let published = head.as_ref().map_or(Ok(None), HeadFile::read)?;
        let wakeup = Wakeup::new(&directory)?;
        let located = Cursor::locate(&directory, From::Seq(from), published.as_ref())?;
        let cursor = located.ok_or_else(|| JournalError::Missing { path: dir.to_owned() })?;
        Ok(Self {
            durable: cursor.mark().seq.min(from),
            cursor,
            from,
            head,
            kept_back: VecDeque::new(),
            still_since: None,
            wakeup,
        })
    }

    /// The next frame, waiting for it; `Ok(None)` if none came within `timeout`.
    ///
    /// # Errors
    ///
    /// If the journal cannot be read.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<(Frame, Hash)>, JournalError> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(found) = self.try_next()? {
                return Ok(Some(found));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.wakeup.wait(left)?;
        }
    }

    /// The next frame if there is one. If there is none, the descriptor becomes readable later.
    ///
    /// # Errors
    ///
    /// If the journal cannot be read.
    pub fn try_next(&mut self) -> Result<Option<(Frame, Hash)>, JournalError> {
        loop {
            if let Some(found) = self.deliver() {
                if found.frame.last_seq() >= self.from {
                    return Ok(Some((found.frame, found.hash)));
                }
                continue;
            }
            self.wakeup.drain();
            let moved = self.look_at_head()?;
            let read = self.read_ahead()?;
            if !moved && !read && !self.settle()? {
                return Ok(None);
            }
        }
    }

    fn deliver(&mut self) -> Option<Found> {
        let first = self.kept_back.front()?;
        if first.after.seq <= self.durable { self.kept_back.pop_front() } else { None }
    }

    /// Takes over what is published; says whether that is more than before.
    fn look_at_head(&mut self) -> Result<bool, JournalError> {
        if self.head.is_none() {
            self.head = HeadFile::open(&self.cursor.directory().head())?;
        }
        let head = self.head.as_ref().map_or(Ok(None), HeadFile::read)?;
        let seq = head.map_or(0, |head| head.mark.seq);
        let moved = seq > self.durable;
        if moved {
            self.durable = seq;
            self.still_since = None;
        }
        Ok(moved)
    }

    /// Reads one frame more, if there is one; says whether there was.
    fn read_ahead(&mut self) -> Result<bool, JournalError> {
        // Enough is known to go on; what is kept back stays short.
        if !self.kept_back.is_empty() && self.cursor.mark().seq > self.durable {
            return Ok(false);
        }
        if self.cursor.mark().seq < self.durable {
            // HEAD was read before the log: what it speaks of must be there.
            self.kept_back.push_back(read_durable(&mut self.cursor)?);
            return Ok(true);
        }
        match self.cursor.step()? {
            Step::Frame(found) => self.kept_back.push_back(found),
            Step::End | Step::Bad(_) => return Ok(false),
        }
        Ok(true)
    }

    /// Nothing moves. If a whole frame waits for HEAD, syncs once that has stood still long enough;
    /// says whether it did. Else goes to sleep.
    fn settle(&mut self) -> Result<bool, JournalError> {
        let Some(last) = self.kept_back.back().map(|found| found.after) else {
            self.still_since = None;
            self.wakeup.sleep(self.wakeup.floor)?;
            return Ok(false);
        };
        let since = *self.still_since.get_or_insert_with(Instant::now);
        let left = STANDS_STILL.saturating_sub(since.elapsed());
        if !left.is_zero() {
            self.wakeup.sleep(left)?;
            return Ok(false);
        }
        make_sure(self.cursor.directory(), last.position())?;
        self.durable = last.seq;
        self.still_since = None;
        Ok(true)
    }
}

impl AsFd for Tail {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wakeup.epoll.as_fd()
    }
}

/// An epoll of a notification and a timer.
#[derive(Debug)]
struct Wakeup {
    epoll: OwnedFd,
    inotify: Option<OwnedFd>,
    timer: OwnedFd,
    floor: Duration,
}

impl Wakeup {
    fn new(directory: &Directory) -> Result<Self, JournalError> {
        let action = "watch";
        let failed = |errno| JournalError::errno(action, directory.path())(errno);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags).map_err(failed)?;
        let add = |fd: BorrowedFd<'_>| {
            epoll::add(&epoll, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
        };
        add(timer.as_fd()).map_err(failed)?;
        // Instances of inotify are few for one user; without one the timer does.
        let inotify = watch(directory).ok();
        if let Some(inotify) = &inotify {
            add(inotify.as_fd()).map_err(failed)?;
        }
        let floor = if inotify.is_some() { FLOOR } else { FLOOR_WITHOUT_INOTIFY };
        Ok(Self { epoll, inotify, timer, floor })
    }

    /// Makes the descriptor readable after `time` at the latest.
    fn sleep(&self, time: Duration) -> Result<(), JournalError> {
        let spec = Itimerspec { it_interval: timespec(Duration::ZERO), it_value: timespec(time) };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &spec)
            .map(|_| ())
            .map_err(JournalError::errno("set", Path::new("timer")))
    }

    fn wait(&self, time: Duration) -> Result<(), JournalError> {
        let mut fds = [PollFd::new(&self.epoll, PollFlags::IN)];
        match poll(&mut fds, Some(&timespec(time))) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(JournalError::errno("wait for", Path::new("journal"))(errno)),
        }
    }

    /// Forgets past wake-ups: what they announced is about to be looked at.
    fn drain(&self) {
        let mut buffer = [0; 4096];
        for fd in [Some(&self.timer), self.inotify.as_ref()].into_iter().flatten() {
            while rustix::io::read(fd, &mut buffer).is_ok_and(|len| len > 0) {}
        }
    }
}

fn watch(directory: &Directory) -> Result<OwnedFd, Errno> {
    use inotify::{CreateFlags, WatchFlags, add_watch, init};
    let inotify = init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
    let changes = WatchFlags::MODIFY | WatchFlags::MOVED_TO;
    add_watch(&inotify, directory.segments(), changes)?;
    add_watch(&inotify, directory.head(), WatchFlags::MODIFY)?;
    Ok(inotify)
}

fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: time.subsec_nanos().into(),
    }
}
