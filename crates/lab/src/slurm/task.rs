//! A task: runs one round on its node with the local executor, and writes the outcomes into the
//! shared folder.
//!
//! It ends like a local lab: if it is killed at any instant, its launcher ends the runs. If the
//! scheduler restarts it on the same node since the same boot, it continues after the finished
//! runs; on another node it runs the whole round, because pairs must be from one node.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use strandline_inspect::environment::Environment;

use super::files::{
    FinishedRound, JobArray, LabIdentity, Plan, Run, SCHEMA, SharedFolder, Task, TaskFailure, read, token,
};
use crate::atomic_file::write_json;
use crate::cell::{End, Measure, Node, Outcome, Subject, SubjectRun};
use crate::executor::{Executor, StopReason};
use crate::interrupt::Interrupt;
use crate::journal::cell_folder;
use crate::json_lines::{JsonLines, write_line};
use crate::local::LocalExecutor;
use crate::nodes;
use crate::path_error::{AtPath, path_error};
use crate::remote::Round;
use crate::trial::observation::Observation;
use crate::trial::server::{ServerExecutor, read_observation};

/// How long a task waits for a signal after a run that succeeded: the longer, the more likely the
/// run ended by that signal.
const SIGNAL_WAIT_AFTER_SUCCESS: Duration = Duration::from_millis(5);
/// The same after a run that failed.
const SIGNAL_WAIT_AFTER_FAILURE: Duration = Duration::from_millis(50);
/// The same after a run that a signal ended.
const SIGNAL_WAIT_AFTER_SIGNAL: Duration = Duration::from_millis(500);
/// 128 plus the number of a signal is the status of a shell whose command the signal ended.
const FIRST_SIGNAL_STATUS: u8 = 128;

/// Arguments of a task.
#[derive(Clone, Debug)]
pub struct TaskArguments {
    /// Folder of the lab.
    pub folder: PathBuf,
    /// Number of its array in the lab.
    pub array: u32,
    /// The task.
    pub task: Task,
    /// Name of its node, as given by the scheduler.
    pub node: String,
    /// How often the scheduler restarted it before.
    pub restarts: u32,
}

/// First line of a partial file.
#[derive(PartialEq, Serialize, Deserialize)]
struct PartialHeader {
    lab: String,
    node: String,
    /// Boot id of the node.
    boot: String,
}

/// The file with the finished runs of a round that is not finished: a [`PartialHeader`], then a
/// [`SubjectRun`] in each line.
struct PartialRound {
    file: File,
    /// The outcomes in it, by subject.
    finished: BTreeMap<usize, Outcome>,
}

struct RoundTask {
    shared: SharedFolder,
    arguments: TaskArguments,
    plan_name: String,
    plan: Plan,
    round: Round,
}

/// Runs the round of a task.
///
/// # Errors
/// [`StopReason`]; the reason is also written to the shared folder, if possible.
pub fn serve(arguments: TaskArguments) -> Result<(), StopReason> {
    let interrupt = Arc::new(Interrupt::new()?);
    let Some(task) = read_task(arguments)? else { return Ok(()) };
    let result = task.run(&interrupt);
    // Files left there are no longer needed.
    drop(std::fs::remove_dir_all(task.work_folder()));
    if let Err(StopReason::Failed(why)) = &result {
        let RoundTask { shared, arguments, plan_name, round, .. } = &task;
        let failed = TaskFailure { lab: shared.lab.clone(), node: arguments.node.clone(), why: why.clone() };
        // A failure to write is ignored: the log of the scheduler has the reason too.
        drop(write_json(&shared.failure_file(plan_name, round.number, arguments.task), &failed));
    }
    result
}

