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
    JobArray, Owner, RoundFile, Task, TaskFailure, count_runs, parse_round_file, read_if_valid,
};
use super::scheduler::{self, SchedulerError, TaskState, TaskStatus};
use super::{PendingRound, Slurm, SubmittedArray};
use crate::cell::{LabCaveat, SubjectRun};
use crate::executor::StopReason;
use crate::remote::RemoteEvent;
use crate::tail::last_lines;
use crate::user::Decision;
use strandline_report::text::clean;

/// Minimum interval between queries of the scheduler.
pub(super) const MIN_QUERY_INTERVAL: Duration = Duration::from_secs(2);
/// The interval is also at least this many times the duration of a query.
const QUERY_DURATION_FACTOR: u32 = 10;
/// Maximum interval between queries of the scheduler.
const MAX_QUERY_INTERVAL: Duration = Duration::from_secs(60);
/// Number of lines of a task's log in a message.
const TAIL_LINES: usize = 2;
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
/// Maximum number of times that a round is submitted.
const MAX_ATTEMPTS: u32 = 3;
/// The same for a round that reached its time limit, which it will probably reach again.
const MAX_TIMEOUT_ATTEMPTS: u32 = 2;
/// Delay before lost rounds are resubmitted, so that they share an array.
const RESUBMIT_DELAY: Duration = Duration::from_secs(2);
/// Maximum number of rounds lost at once for which the scheduler is queried for the reason.
const MAX_REASON_QUERIES: usize = 10;
/// Maximum number of running rounds whose runs are counted.
const MAX_COUNTED_PARTIALS: usize = 64;
/// After this time without a running task, the user is shown the reason.
const IDLE_NOTICE_DELAY: Duration = Duration::from_secs(60);
/// Maximum number of caveats of one code: the first ones show the cause.
const MAX_CAVEATS: usize = 20;

/// A time during which the scheduler does not answer.
#[derive(Clone, Copy)]
struct Silence {
    began_at: Instant,
    /// Number of queries without an answer.
    queries: u32,
}

/// A partial file of a round, as last seen.
struct PartialProgress {
    file_bytes: u64,
    /// Number of its finished runs.
    runs: usize,
}

