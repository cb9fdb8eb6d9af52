//! All subcommands and flags, with the help and examples that people see.
//!
//! This module only defines and parses arguments; the modules of the subcommands interpret them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

pub use super::arguments_export::Export;
pub use super::arguments_lab::{Compare, Squeeze, Study, Try};
pub use super::arguments_process::{Explain, Reclaim};
use super::arguments_reading::{Detail, QuietFor, SnapshotChoice};
pub use super::arguments_top::Top;
use super::condition::parse_bytes;
use strandline_recorder::plan::{self, Plan};

const STATUSES: &str = "\
Exit status: 0 done; 1 done, and a condition of --fail-if or --fail-if-claims-fail holds; 2 usage; 3 could not.

Start here:
  strandline demo                show how it works, on an example process
  strandline doctor              what this machine and user allow
  strandline PID                 where the memory of a process is (explain PID)
  strandline explain --cgroup P  the same of a container or another control group
  strandline holders PID         what leaked, and which roots retain the rest
  strandline reclaim PID         release what can be released
  strandline run -- COMMAND      record the memory of a command over time
  strandline record PID          record the memory of a running process
  strandline report FILE         show a recording
  strandline compare A B         whether two commands or builds differ, and by how much
  strandline try -- COMMAND      which settings make it keep less memory, and their cost
  strandline squeeze -- COMMAND  the smallest memory limit that suffices
  strandline top                 all processes by the memory they hold, live
  strandline export --all        metrics of this machine's processes for Prometheus
  strandline study               rerun experiments and check their claims";

/// Accounts for every resident byte of a process, reports what is stranded, and releases it.
#[derive(Debug, Parser)]
#[command(name = "strandline", version, max_term_width = 100, after_help = STATUSES)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub struct Arguments {
    #[command(subcommand)]
    pub verb: Verb,
    #[command(flatten)]
    pub common: Common,
}

/// Flags of every verb.
#[derive(Args, Clone, Copy, Debug)]
pub struct Common {
    /// Print one JSON document on standard output, and nothing else there; not of run, export, mark,
    /// completions and man, and of top only with --once
    #[arg(long, global = true)]
    pub json: bool,
    /// When to use colour; NO_COLOR is respected
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    pub color: When,
}

