//! Rounds on a Slurm cluster: each is a task of a job array and runs on one node, in its drawn
//! order.
//!
//! `files` defines the files in the shared folder, `scheduler` calls sbatch, squeue, scancel and
//! scontrol, `submit` makes arrays of rounds, `task` runs on a node, `watch` collects the results
//! of tasks and handles lost rounds, `round.sh` is the job script. Everything else (builds, probes)
//! runs on the submitting machine, by its local executor. If the submitting strandline is killed or
//! its machine crashes, tasks continue; the next strandline collects their results and waits for
//! the rest.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use super::atomic_file::{self, write_json};
use super::cell::{LabCaveat, Outcome, Subject};
use super::executor::{Executor, StopReason};
use super::interrupt::Interrupt;
use super::local::LocalExecutor;
use super::path_error::{AtPath, path_error};
use super::remote::{RemoteEvent, RemoteExecutor, Round, TaskCounts};
use super::trial::server::Service;
use super::user::User;

mod files;
mod scheduler;
mod submit;
mod task;
mod watch;

pub use files::Task;
pub use task::{TaskArguments, serve};

use files::{JobArray, LabIdentity, Owner, Plan, SharedFolder, plan_name, read_if_valid, token};
use scheduler::TaskState;

const SCRIPT: &str = include_str!("round.sh");
/// Folders in the shared folder; `work` is for runs while they run.
const SUBFOLDERS: [&str; 5] = ["rounds", "logs", "arrays", "plans", "work"];
/// Maximum number of arrays of one lab.
const MAX_ARRAYS: u32 = 10_000;
/// Options of sbatch that are rejected because they would change what a round is, with blanks
/// between them.
const RESERVED_OPTIONS: &str = "--array --nodes --ntasks --output --error --wrap --wait --parsable --test-only \
                                --job-name --chdir --export";
/// The short forms of these options.
const RESERVED_LETTERS: &str = "aNnoeWJD";

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
    let letter = name.strip_prefix('-').and_then(|letters| letters.chars().next());
    let is_reserved = RESERVED_OPTIONS.split(' ').any(|reserved| reserved == name)
        || letter.is_some_and(|letter| RESERVED_LETTERS.contains(letter));
    if !option.starts_with('-') {
        return Some(format!(
            "{option}: an option of sbatch begins with -, and its value follows =: --qos=low"
        ));
    }
    is_reserved
        .then(|| format!("{name}: strandline sets that itself, so that a round is one task on one node"))
}

/// A requested round that is not finished.
#[derive(Clone, Debug, Default)]
struct PendingRound {
    /// Its subjects, in the drawn order.
    turns: Vec<usize>,
    /// How often it was submitted.
    attempts: u32,
    /// The task that was submitted for it last.
    task: Option<Task>,
    /// State of that task.
    state: TaskState,
    /// State and reason as given by the scheduler, once it was queried.
    state_text: Option<String>,
    /// Its current or last node, once it had one.
    node: Option<String>,
    /// Since when the scheduler reports it as ended, or does not know it.
    ended_since: Option<Instant>,
}

/// An array that was submitted, or was about to be when strandline was killed.
#[derive(Debug)]
struct SubmittedArray {
    array: JobArray,
    /// Its job id, if known.
    job: Option<u64>,
}

/// Runs rounds by Slurm, and single jobs on this machine.
pub struct Slurm {
    /// Runs single jobs.
    local: LocalExecutor,
    /// The files of its tasks.
    shared: SharedFolder,
    /// The executable of strandline, at a path that all nodes see.
    program: PathBuf,
    options: Options,
    user: Arc<dyn User>,
    interrupt: Arc<Interrupt>,
    /// Token of this process in the file of the owner.
    token: String,
    /// Name of the plan of the requested rounds; empty before the first request.
    plan: String,
    /// Requested rounds that are not finished, by number.
    pending: BTreeMap<u32, PendingRound>,
    /// The arrays of this lab, by number.
    arrays: BTreeMap<u32, SubmittedArray>,
    /// Events that were not returned yet.
    events: VecDeque<RemoteEvent>,
    watch: watch::Watch,
    caveats: Vec<LabCaveat>,
}

