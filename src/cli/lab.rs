//! Functions shared by the lab's subcommands: options, the user, progress, ending a lab, showing
//! results.

use std::io::{IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use serde::Serialize;
use strandline_inspect::environment::Environment;

use super::arguments_lab::{Lab, LabFormat, ReportOutput};
use super::output::{Output, print_message};
use super::progress::Progress as Line;
use super::{CommandResult, Failure, Result};
use strandline_lab::TaskCounts;
use strandline_lab::cell::Subject;
use strandline_lab::engine::Progress;
use strandline_lab::executor::StopReason;
use strandline_lab::interrupt::Interrupt;
use strandline_lab::nodes::NodeKind;
use strandline_lab::setup::{LabOptions, LabSetup, MAX_UNCONFIRMED_RUNS};
use strandline_lab::slurm;
use strandline_lab::user::{Decision, ProgressDisplay, User};
use strandline_report::pages::page::Page;
use strandline_report::pages::{html, markdown, terminal};
use strandline_report::units::seconds;

/// A user who does not answer the question in this time gets the default: the jobs are cancelled.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Milliseconds between two checks for a second signal while the user types.
const ANSWER_POLL_MS: u8 = 200;
/// Bytes of an answer that are kept; only the first one counts.
const MAX_ANSWER_BYTES: usize = 16;
/// With --until, the maximum number of rounds as a multiple of the requested ones.
pub const UNTIL_FACTOR: u32 = 10;

pub fn lab_options(lab: &Lab) -> LabOptions {
    let cluster = lab.slurm.on.map(|_| slurm::Options {
        sbatch: lab.slurm.options(),
        is_shared: lab.slurm.shared,
        max_running: lab.slurm.at_once,
        service: None,
    });
    LabOptions {
        folder: lab.dir.clone(),
        is_fresh: lab.fresh,
        jobs: lab.jobs,
        cluster,
        service: None,
        user: Arc::new(TerminalUser),
    }
}

/// Refuses a lab of more than [`MAX_UNCONFIRMED_RUNS`] runs without --yes, with an estimate of its
/// time: runs the first of `subjects` once for that, if there is one.
pub fn require_confirmation(
    lab: &mut LabSetup,
    subjects: &[Subject],
    runs: u64,
    is_confirmed: bool,
) -> Result<()> {
    if runs <= MAX_UNCONFIRMED_RUNS || is_confirmed {
        return Ok(());
    }
    let run_time = match subjects.first() {
        Some(subject) => lab.time_one_run(subject).map_err(|stop| failure(&stop))?,
        None => None,
    };
    let estimate = run_time.map(|run_time| {
        let run_seconds = run_time.as_secs_f64();
        let all_seconds = run_seconds * runs as f64;
        format!(", about {} (one was run, and took {})", seconds(all_seconds), seconds(run_seconds))
    });
    Err(Failure(format!("that is {runs} runs{}; add --yes to start", estimate.unwrap_or_default())))
}

/// The user at the terminal that strandline was started from.
pub struct TerminalUser;

impl User for TerminalUser {
    fn show(&self, line: &str) {
        if std::io::stderr().is_terminal() {
            // Erase the progress line.
            drop(write!(std::io::stderr(), "\r\x1b[K"));
        }
        print_message(line);
    }

    fn decide(&self, signal: i32, jobs: &str, tasks: TaskCounts, interrupt: &Interrupt) -> Decision {
        // Treat a closed terminal like a crashed machine: the same command collects the results
        // later.
        if signal == Signal::SIGHUP as i32 {
            return Decision::Leave;
        }
        let has_terminal = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
        let can_ask = has_terminal && strandline_sys::host::is_in_foreground();
        if signal != Signal::SIGINT as i32 || !can_ask {
            return Decision::Cancel;
        }
        let TaskCounts { running, waiting } = tasks;
        drop(write!(
            std::io::stderr(),
            "\r\x1b[Kstrandline: cancel job {jobs} ({running} rounds run, {waiting} wait)? [Y/n] "
        ));
        read_answer(interrupt)
    }
}

/// Reads the answer from standard input; a second signal or a timeout counts as yes.
fn read_answer(interrupt: &Interrupt) -> Decision {
    let begin = Instant::now();
    let mut input = std::io::stdin();
    let mut typed = Vec::new();
    while begin.elapsed() < ANSWER_TIMEOUT && !interrupt.has_another() {
        let timeout = PollTimeout::from(ANSWER_POLL_MS);
        let mut source = [PollFd::new(input.as_fd(), PollFlags::POLLIN)];
        let is_typed = poll(&mut source, timeout).is_ok_and(|count| count > 0);
        if !is_typed {
            continue;
        }
        let mut byte = [0];
        match input.read(&mut byte) {
            Ok(1) if byte != *b"\n" && typed.len() < MAX_ANSWER_BYTES => typed.extend(byte),
            _ => break,
        }
    }
    match typed.first() {
        Some(b'n' | b'N') => Decision::Leave,
        _ => Decision::Cancel,
    }
}

/// Reports why a lab stopped; after a signal strandline ends by the same signal.
pub fn report_stop(stop: &StopReason) -> Result<CommandResult> {
    match stop {
        StopReason::Interrupted(signal) => {
            print_message("interrupted: run the same command to resume");
            // The wait status of a process that a signal ended is the signal's number.
            Ok(CommandResult::WaitStatus(*signal))
        }
        StopReason::Failed(_) => Err(failure(stop)),
    }
}

/// Why a lab stopped, as a failure.
fn failure(stop: &StopReason) -> Failure {
    match stop {
        StopReason::Interrupted(signal) => Failure(format!("interrupted by signal {signal}")),
        StopReason::Failed(why) => Failure(why.clone()),
    }
}

/// A progress line of a lab.
pub struct LabProgress {
    line: Line,
    /// The subcommand, or the study, that begins the line.
    title: String,
}

impl LabProgress {
    /// A progress line that begins with `title`; shown if `is_shown` (no JSON output).
    pub fn new(title: impl Into<String>, is_shown: bool) -> Self {
        Self { line: Line::new(is_shown), title: title.into() }
    }
}

impl ProgressDisplay for LabProgress {
    fn update(&self, progress: &Progress) {
        let mut line = format!("{}: {} of {} runs", self.title, progress.finished_runs, progress.max_runs);
        if let Some(remaining) = progress.remaining {
            line += &format!(", at most {} left", seconds(remaining.as_secs_f64()));
        }
        if let Some(TaskCounts { running, waiting }) = progress.tasks {
            line += &format!("; rounds: {running} run, {waiting} wait");
        }
        self.line.set_line(&line);
    }

    fn show_line(&self, text: &str) {
        self.line.set_line(&format!("{}: {text}", self.title));
    }
}

/// The field `environment` of a lab's document.
#[derive(Serialize)]
struct LabEnvironment<'a> {
    #[serde(flatten)]
    machine: Environment,
    /// The kinds of machines that ran it, if they are other machines.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    nodes: &'a [NodeKind],
}

