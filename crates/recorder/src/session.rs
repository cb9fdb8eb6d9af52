//! The main loop of the recorder: takes samples at their instants, and handles events in between.

mod ending;
mod files;
mod ledgers;
mod marks;
mod signals;

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signalfd::SignalFd;
use strandline_inspect::Caveat;
use strandline_inspect::environment::Environment;
use strandline_process::procfs::Process;
use strandline_recording::{
    Block, CaveatRecord, CommandUsage, Exec, Header, Heartbeat, Limit, ProcessEnd, Record, Run, SCHEMA,
};
use strandline_sys::spawn::Rlimit;

use super::clock::{Clock, Grid, micros};
use super::groups::GroupRecorder;
use super::ledgers::Ledgers;
use super::marks::Marks;
use super::member::{Departed, Program};
use super::plan::Plan;
use super::poller::{Poller, Source};
use super::sampler::Units;
use super::sink::Sink;
use super::tree::{self, ProcessEvents, SEARCH_EVERY, Tree};
use super::{Options, Progress};

pub(super) use ending::ending_signal;
pub(super) use signals::{TakenSignals, take_over_signals};

/// Interval at which samples are written to the file.
const FLUSH_EVERY: Duration = Duration::from_millis(500);
/// Maximum time of one round of the loop, which empties the kernel's queue of events.
const MAX_ROUND: Duration = Duration::from_millis(50);
/// If an instant is overdue by more than this, the user may have stopped the recorder: check for
/// the signal.
const PAUSE_THRESHOLD: Duration = Duration::from_millis(50);
/// Interval of reading process events while no process starts or ends.
const READ_EVENTS_EVERY: Duration = Duration::from_millis(4);
/// Interval at which [`Options::progress`] is called.
const PROGRESS_EVERY: Duration = Duration::from_millis(250);
/// Up to this many processes are sampled at every instant; with more, they take turns.
const MAX_FULL_RATE_PROCESSES: usize = 16;
/// Maximum rate of opening files of new processes. Beyond it, processes that live for only a few
/// milliseconds are just counted.
const OPENINGS_PER_SECOND: f64 = 1000.0;
/// Maximum number of openings that can be saved up for a burst of new processes.
const MAX_OPENINGS: f64 = 256.0;
/// If the kernel does not report an end within this time, the event was lost.
const END_EVENT_TIMEOUT_US: u64 = 1_000_000;
/// Processes that live no longer than this are too brief to be sampled reliably.
const BRIEF_LIFE_US: u64 = 10_000;

/// Why the loop ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StopReason {
    /// The first process ended.
    Ended,
    /// The recorder must stop.
    Interrupted,
}

/// The parts of one recording.
pub(super) struct Session<'a> {
    pub options: &'a Options<'a>,
    pub plan: Plan,
    pub clock: Clock,
    pub sink: Sink,
    pub ledgers: Ledgers,
    /// The socket of the command; `None` for a process that was attached to.
    pub marks: Option<Marks>,
    /// Process id of the first process: the command, or the process that was attached to.
    pub root: i32,
    /// Whether signals to the recorder are for the command (`run`) or end the recording (`record`).
    pub forwards_signals: bool,
    pub signals: SignalFd,
    pub poller: Poller,
    pub process_events: ProcessEvents,
    pub tree: Tree,
    pub units: Units,
    pub grid: Grid,
    /// Samples the control group of the first process.
    pub group: Option<GroupRecorder>,
    /// Wait status of the first process, if known.
    pub root_status: Option<i32>,
    /// Resource usage of the command, once it has ended.
    pub root_usage: Option<CommandUsage>,
    state: State,
}

/// What is known of the recording so far, and what is due.
#[derive(Default)]
struct State {
    /// Number of the next process in the recording.
    next_number: u32,
    /// Number of processes whose files may be opened now.
    allowed_openings: f64,
    /// When samples were last taken.
    sampled_us: u64,
    /// Number of searches for children to make because events were lost.
    searches_left: u64,
    /// Whether there is a caveat that events were lost.
    has_loss_caveat: bool,
    /// Whether there is a caveat that children or threads could not be read.
    has_unread_caveat: bool,
    /// Whether process events are being handled, which must not be entered again.
    is_handling_events: bool,
    /// How long the user stopped the recorder, in total.
    paused_us: u64,
    next: Deadlines,
    /// Processes whose end was noticed and not recorded yet.
    departed: Vec<Departed>,
    marks: marks::MarkState,
    ledgers: ledgers::LedgerState,
    /// See [`strandline_recording::Ending`].
    brief_processes: u64,
    /// See [`strandline_recording::Ending`].
    unsampled_processes: u64,
    /// High-water mark of the first process at its reported end.
    root_high_water_kib: Option<u64>,
    /// See [`Recorded`](crate::Recorded).
    max_high_water_kib: Option<u64>,
    /// Whether the first process was found running after its reported end.
    is_root_unsampled: bool,
    progress: Progress,
}

