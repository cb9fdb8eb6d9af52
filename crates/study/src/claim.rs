//! Judges claims on measured figures, and finds claims that cannot fail.

use std::sync::Arc;

use serde::Serialize;

use super::data::Measured;
use super::expression::{Evaluated, EvaluationInput, EvaluationOutcome, Expression, Read};
use super::file::Claim;
use super::matrix::{Key, Matrix};
use super::metric::Metric;
use super::syntax::ExpressionError;

/// Verdict on a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It holds.
    Holds,
    /// It does not hold.
    Fails,
    /// Figures that it reads were not measured.
    NotRun,
}

/// A judged claim.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Judged {
    /// Its id.
    pub id: String,
    /// Its text.
    pub text: String,
    /// The published figures.
    pub published: serde_json::Value,
    /// The figures that it read.
    pub measured: Vec<Read>,
    /// The verdict.
    pub verdict: Verdict,
    /// Why it fails or was not run, or for which choices it was not run; null if it holds without
    /// exception.
    pub reason: Option<String>,
    /// Note by its author.
    pub note: Option<String>,
    /// Permitted deviation from a published figure.
    pub tolerance: Option<f64>,
    /// Justification of the tolerance.
    pub why: Option<String>,
    /// The expression.
    pub holds: String,
}

/// Variables available in the expression of a claim.
pub const VARIABLES: [&str; 2] = ["published", "tolerance"];
/// Reason of a claim that fails without further explanation.
pub const REASON_FAILS: &str = "what was measured says otherwise";
/// Maximum number of combinations named in a reason.
const MAX_NAMED: usize = 3;

/// Parses the expression of a claim.
///
/// # Errors
/// The syntax errors.
pub fn parse(claim: &Claim, matrix: &Matrix) -> Result<Expression, Vec<ExpressionError>> {
    let axis_size = |name: &str| -> Option<usize> {
        if name == super::file::SUBJECT {
            return Some(matrix.study.subjects.len());
        }
        matrix.axes.iter().find(|axis| axis.name == name).map(|axis| axis.choices.len())
    };
    Expression::parse(&claim.holds.value, &axis_size, &VARIABLES)
}

/// Judges `claim` on the measured data, for each combination of the axes that it does not name.
pub fn judge(claim: &Claim, matrix: &Arc<Matrix>, measured: &Arc<dyn Measured>) -> Judged {
    let (verdict, reason, reads) = verdict(claim, matrix, measured);
    Judged {
        id: claim.id.clone(),
        text: claim.text.clone(),
        published: claim.published.clone(),
        measured: reads,
        verdict,
        reason,
        note: claim.note.clone(),
        tolerance: claim.tolerance,
        why: claim.why.clone(),
        holds: claim.holds.value.clone(),
    }
}

fn verdict(
    claim: &Claim,
    matrix: &Arc<Matrix>,
    measured: &Arc<dyn Measured>,
) -> (Verdict, Option<String>, Vec<Read>) {
    let not_run = |why: String| (Verdict::NotRun, Some(why), Vec::new());
    let expression = match parse(claim, matrix) {
        Ok(expression) => expression,
        Err(wrong) => {
            let lines: Vec<String> = wrong.into_iter().map(|wrong| wrong.text).collect();
            return not_run(lines.join("; "));
        }
    };
    let names = |axis: &str| expression.scan.axes.contains(axis);
    let meant = matrix.relevant_subjects(&expression.scan.subjects, expression.scan.metrics.iter());
    let groups = match matrix.groups(&names, &meant) {
        Ok(groups) => groups,
        Err(why) => return not_run(why),
    };
    let (mut holds, mut fails, mut missing) = (0usize, Vec::new(), Vec::new());
    let mut reads: Vec<Read> = Vec::new();
    for group in &groups {
        let input = EvaluationInput {
            matrix: matrix.clone(),
            measured: measured.clone(),
            fixed: group.clone(),
            published: claim.published.clone(),
            tolerance: claim.tolerance,
        };
        let Evaluated { outcome, reads: found, .. } = expression.evaluate(&input);
        let name = matrix.group_name(group);
        match outcome {
            EvaluationOutcome::Answer(_) if found.is_empty() => {
                missing.push("it reads no cell of this run".to_owned())
            }
            EvaluationOutcome::Answer(true) => holds += 1,
            EvaluationOutcome::Answer(false) => fails.push(name),
            EvaluationOutcome::Missing(why) | EvaluationOutcome::Wrong(why) => missing.push(why),
        }
        reads.extend(found);
    }
    reads.dedup();
    let several = groups.len() > 1;
    let left_out = (!missing.is_empty())
        .then(|| format!("not run for {} of {}: {}", missing.len(), groups.len(), list(&missing)));
    let from: Vec<String> = reads.iter().filter_map(|read| read.from.clone()).collect();
    let from = (!from.is_empty()).then(|| format!("from {}", list(&from)));
    let left_out = joined([left_out, from]);
    if !fails.is_empty() {
        let reason =
            several.then(|| format!("not for {} of {}: {}", fails.len(), groups.len(), list(&fails)));
        let reason = reason.unwrap_or_else(|| REASON_FAILS.to_owned());
        return (Verdict::Fails, joined([Some(reason), left_out]), reads);
    }
    match (holds, missing.first()) {
        (0, Some(_)) => (Verdict::NotRun, Some(list(&missing)), reads),
        (0, None) => (Verdict::NotRun, Some(matrix.why_no_cell(&meant)), reads),
        _ => (Verdict::Holds, left_out, reads),
    }
}

