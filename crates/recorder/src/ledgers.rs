//! Takes ledgers on a separate thread, one after another, so that the sampler misses no sample.
//! Only one thread can trace a process, so the thread that watches a process ([`super::watch`])
//! takes its ledgers too.

use std::collections::HashMap;
use std::os::unix::net::UnixStream;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::eventfd::{EfdFlags, EventFd};
use strandline_inspect::environment::Environment;
use strandline_inspect::explain::{self, Options};
use strandline_inspect::facts::Explanation;
use strandline_process::error::Error;
use strandline_process::target::exit_watch::{self, Continued};
use strandline_process::target::hold;
use strandline_recording::{Ledger, Moment, Sample};
use strandline_sys::watchdog::Watchdog;

use super::LedgerSettings;
use super::clock::{Clock, micros};
use super::tree_pss::tree_pss_bytes;
use super::watch::{EarlierWatch, NotBegun, PAUSED_AT_END, TakenLedger, Watch};

/// A requested ledger.
#[derive(Clone, Debug)]
pub struct Request {
    /// The process's number in the recording.
    pub process: u32,
    /// Its process id.
    pub pid: i32,
    /// Reason for the ledger.
    pub moment: Moment,
    /// The mark's name; `None` at other moments.
    pub mark: Option<String>,
    /// Process ids of the tree, for its proportional set size; empty if they are too many, or at
    /// the end of a process.
    pub tree_pids: Vec<i32>,
}

/// A requested watch.
#[derive(Debug)]
pub struct WatchRequest {
    /// The process's number in the recording.
    pub process: u32,
    /// Number of its threads, as last sampled.
    pub threads: Arc<AtomicU64>,
}

/// Result of a request.
#[derive(Debug)]
pub enum LedgerResult {
    /// The ledger.
    Ledger(Box<Ledger>),
    /// No ledger.
    Failed {
        request: Request,
        reason: String,
        /// How long the process was stopped for it.
        stopped_us: u64,
    },
    /// No ledger, because the process had ended.
    ProcessEnded(Request),
    /// Last figures of a process, read at its end.
    Final {
        /// Its number in the recording.
        process: u32,
        sample: Sample,
        /// VmHWM.
        high_water_kib: Option<u64>,
    },
    /// The end of a process cannot be watched.
    NotWatched {
        /// Its number in the recording.
        process: u32,
        /// Why, as a clause.
        reason: String,
    },
}

/// A job for the thread of [`Ledgers`]; see the methods with these names.
#[derive(Debug)]
enum Job {
    TakeLedger(Request),
    Watch { pid: i32, request: WatchRequest },
    Unwatch { pid: i32 },
    WatchFirst { gate: UnixStream, request: WatchRequest },
}

/// The thread that takes ledgers, and the watching threads that it starts.
#[derive(Debug)]
pub struct Ledgers {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    results: Receiver<LedgerResult>,
    /// Readable when there are results.
    results_event: Arc<EventFd>,
    watches: Watches,
    /// Number of requested ledgers without a result yet, except those at ends.
    unfinished_count: usize,
}

/// Shared by the threads that begin and pause watches.
type Watches = Arc<Mutex<WatchTable>>;

/// The watched processes.
#[derive(Debug, Default)]
struct WatchTable {
    by_pid: HashMap<i32, Arc<WatchedProcess>>,
    /// Whether no watch may begin for now.
    is_paused: bool,
    guard: Guard,
    /// Started for the first watch, if `guard` requires it.
    watchdog: Option<Watchdog>,
}

/// Whether a watchdog kills this process if it is stopped while it watches others: their signals
/// and ends would wait for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Guard {
    /// Yes: the watched process was attached to, and continues without this one.
    Watchdog,
    /// No: the signal that stops this process usually stops its command too, and its caller waits
    /// for the end of both.
    #[default]
    None,
}

impl WatchTable {
    /// Arms the watchdog, or disarms it if nothing is watched. Without a watchdog, if it cannot be
    /// started, watching continues.
    fn set_watchdog(&mut self, is_watching: bool) {
        if is_watching && self.watchdog.is_none() && self.guard == Guard::Watchdog {
            self.watchdog = Watchdog::start().ok();
        }
        match &self.watchdog {
            Some(watchdog) if is_watching => watchdog.arm(Duration::MAX),
            Some(watchdog) => watchdog.disarm(),
            None => {}
        }
    }

