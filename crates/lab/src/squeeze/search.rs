//! The search for the smallest limit under which a command succeeds.
//!
//! Every run either succeeds or fails, and what is known is how often which happened under which limit. The edge lies
//! between the largest limit with a failure and the smallest limit above it without one: the search gallops from what
//! the command held without a limit until it has both, halves the distance down to the resolution, and repeats the
//! limit it found. A failure there only moves the lower end up, so that a flaky edge is passed and not stuck at. How
//! far down a flaky edge reaches is found the same way from below. It must stay bounded whatever the command does:
//! an edge is looked for with no more than [`Plan::most_trials`] runs.

use std::collections::BTreeMap;

use super::Tried;
use crate::executor::Stopped;

/// Limits are multiples of this: the kernel counts pages.
pub const PAGE_BYTES: u64 = 4096;
/// The first guess where nothing is known of what the command holds.
const BLIND_GUESS_BYTES: u64 = 16 << 20;
/// Each step of a gallop is so many times as long as the one before.
const GALLOP: u64 = 4;
/// Between limits that are further apart than by this factor the middle is the geometric one.
const FAR_APART: u64 = 4;

/// Something that can be run under a limit.
pub trait Trial {
    /// Runs it once under a limit of `limit_bytes`, or without one.
    ///
    /// # Errors
    /// [`Stopped`] where nothing can be said of the command: the search ends with it.
    fn run(&mut self, limit_bytes: Option<u64>) -> Result<Tried, Stopped>;
}

/// How close two limits are when the edge between them is found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Resolution {
    /// As a part of the limit.
    pub share: f64,
    /// But not less than this.
    pub least_bytes: u64,
}

impl Default for Resolution {
    fn default() -> Self {
        Self { share: 0.01, least_bytes: 64 << 10 }
    }
}

impl Resolution {
    /// At a limit of `limit_bytes`, in whole pages, at least one.
    pub fn at(self, limit_bytes: u64) -> u64 {
        let share = (limit_bytes as f64 * self.share.clamp(0.0, 1.0)) as u64;
        pages_down(share.max(self.least_bytes)).max(PAGE_BYTES)
    }
}

/// How to search.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// So many runs must succeed under the limit that is found, at least 1.
    pub repeat: u32,
    /// How closely it is found.
    pub resolution: Resolution,
    /// The edges are looked for with no more runs than this.
    pub most_trials: u32,
    /// No smaller limit is tried.
    pub floor_bytes: u64,
    /// No larger limit is tried.
    pub ceiling_bytes: u64,
}

/// How often what happened under one limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Runs that succeeded.
    pub succeeded: u32,
    /// Runs that failed.
    pub failed: u32,
}

/// A search under way: what was run so far, and what is known from it.
pub struct Search<'a> {
    trial: &'a mut dyn Trial,
    plan: &'a Plan,
    hear: &'a mut dyn FnMut(usize, &Tried),
    tries: Vec<Tried>,
    tallies: BTreeMap<u64, Tally>,
    /// Runs that were made to find an edge: these are what is bounded here.
    spent: u32,
}

impl<'a> Search<'a> {
    /// A search that has run nothing yet. `hear` is told of every run and of how many there were with it.
    pub fn new(trial: &'a mut dyn Trial, plan: &'a Plan, hear: &'a mut dyn FnMut(usize, &Tried)) -> Self {
        Self { trial, plan, hear, tries: Vec::new(), tallies: BTreeMap::new(), spent: 0 }
    }

    /// Every run so far, in order.
    pub fn tries(&self) -> &[Tried] {
        &self.tries
    }

    /// What is known of every limit that was tried.
    pub fn tallies(&self) -> &BTreeMap<u64, Tally> {
        &self.tallies
    }

    /// How it was searched.
    pub fn plan(&self) -> &Plan {
        self.plan
    }

    /// Whether no more runs may be made.
    pub fn is_spent(&self) -> bool {
        self.spent >= self.plan.most_trials
    }

    fn spend(&mut self, limit_bytes: u64) -> Result<bool, Stopped> {
        self.spent = self.spent.saturating_add(1);
        self.probe(Some(limit_bytes))
    }

    /// Runs it once and keeps what came of it.
    ///
    /// # Errors
    /// As [`Trial::run`].
    pub fn probe(&mut self, limit_bytes: Option<u64>) -> Result<bool, Stopped> {
        let tried = Tried { limit_bytes, ..self.trial.run(limit_bytes)? };
        let is_success = tried.is_success();
        if let Some(limit) = limit_bytes {
            let tally = self.tallies.entry(limit).or_default();
            let count = if is_success { &mut tally.succeeded } else { &mut tally.failed };
            *count = count.saturating_add(1);
        }
        self.tries.push(tried);
        if let Some(tried) = self.tries.last() {
            (self.hear)(self.tries.len(), tried);
        }
        Ok(is_success)
    }

    /// The largest limit under which it failed.
    pub fn largest_failing(&self) -> Option<u64> {
        self.tallies.iter().rev().find(|(_, tally)| tally.failed > 0).map(|(limit, _)| *limit)
    }

