//! Files in the shared folder, `slurm/` below the folder of the lab: what the tasks have to run,
//! and what they wrote.
//!
//! The scheduler supplies no figures; tasks and the submitting strandline communicate only by these
//! files. Each is written under a temporary name and then renamed. They may still be damaged or
//! belong to another lab: every read is bounded, and a file with wrong content is set aside and
//! reported.

use std::io::Read;
use std::path::{Component, Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use strandline_inspect::environment::Environment;

use crate::cell::{Node, Outcome, Subject};
use crate::journal::{REMOTE_FOLDER, hex};
use crate::path_error::{AtPath, path_error};
use crate::remote::Round;
use crate::trial::server::Service;
use strandline_recorder::Limits;

/// Schema of the file of a finished round.
pub const SCHEMA: &str = "strandline/round/1";
/// Larger files are rejected.
const MAX_FILE_BYTES: u64 = 256 << 20;
/// Length of the hash in the name of a plan: a lab has few plans, so collisions are improbable.
const PLAN_HASH_BYTES: usize = 6;
/// At most this much of a partial file is read to count its lines.
const MAX_PART_BYTES: u64 = 64 << 20;

/// The files that a lab shares with its tasks.
#[derive(Clone, Debug)]
pub struct SharedFolder {
    pub root: PathBuf,
    /// Token that distinguishes this lab from earlier labs in the same folder.
    pub lab: String,
}

/// Identity of the lab, for its tasks.
#[derive(Debug, Serialize, Deserialize)]
pub struct LabIdentity {
    pub lab: String,
    /// Key of its journal.
    pub key: String,
}

/// The process that collects the results of tasks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Distinguishes it from other processes of the same lab.
    pub token: String,
    pub host: String,
    pub pid: u32,
}

/// Subjects of the rounds of an array.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    pub lab: String,
    /// The subjects; a round names them by index.
    pub subjects: Vec<Subject>,
    /// How to run subjects that are servers.
    pub service: Option<Service>,
}

/// Rounds that were submitted together, each as a task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobArray {
    pub lab: String,
    /// Name of its plan.
    pub plan: String,
    /// Job name given to the scheduler.
    pub name: String,
    /// The round of each task, by the index of the task.
    pub rounds: Vec<Round>,
}

/// A task of a job array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Task {
    /// Job id of the array.
    pub job: u64,
    /// Index in the array.
    pub index: u32,
}

impl std::fmt::Display for Task {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}_{}", self.job, self.index)
    }
}

/// Content of the file of a finished round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FinishedRound {
    pub schema: String,
    pub lab: String,
    /// Name of its plan.
    pub plan: String,
    pub round: u32,
    pub task: Task,
    /// How often the scheduler restarted the task before.
    pub restarts: u32,
    pub node: Node,
    pub environment: Environment,
    pub runs: Vec<Run>,
}

/// A run of a finished round, with the settings and limits it ran under.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Index of the subject in the plan.
    pub subject: usize,
    pub name: String,
    /// The variables set for it, or removed where there is no value.
    pub settings: Vec<(String, Option<String>)>,
    pub limits: Limits,
    /// The mapped allocators according to its ledgers; `None` if they name none.
    pub allocators: Option<Vec<String>>,
    pub outcome: Outcome,
}

/// Content of the file of a task that gave up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskFailure {
    pub lab: String,
    pub node: String,
    pub why: String,
}

impl SharedFolder {
    /// The folder of all these files.
    pub fn folder(&self) -> PathBuf {
        self.root.join(REMOTE_FOLDER)
    }

    pub fn below(&self, name: &str) -> PathBuf {
        self.folder().join(name)
    }

    pub fn plan_file(&self, plan: &str) -> PathBuf {
        self.below("plans").join(format!("{plan}.json"))
    }

    pub fn array_file(&self, number: u32) -> PathBuf {
        self.below("arrays").join(format!("{number}.json"))
    }

    /// The file with the job id of an array.
    pub fn job_file(&self, number: u32) -> PathBuf {
        self.below("arrays").join(format!("{number}.job"))
    }

    pub fn finished_file(&self, plan: &str, round: u32) -> PathBuf {
        self.below("rounds").join(format!("{plan}-{round}.json"))
    }