    /// Removes the watches that have ended.
    fn forget_ended(&mut self) {
        self.by_pid.retain(|_, watched| watched.may_be_active());
        let is_watching = !self.is_paused && !self.by_pid.is_empty();
        self.set_watchdog(is_watching);
    }
}

/// Shared by all threads.
#[derive(Clone, Debug)]
pub(super) struct Shared {
    results: Sender<LedgerResult>,
    results_event: Arc<EventFd>,
    pub clock: Clock,
    environment: Arc<Environment>,
    settings: LedgerSettings,
}

impl Shared {
    /// Sends a result to the recorder.
    pub fn send(&self, result: LedgerResult) {
        // Fails only if the recorder has ended.
        drop(self.results.send(result));
        let _ = self.results_event.write(1);
    }
}

impl Ledgers {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the kernel has no descriptor or thread left.
    pub fn start(
        clock: Clock,
        environment: &Environment,
        settings: LedgerSettings,
        guard: Guard,
    ) -> std::io::Result<Self> {
        let results_event = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
        let (jobs, received_jobs) = channel();
        let (result_sender, results) = channel();
        let environment = Arc::new(environment.clone());
        let shared = Shared {
            results: result_sender,
            results_event: Arc::clone(&results_event),
            clock,
            environment,
            settings,
        };
        let watches: Watches = Arc::new(Mutex::new(WatchTable { guard, ..WatchTable::default() }));
        let thread_watches = Arc::clone(&watches);
        let thread = std::thread::Builder::new().name("ledgers".into()).spawn(move || {
            while let Ok(job) = received_jobs.recv() {
                run_job(job, &thread_watches, &shared);
            }
            let watches: Vec<_> = lock(&thread_watches).by_pid.values().cloned().collect();
            watches.iter().for_each(|watched| watched.pause());
        })?;
        Ok(Self {
            jobs: Some(jobs),
            thread: Some(thread),
            results,
            results_event,
            watches,
            unfinished_count: 0,
        })
    }

    /// Prepares the signal that wakes watching threads. Call it before anything that ends a watch,
    /// and after a command was started: a signal that the user ignores stays ignored in the command
    /// only if it was not caught before.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn prepare_to_end_watches() -> std::io::Result<()> {
        strandline_sys::signal::prepare_to_wake()
    }

    /// Runs `action` while no process is held and all watches are paused.
    pub fn while_nothing_is_held<T>(&self, action: impl FnOnce() -> T) -> T {
        let watched = {
            let mut table = lock(&self.watches);
            table.is_paused = true;
            table.by_pid.values().cloned().collect::<Vec<_>>()
        };
        watched.iter().for_each(|watched| watched.pause());
        lock(&self.watches).set_watchdog(false);
        let output = hold::while_nothing_is_held(action);
        // Includes the watches that were requested meanwhile.
        let watched = {
            let mut table = lock(&self.watches);
            table.is_paused = false;
            table.forget_ended();
            table.by_pid.values().cloned().collect::<Vec<_>>()
        };
        watched.iter().for_each(|watched| watched.resume());
        output
    }

    /// Ends the thread and all watches, unless a ledger is under way.
    pub fn finish(&mut self) {
        self.jobs = None;
        // An unfinished ledger is abandoned: the kernel releases what it holds when this process
        // ends.
        if let Some(thread) = self.thread.take().filter(|_| self.unfinished_count == 0) {
            // A thread that panicked has released everything.
            drop(thread.join());
        }
    }

    /// Gives the thread a job; false if it has ended.
    fn send(&self, job: Job) -> bool {
        self.jobs.as_ref().is_some_and(|jobs| jobs.send(job).is_ok())
    }

    /// Readable when there are results.
    pub fn descriptor(&self) -> &EventFd {
        &self.results_event
    }

    /// Requests a ledger. The result is [`LedgerResult::Ledger`], [`LedgerResult::Failed`] or
    /// [`LedgerResult::ProcessEnded`].
    pub fn request(&mut self, request: Request) {
        self.unfinished_count += usize::from(self.send(Job::TakeLedger(request)));
    }

    /// Number of requested ledgers without a result yet, except those at ends.
    pub fn unfinished_count(&self) -> usize {
        self.unfinished_count
    }

    /// Whether the watch of a process has not ended: its result may be missing.
    pub fn is_watching(&self, pid: i32) -> bool {
        let watched = lock(&self.watches).by_pid.get(&pid).cloned();
        watched.is_some_and(|watched| watched.may_be_active())
    }

    /// Watches for the end of a process.
    pub fn watch(&self, pid: i32, request: WatchRequest) {
        self.send(Job::Watch { pid, request });
    }

    /// Stops watching a process.
    pub fn unwatch(&self, pid: i32) {
        self.send(Job::Unwatch { pid });
    }

    /// Watches a process that is about to start: it writes its id to the other end of `gate`, and
    /// may continue once the watch has begun.
    pub fn watch_first(&self, gate: UnixStream, request: WatchRequest) {
        self.send(Job::WatchFirst { gate, request });
    }

    /// Results since the last call.
    pub fn take_results(&mut self) -> Vec<LedgerResult> {
        let _ = self.results_event.read();
        lock(&self.watches).forget_ended();
        let results: Vec<LedgerResult> = self.results.try_iter().collect();
        let was_requested = |result: &&LedgerResult| match result {
            LedgerResult::Ledger(ledger) => ledger.moment != Moment::Exit,
            LedgerResult::Failed { request, .. } | LedgerResult::ProcessEnded(request) => {
                request.moment != Moment::Exit
            }
            _ => false,
        };
        self.unfinished_count =
            self.unfinished_count.saturating_sub(results.iter().filter(was_requested).count());
        results
    }
}