/// Joins the reasons that are present.
fn joined(parts: [Option<String>; 2]) -> Option<String> {
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// The first items, without duplicates.
fn list(items: &[String]) -> String {
    let mut once: Vec<&String> = Vec::new();
    for item in items {
        if !once.contains(&item) {
            once.push(item);
        }
    }
    let shown: Vec<&str> = once.iter().take(MAX_NAMED).map(|item| item.as_str()).collect();
    let more = once.len().saturating_sub(MAX_NAMED);
    let shown = shown.join("; ");
    if more > 0 { format!("{shown}; and {more} more") } else { shown }
}

/// Maximum number of random data sets that a claim is tried on.
const MAX_TRIES: u64 = 1_000;
/// Maximum number of steps for that (some seconds). Steps instead of time make the result
/// independent of the machine.
const MAX_STEPS: u64 = 1_000_000;
/// Reading a figure counts as this many steps.
const READ_STEPS: u64 = 50;
/// With fewer answers that are all equal, the result is unknown.
const MIN_ANSWERS: u64 = 40;
/// A figure that is missing in this many data sets does not exist.
const MAX_MISSING: u64 = 40;

/// Result of trying a claim on random data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TryOutcome {
    /// It held for some data and not for other data.
    CanFail,
    /// It held for all data.
    AlwaysHolds,
    /// It held for no data.
    NeverHolds,
    /// It took too many steps for a result.
    NotKnown,
    /// It cannot be evaluated.
    Wrong(String),
}

/// Tries a claim on random data: a claim that holds whatever is measured has no content. Adds the
/// steps taken to `steps`.
pub fn try_out(claim: &Claim, expression: &Expression, matrix: &Arc<Matrix>, steps: &mut u64) -> TryOutcome {
    let names = |axis: &str| expression.scan.axes.contains(axis);
    let meant = matrix.relevant_subjects(&expression.scan.subjects, expression.scan.metrics.iter());
    let groups = match matrix.groups(&names, &meant) {
        Ok(groups) => groups,
        Err(why) => return TryOutcome::Wrong(format!("it {why}")),
    };
    let pool = Arc::new(candidate_numbers(claim, expression));
    let texts = Arc::new(texts(claim, expression));
    let mut answers = Answers::default();
    for group in groups.iter().take(20) {
        for seed in 0..MAX_TRIES {
            let random_data =
                RandomData { seed, pool: pool.clone(), texts: texts.clone(), matrix: matrix.clone() };
            let input = EvaluationInput {
                matrix: matrix.clone(),
                measured: Arc::new(random_data),
                fixed: group.clone(),
                published: claim.published.clone(),
                tolerance: claim.tolerance,
            };
            let Evaluated { outcome, count, .. } = expression.evaluate(&input);
            let new_steps = expression.scan.steps + count * READ_STEPS;
            answers.steps += new_steps;
            *steps += new_steps;
            if let Some(tried) = answers.add_answer(outcome) {
                return tried;
            }
            // Several conditions are rarely met together by chance: having failed is enough.
            if answers.failed && !expression.is_one_comparison() {
                return TryOutcome::CanFail;
            }
            if answers.is_over() || seed >= MAX_MISSING && !answers.has_answered() {
                break;
            }
        }
        if answers.has_answered() || answers.is_over() {
            break;
        }
    }
    answers.end()
}

/// The answers of a claim so far.
#[derive(Default)]
struct Answers {
    answers: u64,
    steps: u64,
    held: bool,
    failed: bool,
    why: Option<String>,
}

impl Answers {
    fn has_answered(&self) -> bool {
        self.held || self.failed
    }

    /// Adds an answer; returns the result if it is final.
    fn add_answer(&mut self, outcome: EvaluationOutcome) -> Option<TryOutcome> {
        self.answers += u64::from(matches!(outcome, EvaluationOutcome::Answer(_)));
        match outcome {
            EvaluationOutcome::Answer(true) => self.held = true,
            EvaluationOutcome::Answer(false) => self.failed = true,
            // A ratio to a figure that happens to be 0 and an excluded cell both end up here.
            EvaluationOutcome::Missing(text) => drop(self.why.get_or_insert(text)),
            // For example a division by a measured 0, which is not the fault of the claim.
            EvaluationOutcome::Wrong(_) if self.has_answered() => {}
            EvaluationOutcome::Wrong(text) => return Some(TryOutcome::Wrong(text)),
        }
        (self.held && self.failed).then_some(TryOutcome::CanFail)
    }

