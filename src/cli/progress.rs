//! How far long work has come, on standard error. On a terminal it is one line that is redrawn, and gone at the end; a log gets a
//! plain line twice a minute. Short work shows nothing.

use std::io::{IsTerminal, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use strandline_report::text::{clean, shorten};
use strandline_report::units::{bytes, percent};

/// Looks shorter than this show nothing.
const PATIENCE: Duration = Duration::from_millis(400);
/// Redrawn at most this often: a terminal is slower than the look.
const PACE: Duration = Duration::from_millis(100);
/// A log gets a line after this time, and again each time it has passed.
const LOG_PACE: Duration = Duration::from_secs(30);

/// A line of progress; `Drop` wipes it.
#[derive(Debug)]
pub struct Progress {
    /// When the line may be drawn next, and whether it ever was; `None` where it is not wanted.
    state: Option<Mutex<(Instant, bool)>>,
    is_terminal: bool,
}

impl Progress {
    /// Lines that are shown if they are `wanted`: where no document was asked for.
    pub fn new(wanted: bool) -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        let first = Instant::now() + if is_terminal { PATIENCE } else { LOG_PACE };
        Self { state: wanted.then(|| Mutex::new((first, false))), is_terminal }
    }

    /// `what` has come to `done` of `total` bytes.
    pub fn tell(&self, what: &str, done: u64, total: u64) {
        self.say_if_due(|| {
            format!("{}: {} of {} ({})", clean(what), bytes(done), bytes(total), percent(done, total))
        });
    }

    /// Shows this line, if it is time for one.
    pub fn say(&self, line: &str) {
        self.say_if_due(|| clean(line));
    }

    fn say_if_due(&self, line: impl FnOnce() -> String) {
        // A thread that finds the line taken lets it be: the next call tells more.
        let Some(Ok(mut state)) = self.state.as_ref().map(Mutex::try_lock) else { return };
        let now = Instant::now();
        if now < state.0 {
            return;
        }
        let (pace, line) = (if self.is_terminal { PACE } else { LOG_PACE }, shorten(&line(), 78));
        *state = (now + pace, true);
        let mut stderr = std::io::stderr();
        // Progress that cannot be shown is not missed.
        let _ = if self.is_terminal { write!(stderr, "\r\x1b[K{line}") } else { writeln!(stderr, "{line}") };
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        let drawn = self.state.as_ref().is_some_and(|state| state.lock().is_ok_and(|state| state.1));
        if drawn && self.is_terminal {
            drop(write!(std::io::stderr(), "\r\x1b[K"));
        }
    }
}
