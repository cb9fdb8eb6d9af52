//! Everything that has to be of one state of the process: read while it stands still. What stops it and lets it go is
//! [`super::look`]'s.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use strandline_sys::ptrace::Registers;

use super::Options;
use super::page_tables::{self, Before, Pages};
use super::snapshot::Kept;
use crate::ledger::page_map::Plan;
use crate::readers::Found;
use strandline_claims::allocator::{Context, Layer, Reading, overlapping};
use strandline_claims::caveat::Caveat;
use strandline_claims::range::merge;
use strandline_claims::refinements::Refinements;
use strandline_claims::runtime::{self, Busy};
use strandline_process::error::{Error, Result};
use strandline_process::map::AddressSpace;
use strandline_process::memory::Memory;
use strandline_process::pages::Residency;
use strandline_process::procfs::Process;
use strandline_process::resident::Resident;
use strandline_process::smaps::{self, Counts, Smaps, SmapsEntry};
use strandline_process::snapshot::{SnapshotMemory, Spent};
use strandline_process::stacks::{self, Stack, ThreadFacts};
use strandline_process::target::live::Opened;
use strandline_process::target::quiet::CS_64_BIT;

/// How often a process is looked at whose runtime is in the middle of its own collection.
pub(super) const MAX_BUSY_LOOKS: u32 = 5;
/// A heap is read in a second for every 3 GiB on a small machine; one that takes ten seconds, and one
/// for each GiB, is made to take long, and is left with a caveat.
const MAX_STOPPED: Duration = Duration::from_secs(10);

/// How long a process with so much memory of its own may be stopped, where nothing else is asked.
pub(super) fn longest_stop(anonymous_bytes: u64) -> Duration {
    MAX_STOPPED + Duration::from_secs(anonymous_bytes >> 30)
}

/// What was read while the process was stopped.
pub struct Frozen {
    /// The kernel's view of each mapping.
    pub spaces: Vec<SmapsEntry>,
    /// Its mappings.
    pub space: AddressSpace,
    /// Its resident pages.
    pub residency: Residency,
    /// What a picture of them will show, where one was asked for.
    pub page_map: Option<Plan>,
    /// The kernel's figures over all mappings, added up: what smaps_rollup says of the same state.
    pub sums: Counts,
    /// The kernel's sums right after the stop: for the proportional set size.
    pub rollup: Option<Counts>,
    /// What allocators' readers found.
    pub readings: Vec<Reading>,
    /// Which of the allocators that were found each of them is of.
    pub owners: Vec<usize>,
    /// What language runtimes' readers found.
    pub runtimes: Vec<runtime::Reading>,
    /// What they say of allocators' blocks.
    pub refinements: Refinements,
    /// Its threads' stacks.
    pub stacks: Vec<Stack>,
    /// What its threads had in their registers, where blocks are kept.
    pub facts: Vec<ThreadFacts>,
    /// How many threads it had.
    pub threads: u64,
    /// Its open /proc/PID/mem and /proc/PID/pagemap, which stay those of this program.
    pub memory: Opened,
    /// See `memory`.
    pub pagemap: File,
    /// The snapshot's memory, with what it does not show.
    pub snapshot_memory: Option<Arc<SnapshotMemory>>,
    /// Where the data segment grown by brk starts.
    start_brk: Option<u64>,
    /// When reading of its memory began.
    began: Instant,
    /// When it is to be let go, if it may not be stopped for longer.
    pub until: Option<Instant>,
    /// How long its threads were stopped.
    pub stopped: Duration,
    /// The snapshot that `memory` and `pagemap` are of, if they are.
    pub snapshot: Option<Kept>,
    /// What it cost, once it has ended.
    pub spent: Option<Spent>,
    /// Whether it is read while it sleeps, and not stopped.
    pub is_quiet: bool,
    /// What was not read.
    pub caveats: Vec<Caveat>,
    /// Target memory read.
    pub bytes_read: u64,
}

