//! The account of a captured process: its ledger, the kernel's figures, and caveats for all that
//! was not read. `explain` and `holders` both begin with it.

mod kernel;
pub(crate) mod recognised;

use std::sync::atomic::AtomicU64;
use std::time::Instant;

use self::recognised::Recognised;
use crate::capture::{FrozenState, Options};
use crate::facts::{Allocator, Cost, Kernel, Row, Runtime};
use crate::ledger::assemble::{self, Ledger};
use crate::ledger::inputs::Inputs;
use crate::ledger::zeros::{self, Zeros};
use crate::ledger::{bss, sharing};
use strandline_claims::caveat::Caveat;
use strandline_claims::refinements::Matches;
use strandline_claims::rows::ANONYMOUS;
use strandline_claims::runtime::{AllocatorMatches, FinishContext};
use strandline_claims::units::bytes;
use strandline_process::error::{Error, Result};
use strandline_process::procfs::{Process, mounts};
use strandline_process::range::RangeSet;
use strandline_process::target::exit_watch;

/// What a captured process holds.
pub struct Account {
    /// What was read.
    pub frozen: FrozenState,
    /// The ledger.
    pub ledger: Ledger,
    /// Its rows, largest first.
    pub rows: Vec<Row>,
    /// All-zero resident pages of private anonymous memory, claimed or not, in address order.
    pub zero_runs: RangeSet,
    /// The kernel's figures.
    pub kernel: Kernel,
    /// Allocators that were recognised and have no reading.
    pub recognised_allocators: Vec<Allocator>,
    /// Runtimes, read or only recognised.
    pub runtimes: Vec<Runtime>,
    /// Names of allocators and runtimes that manage their own memory and were not read.
    pub unread_names: Vec<String>,
    /// What was not read, and why.
    pub caveats: Vec<Caveat>,
    /// When the inspection began.
    start: Instant,
}

impl Account {
    /// Accounts for what `frozen` holds, and ends its snapshot. `start` is when the inspection
    /// began.
    ///
    /// # Errors
    /// [`Error::DoesNotAddUp`]; [`Error::NoSnapshot`] if the snapshot did not last until now.
    pub fn new(
        process: &Process,
        mut frozen: FrozenState,
        options: &Options<'_>,
        start: Instant,
    ) -> Result<Self> {
        let ledger = exit_watch::run_while_watching(|| make_ledger(process, &mut frozen, options));
        // Before errors are reported: if the snapshot ended meanwhile, all results are wrong.
        frozen.end_snapshot(process)?;
        let (mut ledger, zero_runs) = ledger?;
        // Read only now, when pages shared with the snapshot are exclusive to the process again.
        ledger.zero_sharing = if zero_runs.is_empty() { None } else { sharing::of_runs(process, &zero_runs) };
        let rows = ledger.tally.rows(&ledger.holders);
        // A process that ended meanwhile has no status: those figures stay unknown.
        let status = process.status().unwrap_or_default();
        let kernel = kernel::figures(&frozen, &status, ledger.shmem_bytes);
        let mut caveats = std::mem::take(&mut frozen.caveats);
        let unclaimed_bytes = ledger.tally.bytes_of(&ANONYMOUS);
        let Recognised { allocators: recognised_allocators, runtimes } =
            recognised::recognise(process, &mut frozen, &mut caveats, unclaimed_bytes);
        caveats.append(&mut ledger.caveats);
        note_swapped_out(kernel.swap_bytes, &mut caveats);
        let unread_names = recognised::unread_names(&recognised_allocators, &runtimes);
        Ok(Self {
            frozen,
            ledger,
            rows,
            zero_runs,
            kernel,
            recognised_allocators,
            runtimes,
            unread_names,
            caveats,
            start,
        })
    }

    /// Returns the cost of the inspection so far.
    pub fn cost(&self) -> Cost {
        Cost {
            wall_seconds: self.start.elapsed().as_secs_f64(),
            stopped_seconds: self.frozen.stopped_for.as_secs_f64(),
            peak_rss_bytes: strandline_sys::host::own_peak_rss_bytes().ok(),
            bytes_read: self.frozen.bytes_read,
            copied_pages: self.frozen.snapshot_cost.and_then(|cost| cost.copied_pages),
        }
    }
}

/// Adds to caveats about damaged structures that part of the process was swapped out and not read.
fn note_swapped_out(swap_bytes: u64, caveats: &mut [Caveat]) {
    if swap_bytes == 0 {
        return;
    }
    let addition = format!(
        "; {} of the process are swapped out and were not read, which alone may explain this",
        bytes(swap_bytes)
    );
    let may_be_swapped =
        |caveat: &&mut Caveat| caveat.code.ends_with("_damaged") || caveat.code.ends_with("_differ");
    caveats.iter_mut().filter(may_be_swapped).for_each(|caveat| caveat.text.push_str(&addition));
}

