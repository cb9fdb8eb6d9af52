//! `compare A B`: runs commands in pairs, and shows each figure as a ratio with its interval.

use std::collections::BTreeMap;
use std::time::Duration;

use super::arguments_lab::{Compare, Rounds};
use super::lab::{LabProgress, lab_options, require_confirmation, show, stopped};
use super::output::Output;
use super::{CommandResult, Failure, Result};
use strandline_lab::cell::{End, Measure, Outcome, Subject};
use strandline_lab::command_line::{CommandLine, assignments};
use strandline_lab::compare::{CommandCase, CompareJudge, Comparison, cachegrind_subjects, letter};
use strandline_lab::engine::{self, Plan, Progress, Results};
use strandline_lab::executor::Stopped;
use strandline_lab::is_in_path;
use strandline_lab::pages::compare::{CompareInput, document, page};
use strandline_lab::setup::{LabContent, LabSetup};
use strandline_lab::user::ProgressDisplay;

const SCHEMA: &str = "strandline/compare/1";
/// Number of runs in cachegrind, which hardly vary and take 20 to 50 times as long.
const COUNTED_ROUNDS: u32 = 5;
/// With --until, the maximum number of rounds as a multiple of the requested ones.
const MAX_TIMES: u32 = 10;

/// Sampling interval of recorded runs: shows changes of memory without affecting the run time.
const RECORDED_EVERY: Duration = Duration::from_millis(10);

/// The commands and cases to compare.
struct Matrix {
    /// The commands as typed.
    commands: Vec<String>,
    /// Names of the cases.
    cases: Vec<String>,
    subjects: Vec<Subject>,
    places: Vec<CommandCase>,
    /// Subjects that a shell runs.
    by_shell: Vec<String>,
}

/// Runs the commands in alternation and compares them.
pub fn run(arguments: &Compare, output: &mut Output) -> Result<CommandResult> {
    let matrix = matrix(arguments).map_err(Failure)?;
    let described = (&matrix.commands, &matrix.cases, arguments.rounds.seed, arguments.rounds.warm_up);
    let content = LabContent { verb: "compare", description: &described, subjects: &matrix.subjects };
    let mut lab = LabSetup::open(content, &lab_options(&arguments.lab)).map_err(Failure)?;
    let runs = runs(arguments).saturating_mul(matrix.subjects.len() as u64);
    require_confirmation(&mut lab, &matrix.subjects, runs, arguments.lab.yes)?;
    let progress = LabProgress::new("compare", !output.json);
    let no_counters = lab.executors.first().and_then(|executor| executor.no_counters());
    let counts = arguments.instructions && no_counters.is_some();
    if counts && !is_in_path("valgrind") {
        lab.close();
        let text =
            "valgrind, which --instructions counts with on this machine, is not here: apt install valgrind";
        return Err(Failure(text.to_owned()));
    }
    let update = |runs: &Progress| progress.update(runs);
    let mut judge = new_judge(arguments, &matrix, &update);
    let measured = measure(arguments, &matrix, counts, &mut lab, &mut judge);
    let (failed, left_behind, failures) = (judge.failed, judge.left_behind, judge.failures);
    drop(progress);
    let (places, results) = match measured {
        Ok(measured) => measured,
        Err(why) => {
            // End running commands before printing.
            drop(lab);
            return stopped(&why);
        }
    };
    if let Some((subject, outcome)) = failed {
        // Read its last output before the files are removed.
        let failure = failure(matrix.subjects.get(subject), &outcome);
        // Do not resume from this lab: the cause of the failure may be fixed.
        lab.abandon();
        return Err(failure);
    }
    let (commands, cases) = (matrix.commands.clone(), matrix.cases.clone());
    let comparison = Comparison::judge(commands, cases, &places, &results, arguments.rounds.seed);
    let commands = matrix.subjects.iter().take(matrix.commands.len());
    let name = |subject: usize| matrix.subjects.get(subject).map(|subject| subject.name.clone());
    let facts = CompareInput {
        comparison: &comparison,
        environments: commands.map(|subject| subject.environment.clone()).collect(),
        warm_up: arguments.rounds.warm_up,
        seed: arguments.rounds.seed,
        jobs: arguments.lab.jobs,
        no_counters,
        counted_by_cachegrind: counts,
        counted_rounds: COUNTED_ROUNDS,
        by_shell: &matrix.by_shell,
        left_behind,
        failures: failures.into_iter().filter_map(|(subject, count)| Some((name(subject)?, count))).collect(),
        until: arguments.rounds.until,
        cluster_caveats: lab.caveats(),
        nodes: lab.nodes(),
    };
    let document = document(&facts);
    show(SCHEMA, &document, &page(&facts), &arguments.shown, output)?;
    lab.close();
    Ok(CommandResult::Done)
}

fn new_judge<'a>(
    arguments: &Compare,
    matrix: &'a Matrix,
    progress: &'a (dyn Fn(&Progress) + Sync),
) -> CompareJudge<'a> {
    CompareJudge {
        may_fail: arguments.ignore_failure,
        until: arguments.rounds.until,
        places: &matrix.places,
        commands: matrix.commands.len(),
        cases: matrix.cases.len(),
        progress,
        failed: None,
        left_behind: 0,
        failures: BTreeMap::new(),
    }
}