/// When reading has to end for the target to run again after `most`: what was read is put in order, and each thread let go.
pub(super) fn end_of_reading(since: Instant, most: Duration) -> Instant {
    since + most.saturating_sub(most / 16)
}

/// How to read, the same at each look.
pub(super) struct How<'a> {
    pub workers: usize,
    pub options: &'a Options<'a>,
    pub found: &'a Found,
    pub before: Before<'a>,
}

/// Whether what is read must do, also of a runtime in the middle of its own collection.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct LastTry(pub bool);

/// The threads of a process that stands still.
pub(super) struct Threads {
    /// The threads' stack pointers and registers. `None` for a 32-bit program: its ledger has only the kernel's rows.
    pub known: Option<Vec<ThreadFacts>>,
    /// How many it has.
    pub count: u64,
    /// What is not known of them.
    pub caveats: Vec<Caveat>,
}

impl Threads {
    /// From the registers of stopped threads, and the facts of threads that were left asleep.
    pub fn of<'r>(
        process: &Process,
        stopped: impl Iterator<Item = (i32, &'r Registers)>,
        others: impl Iterator<Item = ThreadFacts>,
        count: u64,
    ) -> Self {
        let mut threads = Self { known: None, count, caveats: Vec::new() };
        let known: Option<Vec<ThreadFacts>> = stopped.map(|(tid, registers)| facts(tid, registers)).collect();
        if known.is_none() {
            let text = "a 32-bit program: only the kernel's rows are given, its heap and stacks are not read";
            let place = format!("process {}", process.pid());
            threads.caveats.push(Caveat::new("not_64_bit", place, None, text));
        }
        threads.known = known.map(|known| known.into_iter().chain(others).collect());
        threads
    }
}

/// What is known of a stopped thread; `None` of one of a 32-bit program.
fn facts(tid: i32, r: &Registers) -> Option<ThreadFacts> {
    let general = [
        r.rax, r.rbx, r.rcx, r.rdx, r.rsi, r.rdi, r.rbp, r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14,
        r.r15, r.rip,
    ];
    let facts = ThreadFacts { tid, stack_pointer: r.rsp, fs_base: r.fs_base, general: general.map(Some) };
    (r.cs == CS_64_BIT).then_some(facts)
}

/// What the kernel says of a process that stands still, or of its snapshot.
pub(super) struct KernelView {
    /// Its mappings.
    pub smaps: Smaps,
    /// Its resident pages.
    pub residency: Residency,
    /// The kernel's own sums of the same state, where they were read.
    pub rollup: Option<Counts>,
    /// Where the data segment grown by brk starts.
    pub start_brk: Option<u64>,
    /// Its /proc/PID/mem.
    pub memory: Opened,
    /// Its /proc/PID/pagemap.
    pub pagemap: File,
}

/// Reads what the kernel says of a process that is held; with it what its threads have in their registers, where that
/// is of use.
pub(super) fn kernel_view(
    process: &Process,
    threads: Threads,
    how: &How<'_>,
) -> Result<(Frozen, Option<Vec<ThreadFacts>>)> {
    // An open pagemap or mem stays with the program it was opened on: opened before the stop, it would
    // show the old one of a process that exec'd in between. A refusal to stop also says more.
    let pagemap = process.open_file("pagemap")?;
    let memory_file = process.open_file("mem")?;
    let Pages { smaps, residency, rollup } = page_tables::read(process, &pagemap, &how.before)?;
    let start_brk = process.stat()?.start_brk;
    let view = KernelView { smaps, residency, rollup, start_brk, memory: Opened::new(memory_file), pagemap };
    Ok(Frozen::new(process, view, threads, how))
}

fn collecting(busy: &Busy) -> Caveat {
    let what = if busy.collecting {
        "stood in the middle of its own collection"
    } else {
        "had books that do not agree with each other, as in the middle of a change or when damaged,"
    };
    let text = format!("{} {what} at {MAX_BUSY_LOOKS} looks: its memory is not read", busy.runtime);
    Caveat::new("runtime_busy", busy.runtime, busy.bytes, text)
}

