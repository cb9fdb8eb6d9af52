//! Caveats about a study's figures.

use super::super::arguments_lab::Study as Arguments;
use super::super::lab::{LabSetup, how_it_ended};
use strandline_lab::cell::{self, Measure};
use strandline_study::file::Subject;
use strandline_study::matrix::Matrix;
use strandline_study::needs::RunnableCells;
use strandline_study::run::{CACHEGRIND_ROUNDS, StudyJudge};

/// The caveats with their codes.
pub fn caveats(
    matrix: &Matrix,
    bill: &RunnableCells,
    subjects: &[cell::Subject],
    referee: &StudyJudge<'_>,
    arguments: &Arguments,
    bench: &LabSetup,
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
    for (failures, place) in [(&referee.failures, ""), (&referee.cachegrind_failures, " under cachegrind")] {
        for (&index, (count, outcome)) in failures.iter().take(MOST) {
            let name = subjects.get(index).map_or("a cell", |subject| subject.name.as_str());
            let how = how_it_ended(outcome);
            let text = format!("{name}: {count} runs failed{place}, and do not count: {how}");
            caveats.push(("failed_runs", text));
        }
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
    let counted = by_cachegrind(matrix);
    let is_all = counted.as_ref().is_some_and(|(_, is_all)| *is_all);
    let of = if counted.is_some() { " of other subjects" } else { "" };
    caveats.extend(counted.map(|(text, _)| ("instructions_by_cachegrind", text)));
    if wants("instructions")
        && !is_all
        && let Some(why) = bench.executors.first().and_then(|executor| executor.no_counters())
    {
        caveats.push(("no_counters", format!("instructions and cycles{of} are not counted: {why}")));
    }
    caveats.extend(bench.caveats());
    caveats
}

/// The caveat on subjects whose instructions cachegrind counts, and whether these are all; `None`
/// if there are none.
fn by_cachegrind(matrix: &Matrix) -> Option<(String, bool)> {
    let is_counted = |subject: &&Subject| matrix.study.is_counted(subject);
    let counted: Vec<&str> =
        matrix.subjects.iter().filter(is_counted).map(|subject| subject.name.as_str()).collect();
    let is_all = counted.len() == matrix.subjects.len();
    let (of, others) = match is_all {
        true => (String::new(), ""),
        false => (
            format!(" of {}", counted.join(", ")),
            "; the processor counts otherwise: its counts of other subjects are left out",
        ),
    };
    let text = format!(
        "instructions{of} are counted by valgrind's cachegrind, in {CACHEGRIND_ROUNDS} runs more of each{others}"
    );
    (!counted.is_empty()).then_some((text, is_all))
}

fn cells(count: usize) -> String {
    if count == 1 { "1 cell was".to_owned() } else { format!("{count} cells were") }
}
