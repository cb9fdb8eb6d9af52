//! `study [NAME]`: lists studies, runs one and judges its claims; `study check`, `study new`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::arguments_lab::{Lab, Study as Arguments, StudyAction};
use super::lab::{Bench, Teller, how_it_ended, show, stopped};
use super::output::{Output, complain};
use super::{Ending, Failure, Result};
use crate::lab::cell::{Measure, Subject};
use crate::lab::compare::counted;
use crate::lab::engine::{self, Plan};
use crate::lab::executor::Stopped;
use crate::lab::study::claim::{Judged, Verdict, judge};
use crate::lab::study::file::Study;
use crate::lab::study::matrix::Matrix;
use crate::lab::study::run::{self, Bill, COUNTED_ROUNDS, Referee};
use crate::lab::study::{find, needs, skeleton};
use crate::report::lab::page::{Cell, Column, Page, Section, Table, Tone};
use crate::report::lab::study::{Facts, document, page};
use crate::report::text::{clean, clean_sentence};
use crate::report::units::seconds;

const SCHEMA: &str = "strandline/study/1";
/// Studies of more runs are not begun unasked.
const MANY_RUNS: u64 = 10_000;
/// Nor are those that take longer; that is found out where there are so many runs.
const LONG: Duration = Duration::from_secs(20 * 60);
const SOME_RUNS: u64 = 200;

/// Does what the arguments say.
pub fn run(arguments: &Arguments, output: &mut Output) -> Result<Ending> {
    match &arguments.action {
        Some(StudyAction::Check { name }) => check(name, output),
        Some(StudyAction::New { name }) => new(name, output),
        None => match &arguments.name {
            Some(name) => run_study(name, arguments, output),
            None => list(arguments, output),
        },
    }
}

fn read(name: &str) -> Result<(Arc<Study>, String, PathBuf)> {
    let folder = find::find(name).map_err(Failure)?;
    if let Some(others) = find::also_in(name, &folder) {
        complain(&clean(&format!("study {name}: the one in {} is taken, not {others}", folder.display())));
    }
    match Study::read(&folder) {
        Ok((study, text)) => Ok((Arc::new(study), text, folder)),
        Err(lines) => {
            let last = lines.len().saturating_sub(1);
            for line in lines.iter().take(last) {
                complain(line);
            }
            Err(Failure(lines.into_iter().next_back().unwrap_or_default()))
        }
    }
}

fn check(name: &str, output: &mut Output) -> Result<Ending> {
    let folder = find::find(name).map_err(Failure)?;
    let (ending, problems) = match Study::read(&folder) {
        Ok((study, _)) => {
            let matrix = Matrix::full(Arc::new(study));
            let cells = matrix.count().map_or_else(|| "too many".to_owned(), |count| count.to_string());
            if !output.json {
                output.print(&clean_line(&format!(
                    "{}: nothing is wrong with it; cells: {cells}, claims: {}",
                    folder.display(),
                    matrix.study.claims.len()
                )))?;
            }
            (Ending::Done, Vec::new())
        }
        Err(lines) => {
            lines.iter().for_each(|line| complain(line));
            (Ending::CouldNot, lines)
        }
    };
    if output.json {
        let body = serde_json::json!({ "path": folder, "problems": problems });
        output.document("strandline/study-check/1", None, &body)?;
    }
    Ok(ending)
}

fn clean_line(line: &str) -> String {
    format!("{}\n", clean(line))
}

fn new(name: &str, output: &mut Output) -> Result<Ending> {
    let path = if name.contains('/') { PathBuf::from(name) } else { Path::new("studies").join(name) };
    let made = skeleton::make(&path).map_err(Failure)?;
    if output.json {
        output.document("strandline/study-new/1", None, &serde_json::json!({ "files": made }))?;
        return Ok(Ending::Done);
    }
    let files: String = made.iter().map(|file| clean_line(&file.display().to_string())).collect();
    output.print(&format!("{files}run it with: strandline study {}\n", clean(name)))?;
    Ok(Ending::Done)
}