/// State and schedule of the checks.
pub struct Watch {
    /// When the folder is checked next.
    next_scan: Instant,
    /// When the scheduler is queried next.
    pub(super) next_query: Instant,
    next_report: Instant,
    /// `None` while the scheduler answers.
    silence: Option<Silence>,
    /// Time until a file written by a node is visible here.
    visibility_delay: Duration,
    /// Rounds to resubmit, from `resubmit_at` on.
    pub(super) resubmit: Vec<u32>,
    pub(super) resubmit_at: Instant,
    partials: BTreeMap<u32, PartialProgress>,
    /// Maximum number of tasks in an array, once queried.
    pub(super) max_tasks: Option<usize>,
    /// Since when no task runs and none finished.
    idle_since: Instant,
    /// Whether the user was shown why no task runs.
    has_shown_idle: bool,
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
        }
    }

    /// Notes that a task runs or has finished.
    pub(super) fn reset_idle(&mut self) {
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
                let ended_runs = self.watch.partials.values().map(|partial| partial.runs).sum();
                return Ok(RemoteEvent::Status { tasks: self.task_counts(), ended_runs });
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

    /// Asks the user what happens to the jobs after `signal`, and does it.
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
        let mut partials_seen = 0;
        // A folder that cannot be listed for a moment, as on NFS, is listed at the next check.
        for entry in std::fs::read_dir(self.shared.below("rounds")).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let parsed = name.to_str().and_then(|name| parse_round_file(name, &self.plan));
            let Some(RoundFile { round, is_finished }) = parsed else { continue };
            if !self.pending.contains_key(&round) {
                continue;
            }
            if is_finished {
                self.take_finished(round);
            } else if partials_seen < MAX_COUNTED_PARTIALS {
                partials_seen += 1;
                // It may have been finished and removed meanwhile.
                let Ok(metadata) = entry.metadata() else { continue };
                let file_bytes = metadata.len();
                let previous = self.watch.partials.get(&round);
                if previous.is_none_or(|previous| previous.file_bytes != file_bytes) {
                    let runs = count_runs(&entry.path());
                    self.watch.partials.insert(round, PartialProgress { file_bytes, runs });
                }
            }
        }
        self.watch.next_scan =
            begin + (begin.elapsed() * SCAN_DURATION_FACTOR).clamp(MIN_SCAN_INTERVAL, MAX_SCAN_INTERVAL);
    }

    /// Takes the result of a round that is finished; sets a damaged file aside.
    fn take_finished(&mut self, round: u32) {
        let Some(pending) = self.pending.get(&round) else { return };
        match self.shared.read_finished(&self.plan, round, &pending.turns) {
            Ok(None) => {}
            Ok(Some(finished)) => {
                self.pending.remove(&round);
                self.watch.partials.remove(&round);
                self.watch.reset_idle();
                let runs = finished.runs.into_iter();
                let runs = runs.map(|run| SubjectRun { subject: run.subject, outcome: run.outcome });
                self.events.push_back(RemoteEvent::Finished { round, runs: runs.collect() });
            }
            Err(why) => {
                let path = self.shared.finished_file(&self.plan, round);
                // If that fails, the file is found and reported again until the round was repeated.
                drop(std::fs::rename(&path, path.with_extension("json.wrong")));
                self.add_caveat("damaged", format!("round {}: {}; set aside", round + 1, clean(&why)));
            }
        }
    }

    /// Adds a caveat; after [`MAX_CAVEATS`] of a code, one that says that others are left out.
    fn add_caveat(&mut self, code: &'static str, text: String) {
        match self.caveats.iter().filter(|caveat| caveat.code == code).count() {
            0..MAX_CAVEATS => self.caveats.push(LabCaveat { code, text }),
            MAX_CAVEATS => self.caveats.push(LabCaveat::new(code, "further rounds are left out here")),
            _ => {}
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
        let answer = scheduler::query_tasks(&jobs, &|| self.interrupt.signal().is_some());
        let query_duration = begin.elapsed();
        self.watch.next_query = Instant::now()
            + (query_duration * QUERY_DURATION_FACTOR).clamp(MIN_QUERY_INTERVAL, MAX_QUERY_INTERVAL);
        match answer {
            Ok(statuses) => {
                if self.watch.silence.take().is_some() {
                    self.user.show("slurm answers again");
                }
                self.update_states(&statuses);
                self.handle_lost_rounds();
            }
            Err(_) if self.interrupt.signal().is_some() => {}
            Err(error) => self.handle_no_answer(&error)?,
        }
        Ok(())
    }

    /// Notes that the scheduler does not answer; fails after [`MAX_SILENCE`].
    fn handle_no_answer(&mut self, error: &SchedulerError) -> Result<(), StopReason> {
        let new_silence = || Silence { began_at: Instant::now(), queries: 0 };
        let Silence { began_at, queries } = self.watch.silence.unwrap_or_else(new_silence);
        if queries == 0 {
            let line = error.line();
            self.user.show(&format!("slurm does not answer ({line}); results of tasks are still collected"));
        }
        if began_at.elapsed() > MAX_SILENCE {
            return Err(StopReason::Failed(format!(
                "slurm has not answered for {} minutes ({}); run the same command to resume",
                MAX_SILENCE.as_secs() / 60,
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
        match read_if_valid::<Owner>(&self.shared.below("owner.json")) {
            Some(owner) if owner.token != self.token => {
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

    /// Takes over the states that the scheduler reports, and cancels tasks that are stuck.
    fn update_states(&mut self, statuses: &[TaskStatus]) {
        let statuses: BTreeMap<Task, &TaskStatus> =
            statuses.iter().map(|status| (status.task, status)).collect();
        let mut stuck = Vec::new();
        for pending in self.pending.values_mut() {
            let Some(task) = pending.task else { continue };
            let Some(status) = statuses.get(&task) else {
                pending.ended_since.get_or_insert_with(Instant::now);
                continue;
            };
            pending.state = status.state;
            pending.state_text = Some(format!("{} ({})", status.state_name, status.reason));
            if status.node.is_some() {
                pending.node.clone_from(&status.node);
            }
            if status.state == TaskState::Stuck {
                stuck.push(task.to_string());
            }
            if matches!(status.state, TaskState::Waiting | TaskState::Running) {
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
            let mut waiting = self.pending.values();
            let waiting = waiting.find_map(|pending| Some((pending.task?.job, pending.state_text.as_ref()?)));
            if let Some((job, state_text)) = waiting {
                self.user.show(&format!("slurm: job {job} waits for a node: {state_text}"));
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
        for (index, round) in lost_rounds.into_iter().enumerate() {
            let why = self.loss_reason(round, index < MAX_REASON_QUERIES);
            self.handle_lost_round(round, why);
        }
    }

    /// Handles a task that ended without a result: its round is resubmitted, or reported as lost.
    fn handle_lost_round(&mut self, round: u32, why: String) {
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

    /// Why the task of a round ended without a result, in words; if `may_query`, the scheduler may
    /// be asked.
    fn loss_reason(&self, round: u32, may_query: bool) -> String {
        let not_submitted = "it was not submitted".to_owned();
        let Some(pending) = self.pending.get(&round) else { return not_submitted };
        let Some(task) = pending.task else { return not_submitted };
        let node = pending.node.as_ref().map(|node| format!(" on {node}")).unwrap_or_default();
        let failure: Option<TaskFailure> = read_if_valid(&self.shared.failure_file(&self.plan, round, task));
        if let Some(failed) = failure.filter(|failed| failed.lab == self.shared.lab) {
            return format!("task {task} on {}: {}", clean(&failed.node), clean(&failed.why));
        }
        let ending = match (pending.state, pending.state_text.as_deref()) {
            (TaskState::Cancelled, _) => "was cancelled".to_owned(),
            (TaskState::OutOfTime, _) => "ran out of its time (--time)".to_owned(),
            // The scheduler keeps no record of a waiting task that is removed while its array
            // continues.
            (TaskState::Waiting, Some(_)) => "was taken out of the queue".to_owned(),
            (TaskState::LostNode, Some(state_text)) => format!("lost its node: {state_text}"),
            (_, state_text) => {
                let details = may_query.then(|| scheduler::query_end(task)).flatten();
                // The last state of a task that still ran then says nothing about its end.
                let end_text = state_text.filter(|_| pending.state != TaskState::Running);
                let known = details.as_deref().or(end_text);
                format!("ended without a result: {}", known.unwrap_or("slurm no longer knows it"))
            }
        };
        let tail = last_lines(&self.shared.log_file(task), TAIL_LINES).join(" / ");
        let tail = if tail.is_empty() { tail } else { format!("; its log ends with: {tail}") };
        format!("task {task}{node} {ending}{tail}")
    }

    /// Assigns running and waiting tasks of an earlier strandline to the requested rounds.
    pub(super) fn adopt_tasks(&mut self) -> Result<(), StopReason> {
        let is_requested = |array: &JobArray| {
            array.plan == self.plan
                && array.rounds.iter().any(|round| self.pending.contains_key(&round.number))
        };
        let arrays = self.arrays.values_mut().filter(|submitted| is_requested(&submitted.array));
        let mut arrays: Vec<&mut SubmittedArray> = arrays.collect();
        let failed = |error: SchedulerError| {
            StopReason::Failed(format!("slurm: {}; run the same command to resume", error.line()))
        };
        for submitted in &mut arrays {
            if submitted.job.is_none() {
                // The earlier strandline was killed before it could store the job id.
                submitted.job = scheduler::find_job(&submitted.array.name).map_err(failed)?;
            }
        }
        let jobs: Vec<u64> = arrays.iter().filter_map(|submitted| submitted.job).collect();
        if jobs.is_empty() {
            return Ok(());
        }
        let statuses = scheduler::query_tasks(&jobs, &|| false).map_err(failed)?;
        let alive: BTreeMap<Task, &TaskStatus> = statuses
            .iter()
            .filter(|status| matches!(status.state, TaskState::Waiting | TaskState::Running))
            .map(|status| (status.task, status))
            .collect();
        for SubmittedArray { array, job } in arrays {
            let Some(job) = *job else { continue };
            for (index, round) in (0u32..).zip(&array.rounds) {
                let task = Task { job, index };
                if let (Some(pending), Some(status)) = (self.pending.get_mut(&round.number), alive.get(&task))
                    && pending.turns == round.turns
                {
                    (pending.task, pending.state, pending.attempts) = (Some(task), status.state, 1);
                }
            }
        }
        // Tasks that ended since the last check have written their files by now.
        self.scan_rounds();
        Ok(())
    }
}
