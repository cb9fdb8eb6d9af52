//! Runs one study: its choices, its lab, its runs, and the verdicts on its claims.

use std::sync::Arc;

use super::super::arguments_lab::{Lab, Study as Arguments};
use super::super::lab::{Bench, Teller, how_it_ended, show};
use super::super::output::{Output, complain};
use super::super::{Ending, Failure, Result};
use super::ask::ask;
use super::caveats::caveats;
use super::chosen::{Chosen, open};
use super::files::Files;
use super::{Gone, read};
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
pub fn run(name: &str, arguments: &Arguments, output: &mut Output) -> Result<Ending> {
    let text = read(name).map_err(|mut lines| {
        let last = lines.pop().unwrap_or_default();
        lines.iter().for_each(|line| complain(line));
        Failure(last)
    })?;
    let folder = &text.0.folder;
    if let Some(others) = find::other_places(name, folder) {
        complain(&clean(&format!("study {name}: the one in {} is taken, not {others}", folder.display())));
    }
    let chosen = Chosen::new(text, arguments, &arguments.axis).map_err(Failure)?;
    let mut files = Files::wanted(arguments, &format!("strandline-study-{}.html", chosen.matrix.study.name))?;
    let teller = Teller::new("study", !output.json);
    let ran = ask(&[(&chosen, &arguments.lab)], arguments, &teller)
        .and_then(|()| conduct(&chosen, arguments, &arguments.lab, &teller));
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
    Ok(if fails && arguments.fail_if_claims_fail { Ending::Found } else { Ending::Done })
}

/// A study that was run and judged.
pub struct Ran {
    /// The lab, whose journal is kept until everything is shown.
    pub bench: Bench,
    matrix: Matrix,
    data: Data,
    judged: Vec<Judged>,
    caveats: Vec<(&'static str, String)>,
}

impl Ran {
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
pub fn conduct(
    chosen: &Chosen,
    arguments: &Arguments,
    lab: &Lab,
    teller: &Teller,
) -> std::result::Result<Ran, Gone> {
    let matrix = &chosen.matrix;
    let mut bill = needs::check_cells(matrix).map_err(|line| Gone::Failed(Failure(line)))?;
    let (bench, data, caveats) = measure(chosen, &mut bill, arguments, lab, teller)?;
    let (shared_matrix, shared) = (Arc::new(matrix.clone()), run::shared(data.clone()));
    let judged = matrix.study.claims.iter().map(|claim| judge(claim, &shared_matrix, &shared)).collect();
    Ok(Ran { bench, matrix: matrix.clone(), data, judged, caveats })
}

type Measured = (Bench, Data, Vec<(&'static str, String)>);

/// Sets up the lab, builds, and runs all cells.
fn measure(
    chosen: &Chosen,
    bill: &mut RunnableCells,
    arguments: &Arguments,
    lab: &Lab,
    teller: &Teller,
) -> std::result::Result<Measured, Gone> {
    let matrix = &chosen.matrix;
    let (mut bench, build) = open(chosen, arguments, lab)?;
    if let Some(executor) = bench.executors.first_mut() {
        let say = |line: &str| teller.say(line);
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
        progress: &|progress| teller.tell(progress),
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
