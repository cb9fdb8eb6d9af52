//! Waiting for the next instant, or for news before it. One descriptor stands for all that there can be news
//! of: a look that finds none, a thousand times a second, is one short system call.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::time::TimeSpec;

/// Where news comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Source {
    /// The first process has ended.
    End,
    /// The recorder was sent a signal.
    Signals,
    /// A ledger was made.
    Ledgers,
    /// A program told a mark.
    Marks,
}

impl Source {
    const ALL: [Self; 4] = [Self::End, Self::Signals, Self::Ledgers, Self::Marks];
}

/// Of which sources there is news.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct News([bool; Source::ALL.len()]);

impl News {
    /// Whether there is news of `source`.
    pub fn of(self, source: Source) -> bool {
        self.0[source as usize]
    }
}

/// What rings when there is news.
#[derive(Debug)]
pub struct Bell {
    sources: Epoll,
    _end: OwnedFd,
}

impl Bell {
    /// A bell that the end of a process rings: `end` becomes readable then.
    ///
    /// # Errors
    /// Where the kernel has no descriptors left.
    pub fn new(end: OwnedFd) -> std::io::Result<Self> {
        let sources = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        sources.add(&end, EpollEvent::new(EpollFlags::EPOLLIN, Source::End as u64))?;
        Ok(Self { sources, _end: end })
    }

    /// Lets `source` ring it when `descriptor` is readable, until that is closed.
    ///
    /// # Errors
    /// Where the kernel has no memory left.
    pub fn add(&self, source: Source, descriptor: BorrowedFd<'_>) -> std::io::Result<()> {
        Ok(self.sources.add(descriptor, EpollEvent::new(EpollFlags::EPOLLIN, source as u64))?)
    }

    /// Waits for news, at most for `pause`.
    pub fn wait(&self, pause: Duration) -> News {
        let mut bell = [PollFd::new(self.sources.0.as_fd(), PollFlags::POLLIN)];
        let mut news = News::default();
        // An error is an interruption: the next round looks again.
        if ppoll(&mut bell, Some(TimeSpec::from_duration(pause)), None).unwrap_or(0) == 0 {
            return news;
        }
        let mut events = [EpollEvent::empty(); Source::ALL.len()];
        let count = self.sources.wait(&mut events, EpollTimeout::ZERO).unwrap_or(0);
        for event in events.iter().take(count) {
            if let Some(known) = usize::try_from(event.data()).ok().and_then(|index| news.0.get_mut(index)) {
                *known = true;
            }
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn the_source_is_told() {
        let (_living, end) = std::os::unix::net::UnixStream::pair().unwrap();
        let bell = Bell::new(end.into()).unwrap();
        let (mut writer, reader) = std::os::unix::net::UnixStream::pair().unwrap();
        bell.add(Source::Marks, reader.as_fd()).unwrap();
        assert_eq!(bell.wait(Duration::from_millis(1)), News::default());
        writer.write_all(b"x").unwrap();
        let news = bell.wait(Duration::from_secs(60));
        assert!(news.of(Source::Marks) && !news.of(Source::End));
        drop(reader);
        assert_eq!(bell.wait(Duration::from_millis(1)), News::default());
    }
}