/// The round to run; `None` if it is already finished.
fn read_task(arguments: TaskArguments) -> Result<Option<RoundTask>, String> {
    let mut shared = SharedFolder { root: arguments.folder.clone(), lab: String::new() };
    let identity: LabIdentity = read_required(&shared.below("lab.json"))?;
    shared.lab = identity.lab;
    let path = shared.array_file(arguments.array);
    let array: JobArray = read_required(&path)?;
    let plan: Plan = read_required(&shared.plan_file(&array.plan))?;
    if array.lab != shared.lab || plan.lab != shared.lab {
        return Err(format!("{}: its lab was restarted: the task does nothing", path.display()));
    }
    let Some(round) = array.rounds.into_iter().nth(arguments.task.index as usize) else {
        return Err(format!("{}: it has no task {}", path.display(), arguments.task.index));
    };
    if let Ok(Some(_)) = shared.read_finished(&array.plan, round.number, &round.turns) {
        return Ok(None);
    }
    Ok(Some(RoundTask { shared, arguments, plan_name: array.plan, plan, round }))
}

fn read_required<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, String> {
    let missing = "not here: the lab's folder has to have the same path on all nodes";
    read(path)?.ok_or_else(|| path_error(path, &missing))
}

impl RoundTask {
    /// Folder that runs write into while they run.
    fn work_folder(&self) -> PathBuf {
        self.shared.below("work").join(self.arguments.task.to_string())
    }

    fn run(&self, interrupt: &Arc<Interrupt>) -> Result<(), StopReason> {
        let environment = Environment::read();
        let node = Node { name: self.arguments.node.clone(), kind: nodes::kind_of(&environment) };
        let description = self.shared.folder().join(nodes::file_name(&node.kind));
        if !description.exists() {
            write_json(&description, &environment)?;
        }
        let mut partial = self.open_partial()?;
        let local = LocalExecutor::new(&self.work_folder(), interrupt)?;
        let mut executor: Box<dyn Executor> = match &self.plan.service {
            Some(service) => Box::new(ServerExecutor::new(local, service.clone())),
            None => Box::new(local),
        };
        for &turn in &self.round.turns {
            if partial.finished.contains_key(&turn) {
                continue;
            }
            let subject = self.subject(turn)?;
            let folder = cell_folder(&self.shared.root, &subject.name, self.round.number);
            let outcome = executor.run(subject, &folder)?;
            if let Some(signal) = ending_signal(interrupt, &outcome) {
                return Err(StopReason::Interrupted(signal));
            }
            let run = SubjectRun { subject: turn, outcome };
            write_line(&mut partial.file, &run).at(&self.partial_path())?;
            partial.finished.insert(run.subject, run.outcome);
        }
        drop(executor);
        let mut runs = Vec::with_capacity(self.round.turns.len());
        for &turn in &self.round.turns {
            let (subject, outcome) = (self.subject(turn)?, partial.finished.remove(&turn));
            let outcome = outcome.ok_or_else(|| StopReason::Failed("a run was lost".to_owned()))?;
            runs.push(self.run_record(turn, subject, outcome));
        }
        let finished_round = FinishedRound {
            schema: SCHEMA.to_owned(),
            lab: self.shared.lab.clone(),
            plan: self.plan_name.clone(),
            round: self.round.number,
            task: self.arguments.task,
            restarts: self.arguments.restarts,
            node,
            environment,
            runs,
        };
        write_json(&self.shared.finished_file(&self.plan_name, self.round.number), &finished_round)?;
        drop(std::fs::remove_file(self.partial_path()));
        Ok(())
    }

    fn subject(&self, turn: usize) -> Result<&Subject, StopReason> {
        let subject = self.plan.subjects.get(turn);
        subject.ok_or_else(|| {
            StopReason::Failed(format!("round {}: the plan has no subject {turn}", self.round.number))
        })
    }

    fn run_record(&self, turn: usize, subject: &Subject, outcome: Outcome) -> Run {
        let observation = match (&self.plan.service, &subject.measure) {
            (Some(_), _) => Some(read_observation(&outcome)),
            (None, Measure::Recording { .. }) => Some(Observation::of_outcome(&outcome)),
            (None, _) => None,
        };
        let allocators: Vec<String> = observation
            .map(|observation| observation.allocators.into_iter().map(|mapped| mapped.name).collect())
            .unwrap_or_default();
        Run {
            subject: turn,
            name: subject.name.clone(),
            settings: subject.environment.clone(),
            limits: subject.limits,
            allocators: (!allocators.is_empty()).then_some(allocators),
            outcome,
        }
    }

