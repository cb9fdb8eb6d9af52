//! Random data on which claims are tried, to find those that cannot fail.

use std::sync::Arc;

use super::data::MeasuredData;
use super::expression::Expression;
use super::file::Claim;
use super::matrix::{Key, Matrix};
use super::metric::Metric;

/// Maximum number of candidate numbers from a claim; it is not tried on further ones.
const MAX_CLAIM_NUMBERS: usize = 200;
/// Maximum number of times that a random figure is doubled or halved along the axes.
const MAX_DOUBLINGS: usize = 60;
/// Number of samples in a random cell; enough for an interval of the median.
const SAMPLES: usize = 9;
/// Numbers tried for every claim, besides its own: one, and a page in bytes.
const COMMON_NUMBERS: [f64; 2] = [1.0, 4096.0];
/// Factors that put a figure close to a number of the claim, on either side of it.
const NEAR_FACTORS: [f64; 5] = [0.5, 0.999, 1.0, 1.001, 2.0];
/// The same for the number of a choice.
const NEAR_CHOICE_FACTORS: [f64; 3] = [0.9, 1.0, 1.1];
/// Relative differences between the runs of a cell.
const SPREADS: [f64; 4] = [0.001, 0.05, 0.5, 3.0];
/// Largest figure of data without a pattern; data that double along the axes begin with it.
const MAX_RANDOM: f64 = 1e6;
/// Decimal digits of the largest figure of data of any magnitude.
const MAX_RANDOM_DIGITS: f64 = 12.0;
/// Number of kinds of random data.
const DATA_KINDS: u64 = 8;
/// One figure of this many may be negative, if it can be at all.
const NEGATIVE_EVERY: u8 = 4;

/// Numbers and texts that may decide a claim.
pub struct Candidates {
    numbers: Vec<f64>,
    texts: Vec<String>,
}

impl Candidates {
    /// Those of the expression of `claim`, and its published ones.
    pub fn of(claim: &Claim, expression: &Expression) -> Self {
        let mut numbers = expression.scan.numbers.clone();
        let mut texts = vec![String::new(), "something else".to_owned()];
        texts.extend(expression.scan.texts.iter().cloned());
        let mut waiting = vec![&claim.published];
        while let Some(value) = waiting.pop() {
            match value {
                serde_json::Value::Number(number) => numbers.extend(number.as_f64()),
                serde_json::Value::String(text) => texts.push(text.clone()),
                serde_json::Value::Array(items) => waiting.extend(items),
                serde_json::Value::Object(items) => waiting.extend(items.values()),
                serde_json::Value::Bool(_) | serde_json::Value::Null => {}
            }
        }
        numbers.truncate(MAX_CLAIM_NUMBERS);
        numbers.extend(COMMON_NUMBERS);
        Self { numbers, texts }
    }
}

/// Random measurements drawn by a seed.
pub struct RandomData {
    /// Distinguishes the data sets.
    pub seed: u64,
    pub candidates: Arc<Candidates>,
    pub matrix: Arc<Matrix>,
}

impl MeasuredData for RandomData {
    fn samples(&self, key: &Key, metric: &str) -> Result<Vec<Option<f64>>, String> {
        // Gives the same numbers to all cells of a data set.
        let mut study_rng = fastrand::Rng::with_seed(self.seed);
        // Gives each cell its own numbers.
        let mut cell_rng = fastrand::Rng::with_seed(self.seed ^ hash(&(key, metric)));
        let pick = |rng: &mut fastrand::Rng| one_of(rng, &self.candidates.numbers).abs();
        let value = match self.seed % DATA_KINDS {
            // Any magnitude.
            0 => 10f64.powf(cell_rng.f64() * MAX_RANDOM_DIGITS),
            // One candidate number in all cells.
            1 => pick(&mut study_rng),
            // Close to a candidate number.
            2 => pick(&mut cell_rng) * one_of(&mut cell_rng, &NEAR_FACTORS),
            // One candidate number in all cells, multiplied by another one in half of them.
            3 => pick(&mut study_rng) * if cell_rng.bool() { pick(&mut cell_rng) } else { 1.0 },
            // All zero.
            4 => 0.0,
            // Growing or shrinking along the axes.
            5 => {
                let step = if study_rng.bool() { 2.0f64 } else { 0.5 };
                let steps: usize = key.choices.iter().flatten().sum::<usize>() + key.subject;
                MAX_RANDOM * step.powi(i32::try_from(steps.min(MAX_DOUBLINGS)).unwrap_or(0))
            }
            // Close to the number of the choice.
            6 => {
                let choice = self.matrix.choices(key).find_map(|(_, choice)| choice.number);
                choice.unwrap_or(1.0).abs() * one_of(&mut cell_rng, &NEAR_CHOICE_FACTORS)
            }
            // Any number up to a million.
            _ => MAX_RANDOM * cell_rng.f64(),
        };
        // Counters of the kernel are never negative; other figures may be.
        let may_be_negative = matches!(
            self.matrix.study.metrics.get(metric),
            Some(Metric::Derived(_) | Metric::Json(_) | Metric::End)
        );
        let value = if may_be_negative && cell_rng.u8(0..NEGATIVE_EVERY) == 0 { -value } else { value };
        // In half of the data sets the runs of a cell differ, for claims about intervals and
        // extremes.
        let is_spread = !(self.seed / DATA_KINDS).is_multiple_of(2);
        let spread = if is_spread { one_of(&mut study_rng, &SPREADS) } else { 0.0 };
        let sample = |_| Some(value * (1.0 + spread * cell_rng.f64()));
        Ok((0..SAMPLES).map(sample).collect())
    }

    fn text(&self, key: &Key, metric: &str) -> Result<String, String> {
        // In half of the data sets all cells have the same text.
        let cell_hash = if self.seed.is_multiple_of(2) { 0 } else { hash(&(key, metric)) };
        let mut rng = fastrand::Rng::with_seed(self.seed ^ cell_hash);
        Ok(rng.choice(self.candidates.texts.iter()).cloned().unwrap_or_default())
    }
}

/// One of `numbers`, which is not empty.
fn one_of(rng: &mut fastrand::Rng, numbers: &[f64]) -> f64 {
    rng.choice(numbers.iter()).copied().unwrap_or(1.0)
}

fn hash(value: &impl std::hash::Hash) -> u64 {
    use std::hash::{DefaultHasher, Hasher};
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
