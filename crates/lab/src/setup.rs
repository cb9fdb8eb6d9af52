//! A lab that is set up: its journal, and the executors of its runs, here or on a cluster.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use strandline_report::text::counted;

use super::cell::{End, LabCaveat, Node, Subject};
use super::executable;
use super::executor::{Executor, StopReason};
use super::identity::{self, Machine};
use super::interrupt::Interrupt;
use super::journal::{Journal, JournalOptions, REMOTE_FOLDER, STAGED_FOLDER};
use super::local::LocalExecutor;
use super::nodes::{self, NodeKind, kinds};
use super::path_error::AtPath;
use super::slurm::{self, Slurm};
use super::trial::server::{ServerExecutor, Service};
use super::user::User;

/// Labs with more runs need a confirmation.
pub const MAX_UNCONFIRMED_RUNS: u64 = 10_000;
/// Code of the caveat on runs that left processes behind.
pub const LEFT_BEHIND: &str = "left_behind";

/// Where a lab works, and on how many executors.
#[derive(Clone)]
pub struct LabOptions {
    /// Folder of the journal and of all output; `None` for one in the user's cache.
    pub folder: Option<PathBuf>,
    /// Whether to ignore the runs of an earlier lab.
    pub is_fresh: bool,
    /// Number of concurrent runs on this machine.
    pub jobs: u32,
    /// The cluster that runs the rounds; `None` for this machine.
    pub cluster: Option<slurm::Options>,
    /// How to run the subjects if they are servers.
    pub service: Option<Service>,
    /// Who is shown messages.
    pub user: Arc<dyn User>,
}

/// What is run in a lab, which identifies it.
#[derive(Clone, Copy)]
pub struct LabContent<'a, T> {
    /// The subcommand.
    pub verb: &'static str,
    /// Everything besides the subjects that distinguishes its runs.
    pub description: &'a T,
    /// The subjects, whose files count.
    pub subjects: &'a [Subject],
}

impl LabOptions {
    /// Copies strandline to the lab's folder, which all nodes of the cluster see. Does nothing for
    /// a lab on this machine, or if that was done before.
    pub fn stage(&self) -> Result<(), String> {
        match (&self.cluster, &self.folder) {
            (Some(_), Some(folder)) if executable::staged_folder().is_none() => {
                let folder = std::path::absolute(folder).at(folder)?;
                executable::stage(&folder.join(STAGED_FOLDER))
            }
            _ => Ok(()),
        }
    }

    /// Number of runs of an earlier, identical lab that can be reused; sets up nothing.
    pub fn reusable_runs(&self, content: LabContent<'_, impl Serialize>) -> usize {
        Journal::peek(content.verb, &self.identity(content), &self.journal())
    }

    fn journal(&self) -> JournalOptions {
        JournalOptions { folder: self.folder.clone(), is_fresh: self.is_fresh }
    }

    /// Everything that identifies a lab's runs.
    fn identity<'a, T: Serialize>(
        &self,
        LabContent { description, subjects, .. }: LabContent<'a, T>,
    ) -> RunIdentity<'a, T> {
        let machine = Machine::read();
        let mut variables: Vec<(OsString, OsString)> = std::env::vars_os().collect();
        variables.retain(|(name, _)| {
            let name = name.to_string_lossy();
            // Tasks do not see the scheduler's variables.
            !(is_shell_variable(&name) || self.cluster.is_some() && name.starts_with("SLURM"))
        });
        variables.sort();
        RunIdentity {
            description,
            subjects,
            files: identity::files(subjects),
            // Without the submitting machine: another one may continue the lab.
            machine: if self.cluster.is_some() { machine.only_program() } else { machine },
            folder: std::env::current_dir().ok(),
            variables,
            is_concurrent: self.jobs > 1,
            has_shared_nodes: self.cluster.as_ref().map(|cluster| cluster.is_shared),
        }
    }

    fn slurm(
        &self,
        cluster: &slurm::Options,
        journal: &Journal,
        interrupt: &Arc<Interrupt>,
    ) -> Result<Slurm, String> {
        self.stage()?;
        let program = executable::staged_program().ok_or("--on slurm needs --dir")?;
        let local = LocalExecutor::new(&journal.work_folder(0), interrupt)?;
        let lab = slurm::LabFolder { root: journal.folder(), key: journal.key(), is_fresh: self.is_fresh };
        let options = slurm::Options { service: self.service.clone(), ..cluster.clone() };
        Slurm::open(lab, program, options, Arc::clone(&self.user), local, Arc::clone(interrupt))
    }
}

