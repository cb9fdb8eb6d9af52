//! Submits rounds as job arrays.

use std::time::{Duration, Instant};

use super::files::{JobArray, Task};
use super::scheduler::{self, SchedulerError, Submission};
use super::watch::MIN_QUERY_INTERVAL;
use super::{MAX_ARRAYS, Slurm, SubmittedArray};
use crate::atomic_file::write_json;
use crate::executor::StopReason;
use crate::remote::Round;
use strandline_report::text::counted;

/// Pauses before a submission without an answer is repeated.
const SUBMIT_PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(2)];
/// Length of the part of a lab's token in the names of its jobs.
const JOB_TOKEN_CHARS: usize = 8;
/// Delay if the scheduler currently accepts no more jobs of this user.
const JOB_LIMIT_DELAY: Duration = Duration::from_secs(30);

impl Slurm {
    /// Submits rounds in as few arrays as possible.
    pub(super) fn submit(&mut self, rounds: &[u32]) -> Result<(), StopReason> {
        if rounds.is_empty() {
            return Ok(());
        }
        let max_tasks = *self.watch.max_tasks.get_or_insert_with(scheduler::query_max_tasks);
        for chunk in rounds.chunks(max_tasks) {
            self.submit_array(chunk)?;
        }
        // A short round ends before the scheduler needs to be queried.
        self.watch.next_query = Instant::now() + MIN_QUERY_INTERVAL;
        self.watch.reset_idle();
        Ok(())
    }

    /// Submits rounds as one array. Where the user may have no more jobs, they are submitted later.
    fn submit_array(&mut self, rounds: &[u32]) -> Result<(), StopReason> {
        let number = self.arrays.keys().next_back().map_or(0, |number| number + 1);
        if number >= MAX_ARRAYS {
            return Err(StopReason::Failed("rounds were submitted again too often".to_owned()));
        }
        let lab = self.shared.lab.get(..JOB_TOKEN_CHARS).unwrap_or(&self.shared.lab);
        let turns = |&number: &u32| Some(Round { number, turns: self.pending.get(&number)?.turns.clone() });
        let array = JobArray {
            lab: self.shared.lab.clone(),
            plan: self.plan.clone(),
            name: format!("strandline-{lab}-{number}"),
            rounds: rounds.iter().filter_map(turns).collect(),
        };
        // Written before the submission, so that a later strandline can find the job by its name.
        write_json(&self.shared.array_file(number), &array)?;
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
        write_json(&self.shared.job_file(number), &job)?;
        self.user.show(&format!("slurm: job {job}: {}", counted(array.rounds.len() as u64, "round")));
        for (index, round) in (0u32..).zip(&array.rounds) {
            if let Some(pending) = self.pending.get_mut(&round.number) {
                pending.task = Some(Task { job, index });
                pending.attempts += 1;
                (pending.state_text, pending.node) = (None, None);
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
        match scheduler::find_job(submission.name) {
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
