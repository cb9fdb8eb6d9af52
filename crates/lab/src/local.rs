//! Runs jobs on this machine, through a launcher.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::fcntl::{FallocateFlags, fallocate};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use strandline_sys::process::{become_subreaper, reap};
use strandline_sys::spawn::{Setup, spawn};

use super::cell::{End, Measure, Outcome, Subject};
use super::executable::executable_path;
use super::executor::{Executor, StopReason};
use super::figures;
use super::interrupt::Interrupt;
use super::json_lines::write_line;
use super::path_error::{AtPath, path_error};
use super::protocol::{Event, LineBuffer, Request, Start};
use super::sweep::{GRACE, own_children, sweep};
use strandline_recorder::LimitedGroup;

/// The hidden verb that runs strandline as a launcher.
pub const LAUNCHER_VERB: &str = "lab-launcher";
/// Maximum size kept of the standard output, and of the standard error, of a job: its last bytes.
const MAX_OUTPUT_BYTES: u64 = 16 << 20;
/// Unit of the allocated size in `stat`, whatever the file system (stat(2), `st_blocks`).
const STAT_BLOCK_BYTES: u64 = 512;
/// A growing output file may occupy this much before its beginning is freed.
const MAX_ALLOCATED_BYTES: u64 = 4 * MAX_OUTPUT_BYTES;
/// Interval between checks of the file sizes.
const TRIM_INTERVAL: Duration = Duration::from_millis(250);
/// How long the kernel may take to release the processes of a control group.
const GROUP_TIMEOUT: Duration = Duration::from_secs(2);
/// Time for a job to end after SIGTERM once it reached its timeout.
const TIMEOUT_GRACE: Duration = Duration::from_secs(2);
/// Time for the launcher to end the processes that a killed job left; on a busy machine they wait
/// for a processor.
const LAUNCHER_GRACE: Duration = Duration::from_secs(120);

pub type Job = u64;

pub struct OutputFiles {
    pub stdout: PathBuf,
    pub stderr: PathBuf,
}

/// Runs jobs on this machine.
#[derive(Debug)]
pub struct LocalExecutor {
    /// Process id of the launcher; `None` after it was lost.
    launcher: Option<i32>,
    /// Requests to the launcher, and its events.
    socket: UnixStream,
    /// Events that were received and not yet handled.
    lines: LineBuffer,
    interrupt: Arc<Interrupt>,
    /// Jobs write below it into `0`, `1`, …: names of equal length for all jobs.
    folder: PathBuf,
    /// For each of these folders, whether a job uses it.
    slots: Vec<bool>,
    last_job: Job,
    jobs: BTreeMap<Job, LocalJob>,
    /// Why the launcher does not count instructions and cycles; `None` if it does.
    no_counters_reason: Option<String>,
    /// Earlier children of this process, which the lab must not end.
    spared: Vec<i32>,
}

/// Whether the launcher reports the process id of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StartEvent {
    Requested,
    /// Saves a message.
    Omitted,
}

/// A job that runs, or whose end was not yet returned.
#[derive(Debug)]
struct LocalJob {
    subject: Subject,
    /// Index of the folder it writes into.
    slot: usize,
    /// Folder for its output after its end.
    output_folder: PathBuf,
    /// Control group with its memory limit, if it has one.
    group: Option<LimitedGroup>,
    /// Process id of its first process, once reported.
    pid: Option<i32>,
    /// The event of its end, once received.
    ended: Option<Event>,
}

impl LocalExecutor {
    /// Starts a launcher whose jobs write into `folder` while they run.
    ///
    /// # Errors
    /// One line: the folder cannot be made, or the launcher does not start.
    pub fn new(folder: &Path, interrupt: &Arc<Interrupt>) -> Result<Self, String> {
        let start_failure = |error: io::Error| format!("the launcher of commands cannot be started: {error}");
        std::fs::create_dir_all(folder).at(folder)?;
        let spared = own_children();
        // If the launcher is killed, this process must end the jobs.
        become_subreaper().map_err(start_failure)?;
        let (socket, launcher_socket) = UnixStream::pair().map_err(start_failure)?;
        let mut command = Command::new(executable_path());
        let launcher_socket = OwnedFd::from(launcher_socket);
        command.arg0("strandline").arg(LAUNCHER_VERB).arg(launcher_socket.as_raw_fd().to_string());
        // In its own session: if the whole process group of strandline is killed, the launcher
        // still ends the jobs.
        let setup = Setup {
            inherited_descriptor: Some(launcher_socket),
            signal_mask: interrupt.mask_before,
            starts_session: true,
            ..Setup::default()
        };
        let launcher = spawn(command, setup).map_err(start_failure)?.id().cast_signed();
        let mut local = Self {
            launcher: Some(launcher),
            socket,
            lines: LineBuffer::default(),
            interrupt: Arc::clone(interrupt),
            folder: folder.to_owned(),
            slots: Vec::new(),
            last_job: 0,
            jobs: BTreeMap::new(),
            no_counters_reason: None,
            spared,
        };
        match local.next_event(None) {
            Ok(Some(Event::Ready { no_counters_reason })) => local.no_counters_reason = no_counters_reason,
            Ok(_) => return Err("the launcher of commands did not start as expected".to_owned()),
            Err(StopReason::Interrupted(signal)) => return Err(format!("interrupted by signal {signal}")),
            Err(StopReason::Failed(why)) => return Err(why),
        }
        Ok(local)
    }

