//! What is run and the outcome of one run: data only.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use strandline_inspect::Caveat;
use strandline_recorder::Limits;

use super::tail::stderr_tail;

/// Number of lines of a failed run's standard error in a message.
const TAIL_LINES: usize = 5;

/// A command in its environment that is compared with others; runs once in each round.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subject {
    /// Name in reports and in the journal; unique within a lab.
    pub name: String,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Variables that differ from strandline's own environment; one without a value is removed.
    pub environment: Vec<(String, Option<String>)>,
    /// Working directory; `None`: strandline's own.
    pub directory: Option<PathBuf>,
    /// File for standard input; `None`: empty.
    pub stdin: Option<PathBuf>,
    /// Memory limits.
    pub limits: Limits,
    /// Whether transparent huge pages are disabled (`PR_SET_THP_DISABLE`).
    pub no_huge_pages: bool,
    /// After this time the run is ended and counts as failed.
    pub timeout: Option<Duration>,
    /// What is measured while it runs.
    pub measure: Measure,
    /// Number of counted rounds that it takes part in, from the first; `None`: all.
    pub rounds: Option<u32>,
}

/// What is measured while a subject runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Measure {
    /// The kernel's counters of every process, and hardware counters where they may be read.
    #[default]
    Figures,
    /// Instructions, counted by valgrind's cachegrind; all other figures would be those of
    /// valgrind.
    Cachegrind,
    /// As `Figures`, plus a recording (`strandline run`) with ledgers at the given moments.
    Recording {
        /// Sampling interval.
        interval: Duration,
        /// The moments, in the syntax of `--ledger`.
        ledgers: String,
        /// Whether ledgers are taken from a snapshot where that is safe.
        #[serde(rename = "photograph")]
        uses_snapshot: bool,
    },
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// Exited by itself with this status.
    Exited(u8),
    /// Killed by this signal.
    Signalled(i32),
    /// Ended because it reached the subject's timeout.
    TimedOut,
    /// Did not start; holds the reason in one line.
    NotStarted(String),
}

impl End {
    /// Whether the run exited with status 0.
    pub fn is_success(&self) -> bool {
        *self == Self::Exited(0)
    }

    /// The end in words, without what was written to standard error.
    fn description(&self) -> String {
        match self {
            Self::Exited(status) => format!("exit status {status}"),
            Self::Signalled(signal) => {
                let name = nix::sys::signal::Signal::try_from(*signal).map_or("", |signal| signal.as_str());
                format!("ended by signal {signal} {name}").trim_end().to_owned()
            }
            Self::TimedOut => "ended after its timeout".to_owned(),
            Self::NotStarted(why) => why.clone(),
        }
    }
}

/// Figures of one run: the process and all its descendants that ended with it. `None`: unknown.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Time from start to end.
    pub wall_seconds: Option<f64>,
    /// CPU time in user mode.
    pub user_seconds: Option<f64>,
    /// CPU time in the kernel.
    pub system_seconds: Option<f64>,
    /// The largest resident set of any one of its processes.
    pub high_water_bytes: Option<u64>,
    /// Page faults that needed no I/O.
    pub minor_faults: Option<u64>,
    /// Page faults that needed I/O.
    pub major_faults: Option<u64>,
    /// Instructions retired in user mode.
    pub instructions: Option<u64>,
    /// CPU cycles in user mode.
    pub cycles: Option<u64>,
}

/// The outcome of one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// How it ended.
    pub end: End,
    /// What was measured.
    pub figures: Figures,
    /// File with its standard output, if it wrote any.
    pub stdout: Option<PathBuf>,
    /// File with its standard error, if it wrote any.
    pub stderr: Option<PathBuf>,
    /// Its recording, if one was requested and made.
    pub recording: Option<PathBuf>,
    /// Processes that it left running and that were ended afterwards.
    #[serde(rename = "left_behind")]
    pub leftover_processes: u32,
    /// Processes that could not be ended because the kernel holds them.
    #[serde(rename = "not_ended", default)]
    pub unended_processes: u32,
    /// Processes killed by the kernel at the memory limit; `None` without such a limit.
    pub out_of_memory_kills: Option<u64>,
    /// Why memory may have moved to swap at the memory limit; `None` if it could not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub swap_problem: Option<String>,
    /// The machine that it ran on; `None`: the machine of the lab itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<Node>,
}

/// A finished run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SubjectRun {
    /// Index of its subject in the plan.
    pub subject: usize,
    /// Its outcome.
    pub outcome: Outcome,
}

/// A caveat on the runs of a lab.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabCaveat {
    /// A short, stable name for scripts.
    pub code: &'static str,
    /// One sentence.
    pub text: String,
}

impl LabCaveat {
    /// A caveat with this code and sentence.
    pub fn new(code: &'static str, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    /// The same for the document of the subcommand `verb`.
    pub fn of_verb(self, verb: &str) -> Caveat {
        Caveat::new(self.code, verb, None, self.text)
    }
}

/// A machine that a lab sends runs to.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Kind of machine; equal for nodes with the same kernel, processor, memory and C library.
    pub kind: String,
}

impl Outcome {
    /// How the run ended, with the end of its standard error: "exit status 3; its standard
    /// error ends with: …".
    pub fn describe_end(&self) -> String {
        let tail = match (&self.end, &self.stderr) {
            (End::Exited(_) | End::Signalled(_) | End::TimedOut, Some(path)) => stderr_tail(path, TAIL_LINES),
            _ => String::new(),
        };
        self.end.description() + &tail
    }

    /// The outcome of a run that never started.
    pub fn not_started(why: String) -> Self {
        Self {
            end: End::NotStarted(why),
            figures: Figures::default(),
            stdout: None,
            stderr: None,
            recording: None,
            leftover_processes: 0,
            unended_processes: 0,
            out_of_memory_kills: None,
            swap_problem: None,
            node: None,
        }
    }
}
