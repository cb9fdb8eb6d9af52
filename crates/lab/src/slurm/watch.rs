//! Collects the results of tasks, asks the scheduler for the state of the others, and handles lost
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

use super::files::{Failed, JobArray, Owner, ReadResult, Task, count_runs, read, round_of, write_json};
use super::scheduler::{self, SchedulerError, Submission, TaskState, TaskStatus};
use super::{MAX_ARRAYS, PendingRound, Slurm};
use crate::cell::Outcome;
use crate::executor::Stopped;
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
/// The same bounds for checks of the folder.
const MIN_SCAN_INTERVAL: Duration = Duration::from_millis(100);
const SCAN_DURATION_FACTOR: u32 = 20;
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
const MAX_TRIES: u32 = 3;
/// How often a round is submitted if it reached its time limit, which it will probably reach again.
const MAX_TRIES_OF_TIME: u32 = 2;
/// Delay before lost rounds are resubmitted, so that they share an array.
const RESUBMIT_DELAY: Duration = Duration::from_secs(2);
/// Delay if the scheduler currently accepts no more jobs of this user.
const JOB_LIMIT_DELAY: Duration = Duration::from_secs(30);
/// Maximum number of rounds lost at the same time for which the scheduler is asked for the reason.
const MAX_REASON_QUERIES: u32 = 10;
/// Maximum number of running rounds whose runs are counted.
const MAX_PARTS: usize = 64;
/// After this time without a running task the user is shown the reason.
const IDLE_NOTICE_DELAY: Duration = Duration::from_secs(60);
/// Maximum number of caveats of one kind.
const MAX_CAVEATS: usize = 20;

/// State and schedule of the checks.
pub struct Watch {
    next_gather: Instant,
    next_look: Instant,
    next_tell: Instant,
    /// Since when the scheduler does not answer, and the number of queries since then.
    silent: Option<(Instant, u32)>,
    /// Time until a file written by a node is visible here.
    seen_after: Duration,
    /// Rounds to resubmit, from `again_at` on.
    resubmit: Vec<u32>,
    again_at: Instant,
    /// By round: size of its partial file, and number of runs in it.
    parts: BTreeMap<u32, (u64, usize)>,
    /// Maximum number of tasks in an array, once queried.
    most_tasks: Option<usize>,
    /// Since when no task runs and none finished, and whether the reason was shown.
    idle: (Instant, bool),
    /// Number of rounds lost in this check for which the scheduler was asked for the reason.
    asked_why: u32,
}

impl Watch {
    /// For a lab whose tasks write into `folder`.
    pub fn new(folder: &Path) -> Self {
        let now = Instant::now();
        Self {
            next_gather: now,
            next_look: now,
            next_tell: now,
            silent: None,
            seen_after: if is_local_file_system(folder) {
                LOCAL_VISIBILITY_DELAY
            } else {
                SHARED_VISIBILITY_DELAY
            },
            resubmit: Vec::new(),
            again_at: now,
            parts: BTreeMap::new(),
            most_tasks: None,
            idle: (now, false),
            asked_why: 0,
        }
    }
}

/// Whether the file system of a folder is local to this machine; unknown types count as shared.
fn is_local_file_system(folder: &Path) -> bool {
    use nix::sys::statfs;
    let known = [
        statfs::EXT4_SUPER_MAGIC,
        statfs::XFS_SUPER_MAGIC,
        statfs::BTRFS_SUPER_MAGIC,
        statfs::TMPFS_MAGIC,
        statfs::OVERLAYFS_SUPER_MAGIC,
    ];
    statfs::statfs(folder).is_ok_and(|data| known.contains(&data.filesystem_type()))
}

impl Slurm {
    /// Waits a moment for the next event.
    pub(super) fn watch_for_news(&mut self) -> Result<RemoteEvent, Stopped> {
        loop {
            if let Some(news) = self.news.pop_front() {
                return Ok(news);
            }
            if let Some(signal) = self.interrupt.signal() {
                return Err(self.interrupted(signal));
            }
            let now = Instant::now();
            if now >= self.watch.next_gather {
                self.gather();
            }
            if now >= self.watch.next_look && self.news.is_empty() {
                self.query_scheduler()?;
            }
            if !self.watch.resubmit.is_empty() && now >= self.watch.again_at {
                let again = std::mem::take(&mut self.watch.resubmit);
                self.submit(&again)?;
            }
            if self.news.is_empty() && now >= self.watch.next_tell {
                self.watch.next_tell = now + REPORT_INTERVAL;
                let runs = self.watch.parts.values().map(|(_, runs)| runs).sum();
                return Ok(RemoteEvent::Status { tasks: self.task_counts(), runs });
            }
            if self.news.is_empty() {
                self.pause();
            }
        }
    }