/// Everything that identifies the runs of a lab; a change of any of it makes another lab.
#[derive(Serialize)]
struct RunIdentity<'a, T> {
    description: &'a T,
    subjects: &'a [Subject],
    files: Vec<identity::FileIdentity>,
    machine: Machine,
    /// Working directory.
    folder: Option<PathBuf>,
    variables: Vec<(OsString, OsString)>,
    /// Runs that shared the machine are not mixed with runs that had it to themselves.
    is_concurrent: bool,
    /// The same for nodes of a cluster; `None` for a lab on this machine.
    has_shared_nodes: Option<bool>,
}

/// Whether a variable differs between shells without affecting programs; such changes do not
/// prevent resuming a lab.
fn is_shell_variable(name: &str) -> bool {
    const NAMES: [&str; 9] =
        ["_", "SHLVL", "OLDPWD", "COLUMNS", "LINES", "TERM", "TERM_SESSION_ID", "WINDOWID", "COLORTERM"];
    NAMES.contains(&name) || name.starts_with("SSH_") || name.starts_with("TMUX")
}

/// A lab that is set up.
pub struct LabSetup {
    /// The runs done so far.
    pub journal: Journal,
    /// The executors of its runs.
    pub executors: Vec<Box<dyn Executor>>,
}

impl LabSetup {
    /// Sets up a lab. Blocks the signals that end it: call before any other thread starts.
    ///
    /// # Errors
    /// One line: the folder is in use or is not writable, or no launcher or cluster is available.
    pub fn open(content: LabContent<'_, impl Serialize>, options: &LabOptions) -> Result<Self, String> {
        let interrupt = Arc::new(Interrupt::new()?);
        let journal = Journal::open(content.verb, &options.identity(content), &options.journal())?;
        let mut executors: Vec<Box<dyn Executor>> = Vec::new();
        if let Some(cluster) = &options.cluster {
            executors.push(Box::new(options.slurm(cluster, &journal, &interrupt)?));
        } else {
            for number in 0..options.jobs as usize {
                let local = LocalExecutor::new(&journal.work_folder(number), &interrupt)?;
                executors.push(match &options.service {
                    Some(service) => Box::new(ServerExecutor::new(local, service.clone())),
                    None => Box::new(local),
                });
            }
        }
        if journal.resumed_runs() > 0 {
            let runs = counted(journal.resumed_runs() as u64, "run");
            options.user.show(&format!("resuming after {runs} of an earlier lab; --fresh starts over"));
        }
        Ok(Self { journal, executors })
    }

    /// Time that a run of `subject` takes on this machine: it is run once. `None` if the lab runs
    /// on other machines, or if the command cannot be started.
    pub fn time_one_run(&mut self, subject: &Subject) -> Result<Option<Duration>, StopReason> {
        let Some(executor) = self.executors.first_mut() else { return Ok(None) };
        if executor.remote().is_some() {
            return Ok(None);
        }
        let begin = Instant::now();
        let outcome = executor.run(subject, &self.journal.cell("estimate", 0))?;
        Ok((!matches!(outcome.end, End::NotStarted(_))).then(|| begin.elapsed()))
    }

    /// The kinds of machines that ran it, if they are other machines.
    pub fn nodes(&self) -> Vec<NodeKind> {
        self.kinds_of(self.journal.nodes())
    }

    /// The kinds of machines among `nodes`, which has one item per run.
    pub fn kinds_of<'a>(&self, nodes: impl Iterator<Item = &'a Node>) -> Vec<NodeKind> {
        kinds(nodes, &self.journal.folder().join(REMOTE_FOLDER))
    }

    /// Caveats on processes that runs left behind, on the machines that ran it, and on processes
    /// that still disturb them.
    pub fn caveats(&self) -> Vec<LabCaveat> {
        let mut caveats = Vec::new();
        let left_behind = self.journal.count_runs(|outcome| outcome.leftover_processes > 0);
        if left_behind > 0 {
            let runs = counted(left_behind as u64, "run");
            let text = format!("{runs} left processes behind, which were ended");
            caveats.push(LabCaveat::new(LEFT_BEHIND, text));
        }
        caveats.extend(nodes::caveats(&self.nodes()));
        caveats.extend(self.executors.iter().flat_map(|executor| executor.caveats()));
        let unended = self.journal.count_runs(|outcome| outcome.unended_processes > 0);
        if unended > 0 {
            let runs = counted(unended as u64, "run");
            let text = format!(
                "after {runs} the kernel held processes that SIGKILL did not end: they may disturb later runs"
            );
            caveats.push(LabCaveat::new("not_ended", text));
        }
        caveats
    }

    /// Ends a lab without a result: the next one starts over.
    pub fn abandon(self) {
        drop(self.executors);
        self.journal.abandon();
    }

    /// Ends the lab and removes the data kept for resuming it.
    pub fn close(self) {
        drop(self.executors);
        self.journal.finish();
    }
}
