//! Collects the results of tasks, queries the scheduler for the state of others, and handles lost
//! ones.
//!
//! Files in the folder take precedence over the scheduler. The folder is checked often, because
//! that is cheap; the scheduler once in a few seconds, and less often the longer it takes to
//! answer. All times are from one monotonic clock of this machine: the clocks of nodes and of the
//! file server may differ.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::files::{
    JobArray, Owner, ReadResult, RoundFile, Task, TaskFailure, count_runs, parse_round_file, read, write_json,
};
use super::scheduler::{self, SchedulerError, Submission, TaskState, TaskStatus};
use super::{MAX_ARRAYS, PendingRound, Slurm, SubmittedArray};
use crate::cell::Outcome;
use crate::executor::StopReason;
use crate::remote::RemoteEvent;
use crate::tail::last_lines;
use crate::user::Decision;
use strandline_report::text::{clean, counted};

/// Minimum interval between queries of the scheduler.
const MIN_QUERY_INTERVAL: Duration = Duration::from_secs(2);
/// The interval is also at least this many times the duration of a query.
const QUERY_DURATION_FACTOR: u32 = 10;
/// Maximum interval between queries of the scheduler.
const MAX_QUERY_INTERVAL: Duration = Duration::from_secs(60);
/// Pauses before a submission without an answer is repeated.
const SUBMIT_PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(2)];
/// Number of lines of a task's log in a message.
const TAIL_LINES: usize = 2;
/// Length of the part of a lab's token in the names of its jobs.
const JOB_TOKEN_CHARS: usize = 8;
/// Minimum interval between checks of the folder.
const MIN_SCAN_INTERVAL: Duration = Duration::from_millis(100);
/// The interval is also at least this many times the duration of a check.
const SCAN_DURATION_FACTOR: u32 = 20;
/// Maximum interval between checks of the folder.
const MAX_SCAN_INTERVAL: Duration = Duration::from_secs(5);
/// Interval between progress reports.
const REPORT_INTERVAL: Duration = Duration::from_millis(500);
/// The lab gives up when the scheduler has not answered for this long.
const MAX_SILENCE: Duration = Duration::from_secs(3600);
/// Time until a file written by a node is visible here, on a local file system.
const LOCAL_VISIBILITY_DELAY: Duration = Duration::from_secs(1);
/// The same on other file systems: NFS caches directories for up to a minute.
const SHARED_VISIBILITY_DELAY: Duration = Duration::from_secs(65);
/// How often a round is submitted.
const MAX_ATTEMPTS: u32 = 3;
/// How often a round is submitted if it reached its time limit, which it will probably reach again.
const MAX_TIMEOUT_ATTEMPTS: u32 = 2;
/// Delay before lost rounds are resubmitted, so that they share an array.
const RESUBMIT_DELAY: Duration = Duration::from_secs(2);
/// Delay if the scheduler currently accepts no more jobs of this user.
const JOB_LIMIT_DELAY: Duration = Duration::from_secs(30);
/// Maximum number of rounds lost at once for which the scheduler is queried for the reason.
const MAX_REASON_QUERIES: u32 = 10;
/// Maximum number of running rounds whose runs are counted.
const MAX_COUNTED_PARTIALS: usize = 64;
/// After this time without a running task the user is shown the reason.
const IDLE_NOTICE_DELAY: Duration = Duration::from_secs(60);
/// Maximum number of caveats of one kind.
const MAX_CAVEATS: usize = 20;

/// A time in which the scheduler does not answer.
#[derive(Clone, Copy)]
struct Silence {
    began_at: Instant,
    /// Number of queries without an answer.
    queries: u32,
}

/// A partial file of a round, as last seen.
struct PartialRound {
    file_bytes: u64,
    /// Number of its finished runs.
    runs: usize,
}