    fn partial_path(&self) -> PathBuf {
        self.shared.partial_file(&self.plan_name, self.round.number, self.arguments.task)
    }

    /// Creates the partial file, with the runs that an earlier start of this task left in it.
    fn open_partial(&self) -> Result<PartialRound, String> {
        let path = self.partial_path();
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
        // An unknown boot is not the same as another unknown one: the whole round is run.
        let boot = boot.unwrap_or_else(|_| token());
        let header = PartialHeader {
            lab: self.shared.lab.clone(),
            node: self.arguments.node.clone(),
            boot: boot.trim().to_owned(),
        };
        let finished = read_partial(&path, &header);
        std::fs::create_dir_all(path.parent().unwrap_or(Path::new("."))).at(&path)?;
        let mut file = File::create(&path).at(&path)?;
        write_line(&mut file, &header).at(&path)?;
        for (&subject, outcome) in &finished {
            write_line(&mut file, &SubjectRun { subject, outcome: outcome.clone() }).at(&path)?;
        }
        Ok(PartialRound { file, finished })
    }
}

/// The signal with which the scheduler ends this task, if any. All processes of a task get it, in
/// any order: it may end a run before this process sees it, and then that run must not count.
fn ending_signal(interrupt: &Interrupt, outcome: &Outcome) -> Option<i32> {
    let max_wait = match outcome.end {
        End::Exited(0) => SIGNAL_WAIT_AFTER_SUCCESS,
        // A larger one is that of a shell whose command was ended by a signal.
        End::Exited(status) if status < FIRST_SIGNAL_STATUS => SIGNAL_WAIT_AFTER_FAILURE,
        _ => SIGNAL_WAIT_AFTER_SIGNAL,
    };
    let begin = Instant::now();
    loop {
        let signal = interrupt.signal();
        if signal.is_some() || begin.elapsed() >= max_wait {
            return signal;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The runs in the complete lines of a partial file. Empty if its first line is not `header`, or if
/// it cannot be read: the whole round is then run.
fn read_partial(path: &Path, header: &PartialHeader) -> BTreeMap<usize, Outcome> {
    let mut finished = BTreeMap::new();
    let Ok(file) = File::open(path) else { return finished };
    let mut lines = JsonLines::of(&file);
    if !matches!(lines.next::<PartialHeader>(), Ok(Some(written)) if written == *header) {
        return finished;
    }
    while let Ok(Some(SubjectRun { subject, outcome })) = lines.next() {
        finished.insert(subject, outcome);
    }
    finished
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_resumes_only_on_its_node() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("part");
        let header =
            |node: &str| PartialHeader { lab: "l".to_owned(), node: node.to_owned(), boot: "b".to_owned() };
        let mut partial = File::create(&path).unwrap();
        write_line(&mut partial, &header("n1")).unwrap();
        for subject in [2, 0] {
            let outcome = Outcome::not_started(String::new());
            write_line(&mut partial, &SubjectRun { subject, outcome }).unwrap();
        }
        assert_eq!(read_partial(&path, &header("n1")).into_keys().collect::<Vec<_>>(), [0, 2]);
        assert!(read_partial(&path, &header("n2")).is_empty(), "another node");
        let partial_bytes = std::fs::read(&path).unwrap();
        for cut in 0..partial_bytes.len() {
            std::fs::write(&path, &partial_bytes[..cut]).unwrap();
            let lines = partial_bytes[..cut].iter().filter(|&&byte| byte == b'\n').count();
            assert_eq!(read_partial(&path, &header("n1")).len(), lines.saturating_sub(1), "cut at {cut}");
        }
        assert!(read_partial(&folder.path().join("none"), &header("n1")).is_empty());
    }
}
