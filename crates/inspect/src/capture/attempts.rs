//! Reads a process: stops it, reads it, releases it, and tries again if it was in the middle of a
//! change.
//!
//! [`super::frozen`] defines what is read. Called on a separate thread, which is the tracer.

use std::time::{Duration, Instant};

use super::Options;
use super::from_snapshot;
use super::frozen::{FrozenState, IsLastAttempt, ReadPlan, Threads, end_of_reading};
use super::page_tables::FactsBeforeStop;
use super::quiet;
use super::snapshot::{self, SnapshotMode};
use super::stopped_by::StoppedBy;
use crate::readers::FoundReaders;
use strandline_claims::caveat::Caveat;
use strandline_process::error::{Error, Result};
use strandline_process::map::{AddressSpace, Mapping};
use strandline_process::memory::Memory;
use strandline_process::memory_spans::MemorySpans;
use strandline_process::pages::PageRun;
use strandline_process::procfs::Process;
use strandline_process::range::AddressRange;
use strandline_process::snapshot::NotTaken;
use strandline_process::target::copy::{CopyBuffer, LiveRanges, MemoryCopy};
use strandline_process::target::exit_watch;
use strandline_process::target::hold;
use strandline_process::target::live::{ByPid, MemFile};
use strandline_process::target::stop::{STOP_LIMIT, ShortTransfer, Stopped, Transfers};

/// Maximum number of attempts to read a process whose runtime is in the middle of a collection.
const MAX_ATTEMPTS: u32 = 5;
/// Minimum time that all threads get to stop, even if the stop must be shorter.
const MIN_STOP_LIMIT: Duration = Duration::from_millis(20);
/// Maximum number of attempts to stop all threads.
const MAX_STOPS: u32 = 10;
/// How long the process runs between two of these attempts.
const BETWEEN_STOPS: Duration = Duration::from_millis(100);
/// Bytes of another process that two threads certainly copy in a second.
const COPIED_BYTES_PER_SECOND: f64 = 3e9;

/// Minimum anonymous memory for which a snapshot is worth taking to read a runtime.
const MIN_SNAPSHOT_BYTES: u64 = 8 << 20;

/// How long the process runs before it is read again.
const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// Maximum length of a stop after which an inconsistent heap is read once more: a thread stopped
/// within malloc leaves its arena inconsistent only for a moment.
const MAX_STOP_FOR_RETRY: Duration = Duration::from_millis(200);
/// Maximum time to wait for the end of a runtime's collection before a stop: a running target loses
/// nothing.
const MAX_COLLECTION_WAIT: Duration = Duration::from_secs(2);
/// Interval between checks whether the collection has ended.
const COLLECTION_CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// Reads `process` with `workers` threads.
///
/// # Errors
/// Those of [`super::with_capture`].
pub fn read_process(
    process: &Process,
    stopped_by: &StoppedBy<'_>,
    workers: usize,
    options: &Options<'_>,
) -> Result<FrozenState> {
    // Files are searched before the stop.
    let (mut space, _) = AddressSpace::parse(&process.maps_text()?);
    let spans = exit_watch::run_while_watching(|| MemorySpans::read(process, &space));
    space.set_spans(spans);
    let found =
        exit_watch::run_while_watching(|| FoundReaders::find(process, &space, options.reads_runtimes));
    take_with(process, stopped_by, workers, options, &space, &found)
}

