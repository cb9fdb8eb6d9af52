//! Records memory over time: a command that is run, or a process that is attached to, sampled with all its
//! descendants, with marks and ledgers, into a recording. It must not judge what it records, print, or read a recording.
//!
//! One thread samples, hears of processes, answers marks and writes (`session`); ledgers are taken beside
//! it (`ledgers`). Nothing here prints, and nothing that goes wrong while recording stops the command.

#![forbid(unsafe_code)]

mod clock;
mod command;
mod ledgers;
mod limits;
mod marks;
pub mod plan;
mod poller;
mod sampler;
mod session;
mod sink;
mod tree;
mod watchable;

use std::path::PathBuf;
use std::time::Duration;

use strandline_inspect::explain::SnapshotMode;
use strandline_recording::Ending;

pub use command::{NotStarted, Surroundings, run};
pub use limits::{Group, Limits, can_limit_memory};
pub use marks::VARIABLE as MARK_VARIABLE;
pub use plan::Plan;
pub use session::record;
pub use sink::default_path;

/// How to record.
pub struct Options<'a> {
    /// Into which file.
    pub file: PathBuf,
    /// The time between two samples.
    pub interval: Duration,
    /// Which ledgers.
    pub plan: Plan,
    /// How ledgers are taken; that of an end is of a process that stands anyway.
    pub looks: Looks,
    /// Hears how it goes, a few times a second.
    pub progress: &'a dyn Fn(&Progress),
    /// Hears of what the user must know at once: one line.
    pub complain: &'a dyn Fn(&str),
}

/// How ledgers are taken of a process that runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Looks {
    /// How long it may be stopped.
    pub max_stop: Option<Duration>,
    /// Whether it is looked at in a snapshot.
    pub snapshot: SnapshotMode,
    /// How long it is tried to read it without stopping it; at a peak it is not, which is over by then.
    pub quiet_for: Duration,
}

/// How a recording goes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Since it began.
    pub elapsed: Duration,
    /// The tree's RSS, shared pages counted for each process.
    pub rss_bytes: u64,
    /// The most that was.
    pub peak_bytes: u64,
    /// Processes now.
    pub processes: usize,
    /// Instants sampled.
    pub samples: u64,
    /// Instants missed.
    pub missed: u64,
    /// Marks so far.
    pub marks: u64,
    /// Ledgers so far.
    pub ledgers: u64,
    /// Caveats so far.
    pub caveats: u64,
}

/// What came of a recording.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// Its file.
    pub file: PathBuf,
    /// Its size.
    pub file_bytes: u64,
    /// How it ended.
    pub end: Ending,
    /// How it went, at its end.
    pub progress: Progress,
    /// Processes that were followed.
    pub processes: u32,
}
