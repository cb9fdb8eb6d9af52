//! Everything that has to be of one state of the process, and is read while it does not run.
//! [`super::attempts`] stops and releases it.

mod heaps;

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use strandline_sys::ptrace::Registers;

use super::Options;
use super::page_tables::{self, FactsBeforeStop, Pages};
use super::snapshot::GuardedSnapshot;
use crate::ledger::page_map::Plan;
use crate::readers::FoundReaders;
use strandline_claims::allocator::Reading;
use strandline_claims::caveat::Caveat;
use strandline_claims::refinements::Refinements;
use strandline_claims::runtime::{self, Busy};
use strandline_claims::units::counted;
use strandline_process::error::Result;
use strandline_process::map::AddressSpace;
use strandline_process::memory::Memory;
use strandline_process::pages::{PageRun, Residency};
use strandline_process::procfs::Process;
use strandline_process::range::{AddressRange, RangeSet};
use strandline_process::resident::Resident;
use strandline_process::smaps::{Counts, Smaps, SmapsEntry};
use strandline_process::snapshot::{SnapshotCost, SnapshotMemory};
use strandline_process::stacks::{self, Stack, ThreadFacts};
use strandline_process::target::live::{MemFile, TracedMemory};
use strandline_process::target::quiet::CS_64_BIT;

/// Default limit for a stop, without the second that is added for each GiB. A small machine reads
/// 3 GiB of heap a second. A heap that takes longer was made to take long: what is left then stays
/// unread, with a caveat.
const LONGEST_STOP: Duration = Duration::from_secs(10);
/// The time of a stop divided by this is kept for what follows reading: sorting results, and
/// releasing threads.
const END_DIVISOR: u32 = 16;
/// Runtimes may use the available time divided by this, so that time for heaps is left.
const RUNTIMES_DIVISOR: u32 = 2;

/// Returns the default limit for a stop of a process with this much anonymous memory.
pub(super) fn longest_stop(anonymous_bytes: u64) -> Duration {
    LONGEST_STOP + Duration::from_secs(anonymous_bytes >> 30)
}

/// What was read of one state of the process.
pub struct FrozenState {
    /// The kernel's view of each mapping.
    pub smaps_entries: Vec<SmapsEntry>,
    /// Its mappings.
    pub address_space: AddressSpace,
    /// Its resident pages.
    pub residency: Residency,
    /// The plan of the page map, if requested.
    pub page_map: Option<Plan>,
    /// The kernel's figures over all mappings, as in smaps_rollup of the same state.
    pub sums: Counts,
    /// smaps_rollup, read during the stop or right after it, for the proportional set size.
    pub rollup: Option<Counts>,
    /// What allocators' readers found.
    pub allocator_readings: Vec<Reading>,
    /// For each of these readings, the index of its allocator among those found.
    pub allocator_indices: Vec<usize>,
    /// What language runtimes' readers found.
    pub runtime_readings: Vec<runtime::Reading>,
    /// Finer claims on allocators' blocks.
    pub refinements: Refinements,
    /// Its threads' stacks.
    pub stacks: Vec<Stack>,
    /// Stack pointers and registers of its threads. `None` for a 32-bit program, whose ledger has
    /// only the kernel's rows.
    threads: Option<Vec<ThreadFacts>>,
    /// Number of threads.
    pub thread_count: u64,
    /// The open /proc/PID/mem. This file and `pagemap` stay with the program that was read, also
    /// after an exec.
    pub memory: MemFile,
    /// The open /proc/PID/pagemap.
    pub pagemap: File,
    /// The snapshot's memory, with a copy of what the snapshot lacks.
    pub snapshot_memory: Option<Arc<SnapshotMemory>>,
    /// Where the data segment grown by brk starts.
    start_brk: Option<u64>,
    /// When reading of its memory began.
    reading_began: Instant,
    /// When reading must end, if the stop or the snapshot is limited.
    pub reading_ends: Option<Instant>,
    /// How long its threads were stopped.
    pub stopped_for: Duration,
    /// The snapshot that `memory` and `pagemap` belong to, if there is one.
    pub snapshot: Option<GuardedSnapshot>,
    /// What the snapshot cost, once it has ended.
    pub snapshot_cost: Option<SnapshotCost>,
    /// Whether it was read while all its threads slept, without a stop.
    pub is_quiet: bool,
    /// What was not read.
    pub caveats: Vec<Caveat>,
    /// Bytes of target memory read.
    pub bytes_read: u64,
    /// Whether a runtime was busy, so that the process has to be read again.
    pub must_read_again: bool,
}

