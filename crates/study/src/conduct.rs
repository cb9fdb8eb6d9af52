//! Runs a study in its lab, and judges its claims.

use std::path::Path;
use std::sync::Arc;

use super::caveats::caveats;
use super::cell;
use super::chosen::{ChosenStudy, OpenedLab, StudyOptions};
use super::claim::{JudgedClaim, Verdict, judge};
use super::data::{Data, MeasuredData};
use super::matrix::{Key, Matrix};
use super::needs::{self, CheckedCells};
use super::pages::study::StudyInput;
use super::run::{self, CACHEGRIND_ROUNDS, PlanRuns, StudyJudge};
use strandline_lab::cell::{LabCaveat, Subject};
use strandline_lab::compare::cachegrind_subjects;
use strandline_lab::engine::{self, Plan, Progress, Results};
use strandline_lab::executor::{NoResult, StopReason};
use strandline_lab::setup::LabSetup;
use strandline_lab::user::ProgressDisplay;

/// A study that was run and judged.
pub struct StudyRun {
    /// The lab, whose journal is kept until everything is shown.
    pub lab: LabSetup,
    matrix: Matrix,
    data: Data,
    judged: Vec<JudgedClaim>,
    caveats: Vec<LabCaveat>,
}

impl StudyRun {
    /// The data for the report.
    pub fn input(&self) -> StudyInput<'_> {
        StudyInput {
            matrix: &self.matrix,
            data: &self.data,
            claims: &self.judged,
            caveats: self.caveats.clone(),
            nodes: self.lab.nodes(),
        }
    }

    /// Whether a claim fails.
    pub fn fails(&self) -> bool {
        self.judged.iter().any(|claim| claim.verdict == Verdict::Fails)
    }
}

/// Runs a study and judges its claims.
///
/// # Errors
/// Why there is no result.
pub fn run_and_judge(
    chosen: &ChosenStudy,
    options: &StudyOptions,
    progress: &dyn ProgressDisplay,
) -> Result<StudyRun, NoResult> {
    let matrix = &chosen.matrix;
    let mut cells = needs::check_cells(matrix).map_err(NoResult::Failed)?;
    let OpenedLab { mut lab, build_root } = chosen.open(options)?;
    if let Some(executor) = lab.executors.first_mut() {
        let place = run::BuildPlace { root: &build_root, is_resumed: lab.journal.resumed_runs() > 0 };
        run::prepare(matrix, &mut cells, place, &mut **executor, &|line| progress.show_line(line))?;
    }
    let Measured { data, caveats } = measure(matrix, &cells, &build_root, options, &mut lab, progress)?;
    let shared_matrix = Arc::new(matrix.clone());
    let measured: Arc<dyn MeasuredData> = Arc::new(data.clone());
    let judged = matrix.study.claims.iter().map(|claim| judge(claim, &shared_matrix, &measured)).collect();
    Ok(StudyRun { lab, matrix: matrix.clone(), data, judged, caveats })
}

/// The data of all cells, and caveats on it.
struct Measured {
    data: Data,
    caveats: Vec<LabCaveat>,
}

/// Runs all cells; `build_root` is the folder above all build folders.
fn measure(
    matrix: &Matrix,
    cells: &CheckedCells,
    build_root: &Path,
    options: &StudyOptions,
    lab: &mut LabSetup,
    progress: &dyn ProgressDisplay,
) -> Result<Measured, StopReason> {
    let subject = |key| cell::subject_of_cell(matrix, key, build_root, options.timeout);
    let subjects = cells.runnable.iter().map(subject).collect::<Result<Vec<Subject>, String>>()?;
    let may_fail = |key: &Key| matrix.subjects.get(key.subject).is_some_and(|subject| subject.may_fail);
    let mut judge =
        StudyJudge { may_fail: cells.runnable.iter().map(may_fail).collect(), ..StudyJudge::default() };
    let show_progress = |runs: &Progress| progress.update(runs);
    let plan = Plan {
        subjects,
        warm_up: matrix.study.settings.warm_up,
        min_rounds: matrix.max_repeats(),
        max_rounds: matrix.max_repeats(),
        seed: matrix.study.settings.seed,
    };
    let results = engine::run_plan(&plan, &mut lab.executors, &mut lab.journal, &mut judge, &show_progress)?;
    let counts = run_cachegrind(matrix, cells, &plan, lab, &mut judge, &show_progress)?;
    let counted =
        counts.as_ref().map(|counts| PlanRuns { results: counts, failures: &judge.cachegrind_failures });
    let timed = PlanRuns { results: &results, failures: &judge.failures };
    let data = run::collect_data(matrix, cells, timed, counted);
    let caveats = caveats(matrix, cells, &plan.subjects, &judge, options.lab.jobs, lab);
    Ok(Measured { data, caveats })
}

/// Runs the cells whose instructions cachegrind counts, in cachegrind; `None` if there are no such
/// cells. `timed` is the plan of the timed runs.
fn run_cachegrind(
    matrix: &Matrix,
    cells: &CheckedCells,
    timed: &Plan,
    lab: &mut LabSetup,
    judge: &mut StudyJudge,
    show_progress: &(dyn Fn(&Progress) + Sync),
) -> Result<Option<Results>, StopReason> {
    let is_counted: Vec<bool> = cells.runnable.iter().map(|key| run::uses_cachegrind(matrix, key)).collect();
    if !is_counted.contains(&true) {
        return Ok(None);
    }
    let rounds = CACHEGRIND_ROUNDS.min(matrix.max_repeats());
    let mut subjects = cachegrind_subjects(&timed.subjects);
    for (subject, _) in subjects.iter_mut().zip(&is_counted).filter(|(_, is_counted)| !**is_counted) {
        subject.rounds = Some(0);
    }
    let plan = Plan { subjects, warm_up: 0, min_rounds: rounds, max_rounds: rounds, seed: timed.seed };
    // A cell that failed before is retried here; a failure here does not count for its timed runs.
    let timed_failures = std::mem::take(&mut judge.failures);
    let counts = engine::run_plan(&plan, &mut lab.executors, &mut lab.journal, judge, show_progress)?;
    judge.cachegrind_failures = std::mem::replace(&mut judge.failures, timed_failures);
    Ok(Some(counts))
}