/// When something is done next.
#[derive(Default)]
struct Deadlines {
    /// Process events are read.
    events_us: u64,
    /// /proc is searched for new processes, if the kernel does not report them.
    search_us: u64,
    /// Samples are written to the file.
    flush_us: u64,
    /// Progress is reported.
    progress_us: u64,
    /// Regular ledgers are taken; 0 before the first interval began.
    regular_ledgers_us: u64,
}

/// The parameters of a session: fields without a comment become those of [`Session`].
pub(super) struct SessionParameters<'a> {
    pub options: &'a Options<'a>,
    pub clock: Clock,
    pub sink: Sink,
    pub ledgers: Ledgers,
    pub marks: Option<Marks>,
    pub root: i32,
    /// The first process, as a descriptor that becomes readable at its end.
    pub root_pidfd: OwnedFd,
    /// Number of its threads, shared with the thread that watches it.
    pub root_threads: Arc<AtomicU64>,
    /// Whether its end is watched for.
    pub is_root_watched: bool,
    pub forwards_signals: bool,
    pub signals: SignalFd,
    pub process_events: ProcessEvents,
    pub environment: Environment,
    pub limits: Vec<Limit>,
    /// The control group made for the command.
    pub group: Option<PathBuf>,
    pub command: Vec<String>,
}

impl<'a> Session<'a> {
    /// Begins a session and writes the header.
    ///
    /// # Errors
    /// If the kernel has no descriptors left.
    pub fn begin(parameters: SessionParameters<'a>) -> std::io::Result<Self> {
        let SessionParameters {
            options,
            clock,
            sink,
            ledgers,
            marks,
            root,
            root_pidfd,
            forwards_signals,
            signals,
            process_events,
            ..
        } = parameters;
        let poller = Poller::new(root_pidfd)?;
        poller.add(Source::Signals, signals.as_fd())?;
        poller.add(Source::Ledgers, ledgers.descriptor().as_fd())?;
        marks.as_ref().map_or(Ok(()), |marks| poller.add_marks(marks))?;
        let mut session = Self {
            options,
            plan: options.plan,
            clock,
            sink,
            ledgers,
            marks,
            root,
            forwards_signals,
            signals,
            poller,
            process_events,
            tree: Tree::default(),
            units: Units::read(),
            grid: Grid::new(options.interval),
            group: GroupRecorder::new(root, parameters.group.as_deref()),
            root_status: None,
            root_usage: None,
            state: State { allowed_openings: MAX_OPENINGS, ..State::default() },
        };
        session.write_header(parameters.environment, parameters.command, parameters.limits);
        let root_member = session.tree.add(root, None, 0);
        root_member.threads = parameters.root_threads;
        root_member.watch.is_requested = parameters.is_root_watched;
        session.open(root);
        Ok(session)
    }

    /// Begins the file with what is recorded, where and how.
    fn write_header(&mut self, environment: Environment, command: Vec<String>, limits: Vec<Limit>) {
        self.sink.begin();
        let header = Header {
            schema: SCHEMA.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            environment,
            command,
            attached: !self.forwards_signals,
            interval_us: micros(self.options.interval),
            ledgers: self.plan.text(),
            followed_by: self.process_events.name().to_owned(),
            limits,
        };
        self.push(&Record::Header(Box::new(header)));
        if let Some(text) = self.process_events.limitation(tree::lists_children()) {
            self.add_caveat("polling", "processes", text);
        }
    }

    /// Adds a record to the recording.
    pub(super) fn push(&mut self, record: &Record) {
        self.sink.push(record, self.clock.now_us());
    }

