//! Inspects one process: stops it, reads it, releases it, and returns the ledger.
//!
//! Everything that has to be of one state is read while the process is stopped (`frozen`);
//! everything else is done before or after. Each run checks the rows against the kernel's own sum.
//! A process that is ending can be inspected too, while it still has its memory ([`at_exit`]).

mod describe;
mod ending;
mod files;
pub(crate) mod frozen;
mod look;
mod page_tables;
mod quiet;
pub(crate) mod sharing;
mod snapshot;
mod standing;
mod taken;
mod watch;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub use self::ending::at_exit;
use self::frozen::Frozen;
pub use self::quiet::QUIET_FOR;
pub use self::snapshot::SnapshotMode;
pub use self::standing::Ending;
use self::standing::StoppedBy;
pub use self::watch::Watch;
use crate::facts::Explanation;
use crate::holders::{self, facts::Holders};
use crate::ledger::assemble::{self, Ledger};
use crate::ledger::inputs::Inputs;
use crate::ledger::zeros::{self, Zeros};
use strandline_claims::allocator::Reading;
use strandline_claims::caveat::Caveat;
use strandline_claims::range::merge;
use strandline_claims::refinements::Matches;
use strandline_claims::runtime::FinishContext;
use strandline_process::error::{Error, Result};
use strandline_process::procfs::{Process, mounts};
use strandline_process::target::admission;
use strandline_process::target::hold::on_own_thread;

/// Called with the name of the work, bytes done so far, and total bytes.
pub type Progress<'a> = &'a (dyn Fn(&str, u64, u64) + Sync);

/// Options of an inspection.
#[derive(Clone, Copy)]
pub struct Options<'a> {
    /// Whether to look for all-zero pages in memory outside malloc's heaps, which reads all of it.
    pub find_zero_pages: bool,
    /// Whether to check the heap for a call into the allocator, which takes longer.
    pub before_call: bool,
    /// Whether to keep all blocks in use, and find their holders.
    pub keeps_blocks: bool,
    /// Whether to read language runtimes, which takes longer.
    pub runtimes: bool,
    /// Type of which a live object's path to a root is wanted, if a reader supports it (SBCL's).
    pub path_to: Option<&'a str>,
    /// Whether to make a page map ([`Explanation::page_map`]).
    pub page_map: bool,
    /// How long the process may be stopped: then it is released, whatever is missing. `None` for as
    /// long as reading takes, up to ten seconds plus one for each GiB.
    pub max_stop: Option<Duration>,
    /// Whether to read from a snapshot, while the process runs on.
    pub snapshot: SnapshotMode,
    /// How long to try first to read it without stopping it, while none of its threads runs; zero
    /// for not at all.
    pub quiet_for: Duration,
    /// Whether to fail rather than stop the process, if it cannot be read without a stop.
    pub never_stop: bool,
    /// The watch that this process keeps on the target: paused while the target is stopped.
    pub watch: Option<&'a Arc<dyn Watch>>,
    /// Its start time in ticks since boot. If given, a process that has reused the id is refused.
    pub started: Option<u64>,
    /// Number of threads for reading; `None` for one for each processor.
    pub threads: Option<usize>,
    /// Called with the progress.
    pub progress: Option<Progress<'a>>,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Self {
            find_zero_pages: true,
            before_call: false,
            keeps_blocks: false,
            runtimes: true,
            path_to: None,
            page_map: false,
            max_stop: None,
            snapshot: SnapshotMode::Never,
            quiet_for: QUIET_FOR,
            never_stop: false,
            watch: None,
            started: None,
            threads: None,
            progress: None,
        }
    }
}

impl Options<'_> {
    pub(crate) fn reading_threads(&self) -> usize {
        self.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
    }
}

/// A process's ledger, and what is needed to apply remedies.
pub struct Inspection {
    /// The report.
    pub explanation: Explanation,
    /// What the allocators' readers found.
    pub readings: Vec<Reading>,
    /// All-zero resident pages of private anonymous memory, claimed or not, in address order.
    pub zero_runs: Vec<(u64, u64)>,
    /// Holders of live blocks, if blocks were kept.
    pub holders: Option<Holders>,
}

