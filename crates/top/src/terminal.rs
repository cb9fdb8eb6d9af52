//! The terminal: taken over at the start, restored at the end, whatever ends the program except
//! SIGKILL. Waits for keys, signals and other threads together, without a timer.

use std::io::{IsTerminal, Result};
use std::mem::ManuallyDrop;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::{panic, thread};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::{SigSet, Signal, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use ratatui::crossterm::event::{self, Event, KeyEvent, KeyEventKind};
use ratatui::{DefaultTerminal, Frame};

/// Signals that are handled between two steps.
const SIGNALS: [Signal; 6] =
    [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTSTP, Signal::SIGWINCH];
/// Width of a terminal that does not report its own.
const DEFAULT_COLUMNS: u16 = 80;

/// Wakes [`Screen::wait`].
#[derive(Clone, Debug)]
pub struct Waker(Arc<EventFd>);

impl Waker {
    /// Makes the next or current wait return.
    pub fn wake(&self) {
        // Fails only if it was woken already.
        let _ = self.0.write(1);
    }
}

/// What ended a wait.
#[derive(Debug)]
pub enum ScreenEvent {
    /// The terminal or a signal ends the program.
    End,
    /// A signal asks to stop until it is continued.
    Suspend,
    /// The user pressed these keys.
    Keys(Vec<KeyEvent>),
    /// Another thread has news, or the size of the terminal has changed.
    News,
}

/// Whether standard input and output are a terminal.
pub fn is_interactive() -> bool {
    std::io::stdin().is_terminal() && std::io::stdout().is_terminal()
}

/// Whether the terminal is gone.
pub fn has_hung_up() -> bool {
    has_hung_up_within(PollTimeout::ZERO)
}

/// Whether the terminal is gone, or goes within `timeout`.
fn has_hung_up_within(timeout: PollTimeout) -> bool {
    let stdin = std::io::stdin();
    // A hang-up is reported although no events are requested.
    let mut descriptors = [PollFd::new(stdin.as_fd(), PollFlags::empty())];
    poll(&mut descriptors, timeout).is_ok() && descriptors[0].revents().is_some_and(is_hangup)
}

/// Starts a thread that ends the program when the terminal is gone: there is nothing to restore.
/// [`Screen::wait`] notices that too, but crossterm reads a terminal that closes among its keys
/// forever.
pub fn exit_on_hangup() -> Result<()> {
    let body = || {
        loop {
            if has_hung_up_within(PollTimeout::NONE) {
                std::process::exit(0);
            }
        }
    };
    std::thread::Builder::new().name("terminal".into()).spawn(body).map(drop)
}

fn is_hangup(events: PollFlags) -> bool {
    events.intersects(PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL)
}

/// Takes over the terminal. ratatui's panic hook, which restores it in any thread, is left out.
fn take_over() -> Result<DefaultTerminal> {
    let hook = panic::take_hook();
    let terminal = ratatui::try_init();
    drop(panic::take_hook());
    panic::set_hook(hook);
    terminal
}

/// The terminal, taken over.
#[derive(Debug)]
pub struct Screen {
    /// Never dropped: if the terminal is gone, it would write to standard error, which is gone too,
    /// and panic.
    terminal: ManuallyDrop<DefaultTerminal>,
    signals: SignalFd,
    /// Written to by [`Waker`].
    news: Arc<EventFd>,
}

impl Screen {
    /// Takes over the terminal. Must be called before there is a second thread, so that signals go
    /// to the descriptor.
    pub fn open() -> Result<Self> {
        let set: SigSet = SIGNALS.into_iter().collect();
        set.thread_block()?;
        let signals = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        let news = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
        let earlier_hook = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            // If the thread that reads processes panics, the table stays and shows that.
            if thread::current().name() == Some("main") {
                let _ = ratatui::try_restore();
                earlier_hook(info);
            }
        }));
        Ok(Self { terminal: ManuallyDrop::new(take_over()?), signals, news })
    }

    /// A waker for other threads.
    pub fn waker(&self) -> Waker {
        Waker(Arc::clone(&self.news))
    }

    /// Width of the terminal.
    pub fn columns(&self) -> u16 {
        self.terminal.size().map_or(DEFAULT_COLUMNS, |size| size.width)
    }

    /// Draws the screen.
    pub fn draw(&mut self, view: impl FnOnce(&mut Frame<'_>)) -> Result<()> {
        self.terminal.draw(view).map(|_| ())
    }

    /// Waits until something happens.
    pub fn wait(&mut self) -> Result<ScreenEvent> {
        let stdin = std::io::stdin();
        let mut descriptors = [
            PollFd::new(stdin.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.news.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut descriptors, PollTimeout::NONE) {
            Err(Errno::EINTR) => return Ok(ScreenEvent::News),
            result => result?,
        };
        let [keys, signals, news] =
            descriptors.map(|descriptor| descriptor.revents().unwrap_or(PollFlags::empty()));
        if is_hangup(keys) {
            return Ok(ScreenEvent::End);
        }
        if !signals.is_empty()
            && let Some(signal) = self.signals.read_signal()?
        {
            return Ok(match Signal::try_from(signal.ssi_signo.cast_signed()) {
                Ok(Signal::SIGWINCH) => ScreenEvent::News,
                Ok(Signal::SIGTSTP) => ScreenEvent::Suspend,
                _ => ScreenEvent::End,
            });
        }
        if !news.is_empty() {
            // Several threads may have woken it: one read is enough.
            let _ = self.news.read();
        }
        if keys.is_empty() { Ok(ScreenEvent::News) } else { read_keys() }
    }

    /// Restores the terminal and stops, until continued.
    pub fn suspend(&mut self) -> Result<()> {
        self.restore()?;
        raise(Signal::SIGSTOP)?;
        self.terminal = ManuallyDrop::new(take_over()?);
        Ok(())
    }

    /// Gives the terminal back as it was.
    fn restore(&mut self) -> Result<()> {
        let cursor = self.terminal.show_cursor();
        ratatui::try_restore().and(cursor)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // If this fails, nothing is left to be done: the terminal is gone.
        let _ = self.restore();
    }
}

/// All keys pressed so far.
fn read_keys() -> Result<ScreenEvent> {
    let mut keys = Vec::new();
    while event::poll(std::time::Duration::ZERO)? {
        match event::read()? {
            Event::Key(key) if key.kind != KeyEventKind::Release => keys.push(key),
            _ => {}
        }
    }
    Ok(ScreenEvent::Keys(keys))
}
