//! Search for the smallest limit under which a command succeeds.
//!
//! Every run succeeds or fails, and the search counts both for each limit. The edge is between
//! the largest limit with a failure and the smallest limit above it without one: starting from the
//! peak without a limit, the search moves in growing steps until it has both, bisects down to the
//! resolution, and repeats the limit found. A failure there only raises the lower bound, so that a
//! flaky edge is passed. The lower end of a flaky edge is found the same way from below. The search
//! is bounded whatever the command does: it makes at most [`Plan::max_edge_runs`] runs to find an
//! edge.

use std::collections::BTreeMap;

use super::LimitedRun;
use crate::executor::StopReason;

/// Limits are multiples of this, because the kernel counts pages.
pub const PAGE_BYTES: u64 = 4096;
/// The first guess if the peak is unknown.
const BLIND_GUESS_BYTES: u64 = 16 << 20;
/// Factor by which a step grows while no limit is found on the other side of the edge.
const STEP_GROWTH: u64 = 4;
/// Limits further apart than this factor are bisected by the geometric mean.
const FAR_APART_FACTOR: u64 = 4;

/// Runs a command under a limit.
pub trait LimitRunner {
    /// Makes one run under a limit of `limit_bytes`, or without a limit.
    ///
    /// # Errors
    /// [`StopReason`] if the run could not be made; the search then ends.
    fn run(&mut self, limit_bytes: Option<u64>) -> Result<LimitedRun, StopReason>;
}

/// Distance between two limits at which the edge between them counts as found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Resolution {
    /// Fraction of the limit.
    pub fraction: f64,
    /// Lower bound.
    pub min_bytes: u64,
}

impl Default for Resolution {
    fn default() -> Self {
        Self { fraction: 0.01, min_bytes: 64 << 10 }
    }
}

impl Resolution {
    /// The resolution at `limit_bytes`, in whole pages, at least one.
    pub fn at(self, limit_bytes: u64) -> u64 {
        let share = (limit_bytes as f64 * self.fraction.clamp(0.0, 1.0)) as u64;
        pages_down(share.max(self.min_bytes)).max(PAGE_BYTES)
    }
}

/// Parameters of a search.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Number of runs that must succeed under the limit found, at least 1.
    pub repeat: u32,
    /// Resolution of the search.
    pub resolution: Resolution,
    /// Maximum number of runs for finding the edges.
    pub max_edge_runs: u32,
    /// The smallest limit to try.
    pub floor_bytes: u64,
    /// The largest limit to try.
    pub ceiling_bytes: u64,
}

/// Results under one limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Runs that succeeded.
    pub succeeded: u32,
    /// Runs that failed.
    pub failed: u32,
}

/// A search under way: the runs so far and the results for each limit. A method that makes runs
/// fails with the [`StopReason`] of a run that could not be made.
pub struct Search<'a> {
    runner: &'a mut dyn LimitRunner,
    plan: &'a Plan,
    on_run: &'a mut dyn FnMut(usize, &LimitedRun),
    /// All runs, in order.
    runs: Vec<LimitedRun>,
    /// Results by limit, in bytes.
    tallies: BTreeMap<u64, Tally>,
    /// Number of runs made to find an edge; only these are bounded.
    edge_runs: u32,
}

impl<'a> Search<'a> {
    /// A search without runs. `on_run` is called after every run with the number of runs so far and
    /// the run.
    pub fn new(
        runner: &'a mut dyn LimitRunner,
        plan: &'a Plan,
        on_run: &'a mut dyn FnMut(usize, &LimitedRun),
    ) -> Self {
        Self { runner, plan, on_run, runs: Vec::new(), tallies: BTreeMap::new(), edge_runs: 0 }
    }

    /// Every run so far, in order.
    pub fn runs(&self) -> &[LimitedRun] {
        &self.runs
    }

    /// Results for each tried limit.
    pub fn tallies(&self) -> &BTreeMap<u64, Tally> {
        &self.tallies
    }

    /// Parameters of the search.
    pub fn plan(&self) -> &Plan {
        self.plan
    }

    /// Whether the maximum number of runs is reached.
    pub fn has_used_all_runs(&self) -> bool {
        self.edge_runs >= self.plan.max_edge_runs
    }

    /// Makes one run of those that [`Plan::max_edge_runs`] bounds.
    fn probe_counted(&mut self, limit_bytes: u64) -> Result<bool, StopReason> {
        self.edge_runs = self.edge_runs.saturating_add(1);
        self.probe(Some(limit_bytes))
    }

    /// Makes one run and stores its result; true if it succeeded.
    pub fn probe(&mut self, limit_bytes: Option<u64>) -> Result<bool, StopReason> {
        let run = LimitedRun { limit_bytes, ..self.runner.run(limit_bytes)? };
        let is_success = run.is_success();
        if let Some(limit) = limit_bytes {
            let tally = self.tallies.entry(limit).or_default();
            let count = if is_success { &mut tally.succeeded } else { &mut tally.failed };
            *count = count.saturating_add(1);
        }
        self.runs.push(run);
        if let Some(run) = self.runs.last() {
            (self.on_run)(self.runs.len(), run);
        }
        Ok(is_success)
    }