/// Like [`read_process`], with the readers in `found` and the mappings `space`; the same errors.
pub fn take_with(
    process: &Process,
    stopped_by: &StoppedBy<'_>,
    workers: usize,
    options: &Options<'_>,
    space: &AddressSpace,
    found: &FoundReaders,
) -> Result<FrozenState> {
    let status = process.status()?;
    let before = FactsBeforeStop {
        space,
        rss_bytes: status.rss_bytes,
        // The kernel always prints VmLck; HugetlbPages only if it is built with hugetlb.
        has_locked_or_hugetlb: status.locked_bytes != Some(0)
            || status.hugetlb_bytes.is_some_and(|bytes| bytes > 0),
    };
    let read_plan = ReadPlan { workers, options, found, before };
    let mut frozen = match stopped_by {
        StoppedBy::Us => match exit_watch::run_while_watching(|| quiet::read(process, &read_plan))? {
            Some(frozen) => frozen,
            None if options.never_stops => return Err(Error::NeedsStop { pid: process.pid() }),
            None => read_with_stops(process, &read_plan)?,
        },
        StoppedBy::Ending(ending) => {
            let registers = ending.registers.iter().map(|(tid, registers)| (*tid, registers));
            let thread_count = ending.other_threads.saturating_add(1);
            let mut threads = Threads::new(process, registers, std::iter::empty(), thread_count);
            threads.caveats.extend(ending.caveat(process));
            let since = Instant::now();
            let mut frozen = FrozenState::of_process(process, threads, &read_plan)?;
            frozen.reading_ends = options.max_stop.map(|max_stop| end_of_reading(since, max_stop));
            let file = MemFile::new(process.open_file("mem")?);
            let memory = frozen.traced_memory(process, &file);
            frozen.read_all(process, &memory, &read_plan, IsLastAttempt(true))?;
            frozen.read_rollup(process);
            frozen
        }
    };
    frozen.caveats.extend(options.max_stop.and_then(|max_stop| stopped_longer(&frozen, max_stop)));
    for (reading, &index) in frozen.allocator_readings.iter_mut().zip(&frozen.allocator_indices) {
        if let Some(allocator) = found.allocators.get(index) {
            allocator.found.finish(process, &frozen.address_space, reading);
        }
    }
    Ok(frozen)
}

/// Returns a caveat if the process was stopped for longer than `max_stop`.
fn stopped_longer(frozen: &FrozenState, max_stop: Duration) -> Option<Caveat> {
    let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
    let text = format!(
        "the process was stopped for {:.1} ms, longer than the {:.1} ms of --max-stop: stopping its threads and reading its \
         mappings and page tables cannot be cut short",
        milliseconds(frozen.stopped_for),
        milliseconds(max_stop)
    );
    (frozen.stopped_for > max_stop).then(|| Caveat::new("max_stop_exceeded", "--max-stop", None, text))
}

/// Stops the process and reads it; tries again a moment later if a runtime is collecting or a heap
/// is inconsistent.
fn read_with_stops(process: &Process, read_plan: &ReadPlan<'_>) -> Result<FrozenState> {
    let mut stopped_before = Duration::ZERO;
    let memory = ByPid::new(process.pid());
    hold::start_watchdog();
    let (mut collection_ends, mut was_retried, mut short_transfers) = (true, false, Vec::new());
    for attempts_left in (0..MAX_ATTEMPTS).rev() {
        // A collection that does not end (others stopped the process) is waited for once.
        collection_ends = collection_ends && wait_for_collection(&memory, read_plan);
        // Earlier attempts have used up a part of the time.
        let max_stop = read_plan.options.max_stop.map(|max_stop| max_stop.saturating_sub(stopped_before));
        let source = choose_source(process, &memory, read_plan, max_stop)?;
        let longest_stop = source.longest_stop();
        // Threads in a transfer are left asleep, except in the last two attempts.
        let transfers = if attempts_left > 1 { Transfers::LeaveAsleep } else { Transfers::Stop };
        let stopped = stop_within(process, max_stop, transfers, &mut stopped_before)?;
        // A discarded attempt may have cut a transfer short, too.
        short_transfers.extend(stopped.cut_short().iter().map(short_transfer_caveat));
        if attempts_left > 0 && read_plan.found.is_collecting(&memory) {
            stopped_before += stopped.resume();
            exit_watch::sleep_while_watching(RETRY_PAUSE);
            continue;
        }
        let is_last = IsLastAttempt(attempts_left == 0);
        let mut frozen = match read_stopped(process, stopped, source, max_stop, read_plan, is_last)? {
            AttemptResult::Whole(frozen) => frozen,
            AttemptResult::Again(stopped_time) => {
                stopped_before += stopped_time;
                exit_watch::sleep_while_watching(RETRY_PAUSE);
                continue;
            }
        };
        // There must be time for another attempt, and for the snapshot of one.
        let stopped_time = frozen.stopped_for + stopped_before;
        let has_time = read_plan
            .options
            .max_stop
            .is_none_or(|max_stop| stopped_time <= max_stop / 2 && stopped_time + longest_stop <= max_stop);
        let may_retry = !was_retried && attempts_left > 0 && has_time;
        let is_in_motion = frozen.has_damage() && frozen.stopped_for < MAX_STOP_FOR_RETRY;
        frozen.stopped_for += stopped_before;
        if !may_retry || !is_in_motion {
            frozen.caveats.append(&mut short_transfers);
            return Ok(*frozen);
        }
        was_retried = true;
        stopped_before = frozen.stopped_for;
        exit_watch::sleep_while_watching(RETRY_PAUSE);
    }
    // The last attempt stops all threads: if one ran nevertheless, the process was killed.
    Err(Error::Ended { pid: process.pid() })
}

