//! Statistics of varying figures: medians with intervals, ratios of paired figures, outliers.
//!
//! A ratio must show whether two commands differ, for several figures at once, after as few as five
//! rounds; a command compared with itself must give the verdict "same". The interval of a ratio is
//! therefore not a bootstrap: with few samples a bootstrap never extends beyond them, and covers
//! less than its nominal confidence. Equal commands give log ratios that are symmetric around 0
//! whatever their distribution, which is all that the signed-rank interval needs. With too few
//! pairs for the requested confidence, Student's t is used instead, which is too wide with heavy
//! tails. This module does not run, read or print anything, and is deterministic for equal figures
//! and seed.

use serde::ser::SerializeStruct as _;
use serde::{Serialize, Serializer};
use statrs::distribution::{ContinuousCDF, Normal, StudentsT};

/// Maximum number of resamples of a bootstrap.
const MAX_RESAMPLES: usize = 10_000;
/// Maximum number of draws of a bootstrap: more samples get fewer resamples.
const MAX_DRAWS: usize = 1_000_000;
/// Above this number of samples the interval of the median uses order statistics: a bootstrap gives
/// the same result more slowly.
const MAX_BOOTSTRAP_SAMPLES: usize = 500;
/// Above this number of pairs the pairwise means are too many to list.
const MAX_RANKED_PAIRS: usize = 500;
/// Above this number of pairs the signed-rank statistic is approximated by a normal distribution.
const MAX_EXACT_PAIRS: usize = 64;
/// Samples with a larger modified z score are outliers (Iglewicz and Hoaglin, 1993).
const OUTLIER_SCORE: f64 = 3.5;
/// If more than half of the samples are equal, deviations below this fraction of the median are no
/// outliers.
const MIN_RELATIVE_DEVIATION: f64 = 0.01;
/// Median absolute deviation of normal samples, in standard deviations: their third quartile.
const NORMAL_MEDIAN_DEVIATION: f64 = 0.674_489_750_196_081_7;
/// Standard deviation of normal samples, in mean absolute deviations: the square root of pi / 2.
const DEVIATION_PER_MEAN_DEVIATION: f64 = 1.253_314_137_315_500_1;
/// Every integer up to this has a float of its own: 2 to the power of 53.
const MAX_WHOLE: f64 = 9_007_199_254_740_992.0;
/// A larger confidence has no finite interval in floating point.
const MAX_CONFIDENCE: f64 = 1.0 - 1e-12;
/// Used for a confidence that is not finite.
const DEFAULT_CONFIDENCE: f64 = 0.95;
/// Units by which the interval of a ratio is widened: one, and a bit for rounding.
const WIDENING_UNITS: f64 = 1.0 + 1e-9;

/// A median with its interval and samples.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimate {
    /// The median of the samples.
    pub median: f64,
    /// Lower bound of its interval; `None` if no block has two samples, or none was computed.
    pub low: Option<f64>,
    /// Upper bound of its interval.
    pub high: Option<f64>,
    /// The finite samples, in the given order.
    pub samples: Vec<f64>,
}

impl Serialize for Estimate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("Estimate", 4)?;
        fields.serialize_field("median", &Number(self.median))?;
        fields.serialize_field("low", &self.low.map(Number))?;
        fields.serialize_field("high", &self.high.map(Number))?;
        let samples: Vec<Number> = self.samples.iter().copied().map(Number).collect();
        fields.serialize_field("samples", &samples)?;
        fields.end()
    }
}

/// A figure in a document: an integer if it is whole, because sizes and counts are integers there.
struct Number(f64);

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serialize_number(&self.0, serializer)
    }
}

/// Writes `figure` as an integer if it is whole.
///
/// # Errors
/// Those of the serializer.
pub fn serialize_number<S: Serializer>(figure: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    if figure.fract() == 0.0 && figure.abs() <= MAX_WHOLE {
        serializer.serialize_i64(*figure as i64)
    } else {
        serializer.serialize_f64(*figure)
    }
}

/// A sample and the block that it belongs to: runs on machines of different kinds are in different
/// blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlockSample {
    /// The sample.
    pub value: f64,
    /// Number of its block.
    pub block: u32,
}

/// The same figure of two commands in one round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// The figure of the command that others are compared with.
    pub reference: f64,
    /// The figure of the command that is compared with it.
    pub compared: f64,
}

