//! The flags of `compare`, `try`, `squeeze` and `study`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use super::arguments_reading::duration_or_zero;
use super::arguments_slurm::OnSlurm;
use super::condition::parse_bytes;
use strandline_lab::squeeze::LimitKind;
use strandline_lab::squeeze::search::Resolution;
use strandline_lab::trial::rank::Goal;
use strandline_lab::trial::server::{ReadyCondition, Service};
use strandline_recorder::plan;

/// How often, and in which order.
#[derive(Args, Clone, Copy, Debug)]
pub struct Rounds {
    /// Number of rounds; each runs everything once, in a new random order
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    pub repeat: u32,
    /// Add rounds after --repeat until the interval of the ratio of wall times has at most this width on each
    /// side, such as 2%; at most 10 times --repeat
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub until: Option<f64>,
    /// Number of rounds before the measured ones
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub warm_up: u32,
    /// Seed of the random order
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

/// How and where a lab runs its commands.
#[derive(Args, Clone, Debug)]
pub struct Lab {
    /// End a run that takes longer; it counts as failed
    #[arg(long, value_name = "TIME", value_parser = plan::duration)]
    pub timeout: Option<Duration>,
    /// Folder that keeps the output of every run, the recordings and the journal; the same command resumes
    /// from it. By default these are in the user's cache until the command is done
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Start again instead of resuming an interrupted run of the same command
    #[arg(long)]
    pub fresh: bool,
    /// Number of simultaneous runs; they share processors and caches, so times are unreliable
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub jobs: u32,
    /// Do not ask before more than 10,000 runs
    #[arg(long)]
    pub yes: bool,
    #[command(flatten)]
    pub slurm: OnSlurm,
}

/// How a report is shown.
#[derive(Args, Clone, Debug)]
pub struct ReportOutput {
    /// Format of the output; by default tables for the terminal
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<LabFormat>,
    /// File for the output; by default standard output
    #[arg(short, long, value_name = "OUT")]
    pub output: Option<PathBuf>,
}

/// The format of a lab's report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LabFormat {
    /// Tables for the terminal
    Terminal,
    /// Tables for an issue or a mailing list
    Markdown,
    /// One page with plots, for any browser
    Html,
    /// Everything, for scripts
    Json,
}

/// What is to be small, as requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum GoalName {
    /// Memory at the end, or of a server after the load.
    Settled,
    /// Peak memory.
    Peak,
    /// As settled, among settings that take at most 1.05 times as long.
    TimeBounded,
}

impl From<GoalName> for Goal {
    fn from(name: GoalName) -> Self {
        match name {
            GoalName::Settled => Self::Settled,
            GoalName::Peak => Self::Peak,
            GoalName::TimeBounded => Self::TimeBounded,
        }
    }
}

/// Arguments of `compare`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  strandline compare './old --input x' './new --input x'
  strandline compare --env MALLOC_ARENA_MAX=1 --env LD_PRELOAD=libjemalloc.so.2 ./server-test
  strandline compare --case 'A=-e \"1\"' --case 'B=x.pl' /opt/perl-5.36/bin/perl /opt/perl-5.40/bin/perl
  strandline compare --instructions --format markdown ./p0 ./p1 > table.md
  strandline compare --until 2% --json ./p0 ./p1 | jq '.metrics.wall_seconds.ratio'
  strandline compare --on slurm --dir /shared/lab --repeat 200 --partition long ./p0 ./p1

Quote each command with its arguments, and variables before it, as one word. A command with pipes, \
redirections, $variables or patterns is run by `sh -c`; the times then include the shell's start.

The words of a case are appended to each command; {} in them stands for the command.

`same` means that the interval of a ratio contains 1. All intervals of ratios of one comparison hold \
together with 99 % confidence.")]
pub struct Compare {
    #[command(flatten)]
    pub rounds: Rounds,
    /// A benchmark, shown in a separate column: words to append to each command
    #[arg(long, value_name = "NAME=WORDS", value_parser = case)]
    pub case: Vec<Case>,
    /// Compare one command with itself under these variables; may be repeated
    #[arg(long, value_name = "NAME=VALUE …")]
    pub env: Vec<String>,
    /// Without hardware counters, count instructions with valgrind's cachegrind, in 5 more runs of each command
    #[arg(long)]
    pub instructions: bool,
    /// Keep a recording of every run in --dir, for `strandline report`
    #[arg(long, requires = "dir")]
    pub record: bool,
    /// Compare commands even if they fail
    #[arg(long)]
    pub ignore_failure: bool,
    #[command(flatten)]
    pub lab: Lab,
    #[command(flatten)]
    pub report_output: ReportOutput,
    /// The commands; the others are compared with the first
    #[arg(value_name = "COMMAND", required = true)]
    pub commands: Vec<String>,
}