    /// Adds a caveat to the recording.
    pub(super) fn add_caveat(&mut self, code: &str, place: impl Into<String>, text: impl Into<String>) {
        let caveat = Caveat::new(code, place, None, text);
        self.state.progress.caveats += 1;
        self.push(&Record::Caveat(CaveatRecord { at_us: self.clock.now_us(), caveat }));
    }

    /// Samples, handles events, answers marks and writes, until the recording is over.
    pub fn run(&mut self) -> StopReason {
        let now_us = self.clock.now_us();
        self.handle_events(now_us);
        if let Some(root) = self.tree.get_mut(self.root) {
            // The exec that started it is not recorded; a later one, after its command line was
            // read, is.
            let program = Process::open(self.root).ok().and_then(|process| Program::of(&process));
            root.is_new_program = root.has_other_program(program.as_ref());
        }
        self.grid.skip_to(now_us);
        loop {
            let now_us = self.clock.now_us();
            self.handle_events(now_us);
            if self.grid.is_late(now_us, PAUSE_THRESHOLD) && self.handle_signals() && !self.forwards_signals {
                return StopReason::Interrupted;
            }
            if self.grid.take_due(now_us) {
                self.sample_all(now_us);
                if let Some(group) = &mut self.group {
                    group.sample_if_due(now_us);
                }
                let is_unsampled = !self.tree.has(self.root) && tree::is_running(self.root).unwrap_or(false);
                self.state.is_root_unsampled |= is_unsampled;
            }
            self.run_due_tasks(now_us);
            if let Some(reason) = self.wait() {
                return reason;
            }
        }
    }

    /// Sleeps until an instant is due or there are events, which it handles. Returns a reason if
    /// the recording is over.
    fn wait(&mut self) -> Option<StopReason> {
        let now_us = self.clock.now_us();
        let time_left =
            self.options.duration.map(|duration| duration.saturating_sub(Duration::from_micros(now_us)));
        if time_left.is_some_and(|time| time.is_zero()) {
            return Some(StopReason::Interrupted);
        }
        let timeout = self.grid.time_until_next(now_us).min(self.max_wait());
        let timeout = time_left.map_or(timeout, |time| timeout.min(time));
        let ready = self.poller.wait(timeout);
        if ready.has(Source::End) {
            return Some(StopReason::Ended);
        }
        if ready.has(Source::Signals) && self.handle_signals() && !self.forwards_signals {
            return Some(StopReason::Interrupted);
        }
        if ready.has(Source::Ledgers) {
            self.handle_ledger_results();
        }
        if ready.has(Source::Marks) {
            self.handle_marks();
        }
        None
    }

    /// Time after which process events are handled even if nothing else happens.
    fn max_wait(&self) -> Duration {
        match self.process_events {
            ProcessEvents::Connector(_) => MAX_ROUND,
            ProcessEvents::Polling(_) => SEARCH_EVERY,
        }
    }

    /// Handles forks, execs and ends.
    fn handle_events(&mut self, now_us: u64) {
        if now_us < self.state.next.events_us || self.state.is_handling_events {
            return;
        }
        let process_count = self.tree.pids().len();
        self.read_events(now_us);
        let must_search = match self.process_events {
            ProcessEvents::Connector(_) => self.state.searches_left > 0,
            ProcessEvents::Polling(_) => now_us >= self.state.next.search_us,
        };
        if must_search {
            self.state.searches_left = self.state.searches_left.saturating_sub(1);
            self.tree.search(now_us);
            self.tree.find_new_programs(now_us);
            self.state.next.search_us = now_us + micros(SEARCH_EVERY);
        }
        if !self.state.has_unread_caveat
            && let Some(reason) = self.tree.unread()
        {
            let text =
                format!("{reason}: child processes, or threads that outlive the main one, may not be seen");
            self.state.has_unread_caveat = true;
            self.add_caveat("polling", "processes", text);
        }
        // While processes start and end, events are read again at the next instant.
        let has_changed = !self.state.departed.is_empty() || self.tree.pids().len() != process_count;
        let interval = if has_changed { Duration::ZERO } else { READ_EVENTS_EVERY };
        self.state.next.events_us = now_us + micros(interval);
        if !self.state.departed.is_empty() {
            // Their last figures and their marks were sent before they ended.
            self.state.is_handling_events = true;
            self.handle_ledger_results();
            self.handle_marks();
            self.state.is_handling_events = false;
        }
        for departed in std::mem::take(&mut self.state.departed) {
            self.record_end(departed, now_us);
        }
    }

