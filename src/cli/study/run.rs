//! Runs one study: its choices, its lab, its runs, and the verdicts on its claims.

use std::sync::Arc;

use super::super::arguments_lab::{Lab, Study as Arguments};
use super::super::lab::{LabProgress, LabSetup, how_it_ended, show};
use super::super::output::{Output, print_message};
use super::super::{CommandResult, Failure, Result};
use super::ask::require_confirmation;
use super::caveats::caveats;
use super::chosen::{ChosenStudy, open};
use super::files::Files;
use super::{NoResult, read};
use strandline_lab::cell::Subject;
use strandline_lab::compare::cachegrind_subjects;
use strandline_lab::engine::{self, Plan};
use strandline_report::text::clean;
use strandline_study::cell;
use strandline_study::claim::{Judged, Verdict, judge};
use strandline_study::data::Data;
use strandline_study::find;
use strandline_study::matrix::Matrix;
use strandline_study::needs::{self, RunnableCells};
use strandline_study::pages::studies::{Item, page};
use strandline_study::pages::study::{StudyInput, document};
use strandline_study::run::{self, CACHEGRIND_ROUNDS, StudyJudge};

const SCHEMA: &str = "strandline/study/1";

/// Runs the study `name` and shows the results.
pub fn run(name: &str, arguments: &Arguments, output: &mut Output) -> Result<CommandResult> {
    let text = read(name).map_err(|mut lines| {
        let last = lines.pop().unwrap_or_default();
        lines.iter().for_each(|line| print_message(line));
        Failure(last)
    })?;
    let folder = &text.0.folder;
    if let Some(others) = find::other_places(name, folder) {
        print_message(&clean(&format!(
            "study {name}: the one in {} is taken, not {others}",
            folder.display()
        )));
    }
    let chosen = ChosenStudy::new(text, arguments, &arguments.axis).map_err(Failure)?;
    let mut files = Files::wanted(arguments, &format!("strandline-study-{}.html", chosen.matrix.study.name))?;
    let teller = LabProgress::new("study", !output.json);
    let ran = require_confirmation(&[(&chosen, &arguments.lab)], arguments, &teller)
        .and_then(|()| run_and_judge(&chosen, arguments, &arguments.lab, &teller));
    drop(teller);
    let ran = match ran {
        Ok(ran) => ran,
        Err(gone) => {
            files.none_written();
            return gone.end();
        }
    };
    let item = Item { name: &chosen.matrix.study.name, came: Ok(ran.facts()) };
    let mut page = page(&item);
    files.pictures(item.name, &mut page);
    show(SCHEMA, &document(&ran.facts()), &page, &arguments.shown, output)?;
    files.write(std::slice::from_ref(&item), std::slice::from_ref(&page))?;
    let fails = ran.fails();
    ran.bench.close();
    Ok(if fails && arguments.fail_if_claims_fail { CommandResult::Found } else { CommandResult::Done })
}

/// A study that was run and judged.
pub struct StudyRun {
    /// The lab, whose journal is kept until everything is shown.
    pub bench: LabSetup,
    matrix: Matrix,
    data: Data,
    judged: Vec<Judged>,
    caveats: Vec<(&'static str, String)>,
}

impl StudyRun {
    /// The data for the report.
    pub fn facts(&self) -> StudyInput<'_> {
        StudyInput {
            matrix: &self.matrix,
            data: &self.data,
            claims: &self.judged,
            caveats: self.caveats.clone(),
            nodes: self.bench.nodes(),
        }
    }

    pub fn fails(&self) -> bool {
        self.judged.iter().any(|claim| claim.verdict == Verdict::Fails)
    }
}

/// Runs a study in `lab` and judges its claims.
pub fn run_and_judge(
    chosen: &ChosenStudy,
    arguments: &Arguments,
    lab: &Lab,
    teller: &LabProgress,
) -> std::result::Result<StudyRun, NoResult> {
    let matrix = &chosen.matrix;
    let mut bill = needs::check_cells(matrix).map_err(|line| NoResult::Failed(Failure(line)))?;
    let (bench, data, caveats) = measure(chosen, &mut bill, arguments, lab, teller)?;
    let (shared_matrix, shared) = (Arc::new(matrix.clone()), run::shared(data.clone()));
    let judged = matrix.study.claims.iter().map(|claim| judge(claim, &shared_matrix, &shared)).collect();
    Ok(StudyRun { bench, matrix: matrix.clone(), data, judged, caveats })
}

type Measured = (LabSetup, Data, Vec<(&'static str, String)>);

/// Sets up the lab, builds, and runs all cells.
fn measure(
    chosen: &ChosenStudy,
    bill: &mut RunnableCells,
    arguments: &Arguments,
    lab: &Lab,
    teller: &LabProgress,
) -> std::result::Result<Measured, NoResult> {
    let matrix = &chosen.matrix;
    let (mut bench, build) = open(chosen, arguments, lab)?;
    if let Some(executor) = bench.executors.first_mut() {
        let say = |line: &str| teller.show_line(line);
        let resumed = bench.journal.resumed_runs() > 0;
        run::prepare(matrix, bill, (&build, resumed), &mut **executor, &how_it_ended, &say)?;
    }
    let subjects: Vec<Subject> =
        bill.cells.iter().map(|key| cell::subject(matrix, key, &build, arguments.lab.timeout)).collect();
    let may_fail = |key: &strandline_study::matrix::Key| {
        matrix.subjects.get(key.subject).is_some_and(|subject| subject.may_fail)
    };
    let mut referee = StudyJudge {
        may_fail: bill.cells.iter().map(may_fail).collect(),
        progress: &|progress| teller.update(progress),
        failures: Default::default(),
        cachegrind_failures: Default::default(),
        left_behind: 0,
    };
    let plan = Plan {
        subjects,
        warm_up: matrix.study.settings.warm_up,
        min_rounds: matrix.max_repeats(),
        max_rounds: matrix.max_repeats(),
        seed: matrix.study.settings.seed,
    };
    let results = engine::runs_done(&plan, &mut bench.executors, &mut bench.journal, &mut referee)?;
    let is_counted: Vec<bool> = bill.cells.iter().map(|key| run::uses_cachegrind(matrix, key)).collect();
    let counts = if is_counted.contains(&true) {
        let rounds = CACHEGRIND_ROUNDS.min(matrix.max_repeats());
        let mut subjects = cachegrind_subjects(&plan.subjects);
        for (subject, _) in subjects.iter_mut().zip(&is_counted).filter(|(_, is_counted)| !**is_counted) {
            subject.rounds = Some(0);
        }
        let plan = Plan { subjects, warm_up: 0, min_rounds: rounds, max_rounds: rounds, seed: plan.seed };
        // A cell that failed before is retried here; a failure here does not count for its timed
        // runs.
        let timed = std::mem::take(&mut referee.failures);
        let counts = engine::runs_done(&plan, &mut bench.executors, &mut bench.journal, &mut referee)?;
        referee.cachegrind_failures = std::mem::replace(&mut referee.failures, timed);
        Some(counts)
    } else {
        None
    };
    let counts = counts.as_ref().map(|counts| (counts, &referee.cachegrind_failures));
    let data = run::data(matrix, bill, &results, counts, &referee.failures, &how_it_ended);
    let caveats = caveats(matrix, bill, &plan.subjects, &referee, arguments, &bench);
    Ok((bench, data, caveats))
}