/// Names, titles, and whether what they need is here.
fn list(arguments: &Arguments, output: &mut Output) -> Result<Ending> {
    let mut rows = Vec::new();
    let mut items = Vec::new();
    for (name, folder) in find::list() {
        let path = folder.map_or_else(|| find::find(&name), Ok);
        let read = path.map_err(|line| vec![line]).and_then(|path| Study::glance(&path));
        let (title, needs, tone) = match read {
            Ok(study) => {
                let title = study.title.clone();
                let (needs, tone) = what_it_needs(Arc::new(study));
                (title, needs, tone)
            }
            Err(lines) => {
                let line = lines.into_iter().next().unwrap_or_default();
                (String::new(), format!("cannot be read: {line}"), Tone::Bad)
            }
        };
        items.push(
            serde_json::json!({ "name": name, "title": title, "ready": tone == Tone::Good, "needs": needs }),
        );
        let plain = |text: &str| Cell { text: clean_sentence(text), tone: Tone::Plain };
        rows.push(vec![plain(&name), plain(&title), Cell { text: clean_sentence(&needs), tone }]);
    }
    let column = |title: &str| Column { title: title.to_owned(), figures: false };
    let headline = if rows.is_empty() {
        "There is none: `strandline study new NAME` makes one.".to_owned()
    } else {
        "`strandline study NAME` runs one, `strandline study new NAME` makes one.".to_owned()
    };
    let columns = vec![column("study"), column("title"), column("needs")];
    let table = Table { caption: String::new(), columns, rows };
    let page = Page {
        title: "studies".to_owned(),
        headline,
        sections: vec![Section { tables: vec![table], ..Section::default() }],
        ..Page::default()
    };
    show("strandline/studies/1", &serde_json::json!({ "studies": items }), &page, &arguments.shown, output)?;
    Ok(Ending::Done)
}

fn what_it_needs(study: Arc<Study>) -> (String, Tone) {
    const MOST_CELLS: u64 = 10_000;
    let Ok(matrix) = Matrix::chosen(study, false, &[]) else { return ("?".to_owned(), Tone::Faint) };
    if matrix.count().is_none_or(|count| count > MOST_CELLS) {
        return ("not looked at: many cells".to_owned(), Tone::Faint);
    }
    let Ok(bill) = run::bill(&matrix) else { return ("?".to_owned(), Tone::Faint) };
    let probed = needs::probed(&matrix, &bill.cells);
    let mut missing: Vec<String> = bill.missing.into_iter().map(|(_, why)| why).collect();
    missing.sort();
    missing.dedup();
    // To look would be to run something.
    let probed = (!probed.is_empty()).then(|| format!("not looked at: {}", probed.join(", ")));
    if missing.is_empty() {
        (Some("met".to_owned()).into_iter().chain(probed).collect::<Vec<_>>().join("; "), Tone::Good)
    } else {
        (missing.into_iter().chain(probed).collect::<Vec<_>>().join("; "), Tone::Bad)
    }
}

fn run_study(name: &str, arguments: &Arguments, output: &mut Output) -> Result<Ending> {
    let (study, text, _) = read(name)?;
    let mut matrix = Matrix::chosen(study, arguments.short, &arguments.axis).map_err(Failure)?;
    if let Some(repeat) = arguments.repeat {
        matrix.repeat(repeat);
    }
    let runs = matrix.runs();
    if !arguments.lab.yes {
        match ask(&matrix, &text, runs, arguments) {
            Ok(()) => {}
            Err(Gone::Stopped(why)) => return stopped(&why),
            Err(Gone::Failed(why)) => return Err(why),
        }
    }
    let mut bill = run::bill(&matrix).map_err(Failure)?;
    let teller = Teller::new("study", !output.json);
    let measured = measure(&matrix, &text, &mut bill, arguments, &teller);
    drop(teller);
    let (bench, data, caveats) = match measured {
        Ok(measured) => measured,
        Err(Gone::Stopped(why)) => return stopped(&why),
        Err(Gone::Failed(why)) => return Err(why),
    };
    let (shared_matrix, shared) = (Arc::new(matrix.clone()), run::shared(data.clone()));
    let judged: Vec<Judged> =
        matrix.study.claims.iter().map(|claim| judge(claim, &shared_matrix, &shared)).collect();
    let facts = Facts { matrix: &matrix, data: &data, claims: &judged, caveats };
    show(SCHEMA, &document(&facts), &page(&facts), &arguments.shown, output)?;
    bench.close();
    let fails = judged.iter().any(|claim| claim.verdict == Verdict::Fails);
    Ok(if fails && arguments.fail_if_claims_fail { Ending::Found } else { Ending::Done })
}

/// Why there is nothing to show.
enum Gone {
    Stopped(Stopped),
    Failed(Failure),
}

impl From<Stopped> for Gone {
    fn from(why: Stopped) -> Self {
        Self::Stopped(why)
    }
}

