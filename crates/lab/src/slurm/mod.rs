//! Rounds on a Slurm cluster: each is a task of a job array and runs on one node, in its drawn
//! order.
//!
//! `files` defines the files in the shared folder, `scheduler` calls sbatch, squeue, scancel and
//! scontrol, `task` runs on a node, `watch` collects the results of tasks and handles lost rounds,
//! `round.sh` is the job script. Everything else (builds, probes) runs on the submitting machine,
//! by its local executor. If the submitting strandline is killed or its machine crashes, tasks
//! continue; the next strandline collects their results and waits for the rest.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::atomic_file;
use super::cell::{Outcome, Subject};
use super::executor::{Executor, Job, Stopped};
use super::interrupt::Interrupt;
use super::local::Local;
use super::remote::{RemoteEvent, RemoteExecutor, Round, TaskCounts};
use super::trial::server::Service;
use super::user::User;

mod files;
mod scheduler;
mod task;
mod watch;

pub use files::Task;
pub use task::{TaskArguments, serve};

use files::{
    JobArray, LabIdentity, Owner, Plan, ReadResult, SharedFolder, plan_name, read, token, write_json,
};
use scheduler::TaskState;

/// The job script.
const SCRIPT: &str = include_str!("round.sh");
/// Maximum number of arrays of one lab.
const MAX_ARRAYS: u32 = 10_000;
/// Options of sbatch that are rejected because they would change what a round is.
const OWN_OPTIONS: [&str; 20] = [
    "--array",
    "-a",
    "--nodes",
    "-N",
    "--ntasks",
    "-n",
    "--output",
    "-o",
    "--error",
    "-e",
    "--wrap",
    "--wait",
    "-W",
    "--parsable",
    "--test-only",
    "--job-name",
    "-J",
    "--chdir",
    "-D",
    "--export",
];

/// Options for submitting jobs.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Options for sbatch, one word each.
    pub sbatch: Vec<String>,
    /// Whether nodes may be shared with other jobs.
    pub is_shared: bool,
    /// Maximum number of concurrent rounds.
    pub max_running: Option<u32>,
    /// How to run subjects that are servers.
    pub service: Option<Service>,
}

/// The folder of a lab.
#[derive(Clone, Copy, Debug)]
pub struct LabFolder<'a> {
    /// Its path, which all nodes see.
    pub root: &'a Path,
    /// Key of its journal.
    pub key: &'a str,
    /// Whether to ignore an earlier lab there.
    pub is_fresh: bool,
}

/// Why an option for sbatch is rejected; `None` if it is passed on.
pub fn why_rejected(option: &str) -> Option<String> {
    let name = option.split('=').next().unwrap_or(option);
    // The value may follow a short option directly: -N2.
    let short =
        name.strip_prefix('-').filter(|rest| !rest.starts_with('-')).and_then(|rest| rest.chars().next());
    let is_own = OWN_OPTIONS.contains(&name)
        || short.is_some_and(|short| OWN_OPTIONS.contains(&format!("-{short}").as_str()));
    if !option.starts_with('-') {
        return Some(format!(
            "{option}: an option of sbatch begins with -, and has its value behind =: --qos=low"
        ));
    }
    is_own.then(|| format!("{name}: strandline sets that itself, so that a round is one task on one node"))
}

/// A requested round that is not finished.
#[derive(Clone, Debug)]
struct PendingRound {
    turns: Vec<usize>,
    /// How often it was submitted.
    tries: u32,
    task: Option<Task>,
    stand: TaskState,
    /// State and reason as given by the scheduler.
    state_text: String,
    node: String,
    /// Since when the scheduler reports it as ended, or does not know it.
    ended_since: Option<Instant>,
}