/// When to use colour, or to show progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum When {
    /// On a terminal
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Account for every resident byte of a running process
    ///
    /// Reads its page tables and its heaps while all its threads sleep, in a snapshot of it, or while
    /// it is stopped. Prints a ledger whose rows add up to the kernel's RSS to the byte, what each
    /// remedy would release, and what is not known.
    Explain(Explain),
    /// Apply a remedy inside a running process: predicted, actual, cost
    ///
    /// The process needs no preparation. If no moment is safe, strandline refuses and changes nothing.
    Reclaim(Reclaim),
    /// Report leaked blocks, what each root retains, and what pins free pages
    ///
    /// Traces the references between the blocks of the heap, in a snapshot of the process: blocks that no root reaches (leaks), what
    /// each root alone retains, and which live blocks pin otherwise free pages.
    Holders(Holders),
    /// Run a command and record its memory over time
    ///
    /// Samples the command and all its descendants up to a thousand times a second, takes a ledger at marks
    /// and at the end, and writes it all into one file for `strandline report`. The command's input, output,
    /// signals, terminal and exit status are not changed.
    Run(Run),
    /// Record the memory of a running process over time
    ///
    /// Samples as `run` does, without marks, until the process ends or Ctrl-C.
    Record(Record),
    /// Add a named mark to the recording that a script runs under
    ///
    /// Does nothing outside of a recording.
    Mark(Mark),
    /// Show a recording
    ///
    /// Without --format: a chart for the terminal.
    Report(Report),
    /// Compare commands: time, memory, faults, instructions, each as a ratio with its interval
    ///
    /// Runs them in rounds, each in a new random order, and reports whether they differ.
    Compare(Compare),
    /// Find the smallest limit on memory under which a command still succeeds
    ///
    /// Runs the command under different limits. Reports how it fails below the smallest limit, how much slower it is near
    /// it, and the setting to paste.
    Squeeze(Squeeze),
    /// Rerun a command under settings that may make it keep less memory; the best is ready to paste
    ///
    /// Tries settings of the allocator, the kernel and the language runtime, other allocators, and the better ones
    /// in pairs, and compares memory and time with the unchanged command.
    Try(Try),
    /// Run a declared experiment and check its claims
    ///
    /// A study names subjects, axes, measurements and claims. Its cells run in rounds; each claim holds, fails or
    /// was not run, and is shown beside the published figures.
    Study(Study),
    /// Show the processes of this machine by memory, live; a key takes a ledger of one
    ///
    /// RSS, PSS and growth of processes or control groups. Stops a process only to take its ledger.
    Top(Box<Top>),
    /// Serve the memory of chosen processes as metrics, within a pause budget
    ///
    /// Answers scrapes (Prometheus, OpenMetrics) on a loopback port, or writes a file for node_exporter: the kernel's figures at each
    /// scrape, and ledgers that it takes in the background within a budget of stopped time.
    Export(Box<Export>),
    /// Explain and reclaim a process that strandline starts itself, in under 10 s
    ///
    /// The process fills its heap, frees most of it around a few survivors and keeps a zeroed buffer.
    Demo(Demo),
    /// Print what this machine and user allow, and how to get what is missing
    ///
    /// Tries what explain and reclaim need, on strandline itself and a child process. Changes nothing.
    Doctor(Doctor),
    /// Print the completion script of a shell
    Completions(Completions),
    /// Write the manual pages into a folder
    ///
    /// Writes a page for strandline and one for each verb; creates the folder.
    Man(Man),
    /// Print docs/cli.md
    #[command(hide = true)]
    Reference,
    /// The process that `demo` reads
    #[command(hide = true)]
    DemoChild(DemoChild),
    /// The process that starts the lab's commands
    #[command(hide = true)]
    LabLauncher(LabLauncher),
    /// The process that runs a round on its node
    #[command(hide = true)]
    LabRound(super::arguments_slurm::LabRound),
}

impl Verb {
    /// Whether it reads the memory of other processes itself, and starts commands only through
    /// [`strandline_sys::spawn`].
    pub fn reads_processes(&self) -> bool {
        matches!(
            self,
            Self::Explain(_)
                | Self::Reclaim(_)
                | Self::Holders(_)
                | Self::Run(_)
                | Self::Record(_)
                | Self::Top(_)
                | Self::Export(_)
        )
    }
}

/// Arguments of `holders`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  strandline holders 4711
  strandline holders --top 50 4711
  strandline holders --json 4711 | jq '.unreachable, .roots[:5]'
  strandline holders --json 4711 > before.json
  strandline holders --since before.json 4711

A word that is an address within a block counts as a reference, so there may be more leaks than are reported. Pointers \
that the program hides (compressed, or combined with others) are not seen.")]
pub struct Holders {
    /// The process
    #[arg(value_name = "PID", value_parser = pid)]
    pub pid: i32,
    #[command(flatten)]
    pub detail: Detail,
    /// Roots and types shown; by default 10 and 8, and with --verbose all that are listed
    #[arg(long, value_name = "N")]
    pub top: Option<usize>,
    /// Show what grew since an earlier result of --json
    #[arg(long, value_name = "FILE")]
    pub since: Option<PathBuf>,
    /// Leave out the readers of language runtimes
    #[arg(long)]
    pub no_runtimes: bool,
    /// Read a snapshot only, and only if taking it should stop the process for at most this time;
    /// otherwise fail
    #[arg(long, value_name = "TIME", value_parser = plan::duration)]
    pub max_stop: Option<Duration>,
    /// When to read a snapshot (see explain); without one, objects that the process moves during the search are reported wrongly
    #[arg(long, alias = "photograph", value_name = "WHEN", num_args = 0..=1, require_equals = true, default_value = "try", default_missing_value = "always")]
    pub snapshot: SnapshotChoice,
}

