//! What a command costs close above the smallest limit: time and faults beside those without a limit.
//!
//! Rounds of runs, each in an order of its own, so that a machine that grows slower meanwhile slows all levels alike.
//! They are also the check that the command does not fail above the limit that was found: the rounds end with the
//! first failure, and the search goes on above it.

use serde::Serialize;

use super::Tried;
use super::search::{Search, pages_up};
use crate::cell::Figures;
use crate::executor::Stopped;
use crate::statistics::{Estimate, Ratio, estimate, paired_ratio, together};

/// The levels, as multiples of the smallest limit.
pub const FACTORS: [f64; 4] = [1.0, 1.1, 1.5, 2.0];
const CONFIDENCE: f64 = 0.95;

/// What is known of a command without a limit.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Unlimited {
    /// Runs without a limit.
    pub runs: u32,
    /// Those of them that failed all the same.
    pub failed: u32,
    /// The most of what is limited that it was seen to hold.
    pub peak_bytes: Option<u64>,
    /// The largest resident set that one of its processes had.
    pub high_water_bytes: Option<u64>,
    /// From its start to its end.
    pub wall_seconds: Option<Estimate>,
    /// Page faults that needed no device.
    pub minor_faults: Option<Estimate>,
    /// Page faults that did.
    pub major_faults: Option<Estimate>,
}

/// A figure under a limit, and beside the same without one.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Beside {
    /// The figure.
    #[serde(flatten)]
    pub estimate: Option<Estimate>,
    /// Its ratio to the figure of the same round without a limit; `None` also where that was 0.
    pub ratio: Option<Ratio>,
}

/// What is known of a command under a limit near the smallest.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Level {
    /// The limit as a multiple of the smallest.
    pub factor: f64,
    /// The limit.
    pub limit_bytes: u64,
    /// Rounds that were run.
    pub runs: u32,
    /// From its start to its end.
    pub wall_seconds: Beside,
    /// Page faults that needed no device.
    pub minor_faults: Beside,
    /// Page faults that did.
    pub major_faults: Beside,
}

/// What came of the rounds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Near {
    /// The levels, from the smallest up.
    pub levels: Vec<Level>,
    /// Whether it failed under one of these limits; then there are no levels.
    pub has_failed: bool,
}

/// What is looked at of a run, and the unit it is counted in.
type Take = (fn(&Figures) -> Option<f64>, f64);
const WALL_SECONDS: Take = (|figures| figures.wall_seconds, 1e-4);
const MINOR_FAULTS: Take = (|figures| figures.minor_faults.map(|count| count as f64), 1.0);
const MAJOR_FAULTS: Take = (|figures| figures.major_faults.map(|count| count as f64), 1.0);

/// Runs `rounds` rounds (one where 0 is asked for: the check is not left out) of the levels above `smallest_bytes`
/// and of none, in an order drawn by `seed`.
///
/// # Errors
/// As [`Search::probe`].
pub fn measure(
    search: &mut Search<'_>,
    smallest_bytes: u64,
    rounds: u32,
    seed: u64,
) -> Result<Near, Stopped> {
    let ceiling = search.plan().ceiling_bytes.max(smallest_bytes);
    let mut levels: Vec<(f64, u64)> = FACTORS
        .iter()
        .map(|factor| (*factor, pages_up((smallest_bytes as f64 * factor) as u64).min(ceiling)))
        .collect();
    // Near the ceiling the larger ones are one.
    levels.dedup_by_key(|(_, limit)| *limit);
    let mut dice = fastrand::Rng::with_seed(seed);
    let mut runs: Vec<Vec<Tried>> = vec![Vec::new(); levels.len() + 1];
    for _ in 0..rounds.max(1) {
        let mut order: Vec<usize> = (0..=levels.len()).collect();
        dice.shuffle(&mut order);
        for index in order {
            let limit = levels.get(index).map(|(_, limit)| *limit);
            let is_success = search.probe(limit)?;
            if limit.is_some() && !is_success {
                return Ok(Near { levels: Vec::new(), has_failed: true });
            }
            if let (Some(of_level), Some(tried)) = (runs.get_mut(index), search.tries().last()) {
                of_level.push(tried.clone());
            }
        }
    }
    let unlimited = runs.pop().unwrap_or_default();
    let levels = levels.iter().zip(&runs).map(|((factor, limit_bytes), runs)| Level {
        factor: *factor,
        limit_bytes: *limit_bytes,
        runs: runs.len() as u32,
        wall_seconds: beside(runs, &unlimited, WALL_SECONDS, seed),
        minor_faults: beside(runs, &unlimited, MINOR_FAULTS, seed),
        major_faults: beside(runs, &unlimited, MAJOR_FAULTS, seed),
    });
    Ok(Near { levels: levels.collect(), has_failed: false })
}

/// What all runs without a limit say together.
pub fn unlimited(tries: &[Tried], seed: u64) -> Unlimited {
    let runs: Vec<_> = tries.iter().filter(|tried| tried.limit_bytes.is_none()).collect();
    let of = |(take, _): Take| {
        let samples: Vec<f64> = runs
            .iter()
            .filter(|tried| tried.is_success() && !tried.is_recorded)
            .filter_map(|tried| take(&tried.figures))
            .collect();
        estimate(&samples, CONFIDENCE, seed)
    };
    Unlimited {
        runs: runs.len() as u32,
        failed: runs.iter().filter(|tried| !tried.is_success()).count() as u32,
        peak_bytes: runs.iter().filter_map(|tried| tried.peak_bytes).max(),
        high_water_bytes: runs.iter().filter_map(|tried| tried.figures.high_water_bytes).max(),
        wall_seconds: of(WALL_SECONDS),
        minor_faults: of(MINOR_FAULTS),
        major_faults: of(MAJOR_FAULTS),
    }
}

fn beside(runs: &[Tried], unlimited: &[Tried], (take, unit): Take, seed: u64) -> Beside {
    let samples: Vec<f64> = runs.iter().filter_map(|tried| take(&tried.figures)).collect();
    let pairs: Vec<(f64, f64)> = unlimited
        .iter()
        .zip(runs)
        .filter(|(without, _)| without.is_success())
        .filter_map(|(without, under)| Some((take(&without.figures)?, take(&under.figures)?)))
        .collect();
    // The intervals of all levels are to hold together.
    let confidence = together(CONFIDENCE, FACTORS.len());
    Beside { estimate: estimate(&samples, CONFIDENCE, seed), ratio: paired_ratio(&pairs, unit, confidence) }
}