/// Shows a report in the requested format.
pub fn show<T: Serialize>(
    schema: &str,
    nodes: &[NodeKind],
    body: &T,
    page: &Page,
    report_output: &ReportOutput,
    output: &mut Output,
) -> Result<()> {
    let text = match chosen_format(report_output, output) {
        LabFormat::Terminal => terminal::text(page, output.surface),
        LabFormat::Markdown => markdown::text(page),
        LabFormat::Html => html::text(page)?,
        LabFormat::Json => json(schema, nodes, body)?,
    };
    write_output(&text, report_output, output)
}

/// The format that --json or --format requests.
pub fn chosen_format(report_output: &ReportOutput, output: &Output) -> LabFormat {
    if output.is_json { LabFormat::Json } else { report_output.format.unwrap_or(LabFormat::Terminal) }
}

/// A JSON document with the environment of this machine and the kinds of machines that ran the lab.
pub fn json<T: Serialize>(schema: &str, nodes: &[NodeKind], body: &T) -> Result<String> {
    let environment = LabEnvironment { machine: Environment::read(), nodes };
    Ok(strandline_report::json::document(schema, &environment, None, body)?)
}

/// Writes a report to the requested destination.
pub fn write_output(text: &str, report_output: &ReportOutput, output: &mut Output) -> Result<()> {
    let Some(path) = &report_output.output else { return output.print(text) };
    let written = std::fs::File::create(path).and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| Failure(format!("{}: {error}", path.display())))?;
    if std::io::stderr().is_terminal() {
        print_message(&format!("written to {}", path.display()));
    }
    Ok(())
}