/// The proportional set size, by the kernel's own sum: that of smaps' lines is rounded in each of them.
/// It costs a walk over all page tables and depends on other processes anyway: read after the stop.
pub(super) fn rollup(process: &Process) -> Option<Counts> {
    smaps::read_rollup(process.open_file("smaps_rollup").ok()?).ok()
}

impl Frozen {
    /// The process's own memory, as it was when it was looked at where there is a snapshot.
    pub fn own_memory(&self) -> &dyn Memory {
        match &self.snapshot_memory {
            Some(snapshot_memory) => &**snapshot_memory,
            None => &self.memory,
        }
    }

    /// Whether it has private pages in common with other processes: those that were forked from each other, or what the kernel
    /// merged.
    pub(super) fn shares_memory(&self) -> bool {
        self.sums.pss_anonymous_bytes < self.sums.anonymous_bytes
    }

    /// Of what the kernel said, with what the threads have in their registers, where that is of use.
    pub(super) fn new(
        process: &Process,
        view: KernelView,
        threads: Threads,
        how: &How<'_>,
    ) -> (Self, Option<Vec<ThreadFacts>>) {
        let (space, _) =
            AddressSpace::from_mappings(view.smaps.entries.iter().map(|entry| entry.mapping.clone()));
        let Threads { known: threads, count, mut caveats } = threads;
        if view.smaps.bad_lines > 0 {
            let text = format!("{} lines of smaps were not understood", view.smaps.bad_lines);
            caveats.push(Caveat::new("smaps_lines", format!("/proc/{}/smaps", process.pid()), None, text));
        }
        let frozen = Frozen {
            start_brk: view.start_brk,
            page_map: how.options.page_map.then(|| Plan::new(&view.smaps.entries, &view.residency)),
            sums: view.rollup.unwrap_or_else(|| view.smaps.total()),
            spaces: view.smaps.entries,
            space,
            residency: view.residency,
            rollup: view.rollup,
            readings: Vec::new(),
            owners: Vec::new(),
            runtimes: Vec::new(),
            refinements: Refinements::default(),
            stacks: Vec::new(),
            facts: threads.clone().filter(|_| how.options.keeps_blocks).unwrap_or_default(),
            threads: count,
            memory: view.memory,
            pagemap: view.pagemap,
            snapshot_memory: None,
            began: Instant::now(),
            until: None,
            stopped: Duration::ZERO,
            snapshot: None,
            spent: None,
            is_quiet: false,
            caveats,
            bytes_read: 0,
        };
        (frozen, threads)
    }

    /// When to end reading: after a part of the time that there is. Half of it is for runtimes.
    fn deadline(&self, part: u32) -> Instant {
        let longest = self.began + longest_stop(self.sums.anonymous_bytes);
        let end = match self.until {
            // Nothing stands still meanwhile.
            Some(until) if self.snapshot.is_some() => until,
            Some(until) => until.min(longest),
            None => longest,
        };
        self.began + end.saturating_duration_since(self.began) / part
    }

    /// Whether a heap made no sense at some place.
    pub fn has_damage(&self) -> bool {
        self.readings.iter().any(|reading| reading.in_motion)
    }

    /// Reads all that lies in its memory, which is `memory` as it was when it was looked at; true where it has to be
    /// looked at again.
    pub(super) fn read_all(
        &mut self,
        process: &Process,
        threads: Option<&[ThreadFacts]>,
        memory: &dyn Memory,
        how: &How<'_>,
        last: LastTry,
    ) -> Result<bool> {
        let Some(threads) = threads else { return Ok(false) };
        self.stacks = stacks::stacks(threads, memory, &self.space);
        for busy in self.read_runtimes(process, threads, memory, how) {
            if last == LastTry(false) {
                return Ok(true);
            }
            self.caveats.push(collecting(&busy));
        }
        self.read_heaps(process, threads, memory, how)?;
        Ok(false)
    }