    /// The next event; `None` if none arrives within `timeout`.
    fn next_event(&mut self, timeout: Option<Duration>) -> Result<Option<Event>, StopReason> {
        let deadline = timeout.map(|pause| Instant::now() + pause);
        let mut has_polled = false;
        loop {
            if let Some(event) = self.lines.next().map_err(|error| self.launcher_failure(&error))? {
                return Ok(Some(event));
            }
            if let Some(signal) = self.interrupt.signal() {
                return Err(StopReason::Interrupted(signal));
            }
            let remaining = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            // Without remaining time, still polls once for an event that has already arrived.
            if remaining == Some(Duration::ZERO) && std::mem::replace(&mut has_polled, true) {
                return Ok(None);
            }
            let timeout = remaining.map_or(PollTimeout::NONE, |remaining| {
                PollTimeout::try_from(remaining.as_millis() + 1).unwrap_or(PollTimeout::MAX)
            });
            let [signals, notified] = self.interrupt.descriptors();
            let mut sources =
                [self.socket.as_fd(), signals, notified].map(|source| PollFd::new(source, PollFlags::POLLIN));
            match poll(&mut sources, timeout) {
                Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                Err(error) => return Err(self.launcher_failure(&error.into())),
            }
            let [socket, ..] = &sources;
            if socket.revents().is_some_and(|events| !events.is_empty()) {
                self.read_events()?;
            }
        }
    }

