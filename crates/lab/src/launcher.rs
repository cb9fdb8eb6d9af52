//! The launcher: a small process that starts jobs for strandline and ensures that no job outlives
//! its lab.
//!
//! It is a separate process for three reasons. A job begins as a copy of its starter, and the
//! kernel includes that copy in the high-water mark of the job: a small starter does not distort
//! it. Starting is faster. And when strandline is killed at any instant, the launcher sees its
//! socket close, ends everything that runs, daemons included, and exits. When the launcher is
//! killed, the kernel kills the first process of each job and strandline ends the rest.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use strandline_sys::process::{Usage, become_subreaper, try_reap};
use strandline_sys::signal::{self, signal_bit};
use strandline_sys::spawn::{Gate, Resource, ResourceLimit, Rlimit, Setup, spawn};

use super::cell::{Figures, Subject};
use super::counters::{self, Counters};
use super::figures::US_PER_SECOND;
use super::json_lines::write_line;
use super::path_error::path_error;
use super::protocol::{Ended, Event, LineBuffer, Request, Start};
use super::sweep::{GRACE, SweepResult, sweep};

/// How long a new process waits for its counters before it execs anyway.
const GATE_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug)]
struct RunningJob {
    /// Its identifier in requests and events.
    number: u64,
    started_at: Instant,
    /// `None`: its instructions and cycles are unknown.
    counters: Option<Counters>,
    /// When the job is killed; `None` unless it is being stopped.
    deadline: Option<Instant>,
    /// The `cgroup.procs` of its control group.
    group: Option<PathBuf>,
}

/// A job whose first process has ended.
#[derive(Debug)]
struct EndedJob {
    ended: Ended,
    /// Usage of its first process and of the descendants that this process reaped.
    usage: Usage,
    /// Time for the processes it left to end.
    grace: Duration,
}

/// What the launcher has to handle.
struct PendingWork {
    has_requests: bool,
    has_ended_children: bool,
}

#[derive(Debug)]
struct Launcher {
    /// Requests of strandline, and events for it.
    socket: UnixStream,
    /// Requests that were received and not yet handled.
    lines: LineBuffer,
    /// Readable when a child has ended.
    child_signals: SignalFd,
    /// Signal mask that jobs start with.
    signal_mask: u64,
    has_counters: bool,
    /// Running jobs by the process id of their first process.
    jobs: BTreeMap<i32, RunningJob>,
    /// Reported once the processes that they left have ended.
    ended_jobs: Vec<EndedJob>,
    /// Usage of reaped processes that were not the first of their job.
    orphans: Usage,
}

/// Serves the requests on `socket` until it closes, then ends everything that was started.
///
/// # Errors
/// The socket fails, or a request is malformed: everything that was started is ended then too.
pub fn serve(socket: UnixStream) -> io::Result<()> {
    let bit = |signal: Signal| signal_bit(signal as i32);
    // Signals of the terminal are for strandline, which closes the socket to end the launcher.
    let blocked = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGTSTP];
    let bits = blocked.into_iter().fold(bit(Signal::SIGCHLD), |bits, signal| bits | bit(signal));
    let signal_mask = strandline_sys::signal::replace_mask(bits)?;
    strandline_sys::spawn::set_recording_dispositions();
    become_subreaper()?;
    let signals: SigSet = [Signal::SIGCHLD].into_iter().collect();
    let child_signals = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    let no_counters_reason = counters::unavailability();
    let mut launcher = Launcher {
        socket,
        lines: LineBuffer::default(),
        child_signals,
        // strandline started the launcher with the mask that it was started with itself.
        signal_mask,
        has_counters: no_counters_reason.is_none(),
        jobs: BTreeMap::new(),
        ended_jobs: Vec::new(),
        orphans: Usage::default(),
    };
    launcher.send_event(&Event::Ready { no_counters_reason })?;
    let result = launcher.run();
    for &pid in launcher.jobs.keys() {
        drop(signal::send(-pid, Signal::SIGKILL as i32));
    }
    sweep(&[], GRACE);
    // strandline removes control groups while it lives; after it was killed they are removed here.
    for group in launcher.jobs.values().filter_map(|job| job.group.as_deref()?.parent()) {
        drop(std::fs::remove_dir(group));
    }
    result
}

impl Launcher {
    fn send_event(&mut self, event: &Event) -> io::Result<()> {
        write_line(&mut self.socket, event)
    }

    fn run(&mut self) -> io::Result<()> {
        loop {
            let pending = self.wait()?;
            if pending.has_ended_children {
                while let Ok(Some(_)) = self.child_signals.read_signal() {}
                self.reap_children()?;
            }
            if pending.has_requests && !self.handle_requests()? {
                return Ok(());
            }
            self.kill_overdue();
        }
    }

