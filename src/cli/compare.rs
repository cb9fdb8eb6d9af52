//! `compare A B`: runs commands in pairs, and shows each figure as a ratio with its interval.

use std::collections::BTreeSet;
use std::time::Duration;

use super::arguments_lab::{Case, Compare, Rounds};
use super::lab::{LabProgress, UNTIL_FACTOR, lab_options, report_stop, require_confirmation, show};
use super::output::Output;
use super::{CommandResult, Failure, Result, refuse};
use strandline_lab::cell::{End, Measure, Outcome, Subject, SubjectRun};
use strandline_lab::command_line::{CommandLine, assignments};
use strandline_lab::compare::{CommandCase, CompareJudge, Comparison, cachegrind_subjects, letter};
use strandline_lab::engine::{self, Plan, Progress, Results};
use strandline_lab::executor::StopReason;
use strandline_lab::is_in_path;
use strandline_lab::pages::compare::{CompareInput, document, page};
use strandline_lab::setup::{LabContent, LabSetup};
use strandline_lab::user::ProgressDisplay;

const SCHEMA: &str = "strandline/compare/1";
/// Number of runs in cachegrind, which hardly vary and take 20 to 100 times as long
/// (valgrind.org/info/tools.html).
const COUNTED_ROUNDS: u32 = 5;
const NO_VALGRIND: &str =
    "valgrind, which --instructions counts with on this machine, is not here: apt install valgrind";
/// Sampling interval of recorded runs: shows changes of memory without affecting the run time.
const RECORDING_INTERVAL: Duration = Duration::from_millis(10);

/// The commands and cases to compare.
struct Matrix {
    commands: Vec<String>,
    /// Names of the cases; a single empty one if there are no cases.
    cases: Vec<String>,
    /// One subject for each combination, by case and then by command.
    subjects: Vec<Subject>,
    /// The combination that each subject stands for.
    combinations: Vec<CommandCase>,
    /// Names of the subjects that a shell runs.
    shell_subjects: Vec<String>,
}

/// Runs the commands in alternation and compares them.
pub fn run(arguments: &Compare, output: &mut Output) -> Result<CommandResult> {
    let matrix = match build_matrix(arguments) {
        Ok(matrix) => matrix,
        Err(line) => return refuse(&line),
    };
    let description = (&matrix.commands, &matrix.cases, arguments.rounds.seed, arguments.rounds.warm_up);
    let content = LabContent { verb: "compare", description: &description, subjects: &matrix.subjects };
    let mut lab = LabSetup::open(content, &lab_options(&arguments.lab)).map_err(Failure)?;
    let runs = max_subject_runs(arguments).saturating_mul(matrix.subjects.len() as u64);
    require_confirmation(&mut lab, &matrix.subjects, runs, arguments.lab.yes)?;
    let progress = LabProgress::new("compare", !output.is_json);
    let no_counters_reason = lab.executors.first().and_then(|executor| executor.no_counters_reason());
    let uses_cachegrind = arguments.instructions && no_counters_reason.is_some();
    if uses_cachegrind && !is_in_path("valgrind") {
        lab.close();
        return Err(Failure(NO_VALGRIND.to_owned()));
    }
    let mut judge = CompareJudge {
        may_fail: arguments.ignore_failure,
        max_half_width: arguments.rounds.until,
        places: &matrix.combinations,
        command_count: matrix.commands.len(),
        case_count: matrix.cases.len(),
        ..CompareJudge::default()
    };
    let measured = measure(arguments, &matrix, uses_cachegrind, &mut lab, &mut judge, &progress);
    let (first_failure, failures) = (judge.first_failure, judge.failures);
    drop(progress);
    let (combinations, results) = match measured {
        Ok(measured) => measured,
        Err(stop) => {
            // End running commands before printing.
            drop(lab);
            return report_stop(&stop);
        }
    };
    if let Some(SubjectRun { subject, outcome }) = first_failure {
        // Read its last output before the files are removed.
        let failure = run_failure(matrix.subjects.get(subject), &outcome);
        // Do not resume from this lab: the cause of the failure may be fixed.
        lab.abandon();
        return Err(failure);
    }
    let (commands, cases) = (matrix.commands.clone(), matrix.cases.clone());
    let seed = arguments.rounds.seed;
    let comparison = Comparison::evaluate(commands, cases, &combinations, &results, seed);
    let first_case = matrix.subjects.iter().take(matrix.commands.len());
    let name = |index: usize| matrix.subjects.get(index).map(|subject| subject.name.clone());
    let input = CompareInput {
        comparison: &comparison,
        environments: first_case.map(|subject| subject.environment.clone()).collect(),
        warm_up: arguments.rounds.warm_up,
        seed,
        jobs: arguments.lab.jobs,
        no_counters_reason,
        uses_cachegrind,
        cachegrind_rounds: COUNTED_ROUNDS,
        shell_subjects: &matrix.shell_subjects,
        failures: failures.into_iter().filter_map(|(subject, count)| Some((name(subject)?, count))).collect(),
        max_half_width: arguments.rounds.until,
        lab_caveats: lab.caveats(),
        nodes: lab.nodes(),
    };
    show(SCHEMA, &input.nodes, &document(&input), &page(&input), &arguments.report_output, output)?;
    lab.close();
    Ok(CommandResult::Done)
}

