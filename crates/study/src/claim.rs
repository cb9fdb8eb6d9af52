//! Judges claims on measured figures, and finds claims that cannot fail.

use std::sync::Arc;

use serde::Serialize;

use super::data::MeasuredData;
use super::expression::{
    Evaluation, EvaluationInput, EvaluationOutcome, Expression, FigureRead, MAX_LISTED_READS,
};
use super::file::Claim;
use super::matrix::Matrix;
use super::random_data::{Candidates, RandomData};
use super::syntax::ExpressionError;
use strandline_report::units::thousands;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Holds,
    Fails,
    /// Figures that it reads were not measured.
    NotRun,
}

/// A claim with its verdict, as documents have it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JudgedClaim {
    pub id: String,
    pub text: String,
    pub published: serde_json::Value,
    pub measured: Vec<FigureRead>,
    pub verdict: Verdict,
    /// Why it fails or was not run, or for which choices it was not run; null if it holds without
    /// exception.
    pub reason: Option<String>,
    pub note: Option<String>,
    /// Permitted deviation from a published figure.
    pub tolerance: Option<f64>,
    /// Justification of the tolerance.
    #[serde(rename = "why")]
    pub tolerance_reason: Option<String>,
    pub holds: String,
}

/// Variables available in the expression of a claim.
pub const VARIABLES: [&str; 2] = ["published", "tolerance"];
/// Reason of a claim that fails without further explanation.
pub const REASON_FAILS: &str = "the measured figures contradict it";
/// Maximum number of combinations named in a reason.
const MAX_LISTED_ITEMS: usize = 3;
/// Maximum number of random data sets that a claim is tried on.
const MAX_TRIES: u64 = 1_000;
/// Maximum number of groups that a claim is tried on.
const MAX_TRIED_GROUPS: usize = 20;
/// Maximum number of evaluation steps per claim, some seconds. Steps and not time, so that the
/// result does not depend on the machine.
const MAX_STEPS: u64 = 1_000_000;
/// Reading a figure counts as this many steps.
const READ_STEPS: u64 = 50;
/// If the steps are used up after fewer answers than this, all equal, the result is unknown.
const MIN_ANSWERS: u64 = 40;
/// A group that gives no answer on this many data sets is not tried further.
const MAX_MISSING: u64 = 40;

/// Parses the expression of a claim.
///
/// # Errors
/// What is wrong in it, with positions.
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
pub fn judge(claim: &Claim, matrix: &Arc<Matrix>, measured: &Arc<dyn MeasuredData>) -> JudgedClaim {
    let Judgement { verdict, reason, reads } = evaluate(claim, matrix, measured);
    JudgedClaim {
        id: claim.id.clone(),
        text: claim.text.clone(),
        published: claim.published.clone(),
        measured: reads,
        verdict,
        reason,
        note: claim.note.clone(),
        tolerance: claim.tolerance,
        tolerance_reason: claim.tolerance_reason.clone(),
        holds: claim.holds.value.clone(),
    }
}

/// The result of evaluating a claim.
struct Judgement {
    verdict: Verdict,
    /// As in [`JudgedClaim`].
    reason: Option<String>,
    reads: Vec<FigureRead>,
}

impl Judgement {
    fn not_run(reason: String) -> Self {
        Self { verdict: Verdict::NotRun, reason: Some(reason), reads: Vec::new() }
    }
}

/// Evaluates a claim for each group; returns the verdict, the reason, and the figures read.
fn evaluate(claim: &Claim, matrix: &Arc<Matrix>, measured: &Arc<dyn MeasuredData>) -> Judgement {
    let expression = match parse(claim, matrix) {
        Ok(expression) => expression,
        Err(errors) => {
            let lines: Vec<String> = errors.into_iter().map(|error| error.text).collect();
            return Judgement::not_run(lines.join("; "));
        }
    };
    let is_named = |axis: &str| expression.scan.axes.contains(axis);
    let subjects = matrix.relevant_subjects(&expression.scan.subjects, expression.scan.metrics.iter());
    let groups = match matrix.groups(&is_named, &subjects) {
        Ok(groups) => groups,
        Err(reason) => return Judgement::not_run(reason),
    };
    if groups.is_empty() {
        return Judgement::not_run(matrix.why_no_cell(&subjects));
    }
    let mut outcomes = GroupOutcomes::default();
    for group in &groups {
        let input = EvaluationInput {
            matrix: matrix.clone(),
            measured: measured.clone(),
            fixed: group.clone(),
            published: claim.published.clone(),
            tolerance: claim.tolerance,
        };
        outcomes.add(matrix.group_name(group), expression.evaluate(&input));
    }
    outcomes.into_judgement()
}

