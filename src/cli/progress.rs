//! Progress of long operations on standard error. On a terminal it is one line that is redrawn, and
//! erased at the end; a log gets a plain line twice a minute. Short operations show nothing.
//!
//! A separate thread writes the line: a terminal may block, and code that has stopped a process
//! must not wait for it.

use std::io::{IsTerminal, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use strandline_report::text::{clean, shorten};
use strandline_report::units::{bytes, percent};
use strandline_sys::signal;

/// Operations shorter than this show nothing.
const SHOW_AFTER: Duration = Duration::from_millis(400);
/// Minimum time between redraws: a terminal is slower than the operation.
const REDRAW_INTERVAL: Duration = Duration::from_millis(100);
/// Interval between lines in a log.
const LOG_INTERVAL: Duration = Duration::from_secs(30);
/// How long the end waits for the line to be erased if the terminal blocks.
pub const ERASE_LIMIT: Duration = Duration::from_millis(200);
/// Maximum width of the line.
const MAX_COLUMNS: usize = 78;

/// Returns the width that the line may have now: a line that a terminal wraps cannot be redrawn.
pub fn max_columns() -> usize {
    terminal_size::terminal_size_of(std::io::stderr()).map_or(MAX_COLUMNS, |(width, _)| columns_in(width.0))
}

/// Returns the width of the line on a terminal of this width, whose last column stays empty.
fn columns_in(terminal_columns: u16) -> usize {
    usize::from(terminal_columns).saturating_sub(1).min(MAX_COLUMNS)
}

/// The latest state, until it is shown.
type Latest = Arc<Mutex<Option<State>>>;

/// What the line shows.
enum State {
    /// `done` of `total` bytes of `operation`.
    Bytes {
        operation: String,
        done: u64,
        total: u64,
    },
    Line(String),
}

/// A progress line, erased on drop.
#[derive(Debug)]
pub struct Progress(Option<Drawer>);

/// The thread that writes the line.
struct Drawer {
    latest: Latest,
    /// Dropping it ends the thread.
    end: Option<Sender<()>>,
    /// Disconnected when the line is erased.
    erased: Mutex<Receiver<()>>,
}

impl std::fmt::Debug for Drawer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Drawer").finish_non_exhaustive()
    }
}

impl Progress {
    /// A progress line that is shown if `is_shown` (no JSON output).
    pub fn new(is_shown: bool) -> Self {
        Self(if is_shown { Drawer::start(Sink::stderr()) } else { None })
    }

    /// Sets the progress of `operation` to `done` of `total` bytes.
    pub fn set_bytes(&self, operation: &str, done: u64, total: u64) {
        self.update(|latest| match latest {
            // Updates of the same operation are frequent: they allocate nothing.
            Some(State::Bytes { operation: shown_operation, done: old_done, total: old_total })
                if shown_operation == operation =>
            {
                (*old_done, *old_total) = (done, total);
            }
            _ => *latest = Some(State::Bytes { operation: operation.to_owned(), done, total }),
        });
    }

    /// Sets the text of the line.
    pub fn set_line(&self, line: &str) {
        self.update(|latest| *latest = Some(State::Line(line.to_owned())));
    }

    /// Changes the latest state, unless the thread is just taking it: the caller must not wait, and
    /// the next call has newer data.
    fn update(&self, change: impl FnOnce(&mut Option<State>)) {
        if let Some(drawer) = &self.0
            && let Ok(mut latest) = drawer.latest.try_lock()
        {
            change(&mut latest);
        }
    }
}

impl State {
    fn text(&self) -> String {
        let line = match self {
            Self::Bytes { operation, done, total } => {
                format!(
                    "{}: {} of {} ({})",
                    clean(operation),
                    bytes(*done),
                    bytes(*total),
                    percent(*done, *total)
                )
            }
            Self::Line(line) => clean(line),
        };
        shorten(&line, max_columns())
    }
}

