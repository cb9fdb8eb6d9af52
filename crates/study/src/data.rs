//! Measured data for claims, tables and plots: the samples of a metric in a cell, one for each
//! round.

use std::collections::BTreeMap;

use super::file::Statistic;
use super::matrix::Key;
use super::metric;
use strandline_lab::statistics::{self, BlockSample, Estimate, Pair, Ratio};

/// Confidence level of all intervals.
pub const CONFIDENCE: f64 = 0.95;
/// Seed of the bootstraps: equal data give equal intervals.
const BOOTSTRAP_SEED: u64 = 1;

/// Samples and texts of cells: those of runs, or random ones on which claims are tried.
pub trait MeasuredData: Send + Sync {
    /// The samples of a metric in a cell by round; `None` for a round without a sample.
    ///
    /// # Errors
    /// Why there are none; the text follows "not run: ".
    fn samples(&self, key: &Key, metric: &str) -> Result<Vec<Option<f64>>, String>;

    /// The text of a metric, if it is the same in all runs of the cell.
    ///
    /// # Errors
    /// Why the metric has no such text; it follows "not run: ".
    fn text(&self, key: &Key, metric: &str) -> Result<String, String>;

    /// Block of each round, if there are several: rounds on machines of different kinds are in
    /// different blocks.
    fn blocks(&self) -> &[u32] {
        &[]
    }

    /// How many runs of a cell have a metric; `None` if all have it.
    fn partial_runs(&self, _key: &Key, _metric: &str) -> Option<PartialRuns> {
        None
    }
}

/// Number of runs that have a metric which other runs of the cell lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartialRuns {
    /// Runs that have it.
    pub measured: usize,
    /// All runs.
    pub total: usize,
}

/// What was measured in the runs of a cell.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CellData {
    /// Samples by round, for each metric.
    pub samples: BTreeMap<String, Vec<Option<f64>>>,
    /// Texts with the number of runs that gave each, for each metric.
    pub texts: BTreeMap<String, BTreeMap<String, usize>>,
    /// Metrics that are invalid while others of the cell are valid, with the reason.
    pub invalid: BTreeMap<String, String>,
    /// Why it was not run, or why no run of it counts.
    pub not_run: Option<String>,
    pub valid_runs: usize,
    pub total_runs: usize,
}

/// What was measured in the runs of a study.
#[derive(Clone, Debug, Default)]
pub struct Data {
    pub cells: BTreeMap<Key, CellData>,
    /// Block of each round.
    pub blocks: Vec<u32>,
}

impl Data {
    /// The data of a cell, or why it was not run.
    fn cell(&self, key: &Key) -> Result<&CellData, String> {
        let cell = self.cells.get(key).ok_or("not part of this run")?;
        cell.not_run.as_ref().map_or(Ok(cell), |why| Err(why.clone()))
    }
}

impl MeasuredData for Data {
    fn samples(&self, key: &Key, metric: &str) -> Result<Vec<Option<f64>>, String> {
        let cell = self.cell(key)?;
        if let Some(why) = cell.invalid.get(metric) {
            return Err(why.clone());
        }
        match cell.samples.get(metric) {
            Some(samples) if samples.iter().any(Option::is_some) => Ok(samples.clone()),
            _ => Err(unmeasured(metric)),
        }
    }

    fn text(&self, key: &Key, metric: &str) -> Result<String, String> {
        let cell = self.cell(key)?;
        let texts: Vec<(&String, &usize)> = cell.texts.get(metric).into_iter().flatten().collect();
        match texts.as_slice() {
            [(_, count)] if **count < cell.valid_runs => {
                Err(format!("{count} of {} runs gave {metric}", cell.valid_runs))
            }
            [(text, _)] => Ok((*text).clone()),
            [] => Err(unmeasured(metric)),
            [(text, _), (other_text, _), ..] => {
                Err(format!("{metric} differs between runs: \"{text}\", \"{other_text}\""))
            }
        }
    }

    fn blocks(&self) -> &[u32] {
        &self.blocks
    }

