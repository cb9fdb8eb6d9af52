//! Studies that would take very long are not begun unasked.

use std::time::{Duration, Instant};

use super::super::Failure;
use super::super::arguments_lab::{Lab, Study as Arguments};
use super::super::lab::how_it_ended;
use super::Gone;
use super::run::{Chosen, open};
use crate::lab::study::run::{self, Bill};
use crate::report::units::seconds;

/// Studies of more runs are not begun unasked.
const MANY_RUNS: u64 = 10_000;
/// Nor are those that take longer; that is found out where there are so many runs.
const LONG: Duration = Duration::from_secs(20 * 60);
const SOME_RUNS: u64 = 200;

/// Refuses a study that takes very long, or has very many runs, that nobody said yes to. One cell is run to tell
/// how long it would take.
pub fn ask(chosen: &Chosen, arguments: &Arguments) -> std::result::Result<(), Gone> {
    let (matrix, runs) = (&chosen.matrix, chosen.matrix.runs());
    let is_few = runs.is_some_and(|runs| runs < SOME_RUNS);
    if is_few || arguments.lab.yes {
        return Ok(());
    }
    let mut first = chosen.clone();
    for axis in &mut first.matrix.axes {
        axis.choices.truncate(1);
    }
    first.matrix.subjects.truncate(1);
    first.matrix.repeat(1);
    let bill = run::bill(&first.matrix).map_err(|line| Gone::Failed(Failure(line)))?;
    let lab = Lab { dir: None, jobs: 1, fresh: true, ..arguments.lab.clone() };
    let each = time_of_one(&first, &bill, arguments, &lab)?;
    let runs_text = runs.map_or_else(|| "more than 10^19".to_owned(), |runs| runs.to_string());
    let whole =
        each.zip(runs).map(|(each, runs)| each.as_secs_f64() * runs as f64 / f64::from(arguments.lab.jobs));
    let is_long = whole.is_some_and(|whole| whole > LONG.as_secs_f64());
    if !is_long && runs.is_some_and(|runs| runs <= MANY_RUNS) {
        return Ok(());
    }
    let about = match (whole, each) {
        (Some(whole), Some(each)) => {
            format!(", about {} (one was run, and took {})", seconds(whole), seconds(each.as_secs_f64()))
        }
        _ => ", and one could not be run to tell how long they take".to_owned(),
    };
    Err(Gone::Unasked(Failure(format!(
        "{}: that is {runs_text} runs{about}; narrow an axis with --axis, or add --yes to begin",
        matrix.study.name
    ))))
}

/// How long one cell takes; `None` where it cannot be run. A signal meanwhile stops all.
fn time_of_one(
    chosen: &Chosen,
    bill: &Bill,
    arguments: &Arguments,
    lab: &Lab,
) -> std::result::Result<Option<Duration>, Gone> {
    let matrix = &chosen.matrix;
    let Some(key) = bill.cells.first() else { return Ok(None) };
    let (mut bench, build) = open(chosen, bill, arguments, lab)?;
    let Some(executor) = bench.executors.first_mut() else { return Ok(None) };
    let mut prepared = bill.clone();
    let below = (build.as_path(), false);
    run::prepare(matrix, &mut prepared, below, &mut **executor, &how_it_ended, &|_| {})?;
    let can_run = prepared.cells.contains(key);
    let begin = Instant::now();
    if can_run {
        let subject = run::subject(matrix, key, &build, arguments.lab.timeout);
        executor.run(&subject, &build.join(".output"))?;
    }
    let each = begin.elapsed();
    bench.close();
    Ok(can_run.then_some(each))
}