/// Runs rounds by Slurm, and single jobs on this machine.
pub struct Slurm {
    local: Local,
    store: SharedFolder,
    program: PathBuf,
    options: Options,
    user: Arc<dyn User>,
    interrupt: Arc<Interrupt>,
    token: String,
    /// Name of the plan of the requested rounds.
    plan: String,
    waiting: BTreeMap<u32, PendingRound>,
    /// The arrays of this lab, with their job ids if known.
    arrays: BTreeMap<u32, (JobArray, Option<u64>)>,
    news: VecDeque<RemoteEvent>,
    watch: watch::Watch,
    caveats: Vec<(&'static str, String)>,
}

impl Slurm {
    /// Opens a lab. If its key differs from that of the last lab in the folder, or the lab is
    /// fresh, jobs of the earlier lab are cancelled. `program` is the executable of strandline, at
    /// a path that all nodes see; `local` runs single jobs.
    ///
    /// # Errors
    /// One line.
    pub fn open(
        LabFolder { root, key, is_fresh }: LabFolder<'_>,
        program: PathBuf,
        options: Options,
        user: Arc<dyn User>,
        local: Local,
        interrupt: Arc<Interrupt>,
    ) -> Result<Self, String> {
        if root.to_str().is_none_or(|root| root.contains(['\n', '\\'])) {
            return Err(format!("{}: a name that sbatch takes has neither \\ nor line ends", root.display()));
        }
        let store = open_store(root, key, is_fresh)?;
        atomic_file::write(&store.below("round.sh"), SCRIPT.as_bytes())?;
        for folder in ["rounds", "logs", "arrays", "plans", "work"] {
            let folder = store.below(folder);
            std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        }
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let token = token();
        let owner = Owner { token: token.clone(), host: host.trim().to_owned(), pid: std::process::id() };
        write_json(&store.below("owner.json"), &owner)?;
        let arrays = known_arrays(&store);
        let watch = watch::Watch::new(&store.folder());
        Ok(Self {
            local,
            store,
            program,
            options,
            user,
            interrupt,
            token,
            plan: String::new(),
            waiting: BTreeMap::new(),
            arrays,
            news: VecDeque::new(),
            watch,
            caveats: Vec::new(),
        })
    }

    /// The options passed to sbatch.
    fn sbatch_options(&self) -> Vec<String> {
        let log = self.store.below("logs").to_string_lossy().replace('%', "%%");
        let mut options: Vec<String> =
            ["--nodes=1", "--ntasks=1", "--requeue", "--open-mode=append", "--export=ALL", "--chdir=/"]
                .map(str::to_owned)
                .to_vec();
        options.push(format!("--output={log}/%A_%a.log"));
        if !self.options.is_shared {
            // Gives the job all memory of the node, regardless of the cluster's default.
            options.extend(["--exclusive", "--mem=0"].map(str::to_owned));
        }
        options.extend(self.options.sbatch.iter().cloned());
        options
    }

    /// The job ids of unfinished rounds.
    fn jobs(&self) -> Vec<u64> {
        let mut jobs: Vec<u64> =
            self.waiting.values().filter_map(|waiting| waiting.task).map(|task| task.job).collect();
        jobs.sort_unstable();
        jobs.dedup();
        jobs
    }

    fn task_counts(&self) -> TaskCounts {
        let running = self.waiting.values().filter(|waiting| waiting.stand == TaskState::Running).count();
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        TaskCounts { running: count(running), waiting: count(self.waiting.len() - running) }
    }
}

/// The shared folder of the lab with this key: of the last lab there if it is the same, of a new
/// one otherwise.
fn open_store(root: &Path, key: &str, is_fresh: bool) -> Result<SharedFolder, String> {
    let mut store = SharedFolder { root: root.to_owned(), lab: String::new() };
    let last = match read::<LabIdentity>(&store.below("lab.json")) {
        ReadResult::Here(last) => Some(last),
        ReadResult::Missing | ReadResult::Wrong(_) => None,
    };
    match last {
        Some(last) if last.key == key && !is_fresh => store.lab = last.lab,
        last => {
            if let Some(last) = last {
                discard_lab(&SharedFolder { lab: last.lab, ..store.clone() });
            }
            store.lab = token();
            let identity = LabIdentity { lab: store.lab.clone(), key: key.to_owned() };
            write_json(&store.below("lab.json"), &identity)?;
        }
    }
    Ok(store)
}

/// Cancels the jobs of an earlier lab, and removes its files.
fn discard_lab(store: &SharedFolder) {
    // A job whose id was not written down is found by its name.
    let job = |(array, job): (JobArray, Option<u64>)| {
        job.or_else(|| scheduler::find(&array.name).ok().flatten()).map(|job| job.to_string())
    };
    let jobs: Vec<String> = known_arrays(store).into_values().filter_map(job).collect();
    if !jobs.is_empty() {
        // If that fails, its tasks find another lab in the folder and do nothing.
        drop(scheduler::cancel(&jobs));
    }
    for folder in ["rounds", "arrays", "plans", "logs", "work"] {
        drop(std::fs::remove_dir_all(store.below(folder)));
    }
}

/// The arrays that this lab submitted or was about to submit.
fn known_arrays(store: &SharedFolder) -> BTreeMap<u32, (JobArray, Option<u64>)> {
    let mut arrays = BTreeMap::new();
    for entry in std::fs::read_dir(store.below("arrays")).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_suffix(".json")?.parse::<u32>().ok());
        let Some(number) = number.filter(|&number| number < MAX_ARRAYS) else { continue };
        let ReadResult::Here(array) = read::<JobArray>(&entry.path()) else { continue };
        if array.lab == store.lab {
            let job = match read::<u64>(&store.job(number)) {
                ReadResult::Here(job) => Some(job),
                ReadResult::Missing | ReadResult::Wrong(_) => None,
            };
            arrays.insert(number, (array, job));
        }
    }
    arrays
}

