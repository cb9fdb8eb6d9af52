//! What a recording's lines say.
//!
//! Sizes are in KiB or bytes as the name says, times in microseconds since the recording began. A field
//! that is not known is `null` or missing, never 0.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use strandline_inspect::Caveat;
use strandline_inspect::environment::Environment;
use strandline_inspect::facts::Explanation;

use crate::block::Block;
use crate::sample::Sample;

/// The schema that a header names. A reader refuses another number.
pub const SCHEMA: &str = "strandline/recording/1";

/// One line.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Record {
    /// The first line: what is recorded, where, how.
    Header(Box<Header>),
    /// A process is followed from here on.
    Process(ProcessStart),
    /// A process started another program.
    Exec(Exec),
    /// Samples of one process.
    Samples(Box<Block>),
    /// A mark.
    Mark(Box<Mark>),
    /// A ledger.
    Ledger(Box<Ledger>),
    /// A process ended.
    ProcessEnd(ProcessEnd),
    /// Something that is not known, or went wrong while recording.
    Caveat(Caution),
    /// How far the recording has come. One a frame.
    #[serde(rename = "beat")]
    Heartbeat(Heartbeat),
    /// The last line of a recording that ended in order.
    End(Box<Ending>),
}

/// What is recorded, where, how.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// [`SCHEMA`].
    pub schema: String,
    /// strandline's own version.
    pub version: String,
    /// The machine; `time_utc` is when the recording began.
    pub environment: Environment,
    /// The command that was run, or that of the process that was attached to.
    pub command: Vec<String>,
    /// Whether a running process was attached to (`record`), rather than a command run (`run`).
    pub attached: bool,
    /// The wanted time between two samples, in microseconds.
    pub interval_us: u64,
    /// Which ledgers were asked for, as `--ledger` writes it.
    pub ledgers: String,
    /// How forks, execs and ends of processes are learnt of: `connector` (the kernel's process connector) or
    /// `polling`.
    pub followed_by: String,
    /// The limits the command was started under.
    #[serde(default)]
    pub limits: Vec<Limit>,
}

/// A limit the command was started under.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// `address_space`, `data` or `memory`.
    pub kind: String,
    /// How much, in bytes.
    pub bytes: u64,
    /// What enforces it: `RLIMIT_AS`, `RLIMIT_DATA`, `cgroup v1` or `cgroup v2`.
    pub by: String,
}

/// A process is followed from here on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessStart {
    /// Its number in this recording, from 0 (the command itself); process ids may come again.
    pub process: u32,
    /// Its process id.
    pub pid: i32,
    /// Its parent's process id.
    pub parent: Option<i32>,
    /// When it was first seen.
    pub at_us: u64,
    /// Its command line; empty where it ended too soon to be asked.
    pub command: Vec<String>,
    /// Its executable's path.
    pub executable: Option<String>,
}

/// A process started another program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exec {
    /// Which process.
    pub process: u32,
    /// When.
    pub at_us: u64,
    /// Its new command line.
    pub command: Vec<String>,
    /// Its new executable's path.
    pub executable: Option<String>,
}

/// A named instant, told by the program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// Which process: see [`ProcessStart::process`].
    pub process: u32,
    /// The process id of who told it.
    pub pid: i32,
    /// When it was told.
    pub at_us: u64,
    /// Its name, control characters replaced.
    pub name: String,
    /// The sample taken while the program waited.
    pub sample: Sample,
    /// Every `Vm…`, `Rss…` and `Hugetlb…` line of /proc/PID/status, in bytes.
    pub status_bytes: BTreeMap<String, u64>,
    /// The proportional set size of the whole tree, where it has more than one process.
    pub tree_pss_bytes: Option<u64>,
    /// How long the program was made to wait, in microseconds.
    pub waited_us: u64,
}

/// Why a ledger was taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Moment {
    /// The program told a mark, and waited.
    #[default]
    Mark,
    /// Its RSS stood higher than ever before.
    Peak,
    /// It was ending, and its memory was still there.
    Exit,
    /// As often as was asked.
    Every,
    /// The recording of a running process began.
    Start,
    /// The recording of a running process ended before the process did.
    End,
}

/// A ledger.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Ledger {
    /// Which process: see [`ProcessStart::process`].
    pub process: u32,
    /// Its process id.
    pub pid: i32,
    /// When the look began.
    pub at_us: u64,
    /// Why.
    pub moment: Moment,
    /// The mark's name, where one was the reason.
    pub mark: Option<String>,
    /// The proportional set size of the whole tree, where it has more than one process.
    pub tree_pss_bytes: Option<u64>,
    /// What the process really has mapped and set, and the machine.
    pub environment: Environment,
    /// The ledger itself.
    pub explain: Explanation,
}

/// A process ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessEnd {
    /// Which process.
    pub process: u32,
    /// When it was seen to have ended.
    pub at_us: u64,
    /// Its exit status, where it is known.
    pub status: Option<i32>,
    /// The signal that ended it, where it is known.
    pub signal: Option<i32>,
    /// The most RSS that was seen of it (VmHWM), in KiB.
    pub high_water_kib: Option<u64>,
    /// Whether `high_water_kib` was read at its very end.
    pub high_water_is_final: bool,
}

/// Something that is not known, or went wrong while recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Caution {
    /// When.
    pub at_us: u64,
    /// What.
    #[serde(flatten)]
    pub caveat: Caveat,
}

/// How far the recording has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// When.
    pub at_us: u64,
    /// Instants that were sampled so far.
    pub samples: u64,
    /// Instants that were missed so far.
    pub missed: u64,
}

/// What a command used, with those of its descendants that it waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandUsage {
    /// From before its start to its end, the time that it was stopped for ledgers included.
    pub wall_us: u64,
    /// Processor time in user mode.
    pub user_us: u64,
    /// Processor time in the kernel.
    pub system_us: u64,
    /// Page faults that needed no device.
    pub minor_faults: u64,
    /// Page faults that did.
    pub major_faults: u64,
}

/// How a recording ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ending {
    /// When.
    pub at_us: u64,
    /// Why: `ended` (the process did), `interrupted` (the recorder was told to stop).
    pub why: String,
    /// The command's exit status, where it ended and it is known.
    pub status: Option<i32>,
    /// The signal that ended the command, where one did and it is known.
    pub signal: Option<i32>,
    /// The most RSS that the command's process had (VmHWM), in KiB.
    pub high_water_kib: Option<u64>,
    /// Processes that the kernel killed because the limit on memory was reached; `None` without such a limit.
    pub out_of_memory_kills: Option<u64>,
    /// Instants that were sampled.
    pub samples: u64,
    /// Instants that were missed.
    pub missed: u64,
    /// Processor time that the recorder itself took, in microseconds.
    pub own_cpu_us: u64,
    /// The recorder's own high-water mark, in KiB.
    pub own_peak_rss_kib: Option<u64>,
    /// How long processes were stopped for ledgers, in microseconds.
    pub stopped_us: u64,
    /// How long programs waited at marks, in microseconds.
    pub waited_us: u64,
    /// How long the recorder was stopped by its user (Ctrl-Z), in microseconds: no instant was missed then.
    #[serde(default)]
    pub paused_us: u64,
    /// What the command used, by the kernel's own account (`wait4`); `None` where a running process was attached to.
    #[serde(default)]
    pub usage: Option<CommandUsage>,
    /// Processes that ended within 10 ms and before a sample of them was taken; nothing else is recorded of them.
    #[serde(default)]
    pub brief_processes: u64,
    /// Processes that lived longer and were not sampled, for too many came at once.
    #[serde(default)]
    pub unsampled_processes: u64,
}