/// Returns when reading must end so that the target runs again `max_stop` after `since`.
pub(super) fn end_of_reading(since: Instant, max_stop: Duration) -> Instant {
    since + max_stop.saturating_sub(max_stop / END_DIVISOR)
}

/// How to read, the same at each attempt.
pub(super) struct ReadPlan<'a> {
    /// Number of threads that read.
    pub workers: usize,
    /// What is requested.
    pub options: &'a Options<'a>,
    /// The readers of what is mapped.
    pub found: &'a FoundReaders,
    /// The facts that were read before the stop.
    pub before: FactsBeforeStop<'a>,
}

/// Whether this is the last attempt: its result counts even if a runtime is collecting.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct IsLastAttempt(pub bool);

/// The threads of a stopped or sleeping process.
pub(super) struct Threads {
    /// As [`FrozenState::threads`].
    pub facts: Option<Vec<ThreadFacts>>,
    /// Number of threads.
    pub count: u64,
    /// What is unknown about them.
    pub caveats: Vec<Caveat>,
}

impl Threads {
    /// Combines the registers of stopped threads and the facts of threads that were left asleep.
    pub fn new<'r>(
        process: &Process,
        stopped: impl Iterator<Item = (i32, &'r Registers)>,
        sleeping: impl Iterator<Item = ThreadFacts>,
        count: u64,
    ) -> Self {
        let mut threads = Self { facts: None, count, caveats: Vec::new() };
        let facts: Option<Vec<ThreadFacts>> =
            stopped.map(|(tid, registers)| thread_facts(tid, registers)).collect();
        if facts.is_none() {
            let text = "a 32-bit program: only the kernel's rows are given, its heap and stacks are not read";
            let place = format!("process {}", process.pid());
            threads.caveats.push(Caveat::new("not_64_bit", place, None, text));
        }
        threads.facts = facts.map(|facts| facts.into_iter().chain(sleeping).collect());
        threads
    }
}

/// Returns the facts of a stopped thread; `None` for a 32-bit program.
fn thread_facts(tid: i32, registers: &Registers) -> Option<ThreadFacts> {
    let &Registers { rsp, fs_base, cs, .. } = registers;
    let &Registers { rax, rbx, rcx, rdx, rsi, rdi, rbp, rip, .. } = registers;
    let &Registers { r8, r9, r10, r11, r12, r13, r14, r15, .. } = registers;
    let general = [rax, rbx, rcx, rdx, rsi, rdi, rbp, r8, r9, r10, r11, r12, r13, r14, r15, rip];
    let facts = ThreadFacts { tid, stack_pointer: rsp, fs_base, general: general.map(Some) };
    (cs == CS_64_BIT).then_some(facts)
}

/// What the kernel reports about a stopped or sleeping process, or about its snapshot.
pub(super) struct KernelView {
    /// Its mappings.
    pub smaps: Smaps,
    /// Its resident pages.
    pub residency: Residency,
    /// The kernel's own sums of the same state, if they were read.
    pub rollup: Option<Counts>,
    /// Where the data segment grown by brk starts.
    pub start_brk: Option<u64>,
    /// Its /proc/PID/mem.
    pub memory: MemFile,
    /// Its /proc/PID/pagemap.
    pub pagemap: File,
}

/// Returns the caveat on a runtime that is not read because it was busy at each attempt.
fn busy_caveat(busy: &Busy) -> Caveat {
    let state = if busy.is_collecting {
        "was in a garbage collection"
    } else {
        "had inconsistent data structures (during a change, or damaged)"
    };
    let text = format!("{} {state} at each attempt: its memory is not read", busy.runtime);
    Caveat::new("runtime_busy", busy.runtime, busy.bytes, text)
}