type Measured = (Bench, crate::lab::study::data::Data, Vec<(&'static str, String)>);

/// Sets up, builds, runs all cells.
fn measure(
    matrix: &Matrix,
    text: &str,
    bill: &mut Bill,
    arguments: &Arguments,
    teller: &Teller,
) -> std::result::Result<Measured, Gone> {
    let (mut bench, build) = open(matrix, text, bill, arguments, &arguments.lab)?;
    if let Some(executor) = bench.executors.first_mut() {
        let say = |line: &str| teller.say(line);
        let resumed = bench.journal.found() > 0;
        run::prepare(matrix, bill, (&build, resumed), &mut **executor, &how_it_ended, &say)?;
    }
    let subjects: Vec<Subject> =
        bill.cells.iter().map(|key| run::subject(matrix, key, &build, arguments.lab.timeout)).collect();
    let may_fail = |key: &crate::lab::study::matrix::Key| {
        matrix.subjects.get(key.subject).is_some_and(|subject| subject.may_fail)
    };
    let mut referee = Referee {
        may_fail: bill.cells.iter().map(may_fail).collect(),
        progress: &|progress| teller.tell(progress),
        failures: Default::default(),
        left_behind: 0,
    };
    let plan = Plan {
        subjects,
        warm_up: matrix.study.settings.warm_up,
        at_least: matrix.most_repeats(),
        at_most: matrix.most_repeats(),
        seed: matrix.study.settings.seed,
    };
    let results = engine::run(&plan, &mut bench.executors, &mut bench.journal, &mut referee)?;
    let is_counted: Vec<bool> = bill.cells.iter().map(|key| run::is_counted(matrix, key)).collect();
    let counts = if is_counted.contains(&true) {
        let rounds = COUNTED_ROUNDS.min(matrix.most_repeats());
        let mut subjects = counted(&plan.subjects);
        for (subject, _) in subjects.iter_mut().zip(&is_counted).filter(|(_, is_counted)| !**is_counted) {
            subject.rounds = Some(0);
        }
        let plan = Plan { subjects, warm_up: 0, at_least: rounds, at_most: rounds, seed: plan.seed };
        // A cell that failed before is tried again here, but what failed before stays known.
        let timed = std::mem::take(&mut referee.failures);
        let counts = engine::run(&plan, &mut bench.executors, &mut bench.journal, &mut referee)?;
        for (index, (count, outcome)) in timed {
            referee.failures.entry(index).and_modify(|known| known.0 += count).or_insert((count, outcome));
        }
        Some(counts)
    } else {
        None
    };
    let data = run::data(matrix, bill, &results, counts.as_ref(), &referee.failures, &how_it_ended);
    let caveats = caveats(matrix, bill, &plan.subjects, &referee, arguments, &bench);
    Ok((bench, data, caveats))
}

/// The lab of these cells, and the folder that `{build}` stands for.
fn open(
    matrix: &Matrix,
    text: &str,
    bill: &Bill,
    arguments: &Arguments,
    lab: &Lab,
) -> std::result::Result<(Bench, PathBuf), Gone> {
    // The folder's name comes of what is run: there the folder for builds has its placeholder still.
    let unbuilt = |key| Subject {
        directory: None,
        ..run::subject(matrix, key, Path::new("{build}"), arguments.lab.timeout)
    };
    let subjects: Vec<Subject> = bill.cells.iter().map(unbuilt).collect();
    let described = (run::description(matrix, text), matrix.most_repeats());
    let bench = Bench::open("study", &described, &subjects, lab).map_err(Gone::Failed)?;
    let build = bench.journal.folder().join("build");
    let made = std::fs::create_dir_all(&build).and_then(|()| build.canonicalize());
    let build = made.map_err(|error| Gone::Failed(Failure(format!("{}: {error}", build.display()))))?;
    Ok((bench, build))
}

/// Refuses a study that takes very long, or has very many runs, that nobody said yes to. One cell is run to tell
/// how long it would take.
fn ask(
    matrix: &Matrix,
    text: &str,
    runs: Option<u64>,
    arguments: &Arguments,
) -> std::result::Result<(), Gone> {
    let is_few = runs.is_some_and(|runs| runs < SOME_RUNS);
    if is_few {
        return Ok(());
    }
    let mut first = matrix.clone();
    for axis in &mut first.axes {
        axis.choices.truncate(1);
    }
    first.subjects.truncate(1);
    first.repeat(1);
    let bill = run::bill(&first).map_err(|line| Gone::Failed(Failure(line)))?;
    let lab = Lab { dir: None, jobs: 1, fresh: true, ..arguments.lab.clone() };
    let each = time_of_one(&first, text, &bill, arguments, &lab)?;
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
    Err(Gone::Failed(Failure(format!(
        "{}: that is {runs_text} runs{about}; narrow an axis with --axis, or add --yes to begin",
        matrix.study.name
    ))))
}

/// How long one cell takes; `None` where it cannot be run. A signal meanwhile stops all.
fn time_of_one(
    matrix: &Matrix,
    text: &str,
    bill: &Bill,
    arguments: &Arguments,
    lab: &Lab,
) -> std::result::Result<Option<Duration>, Gone> {
    let Some(key) = bill.cells.first() else { return Ok(None) };
    let (mut bench, build) = open(matrix, text, bill, arguments, lab)?;
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

/// What is to be known about the figures.
fn caveats(
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
    if bill.cells.iter().any(|key| run::is_counted(matrix, key)) {
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