    /// The largest limit with a failed run.
    pub fn largest_failing(&self) -> Option<u64> {
        self.tallies.iter().rev().find(|(_, tally)| tally.failed > 0).map(|(limit, _)| *limit)
    }

    /// The smallest tried limit above all failures.
    pub fn smallest_never_failing(&self) -> Option<u64> {
        let above = self.largest_failing().map_or(0, |limit| limit.saturating_add(1));
        self.tallies.range(above..).next().map(|(limit, _)| *limit)
    }

    /// The smallest limit with a successful run.
    pub fn smallest_success(&self) -> Option<u64> {
        self.tallies.iter().find(|(_, tally)| tally.succeeded > 0).map(|(limit, _)| *limit)
    }

    /// The largest tried limit below all successes.
    pub fn largest_always_failing(&self) -> Option<u64> {
        let below = self.smallest_success().unwrap_or(u64::MAX);
        self.tallies.range(..below).next_back().map(|(limit, _)| *limit)
    }

    /// Runs until the smallest passing limit is known to the resolution and has passed often
    /// enough. Gives up if the command fails at the ceiling, or when the maximum number of runs is
    /// reached.
    pub fn find_upper_edge(&mut self, guess_bytes: Option<u64>) -> Result<(), StopReason> {
        let Plan { floor_bytes: floor, ceiling_bytes: ceiling, repeat, resolution, .. } = *self.plan;
        let guess = pages_up(guess_bytes.unwrap_or(BLIND_GUESS_BYTES)).clamp(floor, ceiling);
        // Just above the peak: if the guess is right, this is the answer and few steps down are
        // needed.
        let guess = guess.saturating_add(resolution.at(guess)).min(ceiling);
        // The first step down goes just below the peak.
        let mut step = resolution.at(guess).saturating_mul(2);
        while !self.has_used_all_runs() {
            let next_limit = match (self.largest_failing(), self.smallest_never_failing()) {
                (None, None) => guess,
                (Some(failing), None) if failing >= ceiling => break,
                (Some(failing), None) => {
                    let next_limit = failing.saturating_add(step).min(ceiling);
                    step = step.saturating_mul(STEP_GROWTH);
                    next_limit
                }
                (None, Some(passing)) if passing > floor => {
                    let next_limit = passing.saturating_sub(step).max(floor);
                    step = step.saturating_mul(STEP_GROWTH);
                    next_limit
                }
                (Some(failing), Some(passing)) if passing - failing > resolution.at(passing) => {
                    middle(failing, passing)
                }
                (_, Some(passing)) if self.tally(passing).succeeded < repeat => passing,
                _ => break,
            };
            self.probe_counted(next_limit)?;
        }
        Ok(())
    }

    /// Finds, in the same way, the limit below which the command always fails.
    pub fn find_lower_edge(&mut self) -> Result<(), StopReason> {
        let Plan { floor_bytes: floor, repeat, resolution, .. } = *self.plan;
        let mut step = self.smallest_success().map_or(PAGE_BYTES, |limit| resolution.at(limit));
        while !self.has_used_all_runs() {
            let next_limit = match (self.smallest_success(), self.largest_always_failing()) {
                (Some(success), None) if success > floor => {
                    let next_limit = success.saturating_sub(step).max(floor);
                    step = step.saturating_mul(STEP_GROWTH);
                    next_limit
                }
                (Some(success), Some(failing)) if success - failing > resolution.at(success) => {
                    middle(failing, success)
                }
                (Some(_), Some(failing)) if self.tally(failing).failed < repeat => failing,
                _ => break,
            };
            self.probe_counted(next_limit)?;
        }
        Ok(())
    }

    /// Runs under `limit_bytes` until it has `times` runs.
    pub fn repeat(&mut self, limit_bytes: u64, times: u32) -> Result<(), StopReason> {
        while !self.has_used_all_runs() {
            let tally = self.tally(limit_bytes);
            if tally.succeeded.saturating_add(tally.failed) >= times {
                break;
            }
            self.probe_counted(limit_bytes)?;
        }
        Ok(())
    }

    /// Results for one limit.
    pub fn tally(&self, limit_bytes: u64) -> Tally {
        self.tallies.get(&limit_bytes).copied().unwrap_or_default()
    }
}

/// A limit in whole pages between two that are at least two pages apart.
fn middle(low: u64, high: u64) -> u64 {
    let middle = if low > 0 && high / low >= FAR_APART_FACTOR {
        (low as f64 * high as f64).sqrt() as u64
    } else {
        low + (high - low) / 2
    };
    let middle = pages_down(middle);
    // A rounded value may equal a bound; the result must be a new limit.
    if middle > low && middle < high { middle } else { low.saturating_add(PAGE_BYTES) }
}

/// Rounds down to whole pages.
pub fn pages_down(bytes: u64) -> u64 {
    bytes - bytes % PAGE_BYTES
}

/// Rounds up to whole pages.
pub fn pages_up(bytes: u64) -> u64 {
    pages_down(bytes.saturating_add(PAGE_BYTES - 1))
}
