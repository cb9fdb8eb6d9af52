//! The main loop of the recorder: takes samples at their instants, and handles events in between.

mod ending;
mod groups;
mod moments;
mod signals;

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use nix::sys::signalfd::SignalFd;
use strandline_inspect::Caveat;
use strandline_inspect::environment::Environment;
use strandline_process::error::Error;
use strandline_process::procfs::Process;
use strandline_process::snapshot;
use strandline_recording::{
    Block, CaveatRecord, CommandUsage, Exec, Header, Heartbeat, Limit, ProcessEnd, ProcessStart, Record,
    SCHEMA,
};

use super::clock::{Clock, Grid};
use super::groups::GroupRecorder;
use super::ledgers::Ledgers;
use super::marks::Marks;
use super::plan::Plan;
use super::poller::{Poller, Source};
use super::sampler::{Sampler, Units};
use super::sink::Sink;
use super::tree::{Departed, Member, ProcessEvents, Program, SEARCH_EVERY, Tree};
use super::{Options, Progress, Recorded};

/// Interval at which samples are written to the file.
const FLUSH_EVERY: Duration = Duration::from_millis(500);
/// Maximum time of one round of the loop, which empties the kernel's queue of events.
const MAX_ROUND: Duration = Duration::from_millis(50);
/// If an instant is overdue by more than this, the user may have stopped the recorder: check for
/// the signal.
const PAUSE: Duration = Duration::from_millis(50);
/// Interval of checking for new processes while none come and go.
const LISTEN_EVERY: Duration = Duration::from_millis(4);
const PROGRESS_EVERY: Duration = Duration::from_millis(250);
/// Up to this many processes are sampled at every instant; of more, each gets its share.
const MAX_FULL_RATE_PROCESSES: usize = 16;
/// Maximum rate of opening files of new processes, per second: if there are more, processes that
/// live for only a few milliseconds are just counted.
const OPENINGS_PER_SECOND: f64 = 1000.0;
const MAX_OPENINGS: f64 = 256.0;
/// If the kernel reports ends, it does so within this many microseconds, or the event was lost.
const END_EVENT_TIMEOUT_US: u64 = 1_000_000;
/// Processes that live no longer than this are too brief to be sampled reliably.
const BRIEF_US: u64 = 10_000;
/// How long to wait for unfinished ledgers at the end.
const LAST_LEDGERS_TIMEOUT: Duration = Duration::from_secs(60);

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
    pub marks: Option<Marks>,
    /// The first process.
    pub root: i32,
    /// Whether signals to the recorder are for the command (`run`) or end the recording (`record`).
    pub forwards: bool,
    pub signals: SignalFd,
    pub poller: Poller,
    pub followed: ProcessEvents,
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

/// Counters and deadlines.
#[derive(Default)]
struct State {
    next_number: u32,
    openings: f64,
    last_us: u64,
    next_events_us: u64,
    /// Whether process events are being handled, which must not start again meanwhile.
    is_handling_events: bool,
    /// How long the user stopped the recorder.
    paused_us: u64,
    next_search_us: u64,
    next_flush_us: u64,
    next_progress_us: u64,
    next_every_us: u64,
    left: Vec<Departed>,
    moments: moments::Moments,
    progress: Progress,
}

pub(super) use signals::take_signals;

