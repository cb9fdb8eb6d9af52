//! Functions shared by the lab's subcommands: setting up a lab, ending it, showing results.

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use strandline_inspect::environment::Environment;

use super::arguments_lab::{Lab, LabFormat, ReportOutput};
use super::output::{Output, print_message};
use super::progress::Progress as Line;
use super::{CommandResult, Failure, Result, slurm};
use strandline_lab::cell::{End, Outcome, Subject};
use strandline_lab::elsewhere::TaskCounts;
use strandline_lab::engine::Progress;
use strandline_lab::executor::{Executor, Stopped};
use strandline_lab::identity;
use strandline_lab::interrupt::Interrupt;
use strandline_lab::journal::{Journal, JournalOptions, SLURM_FOLDER};
use strandline_lab::local::Local;
use strandline_lab::nodes::{self, NodeKind, kinds};
use strandline_lab::slurm::Slurm;
use strandline_lab::tail::last_lines;
use strandline_lab::trial::server::{ServerExecutor, Service};
use strandline_report::pages::page::Page;
use strandline_report::pages::{html, markdown, terminal};
use strandline_report::text::counted;
use strandline_report::units::seconds;

/// Larger labs are not started without --yes.
const MAX_UNCONFIRMED_RUNS: u64 = 10_000;
/// Number of lines shown of a failed run's standard error.
const TAIL_LINES: usize = 5;

/// A lab that is set up.
pub struct LabSetup {
    /// The runs done so far.
    pub journal: Journal,
    /// The executors of its runs.
    pub executors: Vec<Box<dyn Executor>>,
}

impl LabSetup {
    /// Sets up the lab of subcommand `verb`, identified by `description` and the subjects' files.
    pub fn open(verb: &str, description: &impl Serialize, subjects: &[Subject], lab: &Lab) -> Result<Self> {
        Self::open_serving(verb, description, subjects, lab, None)
    }

    /// The same for servers.
    pub fn open_serving(
        verb: &str,
        description: &impl Serialize,
        subjects: &[Subject],
        lab: &Lab,
        service: Option<&Service>,
    ) -> Result<Self> {
        let interrupt = Arc::new(Interrupt::new().map_err(Failure)?);
        let place = JournalOptions { folder: lab.dir.clone(), is_fresh: lab.fresh };
        let journal =
            Journal::open(verb, &lab_identity(description, subjects, lab), &place).map_err(Failure)?;
        let mut executors: Vec<Box<dyn Executor>> = Vec::new();
        if lab.slurm.on.is_some() {
            executors.push(Box::new(slurm::open(&journal, lab, service, &interrupt)?));
        } else {
            for number in 0..lab.jobs as usize {
                let local = Local::start(&journal.work_folder(number), &interrupt).map_err(Failure)?;
                executors.push(match service {
                    Some(service) => Box::new(ServerExecutor::new(Box::new(local), service.clone())),
                    None => Box::new(local),
                });
            }
        }
        if journal.resumed_runs() > 0 {
            let found = counted(journal.resumed_runs() as u64, "run");
            print_message(&format!("going on after {found} of an earlier lab; --fresh begins anew"));
        }
        Ok(Self { journal, executors })
    }

    /// Number of runs of an earlier, identical lab that can be reused; sets up nothing.
    pub fn found(verb: &str, description: &impl Serialize, subjects: &[Subject], lab: &Lab) -> usize {
        let place = JournalOptions { folder: lab.dir.clone(), is_fresh: lab.fresh };
        Journal::peek(verb, &lab_identity(description, subjects, lab), &place)
    }

    /// Refuses a lab with very many runs without --yes, and estimates the time.
    pub fn ask(&mut self, subjects: &[Subject], runs: u64, yes: bool) -> Result<()> {
        if runs <= MAX_UNCONFIRMED_RUNS || yes {
            return Ok(());
        }
        let is_elsewhere = self.executors.first_mut().is_some_and(|executor| executor.remote().is_some());
        let estimate = match (subjects.first(), self.executors.first_mut()) {
            // The submitting machine is not the one that runs it.
            _ if is_elsewhere => String::new(),
            (Some(subject), Some(executor)) => {
                let begin = Instant::now();
                executor
                    .run(subject, &self.journal.cell("estimate", 0))
                    .map_err(|stopped| failure(&stopped))?;
                let each = begin.elapsed().as_secs_f64();
                format!(", about {} (one was run, and took {})", seconds(each * runs as f64), seconds(each))
            }
            _ => String::new(),
        };
        Err(Failure(format!("that is {runs} runs{estimate}; add --yes to begin")))
    }

    /// The kinds of machines that ran it, if it ran elsewhere.
    pub fn nodes(&self) -> Vec<NodeKind> {
        kinds(self.journal.nodes(), &self.journal.folder().join(SLURM_FOLDER))
    }

    /// Caveats about the machines that ran it.
    pub fn caveats(&self) -> Vec<(&'static str, String)> {
        let of_executors = self.executors.iter().flat_map(|executor| executor.caveats());
        nodes::caveats(&self.nodes()).into_iter().chain(of_executors).collect()
    }

    /// Ends a lab without a result: the next one starts anew.
    pub fn abandon(self) {
        drop(self.executors);
        self.journal.abandon();
    }

    /// Ends the lab and removes the data kept for resuming it.
    pub fn close(self) {
        drop(self.executors);
        self.journal.finish();
    }
}

