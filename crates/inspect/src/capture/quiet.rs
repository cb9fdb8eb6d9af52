//! Reads a process without stopping it, while all its threads sleep. Their context-switch counters
//! prove that none ran ([`strandline_process::target::asleep`]).

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::frozen::{Frozen, IsLastAttempt, ReadPlan, Threads, kernel_view, rollup};
use super::snapshot::SnapshotMode;
use strandline_process::error::Result;
use strandline_process::memory::{Memory, WordPair};
use strandline_process::procfs::Process;
use strandline_process::target::asleep::{self, SleepingProcess};
use strandline_process::target::live::{ByPid, MemFile, TracedMemory};

/// Default time to try reading without a stop.
pub const QUIET_FOR: Duration = Duration::from_millis(250);
/// A process whose threads do not all sleep within this time is busy, and not waited for.
const MAX_AWAKE: Duration = Duration::from_millis(30);
const SHORTEST_PAUSE: Duration = Duration::from_micros(200);
const LONGEST_PAUSE: Duration = Duration::from_millis(10);
/// Interval between checks whether reading can be aborted.
const GLANCE_EVERY: Duration = Duration::from_millis(2);

/// A process's memory. Reads return nothing once the watcher has set `is_over`, so that a read in
/// vain ends soon.
struct Watched<'a> {
    memory: &'a dyn Memory,
    is_over: &'a AtomicBool,
}

impl Memory for Watched<'_> {
    fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
        if self.is_over.load(Ordering::Relaxed) { 0 } else { self.memory.read_some(address, buffer) }
    }

    fn read_pairs(&self, addresses: &[u64]) -> Vec<Option<WordPair>> {
        if self.is_over.load(Ordering::Relaxed) {
            return vec![None; addresses.len()];
        }
        self.memory.read_pairs(addresses)
    }
}

/// Ends the watching thread, also if the work panics.
struct End<'a>(&'a AtomicBool, thread::Thread);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        self.1.unpark();
    }
}

/// Runs `work` on `memory` while a second thread polls `is_in_vain`; returns true and the result if
/// the answer was yes. `work` then reads nothing more.
pub(super) fn watched<T>(
    memory: &dyn Memory,
    is_in_vain: &(dyn Fn() -> bool + Sync),
    work: impl FnOnce(&dyn Memory) -> T,
) -> (T, bool) {
    let (is_over, is_done) = (AtomicBool::new(false), AtomicBool::new(false));
    let done = thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                thread::park_timeout(GLANCE_EVERY);
                if is_in_vain() {
                    is_over.store(true, Ordering::Relaxed);
                    return;
                }
            }
        });
        let _end = End(&is_done, watcher.thread().clone());
        work(&Watched { memory, is_over: &is_over })
    });
    (done, is_over.load(Ordering::Relaxed))
}

/// Reads `process` without stopping it; `None` if that is not wanted, or not possible within the
/// time for it.
pub fn read(process: &Process, how: &ReadPlan<'_>) -> Result<Option<Frozen>> {
    let options = how.options;
    // Finding holders needs all registers, which are known only after a stop.
    let is_wanted = !options.keeps_blocks && options.snapshot != SnapshotMode::Always;
    // A 32-bit program is stopped, which detects that its heap is not read.
    let is_64_bit = process.start_facts().is_some_and(|facts| facts.is_64_bit);
    if !is_wanted || options.quiet_for.is_zero() || !is_64_bit {
        return Ok(None);
    }
    let begin = Instant::now();
    let (mut awake_since, mut pause) = (begin, SHORTEST_PAUSE);
    while begin.elapsed() < options.quiet_for && awake_since.elapsed() < MAX_AWAKE {
        if let Some(quiet) = SleepingProcess::check(process)? {
            if how.found.is_collecting(&ByPid::new(process.pid())) {
                return Ok(None);
            }
            match attempt(process, &quiet, how) {
                Ok(Attempt::Read(frozen)) => return Ok(Some(*frozen)),
                Ok(Attempt::MustStop) => return Ok(None),
                // What was read while it ran may be wrong in any way.
                Ok(Attempt::Disturbed) => {}
                Err(_) if !quiet.slept_throughout() => {}
                Err(error) => return Err(error),
            }
            awake_since = Instant::now();
        }
        thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
    Ok(None)
}

enum Attempt {
    Read(Box<Frozen>),
    Disturbed,
    /// It has to be stopped: a thread pointer is unknown, its memory is in the middle of a change,
    /// or others may write to it.
    MustStop,
}

fn attempt(process: &Process, quiet: &SleepingProcess<'_>, how: &ReadPlan<'_>) -> Result<Attempt> {
    let Some(facts) = quiet.facts(how.found.needs_thread_pointers()) else { return Ok(Attempt::MustStop) };
    let threads = Threads { count: facts.len() as u64, known: Some(facts), caveats: Vec::new() };
    let (mut frozen, facts) = kernel_view(process, threads, how)?;
    frozen.is_quiet = true;
    let file = MemFile::new(process.open_file("mem")?);
    let traced = TracedMemory::new(process.pid(), &frozen.address_space, &file, frozen.shares_memory());
    let (is_unfit, is_over) = watched(&traced, &|| quiet.seems_over(), |memory| {
        frozen.read_all(process, facts.as_deref(), memory, how, IsLastAttempt(false))
    });
    // Checked at each attempt: a thread that ran may have given others access to the memory.
    let is_alone = asleep::external_writer(process, &frozen.address_space)?.is_none();
    if is_over || !quiet.slept_throughout() {
        return Ok(Attempt::Disturbed);
    }
    let is_unfit = is_unfit? || !is_alone;
    if is_unfit || frozen.has_damage() {
        return Ok(Attempt::MustStop);
    }
    frozen.rollup = frozen.rollup.or_else(|| rollup(process));
    Ok(Attempt::Read(Box::new(frozen)))
}