    fn partial_runs(&self, key: &Key, metric: &str) -> Option<PartialRuns> {
        let cell = self.cells.get(key)?;
        let runs = match cell.samples.get(metric) {
            Some(samples) => PartialRuns { measured: samples.iter().flatten().count(), total: samples.len() },
            None => PartialRuns { measured: cell.valid_runs, total: cell.total_runs },
        };
        (runs.measured < runs.total).then_some(runs)
    }
}

/// The median of a metric with its interval.
///
/// # Errors
/// Why there is none; the text follows "not run: ".
pub fn estimate(measured: &dyn MeasuredData, key: &Key, metric: &str) -> Result<Estimate, String> {
    let blocks = measured.blocks();
    // Without blocks, all rounds are of one machine and so in one block.
    let sample = |(round, value): (usize, Option<f64>)| {
        Some(BlockSample { value: value?, block: blocks.get(round).copied().unwrap_or_default() })
    };
    let samples: Vec<BlockSample> =
        measured.samples(key, metric)?.into_iter().enumerate().filter_map(sample).collect();
    statistics::estimate_in_blocks(&samples, CONFIDENCE, BOOTSTRAP_SEED).ok_or_else(|| unmeasured(metric))
}

fn unmeasured(metric: &str) -> String {
    format!("no run gave {metric}")
}

/// One number of a cell; `None` for an unknown interval bound. Computes the interval only if a
/// bound is requested, because it takes far longer than the median.
///
/// # Errors
/// Those of [`estimate`].
pub fn cell_statistic(
    measured: &dyn MeasuredData,
    key: &Key,
    metric: &str,
    statistic: Statistic,
) -> Result<Option<f64>, String> {
    if matches!(statistic, Statistic::Low | Statistic::High) {
        return estimate(measured, key, metric).map(|estimate| figure(&estimate, statistic));
    }
    let samples: Vec<f64> = measured.samples(key, metric)?.into_iter().flatten().collect();
    let estimate = statistics::without_interval(&samples).ok_or_else(|| unmeasured(metric))?;
    Ok(figure(&estimate, statistic))
}

/// One of the numbers of an estimate; `None` for an unknown interval bound.
pub fn figure(estimate: &Estimate, statistic: Statistic) -> Option<f64> {
    let extreme =
        |choose: fn(f64, f64) -> f64| estimate.samples.iter().copied().fold(estimate.median, choose);
    match statistic {
        Statistic::Median => Some(estimate.median),
        Statistic::Low => estimate.low,
        Statistic::High => estimate.high,
        Statistic::Least => Some(extreme(f64::min)),
        Statistic::Most => Some(extreme(f64::max)),
    }
}

/// One of the numbers of a ratio, which has no extremes; `None` for an unknown interval bound.
pub fn ratio_figure(ratio: &Ratio, statistic: Statistic) -> Option<f64> {
    match statistic {
        Statistic::Low => ratio.low,
        Statistic::High => ratio.high,
        Statistic::Median | Statistic::Least | Statistic::Most => Some(ratio.median),
    }
}

/// The ratio of a metric in the cell `numerator` to that in `denominator`, paired by rounds.
///
/// # Errors
/// Those of [`estimate`].
pub fn ratio(
    measured: &dyn MeasuredData,
    numerator: &Key,
    denominator: &Key,
    metric: &str,
) -> Result<Ratio, String> {
    paired(&measured.samples(numerator, metric)?, &measured.samples(denominator, metric)?, metric)
}

/// The ratio of samples of a metric to other samples of it, paired by rounds.
///
/// # Errors
/// One line: no round has both, or the denominator is 0.
pub fn paired(
    numerators: &[Option<f64>],
    denominators: &[Option<f64>],
    metric: &str,
) -> Result<Ratio, String> {
    let rounds = denominators.iter().zip(numerators);
    let pairs: Vec<Pair> = rounds
        .filter_map(|(denominator, numerator)| {
            Some(Pair { reference: (*denominator)?, compared: (*numerator)? })
        })
        .collect();
    let resolution = metric::resolution(metric, metric::unit(metric, None));
    statistics::paired_ratio(&pairs, resolution, CONFIDENCE)
        .ok_or_else(|| format!("no ratio of {metric}: the denominator is 0 or was not measured"))
}