/// The ratio of one figure to another, paired by rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratio {
    /// Median of the pairwise ratios; for an even number of pairs the geometric mean of the middle
    /// two.
    pub median: f64,
    /// Lower bound of its interval; `None` with fewer than two pairs.
    pub low: Option<f64>,
    /// Upper bound of its interval.
    pub high: Option<f64>,
}

/// How the second figure compares with the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The interval contains 1: no difference was found.
    Same,
    /// The second is larger.
    More,
    /// The second is smaller.
    Less,
    /// Too few pairs.
    Unknown,
}

impl Ratio {
    /// How the second figure compares with the first. Callers without a ratio (zero denominator, no
    /// pairs) use [`Verdict::Unknown`] too.
    pub fn verdict(&self) -> Verdict {
        match (self.low, self.high) {
            (Some(low), Some(high)) if low <= 1.0 && 1.0 <= high => Verdict::Same,
            (Some(low), Some(_)) if low > 1.0 => Verdict::More,
            (Some(_), Some(high)) if high < 1.0 => Verdict::Less,
            _ => Verdict::Unknown,
        }
    }
}

/// Half the width of a ratio's interval, relative to the ratio; infinite if unknown.
pub fn half_width(ratio: Option<Ratio>) -> f64 {
    match ratio {
        Some(Ratio { median, low: Some(low), high: Some(high) }) if median > 0.0 => {
            (high - low) / median / 2.0
        }
        _ => f64::INFINITY,
    }
}

/// The median of `samples` with an interval of this `confidence` (0.95 for 95 %); `None` without a
/// finite sample.
///
/// The interval is a percentile bootstrap drawn by `seed`, with percentiles expanded for few
/// samples (Hesterberg, 2015). It cannot extend beyond the samples: with five samples its
/// confidence is at most 94 %, whatever is requested.
pub fn estimate(samples: &[f64], confidence: f64, seed: u64) -> Option<Estimate> {
    let samples: Vec<BlockSample> = samples.iter().map(|&value| BlockSample { value, block: 0 }).collect();
    estimate_in_blocks(&samples, confidence, seed)
}

/// The same for samples of several blocks. A repetition would use the machines of all blocks
/// equally often, so each block is resampled by itself.
pub fn estimate_in_blocks(samples: &[BlockSample], confidence: f64, seed: u64) -> Option<Estimate> {
    let mut finite: Vec<BlockSample> =
        samples.iter().copied().filter(|sample| sample.value.is_finite()).collect();
    let values = |samples: &[BlockSample]| samples.iter().map(|sample| sample.value).collect::<Vec<f64>>();
    let samples = values(&finite);
    finite.sort_by(|a, b| a.value.total_cmp(&b.value));
    let sorted = values(&finite);
    let median = median(&sorted)?;
    let interval = if sorted.len() > MAX_BOOTSTRAP_SAMPLES {
        order_interval(&sorted, confidence)
    } else {
        bootstrap(&sorted, &indices_by_block(&finite), confidence, seed)
    };
    // With few resamples, or very large figures, a bound may fall on the wrong side of the median.
    Some(Estimate {
        median,
        low: interval.map(|interval| interval.low.min(median)),
        high: interval.map(|interval| interval.high.max(median)),
        samples,
    })
}

/// The median of `samples` without an interval; `None` without a finite sample.
pub fn without_interval(samples: &[f64]) -> Option<Estimate> {
    let samples: Vec<f64> = samples.iter().copied().filter(|sample| sample.is_finite()).collect();
    Some(Estimate { median: median(&sorted(&samples))?, low: None, high: None, samples })
}

