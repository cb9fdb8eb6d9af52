//! Runs a server under a load: starts it, waits until it is ready, runs the load, lets it settle,
//! takes its ledgers, and ends it.
//!
//! It wraps the local executor, so that the engine needs no special case. The observation of a
//! run is written to a file next to its output, in place of a recording.

use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::unistd::{Pid, getsid};
use serde::{Deserialize, Serialize};
use strandline_inspect::explain::{Options, explain};
use strandline_process::error::Error;
use strandline_process::procfs::{Process, all_pids};

use super::listening::is_open;
use super::observation::{Observation, ServerLedger};
use crate::atomic_file::write_json;
use crate::cell::{End, Outcome, Subject};
use crate::executor::{Executor, StopReason};
use crate::local::{Job, LocalExecutor};
use crate::path_error::AtPath;
use crate::tail::{last_lines, stderr_tail};

/// Number of lines of the server's standard error in a failure message.
const TAIL_LINES: usize = 3;

/// How to find out that a server is ready.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReadyCondition {
    /// A socket listens at this port of this machine.
    Port(u16),
    /// It wrote a line that contains this text to standard output or standard error.
    Line(String),
    /// This much time passed since its start.
    After(Duration),
}

/// How a server is run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    /// How to find out that it is ready.
    pub ready: ReadyCondition,
    /// Time limit for becoming ready.
    #[serde(rename = "patience")]
    pub ready_timeout: Duration,
    /// The load, for `sh -c`; `None`: no load.
    pub load: Option<String>,
    /// Time limit of the load.
    pub timeout: Option<Duration>,
    /// Pause between the load and the ledgers.
    #[serde(rename = "settle")]
    pub settle_time: Duration,
}

/// Name of the file with the observation of a run.
const OBSERVATION_FILE: &str = "look.json";
/// Maximum size of that file.
const MAX_OBSERVATION_BYTES: u64 = 1 << 20;
/// Exit statuses of a recorder whose command is missing or not executable.
const NOT_FOUND: u8 = 127;
const NOT_RUNNABLE: u8 = 126;
/// Time for a server to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(10);
/// Time for the launcher to end the remaining processes.
const LAUNCHER_GRACE: Duration = Duration::from_secs(30);
/// Hint for a line that did not come: programs buffer what they write to a file.
const BUFFERING_HINT: &str =
    " (its output is a file, where many programs hold lines back: stdbuf -oL, PYTHONUNBUFFERED=1)";
/// Interval between checks whether it is ready.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Time for the threads of an ending process to end after its main thread.
const THREADS_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size of output searched for the line.
const MAX_OUTPUT_BYTES: u64 = 64 << 20;
/// Maximum size of output searched at a time.
const SEARCH_BYTES: u64 = 1 << 20;
/// Maximum number of processes of a server; a run with more fails.
const MAX_PROCESSES: usize = 1000;

/// Runs servers on this machine.
pub struct ServerExecutor {
    local: LocalExecutor,
    service: Service,
}

impl ServerExecutor {
    /// Runs servers as given by `service`, with `local`.
    pub fn new(local: LocalExecutor, service: Service) -> Self {
        Self { local, service }
    }

    /// Runs a started server up to its ledgers. The result holds the outcome if the server ended by
    /// itself.
    fn run_to_ledgers(
        &mut self,
        job: Job,
        subject: &Subject,
        folder: &Path,
    ) -> Result<ServerRun, StopReason> {
        if let Some(run) = self.wait_until_ready(job)? {
            return Ok(run);
        }
        let begin = Instant::now();
        let mut load_seconds = None;
        if let Some(load) = self.service.load.clone() {
            let command = ["sh", "-c", &load].map(str::to_owned).to_vec();
            let load = Subject {
                name: format!("{} load", subject.name),
                command,
                directory: subject.directory.clone(),
                timeout: self.service.timeout,
                ..Subject::default()
            };
            let outcome = self.local.run(&load, &folder.join("load"))?;
            load_seconds = outcome.figures.wall_seconds.or_else(|| Some(begin.elapsed().as_secs_f64()));
            if let Some(ended) = self.local.wait(job, Some(Duration::ZERO))? {
                let why = format!("the server ended under its load: {}", describe_end(&ended));
                return Ok(ServerRun::failed(why, Some(ended)));
            }
            if !outcome.end.is_success() {
                return Ok(ServerRun::failed(format!("the load failed: {}", describe_end(&outcome)), None));
            }
        }
        if let Some(ended) = self.local.wait(job, Some(self.service.settle_time))? {
            let why = format!("the server ended before it was measured: {}", describe_end(&ended));
            return Ok(ServerRun::failed(why, Some(ended)));
        }
        let Some(pid) = self.local.pid(job)? else {
            return Ok(ServerRun::failed("the server's process is not known".to_owned(), None));
        };
        let mut run = ledgers_of(pid);
        run.observation.wall_seconds = load_seconds;
        Ok(run)
    }

