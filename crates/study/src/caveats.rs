//! Caveats about a study's figures.

use super::file::Subject;
use super::matrix::{Matrix, OmittedCell};
use super::needs::CheckedCells;
use super::run::{CACHEGRIND_ROUNDS, CellFailures, Failures, StudyJudge};
use strandline_lab::cell::{self, LabCaveat, Measure};
use strandline_lab::pages::compare::leftovers_caveat;
use strandline_lab::setup::LabSetup;
use strandline_report::text::counted;

/// Maximum number of caveats of one kind; one more sums up the others.
const MAX_CAVEATS: usize = 20;

/// The caveats of a study whose `subjects` ran `jobs` at a time in `lab`.
pub fn caveats(
    matrix: &Matrix,
    cells: &CheckedCells,
    subjects: &[cell::Subject],
    judge: &StudyJudge<'_>,
    jobs: u32,
    lab: &LabSetup,
) -> Vec<LabCaveat> {
    let mut caveats = run_caveats(cells, subjects, judge);
    if jobs > 1 {
        let text = format!(
            "{jobs} runs shared the machine at a time: their times are not comparable with those of single runs"
        );
        caveats.push(LabCaveat { code: "runs_at_once", text });
    }
    if subjects.iter().any(|subject| matches!(subject.measure, Measure::Recording { .. })) {
        let text = "times are of recorded runs, without the time that ledgers took".to_owned();
        caveats.push(LabCaveat { code: "recorded", text });
    }
    // A name within another also counts: a superfluous caveat does less harm than a missing one.
    let is_shown = |name: &str| {
        let study = &matrix.study;
        let claimed = study.claims.iter().map(|claim| &claim.holds.value);
        let mut expressions = claimed.chain(study.derived.iter().map(|derived| &derived.expression.value));
        expressions.any(|expression| expression.contains(name))
            || format!("{:?} {:?}", study.tables, study.plots).contains(name)
    };
    let cachegrind_names = subjects_by_cachegrind(matrix);
    let are_all_counted = !cachegrind_names.is_empty() && cachegrind_names.len() == matrix.subjects.len();
    if !cachegrind_names.is_empty() {
        let text = cachegrind_text(&cachegrind_names, are_all_counted);
        caveats.push(LabCaveat { code: "instructions_by_cachegrind", text });
    }
    if is_shown("instructions")
        && !are_all_counted
        && let Some(why) = lab.executors.first().and_then(|executor| executor.no_counters_reason())
    {
        let scope = if cachegrind_names.is_empty() { "" } else { " of other subjects" };
        let text = format!("instructions and cycles{scope} are not counted: {why}");
        caveats.push(LabCaveat { code: "no_counters", text });
    }
    caveats.extend(lab.caveats());
    caveats
}

/// Caveats on cells that were not run, on failed runs, and on processes left behind.
fn run_caveats(cells: &CheckedCells, subjects: &[cell::Subject], judge: &StudyJudge<'_>) -> Vec<LabCaveat> {
    let mut caveats = Vec::new();
    let mut reasons: Vec<(&String, usize)> = Vec::new();
    for OmittedCell { why, .. } in &cells.unrunnable {
        match reasons.iter_mut().find(|(reason, _)| *reason == why) {
            Some((_, count)) => *count += 1,
            None => reasons.push((why, 1)),
        }
    }
    let other_reasons = reasons.split_off(reasons.len().min(MAX_CAVEATS));
    let cells_were =
        |count: usize| if count == 1 { "1 cell was".to_owned() } else { format!("{count} cells were") };
    for (why, count) in reasons {
        let text = format!("{} not run: {why}", cells_were(count));
        caveats.push(LabCaveat { code: "not_run", text });
    }
    if !other_reasons.is_empty() {
        let count = other_reasons.iter().map(|(_, count)| count).sum();
        let others = counted(other_reasons.len() as u64, "other reason");
        let text = format!("{} not run, for {others}", cells_were(count));
        caveats.push(LabCaveat { code: "not_run", text });
    }
    for (failures, under) in [(&judge.failures, ""), (&judge.cachegrind_failures, " under cachegrind")] {
        let texts = failed_run_texts(failures, under, subjects).into_iter();
        caveats.extend(texts.map(|text| LabCaveat { code: "failed_runs", text }));
    }
    if let Some(problem) = &judge.swap_problem {
        let text = format!(
            "the kernel may swap under the memory limits, so figures may miss swapped memory ({problem})"
        );
        caveats.push(LabCaveat { code: "swap_not_limited", text });
    }
    caveats.extend(leftovers_caveat(judge.runs_with_leftovers));
    caveats
}

/// Sentences on failed runs; `under` says in which tool they ran.
fn failed_run_texts(failures: &Failures, under: &str, subjects: &[cell::Subject]) -> Vec<String> {
    let text = |(&index, CellFailures { count, last_outcome }): (&usize, &CellFailures)| {
        let name = subjects.get(index).map_or("a cell", |subject| subject.name.as_str());
        let runs = counted(u64::from(*count), "run");
        let verb = if *count == 1 { "is" } else { "are" };
        format!("{name}: {runs} failed{under} and {verb} excluded: {}", last_outcome.describe_end())
    };
    let mut texts: Vec<String> = failures.iter().take(MAX_CAVEATS).map(text).collect();
    if failures.len() > MAX_CAVEATS {
        let others = counted((failures.len() - MAX_CAVEATS) as u64, "other cell");
        texts.push(format!("runs of {others} failed{under} and are excluded"));
    }
    texts
}

/// Names of the subjects whose instructions cachegrind counts.
fn subjects_by_cachegrind(matrix: &Matrix) -> Vec<&str> {
    let counts_instructions = |subject: &&Subject| matrix.study.counts_instructions(subject);
    matrix.subjects.iter().filter(counts_instructions).map(|subject| subject.name.as_str()).collect()
}

/// The caveat on subjects whose instructions cachegrind counts.
fn cachegrind_text(names: &[&str], are_all_counted: bool) -> String {
    let (counted_subjects, exclusion) = if are_all_counted {
        (String::new(), "")
    } else {
        let exclusion = "; the processor's counts of other subjects differ from these and are excluded";
        (format!(" of {}", names.join(", ")), exclusion)
    };
    format!(
        "instructions{counted_subjects} are counted by valgrind's cachegrind, \
         in {CACHEGRIND_ROUNDS} additional runs of each{exclusion}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use strandline_lab::cell::Outcome;

    #[test]
    fn failed_runs_are_counted_in_words() {
        let failure = |count| CellFailures { count, last_outcome: Outcome::not_started("gone".to_owned()) };
        let failures: Failures = (0..22).map(|index| (index, failure(1 + u32::from(index == 1)))).collect();
        let subjects = [cell::Subject { name: "a".to_owned(), ..cell::Subject::default() }];
        let texts = failed_run_texts(&failures, "", &subjects);
        assert!(texts[0].starts_with("a: 1 run failed and is excluded: "), "{}", texts[0]);
        assert!(texts[1].starts_with("a cell: 2 runs failed and are excluded: "), "{}", texts[1]);
        assert_eq!(texts.last().unwrap(), "runs of 2 other cells failed and are excluded");
    }
}
