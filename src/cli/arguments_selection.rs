//! The flags of `top` and `export` that select processes.

use clap::Args;
use strandline_survey::select::{SelectionRequest, check_expression};

/// The processes that a subcommand is about.
#[derive(Args, Debug)]
pub struct ProcessSelection {
    /// Processes with these ids; separated by commas or spaces
    #[arg(long, value_name = "PID", num_args = 1.., value_delimiter = ',', value_parser = clap::value_parser!(i32).range(1..))]
    pub pid: Vec<i32>,
    /// Processes whose name or executable's file name contains a match of this regular expression; may be repeated
    #[arg(long, value_name = "REGEX", value_parser = expression)]
    pub name: Vec<String>,
    /// Processes in this control group and those below it, by its path below /sys/fs/cgroup or as in /proc/PID/cgroup; may be repeated
    #[arg(long, value_name = "PATH")]
    pub cgroup: Vec<String>,
    /// Processes of this systemd unit (`.service` may be left out); may be repeated
    #[arg(long, value_name = "NAME")]
    pub unit: Vec<String>,
    /// Processes of Kubernetes pods: those whose control group has a pod's id in its path
    #[arg(long)]
    pub pods: bool,
    /// Leave out descendants of the chosen processes that are not chosen themselves
    #[arg(long)]
    pub no_children: bool,
}

/// A regular expression, checked.
fn expression(text: &str) -> Result<String, String> {
    check_expression(text).map(|()| text.to_owned())
}

impl ProcessSelection {
    /// Whether none of the flags that select is given.
    pub fn is_empty(&self) -> bool {
        !self.pods
            && self.pid.is_empty()
            && self.name.is_empty()
            && self.cgroup.is_empty()
            && self.unit.is_empty()
    }

    /// The request for these processes, or with `selects_all` for all.
    pub fn selection(&self, selects_all: bool) -> SelectionRequest {
        SelectionRequest {
            pids: self.pid.clone(),
            names: self.name.clone(),
            groups: self.cgroup.clone(),
            units: self.unit.clone(),
            selects_pods: self.pods,
            selects_all,
            adds_descendants: !self.no_children,
        }
    }
}