    fn read_events(&mut self) -> Result<(), StopReason> {
        match self.lines.read_from(&self.socket) {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.handle_launcher_loss()),
            Err(error) => Err(self.launcher_failure(&error)),
        }
    }

    /// Handles the loss of the launcher: ends the jobs that it ran.
    fn handle_launcher_loss(&mut self) -> StopReason {
        if let Some(launcher) = self.launcher.take() {
            drop(reap(launcher));
        }
        sweep(&self.spared, GRACE);
        StopReason::Failed(
            "the launcher of commands was killed, and its commands were ended; start again".to_owned(),
        )
    }

    fn launcher_failure(&self, error: &io::Error) -> StopReason {
        let pid = self.launcher.map_or_else(String::new, |pid| format!(" (pid {pid})"));
        StopReason::Failed(format!("the launcher of commands{pid} does not answer: {error}"))
    }

    fn send_request(&mut self, request: &Request) -> Result<(), StopReason> {
        write_line(&mut self.socket, request).map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe => self.handle_launcher_loss(),
            _ => self.launcher_failure(&error),
        })
    }

    fn store_event(&mut self, event: Event) {
        let job = match &event {
            Event::Ready { .. } => return,
            Event::Started { job, .. } | Event::NotStarted { job, .. } => *job,
            Event::Ended(ended) => ended.job,
        };
        let Some(local_job) = self.jobs.get_mut(&job) else { return };
        match event {
            Event::Started { pid, .. } => local_job.pid = Some(pid),
            event => local_job.ended = Some(event),
        }
    }

    /// Frees the disk space of old output of a job that will not be kept, so that endless output
    /// does not fill the disk. A file that cannot be opened keeps its space until the job ends.
    fn trim(&self, local_job: &LocalJob) {
        let folder = self.slot_folder(local_job.slot);
        for name in ["stdout", "stderr"] {
            let Ok(file) = File::options().write(true).open(folder.join(name)) else { continue };
            let Ok(metadata) = file.metadata() else { continue };
            // The file may already have a hole; only the allocated size counts.
            if metadata.blocks().saturating_mul(STAT_BLOCK_BYTES) > MAX_ALLOCATED_BYTES {
                let end = metadata.len().saturating_sub(MAX_OUTPUT_BYTES);
                let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
                // A file system without holes keeps the whole file.
                let _ = fallocate(&file, flags, 0, i64::try_from(end).unwrap_or(i64::MAX));
            }
        }
    }

    /// Reserves a folder that no other running job uses.
    fn reserve_slot(&mut self) -> Result<usize, StopReason> {
        let slot = self.slots.iter().position(|is_taken| !is_taken).unwrap_or(self.slots.len());
        match self.slots.get_mut(slot) {
            Some(is_taken) => *is_taken = true,
            None => {
                let folder = self.slot_folder(slot);
                std::fs::create_dir_all(&folder).at(&folder)?;
                self.slots.push(true);
            }
        }
        Ok(slot)
    }

    fn slot_folder(&self, slot: usize) -> PathBuf {
        self.folder.join(slot.to_string())
    }

    fn start_job(
        &mut self,
        subject: &Subject,
        folder: &Path,
        start_event: StartEvent,
    ) -> Result<Job, StopReason> {
        let slot = self.reserve_slot()?;
        let slot_folder = self.slot_folder(slot);
        let is_recorded = matches!(subject.measure, Measure::Recording { .. });
        let group_bytes = subject.limits.memory_bytes.filter(|_| !is_recorded);
        let group = group_bytes
            .map(LimitedGroup::new)
            .transpose()
            .map_err(|refusal| StopReason::Failed(refusal.to_string()))?;
        self.last_job += 1;
        let job = self.last_job;
        let command = figures::command(subject, &slot_folder)?;
        let (directory, stdin) = (subject.directory.clone(), subject.stdin.clone());
        // The recorder sets the variables and limits: they are not for itself.
        let settings = if is_recorded { Subject::default() } else { subject.clone() };
        let start = Start {
            job,
            subject: Subject { command, directory, stdin, ..settings },
            group: group.as_ref().map(LimitedGroup::procs),
            stdout: slot_folder.join("stdout"),
            stderr: slot_folder.join("stderr"),
            reports_start: start_event == StartEvent::Requested,
        };
        let local_job = LocalJob {
            subject: subject.clone(),
            slot,
            output_folder: folder.to_owned(),
            group,
            pid: None,
            ended: None,
        };
        self.jobs.insert(job, local_job);
        self.send_request(&Request::Start(Box::new(start)))?;
        Ok(job)
    }

    fn finish(&mut self, local_job: LocalJob, event: Event) -> Result<Outcome, StopReason> {
        let slot_folder = self.slot_folder(local_job.slot);
        let kills = local_job.group.as_ref().and_then(LimitedGroup::out_of_memory_kills);
        let swap_problem = local_job.group.as_ref().and_then(|group| group.swap_problem.clone());
        if let Some(group) = local_job.group {
            remove_group(&group)?;
        }
        if let Some(is_taken) = self.slots.get_mut(local_job.slot) {
            *is_taken = false;
        }
        let mut outcome = match event {
            Event::NotStarted { why, is_command_fault: true, .. } => Outcome::not_started(why),
            Event::NotStarted { why, .. } => return Err(StopReason::Failed(why)),
            Event::Ended(ended) => figures::outcome(&local_job.subject, &ended, &slot_folder),
            Event::Ready { .. } | Event::Started { .. } => {
                Outcome::not_started("its end was not reported".to_owned())
            }
        };
        outcome.out_of_memory_kills = outcome.out_of_memory_kills.or(kills);
        outcome.swap_problem = outcome.swap_problem.or(swap_problem);
        let keep = |name: &str| {
            keep_output(&slot_folder, &local_job.output_folder, name).map_err(StopReason::Failed)
        };
        outcome.stdout = keep("stdout")?;
        outcome.stderr = keep("stderr")?;
        outcome.recording = match &local_job.subject.measure {
            Measure::Recording { .. } => keep(figures::RECORDING)?,
            _ => None,
        };
        Ok(outcome)
    }

    /// Starts a job whose process id will be asked for. Its output is stored below `folder`, which
    /// is created if there is any. A command that cannot be run is not an error:
    /// [`LocalExecutor::wait`] reports it.
    pub fn start(&mut self, subject: &Subject, folder: &Path) -> Result<Job, StopReason> {
        self.start_job(subject, folder, StartEvent::Requested)
    }

    /// Waits for a job to end, at most `timeout`; `None` if it still runs. Each end is reported
    /// once.
    pub fn wait(&mut self, job: Job, timeout: Option<Duration>) -> Result<Option<Outcome>, StopReason> {
        let deadline = timeout.map(|pause| Instant::now() + pause);
        loop {
            let ended = self.jobs.get_mut(&job).and_then(|local_job| local_job.ended.take());
            if let Some(event) = ended
                && let Some(local_job) = self.jobs.remove(&job)
            {
                return self.finish(local_job, event).map(Some);
            }
            let remaining = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            match self
                .next_event(Some(remaining.map_or(TRIM_INTERVAL, |remaining| remaining.min(TRIM_INTERVAL))))?
            {
                Some(event) => self.store_event(event),
                None if remaining.is_some_and(|remaining| remaining <= TRIM_INTERVAL) => return Ok(None),
                None => self.jobs.values().for_each(|local_job| self.trim(local_job)),
            }
        }
    }

    /// Sends SIGTERM to the processes of a job, and kills all of them after `grace`.
    pub fn stop(&mut self, job: Job, grace: Duration) -> Result<(), StopReason> {
        // A recorder forwards the signal to the recorded command.
        let is_recorded =
            |local_job: &LocalJob| matches!(local_job.subject.measure, Measure::Recording { .. });
        let is_whole_group = !self.jobs.get(&job).is_some_and(is_recorded);
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        self.send_request(&Request::Stop { job, grace_ms, is_whole_group })
    }

    /// Process id of the first process of a job, once known; `None` if it did not start.
    pub fn pid(&mut self, job: Job) -> Result<Option<i32>, StopReason> {
        while self
            .jobs
            .get(&job)
            .is_some_and(|local_job| local_job.pid.is_none() && local_job.ended.is_none())
        {
            if let Some(event) = self.next_event(None)? {
                self.store_event(event);
            }
        }
        Ok(self.jobs.get(&job).and_then(|local_job| local_job.pid))
    }

    /// The growing output files of a job; `None` after its end.
    pub fn output(&self, job: Job) -> Option<OutputFiles> {
        let folder = self.slot_folder(self.jobs.get(&job)?.slot);
        Some(OutputFiles { stdout: folder.join("stdout"), stderr: folder.join("stderr") })
    }
}

