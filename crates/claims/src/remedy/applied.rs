//! What a remedy that was applied did and cost.

use std::time::{Duration, Instant};

use strandline_process::procfs::Process;
use strandline_process::smaps;

/// What the kernel counts as resident of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// RSS.
    pub rss_bytes: u64,
    /// The part that no other process has mapped: the machine gets that back, and no more.
    pub private_bytes: u64,
}

impl Footprint {
    /// That of `process` now.
    pub fn of(process: &Process) -> Option<Self> {
        let counts = smaps::read_rollup(process.open_file("smaps_rollup").ok()?).ok()?;
        Some(Self { rss_bytes: counts.rss_bytes, private_bytes: counts.private_bytes() })
    }
}

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Applied {
    /// Resident anonymous bytes of the ranges asked for that are gone, counted in the page tables
    /// right before and right after. Threads that were not stopped may have touched pages meanwhile.
    pub actual_bytes: u64,
    /// The ranges' resident anonymous bytes before. Where work is done in several stretches, each part's
    /// right before its turn.
    pub resident_before_bytes: u64,
    /// What the process had resident some time before the stop.
    pub before: Option<Footprint>,
    /// And after it.
    pub after: Option<Footprint>,
    /// How long the call took inside the process (several: together), our stops included.
    pub call_seconds: f64,
    /// How long a thread was kept from its own work: the longest time at one stretch. Not known of a runtime that was asked to do it.
    pub stopped_seconds: Option<f64>,
    /// How many stretches there were.
    pub stops: u64,
    /// Minor faults of the process in `minor_faults_seconds` afterwards.
    pub minor_faults_after: Option<u64>,
    /// Over how long they were counted.
    pub minor_faults_seconds: f64,
}

impl Applied {
    /// Counts the minor faults of `process` over `watch`, blocking as long; not at all where it is zero.
    pub fn watch_faults(&mut self, process: &Process, watch: Duration) {
        if watch.is_zero() {
            return;
        }
        let began = Instant::now();
        let Ok(first) = process.stat() else { return };
        std::thread::sleep(watch);
        let Ok(last) = process.stat() else { return };
        self.minor_faults_after = Some(last.minor_faults.saturating_sub(first.minor_faults));
        self.minor_faults_seconds = began.elapsed().as_secs_f64();
    }
}
