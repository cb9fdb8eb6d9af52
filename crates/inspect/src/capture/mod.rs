//! Captures one process: reads everything that must be of one state while the process does not run.
//!
//! [`attempts`] stops the process, reads it and releases it, or reads it while all its threads
//! sleep ([`quiet`]), or from a copy-on-write child ([`from_snapshot`]). The result is a
//! [`FrozenState`] with the readers' claims; later modules interpret it.

mod attempts;
mod from_snapshot;
mod frozen;
mod page_tables;
mod quiet;
mod snapshot;
mod stopped_by;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use strandline_claims::caveat::Caveat;
use strandline_process::error::{Error, Result};
use strandline_process::procfs::Process;
use strandline_process::target::admission;
use strandline_process::target::hold::on_own_thread;

pub use self::attempts::read_process;
#[cfg(test)]
pub use self::attempts::take_with;
pub use self::frozen::FrozenState;
pub use self::quiet::QUIET_FOR;
pub use self::snapshot::SnapshotMode;
pub use self::stopped_by::{Ending, StoppedBy};

/// Maximum number of captures of a process that starts other programs (execve).
const MAX_CAPTURES: u32 = 5;

/// Called with the name of a task, its bytes done so far, and its total bytes.
pub type Progress<'a> = &'a (dyn Fn(&str, u64, u64) + Sync);

/// Options of an inspection.
#[derive(Clone, Copy)]
pub struct Options<'a> {
    /// Whether to search memory outside malloc's heaps for all-zero pages, which reads all of it.
    pub finds_zero_pages: bool,
    /// Whether to check the heap for a call into the allocator, which takes longer.
    pub checks_for_call: bool,
    /// Whether to keep all blocks in use, and find their holders.
    pub keeps_blocks: bool,
    /// Whether to read language runtimes, which takes longer.
    pub reads_runtimes: bool,
    /// Type for which the path of a live object to a root is wanted: the readers of SBCL and V8.
    pub path_to: Option<&'a str>,
    /// Whether to make a page map ([`page_map`](crate::facts::Explanation::page_map)).
    pub makes_page_map: bool,
    /// How long the process may be stopped; caveats say what was not read by then. `None`: as long
    /// as reading takes, up to ten seconds plus one for each GiB of anonymous memory.
    pub max_stop: Option<Duration>,
    /// When to read from a snapshot, while the process runs on.
    pub snapshot: SnapshotMode,
    /// How long to try first to read the process without stopping it, while none of its threads
    /// runs; zero not to try.
    pub quiet_for: Duration,
    /// Whether to fail rather than stop the process, if it cannot be read without a stop.
    pub never_stops: bool,
    /// Whether the calling thread watches the target for its exit
    /// ([`strandline_process::target::exit_watch`]).
    pub is_watched: bool,
    /// Start time of the process in clock ticks since boot. If it is set, a process that has reused
    /// the id is refused.
    pub start_ticks: Option<u64>,
    /// Number of threads that read; `None` for one per processor.
    pub threads: Option<usize>,
    /// Called with the progress of the inspection.
    pub progress: Option<Progress<'a>>,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Self {
            finds_zero_pages: true,
            checks_for_call: false,
            keeps_blocks: false,
            reads_runtimes: true,
            path_to: None,
            makes_page_map: false,
            max_stop: None,
            snapshot: SnapshotMode::Never,
            quiet_for: QUIET_FOR,
            never_stops: false,
            is_watched: false,
            start_ticks: None,
            threads: None,
            progress: None,
        }
    }
}

impl Options<'_> {
    /// Returns the number of threads that read.
    pub(crate) fn reading_threads(&self) -> usize {
        self.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
    }

    /// Reports that `done` of `total` bytes of a task are done.
    pub(crate) fn report(&self, task: &str, done: u64, total: u64) {
        if let Some(progress) = self.progress {
            progress(task, done, total);
        }
    }

    /// Reports that `bytes` more of a task are done.
    pub(crate) fn advance(&self, task: &str, done: &AtomicU64, bytes: u64, total: u64) {
        let done = done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.report(task, done.min(total), total);
    }
}

