//! Effect and cost of an applied remedy.

use std::time::{Duration, Instant};

use strandline_process::error::Result;
use strandline_process::procfs::Process;
use strandline_process::smaps;

/// Resident memory of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// RSS.
    pub rss_bytes: u64,
    /// The part that no other process has mapped: only this part goes back to the machine.
    pub private_bytes: u64,
}

impl Footprint {
    /// Returns the footprint of `process` now; `None` if it cannot be read.
    pub fn of(process: &Process) -> Option<Self> {
        Self::read(process).ok()
    }

    /// Reads the footprint of `process` now.
    ///
    /// # Errors
    /// The process has ended, or its smaps_rollup cannot be read.
    pub fn read(process: &Process) -> Result<Self> {
        const FILE: &str = "smaps_rollup";
        let counts = smaps::read_rollup(process.open_file(FILE)?);
        let counts = counts.map_err(|source| process.error(FILE, source))?;
        Ok(Self { rss_bytes: counts.rss_bytes, private_bytes: counts.private_bytes() })
    }
}

/// Effect and cost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Applied {
    /// Resident anonymous bytes that the requested ranges lost, counted in the page tables right
    /// before and right after. Threads that were not stopped may have touched pages meanwhile.
    /// `None` if they could not be counted.
    pub actual_bytes: Option<u64>,
    /// Resident anonymous bytes of the ranges before. If there are several stops, each part is
    /// counted right before it is processed.
    pub resident_before_bytes: u64,
    /// The process's footprint some time before the stop; `None` if it could not be read.
    pub before: Option<Footprint>,
    /// The process's footprint after the stop; `None` if it could not be read.
    pub after: Option<Footprint>,
    /// How long the call took inside the process, or all calls together, with stops.
    pub call_seconds: f64,
    /// Longest time that a thread was kept from its own work. `None` if a runtime was asked to do
    /// the work.
    pub stopped_seconds: Option<f64>,
    /// Number of stops.
    pub stops: u64,
    /// Minor faults of the process in `minor_faults_seconds` afterwards; `None` if they were not
    /// counted.
    pub minor_faults_after: Option<u64>,
    /// Seconds over which they were counted.
    pub minor_faults_seconds: f64,
}

impl Applied {
    /// Counts the minor faults of `process` during `watch`, and blocks for that time. If `watch` is
    /// zero or the process ends meanwhile, the count stays unknown.
    pub fn watch_faults(&mut self, process: &Process, watch: Duration) {
        if watch.is_zero() {
            return;
        }
        let start = Instant::now();
        let Ok(stat_before) = process.stat() else { return };
        std::thread::sleep(watch);
        let Ok(stat_after) = process.stat() else { return };
        self.minor_faults_after = Some(stat_after.minor_faults.saturating_sub(stat_before.minor_faults));
        self.minor_faults_seconds = start.elapsed().as_secs_f64();
    }
}