    fn read_runtimes(
        &mut self,
        process: &Process,
        threads: &[ThreadFacts],
        memory: &dyn Memory,
        how: &How<'_>,
    ) -> Vec<Busy> {
        if how.found.runtimes.is_empty() {
            return Vec::new();
        }
        let total = self.sums.anonymous_bytes;
        let done = AtomicU64::new(0);
        let progress = |bytes: u64| how.advance("reading runtimes", &done, bytes, total);
        let private = self
            .spaces
            .iter()
            .map(|space| &space.mapping)
            .filter(|mapping| mapping.is_private_anonymous() && mapping.permissions.write);
        let runs = private.flat_map(|mapping| self.residency.runs_in(mapping.start..mapping.end));
        let refinements = Refinements::new(runs.map(|run| (run.start, run.end)));
        let resident = |from, to| anonymous_runs(&self.residency, from, to);
        let shared = |from, to| other_runs(&self.residency, from, to);
        let context = runtime::Context {
            memory: &Resident::new(memory, &self.residency),
            process,
            space: &self.space,
            resident: &resident,
            shared: &shared,
            threads,
            is_stopped: !self.is_quiet && self.snapshot.is_none(),
            deadline: self.deadline(2),
            workers: how.workers,
            keeps_blocks: how.options.keeps_blocks,
            cell_bytes: self.page_map.as_ref().map(Plan::cell_bytes),
            progress: &progress,
        };
        let mut runtimes = Vec::new();
        let mut busy = Vec::new();
        for found in &how.found.runtimes {
            match found.read(&context, &refinements) {
                Ok(readings) => runtimes.extend(readings),
                Err(it) => busy.push(it),
            }
        }
        self.runtimes = runtimes;
        self.refinements = refinements;
        self.bytes_read += self.runtimes.iter().map(|reading| reading.bytes_read).sum::<u64>();
        busy
    }

    fn read_heaps(
        &mut self,
        process: &Process,
        threads: &[ThreadFacts],
        memory: &dyn Memory,
        how: &How<'_>,
    ) -> Result<()> {
        let total = self.sums.anonymous_bytes;
        let done = AtomicU64::new(0);
        let progress = |bytes: u64| how.advance("reading the heap", &done, bytes, total);
        let fs_bases: Vec<u64> =
            threads.iter().map(|thread| thread.fs_base).filter(|&base| base != 0).collect();
        let stacks: Vec<_> = self.stacks.iter().map(|stack| (stack.low, stack.high)).collect();
        let runtimes = self.runtimes.iter().flat_map(|reading| &reading.claims);
        let mut claimed: Vec<_> = runtimes.map(|claim| (claim.start, claim.end)).collect();
        self.refinements.nest(claimed.iter().copied());
        let ranges_of = |wanted: &dyn Fn(&SmapsEntry) -> bool| -> Vec<(u64, u64)> {
            let spaces = self.spaces.iter().filter(|space| wanted(space));
            spaces.map(|space| (space.mapping.start, space.mapping.end)).collect()
        };
        let (locked, swapped) =
            (ranges_of(&|space| space.flags.is_locked()), ranges_of(&|space| space.counts.swap_bytes > 0));
        let reserved = ranges_of(&|space| space.flags.is_hugetlb());
        let resident = |from, to| anonymous_runs(&self.residency, from, to);
        let mut all = Vec::new();
        let resident_memory = Resident::new(memory, &self.residency);
        for (owner, (layer, found)) in how.found.allocators.iter().enumerate() {
            let context = Context {
                memory: &resident_memory,
                whole_memory: memory,
                space: &self.space,
                resident: &resident,
                fs_bases: &fs_bases,
                stacks: &stacks,
                claimed: &claimed,
                start_brk: self.start_brk,
                locked: &locked,
                swapped: &swapped,
                reserved: &reserved,
                refinements: Some(&self.refinements).filter(|refinements| !refinements.is_empty()),
                deadline: self.deadline(1),
                keeps_blocks: how.options.keeps_blocks,
                before_call: how.options.before_call,
                cell_bytes: self.page_map.as_ref().map(Plan::cell_bytes),
                threads: how.workers,
                progress: &progress,
            };
            let (mut readings, caveats) = found.read(&context).map_err(|error| Error::Overlap {
                address: error.at,
                first: format!("a claim that ends at {:#x}", error.expected),
                second: format!("an allocator of process {}", process.pid()),
            })?;
            readings.iter_mut().for_each(|reading| reading.layer = *layer);
            self.caveats.extend(caveats);
            let ranges = readings.iter().flat_map(|reading| &reading.claims);
            let ranges: Vec<_> = ranges.map(|claim| (claim.start, claim.end)).collect();
            // Those whose blocks lie in others' come first, and are a finer layer for the others.
            if *layer == Layer::Blocks {
                self.refinements.nest(ranges.iter().copied());
            }
            claimed.extend(ranges);
            all.extend(readings.into_iter().map(|reading| (owner, reading)));
        }
        let caveats = disagreements(&mut all);
        self.caveats.extend(caveats);
        for (owner, mut reading) in all {
            self.caveats.append(&mut reading.caveats);
            self.bytes_read += reading.bytes_read;
            self.owners.push(owner);
            self.readings.push(reading);
        }
        Ok(())
    }
}