/// A benchmark of `compare`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Case {
    /// Its name; empty for a comparison without cases.
    pub name: String,
    /// The words that it appends to each command.
    pub words: String,
}

/// Arguments of `try`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  strandline try -- python3 script.py
  strandline try --goal time-bounded --repeat 7 -- ./batch --input data
  strandline try --ready port=8080 --load 'wrk -d5 http://localhost:8080/' --settle 5 -- ./server
  strandline try --only arena_max_2,jemalloc_decay_0 --format markdown -- ./program > table.md
  strandline try --json -- ./program | jq -r .paste.shell
  strandline try --on slurm --dir /shared/try --time 1:00:00 -- /shared/program
  strandline try --list

A first run without settings finds the allocator and the runtime. The candidates for these are run in \
rounds, each in a new random order; then the better ones in pairs. A setting whose library was not \
mapped counts as failed.

Each run of a server starts it, waits until it is ready, runs the load, waits (--settle), measures its \
memory, and ends it (SIGTERM, after 10 s SIGKILL). It is ready (--ready) when:
  port=N     it accepts connections to this port of this machine
  line=TEXT  a line with this text is on its standard output or error
  seconds=S  this time has passed since its start")]
pub struct Try {
    /// Number of rounds; each runs everything once, in a new random order
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub repeat: u32,
    /// Add rounds after --repeat until the intervals of the ratios of settled memory have at most this width on
    /// each side, such as 2%; at most 10 times --repeat
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub until: Option<f64>,
    /// Seed of the random order
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// The command is a server that is ready at this event: port=N, line=TEXT or seconds=S
    #[arg(long, value_name = "WHEN", value_parser = ready)]
    pub ready: Option<ReadyCondition>,
    /// Command that puts load on the ready server, run by `sh -c`; memory is measured after it
    #[arg(long, value_name = "COMMAND", requires = "ready")]
    pub load: Option<String>,
    /// Time between the load and the measurement
    #[arg(long, value_name = "TIME", requires = "ready", default_value = "1s", value_parser = duration_or_zero)]
    pub settle: Duration,
    /// What to minimise. Among candidates within 5% and 1MiB of the smallest, the fastest is the best
    #[arg(long, value_name = "GOAL", default_value = "settled")]
    pub goal: GoalName,
    /// Try only these candidates
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Do not try these candidates
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    pub skip: Vec<String>,
    /// TOML file of more candidates; one with a known id replaces that
    #[arg(long, value_name = "FILE")]
    pub catalogue: Option<PathBuf>,
    /// Number of pairs of the better candidates to try
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub pairs: u32,
    /// List the candidates, and run nothing
    #[arg(long)]
    pub list: bool,
    #[command(flatten)]
    pub lab: Lab,
    #[command(flatten)]
    pub report_output: ReportOutput,
    /// The command
    #[arg(value_name = "COMMAND", required_unless_present = "list", last = true)]
    pub command: Vec<std::ffi::OsString>,
}

impl Try {
    /// How to run the server, if the command is one.
    pub fn service(&self) -> Option<Service> {
        /// Without --timeout, the time limit for the server to become ready.
        const READY_LIMIT: Duration = Duration::from_secs(30);
        Some(Service {
            ready: self.ready.clone()?,
            ready_timeout: self.lab.timeout.unwrap_or(READY_LIMIT),
            load: self.load.clone(),
            timeout: self.lab.timeout,
            settle_time: self.settle,
        })
    }
}

/// Parses when a server is ready.
fn ready(text: &str) -> Result<ReadyCondition, String> {
    let usage = || "use port=N, line=TEXT or seconds=S, such as port=8080".to_owned();
    match text.split_once('=') {
        Some(("port", port)) => {
            port.parse().ok().filter(|&port| port > 0).map(ReadyCondition::Port).ok_or_else(usage)
        }
        Some(("line", line)) if !line.is_empty() => Ok(ReadyCondition::Line(line.to_owned())),
        Some(("seconds", seconds)) => duration_or_zero(seconds).map(ReadyCondition::After),
        _ => Err(usage()),
    }
}

