//! The lines of a recording.
//!
//! The name of a size ends in its unit (`_kib` or `_bytes`), and that of a time in `_us`; times
//! named `at_us` are since the recording began. An unknown field is `null` or missing, never 0.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use strandline_inspect::environment::Environment;
use strandline_inspect::facts::Explanation;
use strandline_inspect::{Caveat, counted};

use crate::block::Block;
use crate::group::{GroupBlock, GroupKill, GroupStart};
use crate::sample::Sample;

/// The schema in a header. A reader refuses any other.
pub const SCHEMA: &str = "strandline/recording/1";
/// Maximum number of words of a command line in a ledger or a report.
const MAX_COMMAND_WORDS: usize = 64;

/// One line of a recording.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Record {
    /// The first line: what is recorded, where and how.
    Header(Box<Header>),
    /// A process is followed from here on.
    Process(ProcessStart),
    /// A process started another program.
    Exec(Exec),
    /// Samples of one process.
    Samples(Box<Block>),
    /// A control group is sampled from here on.
    Group(Box<GroupStart>),
    /// Samples of one control group.
    GroupSamples(Box<GroupBlock>),
    /// The program reported a named instant.
    Mark(Box<Mark>),
    /// What all resident bytes of a process were, at one moment.
    Ledger(Box<Ledger>),
    /// A process ended.
    ProcessEnd(ProcessEnd),
    /// Something that is unknown, or that went wrong while recording.
    Caveat(CaveatRecord),
    /// Progress of the recording. One per frame.
    #[serde(rename = "beat")]
    Heartbeat(Heartbeat),
    /// The last line of a recording that ended properly.
    End(Box<Ending>),
}

/// What is recorded, where and how.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// [`SCHEMA`].
    pub schema: String,
    /// Version of strandline.
    pub version: String,
    /// The machine; `time_utc` is when the recording began.
    pub environment: Environment,
    /// The command that was run, or that of the process that was attached to.
    pub command: Vec<String>,
    /// Whether a running process was attached to (`record`) or a command was run (`run`).
    pub attached: bool,
    /// Requested time between two samples, in microseconds.
    pub interval_us: u64,
    /// Requested ledgers, in the syntax of `--ledger`.
    pub ledgers: String,
    /// How forks, execs and ends of processes are noticed: `connector` (the kernel's process
    /// connector) or `polling`.
    pub followed_by: String,
    /// The limits that the command was started with.
    #[serde(default)]
    pub limits: Vec<Limit>,
}

/// A limit that the command was started with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// `address_space`, `data` or `memory`.
    pub kind: String,
    /// The limit in bytes.
    pub bytes: u64,
    /// What enforces it: `RLIMIT_AS`, `RLIMIT_DATA`, `cgroup v1` or `cgroup v2`.
    pub by: String,
}

/// A process is followed from here on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessStart {
    /// Its number in this recording, from 0 (the command itself); process ids may be reused.
    pub process: u32,
    /// Its process id.
    pub pid: i32,
    /// Its parent's process id.
    pub parent: Option<i32>,
    /// When it was first noticed.
    pub at_us: u64,
    /// Its command line; empty if it ended before that could be read.
    pub command: Vec<String>,
    /// Its executable's path.
    pub executable: Option<String>,
}

/// A process started another program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exec {
    /// Number of the process.
    pub process: u32,
    /// When the exec was noticed.
    pub at_us: u64,
    /// Its new command line.
    pub command: Vec<String>,
    /// Its new executable's path.
    pub executable: Option<String>,
}

/// A named instant, reported by the program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// Number of the process: see [`ProcessStart::process`].
    pub process: u32,
    /// Its process id.
    pub pid: i32,
    /// When it was reported.
    pub at_us: u64,
    /// Its name, with control characters replaced.
    pub name: String,
    /// The sample taken while the program waited.
    pub sample: Sample,
    /// Every `Vm…`, `Rss…` and `Hugetlb…` line of /proc/PID/status, in bytes; empty if not read.
    pub status_bytes: BTreeMap<String, u64>,
    /// The proportional set size of the whole tree; `None` for one process, for more than the
    /// recorder reads while a program waits, or if one cannot be read.
    pub tree_pss_bytes: Option<u64>,
    /// How long the program waited, in microseconds.
    pub waited_us: u64,
}

/// Why a ledger was taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Moment {
    /// The program reported a mark, and waited.
    #[default]
    Mark,
    /// Its RSS was higher than ever before.
    Peak,
    /// It was ending, and its memory was still there.
    Exit,
    /// The requested interval was over.
    Every,
    /// The recording of a running process began.
    Start,
    /// The recording of a running process ended before the process did.
    End,
}