/// Explains process `pid`.
///
/// # Errors
/// Those of [`Error`]: no such process, not allowed, traced by another process, ended meanwhile, or
/// rows that do not add up to the kernel's RSS.
pub fn explain(pid: i32, options: &Options<'_>) -> Result<Explanation> {
    inspect(pid, options).map(|inspection| inspection.explanation)
}

/// Like [`explain`], with what is needed to apply remedies.
pub fn inspect(pid: i32, options: &Options<'_>) -> Result<Inspection> {
    match inspect_once(pid, options) {
        // A snapshot was tried, and failed or did not last.
        Err(Error::NoSnapshot { why, stopped, .. }) if options.snapshot != SnapshotMode::Always => {
            let max_stop = options.max_stop.map(|most| most.saturating_sub(stopped));
            let again =
                Options { snapshot: SnapshotMode::Never, quiet_for: Duration::ZERO, max_stop, ..*options };
            let mut inspection = inspect_once(pid, &again)?;
            inspection.explanation.caveats.push(look::no_snapshot(&why));
            inspection.explanation.cost.stopped_seconds += stopped.as_secs_f64();
            Ok(inspection)
        }
        other => other,
    }
}

fn inspect_once(pid: i32, options: &Options<'_>) -> Result<Inspection> {
    let start = Instant::now();
    let process = match options.watch {
        Some(_) => admission::admit_watched(pid)?,
        None => admission::open_target(pid)?,
    };
    if options.started.is_some_and(|started| process.stat().map_or(true, |stat| stat.start_ticks != started))
    {
        return Err(Error::NoSuchProcess { pid });
    }
    let threads = options.reading_threads();
    // The tracer is a thread of its own: when it ends, the kernel releases everything, even threads
    // in an uninterruptible sleep that could not be stopped and released in order.
    let most = options.max_stop.unwrap_or_else(|| frozen::longest_stop(look::anonymous_bytes(&process)));
    let frozen = on_own_thread(most, || look::read_process(&process, &StoppedBy::Us, threads, options));
    let no_thread =
        || std::io::Error::other("the thread that looks did not start, or failed (try --no-runtimes)");
    let frozen =
        frozen.ok_or_else(|| Error::Io { pid, what: "stopping".to_owned(), source: no_thread() })??;
    account(&process, frozen, start, options)
}

/// Makes the ledger of a frozen state, and the report.
fn account(
    process: &Process,
    mut frozen: Frozen,
    start: Instant,
    options: &Options<'_>,
) -> Result<Inspection> {
    let mut holders = options.keeps_blocks.then(|| holders::find(process, &mut frozen, options));
    let ledger = add_up(process, &mut frozen, options);
    // Before errors are reported: a snapshot that ended meanwhile makes all results wrong.
    end_snapshot(process, &mut frozen)?;
    let (mut ledger, zero_runs) = ledger?;
    // Only now: pages shared with a snapshot are exclusive to the process again.
    ledger.zero_sharing = if zero_runs.is_empty() { None } else { sharing::of_runs(process, &zero_runs) };
    let explanation = describe::describe(process, &mut frozen, ledger, holders.as_mut(), start);
    if let Some(holders) = &mut holders {
        holders.executable.clone_from(&explanation.target.executable);
        holders.rss_bytes = Some(explanation.kernel.rss_bytes);
        holders.unattributed_bytes = Some(explanation.totals.unattributed);
        holders.cost = explanation.cost;
    }
    Ok(Inspection { explanation, readings: frozen.readings, zero_runs, holders })
}

