//! The arguments of `explain` and `reclaim`, with the help that people see.

use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser};
use strandline_export::budget::StopBudget;
use strandline_inspect::group::MEMORY_RECLAIM;
use strandline_inspect::remedy::{ApplicableRemedy, applicable};
use strandline_process::group::GroupOwner;
use strandline_recorder::plan;
use strandline_report::model::Rows;
use strandline_report::text::hanging;

use super::arguments::pid;
use super::arguments_export::stop_budget;
use super::arguments_reading::{Detail, QuietFor, SnapshotChoice, duration_or_zero, rows};
use super::condition::Condition;
use super::{Failure, Result};

/// The flags that name a control group.
const GROUP_FLAGS: [&str; 4] = ["cgroup", "container", "unit", "pod"];

/// A control group, by one of its names.
#[derive(Args, Clone, Debug)]
pub struct GroupChoice {
    /// A control group instead of a process, by its path below /sys/fs/cgroup or as in
    /// /proc/PID/cgroup
    #[arg(long, value_name = "PATH", conflicts_with_all = ["container", "unit", "pod"])]
    pub cgroup: Option<String>,
    /// The group of a container of Docker, containerd, CRI-O or Podman, by its id or the first
    /// digits of it
    #[arg(long, value_name = "ID", conflicts_with_all = ["unit", "pod"])]
    pub container: Option<String>,
    /// The group of a unit of systemd
    #[arg(long, value_name = "NAME", conflicts_with = "pod")]
    pub unit: Option<String>,
    /// The group of a Kubernetes pod, by its UID
    #[arg(long, value_name = "UID")]
    pub pod: Option<String>,
}

/// How a group is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupName {
    /// By its path.
    Path(String),
    /// By the container, unit or pod that owns it.
    Owner(GroupOwner),
}

impl GroupChoice {
    /// The chosen group; `None` if none is named.
    pub fn name(&self) -> Option<GroupName> {
        let path = self.cgroup.clone().map(GroupName::Path);
        let container = || self.container.clone().map(GroupOwner::Container);
        let unit = || self.unit.clone().map(GroupOwner::Unit);
        let pod = || self.pod.clone().map(GroupOwner::Pod);
        path.or_else(|| container().or_else(unit).or_else(pod).map(GroupName::Owner))
    }
}

/// Arguments of `explain`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  strandline explain 4711
  strandline explain -v $(pidof my-service)
  strandline explain --tree 4711
  strandline explain --container 3f2a9c
  strandline explain --cgroup /sys/fs/cgroup/system.slice
  strandline explain --unit my-service --ledgers --fail-if 'current > 90%'
  strandline explain --json 4711 | jq .totals
  strandline explain --fail-if 'stranded > 200MiB' --fail-if 'stranded >= 20%' 4711

Conditions: NAME OP SIZE, where
  NAME  live, stranded, pinned, evictable, unattributed, rss, pss,
        predicted (what the best remedy is predicted to release), or row.ID;
        for a control group also current and working_set, not rss and pss
  OP    >  >=  <  <=  ==
  SIZE  bytes, or a number with B, KB, KiB, MB, MiB, GB, GiB, or %
        of RSS or of the group's limit")]
pub struct Explain {
    /// The process
    #[arg(value_name = "PID", value_parser = pid, required_unless_present_any = GROUP_FLAGS, conflicts_with_all = GROUP_FLAGS)]
    pub pid: Option<i32>,
    #[command(flatten)]
    pub group: GroupChoice,
    /// For a control group: also take the ledger of each process, which may stop it
    #[arg(long)]
    pub ledgers: bool,
    /// Maximum time that ledgers may stop each process in a period (20ms/min, 50ms/5m)
    #[arg(long, value_name = "TIME/PERIOD", default_value = "20ms/min", value_parser = stop_budget)]
    pub stop_budget: StopBudget,
    #[command(flatten)]
    pub detail: Detail,
    /// Rows shown: `all`, or the N largest; by default the 7 largest of at least 0.5 % of RSS
    #[arg(long, value_name = "all|N", value_parser = rows, conflicts_with_all = GROUP_FLAGS)]
    pub rows: Option<Rows>,
    /// Exit with status 1 if this holds; may be repeated
    #[arg(long, value_name = "EXPR", value_parser = Condition::parse)]
    pub fail_if: Vec<Condition>,
    /// Explain the process and its descendants: a line each, shared pages counted once
    #[arg(long, conflicts_with_all = ["verbose", "rows"], conflicts_with_all = GROUP_FLAGS)]
    pub tree: bool,
    /// Also report leaked blocks and what each root retains: see `strandline holders`
    #[arg(long, conflicts_with = "tree", conflicts_with_all = GROUP_FLAGS)]
    pub holders: bool,
    /// Show the references from a root to a live object of this type (SBCL: a structure or class;
    /// Node.js: a class, `function NAME`)
    #[arg(long, value_name = "TYPE", conflicts_with_all = ["tree", "no_runtimes"], conflicts_with_all = GROUP_FLAGS)]
    pub path_to: Option<String>,
    /// Leave out the readers of language runtimes: a shorter stop, fewer rows
    #[arg(long)]
    pub no_runtimes: bool,
    /// Resume the process after this time, such as 50ms (a number alone is seconds); memory not yet
    /// read is reported as unattributed
    #[arg(long, value_name = "TIME", value_parser = plan::duration)]
    pub max_stop: Option<Duration>,
    /// When to read a snapshot, a copy-on-write child that never runs, while the process runs on:
    /// it stops for some 25 ms per GiB (Node.js: 60 ms). The flag alone means `always`
    #[arg(long, alias = "photograph", value_name = "WHEN", num_args = 0..=1, require_equals = true, default_value = "auto", default_missing_value = "always")]
    pub snapshot: SnapshotChoice,
    #[command(flatten)]
    pub quiet: QuietFor,
}