/// Captures process `pid` and passes it to `interpret`. If a snapshot failed, or did not last until
/// the end of `interpret`, captures the stopped process and calls `interpret` again, with a caveat.
///
/// # Errors
/// Those of [`Error`]: there is no such process, it may not be read, another process traces it, or
/// it ended meanwhile; and those of `interpret`.
pub fn with_capture<T>(
    pid: i32,
    options: &Options<'_>,
    mut interpret: impl FnMut(&Process, FrozenState) -> Result<T>,
) -> Result<T> {
    match capture(pid, options).and_then(|(process, frozen)| interpret(&process, frozen)) {
        Err(Error::NoSnapshot { reason, stopped_time, .. }) if options.snapshot != SnapshotMode::Always => {
            let max_stop = options.max_stop.map(|limit| limit.saturating_sub(stopped_time));
            let without_snapshot =
                Options { snapshot: SnapshotMode::Never, quiet_for: Duration::ZERO, max_stop, ..*options };
            let (process, mut frozen) = capture(pid, &without_snapshot)?;
            frozen.caveats.push(attempts::no_snapshot_caveat(&reason));
            frozen.stopped_for += stopped_time;
            interpret(&process, frozen)
        }
        Err(Error::NoSnapshot { pid, reason, stopped_time }) if options.max_stop.is_none() => {
            let reason = reason + "; --snapshot=try stops it for as long as reading takes instead";
            Err(Error::NoSnapshot { pid, reason, stopped_time })
        }
        other => other,
    }
}

/// Captures a process, again each time it has started another program meanwhile (execve).
fn capture(pid: i32, options: &Options<'_>) -> Result<(Process, FrozenState)> {
    for _ in 1..MAX_CAPTURES {
        match capture_once(pid, options) {
            // If the calling thread watches the process, it must end first, to release the process.
            Err(Error::Replaced { .. }) if !options.is_watched => {}
            other => return other,
        }
    }
    capture_once(pid, options)
}

fn capture_once(pid: i32, options: &Options<'_>) -> Result<(Process, FrozenState)> {
    let process =
        if options.is_watched { admission::admit_watched(pid)? } else { admission::open_target(pid)? };
    let is_other = |ticks| process.stat().map_or(true, |stat| stat.start_ticks != ticks);
    if options.start_ticks.is_some_and(is_other) {
        return Err(Error::NoSuchProcess { pid });
    }
    let threads = options.reading_threads();
    // A process of unknown size gets the limit of a small one.
    let longest_stop = || frozen::longest_stop(attempts::anonymous_bytes(&process).unwrap_or(0));
    let stop_limit = options.max_stop.unwrap_or_else(longest_stop);
    // The tracer is a separate thread: when it ends, the kernel releases everything, even threads
    // in an uninterruptible sleep that could not be stopped and released in order.
    let frozen = on_own_thread(stop_limit, || read_process(&process, &StoppedBy::Us, threads, options));
    let no_result = || {
        std::io::Error::other(
            "the thread that reads did not start (RLIMIT_NPROC, pids.max), or failed (try --no-runtimes)",
        )
    };
    let frozen =
        frozen.ok_or_else(|| Error::Io { pid, what: "stopping".to_owned(), source: no_result() })??;
    Ok((process, frozen))
}

impl FrozenState {
    /// Ends the snapshot, if there is one, and checks that it lasted until now.
    ///
    /// # Errors
    /// [`Error::NoSnapshot`] if it did not: all that was read from it is then in doubt.
    pub fn end_snapshot(&mut self, process: &Process) -> Result<()> {
        let Some(snapshot) = self.snapshot.take() else { return Ok(()) };
        let no_snapshot =
            |reason| Error::NoSnapshot { pid: process.pid(), reason, stopped_time: self.stopped_for };
        let cost = snapshot.end().map_err(no_snapshot)?;
        if !cost.is_reaped {
            let text = "the snapshot, a child of the process, has ended and holds no memory, but no thread of the process could \
                        be made to wait for it: a zombie stays until the process ends or waits for its children. Nothing needs \
                        to be done, unless this recurs where process ids are limited: then read with --snapshot=never";
            let place = format!("process {}", process.pid());
            self.caveats.push(Caveat::new("photograph_left", place, None, text));
        }
        self.stopped_for += cost.stopped_time;
        self.snapshot_cost = Some(cost);
        // While there was a snapshot, half of each shared page counted as the snapshot's.
        self.rollup = process.smaps_rollup();
        Ok(())
    }
}