    /// Waits until the server is ready; returns its result if it will not be.
    fn wait_until_ready(&mut self, job: Job) -> Result<Option<ServerRun>, StopReason> {
        let ready = self.service.ready.clone();
        let begin = Instant::now();
        let mut searches = Vec::new();
        if let (ReadyCondition::Line(_), Some(output)) = (&ready, self.local.output(job)) {
            searches = vec![OutputSearch::new(output.stdout), OutputSearch::new(output.stderr)];
        }
        loop {
            let is_ready = match &ready {
                ReadyCondition::Port(port) => is_open(*port),
                ReadyCondition::Line(text) => {
                    searches.iter_mut().any(|search| search.finds_text(text.as_bytes()))
                }
                ReadyCondition::After(pause) => begin.elapsed() >= *pause,
            };
            if is_ready {
                return Ok(None);
            }
            let pause = match &ready {
                ReadyCondition::After(pause) => pause.saturating_sub(begin.elapsed()),
                _ => POLL_INTERVAL,
            };
            if let Some(ended) = self.local.wait(job, Some(pause))? {
                let mut why = format!("the server ended before it was ready: {}", describe_end(&ended));
                if ended.end.is_success() {
                    why += "; if it moved to the background, run it in the foreground";
                }
                return Ok(Some(ServerRun::failed(why, Some(ended))));
            }
            if !matches!(ready, ReadyCondition::After(_)) && begin.elapsed() > self.service.ready_timeout {
                return Ok(Some(ServerRun::failed(self.not_ready(job), None)));
            }
        }
    }

    /// Describes a server that did not become ready in time.
    fn not_ready(&self, job: Job) -> String {
        let (problem, hint) = match &self.service.ready {
            ReadyCondition::Port(port) => (format!("port {port} did not open"), ""),
            ReadyCondition::Line(_) | ReadyCondition::After(_) => {
                ("the line did not come".to_owned(), BUFFERING_HINT)
            }
        };
        let seconds = self.service.ready_timeout.as_secs_f64();
        let tail = self.local.output(job).map(|output| stderr_tail(&output.stderr, TAIL_LINES));
        format!("{problem} within {seconds} s{hint}{}", tail.unwrap_or_default())
    }
}

struct ServerRun {
    observation: Observation,
    /// The outcome of the server, if it ended by itself.
    ended: Option<Outcome>,
}

impl ServerRun {
    fn failed(why: String, ended: Option<Outcome>) -> Self {
        Self { observation: Observation { failure: Some(why), ..Observation::default() }, ended }
    }
}

impl Executor for ServerExecutor {
    fn no_counters_reason(&self) -> Option<String> {
        self.local.no_counters_reason()
    }