fn lock(watches: &Watches) -> MutexGuard<'_, WatchTable> {
    watches.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a job, on the thread of [`Ledgers`].
fn run_job(job: Job, watches: &Watches, shared: &Shared) {
    let begin_watch = |pid, request| {
        let mut table = lock(watches);
        let is_watching = !table.is_paused;
        table.set_watchdog(is_watching);
        let watched = WatchedProcess::begin(pid, request, shared, table.is_paused);
        table.by_pid.insert(pid, watched);
    };
    match job {
        Job::TakeLedger(request) => {
            let watched = lock(watches).by_pid.get(&request.pid).cloned();
            shared.send(match watched {
                Some(watched) => watched.take_ledger(request),
                None => take_ledger(request, CallingThread::Other, shared),
            });
        }
        Job::Watch { pid, request } => begin_watch(pid, request),
        Job::Unwatch { pid } => {
            // It stays in the table until the process is not traced any more, so that a pause of
            // all watches waits for it.
            let watched = lock(watches).by_pid.get(&pid).cloned();
            watched.iter().for_each(|watched| watched.pause());
            lock(watches).by_pid.remove(&pid);
        }
        Job::WatchFirst { gate, request } => {
            if let Some(pid) = strandline_sys::spawn::Gate::wait_for_child(&gate) {
                begin_watch(pid, request);
            }
            strandline_sys::spawn::Gate::release(&gate);
        }
    }
    lock(watches).forget_ended();
}

/// Which thread takes a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallingThread {
    /// The one that watches the process, and so traces it.
    Watcher,
    Other,
}

/// Takes one ledger.
pub(super) fn take_ledger(request: Request, calling_thread: CallingThread, shared: &Shared) -> LedgerResult {
    let at_us = shared.clock.now_us();
    let held_time_before = hold::held_time();
    let LedgerSettings { max_stop, snapshot, quiet_for } = shared.settings;
    let quiet_for = if request.moment == Moment::Peak { Duration::ZERO } else { quiet_for };
    let is_watched = calling_thread == CallingThread::Watcher;
    let options = Options { max_stop, snapshot, quiet_for, is_watched, ..ledger_options() };
    let result = without_panic(|| match explain::explain(request.pid, &options) {
        Ok(explanation) => Ok(Some(new_ledger(&request, at_us, explanation, shared))),
        Err(Error::Ended { .. } | Error::NoSuchProcess { .. } | Error::Zombie { .. }) => Ok(None),
        Err(error) => Err(error.to_string()),
    });
    match result {
        Ok(Some(ledger)) => LedgerResult::Ledger(Box::new(ledger)),
        Ok(None) => LedgerResult::ProcessEnded(request),
        Err(reason) => {
            let stopped_us = micros(hold::held_time().saturating_sub(held_time_before));
            LedgerResult::Failed { request, reason, stopped_us }
        }
    }
}