    /// Waits for requests, for children to end, or for the next kill deadline.
    fn wait(&self) -> io::Result<PendingWork> {
        let mut sources = [
            PollFd::new(self.socket.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.child_signals.as_fd(), PollFlags::POLLIN),
        ];
        let next_deadline = self.jobs.values().filter_map(|job| job.deadline).min();
        let pause =
            next_deadline.map(|at| at.saturating_duration_since(Instant::now()) + Duration::from_millis(1));
        let timeout = pause.map_or(PollTimeout::NONE, |pause| {
            PollTimeout::try_from(pause.as_millis()).unwrap_or(PollTimeout::MAX)
        });
        match poll(&mut sources, timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let has_events = |source: &PollFd<'_>| source.revents().is_some_and(|events| !events.is_empty());
        let [socket, children] = &sources;
        Ok(PendingWork { has_requests: has_events(socket), has_ended_children: has_events(children) })
    }

    /// Handles requests; false if strandline closed the socket.
    fn handle_requests(&mut self) -> io::Result<bool> {
        if !self.lines.read_from(&self.socket)? {
            return Ok(false);
        }
        while let Some(request) = self.lines.next()? {
            match request {
                Request::Start(start) => self.start_job(&start)?,
                Request::Stop { job, grace_ms, is_whole_group } => {
                    self.stop_job(job, Duration::from_millis(grace_ms), is_whole_group);
                }
            }
        }
        Ok(true)
    }

    fn start_job(&mut self, start: &Start) -> io::Result<()> {
        let started_at = Instant::now();
        match launch(start, self.signal_mask, self.has_counters) {
            Ok(LaunchedProcess { pid, counters }) => {
                let group = start.group.clone();
                self.jobs.insert(
                    pid,
                    RunningJob { number: start.job, started_at, counters, deadline: None, group },
                );
                if start.reports_start {
                    self.send_event(&Event::Started { job: start.job, pid })?;
                }
                Ok(())
            }
            Err(LaunchError { why, is_command_fault }) => {
                self.send_event(&Event::NotStarted { job: start.job, why, is_command_fault })
            }
        }
    }

    /// Sends SIGTERM to the process group of a job if `is_whole_group`, otherwise to its first
    /// process.
    fn stop_job(&mut self, number: u64, grace: Duration, is_whole_group: bool) {
        let matching_job = self.jobs.iter_mut().find(|(_, job)| job.number == number);
        // A job that ended in the meantime is reported by its own event.
        let Some((&pid, job)) = matching_job else { return };
        job.deadline = Some(Instant::now() + grace);
        let target = if is_whole_group { -pid } else { pid };
        for signal in [Signal::SIGTERM, Signal::SIGCONT] {
            drop(signal::send(target, signal as i32));
        }
    }

    fn kill_overdue(&mut self) {
        let now = Instant::now();
        for (&pid, job) in &mut self.jobs {
            if job.deadline.is_some_and(|deadline| deadline <= now) {
                job.deadline = None;
                // The process group, and the first process itself in case it left the group.
                drop(signal::send(-pid, Signal::SIGKILL as i32));
                drop(signal::send(pid, Signal::SIGKILL as i32));
            }
        }
    }

    /// Reaps children; when no job runs any more, ends the processes that they left.
    fn reap_children(&mut self) -> io::Result<()> {
        // Without children, the sweep is skipped.
        let has_children = loop {
            let child = match try_reap(-1) {
                Ok(Some(child)) => child,
                Ok(None) => break true,
                Err(_) => break false,
            };
            let Some(mut job) = self.jobs.remove(&child.pid) else {
                self.orphans = self.orphans.plus(child.usage);
                continue;
            };
            let wall_seconds = Some(job.started_at.elapsed().as_secs_f64());
            let counter_figures = job.counters.as_mut().map(Counters::read).unwrap_or_default();
            let figures = Figures { wall_seconds, ..counter_figures };
            let ended = Ended { job: job.number, status: child.status, figures, ..Ended::default() };
            let grace = job.deadline.map(|at| at.saturating_duration_since(Instant::now()));
            let grace = grace.unwrap_or_default().max(GRACE);
            self.ended_jobs.push(EndedJob { ended, usage: child.usage, grace });
        };
        if !self.jobs.is_empty() {
            // Leftover processes cannot be distinguished from those of running jobs; the last job
            // ends them.
            return std::mem::take(&mut self.ended_jobs).into_iter().try_for_each(|job| self.report_end(job));
        }
        let Some(mut last_job) = self.ended_jobs.pop() else { return Ok(()) };
        let swept = if has_children { sweep(&[], last_job.grace) } else { SweepResult::default() };
        last_job.usage = last_job.usage.plus(std::mem::take(&mut self.orphans)).plus(swept.usage);
        last_job.ended.leftover_processes = swept.leftover_processes;
        last_job.ended.unended_processes = swept.unended_processes;
        for job in std::mem::take(&mut self.ended_jobs) {
            self.report_end(job)?;
        }
        self.report_end(last_job)
    }

    fn report_end(&mut self, EndedJob { ended, usage, .. }: EndedJob) -> io::Result<()> {
        let seconds = |us: u64| Some(us as f64 / US_PER_SECOND);
        let figures = Figures {
            user_seconds: seconds(usage.user_us),
            system_seconds: seconds(usage.system_us),
            high_water_bytes: Some(usage.peak_rss_kib.saturating_mul(1024)),
            minor_faults: Some(usage.minor_faults),
            major_faults: Some(usage.major_faults),
            ..ended.figures
        };
        self.send_event(&Event::Ended(Box::new(Ended { figures, ..ended })))
    }
}

/// The first process of a job.
struct LaunchedProcess {
    pid: i32,
    /// `None` if the machine has none or they could not be opened: the job runs without them.
    counters: Option<Counters>,
}

/// Why a job was not started.
struct LaunchError {
    why: String,
    /// Whether the command is at fault, rather than the launcher.
    is_command_fault: bool,
}

fn launch(start: &Start, signal_mask: u64, has_counters: bool) -> Result<LaunchedProcess, LaunchError> {
    let launcher_fault = |path: &Path, error: io::Error| LaunchError {
        why: path_error(path, &error),
        is_command_fault: false,
    };
    let command_fault = |why: String| LaunchError { why, is_command_fault: true };
    let mut command = command_of(&start.subject).map_err(command_fault)?;
    let output = |path: &Path| create(path).map(Stdio::from).map_err(|error| launcher_fault(path, error));
    command.stdout(output(&start.stdout)?).stderr(output(&start.stderr)?);
    command.stdin(match &start.subject.stdin {
        Some(path) => Stdio::from(File::open(path).map_err(|error| launcher_fault(path, error))?),
        None => Stdio::null(),
    });
    let group_procs = start.group.as_deref().map(|procs_file| {
        let opened = OpenOptions::new().write(true).open(procs_file);
        opened.map(OwnedFd::from).map_err(|error| launcher_fault(procs_file, error))
    });
    let limits = [
        (Resource::AddressSpace, start.subject.limits.address_space_bytes),
        (Resource::Data, start.subject.limits.data_bytes),
    ];
    let limits = limits
        .into_iter()
        .filter_map(|(resource, bytes)| {
            Some(ResourceLimit { resource, limits: Rlimit { soft: bytes?, hard: bytes? } })
        })
        .collect();
    let program = start.subject.command.first().map_or("", String::as_str);
    let (gate, opener) = if has_counters { counter_gate() } else { None }.unzip();
    let setup = Setup {
        gate,
        limits,
        group_to_join: group_procs.transpose()?,
        signal_mask,
        starts_session: true,
        dies_with_parent: true,
        no_huge_pages: start.subject.no_huge_pages,
        ..Setup::default()
    };
    let child = spawn(command, setup).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => command_fault(format!("{program}: not found")),
        kind => LaunchError {
            why: format!("{program}: cannot be run: {error}"),
            // fork(2) fails with EAGAIN where no more processes are allowed.
            is_command_fault: kind != io::ErrorKind::WouldBlock,
        },
    });
    let counters = opener.and_then(|opener| opener.join().ok().flatten());
    // The child is reaped by its pid; dropping the handle has no effect on it.
    child.map(|child| LaunchedProcess { pid: child.id().cast_signed(), counters })
}