/// Upper bound on the number of runs of each subject.
fn max_subject_runs(arguments: &Compare) -> u64 {
    let counted_rounds = if arguments.instructions { COUNTED_ROUNDS } else { 0 };
    u64::from(max_rounds(&arguments.rounds)) + u64::from(arguments.rounds.warm_up) + u64::from(counted_rounds)
}

/// Upper bound on the number of measured rounds.
fn max_rounds(rounds: &Rounds) -> u32 {
    if rounds.until.is_some() { rounds.repeat.saturating_mul(UNTIL_FACTOR) } else { rounds.repeat }
}

/// The failure of a comparison because of a failed run.
fn run_failure(subject: Option<&Subject>, outcome: &Outcome) -> Failure {
    let name = subject.map_or("a command", |subject| subject.name.as_str());
    let hint = match outcome.end {
        End::NotStarted(_) => "",
        _ => "; --ignore-failure compares all the same",
    };
    Failure(format!("{name}: {}{hint}", outcome.describe_end()))
}

/// Measures times, then, if `uses_cachegrind`, counts instructions. Returns the results, and the
/// combinations that their subjects stand for.
fn measure(
    arguments: &Compare,
    matrix: &Matrix,
    uses_cachegrind: bool,
    lab: &mut LabSetup,
    judge: &mut CompareJudge<'_>,
    progress: &LabProgress,
) -> std::result::Result<(Vec<CommandCase>, Results), StopReason> {
    let plan = Plan {
        subjects: matrix.subjects.clone(),
        warm_up: arguments.rounds.warm_up,
        min_rounds: arguments.rounds.repeat,
        max_rounds: max_rounds(&arguments.rounds),
        seed: arguments.rounds.seed,
    };
    let update = |state: &Progress| progress.update(state);
    let mut results = engine::run_plan(&plan, &mut lab.executors, &mut lab.journal, judge, &update)?;
    let mut combinations = matrix.combinations.clone();
    if uses_cachegrind && !results.was_stopped {
        let plan = Plan {
            subjects: cachegrind_subjects(&matrix.subjects),
            warm_up: 0,
            min_rounds: COUNTED_ROUNDS,
            max_rounds: COUNTED_ROUNDS,
            ..plan
        };
        let counted = engine::run_plan(&plan, &mut lab.executors, &mut lab.journal, judge, &update)?;
        results.outcomes.extend(counted.outcomes);
        combinations.extend_from_slice(&matrix.combinations);
    }
    Ok((combinations, results))
}

struct ParsedCommand {
    /// How it is shown.
    text: String,
    line: CommandLine,
}

/// Parses the commands; with --env, adds the command under each variant.
fn parse_commands(arguments: &Compare) -> std::result::Result<Vec<ParsedCommand>, String> {
    let mut parsed = Vec::new();
    for text in &arguments.commands {
        parsed.push(ParsedCommand { text: text.clone(), line: CommandLine::parse(text)? });
    }
    match (arguments.commands.as_slice(), arguments.env.as_slice()) {
        (_, []) => {}
        ([text], variants) => {
            for variant in variants {
                let mut line = CommandLine::parse(text)?;
                line.environment.extend(assignments(variant)?);
                parsed.push(ParsedCommand { text: format!("{variant} {text}"), line });
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

/// Returns the cases, which must have different names; a single one without a name if there are
/// none.
fn distinct_cases(arguments: &Compare) -> std::result::Result<Vec<Case>, String> {
    if arguments.case.is_empty() {
        return Ok(vec![Case::default()]);
    }
    let mut names = BTreeSet::new();
    match arguments.case.iter().find(|case| !names.insert(&case.name)) {
        Some(case) => Err(format!("two cases are called {}", case.name)),
        None => Ok(arguments.case.clone()),
    }
}

/// Builds every combination of command and case.
fn build_matrix(arguments: &Compare) -> std::result::Result<Matrix, String> {
    let parsed = parse_commands(arguments)?;
    let cases = distinct_cases(arguments)?;
    let mut matrix = Matrix {
        commands: parsed.iter().map(|command| command.text.clone()).collect(),
        cases: cases.iter().map(|case| case.name.clone()).collect(),
        subjects: Vec::new(),
        combinations: Vec::new(),
        shell_subjects: Vec::new(),
    };
    for (case, Case { name, words }) in cases.iter().enumerate() {
        for (command, ParsedCommand { line, .. }) in parsed.iter().enumerate() {
            let line = if name.is_empty() { line.clone() } else { line.with_case(words)? };
            let subject_name = match name.as_str() {
                "" => letter(command),
                name => format!("{} in case {name}", letter(command)),
            };
            if line.runs_in_shell {
                matrix.shell_subjects.push(subject_name.clone());
            }
            let measure = if arguments.record {
                Measure::Recording {
                    interval: RECORDING_INTERVAL,
                    ledgers: "none".to_owned(),
                    uses_snapshot: false,
                }
            } else {
                Measure::Figures
            };
            let subject = Subject { timeout: arguments.lab.timeout, measure, ..line.subject(&subject_name) };
            matrix.subjects.push(subject);
            matrix.combinations.push(CommandCase { command, case });
        }
    }
    Ok(matrix)
}