/// Arguments of `study`.
#[derive(Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  strandline study                               lists the studies, and what each lacks here
  strandline study freed-or-not
  strandline study perl-lexicals --axis perl=/usr/bin/perl,/opt/perl-5.40/bin/perl
  strandline study ./my-study --repeat 20 --format html -o my-study.html
  strandline study --all --short --report        all studies, and one page of their results
  strandline study freed-or-not --plots plots --format markdown -o freed.md
  strandline study --json freed-or-not | jq '.claims[] | {id, verdict}'
  strandline study freed-or-not --on slurm --dir /shared/freed --account lab --sbatch=--qos=low
  strandline study new my-study && strandline study check my-study

A study is a folder with study.toml (docs/studies.md), named by its path, or found by its name in \
./studies, in the folders of $STRANDLINE_STUDIES, or among those that came with strandline."
)]
pub struct Study {
    /// Instead of running one
    #[command(subcommand)]
    pub action: Option<StudyAction>,
    /// The study; without it, all are listed
    #[arg(value_name = "NAME|PATH")]
    pub name: Option<String>,
    /// Values of an axis, also ones that the study does not list (any perl, any allocator's library); `subject`
    /// is an axis too
    #[arg(long, value_name = "NAME=VALUE,…", value_parser = axis)]
    pub axis: Vec<(String, Vec<String>)>,
    /// Number of rounds, each of every cell once in a new random order; by default the study's own
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub repeat: Option<u32>,
    /// The study's short form: fewer choices and rounds
    #[arg(long)]
    pub short: bool,
    /// Run all studies, one after the other; with --dir DIR each in DIR/NAME
    #[arg(long, conflicts_with = "name")]
    pub all: bool,
    /// Exit with status 1 if a claim fails
    #[arg(long)]
    pub fail_if_claims_fail: bool,
    /// Also write an HTML page of claims, tables and plots, by default strandline-study-NAME.html, or
    /// strandline-studies.html with --all; no other file is overwritten
    // clap's type for an option whose value may be left out.
    #[arg(long, value_name = "FILE")]
    pub report: Option<Option<PathBuf>>,
    /// Write every plot as an SVG file into this folder; Markdown then refers to them
    #[arg(long, value_name = "FOLDER")]
    pub plots: Option<PathBuf>,
    /// Write the verdicts, the first table and the first plot into the study's README.md, between the lines
    /// `<!-- results -->` and `<!-- end of results -->`
    #[arg(long)]
    pub readme: bool,
    #[command(flatten)]
    pub lab: Lab,
    #[command(flatten)]
    pub report_output: ReportOutput,
}

impl Study {
    /// Whether files are requested besides the output.
    pub fn writes(&self) -> bool {
        self.report.is_some() || self.plots.is_some() || self.readme
    }
}

/// What else to do with a study.
#[derive(Debug, Subcommand)]
pub enum StudyAction {
    /// Check a study's file; errors have line and column
    Check {
        /// The study
        #[arg(value_name = "NAME|PATH")]
        name: String,
    },
    /// Create a study that runs as it is: a commented file and a program
    New {
        /// A path, or a name for ./studies
        #[arg(value_name = "NAME|PATH")]
        name: String,
    },
}

/// Parses an axis with its values.
fn axis(text: &str) -> Result<(String, Vec<String>), String> {
    let (name, values) = text.split_once('=').ok_or("use NAME=VALUE, or NAME=VALUE,VALUE")?;
    let values: Vec<String> = values.split(',').map(str::to_owned).collect();
    if name.is_empty() || values.iter().any(String::is_empty) {
        return Err("use NAME=VALUE, or NAME=VALUE,VALUE".to_owned());
    }
    Ok((name.to_owned(), values))
}

/// Parses a case.
fn case(text: &str) -> Result<Case, String> {
    match text.split_once('=') {
        Some((name, words)) if !name.is_empty() && !words.trim().is_empty() => {
            Ok(Case { name: name.to_owned(), words: words.to_owned() })
        }
        _ => Err("use NAME=WORDS, such as 'A=-e \"1\"'".to_owned()),
    }
}

/// Parses a percentage as a fraction.
fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).parse::<f64>().ok();
    number
        .filter(|number| (0.01..=100.0).contains(number))
        .map(|number| number / 100.0)
        .ok_or_else(|| "use a percentage from 0.01% to 100%, such as 2%".to_owned())
}

/// Arguments of `squeeze`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  strandline squeeze -- python3 job.py
  strandline squeeze --kind address_space --resolution 4KiB -- ./program
  strandline squeeze --success 'grep -q \"^done$\"' -- ./job.sh
  strandline squeeze --json -- ./program | jq .smallest_bytes
  strandline squeeze --on slurm --dir /shared/squeeze -- /shared/program