/// Makes the ledger, and finds the all-zero pages.
fn make_ledger(
    process: &Process,
    frozen: &mut FrozenState,
    options: &Options<'_>,
) -> Result<(Ledger, RangeSet)> {
    let (pid, threads) = (process.pid(), options.reading_threads());
    finish_runtimes(frozen, threads, options);
    let shared_devices = process.shared_memory_devices().unwrap_or_else(|error| {
        let text = format!("the mounts cannot be read ({error}): files of tmpfs are on rows of files");
        frozen.caveats.push(Caveat::new("mounts_unread", format!("process {pid}"), None, text));
        Default::default()
    });
    let bss = bss::find(process, &frozen.smaps_entries);
    let inputs = Inputs {
        smaps_entries: &frozen.smaps_entries,
        residency: &frozen.residency,
        allocator_readings: &frozen.allocator_readings,
        runtime_readings: &frozen.runtime_readings,
        refinements: &frozen.refinements,
        stacks: &frozen.stacks,
        bss: &bss,
        zero_runs: &[],
        page_map: frozen.page_map.as_ref(),
        is_shared_memory: &|mapping| mounts::is_shared_memory(mapping, &shared_devices),
    };
    let zeros =
        options.finds_zero_pages.then(|| find_zeros(frozen, &inputs, threads, options)).transpose()?;
    let Zeros { runs: zero_runs, bytes_read } = zeros.unwrap_or_default();
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
        let detail = "the page map has other bytes than the rows".to_owned();
        return Err(Error::DoesNotAddUp { pid, detail });
    }
    // An all-zero page may be in a range and in a finer one within it.
    let mut all_zero_runs = zero_runs;
    let of_allocators = frozen.allocator_readings.iter().flat_map(|reading| &reading.zero_runs);
    let of_runtimes = frozen.runtime_readings.iter().flat_map(|reading| &reading.zero_runs);
    all_zero_runs.add(of_allocators.chain(of_runtimes).copied());
    Ok((ledger, all_zero_runs))
}

/// Does the work that readers of runtimes left until the target runs again.
fn finish_runtimes(frozen: &mut FrozenState, threads: usize, options: &Options<'_>) {
    let by_allocator: Vec<AllocatorMatches> = frozen
        .allocator_readings
        .iter()
        .map(|reading| AllocatorMatches {
            allocator: reading.allocator.name.clone(),
            matches: reading.refined.clone(),
        })
        .collect();
    let mut matched = Matches::default();
    frozen.allocator_readings.iter().for_each(|reading| matched.add(reading.refined.clone()));
    let progress = |task: &str, done, total| options.report(task, done, total);
    let context = FinishContext {
        workers: threads,
        path_to: options.path_to,
        matched: &matched,
        by_allocator: &by_allocator,
        progress: &progress,
    };
    for reading in &mut frozen.runtime_readings {
        reading.finish(&context);
        frozen.caveats.append(&mut reading.caveats);
    }
}

/// Finds all-zero pages in memory that no reader claims.
fn find_zeros(
    frozen: &FrozenState,
    inputs: &Inputs<'_>,
    threads: usize,
    options: &Options<'_>,
) -> Result<Zeros> {
    let runs = assemble::unclaimed_runs(inputs)?;
    let total = runs.bytes();
    let done = AtomicU64::new(0);
    let progress = |bytes: u64| options.advance("searching for zero pages", &done, bytes, total);
    let zeros = zeros::find(&frozen.memory, &runs, threads, &progress);
    let runs = zeros::still_resident(&frozen.pagemap, zeros.runs);
    Ok(Zeros { runs, ..zeros })
}

#[cfg(test)]
mod layers_tests;

#[cfg(test)]
mod swapped_tests {
    use super::*;

    #[test]
    fn what_may_be_swapped_out_is_not_only_called_damaged() {
        let caveat = |code: &str| Caveat::new(code, "", None, "text");
        let mut caveats = [caveat("perl_damaged"), caveat("mmapped_chunks_differ"), caveat("heap_swapped")];
        note_swapped_out(0, &mut caveats);
        assert!(caveats.iter().all(|caveat| caveat.text == "text"));
        note_swapped_out(4096, &mut caveats);
        assert!(caveats[0].text.contains("KiB of the process are swapped out"), "{}", caveats[0].text);
        assert!(caveats[1].text.contains("swapped out") && caveats[2].text == "text");
    }
}
