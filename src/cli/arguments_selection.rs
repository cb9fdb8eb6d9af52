//! The flags that select processes, shared by all subcommands on several processes.

use clap::Args;
use strandline_survey::select::SelectionRequest;

/// Which processes.
#[derive(Args, Debug)]
pub struct ProcessSelection {
    /// Processes, by their ids
    #[arg(long, value_name = "PID", num_args = 1.., value_delimiter = ',', value_parser = clap::value_parser!(i32).range(1..))]
    pub pid: Vec<i32>,
    /// Processes whose name, or whose executable's, this expression matches; may be repeated
    #[arg(long, value_name = "REGEX")]
    pub name: Vec<String>,
    /// Processes in this control group and those below it; may be repeated
    #[arg(long, value_name = "PATH")]
    pub cgroup: Vec<String>,
    /// Processes of this unit of systemd; may be repeated
    #[arg(long, value_name = "NAME")]
    pub unit: Vec<String>,
    /// Processes of Kubernetes pods: those whose control group has a pod's id in its path
    #[arg(long)]
    pub pods: bool,
    /// Leave out descendants of the chosen processes that are not chosen themselves
    #[arg(long)]
    pub no_children: bool,
}

impl ProcessSelection {
    /// Whether no process is selected.
    pub fn is_empty(&self) -> bool {
        !self.pods
            && self.pid.is_empty()
            && self.name.is_empty()
            && self.cgroup.is_empty()
            && self.unit.is_empty()
    }

    /// The selection, or all processes.
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
