//! Calls the programs of the scheduler: sbatch, squeue, scancel, scontrol. No accounting database
//! is needed: the state comes from squeue while it knows the job, and from the files that tasks
//! write.
//!
//! A program that does not answer is killed after [`PROGRAM_TIMEOUT`], so that a scheduler that is
//! down cannot block the lab: its [`SchedulerError`] is [`SchedulerError::Unavailable`].

use std::io::{self, Read};
use std::process::{Command, Stdio};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use super::files::Task;
use strandline_report::text::{clean, shorten};

/// Time limit of a program.
pub const PROGRAM_TIMEOUT: Duration = Duration::from_secs(45);
/// Maximum output read from a program; ten thousand tasks give about 600 KiB.
const MAX_OUTPUT_BYTES: u64 = 64 << 20;
/// Maximum wait for the end of its output, once it has ended.
const MAX_OUTPUT_WAIT: Duration = Duration::from_secs(5);
/// Interval between checks whether the program has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(4);
/// Tasks per array if the scheduler does not report its maximum (its default is 1,001).
const DEFAULT_MAX_TASKS: usize = 1000;
/// Upper bound of tasks per array.
const MAX_TASKS: usize = 10_000;
/// Maximum number of lines of a program's output in a message.
const MAX_MESSAGE_LINES: usize = 3;
/// Maximum width of these lines together.
const MAX_MESSAGE_COLUMNS: usize = 300;

/// Fields of `scontrol show job` that describe the end of a task.
const END_FIELDS: [&str; 4] = ["JobState=", "Reason=", "ExitCode=", "BatchHost="];

/// Why a request to the scheduler failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SchedulerError {
    UnknownJob,
    /// The scheduler did not answer or could not be reached; a retry may succeed.
    Unavailable(String),
    Refused(String),
}