/// Arguments of `run`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  strandline run -- ./my-program --its-flags
  strandline run -o perl.strandline -- perl script.pl
  strandline run --ledger marks,peak,exit -- make -j2
  strandline run --interval 10ms --ledger every=10s,exit -- ./server
  strandline run --limit-address-space 512MiB -- perl script.pl

Moments for ledgers (--ledger, several with commas):
  marks      at each mark that the program sends (probes/ has the code for it)
  peak       each time its peak RSS has grown by a tenth; takes at most a tenth of
             the time
  exit       at the end of a process, while its memory is still mapped; until then
             it is traced: no debugger, crash handler or Wine server can attach to
             it, nor can it trace itself
  every=10s  at this interval
  none       never
By default: the first 16 marks, peaks, and exit for users who may trace anything (root, CAP_SYS_PTRACE).
Programs with LeakSanitizer, whose leak check fails under a trace, are not traced until their end; \
nor are setuid programs unless the user is privileged: they would lose their privileges.

Exit status: the command's own; 125 where strandline failed, 126 where the command cannot be run, \
127 where it is not found. If a signal ends the command, strandline ends by the same signal.")]
pub struct Run {
    /// The recording's file; by default named after the command
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    #[command(flatten)]
    pub recording: Recording,
    /// Limit the command's address space (RLIMIT_AS)
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub limit_address_space: Option<u64>,
    /// Limit the command's data segment (RLIMIT_DATA)
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub limit_data: Option<u64>,
    /// Limit the resident memory of the command and its descendants, in a separate control group
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub limit_memory: Option<u64>,
    /// Set a variable for the command only, not for the recorder (LD_PRELOAD, MALLOC_CONF, …)
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    pub env: Vec<(String, String)>,
    /// Remove a variable for the command
    #[arg(long, value_name = "NAME")]
    pub unset_env: Vec<String>,
    /// Disable transparent huge pages for the command (PR_SET_THP_DISABLE)
    #[arg(long)]
    pub no_huge_pages: bool,
    /// The command and its arguments
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true)]
    pub command: Vec<OsString>,
}

/// Flags of `run` and `record`.
#[derive(Args, Debug)]
pub struct Recording {
    /// Time between two samples, 1ms or more
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = interval)]
    pub interval: Duration,
    /// When to take a ledger: marks, peak, exit, ends (of the recording), every=TIME (several with commas), or
    /// none; the default is below
    #[arg(long, value_name = "MOMENTS", value_parser = Plan::parse)]
    pub ledger: Option<Plan>,
    /// Resume the process after this time at each ledger; no limit at its exit
    #[arg(long, value_name = "TIME", value_parser = plan::duration)]
    pub max_stop: Option<Duration>,
    /// When to take ledgers from a snapshot (see explain)
    #[arg(long, alias = "photograph", value_name = "WHEN", num_args = 0..=1, require_equals = true, default_value = "never", default_missing_value = "always")]
    pub snapshot: SnapshotChoice,
    #[command(flatten)]
    pub quiet: QuietFor,
    /// When to show progress on standard error; by default on a terminal, of `run` only if the command's output
    /// does not go to a terminal
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub progress: When,
}

/// Arguments of `record`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  strandline record 4711
  strandline record -o service.strandline --duration 10min 4711
  strandline record --ledger exit 4711      # a ledger at its exit

By default a ledger is taken at the beginning and at the end of the recording (--ledger ends). With \
--ledger exit the process is traced until it ends: signals to it pass through strandline, and no \
debugger can be attached to it meanwhile.")]
pub struct Record {
    /// The recording's file; by default named after the process
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// End the recording after this time; by default with the process, or at Ctrl-C
    #[arg(long, value_name = "TIME", value_parser = plan::duration)]
    pub duration: Option<Duration>,
    #[command(flatten)]
    pub recording: Recording,
    /// The process to record, with its descendants
    #[arg(value_name = "PID", value_parser = pid)]
    pub pid: i32,
}

/// Arguments of `mark`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  strandline run -- sh -c './step-1; strandline mark \"after step 1\"; ./step-2'")]
pub struct Mark {
    /// The mark's name
    #[arg(value_name = "NAME")]
    pub name: String,
}