    /// The smallest limit above all failures: it never failed there.
    pub fn smallest_passing(&self) -> Option<u64> {
        let above = self.largest_failing().map_or(0, |limit| limit.saturating_add(1));
        self.tallies.range(above..).next().map(|(limit, _)| *limit)
    }

    /// The smallest limit under which it succeeded.
    pub fn smallest_success(&self) -> Option<u64> {
        self.tallies.iter().find(|(_, tally)| tally.succeeded > 0).map(|(limit, _)| *limit)
    }

    /// The largest limit below all successes: it always failed there.
    pub fn largest_refusing(&self) -> Option<u64> {
        let below = self.smallest_success().unwrap_or(u64::MAX);
        self.tallies.range(..below).next_back().map(|(limit, _)| *limit)
    }

    /// Runs until the smallest limit that passes is known to the resolution and has passed as often as it must. Ends
    /// without where it fails under the ceiling, or where no more runs may be made.
    ///
    /// # Errors
    /// As [`Trial::run`].
    pub fn find_upper_edge(&mut self, guess_bytes: Option<u64>) -> Result<(), Stopped> {
        let Plan { floor_bytes: floor, ceiling_bytes: ceiling, repeat, resolution, .. } = *self.plan;
        let guess = pages_up(guess_bytes.unwrap_or(BLIND_GUESS_BYTES)).clamp(floor, ceiling);
        // Just above what it held: where the guess is right that is the answer, and the gallop down is short.
        let guess = guess.saturating_add(resolution.at(guess)).min(ceiling);
        // The first step down goes to the other side of what it held.
        let mut step = resolution.at(guess).saturating_mul(2);
        while !self.is_spent() {
            let next = match (self.largest_failing(), self.smallest_passing()) {
                (None, None) => guess,
                (Some(failing), None) if failing >= ceiling => break,
                (Some(failing), None) => {
                    let next = failing.saturating_add(step).min(ceiling);
                    step = step.saturating_mul(GALLOP);
                    next
                }
                (None, Some(passing)) if passing > floor => {
                    let next = passing.saturating_sub(step).max(floor);
                    step = step.saturating_mul(GALLOP);
                    next
                }
                (Some(failing), Some(passing)) if passing - failing > resolution.at(passing) => {
                    middle(failing, passing)
                }
                (_, Some(passing)) if self.tally(passing).succeeded < repeat => passing,
                _ => break,
            };
            self.spend(next)?;
        }
        Ok(())
    }

    /// Runs until it is known below which limit it always fails, in the same way.
    ///
    /// # Errors
    /// As [`Trial::run`].
    pub fn find_lower_edge(&mut self) -> Result<(), Stopped> {
        let Plan { floor_bytes: floor, repeat, resolution, .. } = *self.plan;
        let mut step = self.smallest_success().map_or(PAGE_BYTES, |limit| resolution.at(limit));
        while !self.is_spent() {
            let next = match (self.smallest_success(), self.largest_refusing()) {
                (Some(success), None) if success > floor => {
                    let next = success.saturating_sub(step).max(floor);
                    step = step.saturating_mul(GALLOP);
                    next
                }
                (Some(success), Some(refusing)) if success - refusing > resolution.at(success) => {
                    middle(refusing, success)
                }
                (Some(_), Some(refusing)) if self.tally(refusing).failed < repeat => refusing,
                _ => break,
            };
            self.spend(next)?;
        }
        Ok(())
    }

    /// Repeats `limit_bytes` until it was run `times` times.
    ///
    /// # Errors
    /// As [`Trial::run`].
    pub fn repeat(&mut self, limit_bytes: u64, times: u32) -> Result<(), Stopped> {
        while !self.is_spent() {
            let tally = self.tally(limit_bytes);
            if tally.succeeded.saturating_add(tally.failed) >= times {
                break;
            }
            self.spend(limit_bytes)?;
        }
        Ok(())
    }

    /// What is known of one limit.
    pub fn tally(&self, limit_bytes: u64) -> Tally {
        self.tallies.get(&limit_bytes).copied().unwrap_or_default()
    }
}

/// A limit between two that are at least two pages apart, in whole pages.
fn middle(low: u64, high: u64) -> u64 {
    let middle = if low > 0 && high / low >= FAR_APART {
        (low as f64 * high as f64).sqrt() as u64
    } else {
        low + (high - low) / 2
    };
    let middle = pages_down(middle);
    // Whatever rounding did, something new must be tried.
    if middle > low && middle < high { middle } else { low.saturating_add(PAGE_BYTES) }
}

/// So many bytes in whole pages, rounded down.
pub fn pages_down(bytes: u64) -> u64 {
    bytes - bytes % PAGE_BYTES
}

/// So many bytes in whole pages, rounded up.
pub fn pages_up(bytes: u64) -> u64 {
    pages_down(bytes.saturating_add(PAGE_BYTES - 1))
}
