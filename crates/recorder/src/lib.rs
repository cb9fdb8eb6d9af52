//! Records memory over time: samples a command that is run, or a process that is attached to, with
//! all descendants, and writes samples, marks and ledgers to a recording. This crate must not judge
//! what it records, print, or read a recording.
//!
//! One thread samples, receives process events, answers marks and writes (`session`); other threads
//! take ledgers (`ledgers`). No failure while recording stops the command.

#![forbid(unsafe_code)]

mod attach;
mod clock;
mod command;
mod groups;
mod ledgers;
mod limits;
mod marks;
mod member;
pub mod plan;
mod poller;
mod sampler;
mod session;
mod sink;
mod tree;
mod tree_pss;
mod watch;
mod watchable;

use std::path::PathBuf;
use std::time::Duration;

use strandline_inspect::explain::SnapshotMode;
use strandline_recording::Ending;

pub use attach::record;
pub use command::{CommandSettings, NotStarted, RecordedCommand, run};
pub use limits::{LimitedGroup, Limits, MOUNT_CONTROL_GROUPS, MemoryLimitRefusal, can_limit_memory};
pub use marks::VARIABLE as MARK_VARIABLE;
pub use plan::Plan;
pub use sink::default_path;

/// How to record.
pub struct Options<'a> {
    /// The file to write.
    pub file: PathBuf,
    /// Time between two samples.
    pub interval: Duration,
    /// Time after which the recording of a running process ends; `None`: with the process.
    pub duration: Option<Duration>,
    /// Which ledgers to take.
    pub plan: Plan,
    /// How to take ledgers, except at the end of a process, which is stopped anyway.
    pub ledger_settings: LedgerSettings,
    /// Called with the progress a few times a second. Must not block: samples and marks wait.
    pub progress: &'a dyn Fn(&Progress),
    /// Called with one line that the user should see at once. Must not block, like `progress`.
    pub warn: &'a dyn Fn(&str),
}

/// How to take ledgers of a running process.
#[derive(Clone, Copy, Debug, Default)]
pub struct LedgerSettings {
    /// How long the process may be stopped; `None`: as long as reading takes, up to a limit that
    /// depends on its size ([`strandline_inspect::explain::Options`]).
    pub max_stop: Option<Duration>,
    /// When to read the process from a snapshot.
    pub snapshot: SnapshotMode,
    /// How long to try to read the process without a stop. Ignored at a peak, which would be over
    /// by then.
    pub quiet_for: Duration,
}

/// Progress of a recording.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Time since the start.
    pub elapsed: Duration,
    /// RSS of the tree; shared pages count for each process.
    pub rss_bytes: u64,
    /// Highest RSS of the tree so far.
    pub peak_bytes: u64,
    /// Current number of processes.
    pub processes: usize,
    /// Number of instants sampled.
    pub samples: u64,
    /// Number of instants missed.
    pub missed: u64,
    /// Marks so far.
    pub marks: u64,
    /// Ledgers so far.
    pub ledgers: u64,
    /// Caveats so far.
    pub caveats: u64,
}

/// Result of a recording.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// The file.
    pub file: PathBuf,
    /// Size of the file.
    pub file_bytes: u64,
    /// How it ended.
    pub end: Ending,
    /// Progress at the end.
    pub progress: Progress,
    /// Number of processes that the recording has.
    pub processes: u32,
    /// The largest high-water mark of one process, in KiB; `None` if none was read.
    pub max_high_water_kib: Option<u64>,
}