/// The command of a subject in its environment and working directory.
fn command_of(subject: &Subject) -> Result<Command, String> {
    let (program, arguments) = subject.command.split_first().ok_or("no command was given")?;
    let mut command = Command::new(program);
    command.args(arguments);
    for (name, value) in &subject.environment {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    if let Some(folder) = &subject.directory {
        if !folder.is_dir() {
            return Err(format!("{}: no such folder to run in", folder.display()));
        }
        command.current_dir(folder);
    }
    Ok(command)
}

/// Thread that opens the counters of a process waiting to exec.
type CounterOpener = std::thread::JoinHandle<Option<Counters>>;

/// Returns the socket on which a new process waits for its counters, and the thread that opens
/// them: `spawn` returns only after the exec. `None` if the kernel gives no descriptor or thread:
/// the job then runs without counters.
fn counter_gate() -> Option<(UnixStream, CounterOpener)> {
    let (launcher_end, child_end) = UnixStream::pair().ok()?;
    child_end.set_read_timeout(Some(GATE_TIMEOUT)).ok()?;
    let open_counters = move || {
        let counters = Gate::wait_for_child(&launcher_end).and_then(|pid| Counters::open(pid).ok());
        Gate::release(&launcher_end);
        counters
    };
    Some((child_end, std::thread::Builder::new().spawn(open_counters).ok()?))
}

fn create(path: &Path) -> io::Result<File> {
    // Symbolic links are not followed: they may point outside of the lab.
    let no_link = OFlag::O_NOFOLLOW.bits();
    OpenOptions::new().write(true).create(true).truncate(true).custom_flags(no_link).open(path)
}