/// The ratio of the compared figure to the reference over `pairs`, one for each round, with an
/// interval of this `confidence`. `resolution` is the unit of the figure (1 for faults, 4096 for
/// resident bytes, 1e-6 for seconds; 0 for none): a difference of one unit does not count as a
/// difference.
///
/// Pairs with a negative or non-finite figure are dropped. 0 to 0 is 1; `None` if no pair is left,
/// or if the median would be a ratio to 0. The interval is computed on log ratios, where a zero
/// counts as half a unit. Nothing is random.
pub fn paired_ratio(pairs: &[Pair], resolution: f64, confidence: f64) -> Option<Ratio> {
    let is_valid = |figure: f64| figure.is_finite() && figure >= 0.0;
    let are_valid = |pair: &Pair| is_valid(pair.reference) && is_valid(pair.compared);
    let pairs: Vec<Pair> = pairs.iter().copied().filter(are_valid).collect();
    let median = median_ratio(&pairs)?;
    if pairs.len() < 2 {
        return Some(Ratio { median, low: None, high: None });
    }
    if pairs.iter().all(|pair| pair.reference == pair.compared) {
        return Some(Ratio { median: 1.0, low: Some(1.0), high: Some(1.0) });
    }
    let resolution = if resolution.is_finite() { resolution.max(0.0) } else { 0.0 };
    let scale = Scale::of(&pairs, resolution);
    let logs = sorted(&pairs.iter().map(|&pair| scale.log_ratio(pair)).collect::<Vec<_>>());
    let interval = signed_rank_interval(&logs, confidence)
        .or_else(|| student_interval(&logs, confidence, scale.unit_log));
    let Some(interval) = interval else { return Some(Ratio { median, low: None, high: None }) };
    // Fractions of a unit are not visible: two figures one unit apart may be practically equal.
    let bound = |log: f64| log.exp().clamp(0.0, f64::MAX);
    let widening = scale.unit_log * WIDENING_UNITS;
    let low = bound(interval.low - widening).min(median);
    let high = bound(interval.high + widening).max(median);
    Some(Ratio { median, low: Some(low), high: Some(high) })
}

/// Indices of the outliers: samples with a modified z score above 3.5, from the median and the
/// median absolute deviation (Iglewicz and Hoaglin, 1993).
///
/// If more than half of the samples are equal, that deviation is 0 and the mean absolute deviation
/// replaces it; deviations below 1 % of the median are then no outliers. Non-finite samples are
/// ignored.
pub fn outliers(samples: &[f64]) -> Vec<usize> {
    let finite: Vec<f64> = samples.iter().copied().filter(|sample| sample.is_finite()).collect();
    let Some(middle) = median(&sorted(&finite)) else { return Vec::new() };
    let distances: Vec<f64> = finite.iter().map(|sample| (sample - middle).abs()).collect();
    let Some(deviation) = median(&sorted(&distances)) else { return Vec::new() };
    // Both deviations are scaled to the standard deviation of normal samples.
    let (spread, min_distance) = if deviation > 0.0 {
        (deviation / NORMAL_MEDIAN_DEVIATION, 0.0)
    } else {
        let mean = distances.iter().map(|distance| distance / distances.len() as f64).sum::<f64>();
        (mean * DEVIATION_PER_MEAN_DEVIATION, MIN_RELATIVE_DEVIATION * middle.abs())
    };
    let is_outlier = |sample: f64| {
        let distance = (sample - middle).abs();
        sample.is_finite() && distance > min_distance && distance > OUTLIER_SCORE * spread
    };
    samples.iter().enumerate().filter(|&(_, &sample)| is_outlier(sample)).map(|(index, _)| index).collect()
}

/// Confidence of each of `count` intervals that gives them a joint `confidence` (Bonferroni): seven
/// figures at a joint 99 % need 99.86 % each.
pub fn bonferroni(confidence: f64, count: usize) -> f64 {
    1.0 - (1.0 - clamp_confidence(confidence)) / count.max(1) as f64
}

/// Clamps a confidence to the range that has an interval.
fn clamp_confidence(confidence: f64) -> f64 {
    if confidence.is_finite() { confidence.clamp(0.0, MAX_CONFIDENCE) } else { DEFAULT_CONFIDENCE }
}

fn sorted(samples: &[f64]) -> Vec<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted
}

/// The median of sorted samples.
fn median(sorted: &[f64]) -> Option<f64> {
    let upper = *sorted.get(sorted.len() / 2)?;
    if sorted.len() % 2 == 1 {
        return Some(upper);
    }
    let lower = *sorted.get(sorted.len() / 2 - 1)?;
    // Halved first: the sum of two large figures may overflow.
    Some(if lower == upper { lower } else { lower / 2.0 + upper / 2.0 })
}

/// The median of the plain ratios, zeros included; `None` if it is not finite.
fn median_ratio(pairs: &[Pair]) -> Option<f64> {
    let ratio = |&Pair { reference, compared }: &Pair| {
        if reference == compared { 1.0 } else { compared / reference }
    };
    let ratios = sorted(&pairs.iter().map(ratio).collect::<Vec<_>>());
    let upper = *ratios.get(ratios.len() / 2)?;
    let lower = if ratios.len() % 2 == 1 { upper } else { *ratios.get(ratios.len() / 2 - 1)? };
    let middle = if lower == upper { lower } else { lower.sqrt() * upper.sqrt() };
    middle.is_finite().then_some(middle)
}