/// State and schedule of the checks.
pub struct Watch {
    /// When the folder is checked next.
    next_scan: Instant,
    /// When the scheduler is queried next.
    next_query: Instant,
    /// When progress is reported next.
    next_report: Instant,
    /// `None` while the scheduler answers.
    silence: Option<Silence>,
    /// Time until a file written by a node is visible here.
    visibility_delay: Duration,
    /// Rounds to resubmit, from `resubmit_at` on.
    resubmit: Vec<u32>,
    resubmit_at: Instant,
    /// The partial files, by round.
    partials: BTreeMap<u32, PartialRound>,
    /// Maximum number of tasks in an array, once queried.
    max_tasks: Option<usize>,
    /// Since when no task runs and none finished.
    idle_since: Instant,
    /// Whether the reason was shown.
    has_shown_idle: bool,
    /// Number of rounds lost in this check for which the scheduler was queried for the reason.
    reason_queries: u32,
}

impl Watch {
    /// For a lab whose tasks write into `folder`.
    pub fn new(folder: &Path) -> Self {
        let now = Instant::now();
        Self {
            next_scan: now,
            next_query: now,
            next_report: now,
            silence: None,
            visibility_delay: if is_local_file_system(folder) {
                LOCAL_VISIBILITY_DELAY
            } else {
                SHARED_VISIBILITY_DELAY
            },
            resubmit: Vec::new(),
            resubmit_at: now,
            partials: BTreeMap::new(),
            max_tasks: None,
            idle_since: now,
            has_shown_idle: false,
            reason_queries: 0,
        }
    }

    fn reset_idle(&mut self) {
        (self.idle_since, self.has_shown_idle) = (Instant::now(), false);
    }
}

/// Whether the file system of a folder is local to this machine; unknown types count as shared.
fn is_local_file_system(folder: &Path) -> bool {
    use nix::sys::statfs;
    let local_types = [
        statfs::EXT4_SUPER_MAGIC,
        statfs::XFS_SUPER_MAGIC,
        statfs::BTRFS_SUPER_MAGIC,
        statfs::TMPFS_MAGIC,
        statfs::OVERLAYFS_SUPER_MAGIC,
    ];
    statfs::statfs(folder).is_ok_and(|file_system| local_types.contains(&file_system.filesystem_type()))
}