/// Stops all threads. If they must stop quickly, tries several times: a thread that waits for a
/// processor stops only once it gets one. Adds the time of failed attempts to `stopped_before`.
fn stop_within<'p>(
    process: &'p Process,
    max_stop: Option<Duration>,
    transfers: Transfers,
    stopped_before: &mut Duration,
) -> Result<Stopped<'p>> {
    let limit = max_stop.map_or(STOP_LIMIT, |max_stop| max_stop.clamp(MIN_STOP_LIMIT, STOP_LIMIT));
    for _ in 1..MAX_STOPS {
        let since = Instant::now();
        match Stopped::stop_within(process, limit, transfers) {
            Err(Error::DidNotStop { .. }) if limit < STOP_LIMIT => {
                *stopped_before += since.elapsed();
                exit_watch::sleep_while_watching(BETWEEN_STOPS);
            }
            result => return result,
        }
    }
    Stopped::stop_within(process, limit, transfers)
}

/// What a process is read from.
enum Source {
    /// The stopped process itself.
    Stopped {
        /// The reason against a snapshot, if one was requested.
        objection: Option<String>,
    },
    /// A copy of its memory.
    Copied {
        /// Where the copy goes.
        buffer: CopyBuffer,
        /// As for [`Source::Stopped`].
        objection: Option<String>,
    },
    /// A snapshot.
    Snapshot(snapshot::Plan),
}

impl Source {
    /// How long a snapshot may stop the process; zero without one.
    fn longest_stop(&self) -> Duration {
        match self {
            Self::Snapshot(plan) => plan.longest_stop,
            Self::Stopped { .. } | Self::Copied { .. } => Duration::ZERO,
        }
    }
}

/// Determines what the process can be read from, before the stop.
fn choose_source(
    process: &Process,
    memory: &ByPid,
    read_plan: &ReadPlan<'_>,
    max_stop: Option<Duration>,
) -> Result<Source> {
    let mut objection = None;
    let wants_snapshot = match read_plan.options.snapshot {
        SnapshotMode::Never => false,
        // Objects are followed on a snapshot only.
        SnapshotMode::IfShorter => {
            let is_worthwhile =
                read_plan.options.path_to.is_some() || anonymous_bytes(process) >= Some(MIN_SNAPSHOT_BYTES);
            read_plan.found.is_slow() && is_worthwhile
        }
        SnapshotMode::IfPossible | SnapshotMode::Always => true,
    };
    if wants_snapshot {
        match snapshot::plan(process, &process.address_space()?, max_stop, read_plan.found.hides_memory()) {
            // Finding holders takes longer, and without a snapshot half of the result is missing.
            Ok(plan) if read_plan.options.keeps_blocks => {
                return Ok(Source::Snapshot(snapshot::Plan { lifetime: snapshot::MAX_LIFETIME, ..plan }));
            }
            Ok(plan) => return Ok(Source::Snapshot(plan)),
            Err(reason) => objection = objection_to_report(process, read_plan, reason)?,
        }
    }
    let wants_copy = read_plan.found.wants_copy(memory) && has_time_for_copy(read_plan, process);
    let buffer = if wants_copy { CopyBuffer::for_process(process) } else { None };
    Ok(match buffer {
        Some(buffer) => Source::Copied { buffer, objection },
        None => Source::Stopped { objection },
    })
}

/// Returns the reason against a snapshot if one was requested; fails if one is required.
fn objection_to_report(
    process: &Process,
    read_plan: &ReadPlan<'_>,
    reason: String,
) -> Result<Option<String>> {
    match read_plan.options.snapshot {
        SnapshotMode::Always => {
            Err(Error::NoSnapshot { pid: process.pid(), reason, stopped_time: Duration::ZERO })
        }
        SnapshotMode::IfPossible => Ok(Some(reason)),
        SnapshotMode::IfShorter | SnapshotMode::Never => Ok(None),
    }
}

/// Result of one attempt.
enum AttemptResult {
    /// All of one state.
    Whole(Box<FrozenState>),
    /// The process was changing, or a thread left asleep woke up. Contains the length of the stop.
    Again(Duration),
}