    /// Reads the kernel's events, if it reports them. False if some were lost or cannot be read;
    /// searches make up for that in part.
    fn read_events(&mut self, now_us: u64) -> bool {
        let ProcessEvents::Connector(connector) = &self.process_events else { return true };
        let result = self.tree.read_events(connector, now_us, &mut self.state.departed);
        let Err(error) = result else { return true };
        self.state.searches_left = self.tree.searches_after_loss();
        if !std::mem::replace(&mut self.state.has_loss_caveat, true) {
            let cause = if error.raw_os_error() == Some(Errno::ENOBUFS as i32) {
                "the kernel dropped reports of processes, because too many came at once".to_owned()
            } else {
                format!("the kernel's reports of processes cannot be read ({error})")
            };
            let text = format!("{cause}: those that started and ended meanwhile are not seen");
            self.add_caveat("polling", "processes", text);
        }
        false
    }

    /// Number of instants in which each process has one turn.
    fn turns(&self) -> usize {
        self.tree.pids().len().div_ceil(MAX_FULL_RATE_PROCESSES).max(1)
    }

    /// Samples every process whose turn it is.
    fn sample_all(&mut self, now_us: u64) {
        let passed_seconds = now_us.saturating_sub(self.state.sampled_us) as f64 / 1e6;
        let allowed_openings = self.state.allowed_openings + passed_seconds * OPENINGS_PER_SECOND;
        (self.state.allowed_openings, self.state.sampled_us) = (allowed_openings.min(MAX_OPENINGS), now_us);
        let stride = self.turns();
        let turn = usize::try_from(self.grid.last_taken()).unwrap_or(0) % stride;
        let mut index = 0;
        // A process found to be gone is removed from the list, and the next one takes its index.
        while let Some(&pid) = self.tree.pids().get(index) {
            let has_turn = index == 0 || index % stride == turn;
            if !has_turn || self.sample(pid, now_us) {
                index += 1;
            }
        }
        let rss_bytes = self.tree.rss_kib() * 1024;
        self.state.progress.rss_bytes = rss_bytes;
        self.state.progress.peak_bytes = self.state.progress.peak_bytes.max(rss_bytes);
    }

    /// Samples one process; false if it is no longer followed.
    fn sample(&mut self, pid: i32, now_us: u64) -> bool {
        let Some(member) = self.tree.get_mut(pid) else { return false };
        if member.sampler.is_none() {
            if let Some(closed_us) = member.files_closed_us {
                let is_overdue = now_us.saturating_sub(closed_us) > END_EVENT_TIMEOUT_US;
                let was_open = member.number.is_some();
                let is_open = if was_open { self.reopen_if_alive(pid) } else { is_overdue && self.open(pid) };
                if is_open || !is_overdue {
                    return true;
                }
                return self.is_refused(pid) && self.handle_unreadable(pid, now_us)
                    || self.forget(pid, now_us);
            }
            if self.state.allowed_openings < 1.0 {
                return true;
            }
            self.state.allowed_openings -= 1.0;
            if !self.open(pid) {
                return self.handle_unreadable(pid, now_us);
            }
        }
        let Some(member) = self.tree.get_mut(pid) else { return false };
        let Some(sampler) = &mut member.sampler else { return true };
        match sampler.sample(self.units) {
            Ok(sample) => {
                member.stopped_since_us =
                    if sampler.is_traced_stop() { member.stopped_since_us.or(Some(now_us)) } else { None };
                member.add(now_us, sample);
                member.threads.store(sample.threads, std::sync::atomic::Ordering::Relaxed);
                if member.is_new_program {
                    self.record_exec(pid, now_us);
                }
                self.consider_ledgers(pid, now_us);
                true
            }
            Err(_) => self.reopen_by_thread(pid) || self.handle_unreadable(pid, now_us),
        }
    }

    /// Records the program that a process runs since an exec.
    fn record_exec(&mut self, pid: i32, now_us: u64) {
        let Some(member) = self.tree.get_mut(pid) else { return };
        member.is_new_program = false;
        let (Some(process), Ok(opened)) = (member.number, Process::open(pid)) else { return };
        member.program = Program::of(&opened);
        let command = opened.command_line().unwrap_or_default();
        let exec = Exec { process, at_us: now_us, command, executable: opened.executable() };
        self.push(&Record::Exec(exec));
        self.reconsider_watch(pid);
    }