impl Executor for LocalExecutor {
    fn run(&mut self, subject: &Subject, folder: &Path) -> Result<Outcome, StopReason> {
        let job = self.start_job(subject, folder, StartEvent::Omitted)?;
        if let Some(outcome) = self.wait(job, subject.timeout)? {
            return Ok(outcome);
        }
        let stop_begin = Instant::now();
        self.stop(job, TIMEOUT_GRACE)?;
        match self.wait(job, Some(TIMEOUT_GRACE + LAUNCHER_GRACE))? {
            Some(outcome) => Ok(Outcome { end: End::TimedOut, ..outcome }),
            None => Err(StopReason::Failed(format!(
                "{}: has not ended {} s after SIGTERM and SIGKILL: the kernel holds it, or no processor was free (see its state in ps)",
                subject.name,
                stop_begin.elapsed().as_secs()
            ))),
        }
    }

    fn no_counters_reason(&self) -> Option<String> {
        self.no_counters_reason.clone()
    }
}

impl Drop for LocalExecutor {
    fn drop(&mut self) {
        let Some(launcher) = self.launcher else { return };
        // The launcher ends the jobs and exits.
        drop(self.socket.shutdown(std::net::Shutdown::Both));
        drop(reap(launcher));
        for group in std::mem::take(&mut self.jobs).into_values().filter_map(|local_job| local_job.group) {
            // A failure cannot be reported anymore.
            drop(remove_group(&group));
        }
    }
}

/// Removes the control group of a job whose processes have ended.
fn remove_group(group: &LimitedGroup) -> Result<(), String> {
    let begin = Instant::now();
    loop {
        match group.remove() {
            Ok(()) => return Ok(()),
            Err(why) if begin.elapsed() > GROUP_TIMEOUT => return Err(why),
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Moves the file `name` from one folder to another, truncated to its last [`MAX_OUTPUT_BYTES`];
/// `None` if it is empty or missing.
fn keep_output(slot_folder: &Path, folder: &Path, name: &str) -> Result<Option<PathBuf>, String> {
    let (from, to) = (slot_folder.join(name), folder.join(name));
    let bytes = match from.metadata() {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) => return Err(path_error(&from, &error)),
    };
    if bytes == 0 {
        return Ok(None);
    }
    std::fs::create_dir_all(folder).at(folder)?;
    let moved = if name != figures::RECORDING && bytes > MAX_OUTPUT_BYTES {
        copy_tail(&from, &to, bytes).and_then(|()| std::fs::remove_file(&from))
    } else {
        std::fs::rename(&from, &to)
    };
    moved.map(|()| Some(to.clone())).at(&to)
}

fn copy_tail(from: &Path, to: &Path, bytes: u64) -> io::Result<()> {
    let mut from = File::open(from)?;
    from.seek(SeekFrom::Start(bytes.saturating_sub(MAX_OUTPUT_BYTES)))?;
    io::copy(&mut from.take(MAX_OUTPUT_BYTES), &mut File::create(to)?).map(drop)
}