/// Sets up the lab `verb` that is a single task elsewhere: its journal and its executor.
pub fn open_whole(
    verb: &str,
    description: &impl Serialize,
    subject: &Subject,
    lab: &Lab,
    interrupt: &Arc<Interrupt>,
) -> Result<(Journal, Slurm)> {
    let place = JournalOptions { folder: lab.dir.clone(), is_fresh: lab.fresh };
    let journal = Journal::open(verb, &lab_identity(description, std::slice::from_ref(subject), lab), &place);
    let journal = journal.map_err(Failure)?;
    let slurm = slurm::open(&journal, lab, None, interrupt)?;
    Ok((journal, slurm))
}

/// Everything that identifies a lab's runs.
fn lab_identity<'a, T: Serialize>(
    description: &'a T,
    subjects: &'a [Subject],
    lab: &Lab,
) -> impl Serialize + use<'a, T> {
    let is_elsewhere = lab.slurm.on.is_some();
    let mut machine = identity::machine();
    if is_elsewhere {
        // Leave out the submitting machine: another one may continue the lab.
        machine.drain(..machine.len().saturating_sub(1));
    }
    let files = (identity::files(subjects), machine);
    let folder = std::env::current_dir().unwrap_or_default();
    let mut variables: Vec<_> = std::env::vars_os().collect();
    variables.retain(|(name, _)| {
        let name = name.to_string_lossy();
        // Tasks do not see the scheduler's variables.
        !(is_shell_variable(&name) || is_elsewhere && name.starts_with("SLURM"))
    });
    variables.sort();
    // Do not mix runs that shared the machine with runs that had it to themselves.
    (description, subjects, files, folder, variables, lab.jobs > 1, is_elsewhere.then_some(lab.slurm.shared))
}

/// Whether a variable differs between shells without affecting programs; such changes do not
/// prevent resuming a lab.
fn is_shell_variable(name: &str) -> bool {
    const NAMES: [&str; 9] =
        ["_", "SHLVL", "OLDPWD", "COLUMNS", "LINES", "TERM", "TERM_SESSION_ID", "WINDOWID", "COLORTERM"];
    NAMES.contains(&name) || name.starts_with("SSH_") || name.starts_with("TMUX")
}

/// Ends strandline for a lab that stopped.
pub fn stopped(stopped: &Stopped) -> Result<CommandResult> {
    match stopped {
        Stopped::Interrupted(signal) => {
            print_message("interrupted: the same command goes on from here");
            Ok(CommandResult::Command(*signal))
        }
        Stopped::Failed(_) => Err(failure(stopped)),
    }
}

fn failure(stopped: &Stopped) -> Failure {
    match stopped {
        Stopped::Interrupted(signal) => Failure(format!("interrupted by signal {signal}")),
        Stopped::Failed(why) => Failure(why.clone()),
    }
}

/// A progress line of a lab.
pub struct LabProgress {
    line: Line,
    verb: String,
}

impl LabProgress {
    /// For `verb`; silent if JSON was requested and there is no terminal.
    pub fn new(verb: impl Into<String>, wanted: bool) -> Self {
        Self { line: Line::new(wanted), verb: verb.into() }
    }

    pub fn update(&self, progress: &Progress) {
        let left = progress.remaining.map(|left| format!(", at most {} left", seconds(left.as_secs_f64())));
        let left = left.unwrap_or_default();
        let tasks = progress
            .tasks
            .map(|TaskCounts { running, waiting }| format!("; rounds: {running} run, {waiting} wait"));
        let left = left + &tasks.unwrap_or_default();
        self.line.set_line(&format!("{}: {} of {} runs{left}", self.verb, progress.done, progress.total));
    }

    /// Shows another line.
    pub fn show_line(&self, text: &str) {
        self.line.set_line(&format!("{}: {text}", self.verb));
    }
}

/// Describes how a run ended: "exit status 3; its last words: …".
pub fn how_it_ended(outcome: &Outcome) -> String {
    let words = match &outcome.end {
        End::Exited(status) => format!("exit status {status}"),
        End::Signalled(signal) => {
            let name = nix::sys::signal::Signal::try_from(*signal).map_or("", |signal| signal.as_str());
            format!("ended by signal {signal} {name}").trim_end().to_owned()
        }
        End::TimedOut => "ended after its timeout".to_owned(),
        End::NotStarted(why) => return why.clone(),
    };
    let tail = outcome
        .stderr
        .as_deref()
        .map(|path| last_lines(path, TAIL_LINES).join(" / "))
        .filter(|tail| !tail.is_empty());
    tail.map_or_else(|| words.clone(), |tail| format!("{words}; its last words: {tail}"))
}

/// Shows a report in the requested format.
pub fn show<T: Serialize>(
    schema: &str,
    body: &T,
    page: &Page,
    shown: &ReportOutput,
    output: &mut Output,
) -> Result<()> {
    let text = match format(shown, output) {
        LabFormat::Terminal => terminal::lines(page, output.surface),
        LabFormat::Markdown => markdown::text(page),
        LabFormat::Html => html::text(page)?,
        LabFormat::Json => json(schema, body)?,
    };
    write_output(&text, shown, output)
}

pub fn format(shown: &ReportOutput, output: &Output) -> LabFormat {
    if output.json { LabFormat::Json } else { shown.format.unwrap_or(LabFormat::Terminal) }
}

/// A JSON document with the environment of this machine.
pub fn json<T: Serialize>(schema: &str, body: &T) -> Result<String> {
    Ok(strandline_report::json::document(schema, &Environment::read(), None, body)?)
}

/// Writes a report to the requested destination.
pub fn write_output(text: &str, shown: &ReportOutput, output: &mut Output) -> Result<()> {
    let Some(path) = &shown.output else { return output.print(text) };
    let written = std::fs::File::create(path).and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| Failure(format!("{}: {error}", path.display())))?;
    if std::io::stderr().is_terminal() {
        print_message(&format!("written to {}", path.display()));
    }
    Ok(())
}