impl Explain {
    /// The process, if no group is named.
    ///
    /// # Errors
    /// No process is named.
    pub fn pid(&self) -> Result<i32> {
        named_process(self.pid)
    }
}

/// The process that the parser requires where no group is named.
fn named_process(pid: Option<i32>) -> Result<i32> {
    pid.ok_or_else(|| Failure("no process is named".to_owned()))
}

/// Width of the list of remedies: that of a terminal, which would wrap longer lines without an
/// indent.
const REMEDY_COLUMNS: usize = 78;

/// Examples, and the remedies with what each does.
fn reclaim_help() -> String {
    let mut all_remedies = applicable();
    all_remedies.push(ApplicableRemedy {
        id: MEMORY_RECLAIM,
        help: "for a control group: the kernel reclaims inactive page cache (memory.reclaim)",
        is_advice: false,
    });
    let width = all_remedies.iter().map(|remedy| remedy.id.len()).max().unwrap_or(0);
    let lines = |is_advice: bool| {
        let remedies = all_remedies.iter().filter(|remedy| remedy.is_advice == is_advice);
        let lines = remedies.flat_map(|ApplicableRemedy { id, help, .. }| {
            hanging(&format!("  {id:width$}  "), help, REMEDY_COLUMNS)
        });
        lines.collect::<Vec<_>>().join("\n")
    };
    format!(
        "\
Examples:
  strandline reclaim 4711
  strandline reclaim --dry-run 4711
  strandline reclaim --remedy zero_pages 4711
  strandline reclaim --remedy jemalloc_purge 4711
  strandline reclaim --wait 30 --json 4711
  strandline reclaim --container 3f2a9c
  strandline reclaim --cgroup /web --dry-run

Remedies:
{}

Advice only: these are refused with what to do in the program:
{}

A refusal is exit status 3, with the reason.",
        lines(false),
        lines(true)
    )
}

/// The ids of the remedies, of which help and completions list those that `reclaim` applies.
fn remedies() -> PossibleValuesParser {
    let of_processes = applicable().into_iter();
    let values = of_processes.map(|remedy| PossibleValue::new(remedy.id).hide(remedy.is_advice));
    PossibleValuesParser::new(values.chain([PossibleValue::new(MEMORY_RECLAIM)]))
}

/// Arguments of `reclaim`.
#[derive(Args, Debug)]
#[command(after_help = reclaim_help())]
pub struct Reclaim {
    /// The process whose memory is released
    #[arg(value_name = "PID", value_parser = pid, required_unless_present_any = GROUP_FLAGS, conflicts_with_all = GROUP_FLAGS)]
    pub pid: Option<i32>,
    #[command(flatten)]
    pub group: GroupChoice,
    #[command(flatten)]
    pub detail: Detail,
    /// The remedy; by default the allocator's call (malloc_trim, jemalloc_purge, ...) that releases
    /// most
    #[arg(long, value_name = "ID", value_parser = remedies())]
    pub remedy: Option<String>,
    /// Predict only; change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Maximum wait for a safe moment
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration_or_zero)]
    pub wait: Duration,
    /// Allow the direct method of zero_pages: if strandline is killed at the wrong instant, a write of
    /// the process to one of those pages may be lost. Only with `--remedy zero_pages`
    #[arg(long)]
    pub allow_lost_write_risk: bool,
    #[command(flatten)]
    pub quiet: QuietFor,
    /// Resume the process after this time at each read; a heap that was not read completely is not
    /// trimmed
    #[arg(long, value_name = "TIME", value_parser = plan::duration)]
    pub max_stop: Option<Duration>,
    /// When to read a snapshot (see explain)
    #[arg(long, alias = "photograph", value_name = "WHEN", num_args = 0..=1, require_equals = true, default_value = "never", default_missing_value = "always")]
    pub snapshot: SnapshotChoice,
}

impl Reclaim {
    /// The process, if no group is named.
    ///
    /// # Errors
    /// No process is named.
    pub fn pid(&self) -> Result<i32> {
        named_process(self.pid)
    }
}