/// What all resident bytes of a process were, at one moment.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Ledger {
    /// Number of the process: see [`ProcessStart::process`].
    pub process: u32,
    /// Its process id.
    pub pid: i32,
    /// When reading began.
    pub at_us: u64,
    /// Why it was taken.
    pub moment: Moment,
    /// Name of the mark, if the reason was one.
    pub mark: Option<String>,
    /// As [`Mark::tree_pss_bytes`]; `None` at an exit.
    pub tree_pss_bytes: Option<u64>,
    /// The machine; `time_utc` is when the ledger was taken.
    pub environment: Environment,
    /// The ledger itself.
    pub explain: Explanation,
}

/// A process ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessEnd {
    /// Number of the process.
    pub process: u32,
    /// When its end was noticed.
    pub at_us: u64,
    /// Its exit status, if known.
    pub status: Option<i32>,
    /// The signal that ended it, if known.
    pub signal: Option<i32>,
    /// Highest RSS that was observed (VmHWM), in KiB.
    pub high_water_kib: Option<u64>,
    /// Whether `high_water_kib` was read when the process was ending, so that it is final.
    pub high_water_is_final: bool,
}

/// Something that is unknown, or that went wrong while recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaveatRecord {
    /// When it was noticed.
    pub at_us: u64,
    /// The caveat.
    #[serde(flatten)]
    pub caveat: Caveat,
}

/// Progress of the recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// Time of this record.
    pub at_us: u64,
    /// Instants sampled so far.
    pub samples: u64,
    /// Instants missed so far.
    pub missed: u64,
}

/// Resource usage of a command and of the descendants that it waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandUsage {
    /// Time from before its start to its end, including the time that it was stopped for ledgers.
    pub wall_us: u64,
    /// Processor time in user mode.
    pub user_us: u64,
    /// Processor time in the kernel.
    pub system_us: u64,
    /// Page faults that needed no device.
    pub minor_faults: u64,
    /// Page faults that needed a device.
    pub major_faults: u64,
}

/// How a recording ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ending {
    /// When recording ended.
    pub at_us: u64,
    /// Reason: `ended` (the process did), `interrupted` (the recorder had to stop).
    pub why: String,
    /// Exit status of the command, if it ended and the status is known.
    pub status: Option<i32>,
    /// Signal that ended the command, if one did and it is known.
    pub signal: Option<i32>,
    /// Highest RSS of the command's process (VmHWM), in KiB.
    pub high_water_kib: Option<u64>,
    /// Number of processes that the kernel killed because the memory limit was reached; `None`
    /// without such a limit.
    pub out_of_memory_kills: Option<u64>,
    /// The memory of the control group when the kernel last killed a process of it for lack of
    /// memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group_kill: Option<GroupKill>,
    /// Instants sampled.
    pub samples: u64,
    /// Instants missed.
    pub missed: u64,
    /// Processor time of the recorder itself, in microseconds.
    pub own_cpu_us: u64,
    /// The recorder's own high-water mark, in KiB.
    pub own_peak_rss_kib: Option<u64>,
    /// How long processes were stopped for ledgers, in microseconds.
    pub stopped_us: u64,
    /// How long programs waited at marks, in microseconds.
    pub waited_us: u64,
    /// How long the user stopped the recorder (Ctrl-Z), in microseconds; no instant counts as
    /// missed then.
    #[serde(default)]
    pub paused_us: u64,
    /// Resource usage of the command as the kernel reports it (`wait4`); `None` if a running
    /// process was attached to.
    #[serde(default)]
    pub usage: Option<CommandUsage>,
    /// Number of processes that ended within 10 ms, before they could be sampled. The recording has
    /// nothing else of them.
    #[serde(default)]
    pub brief_processes: u64,
    /// Number of processes that lived longer and were not sampled: too many came at once, they
    /// lived between two instants, or their files could not be opened.
    #[serde(default)]
    pub unsampled_processes: u64,
}

/// Cuts a command line to what a ledger or a report holds; then the last word says how many others
/// were left out.
pub fn cut_command(command: &mut Vec<String>) {
    let total = command.len();
    // The kernel's list was longer than what is read of it.
    let is_cut = command.last().is_some_and(|word| word.ends_with('…'));
    if total > MAX_COMMAND_WORDS {
        command.truncate(MAX_COMMAND_WORDS - 1);
        let left_out = counted((total - command.len()) as u64, "more word");
        let least = if is_cut { "at least " } else { "" };
        command.push(format!("… and {least}{left_out}"));
        command.shrink_to_fit();
    }
}
