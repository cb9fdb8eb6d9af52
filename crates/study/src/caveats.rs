//! Caveats about a study's figures.

use super::file::Subject;
use super::matrix::Matrix;
use super::needs::RunnableCells;
use super::run::{CACHEGRIND_ROUNDS, CellFailures, StudyJudge};
use strandline_lab::cell::{self, Measure};
use strandline_lab::setup::LabSetup;
use strandline_report::units::counted;

/// Caveats: code and sentence.
pub type Caveats = Vec<(&'static str, String)>;

/// Maximum number of caveats of one kind.
const MAX_CAVEATS: usize = 20;

/// The caveats of a study whose `subjects` ran `jobs` at a time in `lab`.
pub fn caveats(
    matrix: &Matrix,
    cells: &RunnableCells,
    subjects: &[cell::Subject],
    judge: &StudyJudge<'_>,
    jobs: u32,
    lab: &LabSetup,
) -> Caveats {
    let mut caveats = run_caveats(cells, subjects, judge);
    if jobs > 1 {
        let text = format!("{jobs} runs at a time shared the machine: times mean little");
        caveats.push(("runs_at_once", text));
    }
    if subjects.iter().any(|subject| matches!(subject.measure, Measure::Recording { .. })) {
        caveats
            .push(("recorded", "times are of recorded runs, without the time that ledgers took".to_owned()));
    }
    let is_shown = |name: &str| {
        let is_claimed = matrix.study.claims.iter().any(|claim| claim.holds.value.contains(name));
        is_claimed || matrix.study.tables.iter().any(|table| format!("{table:?}").contains(name))
    };
    let counted = subjects_by_cachegrind(matrix);
    let is_all = !counted.is_empty() && counted.len() == matrix.subjects.len();
    if !counted.is_empty() {
        caveats.push(("instructions_by_cachegrind", cachegrind_text(&counted, is_all)));
    }
    if is_shown("instructions")
        && !is_all
        && let Some(why) = lab.executors.first().and_then(|executor| executor.no_counters_reason())
    {
        let scope = if counted.is_empty() { "" } else { " of other subjects" };
        caveats.push(("no_counters", format!("instructions and cycles{scope} are not counted: {why}")));
    }
    caveats.extend(lab.caveats());
    caveats
}

/// Caveats on cells that were not run, on failed runs, and on processes left behind.
fn run_caveats(cells: &RunnableCells, subjects: &[cell::Subject], judge: &StudyJudge<'_>) -> Caveats {
    let mut caveats = Vec::new();
    let mut reasons: Vec<(&String, usize)> = Vec::new();
    for (_, why) in &cells.unrunnable {
        match reasons.iter_mut().find(|(reason, _)| *reason == why) {
            Some((_, count)) => *count += 1,
            None => reasons.push((why, 1)),
        }
    }
    let other_reasons = reasons.split_off(reasons.len().min(MAX_CAVEATS));
    let cells =
        |count: usize| if count == 1 { "1 cell was".to_owned() } else { format!("{count} cells were") };
    for (why, count) in reasons {
        caveats.push(("not_run", format!("{} not run: {why}", cells(count))));
    }
    if !other_reasons.is_empty() {
        let count = other_reasons.iter().map(|(_, count)| count).sum();
        caveats.push((
            "not_run",
            format!("{} not run, for {}", cells(count), counted(other_reasons.len() as u64, "other reason")),
        ));
    }
    for (failures, under) in [(&judge.failures, ""), (&judge.cachegrind_failures, " under cachegrind")] {
        for (&index, CellFailures { count, last_outcome }) in failures.iter().take(MAX_CAVEATS) {
            let name = subjects.get(index).map_or("a cell", |subject| subject.name.as_str());
            let end = last_outcome.describe_end();
            let text = format!("{name}: {count} runs failed{under}, and do not count: {end}");
            caveats.push(("failed_runs", text));
        }
        if failures.len() > MAX_CAVEATS {
            let others = counted((failures.len() - MAX_CAVEATS) as u64, "other cell");
            caveats.push(("failed_runs", format!("runs of {others} failed{under}, and do not count")));
        }
    }
    if let Some(problem) = &judge.swap_problem {
        let text = format!(
            "memory limits let processes move to swap, so that figures may be of less memory ({problem})"
        );
        caveats.push(("swap_not_limited", text));
    }
    if judge.runs_with_leftovers > 0 {
        let text = format!("{} runs left processes behind, which were ended", judge.runs_with_leftovers);
        caveats.push(("left_behind", text));
    }
    caveats
}

/// Names of the subjects whose instructions cachegrind counts.
fn subjects_by_cachegrind(matrix: &Matrix) -> Vec<&str> {
    let counts_instructions = |subject: &&Subject| matrix.study.counts_instructions(subject);
    matrix.subjects.iter().filter(counts_instructions).map(|subject| subject.name.as_str()).collect()
}

/// The caveat on subjects whose instructions cachegrind counts.
fn cachegrind_text(names: &[&str], is_all: bool) -> String {
    let (counted_subjects, exclusion) = if is_all {
        (String::new(), "")
    } else {
        let exclusion = "; the processor counts otherwise: its counts of other subjects are left out";
        (format!(" of {}", names.join(", ")), exclusion)
    };
    format!(
        "instructions{counted_subjects} are counted by valgrind's cachegrind, in {CACHEGRIND_ROUNDS} runs more of each{exclusion}"
    )
}