/// Upper bound on the number of runs of each subject.
fn runs(arguments: &Compare) -> u64 {
    let counted = if arguments.instructions { COUNTED_ROUNDS } else { 0 };
    u64::from(max_rounds(&arguments.rounds)) + u64::from(arguments.rounds.warm_up) + u64::from(counted)
}

/// Upper bound on the number of measured rounds.
fn max_rounds(rounds: &Rounds) -> u32 {
    if rounds.until.is_some() { rounds.repeat.saturating_mul(MAX_TIMES) } else { rounds.repeat }
}

/// The failure of a comparison because of a failed run.
fn failure(subject: Option<&Subject>, outcome: &Outcome) -> Failure {
    let name = subject.map_or("a command", |subject| subject.name.as_str());
    let ask = match outcome.end {
        End::NotStarted(_) => "",
        _ => "; --ignore-failure compares all the same",
    };
    Failure(format!("{name}: {}{ask}", outcome.describe_end()))
}

/// Measures times, then counts; returns the places of all subjects and the results.
fn measure(
    arguments: &Compare,
    matrix: &Matrix,
    counts: bool,
    lab: &mut LabSetup,
    judge: &mut CompareJudge<'_>,
) -> std::result::Result<(Vec<CommandCase>, Results), Stopped> {
    let plan = Plan {
        subjects: matrix.subjects.clone(),
        warm_up: arguments.rounds.warm_up,
        min_rounds: arguments.rounds.repeat,
        max_rounds: max_rounds(&arguments.rounds),
        seed: arguments.rounds.seed,
    };
    let mut results = engine::runs_done(&plan, &mut lab.executors, &mut lab.journal, judge)?;
    let mut places = matrix.places.clone();
    if counts && !results.stopped {
        let plan = Plan {
            subjects: cachegrind_subjects(&matrix.subjects),
            warm_up: 0,
            min_rounds: COUNTED_ROUNDS,
            max_rounds: COUNTED_ROUNDS,
            ..plan
        };
        let more = engine::runs_done(&plan, &mut lab.executors, &mut lab.journal, judge)?;
        results.outcomes.extend(more.outcomes);
        places.extend_from_slice(&matrix.places);
    }
    Ok((places, results))
}

/// Parses the commands; with --env, makes one of each variant.
fn commands(arguments: &Compare) -> std::result::Result<Vec<(String, CommandLine)>, String> {
    let mut parsed = Vec::new();
    for text in &arguments.commands {
        parsed.push((text.clone(), CommandLine::parse(text)?));
    }
    match (arguments.commands.as_slice(), arguments.env.as_slice()) {
        (_, []) => {}
        ([_], variants) => {
            let Some((text, base)) = parsed.first().cloned() else {
                return Err("no command was given".to_owned());
            };
            for variant in variants {
                let mut with = base.clone();
                with.environment.extend(assignments(variant)?);
                parsed.push((format!("{variant} {text}"), with));
            }
        }
        _ => {
            return Err(
                "--env is for one command, which is compared with itself under each; with several, write \
                        NAME=value before a command, in its quotes"
                    .to_owned(),
            );
        }
    }
    if parsed.len() < 2 {
        return Err(
            "one command cannot be compared: give another, or --env NAME=VALUE to compare it with itself \
                    under that"
                .to_owned(),
        );
    }
    Ok(parsed)
}

/// Returns the cases, by name, with the words that each adds; one without a name if there are none.
fn cases(arguments: &Compare) -> std::result::Result<Vec<(String, String)>, String> {
    let cases: Vec<(String, String)> = match arguments.case.as_slice() {
        [] => vec![(String::new(), String::new())],
        cases => cases.to_vec(),
    };
    let mut names: Vec<&String> = cases.iter().map(|(name, _)| name).collect();
    names.sort();
    if let Some(twice) = names.windows(2).find(|two| two.first() == two.last()) {
        return Err(format!("two cases are called {}", twice.first().map_or("", |name| name.as_str())));
    }
    Ok(cases)
}

/// Builds every combination of command and case.
fn matrix(arguments: &Compare) -> std::result::Result<Matrix, String> {
    let parsed = commands(arguments)?;
    let cases = cases(arguments)?;
    let mut matrix = Matrix {
        commands: parsed.iter().map(|(text, _)| text.clone()).collect(),
        cases: cases.iter().map(|(name, _)| name.clone()).collect(),
        subjects: Vec::new(),
        places: Vec::new(),
        by_shell: Vec::new(),
    };
    for (case, (name, words)) in cases.iter().enumerate() {
        for (command, (_, line)) in parsed.iter().enumerate() {
            let line = if name.is_empty() { line.clone() } else { line.with_case(words)? };
            let subject = match name.as_str() {
                "" => letter(command),
                name => format!("{} in case {name}", letter(command)),
            };
            if line.by_shell {
                matrix.by_shell.push(subject.clone());
            }
            let measure = if arguments.record {
                Measure::Recording { interval: RECORDED_EVERY, ledgers: "none".to_owned(), snapshot: false }
            } else {
                Measure::Figures
            };
            let subject = Subject { timeout: arguments.lab.timeout, measure, ..line.subject(&subject) };
            matrix.subjects.push(subject);
            matrix.places.push(CommandCase { command, case });
        }
    }
    Ok(matrix)
}