    fn run(&mut self, subject: &Subject, folder: &Path) -> Result<Outcome, StopReason> {
        if let ReadyCondition::Port(port) = self.service.ready
            && is_open(port)
        {
            return Err(StopReason::Failed(format!(
                "another process already listens at port {port}: end it, or give the server another port"
            )));
        }
        let job = self.local.start(subject, folder)?;
        let mut run = self.run_to_ledgers(job, subject, folder)?;
        let mut outcome = match run.ended.take() {
            Some(ended) => ended,
            None => {
                self.local.stop(job, GRACE)?;
                let ended = self.local.wait(job, Some(GRACE + LAUNCHER_GRACE))?;
                ended.ok_or_else(|| {
                    StopReason::Failed(format!("{}: the server cannot be ended", subject.name))
                })?
            }
        };
        if outcome.end == End::Signalled(Signal::SIGKILL as i32) && run.observation.failure.is_none() {
            run.observation
                .notes
                .push(format!("did not end within {} s of SIGTERM, and was killed", GRACE.as_secs()));
        }
        run.observation.minor_faults = outcome.figures.minor_faults;
        if run.observation.processes > 1 {
            run.observation.notes.push(
                "has several processes: a peak of all of them together is not known, only of each".to_owned(),
            );
        }
        let path = folder.join(OBSERVATION_FILE);
        write_json(&path, &run.observation)?;
        outcome.recording = Some(path);
        Ok(outcome)
    }
}

/// Reads the observation of the run of a server from its file.
pub fn read_observation(outcome: &Outcome) -> Observation {
    let read = || -> Option<Observation> {
        let file = std::fs::File::open(outcome.recording.as_ref()?).ok()?;
        serde_json::from_reader(file.take(MAX_OBSERVATION_BYTES)).ok()
    };
    read().unwrap_or_else(|| Observation {
        failure: Some("the result of the run was not kept".to_owned()),
        ..Observation::default()
    })
}

/// Takes the ledgers of process `pid` and its descendants. A live process that cannot be inspected
/// fails the run: without its memory the result would be too small.
fn ledgers_of(pid: i32) -> ServerRun {
    let mut ledgers = Vec::new();
    let tree = match tree_of(pid) {
        Ok(tree) => tree,
        Err(error) => return ServerRun::failed(format!("the server cannot be measured: {error}"), None),
    };
    if tree.len() >= MAX_PROCESSES {
        return ServerRun::failed(
            format!("the server has {MAX_PROCESSES} or more processes: too many"),
            None,
        );
    }
    let rollup_of = |pid| Process::open(pid).ok().and_then(|process| process.smaps_rollup());
    for process in tree {
        match explain(process, &Options { finds_zero_pages: false, ..Options::default() }) {
            Ok(explanation) => ledgers.push(ServerLedger { explanation, rollup: rollup_of(process) }),
            Err(error) if process == pid || !has_ended(process) => {
                return ServerRun::failed(format!("the server cannot be measured: {error}"), None);
            }
            // It ended in the meantime and holds no memory.
            Err(_) => {}
        }
    }
    ServerRun { observation: Observation::of_ledgers(&ledgers), ended: None }
}