/// Parameters of the logarithmic scale for pairs.
struct Scale {
    /// Smaller figures are raised to this, so that zero has a logarithm.
    floor: f64,
    /// One unit of resolution as a difference of logarithms, at the smaller of the two medians.
    unit_log: f64,
}

impl Scale {
    fn of(pairs: &[Pair], resolution: f64) -> Self {
        let figures = || pairs.iter().flat_map(|pair| [pair.reference, pair.compared]);
        let smallest = figures().filter(|&figure| figure > 0.0).fold(f64::MAX, f64::min);
        let floor = if resolution > 0.0 { smallest.min(resolution / 2.0) } else { smallest / 2.0 };
        // Half of the smallest positive number would be 0.
        let floor = floor.max(f64::MIN_POSITIVE);
        let raised_median = |figures: Vec<f64>| median(&sorted(&figures)).unwrap_or(floor).max(floor);
        let reference = raised_median(pairs.iter().map(|pair| pair.reference).collect());
        let compared = raised_median(pairs.iter().map(|pair| pair.compared).collect());
        let unit_log = (resolution / reference.min(compared)).min(f64::MAX).ln_1p();
        Self { floor, unit_log }
    }

    fn log_ratio(&self, Pair { reference, compared }: Pair) -> f64 {
        if reference == compared {
            return 0.0;
        }
        compared.max(self.floor).ln() - reference.max(self.floor).ln()
    }
}

#[derive(Clone, Copy)]
struct Interval {
    low: f64,
    high: f64,
}

fn indices_by_block(samples: &[BlockSample]) -> Vec<Vec<usize>> {
    let mut members: std::collections::BTreeMap<u32, Vec<usize>> = std::collections::BTreeMap::new();
    for (index, sample) in samples.iter().enumerate() {
        members.entry(sample.block).or_default().push(index);
    }
    members.into_values().collect()
}

/// Percentile interval of the medians of resamples; each block is resampled to its own size. `None`
/// if every block has one sample: then nothing shows how much samples vary.
fn bootstrap(sorted: &[f64], blocks: &[Vec<usize>], confidence: f64, seed: u64) -> Option<Interval> {
    let count = sorted.len();
    if blocks.len() == count {
        return None;
    }
    let normal = Normal::standard();
    let students = StudentsT::new(0.0, 1.0, (count - 1) as f64).ok()?;
    let quantile = students.inverse_cdf(0.5 + clamp_confidence(confidence) / 2.0);
    // Hesterberg's expansion: by the ratio of Student's t to the normal distribution, and of the
    // deviation of samples to that of resamples.
    let tail = normal.cdf(-quantile * (count as f64 / (count - 1) as f64).sqrt());
    let resamples = (MAX_DRAWS / count).clamp(1, MAX_RESAMPLES);
    let mut random = fastrand::Rng::with_seed(seed);
    // How often each sample was drawn, which gives the median without sorting.
    let mut draw_counts = vec![0usize; count];
    let mut medians = Vec::with_capacity(resamples);
    for _ in 0..resamples {
        draw_counts.fill(0);
        for block in blocks {
            for _ in 0..block.len() {
                *draw_counts.get_mut(*block.get(random.usize(0..block.len()))?)? += 1;
            }
        }
        medians.push(median_of_drawn(sorted, &draw_counts)?);
    }
    medians.sort_unstable_by(f64::total_cmp);
    let rank = ((tail * resamples as f64) as usize).min((resamples - 1) / 2);
    Some(Interval { low: *medians.get(rank)?, high: *medians.get(resamples - 1 - rank)? })
}

/// The median of `sorted`, each sample repeated as often as `draw_counts` gives.
fn median_of_drawn(sorted: &[f64], draw_counts: &[usize]) -> Option<f64> {
    let (lower_rank, upper_rank) = ((sorted.len() - 1) / 2, sorted.len() / 2);
    let (mut cumulative_count, mut lower) = (0, None);
    for (sample, times) in sorted.iter().zip(draw_counts) {
        cumulative_count += times;
        if cumulative_count > lower_rank && lower.is_none() {
            lower = Some(*sample);
        }
        if cumulative_count > upper_rank {
            return median(&[lower?, *sample]);
        }
    }
    None
}

