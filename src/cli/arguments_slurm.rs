//! The flags for running the lab's rounds on a cluster.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use strandline_lab::slurm::{Task, why_rejected};

/// Where rounds run.
#[derive(Args, Clone, Debug, Default)]
pub struct OnSlurm {
    /// Where to run the rounds: each is a task of a job array, on one node. Needs --dir, and the commands, in
    /// folders that all nodes see under the same path (docs/lab.md)
    #[arg(long, value_name = "WHERE", help_heading = "On a cluster")]
    pub on: Option<Cluster>,
    /// Partition for sbatch
    #[arg(long, value_name = "NAME", requires = "on", help_heading = "On a cluster")]
    pub partition: Option<String>,
    /// Account for sbatch
    #[arg(long, value_name = "NAME", requires = "on", help_heading = "On a cluster")]
    pub account: Option<String>,
    /// Features that a node must have, such as 'epyc&512g'
    #[arg(long, value_name = "LIST", requires = "on", help_heading = "On a cluster")]
    pub constraint: Option<String>,
    /// Time limit of a round, such as 30 (minutes) or 2:00:00
    #[arg(long, value_name = "TIME", requires = "on", help_heading = "On a cluster")]
    pub time: Option<String>,
    /// Another option for sbatch, such as --sbatch=--qos=low; may be repeated
    #[arg(long, value_name = "OPTION", requires = "on", allow_hyphen_values = true, value_parser = sbatch_option,
        help_heading = "On a cluster")]
    pub sbatch: Vec<String>,
    /// Share nodes with other jobs; by default a round has a node alone
    #[arg(long, requires = "on", help_heading = "On a cluster")]
    pub shared: bool,
    /// Maximum number of simultaneous rounds; by default Slurm decides
    #[arg(long, value_name = "N", requires = "on", value_parser = clap::value_parser!(u32).range(1..),
        help_heading = "On a cluster")]
    pub at_once: Option<u32>,
}

/// Where rounds can run besides here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Cluster {
    /// By Slurm's sbatch
    Slurm,
}

impl OnSlurm {
    /// What is missing without the folder `dir`.
    pub fn missing_dir(&self, dir: Option<&Path>) -> Option<&'static str> {
        (self.on.is_some() && dir.is_none()).then_some(
            "--on slurm needs a folder that all nodes see under the same path: add --dir, such as --dir ~/strandline-lab",
        )
    }

    /// The options for sbatch.
    pub fn options(&self) -> Vec<String> {
        let named = [
            ("partition", &self.partition),
            ("account", &self.account),
            ("constraint", &self.constraint),
            ("time", &self.time),
        ];
        let named =
            named.into_iter().filter_map(|(name, value)| Some(format!("--{name}={}", value.as_ref()?)));
        named.chain(self.sbatch.iter().cloned()).collect()
    }
}

fn sbatch_option(option: &str) -> Result<String, String> {
    why_rejected(option).map_or_else(|| Ok(option.to_owned()), Err)
}

/// Arguments of `lab-round`.
#[derive(Args, Debug)]
pub struct LabRound {
    /// The lab's folder
    #[arg(long)]
    pub folder: PathBuf,
    /// The number of its array
    #[arg(long)]
    pub array: u32,
    /// The task
    #[arg(long, value_parser = task)]
    pub task: Task,
    /// The scheduler's name of the node
    #[arg(long)]
    pub node: String,
    /// Number of earlier starts
    #[arg(long)]
    pub restarts: u32,
}

fn task(text: &str) -> Result<Task, String> {
    let (job, index) = text.split_once('_').ok_or("use JOB_TASK")?;
    let number = |_| "use JOB_TASK".to_owned();
    Ok(Task { job: job.parse().map_err(number)?, index: index.parse().map_err(number)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_passed_on_as_sbatch_takes_them() {
        let slurm = OnSlurm {
            partition: Some("long".to_owned()),
            time: Some("2:00:00".to_owned()),
            sbatch: vec!["--qos=low".to_owned()],
            ..OnSlurm::default()
        };
        assert_eq!(slurm.options(), ["--partition=long", "--time=2:00:00", "--qos=low"]);
        assert!(sbatch_option("--array=1").is_err() && sbatch_option("--qos=low").is_ok());
        assert_eq!(task("17_3"), Ok(Task { job: 17, index: 3 }));
        assert!(task("17").is_err() && task("x_1").is_err());
    }
}
