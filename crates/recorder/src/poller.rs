//! Waits for the next instant, or for an earlier event. One descriptor covers all event sources: a
//! check that finds none, a thousand times a second, is one short system call.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::time::TimeSpec;

use super::marks::Marks;

/// Event sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Source {
    /// The first process has ended.
    End,
    /// The recorder received a signal.
    Signals,
    /// A ledger was taken.
    Ledgers,
    /// A program reported a mark.
    Marks,
}

impl Source {
    const ALL: [Self; 4] = [Self::End, Self::Signals, Self::Ledgers, Self::Marks];
}

/// Which sources have events, by the number of the source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready([bool; Source::ALL.len()]);

impl Ready {
    /// Whether `source` has events.
    pub fn has(self, source: Source) -> bool {
        self.0[source as usize]
    }
}

/// Waits for events from all sources.
#[derive(Debug)]
pub struct Poller {
    sources: Epoll,
    /// Kept open: a closed descriptor has no events.
    _root_pidfd: OwnedFd,
}

impl Poller {
    /// A poller for the end of the first process: `root_pidfd` becomes readable then.
    ///
    /// # Errors
    /// If the kernel has no descriptors left.
    pub fn new(root_pidfd: OwnedFd) -> std::io::Result<Self> {
        let sources = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        sources.add(&root_pidfd, EpollEvent::new(EpollFlags::EPOLLIN, Source::End as u64))?;
        Ok(Self { sources, _root_pidfd: root_pidfd })
    }

    /// Adds a source: it has an event when `descriptor` is readable, until the descriptor is
    /// closed.
    ///
    /// # Errors
    /// If the kernel has no memory left.
    pub fn add(&self, source: Source, descriptor: BorrowedFd<'_>) -> std::io::Result<()> {
        Ok(self.sources.add(descriptor, EpollEvent::new(EpollFlags::EPOLLIN, source as u64))?)
    }

    /// Watches for marks, and for the moment that an answer to one was read.
    ///
    /// # Errors
    /// Those of epoll.
    pub fn add_marks(&self, marks: &Marks) -> std::io::Result<()> {
        let mut descriptors = marks.descriptor().into_iter().chain([marks.answer_read_descriptor()]);
        descriptors.try_for_each(|descriptor| self.add(Source::Marks, descriptor))
    }

    /// Waits for events, at most for `timeout`.
    pub fn wait(&self, timeout: Duration) -> Ready {
        let mut poll_fds = [PollFd::new(self.sources.0.as_fd(), PollFlags::POLLIN)];
        let mut ready = Ready::default();
        // An error is an interruption: the next call checks again.
        if ppoll(&mut poll_fds, Some(TimeSpec::from_duration(timeout)), None).unwrap_or(0) == 0 {
            return ready;
        }
        let mut events = [EpollEvent::empty(); Source::ALL.len()];
        let count = self.sources.wait(&mut events, EpollTimeout::ZERO).unwrap_or(0);
        for event in events.iter().take(count) {
            let index = usize::try_from(event.data()).ok();
            if let Some(has_events) = index.and_then(|index| ready.0.get_mut(index)) {
                *has_events = true;
            }
        }
        ready
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn the_source_is_stated() {
        let (_living, end) = std::os::unix::net::UnixStream::pair().unwrap();
        let poller = Poller::new(end.into()).unwrap();
        let (mut writer, reader) = std::os::unix::net::UnixStream::pair().unwrap();
        poller.add(Source::Marks, reader.as_fd()).unwrap();
        assert_eq!(poller.wait(Duration::from_millis(1)), Ready::default());
        writer.write_all(b"x").unwrap();
        let ready = poller.wait(Duration::from_secs(60));
        assert!(ready.has(Source::Marks) && !ready.has(Source::End));
        drop(reader);
        // A child that another test forks holds it too, until its exec.
        let until = std::time::Instant::now() + Duration::from_secs(600);
        while poller.wait(Duration::from_millis(1)) != Ready::default() {
            assert!(std::time::Instant::now() < until, "what was closed is still reported");
        }
    }
}