impl Slurm {
    /// Opens a lab. If its key differs from that of the last lab in the folder, or the lab is
    /// fresh, jobs of the earlier lab are cancelled. `program` is the executable of strandline, at
    /// a path that all nodes see; `local` runs single jobs.
    pub fn open(
        LabFolder { root, key, is_fresh }: LabFolder<'_>,
        program: PathBuf,
        options: Options,
        user: Arc<dyn User>,
        local: LocalExecutor,
        interrupt: Arc<Interrupt>,
    ) -> Result<Self, String> {
        if root.to_str().is_none_or(|root| root.contains(['\n', '\\'])) {
            return Err(format!("{}: sbatch accepts no path with \\ or a line end", root.display()));
        }
        let shared = open_shared_folder(root, key, is_fresh)?;
        atomic_file::write(&shared.below("round.sh"), SCRIPT.as_bytes())?;
        for folder in SUBFOLDERS {
            let folder = shared.below(folder);
            std::fs::create_dir_all(&folder).at(&folder)?;
        }
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname");
        // Only a message has the name.
        let host = host.unwrap_or_else(|_| "an unknown machine".to_owned());
        let token = token();
        let owner = Owner { token: token.clone(), host: host.trim().to_owned(), pid: std::process::id() };
        write_json(&shared.below("owner.json"), &owner)?;
        let arrays = known_arrays(&shared)?;
        let watch = watch::Watch::new(&shared.folder());
        Ok(Self {
            local,
            shared,
            program,
            options,
            user,
            interrupt,
            token,
            plan: String::new(),
            pending: BTreeMap::new(),
            arrays,
            events: VecDeque::new(),
            watch,
            caveats: Vec::new(),
        })
    }

    /// The options of every submission.
    fn sbatch_options(&self) -> Vec<String> {
        let log = self.shared.below("logs").to_string_lossy().replace('%', "%%");
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
            self.pending.values().filter_map(|pending| pending.task).map(|task| task.job).collect();
        jobs.sort_unstable();
        jobs.dedup();
        jobs
    }

    /// Numbers of unfinished rounds.
    fn task_counts(&self) -> TaskCounts {
        let running = self.pending.values().filter(|pending| pending.state == TaskState::Running).count();
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        TaskCounts { running: count(running), waiting: count(self.pending.len() - running) }
    }
}

/// The shared folder of the lab with this key: of the last lab there if it is the same; of a new
/// one otherwise, also if `lab.json` is missing or damaged.
fn open_shared_folder(root: &Path, key: &str, is_fresh: bool) -> Result<SharedFolder, String> {
    let mut shared = SharedFolder { root: root.to_owned(), lab: String::new() };
    match read_if_valid::<LabIdentity>(&shared.below("lab.json")) {
        Some(previous) if previous.key == key && !is_fresh => shared.lab = previous.lab,
        previous_lab => {
            if let Some(previous) = previous_lab {
                discard_lab(&SharedFolder { lab: previous.lab, ..shared.clone() })?;
            }
            shared.lab = token();
            let identity = LabIdentity { lab: shared.lab.clone(), key: key.to_owned() };
            write_json(&shared.below("lab.json"), &identity)?;
        }
    }
    Ok(shared)
}

/// Cancels the jobs of an earlier lab, and removes its files.
fn discard_lab(shared: &SharedFolder) -> Result<(), String> {
    // A job whose id was not stored is found by its name. Tasks of jobs that are not cancelled find
    // another lab in the folder and do nothing.
    let job_id = |SubmittedArray { array, job }: SubmittedArray| {
        job.or_else(|| scheduler::find_job(&array.name).ok().flatten()).map(|job| job.to_string())
    };
    let jobs: Vec<String> = known_arrays(shared)?.into_values().filter_map(job_id).collect();
    if !jobs.is_empty() {
        drop(scheduler::cancel(&jobs));
    }
    for folder in SUBFOLDERS {
        // Files that are left are of another lab, and are not read.
        drop(std::fs::remove_dir_all(shared.below(folder)));
    }
    Ok(())
}