/// Interval of the median between two samples: the number of samples below it is binomial with p =
/// 1/2.
fn order_interval(sorted: &[f64], confidence: f64) -> Option<Interval> {
    let count = sorted.len() as f64;
    let quantile = Normal::standard().inverse_cdf(0.5 + clamp_confidence(confidence) / 2.0);
    let below = (count / 2.0 - 0.5 - quantile * count.sqrt() / 2.0).floor().max(0.0) as usize;
    let above = (sorted.len() - 1).saturating_sub(below);
    Some(Interval { low: *sorted.get(below)?, high: *sorted.get(above)? })
}

/// Interval of the centre of symmetry of `sorted` by Wilcoxon's signed ranks: bounded by two of all
/// pairwise means. `None` if there are too few samples to exclude the extreme means.
fn signed_rank_interval(sorted: &[f64], confidence: f64) -> Option<Interval> {
    let tail = (1.0 - clamp_confidence(confidence)) / 2.0;
    if sorted.len() > MAX_RANKED_PAIRS {
        return order_interval(sorted, confidence);
    }
    let excluded_count = signed_rank_quantile(sorted.len(), tail)?;
    let mut means: Vec<f64> = Vec::with_capacity(sorted.len() * (sorted.len() + 1) / 2);
    for (index, smaller) in sorted.iter().enumerate() {
        means.extend(sorted.iter().skip(index).map(|larger| smaller / 2.0 + larger / 2.0));
    }
    let high_index = means.len().checked_sub(excluded_count + 1)?;
    let low = *means.select_nth_unstable_by(excluded_count, f64::total_cmp).1;
    let high = *means.select_nth_unstable_by(high_index, f64::total_cmp).1;
    (low <= high).then_some(Interval { low, high })
}

/// Number of smallest pairwise means of `count` samples that the interval excludes, so that its
/// bound is passed with probability `tail` at most. `None` if it would exclude none: its bounds
/// would be single samples.
fn signed_rank_quantile(count: usize, tail: f64) -> Option<usize> {
    let ranks = count * (count + 1) / 2;
    if count > MAX_EXACT_PAIRS {
        let mean = ranks as f64 / 2.0;
        let deviation = (ranks as f64 * (2 * count + 1) as f64 / 12.0).sqrt();
        let quantile = Normal::standard().inverse_cdf(1.0 - tail);
        return Some((mean - 0.5 - quantile * deviation).floor().clamp(0.0, ranks as f64) as usize);
    }
    // Probability of each rank sum, built up rank by rank: each rank is in the sum or not.
    let mut probabilities = vec![0.0; ranks + 1];
    *probabilities.first_mut()? = 1.0;
    for rank in 1..=count {
        for sum in (0..=ranks).rev() {
            let with_rank = sum.checked_sub(rank).and_then(|sum| probabilities.get(sum)).copied();
            if let Some(probability) = probabilities.get_mut(sum) {
                *probability = (*probability + with_rank.unwrap_or(0.0)) / 2.0;
            }
        }
    }
    let mut cumulative = 0.0;
    let rejected_sums = probabilities.iter().take_while(|&&probability| {
        cumulative += probability;
        cumulative <= tail
    });
    // The largest rejected sum is the number of means below the bound.
    rejected_sums.count().checked_sub(1).filter(|&excluded_count| excluded_count > 0)
}

/// Student's interval of the mean of `logs`. Their variance is at least that of rounding to units:
/// figures that agree to the unit need not be equal.
fn student_interval(logs: &[f64], confidence: f64, unit_log: f64) -> Option<Interval> {
    let count = logs.len() as f64;
    let mean = logs.iter().map(|log| log / count).sum::<f64>();
    let variance = logs.iter().map(|log| (log - mean).powi(2) / (count - 1.0)).sum::<f64>();
    // Variance of the difference of two figures, each with a uniform rounding error.
    let rounding = unit_log.powi(2) / 6.0;
    let quantile =
        StudentsT::new(0.0, 1.0, count - 1.0).ok()?.inverse_cdf(0.5 + clamp_confidence(confidence) / 2.0);
    let margin = quantile * (variance.max(rounding) / count).sqrt();
    (mean.is_finite() && margin.is_finite()).then_some(Interval { low: mean - margin, high: mean + margin })
}

#[cfg(test)]
mod tests;
