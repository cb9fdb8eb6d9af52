//! A line on standard error that says how far a long look has come. Only on a terminal, only after a
//! while, and gone when the look is over.

use std::io::{IsTerminal, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use strandline_report::text::{clean, shorten};
use strandline_report::units::{bytes, percent};

/// Looks shorter than this show nothing.
const PATIENCE: Duration = Duration::from_millis(400);
/// Redrawn at most this often: a terminal is slower than the look.
const PACE: Duration = Duration::from_millis(100);

/// A line of progress; `Drop` wipes it.
#[derive(Debug)]
pub struct Progress {
    /// When the line may be drawn next, and whether it ever was; `None` where there is no terminal.
    state: Option<Mutex<(Instant, bool)>>,
}

impl Progress {
    /// A line that is shown if standard error is a terminal and no document was asked for.
    pub fn new(wanted: bool) -> Self {
        let shown = wanted && std::io::stderr().is_terminal();
        Self { state: shown.then(|| Mutex::new((Instant::now() + PATIENCE, false))) }
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
        *state = (now + PACE, true);
        drop(write!(std::io::stderr(), "\r\x1b[K{}", shorten(&line(), 78)));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        let drawn = self.state.as_ref().is_some_and(|state| state.lock().is_ok_and(|state| state.1));
        if drawn {
            drop(write!(std::io::stderr(), "\r\x1b[K"));
        }
    }
}