/// Returns the result of `read`; a panic of a reader is an error of this ledger only.
pub(super) fn without_panic<T>(read: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    std::panic::catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_| Err("a reader failed".to_owned()))
}

/// Options of every ledger.
pub(super) fn ledger_options() -> Options<'static> {
    Options { makes_page_map: true, ..Options::default() }
}

/// The record of a ledger.
pub(super) fn new_ledger(request: &Request, at_us: u64, explanation: Explanation, shared: &Shared) -> Ledger {
    let tree_pss_bytes = exit_watch::run_while_watching(|| {
        // Otherwise the recorder's memory would grow with each ledger.
        strandline_sys::own_memory::trim_heap();
        tree_pss_bytes(&request.tree_pids)
    });
    Ledger {
        process: request.process,
        pid: request.pid,
        at_us,
        moment: request.moment,
        mark: request.mark.clone(),
        tree_pss_bytes,
        environment: shared.environment.with_current_time(),
        explain: explanation,
    }
}

/// A process whose end is watched for.
#[derive(Debug)]
struct WatchedProcess {
    pid: i32,
    shared: Shared,
    /// Locked while a ledger is taken, or while the watch begins or ends.
    state: Mutex<WatchState>,
}

#[derive(Debug)]
enum WatchState {
    /// A thread watches it.
    Active(Watch),
    /// No thread watches it for now.
    Paused(WatchRequest),
    /// The process has ended, or cannot be watched.
    Ended,
}

impl WatchState {
    fn has_ended(&self) -> bool {
        match self {
            Self::Active(watch) => watch.has_ended(),
            Self::Paused(_) => false,
            Self::Ended => true,
        }
    }
}

impl WatchedProcess {
    /// Begins to watch, unless all watches are paused.
    fn begin(pid: i32, request: WatchRequest, shared: &Shared, is_paused: bool) -> Arc<Self> {
        let state = Mutex::new(WatchState::Paused(request));
        let watched = Self { pid, shared: shared.clone(), state };
        if !is_paused {
            watched.begin_in(&mut watched.lock_state(), EarlierWatch::None);
        }
        Arc::new(watched)
    }

    fn lock_state(&self) -> MutexGuard<'_, WatchState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether its watch has not ended; true also while its state is locked, and about to change.
    fn may_be_active(&self) -> bool {
        self.state.try_lock().map_or(true, |state| !state.has_ended())
    }

    /// Takes a ledger in the thread that watches the process.
    fn take_ledger(&self, request: Request) -> LedgerResult {
        let mut state = self.lock_state();
        let WatchState::Active(watch) = &*state else {
            // The state stays locked: a watch that began meanwhile would find the process traced.
            return take_ledger(request, CallingThread::Other, &self.shared);
        };
        let TakenLedger { result, continued } = watch.take_ledger(request);
        if continued == Continued::No {
            Self::pause_in(&mut state);
            self.begin_in(&mut state, EarlierWatch::Paused);
        }
        result
    }

    /// Ends the watch, after the ledger that is being taken.
    fn pause(&self) {
        Self::pause_in(&mut self.lock_state());
    }

    /// Begins the watch again, if it is paused.
    fn resume(&self) {
        self.begin_in(&mut self.lock_state(), EarlierWatch::Paused);
    }

    fn pause_in(state: &mut WatchState) {
        if let WatchState::Active(watch) = std::mem::replace(state, WatchState::Ended) {
            *state = watch.end().map_or(WatchState::Ended, WatchState::Paused);
        }
    }

    /// Begins the watch, if it is paused.
    fn begin_in(&self, state: &mut WatchState, earlier: EarlierWatch) {
        if let WatchState::Paused(request) = std::mem::replace(state, WatchState::Ended) {
            let process = request.process;
            let reason = match Watch::begin(self.pid, request, &self.shared, earlier) {
                Ok(watch) => {
                    *state = WatchState::Active(watch);
                    return;
                }
                Err(NotBegun::Ended) if earlier == EarlierWatch::None => return,
                Err(NotBegun::Ended) => PAUSED_AT_END.to_owned(),
                Err(NotBegun::Refused(reason)) => reason,
            };
            self.shared.send(LedgerResult::NotWatched { process, reason });
        }
    }
}
