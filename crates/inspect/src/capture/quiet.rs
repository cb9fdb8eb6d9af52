//! Reads a process without stopping it, while all its threads sleep. Their context-switch counters
//! prove that none ran ([`strandline_process::target::asleep`]).

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use strandline_process::error::Result;
use strandline_process::memory::{Memory, WordPair};
use strandline_process::procfs::Process;
use strandline_process::target::asleep::{self, SleepingProcess};
use strandline_process::target::live::{ByPid, MemFile};

use super::frozen::{FrozenState, IsLastAttempt, ReadPlan, Threads};
use super::snapshot::SnapshotMode;

/// Default time to try reading without a stop.
pub const QUIET_FOR: Duration = Duration::from_millis(250);
/// A process whose threads do not all sleep at one moment within this time is busy, and not waited
/// for.
const MAX_AWAKE: Duration = Duration::from_millis(30);
/// Pause after the first attempt, doubled after each further one.
const SHORTEST_PAUSE: Duration = Duration::from_micros(200);
/// Maximum of that pause.
const LONGEST_PAUSE: Duration = Duration::from_millis(10);
/// Interval between two checks whether reading is in vain.
const CHECK_INTERVAL: Duration = Duration::from_millis(2);

/// A process's memory. Reads return nothing once the watcher has set `is_in_vain`, so that the work
/// ends soon.
struct WatchedMemory<'a> {
    memory: &'a dyn Memory,
    is_in_vain: &'a AtomicBool,
}

impl Memory for WatchedMemory<'_> {
    fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
        if self.is_in_vain.load(Ordering::Relaxed) { 0 } else { self.memory.read_some(address, buffer) }
    }

    fn read_pairs(&self, addresses: &[u64]) -> Vec<Option<WordPair>> {
        if self.is_in_vain.load(Ordering::Relaxed) {
            return vec![None; addresses.len()];
        }
        self.memory.read_pairs(addresses)
    }
}

/// Ends the watching thread when dropped, also if the work panics.
struct WatchEnd<'a> {
    is_done: &'a AtomicBool,
    watcher: thread::Thread,
}

impl Drop for WatchEnd<'_> {
    fn drop(&mut self) {
        self.is_done.store(true, Ordering::Relaxed);
        self.watcher.unpark();
    }
}

/// Result of [`watched`].
pub(super) struct WatchedResult<T> {
    /// What the work returned.
    pub result: T,
    /// Whether the work was in vain; it then read nothing more.
    pub is_in_vain: bool,
}

/// Runs `work` on `memory` while a second thread calls `check`, which returns true once the work is
/// in vain.
pub(super) fn watched<T>(
    memory: &dyn Memory,
    check: &(dyn Fn() -> bool + Sync),
    work: impl FnOnce(&dyn Memory) -> T,
) -> WatchedResult<T> {
    let (is_in_vain, is_done) = (AtomicBool::new(false), AtomicBool::new(false));
    let result = thread::scope(|scope| {
        let watch = || {
            while !is_done.load(Ordering::Relaxed) {
                thread::park_timeout(CHECK_INTERVAL);
                if check() {
                    is_in_vain.store(true, Ordering::Relaxed);
                    return;
                }
            }
        };
        // Without a watcher, the work goes on to its end.
        let watcher = thread::Builder::new().spawn_scoped(scope, watch).ok();
        let _end = watcher.map(|watcher| WatchEnd { is_done: &is_done, watcher: watcher.thread().clone() });
        work(&WatchedMemory { memory, is_in_vain: &is_in_vain })
    });
    WatchedResult { result, is_in_vain: is_in_vain.load(Ordering::Relaxed) }
}

/// Reads `process` without stopping it; `None` if the options exclude that, or if it is not
/// possible within their `quiet_for`.
///
/// # Errors
/// Fails if the process has ended or may not be inspected.
pub fn read(process: &Process, plan: &ReadPlan<'_>) -> Result<Option<FrozenState>> {
    let options = plan.options;
    // Finding holders needs all registers, which are known only after a stop.
    let is_possible = !options.keeps_blocks && options.snapshot != SnapshotMode::Always;
    // A 32-bit program is stopped: the stop detects that its heap cannot be read.
    let is_64_bit = process.start_facts().is_some_and(|facts| facts.is_64_bit);
    if !is_possible || options.quiet_for.is_zero() || !is_64_bit {
        return Ok(None);
    }
    let start = Instant::now();
    let (mut awake_since, mut pause) = (start, SHORTEST_PAUSE);
    while start.elapsed() < options.quiet_for && awake_since.elapsed() < MAX_AWAKE {
        if let Some(sleeping) = SleepingProcess::check(process)? {
            if plan.found.is_collecting(&ByPid::new(process.pid())) {
                return Ok(None);
            }
            match attempt(process, &sleeping, plan) {
                Ok(Attempt::Read(frozen)) => return Ok(Some(*frozen)),
                Ok(Attempt::MustStop) => return Ok(None),
                // What was read while a thread ran may be wrong, and so may an error be.
                Ok(Attempt::Disturbed) => {}
                Err(_) if !sleeping.slept_throughout() => {}
                Err(error) => return Err(error),
            }
            awake_since = Instant::now();
        }
        thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
    Ok(None)
}

/// Result of one attempt to read a sleeping process.
enum Attempt {
    /// All threads slept throughout.
    Read(Box<FrozenState>),
    /// A thread ran meanwhile.
    Disturbed,
    /// The process must be stopped: a thread pointer is unknown, its memory is in the middle of a
    /// change, or others may write to it.
    MustStop,
}

/// Reads a process that slept when it was checked, and checks whether it slept throughout.
fn attempt(process: &Process, sleeping: &SleepingProcess<'_>, plan: &ReadPlan<'_>) -> Result<Attempt> {
    let Some(facts) = sleeping.facts(plan.found.needs_thread_pointers()) else {
        return Ok(Attempt::MustStop);
    };
    let threads = Threads { count: facts.len() as u64, facts: Some(facts), caveats: Vec::new() };
    let mut frozen = FrozenState::of_process(process, threads, plan)?;
    frozen.is_quiet = true;
    let file = MemFile::new(process.open_file("mem")?);
    let traced = frozen.traced_memory(process, &file);
    let watched_read = watched(&traced, &|| sleeping.first_threads_ran(), |memory| {
        frozen.read_all(process, memory, plan, IsLastAttempt(false))
    });
    // Checked at each attempt: a thread that ran may have given others access to the memory.
    let is_alone = asleep::external_writer(process, &frozen.address_space)?.is_none();
    if watched_read.is_in_vain || !sleeping.slept_throughout() {
        return Ok(Attempt::Disturbed);
    }
    watched_read.result?;
    if frozen.must_read_again || !is_alone || frozen.has_damage() {
        return Ok(Attempt::MustStop);
    }
    frozen.read_rollup(process);
    Ok(Attempt::Read(Box::new(frozen)))
}