    /// The file with the runs that a task has finished of a round.
    pub fn partial_file(&self, plan: &str, round: u32, task: Task) -> PathBuf {
        self.below("rounds").join(format!("{plan}-{round}.{task}.part"))
    }

    pub fn failure_file(&self, plan: &str, round: u32, task: Task) -> PathBuf {
        self.below("rounds").join(format!("{plan}-{round}.{task}.failed"))
    }

    /// The standard error of a task.
    pub fn log_file(&self, task: Task) -> PathBuf {
        self.below("logs").join(format!("{task}.log"))
    }

    /// Reads the file of a finished round; `requested` are the indices of its subjects. `None` if
    /// it does not exist.
    ///
    /// # Errors
    /// One line with the path: it cannot be read, or its content is wrong.
    pub fn read_finished(
        &self,
        plan: &str,
        round: u32,
        requested: &[usize],
    ) -> Result<Option<FinishedRound>, String> {
        let path = self.finished_file(plan, round);
        let invalid = |problem: &str| Err(path_error(&path, &problem));
        let Some(mut finished) = read::<FinishedRound>(&path)? else { return Ok(None) };
        if finished.schema != SCHEMA {
            return invalid("another version of strandline wrote it");
        }
        if finished.lab != self.lab || finished.plan != plan || finished.round != round {
            return invalid("it is of another lab or round");
        }
        let sorted = |mut subjects: Vec<usize>| {
            subjects.sort_unstable();
            subjects
        };
        if sorted(finished.runs.iter().map(|run| run.subject).collect()) != sorted(requested.to_vec()) {
            return invalid("it does not have the requested runs");
        }
        for run in &mut finished.runs {
            run.outcome.node = Some(finished.node.clone());
            let Outcome { stdout, stderr, recording, .. } = &mut run.outcome;
            for output in [stdout, stderr, recording] {
                if output.as_deref().is_some_and(|output| !self.is_run_output(output)) {
                    return invalid("it names a file that is not of this lab");
                }
            }
        }
        Ok(Some(finished))
    }

    /// Whether a path is below the output folder of the runs of this lab.
    fn is_run_output(&self, path: &Path) -> bool {
        let goes_up = path.components().any(|part| part == Component::ParentDir);
        path.starts_with(self.root.join("cells")) && !goes_up
    }
}

/// Name of a plan: a hash of its content.
pub fn plan_name(plan: &Plan) -> Result<String, String> {
    let text = serde_json::to_vec(&(&plan.subjects, &plan.service)).map_err(|error| error.to_string())?;
    Ok(hex(Sha256::digest(&text).get(..PLAN_HASH_BYTES).unwrap_or_default()))
}

/// A file of a round that is finished or running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundFile {
    pub round: u32,
    pub is_finished: bool,
}

/// Parses a file name in `rounds/`; `None` if it is not of a round of `plan`.
pub fn parse_round_file(name: &str, plan: &str) -> Option<RoundFile> {
    let (round, extension) = name.strip_prefix(plan)?.strip_prefix('-')?.split_once('.')?;
    let is_finished = extension == "json";
    if !is_finished && !extension.ends_with(".part") {
        return None;
    }
    Some(RoundFile { round: round.parse().ok()?, is_finished })
}

/// Reads a file of JSON; `None` if it does not exist.
///
/// # Errors
/// One line with the path: it cannot be read, or its content is wrong.
pub fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, String> {
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(path_error(path, &error)),
    };
    if file.metadata().is_ok_and(|metadata| !metadata.is_file() || metadata.len() > MAX_FILE_BYTES) {
        return Err(path_error(path, &"it is not a file of this lab"));
    }
    let mut text = Vec::new();
    file.take(MAX_FILE_BYTES).read_to_end(&mut text).at(path)?;
    serde_json::from_slice(&text).map(Some).at(path)
}

/// The content of a file of JSON that a lab can do without; `None` if it does not exist, cannot be
/// read or is wrong.
pub fn read_if_valid<T: DeserializeOwned>(path: &Path) -> Option<T> {
    read(path).ok().flatten()
}