#[derive(Default)]
struct GroupOutcomes {
    /// Number of groups for which it holds.
    held: usize,
    /// Names of the groups for which it does not hold.
    failed_groups: Vec<String>,
    /// For each other group, why it was not run.
    missing: Vec<String>,
    reads: Vec<FigureRead>,
    /// Whether `reads` lacks some figures.
    has_unlisted_reads: bool,
    counted_runs: Vec<String>,
}

impl GroupOutcomes {
    fn add(&mut self, group_name: String, Evaluation { outcome, log }: Evaluation) {
        match outcome {
            EvaluationOutcome::Answer(_) if log.reads.is_empty() => {
                self.missing.push("it reads no cell of this run".to_owned());
            }
            EvaluationOutcome::Answer(true) => self.held += 1,
            EvaluationOutcome::Answer(false) => self.failed_groups.push(group_name),
            EvaluationOutcome::Missing(reason) | EvaluationOutcome::Wrong(reason) => {
                self.missing.push(reason);
            }
        }
        self.reads.extend(log.reads);
        self.has_unlisted_reads |= log.has_unlisted_reads;
        self.counted_runs.extend(log.counted_runs);
    }

    /// Returns the verdict on all groups (at least one) and the text of its reason.
    fn into_judgement(self) -> Judgement {
        let Self { held, failed_groups, missing, mut reads, has_unlisted_reads, counted_runs } = self;
        let groups = held + failed_groups.len() + missing.len();
        reads.dedup();
        let not_run = (!missing.is_empty())
            .then(|| format!("not run for {} of {groups}: {}", missing.len(), first_items(&missing)));
        let partial_runs = (!counted_runs.is_empty()).then(|| format!("from {}", first_items(&counted_runs)));
        let unlisted = has_unlisted_reads
            .then(|| format!("it reads more figures than the {MAX_LISTED_READS} that are listed"));
        let exceptions = join_present([not_run, partial_runs, unlisted]);
        let (verdict, reason) = if !failed_groups.is_empty() {
            let failure = if groups > 1 {
                format!("not for {} of {groups}: {}", failed_groups.len(), first_items(&failed_groups))
            } else {
                REASON_FAILS.to_owned()
            };
            (Verdict::Fails, join_present([Some(failure), exceptions]))
        } else if held == 0 {
            (Verdict::NotRun, Some(first_items(&missing)))
        } else {
            (Verdict::Holds, exceptions)
        };
        Judgement { verdict, reason, reads }
    }
}

fn join_present(parts: impl IntoIterator<Item = Option<String>>) -> Option<String> {
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// Joins the first `MAX_LISTED_ITEMS` distinct items, and the number of the others.
fn first_items(items: &[String]) -> String {
    let mut distinct: Vec<&str> = Vec::new();
    for item in items {
        if !distinct.contains(&item.as_str()) {
            distinct.push(item);
        }
    }
    let unlisted = distinct.len().saturating_sub(MAX_LISTED_ITEMS);
    distinct.truncate(MAX_LISTED_ITEMS);
    let list = distinct.join("; ");
    if unlisted > 0 { format!("{list}; and {unlisted} more") } else { list }
}

/// Result of trying a claim on random data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TryOutcome {
    /// It held for some data and not for other data.
    CanFail,
    /// It held for all data.
    AlwaysHolds,
    /// It held for no data.
    NeverHolds,
    /// The steps were used up before `MIN_ANSWERS` answers.
    Unknown,
    /// It cannot be judged; holds the reason.
    Wrong(String),
}