impl AttemptResult {
    fn new(frozen: FrozenState) -> Self {
        if frozen.must_read_again { Self::Again(frozen.stopped_for) } else { Self::Whole(Box::new(frozen)) }
    }
}

/// The caveat for a thread whose transfer returned short.
fn short_transfer_caveat(transfer: &ShortTransfer) -> Caveat {
    let text = format!(
        "its {} returned less than requested when the thread was stopped, perhaps because of that: a program that does not \
         continue such a transfer has lost the rest",
        transfer.call
    );
    Caveat::new("short_transfer", format!("thread {}", transfer.tid), None, text)
}

/// Describes the threads of a stopped process, with caveats about those that could not be stopped.
fn threads_of(process: &Process, stopped: &Stopped<'_>, read_plan: &ReadPlan<'_>) -> Threads {
    let registers = stopped.threads().map(|thread| (thread.tid, &thread.registers));
    let mut threads = Threads::new(process, registers, stopped.in_transfer().copied(), stopped.count());
    let mut add_caveat = |code: &str, tid: i32, text: &str| {
        threads.caveats.push(Caveat::new(code, format!("thread {tid}"), None, text));
    };
    for &tid in stopped.uninterruptible_threads() {
        add_caveat(
            "thread_asleep",
            tid,
            "it is in an uninterruptible sleep: strandline did not read its stack and its malloc cache",
        );
    }
    // Registers are needed only to follow references.
    for thread in stopped.in_transfer().filter(|_| read_plan.options.keeps_blocks) {
        let text = "it sleeps in a transfer and was not stopped: blocks that only its registers reference count as unreachable";
        add_caveat("registers_unread", thread.tid, text);
    }
    threads
}

/// Reads a stopped process; releases it first to read a snapshot or a copy.
fn read_stopped(
    process: &Process,
    mut stopped: Stopped<'_>,
    source: Source,
    max_stop: Option<Duration>,
    read_plan: &ReadPlan<'_>,
    is_last: IsLastAttempt,
) -> Result<AttemptResult> {
    let since = stopped.since();
    let threads = threads_of(process, &stopped, read_plan);
    // No thread is stopped, because all sleep in transfers, so none can make a snapshot.
    let all_in_transfers = stopped.threads().next().is_none() && stopped.uninterruptible_threads().is_empty();
    let (buffer, objection) = match source {
        Source::Snapshot(_) if all_in_transfers && read_plan.options.snapshot == SnapshotMode::Always => {
            return Ok(AttemptResult::Again(stopped.resume()));
        }
        Source::Snapshot(_) if all_in_transfers => (None, None),
        Source::Snapshot(plan) => {
            let snapshot = from_snapshot::take(process, &mut stopped, &plan, &read_plan.before);
            return read_snapshot(process, stopped, snapshot, threads, read_plan, is_last);
        }
        Source::Copied { buffer, objection } => (Some(buffer), objection),
        Source::Stopped { objection } => (None, objection),
    };
    let file = MemFile::new(process.open_file("mem")?);
    let mut frozen = match FrozenState::of_process(process, threads, read_plan) {
        // If a thread ran meanwhile, page tables and mappings need not add up.
        Err(_) if !stopped.slept_throughout() => return Ok(AttemptResult::Again(stopped.resume())),
        Err(_) if stopped.was_killed() => return Err(Error::Ended { pid: process.pid() }),
        frozen => frozen?,
    };
    frozen.reading_ends = max_stop.map(|max_stop| end_of_reading(since, max_stop));
    let memory = frozen.traced_memory(process, &file);
    frozen.caveats.extend(objection.map(|reason| no_snapshot_caveat(&reason)));
    let copy = buffer.and_then(|buffer| {
        let live = Some(LiveRanges { ranges: constant_ranges(&frozen), file: &file });
        MemoryCopy::take(&memory, own_runs(&frozen), buffer, read_plan.workers, live)
    });
    let has_transfers = stopped.in_transfer().next().is_some();
    let mut read = |memory: &dyn Memory| frozen.read_all(process, memory, read_plan, is_last);
    // A copy is read after the process is released.
    let read_result = match &copy {
        Some(_) => Ok(()),
        None if has_transfers => quiet::watched(&memory, &|| !stopped.slept_throughout(), read).result,
        None => read(&memory),
    };
    let (slept_throughout, was_killed) = (stopped.slept_throughout(), stopped.was_killed());
    frozen.stopped_for = stopped.resume();
    if was_killed {
        return Err(Error::Ended { pid: process.pid() });
    }
    if !slept_throughout {
        return Ok(AttemptResult::Again(frozen.stopped_for));
    }
    read_result?;
    if let Some(copy) = copy {
        // The process runs meanwhile.
        frozen.reading_ends = None;
        exit_watch::run_while_watching(|| frozen.read_all(process, &copy, read_plan, is_last))?;
        // The copy was read from the process once.
        frozen.bytes_read = copy.bytes();
    }
    frozen.read_rollup(process);
    Ok(AttemptResult::new(frozen))
}