/// The parameters of a session.
pub(super) struct SessionParameters<'a> {
    pub options: &'a Options<'a>,
    pub clock: Clock,
    pub sink: Sink,
    pub ledgers: Ledgers,
    pub marks: Option<Marks>,
    pub root: i32,
    pub root_end: OwnedFd,
    /// Number of its threads, for its watcher.
    pub threads: Arc<AtomicU64>,
    /// Whether its end is watched for.
    pub is_watched: bool,
    pub forwards: bool,
    pub signals: SignalFd,
    pub followed: ProcessEvents,
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
    pub fn begin(beginning: SessionParameters<'a>) -> std::io::Result<Self> {
        let SessionParameters {
            options,
            clock,
            sink,
            ledgers,
            marks,
            root,
            root_end,
            forwards,
            signals,
            followed,
            threads,
            is_watched,
            ..
        } = beginning;
        let poller = Poller::new(root_end)?;
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
            forwards,
            signals,
            poller,
            followed,
            tree: Tree::default(),
            units: Units::read(),
            grid: Grid::new(options.interval),
            group: GroupRecorder::new(root, beginning.group.as_deref()),
            root_status: None,
            root_usage: None,
            state: State { openings: MAX_OPENINGS, ..State::default() },
        };
        session.sink.begin();
        let header = Header {
            schema: SCHEMA.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            environment: beginning.environment,
            command: beginning.command,
            attached: !forwards,
            interval_us: u64::try_from(options.interval.as_micros()).unwrap_or(u64::MAX),
            ledgers: session.plan.text(),
            followed_by: session.followed.name().to_owned(),
            limits: beginning.limits,
        };
        session.push(&Record::Header(Box::new(header)));
        if let ProcessEvents::Polling(why) = &session.followed {
            let text = format!("{why}: processes that live for less than {SEARCH_EVERY:?} are not seen");
            session.caution("polling", "processes", text);
        }
        let first = session.tree.add(root, None, 0);
        (first.threads, first.is_watched) = (threads, is_watched);
        session.open(root);
        Ok(session)
    }

    pub(super) fn push(&mut self, record: &Record) {
        self.sink.push(record, self.clock.now_us());
    }

    pub(super) fn caution(&mut self, code: &str, place: impl Into<String>, text: impl Into<String>) {
        let caveat = Caveat::new(code, place, None, text);
        self.state.progress.caveats += 1;
        self.push(&Record::Caveat(CaveatRecord { at_us: self.clock.now_us(), caveat }));
    }

    /// Samples, handles events, answers marks and writes, until the recording is over.
    pub fn work(&mut self) -> StopReason {
        let now = self.clock.now_us();
        self.handle_events(now);
        if let Some(root) = self.tree.get_mut(self.root) {
            // The exec that started it is not reported; another one after its command line was read
            // is.
            let program = Process::open(self.root).ok().and_then(|process| Program::of(&process));
            root.is_new_program = root.program.is_some() && program.is_some() && program != root.program;
        }
        self.grid.begin(now);
        loop {
            let now = self.clock.now_us();
            self.handle_events(now);
            if self.grid.is_late(now, PAUSE) && self.take_signals() && !self.forwards {
                return StopReason::Interrupted;
            }
            if self.grid.take(now) {
                self.sample_all(now);
                self.sample_group(now);
            }
            self.periodic_work(now);
            if let Some(why) = self.wait() {
                return why;
            }
        }
    }

    /// Sleeps until an instant is due or there are events, which it handles. Returns why the
    /// recording is over, if it is.
    fn wait(&mut self) -> Option<StopReason> {
        let pause = self.grid.wait(self.clock.now_us()).min(self.housekeeping());
        let ready = self.poller.wait(pause);
        if ready.of(Source::End) {
            return Some(StopReason::Ended);
        }
        if ready.of(Source::Signals) && self.take_signals() && !self.forwards {
            return Some(StopReason::Interrupted);
        }
        if ready.of(Source::Ledgers) {
            self.take_ledgers();
        }
        if ready.of(Source::Marks) {
            self.take_marks();
        }
        None
    }

    fn housekeeping(&self) -> Duration {
        match self.followed {
            ProcessEvents::Connector(_) => MAX_ROUND,
            ProcessEvents::Polling(_) => SEARCH_EVERY,
        }
    }

    /// Handles forks, execs and ends.
    fn handle_events(&mut self, now: u64) {
        if now < self.state.next_events_us || self.state.is_handling_events {
            return;
        }
        let mut left = std::mem::take(&mut self.state.left);
        let known = self.tree.pids().len();
        let searches = match &self.followed {
            ProcessEvents::Connector(connector) => !self.tree.hear(connector, now, &mut left),
            ProcessEvents::Polling(_) => now >= self.state.next_search_us,
        };
        if searches {
            self.tree.search(now);
            self.tree.find_new_programs(now);
            self.state.next_search_us = now + SEARCH_EVERY.as_micros() as u64;
        }
        // While processes come and go, the next check is at the next instant.
        let is_lively = !left.is_empty() || self.tree.pids().len() != known;
        let pause = if is_lively { Duration::ZERO } else { LISTEN_EVERY };
        self.state.next_events_us = now + pause.as_micros() as u64;
        self.state.left = left;
        if !self.state.left.is_empty() {
            // Their last figures and their marks were sent before they ended.
            self.state.is_handling_events = true;
            self.take_ledgers();
            self.take_marks();
            self.state.is_handling_events = false;
        }
        for one in std::mem::take(&mut self.state.left) {
            self.leave(one, now);
        }
    }

    /// Samples every process whose turn it is.
    fn sample_all(&mut self, now: u64) {
        let passed = now.saturating_sub(self.state.last_us) as f64 / 1e6;
        self.state.openings = (self.state.openings + passed * OPENINGS_PER_SECOND).min(MAX_OPENINGS);
        self.state.last_us = now;
        let stride = self.tree.pids().len().div_ceil(MAX_FULL_RATE_PROCESSES).max(1);
        let turn = usize::try_from(self.grid.last()).unwrap_or(0) % stride;
        let mut index = 0;
        // A process found to be gone is removed from the list, and the next one takes its index.
        while let Some(&pid) = self.tree.pids().get(index) {
            let has_turn = index == 0 || index % stride == turn;
            if !has_turn || self.sample(pid, now) {
                index += 1;
            }
        }
        let rss_bytes = self.tree.rss_kib() * 1024;
        self.state.progress.rss_bytes = rss_bytes;
        self.state.progress.peak_bytes = self.state.progress.peak_bytes.max(rss_bytes);
    }

    /// Samples one process; false if it is no longer followed.
    fn sample(&mut self, pid: i32, now: u64) -> bool {
        let Some(member) = self.tree.get_mut(pid) else { return false };
        if member.sampler.is_none() {
            if member.files_closed {
                if self.open_again(pid) {
                    return true;
                }
                let Some(member) = self.tree.get_mut(pid) else { return false };
                let told_long_ago = now.saturating_sub(member.files_closed_us) > END_EVENT_TIMEOUT_US;
                return !told_long_ago || self.forget(pid, now);
            }
            if self.state.openings < 1.0 {
                return true;
            }
            self.state.openings -= 1.0;
            if !self.open(pid) {
                return self.lose(pid, now);
            }
        }
        let Some(member) = self.tree.get_mut(pid) else { return false };
        let Some(sampler) = &mut member.sampler else { return true };
        match sampler.sample(self.units) {
            Ok(sample) => {
                member.stands_since_us =
                    if sampler.is_traced_stop() { member.stands_since_us.or(Some(now)) } else { None };
                member.add(now, sample);
                member.threads.store(sample.threads, std::sync::atomic::Ordering::Relaxed);
                if member.is_new_program {
                    self.name_program(pid, now);
                }
                self.consider(pid, now);
                true
            }
            Err(_) => self.reopen(pid) || self.lose(pid, now),
        }
    }

    /// Handles a process that cannot be sampled because it has ended. If the kernel reports ends,
    /// waits for that report.
    fn lose(&mut self, pid: i32, now: u64) -> bool {
        if matches!(self.followed, ProcessEvents::Connector(_)) || pid == self.root {
            if let Some(member) = self.tree.get_mut(pid) {
                member.close(now);
            }
            return true;
        }
        self.forget(pid, now)
    }

    /// Stops following a process whose end was not reported. Returns false: it is no longer
    /// followed.
    fn forget(&mut self, pid: i32, now: u64) -> bool {
        if let Some(left) = self.tree.remove(pid, None) {
            self.leave(left, now);
        }
        false
    }

    /// Opens the files of a process and gives it its number; false if it is gone.
    fn open(&mut self, pid: i32) -> bool {
        let Ok(process) = Process::open(pid) else { return false };
        if snapshot::is_snapshot(&process) {
            // A snapshot, our own or of another strandline: it has no memory or history of its own.
            self.tree.remove(pid, None);
            return false;
        }
        let Ok(sampler) = Sampler::open(&process) else { return false };
        let Some(member) = self.tree.get_mut(pid) else { return false };
        member.sampler = Some(sampler);
        // Read before the command line, so that an exec in between is noticed later.
        member.program = Program::of(&process);
        member.is_new_program = false;
        let number = self.state.next_number;
        member.number = Some(number);
        let start = ProcessStart {
            process: number,
            pid,
            parent: member.parent.or_else(|| process.stat().ok()?.parent),
            at_us: member.first_seen_us,
            command: process.command_line().unwrap_or_default(),
            executable: process.executable(),
        };
        self.state.next_number += 1;
        self.push(&Record::Process(start));
        true
    }

    /// Records which program a process runs now.
    fn name_program(&mut self, pid: i32, now: u64) {
        let Some(member) = self.tree.get_mut(pid) else { return };
        member.is_new_program = false;
        let (Some(process), Ok(opened)) = (member.number, Process::open(pid)) else { return };
        member.program = Program::of(&opened);
        let command = opened.command_line().unwrap_or_default();
        let exec = Exec { process, at_us: now, command, executable: opened.executable() };
        self.push(&Record::Exec(exec));
        self.reconsider_watch(pid);
    }

    /// Writes what is left of a process that is no longer followed.
    fn leave(&mut self, left: Departed, now: u64) {
        let Departed { pid, wait_status, mut member } = left;
        if pid == self.root {
            self.root_status = self.root_status.or(wait_status);
            self.state.moments.root_left = Some((member.final_kib.or(member.high_water_kib()), now));
        }
        let Some(process) = member.number else {
            if now.saturating_sub(member.first_seen_us) <= BRIEF_US {
                self.state.moments.brief_processes += 1;
            } else {
                self.state.moments.unsampled_processes += 1;
            }
            return;
        };
        self.write_runs(process, &mut member);
        let final_kib = member.final_kib;
        let end = ProcessEnd {
            process,
            at_us: now,
            status: wait_status.and_then(exit_status),
            signal: wait_status.and_then(ending_signal),
            high_water_kib: final_kib.or(member.high_water_kib()),
            high_water_is_final: final_kib.is_some(),
        };
        self.push(&Record::ProcessEnd(end));
    }

    fn write_runs(&mut self, process: u32, member: &mut Member) {
        let runs = member.take_runs();
        if !runs.is_empty() {
            self.push(&Record::Samples(Box::new(Block::new(process, &runs))));
        }
    }

    /// Periodic work: flushing, progress, ledgers that are due.
    fn periodic_work(&mut self, now: u64) {
        self.poll_answers();
        if now >= self.state.next_flush_us {
            self.state.next_flush_us = now + FLUSH_EVERY.as_micros() as u64;
            self.flush();
        }
        if self.plan.every.is_some() && now >= self.state.next_every_us {
            self.take_regular_ledgers(now);
        }
        if now >= self.state.next_progress_us {
            self.state.next_progress_us = now + PROGRESS_EVERY.as_micros() as u64;
            (self.options.progress)(&self.progress());
        }
    }

    /// Writes everything known so far to the file.
    fn flush(&mut self) {
        let mut blocks = Vec::new();
        for &pid in &self.tree.pids().to_vec() {
            if let Some(member) = self.tree.get_mut(pid)
                && let Some(process) = member.number
            {
                let runs = member.take_runs();
                if !runs.is_empty() {
                    blocks.push(Record::Samples(Box::new(Block::new(process, &runs))));
                }
            }
        }
        blocks.iter().for_each(|block| self.push(block));
        self.write_group();
        let at_us = self.clock.now_us();
        self.push(&Record::Heartbeat(Heartbeat {
            at_us,
            samples: self.grid.taken,
            missed: self.grid.missed,
        }));
        self.sink.flush(at_us);
        if let Some(ready) = self.sink.warning.take() {
            (self.options.warn)(&ready);
        }
    }

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
    fn take_ledgers(&mut self) {
        for made in self.ledgers.take() {
            self.take_made(made);
        }
        self.answer_if_done();
    }
}