/// Whether a process that could not be inspected has no memory. One that is hidden, or whose main
/// thread alone has ended, still has. As a process ends, its main thread may end before the others.
fn has_ended(pid: i32) -> bool {
    let begin = Instant::now();
    loop {
        let status = match Process::open(pid).and_then(|process| process.status()) {
            Ok(status) => status,
            Err(error) => return matches!(error, Error::NoSuchProcess { .. } | Error::Ended { .. }),
        };
        let has_other_threads = status.threads.is_some_and(|threads| threads > 1);
        if !status.is_zombie() || !has_other_threads || begin.elapsed() >= THREADS_TIMEOUT {
            return status.is_zombie() && !has_other_threads;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// `root` and its current descendants, from /proc, and the other processes of the session that
/// `root` leads: the launcher adopts those whose parents have ended.
fn tree_of(root: i32) -> Result<Vec<i32>, String> {
    let pids = all_pids().at(Path::new("/proc"))?;
    // A process that has ended meanwhile has neither parent nor session.
    let parent_of = |pid: i32| Process::open(pid).ok()?.stat().ok()?.parent;
    let leader_of = |pid: i32| getsid(Some(Pid::from_raw(pid))).ok();
    let parents: Vec<(i32, i32)> = pids
        .filter_map(|pid| {
            let is_in_session = leader_of(pid) == Some(Pid::from_raw(root));
            Some((pid, if is_in_session { root } else { parent_of(pid)? }))
        })
        .collect();
    let mut tree = vec![root];
    let mut index = 0;
    while let Some(&pid) = tree.get(index) {
        index += 1;
        let children = parents.iter().filter(|(_, parent)| *parent == pid).map(|(child, _)| *child);
        // Pids may be reused while /proc is read, so even a cycle is possible.
        let new_pids: Vec<i32> = children.filter(|child| !tree.contains(child)).collect();
        tree.extend(new_pids);
        if tree.len() >= MAX_PROCESSES {
            tree.truncate(MAX_PROCESSES);
            break;
        }
    }
    Ok(tree)
}

/// Incremental search in a growing file.
struct OutputSearch {
    path: PathBuf,
    /// End of the data that was searched.
    offset: u64,
    /// The last bytes of that data, because a match may span two reads.
    tail: Vec<u8>,
}

impl OutputSearch {
    fn new(path: PathBuf) -> Self {
        Self { path, offset: 0, tail: Vec::new() }
    }

    /// Searches the data written since the last search; whether it contains `text`. A file that is
    /// missing or cannot be read does not contain it, nor does data beyond [`MAX_OUTPUT_BYTES`]:
    /// the time limit of the server then reports that the line did not come.
    fn finds_text(&mut self, text: &[u8]) -> bool {
        if self.offset >= MAX_OUTPUT_BYTES {
            return false;
        }
        let Ok(mut file) = std::fs::File::open(&self.path) else { return false };
        if file.seek(SeekFrom::Start(self.offset)).is_err() {
            return false;
        }
        let mut new_bytes = Vec::new();
        let Ok(count) = file.take(SEARCH_BYTES).read_to_end(&mut new_bytes) else { return false };
        self.offset += count as u64;
        self.tail.extend_from_slice(&new_bytes);
        if memchr::memmem::find(&self.tail, text).is_some() {
            return true;
        }
        let kept_bytes = self.tail.len().min(text.len());
        self.tail.drain(..self.tail.len() - kept_bytes);
        false
    }
}

/// Describes how a run ended. A command that did not start is described by the recorder.
pub fn describe_end(outcome: &Outcome) -> String {
    let tail = outcome.stderr.as_deref().map(|path| last_lines(path, TAIL_LINES).join(" / "));
    match (&outcome.end, tail.as_deref().and_then(|tail| tail.strip_prefix("strandline: "))) {
        (End::Exited(NOT_FOUND | NOT_RUNNABLE), Some(message)) => message.to_owned(),
        _ => outcome.describe_end(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_comes_in_parts_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("stdout");
        let mut search = OutputSearch::new(path.clone());
        assert!(!search.finds_text(b"listening on"), "there is no file yet");
        std::fs::write(&path, "starting\nlisten").unwrap();
        assert!(!search.finds_text(b"listening on"));
        std::fs::write(&path, "starting\nlistening on port 7\n").unwrap();
        assert!(search.finds_text(b"listening on"));
    }

    #[test]
    fn a_tree_has_its_root_first() {
        let mut child = std::process::Command::new("sleep").arg("30").spawn().unwrap();
        let tree = tree_of(std::process::id().cast_signed()).unwrap();
        let has_child = tree.contains(&child.id().cast_signed());
        drop(child.kill());
        drop(child.wait());
        assert_eq!(tree.first(), Some(&std::process::id().cast_signed()));
        assert!(has_child);
    }

    #[test]
    fn a_process_whose_parent_ended_stays_in_its_session() {
        let mut leader = std::process::Command::new("setsid");
        leader.args(["sh", "-c", "(sleep 30 & echo $!); exec sleep 30"]);
        let mut leader = leader.stdout(std::process::Stdio::piped()).spawn().unwrap();
        let mut digits = [0u8; 16];
        let length = leader.stdout.take().unwrap().read(&mut digits).unwrap();
        let orphan: i32 = std::str::from_utf8(&digits[..length]).unwrap().trim().parse().unwrap();
        let tree = tree_of(leader.id().cast_signed()).unwrap();
        nix::sys::signal::kill(Pid::from_raw(orphan), Signal::SIGKILL).unwrap();
        drop(leader.kill());
        drop(leader.wait());
        assert!(tree.contains(&orphan), "{orphan} is not in {tree:?}");
    }
}