    /// Writes the last samples and the end of a process that is no longer followed.
    fn record_end(&mut self, departed: Departed, now_us: u64) {
        let Departed { pid, wait_status, mut member } = departed;
        self.state.ledgers.watched_count -= usize::from(member.watch.is_counted);
        self.state.max_high_water_kib = self.state.max_high_water_kib.max(member.best_high_water_kib());
        if pid == self.root {
            self.root_status = self.root_status.or(wait_status);
            self.state.root_high_water_kib = member.best_high_water_kib();
        }
        let Some(process) = member.number else {
            if now_us.saturating_sub(member.first_seen_us) <= BRIEF_LIFE_US {
                self.state.brief_processes += 1;
            } else {
                self.state.unsampled_processes += 1;
            }
            return;
        };
        self.push_runs(process, &member.take_runs());
        let end = ProcessEnd {
            process,
            at_us: now_us,
            status: wait_status.and_then(ending::exit_status),
            signal: wait_status.and_then(ending_signal),
            high_water_kib: member.best_high_water_kib(),
            high_water_is_final: member.final_high_water_kib.is_some(),
        };
        self.push(&Record::ProcessEnd(end));
    }

    /// Writes runs of a process.
    fn push_runs(&mut self, process: u32, runs: &[Run]) {
        if !runs.is_empty() {
            self.push(&Record::Samples(Box::new(Block::new(process, runs))));
        }
    }

    /// Does what is due: sends an answer, writes, requests regular ledgers, reports progress.
    fn run_due_tasks(&mut self, now_us: u64) {
        self.send_due_answer();
        if now_us >= self.state.next.flush_us {
            self.state.next.flush_us = now_us + micros(FLUSH_EVERY);
            self.flush();
        }
        if self.plan.every.is_some() && now_us >= self.state.next.regular_ledgers_us {
            self.request_regular_ledgers(now_us);
        }
        if now_us >= self.state.next.progress_us {
            self.state.next.progress_us = now_us + micros(PROGRESS_EVERY);
            (self.options.progress)(&self.progress());
        }
    }

    /// Writes everything known so far to the file.
    fn flush(&mut self) {
        for &pid in &self.tree.pids().to_vec() {
            if let Some(member) = self.tree.get_mut(pid)
                && let Some(process) = member.number
            {
                let runs = member.take_runs();
                self.push_runs(process, &runs);
            }
        }
        self.write_group();
        let at_us = self.clock.now_us();
        self.push(&Record::Heartbeat(Heartbeat {
            at_us,
            samples: self.grid.taken,
            missed: self.grid.missed,
        }));
        self.sink.flush(at_us);
        if let Some(warning) = self.sink.warning.take() {
            (self.options.warn)(&warning);
        }
    }

    /// Writes the samples of the group that were not written yet.
    fn write_group(&mut self) {
        let records = self.group.as_mut().map(GroupRecorder::take_records).unwrap_or_default();
        records.iter().for_each(|record| self.push(record));
    }

    /// Takes the last sample of the group, when the command has ended by `signal` or the recording
    /// ends.
    pub fn end_group(&mut self, signal: Option<i32>) {
        let now_us = self.clock.now_us();
        if let Some(group) = &mut self.group {
            group.end(now_us, signal);
        }
    }

    /// The progress up to now.
    fn progress(&self) -> Progress {
        Progress {
            elapsed: Duration::from_micros(self.clock.now_us()),
            processes: self.tree.pids().len(),
            samples: self.grid.taken,
            missed: self.grid.missed,
            ..self.state.progress
        }
    }

    /// Handles finished ledgers, and answers programs that waited for them.
    fn handle_ledger_results(&mut self) {
        for result in self.ledgers.take_results() {
            self.handle_ledger_result(result);
        }
        self.answer_if_ledgers_done();
    }
}

/// Raises the limit on open files: each followed process takes three descriptors. Returns the
/// previous limits.
pub(super) fn raise_open_files() -> Option<Rlimit> {
    // If this is refused, fewer processes can be followed at once.
    strandline_sys::spawn::Resource::OpenFiles.raise().ok()
}