/// Arguments of `report`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  strandline report perl.strandline
  strandline report perl.strandline --format html -o perl.html
  strandline report service.strandline --type __main__.Session
  strandline report before.strandline after.strandline --format svg -o both.svg
  strandline report perl.strandline --format json | jq '.marks[] | {name, rss_bytes}'")]
pub struct Report {
    /// Recordings, drawn over each other or listed; or the output of `holders --json`
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// Format of the output; by default a chart for the terminal
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<Format>,
    /// Chart the objects of one type (python: __main__.Node) in each ledger: number and bytes
    #[arg(long = "type", value_name = "NAME")]
    pub r#type: Option<String>,
    /// File for the output; by default standard output, or for a picture on a terminal a file named after the recording
    #[arg(short, long, value_name = "OUT")]
    pub output: Option<PathBuf>,
}

/// The format of the report on a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// One page with everything, for any browser
    Html,
    /// The timeline as a drawing
    Svg,
    /// The timeline as an image
    Png,
    /// Samples and marks as a table; of several recordings the first column is the file
    Csv,
    /// Samples of the control groups as a table, with their rows
    GroupsCsv,
    /// Everything, for scripts; of several recordings a list of their documents
    Json,
}

/// Arguments of `demo`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  strandline demo
  strandline demo --mebibytes 64
  strandline demo --json | jq '.reclaim | {predicted_bytes, actual_bytes}'")]
pub struct Demo {
    /// Size of the heap before most of it is freed
    #[arg(long, value_name = "MiB", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub mebibytes: u32,
}

/// Arguments of `doctor`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  strandline doctor
  sudo strandline doctor
  strandline doctor --readers
  strandline doctor --json | jq '.checks[] | select(.status != \"ok\")'")]
pub struct Doctor {
    /// List the allocators and runtimes that are read, and those that are only named
    #[arg(long)]
    pub readers: bool,
}

/// Arguments of `completions`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  strandline completions bash > ~/.local/share/bash-completion/completions/strandline
  strandline completions zsh > ~/.zfunc/_strandline
  strandline completions fish > ~/.config/fish/completions/strandline.fish")]
pub struct Completions {
    /// The shell
    pub shell: Shell,
}

/// Arguments of `man`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  strandline man ~/.local/share/man/man1 && man strandline-explain")]
pub struct Man {
    /// The folder
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
}

/// Arguments of `demo-child`.
#[derive(Args, Debug)]
pub struct DemoChild {
    /// Size of the heap before most of it is freed
    #[arg(long)]
    pub heap_mebibytes: u32,
    /// Size of the zeroed buffer
    #[arg(long)]
    pub zero_mebibytes: u32,
}

/// Arguments of `lab-launcher`.
#[derive(Args, Debug)]
pub struct LabLauncher {
    /// The descriptor of the socket to strandline
    pub socket: i32,
}

/// Parses a process id.
pub(super) fn pid(text: &str) -> Result<i32, String> {
    match text.parse::<i32>() {
        Ok(pid) if pid > 0 => Ok(pid),
        _ if Path::new(text).is_file() => {
            Err("give the id of a running process, which `pidof NAME` prints; files, such as core files, are not read"
                .to_owned())
        }
        _ => Err("a process id is a whole number from 1 to 2147483647: `pidof NAME` or `ps -e` prints it"
            .to_owned()),
    }
}

/// Parses a variable and its value.
fn variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("use NAME=VALUE".to_owned()),
    }
}

/// Parses the time between two samples.
fn interval(text: &str) -> Result<Duration, String> {
    let interval = plan::duration(text)?;
    if interval < Duration::from_millis(1) {
        return Err(format!("{text} is too short: samples are taken every 1ms or less often"));
    }
    Ok(interval)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_flag_table_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn arguments_are_checked_where_they_are_parsed() {
        assert_eq!(pid("4711"), Ok(4711));
        assert!(pid("-1").is_err() && pid("0").is_err() && pid("x").is_err() && pid("99999999999").is_err());
        assert!(pid("/etc/passwd").is_err_and(|error| error.contains("core files")));
    }
}