/// The output device and its timing.
struct Sink {
    out: Box<dyn Write + Send>,
    is_terminal: bool,
    /// Whether the process may write to the device now.
    may_draw: fn() -> bool,
    /// Time before the first line.
    delay: Duration,
    /// Time between lines.
    interval: Duration,
}

impl Sink {
    fn stderr() -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        let (delay, interval) =
            if is_terminal { (SHOW_AFTER, REDRAW_INTERVAL) } else { (LOG_INTERVAL, LOG_INTERVAL) };
        // A background process may write to a log, but not to the terminal.
        let may_draw = if is_terminal { strandline_sys::host::is_in_foreground } else { || true };
        Self { out: Box::new(std::io::stderr()), is_terminal, may_draw, delay, interval }
    }

    /// Draws until `ended` is disconnected, and erases what it drew.
    fn draw(mut self, latest: &Latest, ended: &Receiver<()>) {
        let (mut pause, mut is_drawn) = (self.delay, false);
        while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
            let state = latest.lock().unwrap_or_else(PoisonError::into_inner).take();
            let Some(state) = state.filter(|_| (self.may_draw)()) else { continue };
            pause = self.interval;
            // Errors are ignored: progress is not essential.
            if self.is_terminal {
                drop(write!(self.out, "\r\x1b[K{}", state.text()));
                is_drawn = true;
            } else {
                drop(writeln!(self.out, "{}", state.text()));
            }
        }
        if is_drawn && (self.may_draw)() {
            drop(write!(self.out, "\r\x1b[K"));
        }
    }
}

impl Drawer {
    /// Starts the thread; `None` if that fails: then there is no progress line.
    fn start(sink: Sink) -> Option<Self> {
        let latest = Latest::default();
        let ((end, ended), (drawing, erased)) = (channel::<()>(), channel::<()>());
        let latest_for_thread = Arc::clone(&latest);
        let draw = move || {
            sink.draw(&latest_for_thread, &ended);
            drop(drawing);
        };
        start_writer("progress", draw).ok()?;
        Some(Self { latest, end: Some(end), erased: Mutex::new(erased) })
    }
}

/// Starts a thread that writes to standard error. It blocks all signals from its first instruction
/// on: those sent to the process are for the thread that handles them, and one that stops this
/// thread would stop the whole process, while another thread may have stopped a target.
///
/// # Errors
/// No thread can be started.
pub fn start_writer(name: &str, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let mask_before = signal::block(u64::MAX)?;
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(body);
    signal::replace_mask(mask_before)?;
    thread.map(drop)
}

impl Drop for Drawer {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Ok(erased) = self.erased.get_mut() {
            // Fails when the line is erased or the limit is reached; both are expected.
            let _ = erased.recv_timeout(ERASE_LIMIT);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_fits_into_a_narrow_terminal() {
        assert_eq!([1, 40, 79, 80, 300].map(columns_in), [0, 39, 78, 78, 78]);
    }

    /// A terminal that blocks: each write waits until it is closed.
    struct Blocked(Sender<String>, Receiver<()>);

    impl Write for Blocked {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.send(String::from_utf8_lossy(bytes).into_owned()).ok();
            self.1.recv().ok();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_blocked_terminal_delays_nothing() {
        let ((begun, written), (close, closed)) = (channel(), channel());
        let moment = Duration::from_millis(1);
        let out = Box::new(Blocked(begun, closed));
        let sink = Sink { out, is_terminal: true, may_draw: || true, delay: moment, interval: moment };
        let progress = Progress(Drawer::start(sink));
        progress.set_bytes("reading", 1, 2);
        // From here on the terminal blocks.
        assert!(!written.recv().unwrap().is_empty());
        for done in 0..1000 {
            progress.set_bytes("reading", done, 1000);
        }
        progress.set_line("another line");
        drop(progress);
        drop(close);
    }
}
