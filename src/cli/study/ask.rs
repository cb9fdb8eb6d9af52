//! Requires --yes for studies that would take very long.

use std::time::{Duration, Instant};

use super::super::Failure;
use super::super::arguments_lab::{Lab, Study as Arguments};
use super::super::lab::{LabProgress, how_it_ended};
use super::NoResult;
use super::chosen::{ChosenStudy, found, open};
use strandline_report::units::seconds;
use strandline_study::needs::{self, RunnableCells};
use strandline_study::{cell, run};

/// Studies with more runs require --yes.
const MAX_UNCONFIRMED_RUNS: u64 = 10_000;
/// Longer studies require --yes as well; the time is estimated only from this number of runs on.
const MAX_UNCONFIRMED_TIME: Duration = Duration::from_secs(20 * 60);
const MIN_ESTIMATED_RUNS: u64 = 200;

/// Refuses studies that together take very long or have very many runs, without --yes. Runs one
/// cell of each to estimate the time. Studies with an earlier journal to resume from were confirmed
/// before.
pub fn require_confirmation(
    studies: &[(&ChosenStudy, &Lab)],
    arguments: &Arguments,
    teller: &LabProgress,
) -> std::result::Result<(), NoResult> {
    let all = |studies: &[&ChosenStudy]| {
        studies.iter().try_fold(0u64, |all, chosen| all.checked_add(chosen.matrix.runs()?))
    };
    let is_few = |runs: Option<u64>| runs.is_some_and(|runs| runs < MIN_ESTIMATED_RUNS);
    if arguments.lab.yes || is_few(all(&studies.iter().map(|(chosen, _)| *chosen).collect::<Vec<_>>())) {
        return Ok(());
    }
    let is_new = |(chosen, lab): &&(&ChosenStudy, &Lab)| found(chosen, arguments, lab) == 0;
    let new: Vec<&ChosenStudy> = studies.iter().filter(is_new).map(|(chosen, _)| *chosen).collect();
    let runs = all(&new);
    if is_few(runs) {
        return Ok(());
    }
    let (mut seconds_of_all, mut one) = (Some(0.0), None);
    // The submitting machine must not run anything.
    let here: &[&ChosenStudy] = if arguments.lab.slurm.on.is_some() { &[] } else { &new };
    for chosen in here {
        teller.show_line(&format!("one run of {}, to tell how long all take", chosen.matrix.study.name));
        let each = estimate(chosen, arguments)?;
        let whole = each.zip(chosen.matrix.runs());
        let whole =
            whole.map(|(each, runs)| each.as_secs_f64() * runs as f64 / f64::from(arguments.lab.jobs));
        // A study that cannot be run here counts as zero; for a single study the total is then
        // unknown.
        seconds_of_all =
            if new.len() > 1 { seconds_of_all.map(|all: f64| all + whole.unwrap_or(0.0)) } else { whole };
        one = each;
    }
    let is_long = seconds_of_all.is_some_and(|whole| whole > MAX_UNCONFIRMED_TIME.as_secs_f64());
    if !is_long && runs.is_some_and(|runs| runs <= MAX_UNCONFIRMED_RUNS) {
        return Ok(());
    }
    let runs = runs.map_or_else(|| "more than 10^19".to_owned(), |runs| runs.to_string());
    let about = match (seconds_of_all, one, new.as_slice()) {
        (Some(whole), Some(each), [_]) if !here.is_empty() => {
            format!(", about {} (one was run, and took {})", seconds(whole), seconds(each.as_secs_f64()))
        }
        (Some(whole), _, [_, _, ..]) if !here.is_empty() => {
            format!(", about {} (one of each study was run)", seconds(whole))
        }
        _ if here.is_empty() => String::new(),
        _ => ", and one could not be run to tell how long they take".to_owned(),
    };
    let name = match new.as_slice() {
        [one] => one.matrix.study.name.clone(),
        several => format!("{} studies", several.len()),
    };
    Err(NoResult::Unasked(Failure(format!(
        "{name}: that is {runs} runs{about}; narrow an axis with --axis, or add --yes to begin"
    ))))
}

/// Run time of the first cell of a study; `None` if it cannot be run.
fn estimate(chosen: &ChosenStudy, arguments: &Arguments) -> std::result::Result<Option<Duration>, NoResult> {
    let mut first = chosen.clone();
    for axis in &mut first.matrix.axes {
        axis.choices.truncate(1);
    }
    first.matrix.subjects.truncate(1);
    first.matrix.repeat(1);
    let Ok(bill) = needs::check_cells(&first.matrix) else { return Ok(None) };
    let lab = Lab { dir: None, jobs: 1, fresh: true, ..arguments.lab.clone() };
    match time_of_one(&first, &bill, arguments, &lab) {
        // The reason is reported when the study is run.
        Err(NoResult::Failed(_)) => Ok(None),
        each => each,
    }
}

/// Run time of one cell; `None` if it cannot be run. A signal stops everything.
fn time_of_one(
    chosen: &ChosenStudy,
    bill: &RunnableCells,
    arguments: &Arguments,
    lab: &Lab,
) -> std::result::Result<Option<Duration>, NoResult> {
    let matrix = &chosen.matrix;
    let Some(key) = bill.cells.first() else { return Ok(None) };
    let (mut bench, build) = open(chosen, arguments, lab)?;
    let Some(executor) = bench.executors.first_mut() else { return Ok(None) };
    let mut prepared = bill.clone();
    let below = (build.as_path(), false);
    run::prepare(matrix, &mut prepared, below, &mut **executor, &how_it_ended, &|_| {})?;
    let can_run = prepared.cells.contains(key);
    let begin = Instant::now();
    if can_run {
        let subject = cell::subject(matrix, key, &build, arguments.lab.timeout);
        executor.run(&subject, &build.join(".output"))?;
    }
    let each = begin.elapsed();
    bench.close();
    Ok(can_run.then_some(each))
}