/// The arrays that this lab submitted or was about to submit. The rounds of a file that is damaged
/// are submitted again.
///
/// # Errors
/// One line with the folder, if it cannot be read: its arrays would be submitted again.
fn known_arrays(shared: &SharedFolder) -> Result<BTreeMap<u32, SubmittedArray>, String> {
    let mut arrays = BTreeMap::new();
    let folder = shared.below("arrays");
    let entries = match std::fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(arrays),
        Err(error) => return Err(path_error(&folder, &error)),
    };
    for entry in entries {
        let entry = entry.at(&folder)?;
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_suffix(".json")?.parse::<u32>().ok());
        let Some(number) = number.filter(|&number| number < MAX_ARRAYS) else { continue };
        let Some(array) = read_if_valid::<JobArray>(&entry.path()) else { continue };
        if array.lab == shared.lab {
            let job = read_if_valid(&shared.job_file(number));
            arrays.insert(number, SubmittedArray { array, job });
        }
    }
    Ok(arrays)
}

impl RemoteExecutor for Slurm {
    fn request(&mut self, subjects: &[Subject], rounds: Vec<Round>) -> Result<(), StopReason> {
        let own_directory = std::env::current_dir().map_err(|error| StopReason::Failed(error.to_string()))?;
        let with_directory = |subject: &Subject| Subject {
            directory: Some(subject.directory.clone().unwrap_or_else(|| own_directory.clone())),
            ..subject.clone()
        };
        let plan = Plan {
            lab: self.shared.lab.clone(),
            subjects: subjects.iter().map(with_directory).collect(),
            service: self.options.service.clone(),
        };
        self.plan = plan_name(&plan)?;
        write_json(&self.shared.plan_file(&self.plan), &plan)?;
        for Round { number, turns } in rounds {
            self.pending.insert(number, PendingRound { turns, ..PendingRound::default() });
        }
        // Rounds that were finished by, or are running for, an earlier strandline are not submitted
        // again.
        self.scan_rounds();
        self.adopt_tasks()?;
        let unsubmitted = self.pending.iter().filter(|(_, pending)| pending.task.is_none());
        let unsubmitted: Vec<u32> = unsubmitted.map(|(&round, _)| round).collect();
        self.submit(&unsubmitted)
    }

    fn next(&mut self) -> Result<RemoteEvent, StopReason> {
        self.wait_for_event()
    }

    fn discard_rounds(&self) {
        drop(std::fs::remove_dir_all(self.shared.below("rounds")));
    }

    fn cancel(&mut self) {
        let jobs: Vec<String> = self.jobs().iter().map(ToString::to_string).collect();
        self.pending.clear();
        self.events.clear();
        if jobs.is_empty() {
            return;
        }
        if let Err(error) = scheduler::cancel(&jobs) {
            let line = error.line();
            self.user.show(&format!("slurm: not cancelled ({line}); later: scancel {}", jobs.join(" ")));
        }
    }
}

impl Executor for Slurm {
    fn run(&mut self, subject: &Subject, folder: &Path) -> Result<Outcome, StopReason> {
        self.local.run(subject, folder)
    }

    fn no_counters_reason(&self) -> Option<String> {
        self.local.no_counters_reason()
    }

    fn remote(&mut self) -> Option<&mut dyn RemoteExecutor> {
        Some(self)
    }

    fn caveats(&self) -> Vec<LabCaveat> {
        self.caveats.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_would_change_what_a_round_is_are_not_passed_on() {
        for option in ["--array=1-3", "-a", "-N2", "--nodes=2", "--wrap=x", "-J", "-n4", "qos=low", ""] {
            assert!(why_rejected(option).is_some(), "{option}");
        }
        for good in
            ["--qos=low", "--gres=gpu:1", "-p", "-pdebug", "--mem=4G", "--no-requeue", "--nodelist=n1"]
        {
            assert_eq!(why_rejected(good), None, "{good}");
        }
    }
}
