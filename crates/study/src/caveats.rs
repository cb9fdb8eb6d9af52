//! Caveats about a study's figures.

use super::file::Subject;
use super::matrix::{Matrix, OmittedCell};
use super::needs::CheckedCells;
use super::run::{CACHEGRIND_ROUNDS, CellFailures, Failures, StudyJudge};
use strandline_lab::cell::{self, LabCaveat, Measure};
use strandline_lab::setup::LabSetup;
use strandline_report::text::counted;

/// Maximum number of caveats of one kind; one more sums up the others.
const MAX_CAVEATS: usize = 20;

/// The caveats of a study whose `subjects` ran `jobs` at a time in `lab`.
pub fn caveats(
    matrix: &Matrix,
    cells: &CheckedCells,
    subjects: &[cell::Subject],
    judge: &StudyJudge,
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
    let no_counters_reason = lab.executors.first().and_then(|executor| executor.no_counters_reason());
    caveats.extend(counter_caveats(matrix, no_counters_reason));
    caveats.extend(lab.caveats());
    caveats
}

/// Caveats on instructions and cycles. `no_counters_reason` says why the processor counts none.
fn counter_caveats(matrix: &Matrix, no_counters_reason: Option<String>) -> Vec<LabCaveat> {
    let mut caveats = Vec::new();
    let cachegrind_subjects = subjects_by_cachegrind(matrix);
    let are_all_counted =
        !cachegrind_subjects.is_empty() && cachegrind_subjects.len() == matrix.subjects.len();
    let shows_cycles = matrix.study.mentions("cycles");
    if !cachegrind_subjects.is_empty() {
        let text = cachegrind_text(&cachegrind_subjects, are_all_counted, shows_cycles);
        caveats.push(LabCaveat { code: "instructions_by_cachegrind", text });
    }
    let lacks_instructions = matrix.study.mentions("instructions") && !are_all_counted;
    let lacks_cycles = shows_cycles && cachegrind_subjects.is_empty();
    if let Some(why) = no_counters_reason.filter(|_| lacks_instructions || lacks_cycles) {
        let scope = if cachegrind_subjects.is_empty() { "" } else { " of other subjects" };
        let text = format!("instructions and cycles{scope} are not counted: {why}");
        caveats.push(LabCaveat { code: "no_counters", text });
    }
    caveats
}

/// Caveats on cells that were not run, and on failed runs.
fn run_caveats(cells: &CheckedCells, subjects: &[cell::Subject], judge: &StudyJudge) -> Vec<LabCaveat> {
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
    caveats
}

/// Sentences on failed runs; `under` names the tool that they ran in, with a leading space; empty
/// for none.
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

/// The subjects whose instructions cachegrind counts.
fn subjects_by_cachegrind(matrix: &Matrix) -> Vec<&Subject> {
    matrix.subjects.iter().filter(|subject| matrix.study.counts_instructions(subject)).collect()
}

/// The caveat on `subjects`, whose instructions cachegrind counts.
fn cachegrind_text(subjects: &[&Subject], are_all_counted: bool, shows_cycles: bool) -> String {
    let (counted_subjects, exclusion) = if are_all_counted {
        (String::new(), "")
    } else {
        let names: Vec<&str> = subjects.iter().map(|subject| subject.name.as_str()).collect();
        let exclusion = "; the processor's counts of other subjects differ from these and are excluded";
        (format!(" of {}", names.join(", ")), exclusion)
    };
    let rounds = subjects.iter().map(|subject| subject.repeats.unwrap_or(1).min(CACHEGRIND_ROUNDS)).max();
    let runs = counted(u64::from(rounds.unwrap_or(0)), "additional run");
    let cycles = if shows_cycles { "; cycles are not reported" } else { "" };
    format!(
        "instructions{counted_subjects} are counted by valgrind's cachegrind, \
         in up to {runs} of each cell{exclusion}{cycles}"
    )
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use crate::file::Study;
    use strandline_lab::cell::Outcome;

    /// Code and text of each caveat on the counters of a study with the subjects `a`, of one run,
    /// and `b`, of seven; cachegrind counts those in `counted`.
    fn counter_texts(counted: &[&str], columns: &str, why: Option<&str>) -> Vec<(&'static str, String)> {
        let mut text = "title = 't'\n".to_owned();
        for (name, repeats) in [("a", 1), ("b", 7)] {
            text += &format!("[[subject]]\nname = '{name}'\ncommand = 'true'\nrepeats = {repeats}\n");
            if counted.contains(&name) {
                text += "measure = { instructions = 'cachegrind' }\n";
            }
        }
        text += &format!("[[table]]\ntitle = 't'\nrows = 'subject'\ncolumns = {columns}\n");
        let study = Study::parse(Path::new("/nowhere/x/study.toml"), &text).unwrap();
        let caveats = counter_caveats(&Matrix::full(Arc::new(study)), why.map(str::to_owned));
        caveats.into_iter().map(|caveat| (caveat.code, caveat.text)).collect()
    }

    #[test]
    fn missing_counters_are_a_caveat_on_what_is_shown() {
        let none = |columns| counter_texts(&[], columns, Some("why"));
        let missing = [("no_counters", "instructions and cycles are not counted: why".to_owned())];
        assert_eq!(none("['instructions']"), missing);
        assert_eq!(none("['wall_seconds', 'cycles']"), missing);
        assert_eq!(none("['wall_seconds']"), []);
        assert_eq!(counter_texts(&[], "['instructions', 'cycles']", None), []);
        let some = counter_texts(&["a"], "['instructions']", Some("why"));
        assert_eq!(some[1].1, "instructions and cycles of other subjects are not counted: why");
        assert_eq!(counter_texts(&["a"], "['cycles']", Some("why")).len(), 1);
        assert_eq!(counter_texts(&["a", "b"], "['instructions']", Some("why")).len(), 1);
    }

    #[test]
    fn cachegrinds_runs_are_those_of_the_counted_subjects() {
        let text = |counted: &[&str], columns| {
            let mut caveats = counter_texts(counted, columns, None);
            assert_eq!(caveats.len(), 1, "{caveats:?}");
            caveats.remove(0)
        };
        let code = "instructions_by_cachegrind";
        let by_cachegrind = "are counted by valgrind's cachegrind, in up to";
        let excluded = "the processor's counts of other subjects differ from these and are excluded";
        assert_eq!(
            text(&["a"], "['instructions']"),
            (code, format!("instructions of a {by_cachegrind} 1 additional run of each cell; {excluded}"))
        );
        assert_eq!(
            text(&["a", "b"], "['instructions', 'cycles']"),
            (
                code,
                format!(
                    "instructions {by_cachegrind} 3 additional runs of each cell; cycles are not reported"
                )
            )
        );
    }

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