/// Makes the ledger, and finds the all-zero pages.
fn add_up(
    process: &Process,
    frozen: &mut Frozen,
    options: &Options<'_>,
) -> Result<(Ledger, Vec<(u64, u64)>)> {
    let (pid, threads) = (process.pid(), options.reading_threads());
    finish_runtimes(frozen, threads, options);
    let shared = mounts_of(process);
    let bss = files::bss(process, &frozen.smaps_entries);
    let inputs = Inputs {
        spaces: &frozen.smaps_entries,
        residency: &frozen.residency,
        readings: &frozen.readings,
        runtimes: &frozen.runtimes,
        refinements: &frozen.refinements,
        stacks: &frozen.stacks,
        bss: &bss,
        zero_runs: &[],
        page_map: frozen.page_map.as_ref(),
        is_shared_memory: &|mapping| mounts::is_shared_memory(mapping, &shared),
    };
    let zeros = options.find_zero_pages.then(|| find_zeros(frozen, &inputs, threads, options)).transpose()?;
    let Zeros { runs: mut zero_runs, bytes_read } = zeros.unwrap_or_default();
    let ledger = assemble::assemble(&Inputs { zero_runs: &zero_runs, ..inputs })?;
    frozen.bytes_read += bytes_read;
    if ledger.tally.sum() != frozen.sums.rss_bytes {
        let detail =
            format!("the rows sum to {} bytes, RSS is {}", ledger.tally.sum(), frozen.sums.rss_bytes);
        return Err(Error::DoesNotAddUp { pid, detail });
    }
    if let Some(map) = &ledger.page_map
        && map.totals() != ledger.tally.parts().collect::<Vec<_>>()
    {
        let detail = "the page map holds other bytes than the rows".to_owned();
        return Err(Error::DoesNotAddUp { pid, detail });
    }
    zero_runs.extend(
        frozen.readings.iter().flat_map(|reading| reading.zero_runs.iter().map(|run| (run.start, run.end))),
    );
    zero_runs.extend(
        frozen.runtimes.iter().flat_map(|reading| reading.zero_runs.iter().map(|run| (run.start, run.end))),
    );
    // An all-zero page may be in a range and in a finer one within it.
    merge(&mut zero_runs);
    Ok((ledger, zero_runs))
}

/// Ends the snapshot, if there is one, and checks that it lasted until now.
fn end_snapshot(process: &Process, frozen: &mut Frozen) -> Result<()> {
    let Some(kept) = frozen.snapshot.take() else { return Ok(()) };
    let spent = kept.end();
    let spent =
        spent.map_err(|why| Error::NoSnapshot { pid: process.pid(), why, stopped: frozen.stopped })?;
    if !spent.collected {
        let text = "what is left of the snapshot, a process id, stays until the process ends: no thread could collect it";
        frozen.caveats.push(Caveat::new("photograph_left", format!("process {}", process.pid()), None, text));
    }
    frozen.stopped += spent.stopped;
    frozen.spent = Some(spent);
    // While there was a snapshot, half of each shared page counted as the snapshot's.
    frozen.rollup = frozen::rollup(process);
    Ok(())
}

/// Does the work that readers of runtimes left for when the target runs again.
fn finish_runtimes(frozen: &mut Frozen, threads: usize, options: &Options<'_>) {
    let by_allocator: Vec<(String, Matches)> = frozen
        .readings
        .iter()
        .map(|reading| (reading.allocator.name.clone(), reading.refined.clone()))
        .collect();
    let mut matched = Matches::default();
    frozen.readings.iter().for_each(|reading| matched.add(reading.refined.clone()));
    let progress = |what: &str, done, total| {
        if let Some(progress) = options.progress {
            progress(what, done, total);
        }
    };
    let how = FinishContext {
        workers: threads,
        path_to: options.path_to,
        matched: &matched,
        by_allocator: &by_allocator,
        progress: &progress,
    };
    for reading in &mut frozen.runtimes {
        reading.finish(&how);
        frozen.caveats.append(&mut reading.caveats);
    }
}

fn mounts_of(process: &Process) -> mounts::Devices {
    process.shared_memory_devices().unwrap_or_default()
}

fn find_zeros(frozen: &Frozen, inputs: &Inputs<'_>, threads: usize, options: &Options<'_>) -> Result<Zeros> {
    let runs = assemble::unclaimed_runs(inputs)?;
    let total: u64 = runs.iter().map(|run| run.1 - run.0).sum();
    let done = AtomicU64::new(0);
    let progress = |bytes: u64| {
        let done = done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if let Some(progress) = options.progress {
            progress("looking for pages of zeros", done, total);
        }
    };
    let found = zeros::find(&frozen.memory, &runs, threads, &progress);
    let runs = zeros::still_resident(&frozen.pagemap, found.runs);
    Ok(Zeros { runs, bytes_read: found.bytes_read })
}

#[cfg(test)]
mod layers_tests;