impl Slurm {
    /// Waits a moment for the next event.
    pub(super) fn wait_for_event(&mut self) -> Result<RemoteEvent, StopReason> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(event);
            }
            if let Some(signal) = self.interrupt.signal() {
                return Err(self.interrupted(signal));
            }
            let now = Instant::now();
            if now >= self.watch.next_scan {
                self.scan_rounds();
            }
            if now >= self.watch.next_query && self.events.is_empty() {
                self.query_scheduler()?;
            }
            if !self.watch.resubmit.is_empty() && now >= self.watch.resubmit_at {
                let rounds = std::mem::take(&mut self.watch.resubmit);
                self.submit(&rounds)?;
            }
            if self.events.is_empty() && now >= self.watch.next_report {
                self.watch.next_report = now + REPORT_INTERVAL;
                let runs = self.watch.partials.values().map(|partial| partial.runs).sum();
                return Ok(RemoteEvent::Status { tasks: self.task_counts(), runs });
            }
            if self.events.is_empty() {
                self.pause();
            }
        }
    }

    /// Sleeps until the next check is due or a signal arrives.
    fn pause(&self) {
        let Watch { next_scan, next_query, next_report, .. } = self.watch;
        let pause = next_scan.min(next_query).min(next_report).saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(pause.as_millis() + 1).unwrap_or(PollTimeout::MAX);
        let mut sources =
            self.interrupt.descriptors().map(|descriptor| PollFd::new(descriptor, PollFlags::POLLIN));
        // The result is ignored: the caller checks everything that is due.
        let _ = poll(&mut sources, timeout);
    }

    fn interrupted(&mut self, signal: i32) -> StopReason {
        let jobs = self.jobs();
        if !jobs.is_empty() {
            let list = jobs.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
            match self.user.decide(signal, &list, self.task_counts(), &self.interrupt) {
                Decision::Cancel => {
                    super::RemoteExecutor::cancel(self);
                    self.user.show(&format!("slurm: cancelled: job {list}"));
                }
                Decision::Leave => {
                    self.pending.clear();
                    self.user.show(&format!("slurm: job {list} keeps running (scancel {list} ends it)"));
                }
            }
        }
        StopReason::Interrupted(signal)
    }

    /// Collects finished rounds, and counts the runs of running ones.
    pub(super) fn scan_rounds(&mut self) {
        let begin = Instant::now();
        let mut counted = 0;
        for entry in std::fs::read_dir(self.shared.below("rounds")).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let parsed = name.to_str().and_then(|name| parse_round_file(name, &self.plan));
            let Some(RoundFile { round, is_finished }) = parsed else { continue };
            if !self.pending.contains_key(&round) {
                continue;
            }
            if is_finished {
                self.take_finished(round);
            } else if counted < MAX_COUNTED_PARTIALS {
                counted += 1;
                let file_bytes = entry.metadata().map_or(0, |metadata| metadata.len());
                let previous_state = self.watch.partials.get(&round);
                if previous_state.is_none_or(|previous| previous.file_bytes != file_bytes) {
                    let runs = count_runs(&entry.path());
                    self.watch.partials.insert(round, PartialRound { file_bytes, runs });
                }
            }
        }
        self.watch.next_scan =
            begin + (begin.elapsed() * SCAN_DURATION_FACTOR).clamp(MIN_SCAN_INTERVAL, MAX_SCAN_INTERVAL);
    }

    fn take_finished(&mut self, round: u32) {
        let Some(pending) = self.pending.get(&round) else { return };
        match self.shared.read_finished(&self.plan, round, &pending.turns) {
            ReadResult::Missing => {}
            ReadResult::Content(finished) => {
                self.pending.remove(&round);
                self.watch.partials.remove(&round);
                self.watch.reset_idle();
                let outcomes: Vec<(usize, Outcome)> =
                    finished.runs.into_iter().map(|run| (run.subject, run.outcome)).collect();
                self.events.push_back(RemoteEvent::Finished { round, outcomes });
            }
            ReadResult::Invalid(why) => {
                let path = self.shared.finished_file(&self.plan, round);
                // If that fails, the file is found and reported again until the round was repeated.
                drop(std::fs::rename(&path, path.with_extension("json.wrong")));
                self.add_caveat("damaged", format!("round {}: {}; set aside", round + 1, clean(&why)));
            }
        }
    }

    fn add_caveat(&mut self, code: &'static str, text: String) {
        if self.caveats.iter().filter(|(caveat_code, _)| *caveat_code == code).count() < MAX_CAVEATS {
            self.caveats.push((code, text));
        }
    }

    /// Queries the scheduler for the state of rounds.
    fn query_scheduler(&mut self) -> Result<(), StopReason> {
        self.watch.next_query = Instant::now() + MIN_QUERY_INTERVAL;
        self.check_owner()?;
        let jobs = self.jobs();
        if jobs.is_empty() {
            return Ok(());
        }
        let begin = Instant::now();
        let interrupt = std::sync::Arc::clone(&self.interrupt);
        let answer = scheduler::tasks(&jobs, &|| interrupt.signal().is_some());
        let query_duration = begin.elapsed();
        self.watch.next_query = Instant::now()
            + (query_duration * QUERY_DURATION_FACTOR).clamp(MIN_QUERY_INTERVAL, MAX_QUERY_INTERVAL);
        match answer {
            Ok(lines) => {
                if self.watch.silence.take().is_some() {
                    self.user.show("slurm answers again");
                }
                self.update_states(&lines);
                self.handle_lost_rounds();
            }
            Err(_) if self.interrupt.signal().is_some() => {}
            Err(error) => self.handle_no_answer(&error)?,
        }
        Ok(())
    }

    fn handle_no_answer(&mut self, error: &SchedulerError) -> Result<(), StopReason> {
        let silence = self.watch.silence.unwrap_or(Silence { began_at: Instant::now(), queries: 0 });
        let Silence { began_at, queries } = silence;
        if queries == 0 {
            let line = error.line();
            self.user.show(&format!("slurm does not answer ({line}); results of tasks are still collected"));
        }
        if began_at.elapsed() > MAX_SILENCE {
            return Err(StopReason::Failed(format!(
                "slurm has not answered for an hour ({}); run the same command to resume",
                error.line()
            )));
        }
        self.watch.silence = Some(Silence { began_at, queries: queries.saturating_add(1) });
        self.watch.next_query =
            Instant::now() + MIN_QUERY_INTERVAL.saturating_mul(queries.max(1)).min(MAX_QUERY_INTERVAL);
        Ok(())
    }

    /// Fails if another process has taken over this lab: its lock is not effective on every shared
    /// file system.
    fn check_owner(&mut self) -> Result<(), StopReason> {
        match read::<Owner>(&self.shared.below("owner.json")) {
            ReadResult::Content(owner) if owner.token != self.token => {
                // The tasks now belong to that process.
                self.pending.clear();
                Err(StopReason::Failed(format!(
                    "{}: another strandline (process {} on {}) has taken over this lab: this one ends, and cancels nothing",
                    self.shared.root.display(),
                    owner.pid,
                    clean(&owner.host)
                )))
            }
            _ => Ok(()),
        }
    }

    fn update_states(&mut self, lines: &[TaskStatus]) {
        let statuses: BTreeMap<Task, &TaskStatus> = lines.iter().map(|line| (line.task, line)).collect();
        let mut stuck = Vec::new();
        for pending in self.pending.values_mut() {
            let Some(task) = pending.task else { continue };
            let Some(line) = statuses.get(&task) else {
                pending.ended_since.get_or_insert_with(Instant::now);
                continue;
            };
            pending.state = line.state;
            pending.state_text = format!("{} ({})", line.state_name, line.reason);
            if !line.node.is_empty() {
                pending.node.clone_from(&line.node);
            }
            if line.state == TaskState::Stuck {
                stuck.push(task.to_string());
            }
            if matches!(line.state, TaskState::Waiting | TaskState::Running) {
                pending.ended_since = None;
            } else {
                pending.ended_since.get_or_insert_with(Instant::now);
            }
        }
        if !stuck.is_empty() {
            // If that fails, they stay held and are cancelled with their array.
            drop(scheduler::cancel(&stuck));
        }
        if self.task_counts().running > 0 {
            self.watch.reset_idle();
        } else if !self.watch.has_shown_idle && self.watch.idle_since.elapsed() > IDLE_NOTICE_DELAY {
            self.watch.has_shown_idle = true;
            if let Some(pending) = self.pending.values().find(|pending| !pending.state_text.is_empty()) {
                let job = pending.task.map_or_else(String::new, |task| task.job.to_string());
                self.user.show(&format!("slurm: job {job} waits for a node: {}", pending.state_text));
            }
        }
    }

    /// Handles rounds whose tasks ended but whose files did not appear.
    fn handle_lost_rounds(&mut self) {
        let visibility_delay = self.watch.visibility_delay;
        let is_lost = |pending: &PendingRound| {
            pending.ended_since.is_some_and(|since| since.elapsed() >= visibility_delay)
        };
        if !self.pending.values().any(is_lost) {
            if self.pending.values().any(|pending| pending.ended_since.is_some()) {
                self.watch.next_query = self.watch.next_query.min(Instant::now() + MIN_QUERY_INTERVAL / 2);
            }
            return;
        }
        // Changing the directory invalidates its cached listing, on NFS too.
        drop(tempfile::NamedTempFile::new_in(self.shared.below("rounds")));
        self.scan_rounds();
        let lost_rounds = self.pending.iter().filter(|(_, pending)| is_lost(pending));
        let lost_rounds: Vec<u32> = lost_rounds.map(|(&round, _)| round).collect();
        self.watch.reason_queries = 0;
        for round in lost_rounds {
            self.handle_lost_round(round);
        }
    }

    /// Handles a task that ended without a result: its round is resubmitted, or reported as lost.
    fn handle_lost_round(&mut self, round: u32) {
        let why = self.loss_reason(round);
        let Some(pending) = self.pending.get_mut(&round) else { return };
        let is_repeated = match pending.state {
            // Someone ended it on purpose.
            TaskState::Cancelled => false,
            TaskState::OutOfTime => pending.attempts < MAX_TIMEOUT_ATTEMPTS,
            _ => pending.attempts < MAX_ATTEMPTS,
        };
        pending.task = None;
        pending.ended_since = None;
        pending.state = TaskState::Waiting;
        self.watch.partials.remove(&round);
        let text = format!("round {}: {why}", round + 1);
        if is_repeated {
            if self.watch.resubmit.is_empty() {
                self.watch.resubmit_at = Instant::now() + RESUBMIT_DELAY;
            }
            self.watch.resubmit.push(round);
            self.add_caveat("rounds_again", format!("{text}; it was run again"));
        } else {
            self.pending.remove(&round);
            self.add_caveat(
                "rounds_lost",
                format!("{text}; it is lost (the same command with --dir runs it again)"),
            );
            self.events.push_back(RemoteEvent::Lost { round, why });
        }
    }

    fn loss_reason(&mut self, round: u32) -> String {
        let Some(pending) = self.pending.get(&round) else { return String::new() };
        let Some(task) = pending.task else { return "it was not submitted".to_owned() };
        let node = if pending.node.is_empty() { String::new() } else { format!(" on {}", pending.node) };
        if let ReadResult::Content(failed) =
            read::<TaskFailure>(&self.shared.failure_file(&self.plan, round, task))
            && failed.lab == self.shared.lab
        {
            return format!("task {task} on {}: {}", clean(&failed.node), clean(&failed.why));
        }
        let ending = match (pending.state, pending.state_text.as_str()) {
            (TaskState::Cancelled, _) => "was cancelled".to_owned(),
            (TaskState::OutOfTime, _) => "ran out of its time (--time)".to_owned(),
            // The scheduler keeps no record of a waiting task that is removed while its array
            // continues.
            (TaskState::Waiting, words) if !words.is_empty() => "was taken out of the queue".to_owned(),
            (TaskState::LostNode, words) => format!("lost its node: {words}"),
            (_, words) => {
                self.watch.reason_queries += 1;
                let may_query = self.watch.reason_queries <= MAX_REASON_QUERIES;
                let details = may_query.then(|| scheduler::end_details(task)).flatten();
                let words = if words.is_empty() { "slurm knows it no more" } else { words };
                format!("ended without a result: {}", details.unwrap_or_else(|| words.to_owned()))
            }
        };
        let tail = last_lines(&self.shared.log_file(task), TAIL_LINES).join(" / ");
        let tail = if tail.is_empty() { tail } else { format!("; its log ends with: {tail}") };
        format!("task {task}{node} {ending}{tail}")
    }

    /// Assigns running and waiting tasks of an earlier strandline to the requested rounds.
    pub(super) fn adopt_tasks(&mut self) -> Result<(), StopReason> {
        let is_requested = |array: &JobArray| {
            array.plan == self.plan && array.rounds.iter().any(|(round, _)| self.pending.contains_key(round))
        };
        let arrays = self.arrays.values_mut().filter(|submitted| is_requested(&submitted.array));
        let mut arrays: Vec<&mut SubmittedArray> = arrays.collect();
        let failed = |error: SchedulerError| {
            StopReason::Failed(format!("slurm: {}; run the same command to resume", error.line()))
        };
        for submitted in &mut arrays {
            if submitted.job.is_none() {
                // The earlier strandline was killed before it could store the job id.
                submitted.job = scheduler::find(&submitted.array.name).map_err(failed)?;
            }
        }
        let jobs: Vec<u64> = arrays.iter().filter_map(|submitted| submitted.job).collect();
        if jobs.is_empty() {
            return Ok(());
        }
        let lines = scheduler::tasks(&jobs, &|| false).map_err(failed)?;
        let alive: BTreeMap<Task, &TaskStatus> = lines
            .iter()
            .filter(|line| matches!(line.state, TaskState::Waiting | TaskState::Running))
            .map(|line| (line.task, line))
            .collect();
        for SubmittedArray { array, job } in arrays {
            let Some(job) = *job else { continue };
            for (index, (round, turns)) in (0u32..).zip(&array.rounds) {
                let task = Task { job, index };
                if let (Some(pending), Some(line)) = (self.pending.get_mut(round), alive.get(&task))
                    && pending.turns == *turns
                {
                    (pending.task, pending.state, pending.attempts) = (Some(task), line.state, 1);
                }
            }
        }
        // Tasks that ended since the last check have written their files by now.
        self.scan_rounds();
        Ok(())
    }

    /// Submits rounds in as few arrays as possible.
    pub(super) fn submit(&mut self, rounds: &[u32]) -> Result<(), StopReason> {
        if rounds.is_empty() {
            return Ok(());
        }
        let max_tasks = *self.watch.max_tasks.get_or_insert_with(scheduler::max_tasks);
        for chunk in rounds.chunks(max_tasks) {
            self.submit_array(chunk)?;
        }
        // A short round ends before the scheduler needs to be queried.
        self.watch.next_query = Instant::now() + MIN_QUERY_INTERVAL;
        self.watch.reset_idle();
        Ok(())
    }

    fn submit_array(&mut self, rounds: &[u32]) -> Result<(), StopReason> {
        let number = self.arrays.keys().next_back().map_or(0, |number| number + 1);
        if number >= MAX_ARRAYS {
            return Err(StopReason::Failed("rounds were submitted again too often".to_owned()));
        }
        let lab = self.shared.lab.get(..JOB_TOKEN_CHARS).unwrap_or(&self.shared.lab);
        let turns = |round: &u32| Some((*round, self.pending.get(round)?.turns.clone()));
        let array = JobArray {
            lab: self.shared.lab.clone(),
            plan: self.plan.clone(),
            name: format!("strandline-{lab}-{number}"),
            rounds: rounds.iter().filter_map(turns).collect(),
        };
        // Written before the submission, so that a later strandline can find the job by its name.
        write_json(&self.shared.array_file(number), &array).map_err(StopReason::Failed)?;
        let script = [self.shared.below("round.sh"), self.program.clone(), self.shared.root.clone()];
        let mut script: Vec<String> = script.iter().map(|path| path.to_string_lossy().into_owned()).collect();
        script.push(number.to_string());
        let options = self.sbatch_options();
        let submission = Submission {
            name: &array.name,
            task_count: array.rounds.len(),
            max_running: self.options.max_running,
            options: &options,
            script: &script,
        };
        let job = match submit_with_retry(&submission) {
            Ok(job) => job,
            Err(SchedulerError::Refused(line)) if is_job_limit(&line) && !self.jobs().is_empty() => {
                // The limit may allow more jobs when the present ones have ended.
                self.watch.resubmit.extend_from_slice(rounds);
                self.watch.resubmit_at = Instant::now() + JOB_LIMIT_DELAY;
                drop(std::fs::remove_file(self.shared.array_file(number)));
                return Ok(());
            }
            Err(error) => {
                // Without an answer the job may exist: the file lets a later strandline find it.
                if !matches!(error, SchedulerError::Unavailable(_)) {
                    drop(std::fs::remove_file(self.shared.array_file(number)));
                }
                let line = error.line();
                return Err(StopReason::Failed(format!("slurm: {line}; run the same command to resume")));
            }
        };
        write_json(&self.shared.job_file(number), &job).map_err(StopReason::Failed)?;
        self.user.show(&format!("slurm: job {job}: {}", counted(array.rounds.len() as u64, "round")));
        for (index, (round, _)) in (0u32..).zip(&array.rounds) {
            if let Some(pending) = self.pending.get_mut(round) {
                pending.task = Some(Task { job, index });
                pending.attempts += 1;
                pending.state_text.clear();
                pending.node.clear();
            }
        }
        self.arrays.insert(number, SubmittedArray { array, job: Some(job) });
        Ok(())
    }
}

/// Submits an array. A scheduler that answers too late may have accepted the job; it is then found
/// by its name.
fn submit_with_retry(submission: &Submission<'_>) -> Result<u64, SchedulerError> {
    let mut pauses = SUBMIT_PAUSES.into_iter();
    loop {
        let error = match scheduler::submit(submission) {
            Err(error @ SchedulerError::Unavailable(_)) => error,
            result => return result,
        };
        let Some(pause) = pauses.next() else { return Err(error) };
        std::thread::sleep(pause);
        match scheduler::find(submission.name) {
            Ok(Some(job)) => return Ok(job),
            Err(_) if pauses.as_slice().is_empty() => return Err(error),
            Ok(None) | Err(_) => {}
        }
    }
}

/// Whether a refusal is due to a limit on the number of jobs.
fn is_job_limit(line: &str) -> bool {
    let line = line.to_ascii_lowercase();
    ["limit", "qos policy", "maximum", "too many"].iter().any(|word| line.contains(word))
}