/// Tries a claim on random data: a claim that holds whatever is measured has no content. Adds the
/// number of steps taken to `steps`.
pub fn try_on_random_data(
    claim: &Claim,
    expression: &Expression,
    matrix: &Arc<Matrix>,
    steps: &mut u64,
) -> TryOutcome {
    let is_named = |axis: &str| expression.scan.axes.contains(axis);
    let subjects = matrix.relevant_subjects(&expression.scan.subjects, expression.scan.metrics.iter());
    let groups = match matrix.groups(&is_named, &subjects) {
        Ok(groups) => groups,
        Err(reason) => return TryOutcome::Wrong(reason),
    };
    let candidates = Arc::new(Candidates::of(claim, expression));
    let mut answers = Answers::default();
    for group in groups.iter().take(MAX_TRIED_GROUPS) {
        for seed in 0..MAX_TRIES {
            let random_data = RandomData { seed, candidates: candidates.clone(), matrix: matrix.clone() };
            let input = EvaluationInput {
                matrix: matrix.clone(),
                measured: Arc::new(random_data),
                fixed: group.clone(),
                published: claim.published.clone(),
                tolerance: claim.tolerance,
            };
            let Evaluation { outcome, log } = expression.evaluate(&input);
            let new_steps = expression.scan.steps + log.read_count * READ_STEPS;
            answers.steps += new_steps;
            *steps += new_steps;
            if let Some(outcome) = answers.add_answer(outcome) {
                return outcome;
            }
            // Several conditions are rarely met together by chance: having failed is enough.
            if answers.has_failed && !expression.is_one_comparison() {
                return TryOutcome::CanFail;
            }
            if answers.is_over_budget() || seed >= MAX_MISSING && !answers.has_answered() {
                break;
            }
        }
        if answers.has_answered() || answers.is_over_budget() {
            break;
        }
    }
    answers.into_outcome()
}

#[derive(Default)]
struct Answers {
    count: u64,
    steps: u64,
    has_held: bool,
    /// Whether it did not hold for some data.
    has_failed: bool,
    /// The first reason for which a figure was missing.
    first_missing: Option<String>,
}

impl Answers {
    fn has_answered(&self) -> bool {
        self.has_held || self.has_failed
    }

    /// Adds an answer; returns the result if it is final.
    fn add_answer(&mut self, outcome: EvaluationOutcome) -> Option<TryOutcome> {
        self.count += u64::from(matches!(outcome, EvaluationOutcome::Answer(_)));
        match outcome {
            EvaluationOutcome::Answer(true) => self.has_held = true,
            EvaluationOutcome::Answer(false) => self.has_failed = true,
            // A ratio to a figure that happens to be 0 and an excluded cell both end up here.
            EvaluationOutcome::Missing(text) => {
                self.first_missing.get_or_insert(text);
            }
            // For example a division by a measured 0, which is not the fault of the claim.
            EvaluationOutcome::Wrong(_) if self.has_answered() => {}
            EvaluationOutcome::Wrong(text) => return Some(TryOutcome::Wrong(text)),
        }
        (self.has_held && self.has_failed).then_some(TryOutcome::CanFail)
    }

    fn is_over_budget(&self) -> bool {
        self.steps > MAX_STEPS
    }

    fn into_outcome(self) -> TryOutcome {
        match (self.has_held, self.has_failed) {
            (false, false) if self.is_over_budget() => TryOutcome::Wrong(format!(
                "it takes more than {} steps to judge: shorten its lists, or name more axes",
                thousands(MAX_STEPS)
            )),
            (true, false) | (false, true) if self.is_over_budget() && self.count < MIN_ANSWERS => {
                TryOutcome::Unknown
            }
            (true, false) => TryOutcome::AlwaysHolds,
            (false, true) => TryOutcome::NeverHolds,
            (true, true) => TryOutcome::CanFail,
            (false, false) => TryOutcome::Wrong(
                self.first_missing.unwrap_or_else(|| "it reads no existing cell".to_owned()),
            ),
        }
    }
}