    /// Sleeps until the next check is due or a signal arrives.
    fn pause(&self) {
        let Watch { next_gather, next_look, next_tell, .. } = self.watch;
        let left = next_gather.min(next_look).min(next_tell).saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left.as_millis() + 1).unwrap_or(PollTimeout::MAX);
        let mut sources =
            self.interrupt.descriptors().map(|descriptor| PollFd::new(descriptor, PollFlags::POLLIN));
        // The result is ignored: the caller checks everything that is due.
        let _ = poll(&mut sources, timeout);
    }

    fn interrupted(&mut self, signal: i32) -> Stopped {
        let jobs = self.jobs();
        if !jobs.is_empty() {
            let list = jobs.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
            match self.user.decide(signal, &list, self.task_counts(), &self.interrupt) {
                Decision::Cancel => {
                    super::RemoteExecutor::cancel(self);
                    self.user.show(&format!("slurm: cancelled: job {list}"));
                }
                Decision::Leave => {
                    self.waiting.clear();
                    self.user.show(&format!("slurm: job {list} goes on (scancel {list} ends it)"));
                }
            }
        }
        Stopped::Interrupted(signal)
    }

    /// Collects finished rounds, and counts the runs of running ones.
    pub(super) fn gather(&mut self) {
        let begin = Instant::now();
        let mut parts = 0;
        for entry in std::fs::read_dir(self.store.below("rounds")).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let Some((round, is_over)) = name.to_str().and_then(|name| round_of(name, &self.plan)) else {
                continue;
            };
            if !self.waiting.contains_key(&round) {
                continue;
            }
            if is_over {
                self.take_finished(round);
            } else if parts < MAX_PARTS {
                parts += 1;
                let bytes = entry.metadata().map_or(0, |data| data.len());
                let known = self.watch.parts.get(&round).is_some_and(|(known, _)| *known == bytes);
                if !known {
                    self.watch.parts.insert(round, (bytes, count_runs(&entry.path())));
                }
            }
        }
        self.watch.next_gather =
            begin + (begin.elapsed() * SCAN_DURATION_FACTOR).clamp(MIN_SCAN_INTERVAL, MAX_SCAN_INTERVAL);
    }

    /// Takes a finished round.
    fn take_finished(&mut self, round: u32) {
        let Some(waiting) = self.waiting.get(&round) else { return };
        match self.store.read_finished(&self.plan, round, &waiting.turns) {
            ReadResult::Missing => {}
            ReadResult::Here(over) => {
                self.waiting.remove(&round);
                self.watch.parts.remove(&round);
                self.watch.idle = (Instant::now(), false);
                let outcomes: Vec<(usize, Outcome)> =
                    over.runs.into_iter().map(|run| (run.subject, run.outcome)).collect();
                self.news.push_back(RemoteEvent::Finished { round, outcomes });
            }
            ReadResult::Wrong(why) => {
                let path = self.store.over(&self.plan, round);
                // If that fails, the file is found and reported again until the round was repeated.
                drop(std::fs::rename(&path, path.with_extension("json.wrong")));
                self.add_caveat("damaged", format!("round {}: {}; set aside", round + 1, clean(&why)));
            }
        }
    }

    fn add_caveat(&mut self, code: &'static str, text: String) {
        if self.caveats.iter().filter(|(known, _)| *known == code).count() < MAX_CAVEATS {
            self.caveats.push((code, text));
        }
    }

    /// Queries the scheduler for the state of rounds.
    fn query_scheduler(&mut self) -> Result<(), Stopped> {
        self.watch.next_look = Instant::now() + MIN_QUERY_INTERVAL;
        self.check_owner()?;
        let jobs = self.jobs();
        if jobs.is_empty() {
            return Ok(());
        }
        let begin = Instant::now();
        let interrupt = std::sync::Arc::clone(&self.interrupt);
        let said = scheduler::tasks(&jobs, &|| interrupt.signal().is_some());
        let took = begin.elapsed();
        self.watch.next_look =
            Instant::now() + (took * QUERY_DURATION_FACTOR).clamp(MIN_QUERY_INTERVAL, MAX_QUERY_INTERVAL);
        match said {
            Ok(lines) => {
                if self.watch.silent.take().is_some() {
                    self.user.show("slurm answers again");
                }
                self.update_states(&lines);
                self.handle_lost_rounds();
            }
            Err(_) if self.interrupt.signal().is_some() => {}
            Err(trouble) => self.handle_no_answer(&trouble)?,
        }
        Ok(())
    }

    fn handle_no_answer(&mut self, trouble: &SchedulerError) -> Result<(), Stopped> {
        let (since, times) = self.watch.silent.unwrap_or((Instant::now(), 0));
        if times == 0 {
            let line = trouble.line();
            self.user
                .show(&format!("slurm does not answer ({line}); what tasks write is gathered meanwhile"));
        }
        if since.elapsed() > MAX_SILENCE {
            return Err(Stopped::Failed(format!(
                "slurm has not answered for an hour ({}); the same command goes on from here",
                trouble.line()
            )));
        }
        self.watch.silent = Some((since, times.saturating_add(1)));
        self.watch.next_look =
            Instant::now() + (MIN_QUERY_INTERVAL * times.clamp(1, 30)).min(MAX_QUERY_INTERVAL);
        Ok(())
    }

    /// Fails if another process has taken over this lab: its lock is not effective on every shared
    /// file system.
    fn check_owner(&mut self) -> Result<(), Stopped> {
        match read::<Owner>(&self.store.below("owner.json")) {
            ReadResult::Here(owner) if owner.token != self.token => {
                // The tasks now belong to that process.
                self.waiting.clear();
                Err(Stopped::Failed(format!(
                    "{}: another strandline (process {} on {}) went on with this lab: this one ends, and cancels nothing",
                    self.store.root.display(),
                    owner.pid,
                    clean(&owner.host)
                )))
            }
            _ => Ok(()),
        }
    }

    /// Updates the states of tasks.
    fn update_states(&mut self, lines: &[TaskStatus]) {
        let known: BTreeMap<Task, &TaskStatus> = lines.iter().map(|line| (line.task, line)).collect();
        let mut stuck = Vec::new();
        for waiting in self.waiting.values_mut() {
            let Some(task) = waiting.task else { continue };
            let Some(line) = known.get(&task) else {
                waiting.ended_since.get_or_insert_with(Instant::now);
                continue;
            };
            waiting.stand = line.stand;
            waiting.state_text = format!("{} ({})", line.state, line.reason);
            if !line.node.is_empty() {
                waiting.node.clone_from(&line.node);
            }
            match line.stand {
                TaskState::Waiting | TaskState::Running => waiting.ended_since = None,
                TaskState::Stuck => stuck.push(task.to_string()),
                _ => {}
            }
            if !matches!(line.stand, TaskState::Waiting | TaskState::Running) {
                waiting.ended_since.get_or_insert_with(Instant::now);
            }
        }
        if !stuck.is_empty() {
            // If that fails, they stay held and are cancelled with their array.
            drop(scheduler::cancel(&stuck));
        }
        let is_idle = self.task_counts().running == 0;
        if !is_idle {
            self.watch.idle = (Instant::now(), false);
        } else if !self.watch.idle.1 && self.watch.idle.0.elapsed() > IDLE_NOTICE_DELAY {
            self.watch.idle.1 = true;
            if let Some(waiting) = self.waiting.values().find(|waiting| !waiting.state_text.is_empty()) {
                let job = waiting.task.map_or_else(String::new, |task| task.job.to_string());
                self.user.show(&format!("slurm: job {job} waits for a node: {}", waiting.state_text));
            }
        }
    }

    /// Handles rounds whose tasks ended but whose files did not appear.
    fn handle_lost_rounds(&mut self) {
        let seen_after = self.watch.seen_after;
        let is_lost =
            |waiting: &PendingRound| waiting.ended_since.is_some_and(|since| since.elapsed() >= seen_after);
        if !self.waiting.values().any(is_lost) {
            if self.waiting.values().any(|waiting| waiting.ended_since.is_some()) {
                self.watch.next_look = self.watch.next_look.min(Instant::now() + MIN_QUERY_INTERVAL / 2);
            }
            return;
        }
        // Changing the directory invalidates its cached listing, on NFS too.
        drop(tempfile::NamedTempFile::new_in(self.store.below("rounds")));
        self.gather();
        let lost = self.waiting.iter().filter(|(_, waiting)| is_lost(waiting));
        let lost: Vec<u32> = lost.map(|(&round, _)| round).collect();
        self.watch.asked_why = 0;
        for round in lost {
            self.handle_lost_round(round);
        }
    }

    /// Handles a task that ended without a result: its round is resubmitted, or reported as lost.
    fn handle_lost_round(&mut self, round: u32) {
        let why = self.why_lost(round);
        let Some(waiting) = self.waiting.get_mut(&round) else { return };
        let is_again = match waiting.stand {
            // Someone ended it on purpose.
            TaskState::Cancelled => false,
            TaskState::OutOfTime => waiting.tries < MAX_TRIES_OF_TIME,
            _ => waiting.tries < MAX_TRIES,
        };
        waiting.task = None;
        waiting.ended_since = None;
        waiting.stand = TaskState::Waiting;
        self.watch.parts.remove(&round);
        let text = format!("round {}: {why}", round + 1);
        if is_again {
            if self.watch.resubmit.is_empty() {
                self.watch.again_at = Instant::now() + RESUBMIT_DELAY;
            }
            self.watch.resubmit.push(round);
            self.add_caveat("rounds_again", format!("{text}; it was run again"));
        } else {
            self.waiting.remove(&round);
            self.add_caveat(
                "rounds_lost",
                format!("{text}; it is lost (the same command with --dir runs it again)"),
            );
            self.news.push_back(RemoteEvent::Lost { round, why });
        }
    }

    fn why_lost(&mut self, round: u32) -> String {
        let Some(waiting) = self.waiting.get(&round) else { return String::new() };
        let Some(task) = waiting.task else { return "it was not submitted".to_owned() };
        let on = if waiting.node.is_empty() { String::new() } else { format!(" on {}", waiting.node) };
        let begin = format!("task {task}{on}");
        if let ReadResult::Here(failed) = read::<Failed>(&self.store.failed(&self.plan, round, task))
            && failed.lab == self.store.lab
        {
            return format!("task {task} on {}: {}", clean(&failed.node), clean(&failed.why));
        }
        let how = match (waiting.stand, waiting.state_text.as_str()) {
            (TaskState::Cancelled, _) => "was cancelled".to_owned(),
            (TaskState::OutOfTime, _) => "ran out of its time (--time)".to_owned(),
            // The scheduler keeps no record of a waiting task that is removed while its array goes
            // on.
            (TaskState::Waiting, words) if !words.is_empty() => "was taken out of the queue".to_owned(),
            (TaskState::LostNode, words) => format!("lost its node: {words}"),
            (_, words) => {
                self.watch.asked_why += 1;
                let more = if self.watch.asked_why <= MAX_REASON_QUERIES {
                    scheduler::end_details(task)
                } else {
                    None
                };
                let words = if words.is_empty() { "slurm knows it no more" } else { words };
                format!("ended without a word: {}", more.unwrap_or_else(|| words.to_owned()))
            }
        };
        let tail = last_lines(&self.store.log(task), 2).join(" / ");
        if tail.is_empty() {
            format!("{begin} {how}")
        } else {
            format!("{begin} {how}; its last words: {tail}")
        }
    }

    /// Assigns running and waiting tasks of an earlier strandline to the requested rounds.
    pub(super) fn adopt(&mut self) -> Result<(), Stopped> {
        let rounds = |array: &JobArray| array.plan == self.plan && self.has_requested_round(array);
        let wanted: Vec<u32> =
            self.arrays.iter().filter(|(_, (array, _))| rounds(array)).map(|(&number, _)| number).collect();
        if wanted.is_empty() {
            return Ok(());
        }
        let failed = |trouble: SchedulerError| {
            Stopped::Failed(format!("slurm: {}; the same command goes on from here", trouble.line()))
        };
        for number in &wanted {
            let Some((array, job)) = self.arrays.get_mut(number) else { continue };
            if job.is_none() {
                // The earlier strandline was killed before it could write down the job id.
                *job = scheduler::find(&array.name).map_err(failed)?;
            }
        }
        let jobs: Vec<u64> =
            wanted.iter().filter_map(|number| self.arrays.get(number).and_then(|(_, job)| *job)).collect();
        if jobs.is_empty() {
            return Ok(());
        }
        let lines = scheduler::tasks(&jobs, &|| false).map_err(failed)?;
        let alive: BTreeMap<Task, &TaskStatus> = lines
            .iter()
            .filter(|line| matches!(line.stand, TaskState::Waiting | TaskState::Running))
            .map(|line| (line.task, line))
            .collect();
        for (array, job) in wanted.iter().filter_map(|number| self.arrays.get(number)) {
            let Some(job) = *job else { continue };
            for (index, (round, turns)) in (0u32..).zip(&array.rounds) {
                let task = Task { job, index };
                if let (Some(waiting), Some(line)) = (self.waiting.get_mut(round), alive.get(&task))
                    && waiting.turns == *turns
                {
                    (waiting.task, waiting.stand, waiting.tries) = (Some(task), line.stand, 1);
                }
            }
        }
        // Tasks that ended since the last check have written their files by now.
        self.gather();
        Ok(())
    }

    fn has_requested_round(&self, array: &JobArray) -> bool {
        array.rounds.iter().any(|(round, _)| self.waiting.contains_key(round))
    }

    /// Submits rounds in as few arrays as possible.
    pub(super) fn submit(&mut self, rounds: &[u32]) -> Result<(), Stopped> {
        if rounds.is_empty() {
            return Ok(());
        }
        let most = *self.watch.most_tasks.get_or_insert_with(scheduler::max_tasks);
        for chunk in rounds.chunks(most) {
            self.submit_array(chunk)?;
        }
        // A short round ends before the scheduler needs to be asked.
        self.watch.next_look = Instant::now() + MIN_QUERY_INTERVAL;
        self.watch.idle = (Instant::now(), false);
        Ok(())
    }

    fn submit_array(&mut self, rounds: &[u32]) -> Result<(), Stopped> {
        let number = self.arrays.keys().next_back().map_or(0, |last| last + 1);
        if number >= MAX_ARRAYS {
            return Err(Stopped::Failed("rounds were submitted again too often".to_owned()));
        }
        let lab = self.store.lab.get(..8).unwrap_or(&self.store.lab);
        let turns = |round: &u32| Some((*round, self.waiting.get(round)?.turns.clone()));
        let array = JobArray {
            lab: self.store.lab.clone(),
            plan: self.plan.clone(),
            name: format!("strandline-{lab}-{number}"),
            rounds: rounds.iter().filter_map(turns).collect(),
        };
        // Written before the submission, so that a later strandline can find the job by its name.
        write_json(&self.store.array(number), &array).map_err(Stopped::Failed)?;
        let script = [self.store.below("round.sh"), self.program.clone(), self.store.root.clone()];
        let mut script: Vec<String> = script.iter().map(|path| path.to_string_lossy().into_owned()).collect();
        script.push(number.to_string());
        let options = self.sbatch_options();
        let submission = Submission {
            name: &array.name,
            count: array.rounds.len(),
            at_once: self.options.max_running,
            options: &options,
            script: &script,
        };
        let job = match submit_with_retry(&submission) {
            Ok(job) => job,
            Err(SchedulerError::Refused(line)) if is_job_limit(&line) && !self.jobs().is_empty() => {
                // Other jobs are still to be waited for.
                self.watch.resubmit.extend_from_slice(rounds);
                self.watch.again_at = Instant::now() + JOB_LIMIT_DELAY;
                drop(std::fs::remove_file(self.store.array(number)));
                return Ok(());
            }
            Err(trouble) => {
                // Without an answer the job may exist: the file lets a later strandline find it.
                if !matches!(trouble, SchedulerError::Unavailable(_)) {
                    drop(std::fs::remove_file(self.store.array(number)));
                }
                let line = trouble.line();
                return Err(Stopped::Failed(format!("slurm: {line}; the same command goes on from here")));
            }
        };
        write_json(&self.store.job(number), &job).map_err(Stopped::Failed)?;
        self.user.show(&format!("slurm: job {job}: {}", counted(array.rounds.len() as u64, "round")));
        for (index, (round, _)) in (0u32..).zip(&array.rounds) {
            if let Some(waiting) = self.waiting.get_mut(round) {
                waiting.task = Some(Task { job, index });
                waiting.tries += 1;
                waiting.state_text.clear();
                waiting.node.clear();
            }
        }
        self.arrays.insert(number, (array, Some(job)));
        Ok(())
    }
}

/// Submits an array. A scheduler that answers too late may have accepted the job; it is then found
/// by its name.
fn submit_with_retry(submission: &Submission<'_>) -> Result<u64, SchedulerError> {
    const PAUSES: [u64; 2] = [1, 2];
    let mut pauses = PAUSES.into_iter();
    loop {
        let trouble = match scheduler::submit(submission) {
            Err(SchedulerError::Unavailable(line)) => SchedulerError::Unavailable(line),
            done => return done,
        };
        let Some(pause) = pauses.next() else { return Err(trouble) };
        std::thread::sleep(Duration::from_secs(pause));
        match scheduler::find(submission.name) {
            Ok(Some(job)) => return Ok(job),
            Ok(None) => {}
            Err(_) if pause == 2 => return Err(trouble),
            Err(_) => {}
        }
    }
}

/// Whether a refusal is due to a limit on the number of jobs.
fn is_job_limit(line: &str) -> bool {
    let line = line.to_ascii_lowercase();
    ["limit", "qos policy", "maximum", "too many"].iter().any(|word| line.contains(word))
}
