//! What is run, and what came of one run: data only.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use strandline_recorder::Limits;

/// One of the things that are compared: a command in its surroundings, run once in each round.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subject {
    /// What it is called in reports and in the journal; unlike the name of any other of its lab.
    pub name: String,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Variables to set, or to remove, over the environment of strandline itself.
    pub environment: Vec<(String, Option<String>)>,
    /// Where it runs; strandline's own directory where none is given.
    pub directory: Option<PathBuf>,
    /// What its standard input is read from; nothing where no file is given.
    pub stdin: Option<PathBuf>,
    /// Limits on its memory.
    pub limits: Limits,
    /// Whether it gets no transparent huge pages (`PR_SET_THP_DISABLE`).
    pub no_huge_pages: bool,
    /// After this it is ended and counts as failed.
    pub timeout: Option<Duration>,
    /// What is looked at while it runs.
    pub measure: Measure,
    /// It runs in the first so many of the rounds that count; in all of them where nothing is said.
    pub rounds: Option<u32>,
}

/// What is looked at while a subject runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Measure {
    /// What the kernel counts of every process, and what processors count where they are allowed to.
    #[default]
    Figures,
    /// Instructions, by running it in valgrind's cachegrind: all other figures are of valgrind then.
    Cachegrind,
    /// As `Figures`, and a recording (`strandline run`) with ledgers at the moments of this plan, in the words of
    /// `--ledger`.
    Recording {
        /// The time between two samples.
        interval: Duration,
        /// The moments, as `--ledger` takes them.
        ledgers: String,
        /// Whether they are taken of a snapshot, where that can do no harm.
        #[serde(rename = "photograph")]
        snapshot: bool,
    },
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// By itself, with this status.
    Exited(u8),
    /// By this signal.
    Signalled(i32),
    /// It ran into the subject's timeout, and was ended.
    TimedOut,
    /// It did not start: one line that says why.
    NotStarted(String),
}

impl End {
    /// Whether it ended by itself with status 0.
    pub fn is_success(&self) -> bool {
        *self == Self::Exited(0)
    }
}

/// What was counted of one run: the process and all its descendants that ended with it. `None` is unknown.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// From its start to its end.
    pub wall_seconds: Option<f64>,
    /// Processor time in user mode.
    pub user_seconds: Option<f64>,
    /// Processor time in the kernel.
    pub system_seconds: Option<f64>,
    /// The largest resident set that one of its processes had.
    pub high_water_bytes: Option<u64>,
    /// Page faults that needed no device.
    pub minor_faults: Option<u64>,
    /// Page faults that did.
    pub major_faults: Option<u64>,
    /// Instructions retired in user mode.
    pub instructions: Option<u64>,
    /// Processor cycles in user mode.
    pub cycles: Option<u64>,
}

/// What came of one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// How it ended.
    pub end: End,
    /// What was counted.
    pub figures: Figures,
    /// Where its standard output was kept, if it wrote any.
    pub stdout: Option<PathBuf>,
    /// Where its standard error was kept, if it wrote any.
    pub stderr: Option<PathBuf>,
    /// Its recording, if one was asked for and made.
    pub recording: Option<PathBuf>,
    /// Processes that it left running, and that were ended after it.
    pub left_behind: u32,
    /// Processes of it that could not be ended: the kernel holds them.
    #[serde(default)]
    pub not_ended: u32,
    /// Processes that the kernel killed because its limit on memory was reached; `None` without such a limit.
    pub out_of_memory_kills: Option<u64>,
    /// The machine that it ran on; `None` where that is the lab's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<Node>,
}

/// A machine that runs of a lab were sent to.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// What kind it is: nodes of one kernel, processor, memory and C library have the same.
    pub kind: String,
}

impl Outcome {
    /// The end of a run that never started.
    pub fn not_started(why: String) -> Self {
        Self {
            end: End::NotStarted(why),
            figures: Figures::default(),
            stdout: None,
            stderr: None,
            recording: None,
            left_behind: 0,
            not_ended: 0,
            out_of_memory_kills: None,
            node: None,
        }
    }
}