/// Releases the process, and reads its snapshot.
fn read_snapshot(
    process: &Process,
    stopped: Stopped<'_>,
    snapshot: std::result::Result<from_snapshot::SnapshotInputs, NotTaken>,
    threads: Threads,
    read_plan: &ReadPlan<'_>,
    is_last: IsLastAttempt,
) -> Result<AttemptResult> {
    let slept_throughout = stopped.slept_throughout();
    let stopped_time = stopped.resume();
    let snapshot_error = |reason| Error::NoSnapshot { pid: process.pid(), reason, stopped_time };
    let snapshot = snapshot.map_err(|NotTaken { reason, snapshot_to_drop }| {
        // Ended and reaped now that the process runs.
        drop(snapshot_to_drop);
        snapshot_error(reason)
    })?;
    if !slept_throughout {
        return Ok(AttemptResult::Again(stopped_time));
    }
    let frozen = snapshot.read(process, threads, read_plan, is_last);
    let mut frozen = frozen.map_err(|error| match error {
        Error::NoSnapshot { reason, .. } => snapshot_error(reason),
        error => error,
    })?;
    frozen.stopped_for = stopped_time;
    Ok(AttemptResult::new(frozen))
}

/// Returns the caveat that explains why the process was stopped while it was read.
pub(super) fn no_snapshot_caveat(reason: &str) -> Caveat {
    Caveat::new("no_photograph", "--snapshot", None, format!("it was stopped while it was read: {reason}"))
}

/// The resident pages that only the process itself can change, in address order.
fn own_runs(frozen: &FrozenState) -> impl Iterator<Item = AddressRange> {
    frozen.smaps_entries.iter().flat_map(|entry| {
        let permissions = entry.mapping.permissions;
        let is_data = entry.mapping.has_file() && permissions.write && !permissions.shared;
        let runs = frozen.residency.runs_in(entry.mapping.start..entry.mapping.end);
        runs.filter(move |run| run.is_anonymous || is_data).map(PageRun::range)
    })
}

/// Returns the ranges that do not change when the process runs again: private mappings of files,
/// but not of devices.
fn constant_ranges(frozen: &FrozenState) -> Vec<AddressRange> {
    let mappings = frozen.smaps_entries.iter().map(|entry| &entry.mapping);
    let is_constant = |mapping: &&Mapping| {
        let permissions = mapping.permissions;
        let is_device = mapping.name.starts_with("/dev/");
        mapping.has_file() && permissions.read && !permissions.shared && !is_device
    };
    mappings.filter(is_constant).map(Mapping::range).collect()
}

/// Waits for the end of a runtime's collection, up to a limit; returns whether it ended.
fn wait_for_collection(memory: &ByPid, read_plan: &ReadPlan<'_>) -> bool {
    let deadline = Instant::now() + MAX_COLLECTION_WAIT;
    while read_plan.found.is_collecting(memory) {
        if Instant::now() >= deadline {
            return false;
        }
        exit_watch::sleep_while_watching(COLLECTION_CHECK_INTERVAL);
    }
    true
}

/// Whether all memory of the process can be copied in the time for which it may be stopped.
fn has_time_for_copy(read_plan: &ReadPlan<'_>, process: &Process) -> bool {
    let Some(max_stop) = read_plan.options.max_stop else { return true };
    let copy_seconds = |bytes: u64| bytes as f64 / COPIED_BYTES_PER_SECOND;
    anonymous_bytes(process).is_some_and(|bytes| copy_seconds(bytes) < max_stop.as_secs_f64() / 2.0)
}

/// The resident anonymous bytes of the process (RssAnon); `None` if unknown.
pub(super) fn anonymous_bytes(process: &Process) -> Option<u64> {
    process.status().ok()?.anonymous_bytes
}