/// Number of complete lines in a partial file, without the first one (its header); 0 if it cannot
/// be read. Only the progress shows it.
pub fn count_runs(path: &Path) -> usize {
    let mut text = Vec::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(MAX_PART_BYTES).read_to_end(&mut text));
    if read.is_err() {
        return 0;
    }
    memchr::memchr_iter(b'\n', &text).count().saturating_sub(1)
}

/// A random token. The process id distinguishes two processes with the same random seed.
pub fn token() -> String {
    format!("{:016x}", fastrand::Rng::new().u64(..) ^ u64::from(std::process::id()).rotate_left(40))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::atomic_file::write_json;

    fn shared_folder(root: &Path) -> SharedFolder {
        SharedFolder { root: root.to_owned(), lab: "lab".to_owned() }
    }

    fn finished(shared: &SharedFolder) -> FinishedRound {
        let outcome = Outcome::not_started("x".to_owned());
        let run = |subject| Run {
            subject,
            name: "a".to_owned(),
            settings: Vec::new(),
            limits: Limits::default(),
            allocators: None,
            outcome: outcome.clone(),
        };
        FinishedRound {
            schema: SCHEMA.to_owned(),
            lab: shared.lab.clone(),
            plan: "p".to_owned(),
            round: 3,
            task: Task { job: 1, index: 2 },
            restarts: 0,
            node: Node { name: "n".to_owned(), kind: "k".to_owned() },
            environment: Environment::default(),
            runs: vec![run(1), run(0)],
        }
    }

    #[test]
    fn a_file_that_is_not_what_it_should_be_is_refused_with_its_path() {
        let folder = tempfile::tempdir().unwrap();
        let shared = shared_folder(folder.path());
        assert_eq!(shared.read_finished("p", 3, &[0, 1]), Ok(None));
        let good = finished(&shared);
        write_json(&shared.finished_file("p", 3), &good).unwrap();
        let read = shared.read_finished("p", 3, &[0, 1]).unwrap().unwrap();
        assert_eq!(read.runs[0].outcome.node.as_ref().unwrap().name, "n");
        let refused = |finished: &FinishedRound, requested: &[usize]| {
            write_json(&shared.finished_file("p", 3), finished).unwrap();
            matches!(shared.read_finished("p", 3, requested), Err(why) if why.contains("p-3.json"))
        };
        assert!(refused(&good, &[0]), "other runs");
        assert!(refused(&FinishedRound { lab: "other".to_owned(), ..good.clone() }, &[0, 1]));
        assert!(refused(&FinishedRound { round: 4, ..good.clone() }, &[0, 1]));
        assert!(refused(&FinishedRound { schema: "strandline/round/2".to_owned(), ..good.clone() }, &[0, 1]));
        for path in ["/etc/passwd", "cells/../../x", ".."] {
            let mut bad = good.clone();
            bad.runs[0].outcome.stderr = Some(shared.root.join(path));
            assert!(refused(&bad, &[0, 1]), "{path}");
        }
        let text = serde_json::to_vec(&good).unwrap();
        for cut in 0..text.len() {
            std::fs::write(shared.finished_file("p", 3), &text[..cut]).unwrap();
            assert!(shared.read_finished("p", 3, &[0, 1]).is_err(), "cut at {cut}");
        }
        std::fs::remove_file(shared.finished_file("p", 3)).unwrap();
        std::fs::create_dir(shared.finished_file("p", 3)).unwrap();
        assert!(shared.read_finished("p", 3, &[0, 1]).is_err(), "a folder");
    }

    #[test]
    fn rounds_are_known_by_their_names() {
        assert_eq!(parse_round_file("ab-17.json", "ab"), Some(RoundFile { round: 17, is_finished: true }));
        assert_eq!(
            parse_round_file("ab-17.4_2.part", "ab"),
            Some(RoundFile { round: 17, is_finished: false })
        );
        for name in [
            "ab-17.4_2.failed",
            "cd-17.json",
            "ab-x.json",
            "ab17.json",
            "ab-17",
            ".new-1",
            "ab-99999999999.json",
        ] {
            assert_eq!(parse_round_file(name, "ab"), None, "{name}");
        }
    }
}