impl RemoteExecutor for Slurm {
    fn request(&mut self, subjects: &[Subject], rounds: Vec<Round>) -> Result<(), Stopped> {
        let here = std::env::current_dir().map_err(|error| Stopped::Failed(error.to_string()))?;
        let placed = |subject: &Subject| Subject {
            directory: Some(subject.directory.clone().unwrap_or_else(|| here.clone())),
            ..subject.clone()
        };
        let plan = Plan {
            lab: self.store.lab.clone(),
            subjects: subjects.iter().map(placed).collect(),
            service: self.options.service.clone(),
        };
        self.plan = plan_name(&plan).map_err(Stopped::Failed)?;
        write_json(&self.store.plan(&self.plan), &plan).map_err(Stopped::Failed)?;
        for Round { number, turns } in rounds {
            let waiting = PendingRound {
                turns,
                tries: 0,
                task: None,
                stand: TaskState::Waiting,
                state_text: String::new(),
                node: String::new(),
                ended_since: None,
            };
            self.waiting.insert(number, waiting);
        }
        // Rounds that were finished by, or are running for, an earlier strandline are not submitted
        // again.
        self.gather();
        self.adopt()?;
        let unasked = self.waiting.iter().filter(|(_, waiting)| waiting.task.is_none());
        let unasked: Vec<u32> = unasked.map(|(&round, _)| round).collect();
        self.submit(&unasked)
    }

    fn next(&mut self) -> Result<RemoteEvent, Stopped> {
        self.watch_for_news()
    }

    fn discard_rounds(&self) {
        drop(std::fs::remove_dir_all(self.store.below("rounds")));
    }

    fn cancel(&mut self) {
        let jobs: Vec<String> = self.jobs().iter().map(ToString::to_string).collect();
        self.waiting.clear();
        self.news.clear();
        if jobs.is_empty() {
            return;
        }
        if let Err(trouble) = scheduler::cancel(&jobs) {
            let line = trouble.line();
            self.user.show(&format!("slurm: not cancelled ({line}); later: scancel {}", jobs.join(" ")));
        }
    }
}

impl Executor for Slurm {
    crate::executor::run_by!(local);

    fn remote(&mut self) -> Option<&mut dyn RemoteExecutor> {
        Some(self)
    }

    fn caveats(&self) -> Vec<(&'static str, String)> {
        self.caveats.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_would_change_what_a_round_is_are_not_passed_on() {
        for own in ["--array=1-3", "-a", "-N2", "--nodes=2", "--wrap=x", "-J", "-n4", "qos=low", ""] {
            assert!(why_rejected(own).is_some(), "{own}");
        }
        for good in
            ["--qos=low", "--gres=gpu:1", "-p", "-pdebug", "--mem=4G", "--no-requeue", "--nodelist=n1"]
        {
            assert_eq!(why_rejected(good), None, "{good}");
        }
    }
}