impl FrozenState {
    /// Reads what the kernel reports about a stopped or sleeping process; its memory is not read
    /// yet.
    pub(super) fn of_process(process: &Process, threads: Threads, read_plan: &ReadPlan<'_>) -> Result<Self> {
        // An open pagemap or mem stays with its program: opened before the stop, it would show the
        // old program after an exec. A failed stop also reports a better reason.
        let pagemap = process.open_file("pagemap")?;
        let memory_file = process.open_file("mem")?;
        let Pages { smaps, residency, rollup } = page_tables::read(process, &pagemap, &read_plan.before)?;
        let start_brk = process.stat()?.start_brk;
        let memory = MemFile::new(memory_file);
        let view = KernelView { smaps, residency, rollup, start_brk, memory, pagemap };
        Ok(Self::new(process, view, threads, read_plan))
    }

    /// The threads whose registers are known.
    pub fn threads(&self) -> &[ThreadFacts] {
        self.threads.as_deref().unwrap_or_default()
    }

    /// The process's own memory, from the snapshot if there is one.
    pub fn own_memory(&self) -> &dyn Memory {
        match &self.snapshot_memory {
            Some(snapshot_memory) => &**snapshot_memory,
            None => &self.memory,
        }
    }

    /// Reads smaps_rollup, unless it was read, for the proportional set size, because smaps rounds
    /// each line. This walks all page tables and depends on other processes anyway, so it is done
    /// after the stop.
    pub(super) fn read_rollup(&mut self, process: &Process) {
        self.rollup = self.rollup.or_else(|| process.smaps_rollup());
    }