    fn is_over(&self) -> bool {
        self.steps > MAX_STEPS
    }

    fn end(self) -> TryOutcome {
        match (self.held, self.failed) {
            (false, false) if self.is_over() => TryOutcome::Wrong(format!(
                "it takes more than {MAX_STEPS} steps to judge: shorter lists, or name more axes"
            )),
            (true, false) | (false, true) if self.is_over() && self.answers < MIN_ANSWERS => {
                TryOutcome::NotKnown
            }
            (true, false) => TryOutcome::AlwaysHolds,
            (false, true) => TryOutcome::NeverHolds,
            (true, true) => TryOutcome::CanFail,
            (false, false) => {
                TryOutcome::Wrong(self.why.unwrap_or_else(|| "it reads no cell that there is".to_owned()))
            }
        }
    }
}

/// Numbers that may decide a claim: those in its expression, and the published ones.
fn candidate_numbers(claim: &Claim, expression: &Expression) -> Vec<f64> {
    let mut pool = expression.scan.numbers.clone();
    let mut waiting = vec![&claim.published];
    while let Some(value) = waiting.pop() {
        match value {
            serde_json::Value::Number(number) => pool.extend(number.as_f64()),
            serde_json::Value::Array(items) => waiting.extend(items),
            serde_json::Value::Object(items) => waiting.extend(items.values()),
            _ => {}
        }
    }
    pool.truncate(200);
    pool.extend([1.0, 4096.0]);
    pool
}

/// Texts that may decide a claim.
fn texts(claim: &Claim, expression: &Expression) -> Vec<String> {
    let mut texts = vec![String::new(), "something else".to_owned()];
    texts.extend(expression.scan.texts.iter().cloned());
    let mut waiting = vec![&claim.published];
    while let Some(value) = waiting.pop() {
        match value {
            serde_json::Value::String(text) => texts.push(text.clone()),
            serde_json::Value::Array(items) => waiting.extend(items),
            serde_json::Value::Object(items) => waiting.extend(items.values()),
            _ => {}
        }
    }
    texts
}

/// Number of samples in a cell; enough for an interval of the median.
const SAMPLES: usize = 9;

/// Random measurements drawn by a seed.
struct RandomData {
    seed: u64,
    pool: Arc<Vec<f64>>,
    texts: Arc<Vec<String>>,
    matrix: Arc<Matrix>,
}

impl Measured for RandomData {
    fn samples(&self, key: &Key, metric: &str) -> Result<Vec<Option<f64>>, String> {
        let mut whole = fastrand::Rng::with_seed(self.seed);
        let mut own = fastrand::Rng::with_seed(self.seed ^ hash(&(key, metric)));
        let from = |rng: &mut fastrand::Rng| rng.choice(self.pool.iter()).copied().unwrap_or(1.0).abs();
        let value = match self.seed % 8 {
            0 => 10f64.powf(own.f64() * 12.0),
            1 => from(&mut whole),
            2 => from(&mut own) * [0.5, 0.999, 1.0, 1.001, 2.0][own.usize(0..5)],
            3 => from(&mut whole) * if own.bool() { from(&mut own) } else { 1.0 },
            4 => 0.0,
            // Growing or shrinking along the axes.
            5 => {
                let step = if whole.bool() { 2.0f64 } else { 0.5 };
                let place: usize = key.choices.iter().flatten().sum::<usize>() + key.subject;
                1e6 * step.powi(i32::try_from(place.min(60)).unwrap_or(0))
            }
            // Close to the number of the choice.
            6 => {
                let choice = self.matrix.choices(key).find_map(|(_, choice)| choice.number);
                choice.unwrap_or(1.0).abs() * [0.9, 1.0, 1.1][own.usize(0..3)]
            }
            _ => 1e6 * own.f64(),
        };
        // Counters of the kernel are never negative; other figures may be.
        let may_be_negative = matches!(
            self.matrix.study.metrics.get(metric),
            Some(Metric::Derived(_) | Metric::Json(_) | Metric::End)
        );
        let value = if may_be_negative && own.u8(0..4) == 0 { -value } else { value };
        // In half of the data sets the runs of a cell differ, for claims about intervals and
        // extremes.
        let spread =
            if (self.seed / 8).is_multiple_of(2) { 0.0 } else { [0.001, 0.05, 0.5, 3.0][whole.usize(0..4)] };
        let sample = |_| Some(value * (1.0 + spread * own.f64()));
        Ok((0..SAMPLES).map(sample).collect())
    }

    fn text(&self, key: &Key, metric: &str) -> Result<String, String> {
        // In half of the data sets all cells have the same text.
        let own = if self.seed.is_multiple_of(2) { 0 } else { hash(&(key, metric)) };
        let mut random = fastrand::Rng::with_seed(self.seed ^ own);
        Ok(random.choice(self.texts.iter()).cloned().unwrap_or_default())
    }
}

fn hash(what: &impl std::hash::Hash) -> u64 {
    use std::hash::{DefaultHasher, Hasher};
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}
