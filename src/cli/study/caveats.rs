//! What is to be known about a study's figures.

use super::super::arguments_lab::Study as Arguments;
use super::super::lab::{Bench, how_it_ended};
use crate::lab::cell::{Measure, Subject};
use crate::lab::study::matrix::Matrix;
use crate::lab::study::run::{self as runs, Bill, COUNTED_ROUNDS, Referee};

/// Each with its code.
pub fn caveats(
    matrix: &Matrix,
    bill: &Bill,
    subjects: &[Subject],
    referee: &Referee<'_>,
    arguments: &Arguments,
    bench: &Bench,
) -> Vec<(&'static str, String)> {
    const MOST: usize = 20;
    let mut caveats = Vec::new();
    let mut reasons: Vec<(&String, usize)> = Vec::new();
    for (_, why) in &bill.missing {
        match reasons.iter_mut().find(|(known, _)| *known == why) {
            Some((_, count)) => *count += 1,
            None => reasons.push((why, 1)),
        }
    }
    for (why, count) in reasons.into_iter().take(MOST) {
        caveats.push(("not_run", format!("{} not run: {why}", cells(count))));
    }
    for (&index, (count, outcome)) in referee.failures.iter().take(MOST) {
        let name = subjects.get(index).map_or("a cell", |subject| subject.name.as_str());
        let how = how_it_ended(outcome);
        caveats.push(("failed_runs", format!("{name}: {count} runs failed, and do not count: {how}")));
    }
    if referee.left_behind > 0 {
        let text = format!("{} runs left processes behind, which were ended", referee.left_behind);
        caveats.push(("left_behind", text));
    }
    if arguments.lab.jobs > 1 {
        let text = format!("{} runs at a time shared the machine: times mean little", arguments.lab.jobs);
        caveats.push(("runs_at_once", text));
    }
    if subjects.iter().any(|subject| matches!(subject.measure, Measure::Recording { .. })) {
        caveats
            .push(("recorded", "times are of recorded runs, without the time that ledgers took".to_owned()));
    }
    let wants = |name: &str| {
        let reads = matrix.study.claims.iter().any(|claim| claim.holds.value.contains(name));
        reads || matrix.study.tables.iter().any(|table| format!("{table:?}").contains(name))
    };
    if bill.cells.iter().any(|key| runs::is_counted(matrix, key)) {
        let text = format!(
            "instructions are counted by valgrind's cachegrind, in {COUNTED_ROUNDS} runs more of each"
        );
        caveats.push(("instructions_by_cachegrind", text));
    } else if wants("instructions")
        && let Some(why) = bench.executors.first().and_then(|executor| executor.no_counters())
    {
        caveats.push(("no_counters", format!("instructions and cycles are not counted: {why}")));
    }
    caveats
}

fn cells(count: usize) -> String {
    if count == 1 { "1 cell was".to_owned() } else { format!("{count} cells were") }
}
