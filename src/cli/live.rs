//! Standard error while a recording runs: warnings, and on a terminal a progress line.
//!
//! A separate thread writes: a terminal stopped by Ctrl-S, or a full pipe, blocks a write, and the
//! recorder, its samples and the programs that wait at marks must not wait for it.

use std::cell::Cell;
use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::time::Duration;

use super::arguments::When;
use super::output::message_text;
use super::progress::{ERASE_LIMIT, max_columns, start_writer};
use strandline_recorder::Progress;
use strandline_report::text::{clean, counted, shorten};
use strandline_report::units::{bytes, percent, seconds};

/// Shorter recordings show no progress.
const SHOW_AFTER: Duration = Duration::from_secs(1);
/// Maximum number of texts that wait for a blocked standard error. The recording has the warnings
/// too.
const MAX_WAITING: usize = 64;
/// Moves to the beginning of the line and erases it.
const ERASE: &str = "\r\x1b[K";

/// Standard error while a recording runs.
pub struct LiveOutput {
    /// Whether there is a progress line.
    is_shown: bool,
    /// Whether a line is on the terminal now.
    is_drawn: Cell<bool>,
    /// Whether there was a warning.
    has_warned: Cell<bool>,
    /// `None` if no thread could be started: then the recorder fails too.
    writer: Option<Writer>,
}

/// The thread that writes.
struct Writer {
    texts: SyncSender<String>,
    /// Number of texts that were sent and are not written yet.
    waiting: Arc<AtomicUsize>,
    /// Disconnected when the thread ends.
    ended: Receiver<()>,
}

/// Whether strandline may write to standard error unasked: it is no terminal, or strandline is in
/// its foreground.
pub fn may_write() -> bool {
    !std::io::stderr().is_terminal() || strandline_sys::host::is_in_foreground()
}

impl LiveOutput {
    /// An output whose progress line is shown as `when` says; for `Auto`, on a terminal and only if
    /// `may_draw`.
    pub fn new(when: When, may_draw: bool) -> Self {
        let is_shown = match when {
            When::Always => true,
            When::Never => false,
            When::Auto => std::io::stderr().is_terminal() && may_draw,
        };
        let (is_drawn, has_warned) = (Cell::new(false), Cell::new(false));
        Self { is_shown, is_drawn, has_warned, writer: Writer::start() }
    }

    /// Shows the progress, unless an earlier text is not written yet.
    pub fn update(&self, progress: &Progress) {
        // In the background a line would stop the whole job (stty tostop), or disturb a prompt.
        if !self.is_shown || progress.elapsed < SHOW_AFTER || !may_write() {
            return;
        }
        if let Some(writer) = self.writer.as_ref().filter(|writer| writer.is_idle()) {
            self.is_drawn.set(true);
            let line = shorten(&clean(&progress_text(progress)), max_columns());
            writer.send(format!("{ERASE}{line}"));
        }
    }

    /// Prints a warning as soon as standard error takes it.
    pub fn warn(&self, line: &str) {
        self.has_warned.set(true);
        let erase = if self.is_drawn.take() { ERASE } else { "" };
        if let Some(writer) = &self.writer {
            writer.send(format!("{erase}{}", message_text(line)));
        }
    }

    /// Erases the progress line, and waits until everything is written: for a progress line only
    /// briefly. Call it when nothing waits for the recorder any more.
    pub fn finish(self) {
        let Some(writer) = self.writer else { return };
        if self.is_drawn.get() {
            writer.send(ERASE.to_owned());
        }
        drop(writer.texts);
        // Both fail when the thread ends, which is expected.
        if self.has_warned.get() {
            let _ = writer.ended.recv();
        } else {
            let _ = writer.ended.recv_timeout(ERASE_LIMIT);
        }
    }
}

impl Writer {
    fn start() -> Option<Self> {
        let (texts, received) = sync_channel(MAX_WAITING);
        let waiting = Arc::new(AtomicUsize::new(0));
        let waiting_for_thread = Arc::clone(&waiting);
        let (ending, ended) = channel();
        let write = move || {
            write_texts(&received, &waiting_for_thread);
            drop(ending);
        };
        start_writer("messages", write).ok()?;
        Some(Self { texts, waiting, ended })
    }

    fn is_idle(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) == 0
    }

    /// Has the thread write `text`; a text above [`MAX_WAITING`] is lost.
    fn send(&self, text: String) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        if self.texts.try_send(text).is_err() {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Writes the texts until their sender ends.
fn write_texts(texts: &Receiver<String>, waiting: &AtomicUsize) {
    while let Ok(text) = texts.recv() {
        // If standard error is closed, the text is lost.
        drop(std::io::stderr().write_all(text.as_bytes()));
        waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The text of the progress line.
fn progress_text(progress: &Progress) -> String {
    let mut line = format!(
        "{} · RSS {} · peak {} · {} missed",
        seconds(progress.elapsed.as_secs_f64()),
        bytes(progress.rss_bytes),
        bytes(progress.peak_bytes),
        percent(progress.missed, progress.samples + progress.missed)
    );
    if progress.processes > 1 {
        line += &format!(" · {}", counted(progress.processes as u64, "process"));
    }
    for (count, noun) in [(progress.marks, "mark"), (progress.ledgers, "ledger")] {
        if count > 0 {
            line += &format!(" · {}", counted(count, noun));
        }
    }
    line
}