/// The exit status in a wait status; `None` if a signal ended the process.
pub(super) fn exit_status(wait_status: i32) -> Option<i32> {
    (wait_status & 0x7f == 0).then_some(wait_status >> 8 & 0xff)
}

/// The signal in a wait status; `None` if no signal ended the process.
pub(super) fn ending_signal(wait_status: i32) -> Option<i32> {
    Some(wait_status & 0x7f).filter(|&signal| signal != 0)
}

/// Records process `pid` and its descendants until it ends or the recorder must stop.
///
/// # Errors
/// One line with the reason.
pub fn record(pid: i32, options: &Options<'_>) -> Result<Recorded, String> {
    let process = Process::open(pid).map_err(|error| error.to_string())?;
    match strandline_process::target::admission::check(&process) {
        // A tracer only prevents ledgers.
        Ok(_) | Err(Error::Traced { .. }) => {}
        Err(error) => return Err(error.to_string()),
    }
    let root_end = strandline_sys::process::open_pidfd(pid).map_err(|error| {
        format!("process {pid} cannot be waited for ({error}); Linux 5.3 or later is needed")
    })?;
    let (signals, _) = take_signals()?;
    raise_open_files();
    let sink = Sink::create(&options.file)?;
    let environment = Environment::read();
    let clock = Clock::start();
    let ledgers = Ledgers::start(clock, &environment, options.looks)
        .map_err(|error| format!("no thread for ledgers: {error}"))?;
    Ledgers::prepare_to_end_watches().map_err(|error| format!("no signal for ledgers: {error}"))?;
    let mut session = Session::begin(SessionParameters {
        options,
        clock,
        sink,
        ledgers,
        marks: None,
        root: pid,
        root_end,
        threads: Arc::new(AtomicU64::new(1)),
        is_watched: false,
        forwards: false,
        signals,
        followed: ProcessEvents::best(),
        environment,
        limits: Vec::new(),
        group: None,
        command: process.command_line().unwrap_or_default(),
    })
    .map_err(|error| format!("cannot record: {error}"))?;
    session.tree.search(0);
    session.begin_ledgers();
    let why = session.work();
    Ok(session.finish(why, None, None))
}

/// Raises the limit on open files: each followed process takes three descriptors. Returns the
/// previous limits.
pub(super) fn raise_open_files() -> Option<(u64, u64)> {
    use strandline_sys::spawn::Resource::OpenFiles;
    let (soft, hard) = OpenFiles.get().ok()?;
    // If this is refused, fewer processes can be followed at once.
    drop(OpenFiles.set(hard, hard));
    Some((soft, hard))
}