/// Where two allocators claim the same memory, what was told by its contents alone (glibc's, read last) is believed, and the
/// other's claims there are dropped: one of them is damaged, or takes its memory from the other.
fn disagreements(all: &mut [(usize, Reading)]) -> Vec<Caveat> {
    let last =
        all.iter().map(|(_, reading)| reading).filter(|reading| reading.layer == Layer::RestOfMappings);
    let mut held: Vec<(u64, u64)> = last
        .flat_map(|reading| {
            let claims = reading.claims.iter().map(|claim| (claim.start, claim.end));
            claims.chain(reading.mapped_blocks.iter().map(|block| (block.start, block.end)))
        })
        .collect();
    merge(&mut held);
    let mut caveats = Vec::new();
    let of_mappings = all.iter_mut().map(|(_, reading)| reading).filter(|one| one.layer == Layer::Mappings);
    for reading in of_mappings {
        let before: u64 = reading.claims.iter().map(|claim| claim.sums.resident.total()).sum();
        let count = reading.claims.len();
        reading.claims.retain(|claim| overlapping(&held, claim.start, claim.end).is_empty());
        if reading.claims.len() < count {
            let after: u64 = reading.claims.iter().map(|claim| claim.sums.resident.total()).sum();
            // Nothing is called in an allocator whose books are in doubt.
            reading.call = None;
            let text = format!(
                "memory of {} lies within another allocator's: it stands there",
                reading.allocator.name
            );
            let place = reading.allocator.found_by.clone();
            caveats.push(Caveat::new("allocators_disagree", place, Some(before - after), text));
        }
    }
    caveats
}

impl How<'_> {
    fn advance(&self, what: &str, done: &AtomicU64, bytes: u64, total: u64) {
        let done = done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if let Some(progress) = self.options.progress {
            progress(what, done.min(total), total);
        }
    }
}

fn anonymous_runs(residency: &Residency, from: u64, to: u64) -> Vec<(u64, u64)> {
    let runs = residency.runs_in(from..to).filter(|run| run.anonymous);
    runs.map(|run| (run.start, run.end)).collect()
}

fn other_runs(residency: &Residency, from: u64, to: u64) -> Vec<(u64, u64)> {
    let runs = residency.runs_in(from..to).filter(|run| !run.anonymous);
    runs.map(|run| (run.start, run.end)).collect()
}