    /// Its memory while it does not run, with the open /proc/PID/mem `file`.
    pub(super) fn traced_memory<'f>(&self, process: &Process, file: &'f MemFile) -> TracedMemory<'f> {
        TracedMemory::new(process.pid(), &self.address_space, file, self.shares_memory())
    }

    /// Whether it shares private pages with other processes, after a fork or because the kernel
    /// merged equal pages.
    fn shares_memory(&self) -> bool {
        self.sums.pss_anonymous_bytes < self.sums.anonymous_bytes
    }

    /// Makes a frozen state whose memory is not read yet.
    pub(super) fn new(
        process: &Process,
        view: KernelView,
        threads: Threads,
        read_plan: &ReadPlan<'_>,
    ) -> Self {
        // The kernel lists mappings in order: none is left out.
        let (mut space, _) =
            AddressSpace::from_mappings(view.smaps.entries.iter().map(|entry| entry.mapping.clone()));
        // The end of each bss comes from files, which are not read during a stop: that of a library
        // loaded since is unknown.
        space.set_spans(read_plan.before.space.spans().clone());
        let Threads { facts, count, mut caveats } = threads;
        if view.smaps.bad_lines > 0 {
            let lines = counted(view.smaps.bad_lines as u64, "line");
            let text = format!("strandline does not understand {lines} of smaps");
            caveats.push(Caveat::new("smaps_lines", format!("/proc/{}/smaps", process.pid()), None, text));
        }
        Self {
            start_brk: view.start_brk,
            page_map: read_plan
                .options
                .makes_page_map
                .then(|| Plan::new(&view.smaps.entries, &view.residency)),
            sums: view.rollup.unwrap_or_else(|| view.smaps.total()),
            smaps_entries: view.smaps.entries,
            address_space: space,
            residency: view.residency,
            rollup: view.rollup,
            allocator_readings: Vec::new(),
            allocator_indices: Vec::new(),
            runtime_readings: Vec::new(),
            refinements: Refinements::default(),
            stacks: Vec::new(),
            threads: facts,
            thread_count: count,
            memory: view.memory,
            pagemap: view.pagemap,
            snapshot_memory: None,
            reading_began: Instant::now(),
            reading_ends: None,
            stopped_for: Duration::ZERO,
            snapshot: None,
            snapshot_cost: None,
            is_quiet: false,
            caveats,
            bytes_read: 0,
            must_read_again: false,
        }
    }

    /// Returns when to end a pass that may use the available time divided by `divisor`.
    fn deadline(&self, divisor: u32) -> Instant {
        let longest = self.reading_began + longest_stop(self.sums.anonymous_bytes);
        let end = match self.reading_ends {
            // The target runs meanwhile.
            Some(until) if self.snapshot.is_some() => until,
            Some(until) => until.min(longest),
            None => longest,
        };
        self.reading_began + end.saturating_duration_since(self.reading_began) / divisor
    }

    /// Whether the target is stopped while it is read: it is not if a snapshot is read instead, or
    /// if all its threads sleep. A copy made in the stop counts as stopped.
    fn is_stopped(&self) -> bool {
        !self.is_quiet && self.snapshot.is_none()
    }

    /// Whether a heap was inconsistent at some place.
    pub fn has_damage(&self) -> bool {
        self.allocator_readings.iter().any(|reading| reading.is_inconsistent)
    }

    /// Reads runtimes and heaps from `memory`, or sets `must_read_again`.
    ///
    /// # Errors
    /// [`Error::Overlap`](strandline_process::error::Error::Overlap) if an allocator's reader
    /// claims a byte twice.
    pub(super) fn read_all(
        &mut self,
        process: &Process,
        memory: &dyn Memory,
        read_plan: &ReadPlan<'_>,
        is_last: IsLastAttempt,
    ) -> Result<()> {
        let Some(threads) = &self.threads else { return Ok(()) };
        self.stacks = stacks::stacks(threads, memory, &self.address_space);
        let free = self.free_memory(process, memory, read_plan);
        for busy in self.read_runtimes(process, memory, &free, read_plan) {
            if is_last == IsLastAttempt(false) {
                self.must_read_again = true;
                return Ok(());
            }
            self.caveats.push(busy_caveat(&busy));
        }
        self.read_heaps(process, memory, read_plan)
    }

    /// Reads the language runtimes; returns those that were in the middle of a change.
    fn read_runtimes(
        &mut self,
        process: &Process,
        memory: &dyn Memory,
        free: &RangeSet,
        read_plan: &ReadPlan<'_>,
    ) -> Vec<Busy> {
        if read_plan.found.runtimes.is_empty() {
            return Vec::new();
        }
        let total = self.sums.anonymous_bytes;
        let done = AtomicU64::new(0);
        let progress = |bytes: u64| read_plan.options.advance("reading runtimes", &done, bytes, total);
        let private = self
            .smaps_entries
            .iter()
            .map(|entry| &entry.mapping)
            .filter(|mapping| mapping.is_private_anonymous() && mapping.permissions.write);
        let runs = private.flat_map(|mapping| self.residency.runs_in(mapping.start..mapping.end));
        let refinements = Refinements::new(runs.map(|run| (run.start, run.end)));
        let resident = |range: AddressRange| resident_runs(&self.residency, range, true);
        let shared = |range: AddressRange| resident_runs(&self.residency, range, false);
        let context = runtime::Context {
            memory: &Resident::new(memory, &self.residency),
            process,
            space: &self.address_space,
            resident: &resident,
            shared: &shared,
            threads: self.threads(),
            free_memory: free,
            is_stopped: self.is_stopped(),
            deadline: self.deadline(RUNTIMES_DIVISOR),
            workers: read_plan.workers,
            keeps_blocks: read_plan.options.keeps_blocks,
            path_to: read_plan.options.path_to,
            cell_bytes: self.page_map.as_ref().map(Plan::cell_bytes),
            progress: &progress,
        };
        let mut runtimes = Vec::new();
        let mut busy = Vec::new();
        for found in &read_plan.found.runtimes {
            match found.read(&context, &refinements) {
                Ok(readings) => runtimes.extend(readings),
                Err(busy_runtime) => busy.push(busy_runtime),
            }
        }
        self.runtime_readings = runtimes;
        self.refinements = refinements;
        self.bytes_read += self.runtime_readings.iter().map(|reading| reading.bytes_read).sum::<u64>();
        busy
    }
}

/// The resident pages of `range` that are anonymous, or all others.
fn resident_runs(residency: &Residency, range: AddressRange, are_anonymous: bool) -> Vec<AddressRange> {
    let runs = residency.runs_in(range.into()).filter(|run| run.is_anonymous == are_anonymous);
    runs.map(PageRun::range).collect()
}