A run succeeds if it exits with status 0 and the kernel killed none of its processes at the limit. \
With --success a shell command decides: it runs after each run, reads the run's standard output, and \
the variable STRANDLINE_STATUS has the run's exit status (128 + the signal that ended it; 124 after \
the timeout).

cgroup limits the memory of all its processes together, as containers and systemd do; address_space \
(RLIMIT_AS, ulimit -v) and data (RLIMIT_DATA, ulimit -d) limit each process by itself.")]
pub struct Squeeze {
    /// What to limit
    #[arg(long, value_enum, default_value_t = LimitChoice::Cgroup)]
    pub kind: LimitChoice,
    /// Shell command whose exit status decides whether a run succeeded
    #[arg(long, value_name = "COMMAND")]
    pub success: Option<String>,
    /// Number of runs that must succeed under the limit found
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: u32,
    /// Precision of the limit: a size, or a percentage; by default 1%, and at least 64KiB
    #[arg(long, value_name = "SIZE|PERCENT", value_parser = resolution)]
    pub resolution: Option<Resolution>,
    /// Number of rounds that measure time near the limit; 0 for none
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(..=1000))]
    pub rounds: u32,
    /// Give up after this many runs
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub most_runs: u32,
    /// A run that takes longer has failed; by default 10 times the time without a limit, plus 10s
    #[arg(long, value_name = "TIME", value_parser = plan::duration)]
    pub timeout: Option<Duration>,
    /// Folder that keeps the output of every run and the journal; the same command resumes from it. By default
    /// these are in the user's cache until the search is done
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Start again instead of resuming an interrupted search of the same command
    #[arg(long)]
    pub fresh: bool,
    /// Seed of the random order
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Where it runs: the whole search, as one task
    #[command(flatten)]
    pub slurm: OnSlurm,
    #[command(flatten)]
    pub report_output: ReportOutput,
    /// The command
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub command: Vec<String>,
}

/// What is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LimitChoice {
    /// The address space of each process
    #[value(name = "address_space", alias = "address-space")]
    AddressSpace,
    /// The data segment of each process
    Data,
    /// The memory of all processes, by a control group
    Cgroup,
}

impl From<LimitChoice> for LimitKind {
    fn from(kind: LimitChoice) -> Self {
        match kind {
            LimitChoice::AddressSpace => Self::AddressSpace,
            LimitChoice::Data => Self::Data,
            LimitChoice::Cgroup => Self::Cgroup,
        }
    }
}

/// Parses the precision of a limit.
fn resolution(text: &str) -> Result<Resolution, String> {
    if text.ends_with('%') {
        return percent(text).map(|share| Resolution { fraction: share, min_bytes: 0 });
    }
    parse_bytes(text).map(|min_bytes| Resolution { fraction: 0.0, min_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolutions_are_sizes_or_parts() {
        assert_eq!(resolution("2%"), Ok(Resolution { fraction: 0.02, min_bytes: 0 }));
        assert_eq!(resolution("4KiB"), Ok(Resolution { fraction: 0.0, min_bytes: 4096 }));
        assert!(resolution("x").is_err() && resolution("0%").is_err() && resolution("-1%").is_err());
    }

    #[test]
    fn readiness_of_a_server_is_parsed() {
        assert_eq!(ready("port=80"), Ok(ReadyCondition::Port(80)));
        assert_eq!(ready("line=up = 1"), Ok(ReadyCondition::Line("up = 1".to_owned())));
        assert_eq!(ready("seconds=0.5"), Ok(ReadyCondition::After(Duration::from_millis(500))));
        for wrong in ["port=0", "port=99999", "line=", "seconds=x", "80", ""] {
            assert!(ready(wrong).is_err(), "{wrong}");
        }
        assert_eq!(duration_or_zero("0"), Ok(Duration::ZERO));
    }

    #[test]
    fn cases_and_percentages_are_checked() {
        assert_eq!(case("A=-e 'x=1'"), Ok(Case { name: "A".to_owned(), words: "-e 'x=1'".to_owned() }));
        assert!(case("=x").is_err() && case("x").is_err() && case("x= ").is_err());
        assert_eq!(percent("2%"), Ok(0.02));
        assert_eq!(percent("2"), Ok(0.02));
        assert!(percent("0").is_err() && percent("nan").is_err() && percent("-1%").is_err());
    }
}
