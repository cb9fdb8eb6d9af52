//! Which studies are too long to start without a confirmation.

use std::time::{Duration, Instant};

use super::cell;
use super::chosen::{ChosenStudy, OpenedLab, StudyOptions};
use super::needs;
use super::run;
use strandline_lab::executor::NoResult;
use strandline_lab::setup::{LabOptions, MAX_UNCONFIRMED_RUNS};
use strandline_lab::user::ProgressDisplay;
use strandline_report::units::{seconds, thousands};

/// Longer studies require a confirmation.
const MAX_UNCONFIRMED_TIME: Duration = Duration::from_secs(20 * 60);
/// With fewer runs than this, the time is not estimated.
const MIN_ESTIMATED_RUNS: u64 = 200;

/// A study that is to be run.
#[derive(Clone, Copy)]
pub struct PlannedStudy<'s> {
    /// The study.
    pub chosen: &'s ChosenStudy,
    /// How it is run.
    pub options: &'s StudyOptions,
}

/// Refuses studies that together take very long or have very many runs. Runs one cell of each to
/// estimate the time. Studies with an earlier journal to resume from were confirmed before.
///
/// # Errors
/// [`NoResult::Unconfirmed`], or why the estimate stopped.
pub fn require_confirmation(
    studies: &[PlannedStudy<'_>],
    progress: &dyn ProgressDisplay,
) -> Result<(), NoResult> {
    let is_few = |runs: Option<u64>| runs.is_some_and(|runs| runs < MIN_ESTIMATED_RUNS);
    if is_few(runs_of(studies)) {
        return Ok(());
    }
    let is_new = |study: &&PlannedStudy<'_>| study.chosen.reusable_runs(study.options) == 0;
    let new_studies: Vec<PlannedStudy<'_>> = studies.iter().filter(is_new).copied().collect();
    let runs = runs_of(&new_studies);
    if is_few(runs) {
        return Ok(());
    }
    let estimate = Estimate::of(&new_studies, progress)?;
    let is_long = estimate.all_seconds() > MAX_UNCONFIRMED_TIME.as_secs_f64();
    if !is_long && runs.is_some_and(|runs| runs <= MAX_UNCONFIRMED_RUNS) {
        return Ok(());
    }
    let runs = runs.map_or_else(|| "more than 10^19".to_owned(), thousands);
    let name = match new_studies.as_slice() {
        [study] => study.chosen.matrix.study.name.clone(),
        several => format!("{} studies", several.len()),
    };
    Err(NoResult::Unconfirmed(format!(
        "{name}: that is {runs} runs{}; narrow an axis with --axis, or add --yes to start",
        estimate.words()
    )))
}

/// Number of runs of all studies; `None` on overflow.
fn runs_of(studies: &[PlannedStudy<'_>]) -> Option<u64> {
    studies.iter().try_fold(0u64, |sum, study| sum.checked_add(study.chosen.matrix.run_count()?))
}

/// How long studies take.
#[derive(Default)]
struct Estimate {
    /// Number of studies of which one run was to be made.
    studies: usize,
    /// For each study of which one run was made, that run and the time of all its runs.
    timed: Vec<StudyTime>,
}

struct StudyTime {
    one_run: Duration,
    all_seconds: f64,
}

impl Estimate {
    fn of(studies: &[PlannedStudy<'_>], progress: &dyn ProgressDisplay) -> Result<Self, NoResult> {
        // The machine that submits jobs must not run anything.
        let local = || studies.iter().filter(|study| study.options.lab.cluster.is_none());
        let mut estimate = Self::default();
        for PlannedStudy { chosen, options } in local() {
            let name = &chosen.matrix.study.name;
            progress.show_line(&format!("one run of {name}, to estimate how long all take"));
            estimate.studies += 1;
            if let Some((one_run, runs)) = time_one_run(chosen, options)?.zip(chosen.matrix.run_count()) {
                let all_seconds = one_run.as_secs_f64() * runs as f64 / f64::from(options.lab.jobs);
                estimate.timed.push(StudyTime { one_run, all_seconds });
            }
        }
        Ok(estimate)
    }

    /// Time of all runs of the studies that were timed.
    fn all_seconds(&self) -> f64 {
        self.timed.iter().map(|study| study.all_seconds).sum()
    }

    /// The estimate in words, to follow the number of runs.
    fn words(&self) -> String {
        let all = seconds(self.all_seconds());
        match (self.studies, self.timed.as_slice()) {
            (0, _) => String::new(),
            (_, []) => ", and one could not be run to estimate how long they take".to_owned(),
            (1, [StudyTime { one_run, .. }, ..]) => {
                format!(", about {all} (one was run, and took {})", seconds(one_run.as_secs_f64()))
            }
            (studies, timed) if timed.len() == studies => {
                format!(", about {all} (one of each study was run)")
            }
            (studies, timed) => {
                format!(", more than {all} (one was run of {} of {studies} studies)", timed.len())
            }
        }
    }
}

/// Run time of the first cell of a study; `None` if it cannot be run. A signal stops everything.
fn time_one_run(chosen: &ChosenStudy, options: &StudyOptions) -> Result<Option<Duration>, NoResult> {
    let first_cell = chosen.one_run();
    let lab = LabOptions { folder: None, jobs: 1, is_fresh: true, ..options.lab.clone() };
    match time_in_lab(&first_cell, &StudyOptions { lab, ..options.clone() }) {
        // The reason is reported when the study is run.
        Err(NoResult::Failed(_)) => Ok(None),
        run_time => run_time,
    }
}

/// Run time of the first cell of a study in a lab of its own, which it removes.
fn time_in_lab(chosen: &ChosenStudy, options: &StudyOptions) -> Result<Option<Duration>, NoResult> {
    let matrix = &chosen.matrix;
    let mut cells = needs::check_cells(matrix).map_err(NoResult::Failed)?;
    let Some(key) = cells.runnable.first().cloned() else { return Ok(None) };
    let OpenedLab { mut lab, build_root } = chosen.open(options)?;
    let Some(executor) = lab.executors.first_mut() else { return Ok(None) };
    let place = run::BuildPlace { root: &build_root, is_resumed: false };
    run::prepare(matrix, &mut cells, place, &mut **executor, &|_| {})?;
    let can_run = cells.runnable.contains(&key);
    let begin = Instant::now();
    if can_run {
        let subject =
            cell::subject_of_cell(matrix, &key, &build_root, options.timeout).map_err(NoResult::Failed)?;
        executor.run(&subject, &build_root.join(".output"))?;
    }
    let run_time = begin.elapsed();
    lab.close();
    Ok(can_run.then_some(run_time))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_study_that_is_not_timed_is_not_in_the_estimate() {
        let timed = |studies: usize, count: usize| {
            let times = (0..count).map(|_| StudyTime { one_run: Duration::from_secs(2), all_seconds: 60.0 });
            Estimate { studies, timed: times.collect() }.words()
        };
        assert_eq!(timed(0, 0), "");
        assert!(timed(1, 1).contains("one was run, and took"), "{}", timed(1, 1));
        assert!(timed(2, 2).contains("(one of each study was run)"), "{}", timed(2, 2));
        assert!(timed(3, 2).starts_with(", more than ") && timed(3, 2).contains("2 of 3 studies"));
        assert!(timed(2, 0).starts_with(", and one could not be run"));
    }
}