impl SchedulerError {
    /// The reason in one line.
    pub fn line(&self) -> String {
        match self {
            Self::UnknownJob => "slurm knows no such job".to_owned(),
            Self::Unavailable(why) | Self::Refused(why) => why.clone(),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TaskState {
    /// Waits for a node.
    #[default]
    Waiting,
    /// Has a node.
    Running,
    /// Held forever, because its node could not start it.
    Stuck,
    /// Ended, by itself or killed.
    Ended,
    Cancelled,
    OutOfTime,
    /// Ended because its node failed or was given to another job.
    LostNode,
}

/// A line of squeue: the state of one task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskStatus {
    pub task: Task,
    pub state: TaskState,
    /// Its state, as the scheduler calls it.
    pub state_name: String,
    /// Why it waits or how it ended.
    pub reason: String,
    /// Its current or last node, once it had one.
    pub node: Option<String>,
}

/// A job array to submit.
pub struct Submission<'a> {
    /// Job name, by which the job is found again.
    pub name: &'a str,
    pub task_count: usize,
    /// Maximum number of tasks that run at a time.
    pub max_running: Option<u32>,
    pub options: &'a [String],
    /// The job script and its arguments.
    pub script: &'a [String],
}

/// Submits an array and returns its job id.
pub fn submit(submission: &Submission<'_>) -> Result<u64, SchedulerError> {
    let last_index = submission.task_count.saturating_sub(1);
    let running_limit = submission.max_running.map(|max| format!("%{max}")).unwrap_or_default();
    let mut words = vec![
        "--parsable".to_owned(),
        format!("--job-name={}", submission.name),
        format!("--array=0-{last_index}{running_limit}"),
    ];
    words.extend(submission.options.iter().cloned());
    words.extend(submission.script.iter().cloned());
    let output = run_program("sbatch", &words, &|| false)?;
    // sbatch may print warnings first.
    let last_line = output.lines().last().unwrap_or_default();
    let job = last_line.split(';').next().and_then(|job| job.trim().parse().ok());
    job.ok_or_else(|| {
        SchedulerError::Unavailable(format!("sbatch printed no job id: {}", first_lines(&output)))
    })
}

/// States of those tasks of `jobs` that the scheduler knows. Gives up once `is_cancelled`.
pub fn query_tasks(jobs: &[u64], is_cancelled: &dyn Fn() -> bool) -> Result<Vec<TaskStatus>, SchedulerError> {
    let list = jobs.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    // Job id and index in the array, state, nodes, reason: what `parse_status` reads.
    let words = ["-h", "-r", "-t", "all", "-o", "%F|%K|%T|%N|%r", "-j", &list].map(str::to_owned);
    match run_program("squeue", &words, is_cancelled) {
        Ok(output) => Ok(output.lines().filter_map(parse_status).collect()),
        // For a single unknown job squeue fails; of several it omits the unknown ones.
        Err(SchedulerError::UnknownJob) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// The id of the job with this name; `None` if the scheduler has none.
pub fn find_job(name: &str) -> Result<Option<u64>, SchedulerError> {
    let words = ["-h", "-t", "all", "-o", "%F", "-n", name].map(str::to_owned);
    let output = run_program("squeue", &words, &|| false)?;
    Ok(output.lines().find_map(|line| line.trim().parse().ok()))
}

/// Cancels jobs or single tasks.
pub fn cancel(jobs: &[String]) -> Result<(), SchedulerError> {
    match run_program("scancel", jobs, &|| false) {
        Ok(_) | Err(SchedulerError::UnknownJob) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Maximum number of tasks in an array; [`DEFAULT_MAX_TASKS`] if the scheduler does not report it.
pub fn query_max_tasks() -> usize {
    let Ok(output) = run_program("scontrol", &["show", "config"].map(str::to_owned), &|| false) else {
        return DEFAULT_MAX_TASKS;
    };
    let line = output.lines().find(|line| line.trim_start().starts_with("MaxArraySize"));
    let max_array_size = line.and_then(|line| line.split_once('=')?.1.trim().parse().ok());
    // Indices go from 0 to MaxArraySize - 1; 0 disables arrays, which sbatch then reports.
    max_array_size.map_or(DEFAULT_MAX_TASKS, |max: usize| max.clamp(1, MAX_TASKS))
}

/// What the scheduler still knows about the end of a task: `ExitCode=71:0 Reason=NonZeroExitCode`;
/// `None` if it knows nothing or does not answer.
pub fn query_end(task: Task) -> Option<String> {
    let output =
        run_program("scontrol", &["show".to_owned(), "job".to_owned(), task.to_string()], &|| false).ok()?;
    let fields =
        output.split_whitespace().filter(|field| END_FIELDS.iter().any(|name| field.starts_with(name)));
    let fields: Vec<&str> = fields.take(END_FIELDS.len()).collect();
    (!fields.is_empty()).then(|| first_lines(&fields.join(" ")))
}

/// Parses a line of squeue; `None` if it is not of a task of an array.
fn parse_status(text: &str) -> Option<TaskStatus> {
    let mut fields = text.splitn(5, '|');
    let job = fields.next()?.trim().parse().ok()?;
    let index = fields.next()?.trim().parse().ok()?;
    let state_name = fields.next()?.trim();
    let node = Some(clean(fields.next()?.trim())).filter(|node| !node.is_empty());
    let reason = clean(fields.next()?.trim());
    let state = task_state(state_name, &reason);
    Some(TaskStatus { task: Task { job, index }, state, state_name: clean(state_name), reason, node })
}

fn task_state(state_name: &str, reason: &str) -> TaskState {
    let is_stuck = reason.to_ascii_lowercase().replace('_', " ").contains("launch failed requeued held");
    match state_name {
        "PENDING" | "REQUEUE_HOLD" | "SPECIAL_EXIT" if is_stuck => TaskState::Stuck,
        "COMPLETED" | "FAILED" | "OUT_OF_MEMORY" | "REVOKED" => TaskState::Ended,
        "CANCELLED" => TaskState::Cancelled,
        "TIMEOUT" | "DEADLINE" => TaskState::OutOfTime,
        "NODE_FAIL" | "PREEMPTED" | "BOOT_FAIL" => TaskState::LostNode,
        "RUNNING" | "COMPLETING" | "CONFIGURING" | "SUSPENDED" | "STOPPED" | "SIGNALING" | "STAGE_OUT" => {
            TaskState::Running
        }
        // Unknown states of newer versions count as waiting: the user can still cancel.
        _ => TaskState::Waiting,
    }
}

/// Runs a program of the scheduler and returns its output.
fn run_program(
    program: &str,
    words: &[String],
    is_cancelled: &dyn Fn() -> bool,
) -> Result<String, SchedulerError> {
    let begin = Instant::now();
    let cannot_run = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => SchedulerError::Refused(format!(
            "{program} is not installed: --on slurm needs a machine that can submit jobs (apt install slurm-client)"
        )),
        _ => SchedulerError::Refused(format!("{program} cannot be run: {error}")),
    };
    let mut command = Command::new(program);
    command.args(words).env("LC_ALL", "C").stdin(Stdio::null());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(cannot_run)?;
    let stdout = child.stdout.take().map(read_in_background);
    let stderr = child.stderr.take().map(read_in_background);
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Some(status),
            Ok(None) if begin.elapsed() < PROGRAM_TIMEOUT && !is_cancelled() => {
                std::thread::sleep(POLL_INTERVAL)
            }
            _ => break None,
        }
    };
    let Some(status) = status else {
        // Fails if it has just ended.
        drop(child.kill());
        drop(child.wait());
        return Err(SchedulerError::Unavailable(format!(
            "{program} did not answer within {} s",
            begin.elapsed().as_secs()
        )));
    };
    // A program that it started may keep the pipe open.
    let text = |reader: Option<Receiver<String>>| {
        let text = reader.and_then(|reader| reader.recv_timeout(MAX_OUTPUT_WAIT).ok());
        text.ok_or_else(|| SchedulerError::Unavailable(format!("the output of {program} was not read")))
    };
    let (output, error_output) = (text(stdout)?, text(stderr)?);
    if status.success() {
        return Ok(output);
    }
    Err(failure(program, if error_output.trim().is_empty() { &output } else { &error_output }, status.code()))
}

/// Classifies the failure of a program by its output.
fn failure(program: &str, output: &str, status: Option<i32>) -> SchedulerError {
    const UNREACHABLE: [&str; 8] = [
        "unable to contact slurm",
        "socket timed out",
        "connection refused",
        "connection timed out",
        "temporarily unable",
        "temporarily unavailable",
        "zero bytes were transmitted",
        "standby mode",
    ];
    let lower = output.to_ascii_lowercase();
    if lower.contains("invalid job id") {
        return SchedulerError::UnknownJob;
    }
    let line = match first_lines(output) {
        line if line.is_empty() => match status {
            Some(status) => format!("{program} ended with {status}"),
            None => format!("{program} was ended by a signal"),
        },
        // The message usually begins with the name of the program.
        line if line.starts_with(program) => line,
        line => format!("{program}: {line}"),
    };
    if UNREACHABLE.iter().any(|words| lower.contains(words)) {
        SchedulerError::Unavailable(line)
    } else {
        SchedulerError::Refused(line)
    }
}

/// The first lines of a message, joined into one.
fn first_lines(output: &str) -> String {
    let lines: Vec<&str> =
        output.lines().map(str::trim).filter(|line| !line.is_empty()).take(MAX_MESSAGE_LINES).collect();
    shorten(&clean(&lines.join("; ")), MAX_MESSAGE_COLUMNS)
}

/// Reads to the end in a thread of its own, up to [`MAX_OUTPUT_BYTES`]. Nothing is received if no
/// thread can be started, or reading fails.
fn read_in_background(from: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = std::sync::mpsc::channel();
    let read = move || {
        let mut bytes = Vec::new();
        if from.take(MAX_OUTPUT_BYTES).read_to_end(&mut bytes).is_ok() {
            // Fails if the output is no longer waited for.
            drop(sender.send(String::from_utf8_lossy(&bytes).into_owned()));
        }
    };
    // Without a thread the sender is dropped.
    drop(std::thread::Builder::new().spawn(read));
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_squeue_are_taken_apart() {
        let parsed = |text: &str| parse_status(text).map(|line| (line.task.to_string(), line.state));
        assert_eq!(parsed("17|3|RUNNING|n1|None"), Some(("17_3".to_owned(), TaskState::Running)));
        assert_eq!(parsed("17|0|PENDING||Resources"), Some(("17_0".to_owned(), TaskState::Waiting)));
        assert_eq!(parsed("17|0|PENDING||launch failed requeued held").unwrap().1, TaskState::Stuck);
        assert_eq!(parsed("17|0|NODE_FAIL|n|x|y").unwrap().1, TaskState::LostNode);
        assert_eq!(parsed("17|0|NEW_STATE|n|").unwrap().1, TaskState::Waiting);
        for none in ["", "x", "17|N/A|RUNNING|n|None", "17|1", "-1|1|RUNNING|n|", "1|99999999999|RUNNING|n|"]
        {
            assert_eq!(parsed(none), None, "{none:?}");
        }
    }

    #[test]
    fn an_unreachable_scheduler_differs_from_one_that_refuses() {
        let classified = |output: &str| failure("sbatch", output, Some(1));
        let away = "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)";
        assert_eq!(classified(away), SchedulerError::Unavailable(away.to_owned()));
        assert_eq!(classified("slurm_load_jobs error: Invalid job id specified"), SchedulerError::UnknownJob);
        let refused = classified(
            "sbatch: error: invalid partition specified: x\nsbatch: error: Batch job submission failed",
        );
        assert!(
            matches!(&refused, SchedulerError::Refused(line) if line.contains("x; sbatch")),
            "{refused:?}"
        );
        assert_eq!(classified(""), SchedulerError::Refused("sbatch ended with 1".to_owned()));
    }
}
