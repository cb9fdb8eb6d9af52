//! Cost of running close above the smallest limit: time and faults, compared with runs without a
//! limit.
//!
//! Runs rounds, each in its own order, so that drift of the machine affects all levels equally. The
//! rounds also check that the command does not fail above the limit found: they end with the first
//! failure, and the search resumes above it.

use serde::Serialize;

use super::LimitedRun;
use super::search::{Search, pages_up};
use crate::cell::Figures;
use crate::executor::StopReason;
use crate::statistics::{Estimate, Pair, Ratio, bonferroni, estimate, paired_ratio};

/// The levels, as multiples of the smallest limit.
pub const FACTORS: [f64; 4] = [1.0, 1.1, 1.5, 2.0];
/// Smaller differences of wall time are those of process start and scheduling.
const WALL_RESOLUTION_SECONDS: f64 = 1e-4;
/// Confidence of the interval of a median, and joint confidence of the ratios of all levels.
const CONFIDENCE: f64 = 0.95;

/// Results without a limit.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Unlimited {
    /// Runs without a limit.
    pub runs: u32,
    /// Failed runs among them.
    pub failed: u32,
    pub peak_bytes: Option<u64>,
    pub high_water_bytes: Option<u64>,
    pub wall_seconds: Option<Estimate>,
    pub minor_faults: Option<Estimate>,
    pub major_faults: Option<Estimate>,
}

/// A figure under a limit, compared with the same without one.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LimitedFigure {
    /// Its median; `None` if no run has the figure.
    #[serde(flatten)]
    pub estimate: Option<Estimate>,
    /// Ratio to the figure of the same round without a limit; also `None` if that is 0.
    pub ratio: Option<Ratio>,
}

/// Results under a limit near the smallest.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Level {
    /// The limit as a multiple of the smallest.
    pub factor: f64,
    pub limit_bytes: u64,
    /// Number of rounds.
    pub runs: u32,
    pub wall_seconds: LimitedFigure,
    pub minor_faults: LimitedFigure,
    pub major_faults: LimitedFigure,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct SlowdownResult {
    /// The levels, ascending.
    pub levels: Vec<Level>,
    /// Whether a run failed under one of these limits; `levels` is then empty.
    pub has_failed: bool,
}

/// A figure of a run that is compared.
struct MeasuredFigure {
    value: fn(&Figures) -> Option<f64>,
    /// The smallest difference that counts.
    resolution: f64,
}

const WALL_SECONDS: MeasuredFigure =
    MeasuredFigure { value: |figures| figures.wall_seconds, resolution: WALL_RESOLUTION_SECONDS };
const MINOR_FAULTS: MeasuredFigure =
    MeasuredFigure { value: |figures| figures.minor_faults.map(|count| count as f64), resolution: 1.0 };
const MAJOR_FAULTS: MeasuredFigure =
    MeasuredFigure { value: |figures| figures.major_faults.map(|count| count as f64), resolution: 1.0 };

/// Runs `rounds` rounds (at least one, because they are also a check) of the levels above
/// `smallest_bytes` and of no limit, in an order drawn by `seed`.
pub fn measure(
    search: &mut Search<'_>,
    smallest_bytes: u64,
    rounds: u32,
    seed: u64,
) -> Result<SlowdownResult, StopReason> {
    let ceiling = search.plan().ceiling_bytes.max(smallest_bytes);
    let limit_at = |factor: f64| pages_up((smallest_bytes as f64 * factor) as u64).min(ceiling);
    let level = |&factor: &f64| Level { factor, limit_bytes: limit_at(factor), ..Level::default() };
    let mut levels: Vec<Level> = FACTORS.iter().map(level).collect();
    // Near the ceiling several levels coincide.
    levels.dedup_by_key(|level| level.limit_bytes);
    let mut random = fastrand::Rng::with_seed(seed);
    // By level, and last those without a limit.
    let mut runs: Vec<Vec<LimitedRun>> = vec![Vec::new(); levels.len() + 1];
    for _ in 0..rounds.max(1) {
        let mut order: Vec<usize> = (0..=levels.len()).collect();
        random.shuffle(&mut order);
        for index in order {
            let limit = levels.get(index).map(|level| level.limit_bytes);
            let is_success = search.probe(limit)?;
            if limit.is_some() && !is_success {
                return Ok(SlowdownResult { levels: Vec::new(), has_failed: true });
            }
            if let (Some(level_runs), Some(run)) = (runs.get_mut(index), search.runs().last()) {
                level_runs.push(run.clone());
            }
        }
    }
    let unlimited = runs.pop().unwrap_or_default();
    for (level, runs) in levels.iter_mut().zip(&runs) {
        level.runs = rounds.max(1);
        level.wall_seconds = limited_figure(runs, &unlimited, WALL_SECONDS, seed);
        level.minor_faults = limited_figure(runs, &unlimited, MINOR_FAULTS, seed);
        level.major_faults = limited_figure(runs, &unlimited, MAJOR_FAULTS, seed);
    }
    Ok(SlowdownResult { levels, has_failed: false })
}

/// Combines all runs without a limit.
pub fn unlimited(runs: &[LimitedRun], seed: u64) -> Unlimited {
    let runs: Vec<_> = runs.iter().filter(|run| run.limit_bytes.is_none()).collect();
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let estimate_of = |measured: MeasuredFigure| {
        let samples: Vec<f64> = runs
            .iter()
            .filter(|run| run.is_success() && !run.is_recorded)
            .filter_map(|run| (measured.value)(&run.figures))
            .collect();
        estimate(&samples, CONFIDENCE, seed)
    };
    Unlimited {
        runs: count(runs.len()),
        failed: count(runs.iter().filter(|run| !run.is_success()).count()),
        peak_bytes: runs.iter().filter_map(|run| run.peak_bytes).max(),
        high_water_bytes: runs.iter().filter_map(|run| run.figures.high_water_bytes).max(),
        wall_seconds: estimate_of(WALL_SECONDS),
        minor_faults: estimate_of(MINOR_FAULTS),
        major_faults: estimate_of(MAJOR_FAULTS),
    }
}

/// A figure of the runs under a limit, beside the runs of the same rounds without one.
fn limited_figure(
    runs: &[LimitedRun],
    unlimited: &[LimitedRun],
    MeasuredFigure { value, resolution }: MeasuredFigure,
    seed: u64,
) -> LimitedFigure {
    let samples: Vec<f64> = runs.iter().filter_map(|run| value(&run.figures)).collect();
    let rounds = unlimited.iter().zip(runs).filter(|(without, _)| without.is_success());
    let pairs: Vec<Pair> = rounds
        .filter_map(|(without, under)| {
            Some(Pair { reference: value(&without.figures)?, compared: value(&under.figures)? })
        })
        .collect();
    let confidence = bonferroni(CONFIDENCE, FACTORS.len());
    LimitedFigure {
        estimate: estimate(&samples, CONFIDENCE, seed),
        ratio: paired_ratio(&pairs, resolution, confidence),
    }
}
