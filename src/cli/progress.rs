//! How far long work has come, on standard error. On a terminal it is one line that is redrawn, and gone at the end; a log gets a
//! plain line twice a minute. Short work shows nothing.
//!
//! It is drawn by a thread of its own: work that holds a process never waits for a terminal.

use std::io::{IsTerminal, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use strandline_report::text::{clean, shorten};
use strandline_report::units::{bytes, percent};

/// Looks shorter than this show nothing.
const PATIENCE: Duration = Duration::from_millis(400);
/// Redrawn at most this often: a terminal is slower than the look.
const PACE: Duration = Duration::from_millis(100);
/// A log gets a line after this time, and again each time it has passed.
const LOG_PACE: Duration = Duration::from_secs(30);
/// How long the end waits for the line to be wiped, where the terminal takes no more.
const WIPE_LIMIT: Duration = Duration::from_millis(200);

/// What was said last, until it is shown.
type Latest = Arc<Mutex<Option<Said>>>;

enum Said {
    Bytes { what: String, done: u64, total: u64 },
    Line(String),
}

/// A line of progress; `Drop` wipes it.
#[derive(Debug)]
pub struct Progress(Option<Drawer>);

struct Drawer {
    latest: Latest,
    /// Dropped, it ends the thread.
    end: Option<Sender<()>>,
    /// Closed when the line is wiped.
    wiped: Mutex<Receiver<()>>,
}

impl std::fmt::Debug for Drawer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Drawer").finish_non_exhaustive()
    }
}

impl Progress {
    /// Lines that are shown if they are `wanted`: where no document was asked for.
    pub fn new(wanted: bool) -> Self {
        Self(if wanted { Drawer::start() } else { None })
    }

    /// `what` has come to `done` of `total` bytes.
    pub fn tell(&self, what: &str, done: u64, total: u64) {
        self.put(|| Said::Bytes { what: what.to_owned(), done, total });
    }

    /// Shows this line, if it is time for one.
    pub fn say(&self, line: &str) {
        self.put(|| Said::Line(line.to_owned()));
    }

    fn put(&self, said: impl FnOnce() -> Said) {
        // Who finds it taken lets it be: the next call tells more.
        if let Some(drawer) = &self.0
            && let Ok(mut latest) = drawer.latest.try_lock()
        {
            *latest = Some(said());
        }
    }
}

impl Said {
    fn text(&self) -> String {
        let line = match self {
            Self::Bytes { what, done, total } => {
                format!("{}: {} of {} ({})", clean(what), bytes(*done), bytes(*total), percent(*done, *total))
            }
            Self::Line(line) => clean(line),
        };
        shorten(&line, 78)
    }
}

impl Drawer {
    fn start() -> Option<Self> {
        let latest = Latest::default();
        let ((end, ended), (wipe, wiped)) = (channel::<()>(), channel::<()>());
        let shown = Arc::clone(&latest);
        let draw = move || {
            // One that draws from the background, as after Ctrl-Z and bg, must not stop all of strandline (stty tostop).
            strandline_sys::signal::NoStops::for_ever();
            let is_terminal = std::io::stderr().is_terminal();
            let (first, pace) = if is_terminal { (PATIENCE, PACE) } else { (LOG_PACE, LOG_PACE) };
            let (mut pause, mut is_drawn) = (first, false);
            while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                let said = shown.lock().unwrap_or_else(PoisonError::into_inner).take();
                let Some(said) = said else { continue };
                pause = pace;
                let mut stderr = std::io::stderr();
                // Progress that cannot be shown is not missed.
                if !is_terminal {
                    drop(writeln!(stderr, "{}", said.text()));
                } else if strandline_sys::host::is_in_foreground() {
                    drop(write!(stderr, "\r\x1b[K{}", said.text()));
                    is_drawn = true;
                }
            }
            if is_drawn && strandline_sys::host::is_in_foreground() {
                drop(write!(std::io::stderr(), "\r\x1b[K"));
            }
            drop(wipe);
        };
        std::thread::Builder::new().name("progress".to_owned()).spawn(draw).ok()?;
        Some(Self { latest, end: Some(end), wiped: Mutex::new(wiped) })
    }
}

impl Drop for Drawer {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Ok(wiped) = self.wiped.get_mut() {
            // It is closed, or the time is over: either will do.
            let _ = wiped.recv_timeout(WIPE_LIMIT);
        }
    }
}
