//! Takes ledgers outside the sampler's thread, so that no sample is missed: one after another on a
//! separate thread. A watched process is traced, and only one thread can trace: the thread that
//! watches for its end takes all its ledgers.

use std::collections::HashMap;
use std::os::unix::net::UnixStream;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::eventfd::{EfdFlags, EventFd};
use strandline_inspect::environment::Environment;
use strandline_inspect::explain::{self, Ending, Options};
use strandline_inspect::facts::Explanation;
use strandline_process::error::Error;
use strandline_process::target::exit_watch::{self, Continued, ExitWatch, WatchEvent};
use strandline_process::target::hold;
use strandline_recording::{Ledger, Moment, Sample};

use super::LedgerSettings;
use super::clock::Clock;
use super::sampler::{Sampler, Units};
use super::tree_pss::tree_pss_bytes;

/// Stack of a watching thread, which also takes ledgers.
const STACK_BYTES: usize = 1 << 20;
/// Why a process has no ledger at its end if its watch was paused.
const PAUSED_AT_END: &str = "it ended while another ledger was taken";
/// Interval between wake-ups of a thread that is to end its watch.
const WAKE_INTERVAL: Duration = Duration::from_micros(100);

/// A requested ledger.
#[derive(Clone, Debug)]
pub struct Request {
    /// The process's number in the recording.
    pub process: u32,
    pub pid: i32,
    /// Reason for the ledger.
    pub moment: Moment,
    /// The mark's name.
    pub mark: Option<String>,
    /// Process ids of the tree, if it has several.
    pub tree: Vec<i32>,
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
    Ledger(Box<Ledger>),
    /// No ledger, and the reason.
    Failed(Request, String),
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
    /// The end of a process cannot be watched, and the reason.
    NotWatched(u32, String),
}

#[derive(Debug)]
enum Job {
    TakeLedger(Request),
    Watch(i32, WatchRequest),
    Unwatch(i32),
    WatchFirst(UnixStream, WatchRequest),
}

/// The threads that take ledgers.
#[derive(Debug)]
pub struct Ledgers {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    results: Receiver<LedgerResult>,
    /// Readable when there are results.
    wake: Arc<EventFd>,
    watches: Watches,
    /// Number of requested ledgers without a result yet, except those at ends.
    under_way: usize,
}

/// Shared by the threads that begin and pause watches.
type Watches = Arc<Mutex<WatchTable>>;

/// The watched processes.
#[derive(Debug, Default)]
struct WatchTable {
    /// By process id.
    all: HashMap<i32, Arc<Watched>>,
    /// Whether no watch may begin for now.
    is_paused: bool,
}

/// Shared by all threads.
#[derive(Clone, Debug)]
struct Shared {
    results: Sender<LedgerResult>,
    wake: Arc<EventFd>,
    clock: Clock,
    environment: Arc<Environment>,
    settings: LedgerSettings,
}

impl Shared {
    fn send(&self, result: LedgerResult) {
        // Fails only if the recorder has ended.
        drop(self.results.send(result));
        let _ = self.wake.write(1);
    }
}

impl Ledgers {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the kernel has no descriptor or thread left.
    pub fn start(clock: Clock, environment: &Environment, settings: LedgerSettings) -> std::io::Result<Self> {
        let wake = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
        let (jobs, received_jobs) = channel();
        let (result_sender, results) = channel();
        let environment = Arc::new(environment.clone());
        let shared = Shared { results: result_sender, wake: Arc::clone(&wake), clock, environment, settings };
        let watches = Watches::default();
        let thread_watches = Arc::clone(&watches);
        let thread = std::thread::Builder::new().name("ledgers".into()).spawn(move || {
            while let Ok(job) = received_jobs.recv() {
                do_job(job, &thread_watches, &shared);
            }
            let watches: Vec<_> = lock(&thread_watches).all.values().cloned().collect();
            watches.iter().for_each(|watched| watched.pause());
        })?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread), results, wake, watches, under_way: 0 })
    }

    /// Must be called before anything that ends a watch, and after a command was started: a signal
    /// that the user ignores stays ignored in the command only if it was not caught before.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn prepare_to_end_watches() -> std::io::Result<()> {
        strandline_sys::signal::prepare_to_wake()
    }

    /// Runs `work` while no process is held and all watches are paused.
    pub fn while_nothing_is_held<T>(&self, work: impl FnOnce() -> T) -> T {
        let set_paused = |is_paused| {
            let mut table = lock(&self.watches);
            table.is_paused = is_paused;
            table.all.values().cloned().collect::<Vec<_>>()
        };
        set_paused(true).iter().for_each(|watched| watched.pause());
        let output = hold::while_nothing_is_held(work);
        // Includes the watches that were requested meanwhile.
        set_paused(false).iter().for_each(|watched| watched.resume());
        output
    }

    /// Ends the thread and all watches.
    pub fn finish(&mut self) {
        self.jobs = None;
        // An unfinished ledger is abandoned: the kernel releases what it holds when this process
        // ends.
        if let Some(thread) = self.thread.take().filter(|_| self.under_way == 0) {
            // A thread that panicked has released everything.
            drop(thread.join());
        }
    }

    fn send(&self, job: Job) -> bool {
        self.jobs.as_ref().is_some_and(|jobs| jobs.send(job).is_ok())
    }

    /// Readable when there are results.
    pub fn descriptor(&self) -> &EventFd {
        &self.wake
    }

    /// Requests a ledger. The result is [`LedgerResult::Ledger`], [`LedgerResult::Failed`] or
    /// [`LedgerResult::ProcessEnded`].
    pub fn request(&mut self, request: Request) {
        self.under_way += usize::from(self.send(Job::TakeLedger(request)));
    }

    /// Number of requested ledgers without a result yet, except those at ends.
    pub fn under_way(&self) -> usize {
        self.under_way
    }

    /// Whether the watch of a process has not ended: its result may be missing.
    pub fn is_watching(&self, pid: i32) -> bool {
        let watched = lock(&self.watches).all.get(&pid).cloned();
        // A locked state is about to change.
        watched.is_some_and(|watched| watched.state.try_lock().map_or(true, |state| !state.has_ended()))
    }

    /// Watches for the end of a process.
    pub fn watch(&self, pid: i32, request: WatchRequest) {
        self.send(Job::Watch(pid, request));
    }

    /// Stops watching a process.
    pub fn unwatch(&self, pid: i32) {
        self.send(Job::Unwatch(pid));
    }

    /// Watches a process that is about to start: it writes its id to the other end of `gate`, and
    /// may continue once the watch has begun.
    pub fn watch_first(&self, gate: UnixStream, request: WatchRequest) {
        self.send(Job::WatchFirst(gate, request));
    }

    /// Results since the last call.
    pub fn take(&mut self) -> Vec<LedgerResult> {
        let _ = self.wake.read();
        let results: Vec<LedgerResult> = self.results.try_iter().collect();
        let was_requested = |result: &&LedgerResult| match result {
            LedgerResult::Ledger(ledger) => ledger.moment != Moment::Exit,
            LedgerResult::Failed(request, _) | LedgerResult::ProcessEnded(request) => {
                request.moment != Moment::Exit
            }
            _ => false,
        };
        self.under_way = self.under_way.saturating_sub(results.iter().filter(was_requested).count());
        results
    }
}

fn lock(watches: &Watches) -> MutexGuard<'_, WatchTable> {
    watches.lock().unwrap_or_else(PoisonError::into_inner)
}

fn do_job(job: Job, watches: &Watches, shared: &Shared) {
    lock(watches).all.retain(|_, watched| !watched.has_ended());
    let watch = |pid, request| {
        let mut table = lock(watches);
        let watched = Watched::begin(pid, request, shared, table.is_paused);
        table.all.insert(pid, watched);
    };
    match job {
        Job::TakeLedger(request) => {
            let watched = lock(watches).all.get(&request.pid).cloned();
            shared.send(match watched {
                Some(watched) => watched.take_ledger(request),
                None => take_ledger(request, false, shared),
            });
        }
        Job::Watch(pid, request) => watch(pid, request),
        Job::Unwatch(pid) => {
            let watched = lock(watches).all.remove(&pid);
            watched.iter().for_each(|watched| watched.pause());
        }
        Job::WatchFirst(gate, request) => {
            if let Some(pid) = strandline_sys::spawn::Gate::wait_for_child(&gate) {
                watch(pid, request);
            }
            strandline_sys::spawn::Gate::release(&gate);
        }
    }
}

/// Takes one ledger. `is_watched`: the calling thread watches the process.
fn take_ledger(request: Request, is_watched: bool, shared: &Shared) -> LedgerResult {
    let at_us = shared.clock.now_us();
    let LedgerSettings { max_stop, snapshot, quiet_for } = shared.settings;
    let quiet_for = if request.moment == Moment::Peak { Duration::ZERO } else { quiet_for };
    match explain::explain(
        request.pid,
        &Options { max_stop, snapshot, quiet_for, is_watched, ..ledger_options() },
    ) {
        Ok(explanation) => {
            let ledger = exit_watch::meanwhile(|| ledger(&request, at_us, explanation, shared));
            LedgerResult::Ledger(Box::new(ledger))
        }
        Err(Error::Ended { .. } | Error::NoSuchProcess { .. } | Error::Zombie { .. }) => {
            LedgerResult::ProcessEnded(request)
        }
        Err(error) => LedgerResult::Failed(request, error.to_string()),
    }
}

fn ledger_options() -> Options<'static> {
    Options { page_map: true, ..Options::default() }
}

fn ledger(request: &Request, at_us: u64, explain: Explanation, shared: &Shared) -> Ledger {
    // Otherwise the recorder's memory would grow with each ledger.
    strandline_sys::host::trim_heap();
    let tree_pss_bytes = tree_pss_bytes(&request.tree);
    Ledger {
        process: request.process,
        pid: request.pid,
        at_us,
        moment: request.moment,
        mark: request.mark.clone(),
        tree_pss_bytes,
        environment: shared.environment.again(),
        explain,
    }
}

/// A process whose end is watched for.
#[derive(Debug)]
struct Watched {
    pid: i32,
    shared: Shared,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    /// A thread watches it.
    Active(Watch),
    /// No thread watches it for now.
    Paused(WatchRequest),
    /// The process has ended, or cannot be watched.
    Ended,
}

impl State {
    fn has_ended(&self) -> bool {
        match self {
            Self::Active(watch) => watch.thread.is_finished(),
            Self::Paused(_) => false,
            Self::Ended => true,
        }
    }
}

impl Watched {
    fn begin(pid: i32, request: WatchRequest, shared: &Shared, is_paused: bool) -> Arc<Self> {
        let state = if is_paused {
            State::Paused(request)
        } else {
            Watch::begin(pid, request, shared, false).map_or(State::Ended, State::Active)
        };
        Arc::new(Self { pid, shared: shared.clone(), state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_ended(&self) -> bool {
        self.state().has_ended()
    }

    /// Takes a ledger in the thread that watches the process.
    fn take_ledger(&self, request: Request) -> LedgerResult {
        let mut state = self.state();
        let State::Active(watch) = &*state else {
            drop(state);
            return take_ledger(request, false, &self.shared);
        };
        let (result, continued) = watch.take_ledger(request);
        if continued == Continued::No {
            Self::pause_in(&mut state);
            self.resume_in(&mut state);
        }
        result
    }

    /// Ends the watch, after the ledger that is being taken.
    fn pause(&self) {
        Self::pause_in(&mut self.state());
    }

    /// Watches again.
    fn resume(&self) {
        self.resume_in(&mut self.state());
    }

    fn pause_in(state: &mut State) {
        if let State::Active(watch) = std::mem::replace(state, State::Ended) {
            *state = watch.end().map_or(State::Ended, State::Paused);
        }
    }

    fn resume_in(&self, state: &mut State) {
        if let State::Paused(request) = std::mem::replace(state, State::Ended) {
            let process = request.process;
            match Watch::begin(self.pid, request, &self.shared, true) {
                Some(watch) => *state = State::Active(watch),
                None => self.shared.send(LedgerResult::NotWatched(process, PAUSED_AT_END.to_owned())),
            }
        }
    }
}

/// What a watching thread must do besides watching.
#[derive(Debug, Default)]
struct Orders {
    must_end: AtomicBool,
    /// Whether it takes a ledger, at the end or before: it must not be woken meanwhile.
    is_busy: AtomicBool,
    ledger: Mutex<Option<Request>>,
}

impl Orders {
    fn ledger(&self) -> MutexGuard<'_, Option<Request>> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Result of an ordered ledger.
type TakenLedger = (LedgerResult, Continued);

/// A thread that watches for the end of one process.
#[derive(Debug)]
struct Watch {
    pid: i32,
    thread: JoinHandle<Option<WatchRequest>>,
    tid: i32,
    orders: Arc<Orders>,
    /// The ledgers that it took.
    taken: Receiver<TakenLedger>,
}

impl Watch {
    /// Begins to watch. `None` if the process has ended, or if the kernel refuses, which is
    /// reported.
    fn begin(pid: i32, request: WatchRequest, shared: &Shared, is_resumed: bool) -> Option<Self> {
        let orders = Arc::new(Orders::default());
        let (begun, wait_for_tid) = channel();
        let (ledger_sender, taken) = channel();
        let body = {
            let (shared, orders) = (shared.clone(), Arc::clone(&orders));
            move || match ExitWatch::begin(pid) {
                Ok(watch) => {
                    let _ = begun.send(strandline_sys::signal::own_thread());
                    WatchingThread { watch, request, is_resumed, orders, shared, taken: ledger_sender }.run()
                }
                Err(Error::Ended { .. } | Error::NoSuchProcess { .. }) => None,
                Err(error) => {
                    shared.send(LedgerResult::NotWatched(request.process, error.to_string()));
                    None
                }
            }
        };
        let thread =
            std::thread::Builder::new().name("watch".into()).stack_size(STACK_BYTES).spawn(body).ok()?;
        // The watch begins at once, or the thread ends.
        let tid = wait_for_tid.recv().ok()?;
        Some(Self { pid, thread, tid, orders, taken })
    }

    /// Wakes the thread until `is_done` holds, or it is gone: it may have checked its orders just
    /// before it slept.
    fn wake_until(&self, is_done: impl Fn(&Orders) -> bool) {
        let own_pid = std::process::id().cast_signed();
        while !is_done(&self.orders) && !self.thread.is_finished() {
            if !self.orders.is_busy.load(Ordering::Acquire) {
                let wake = strandline_sys::signal::wake_signal();
                drop(strandline_sys::process::signal_thread(own_pid, self.tid, wake));
            }
            std::thread::sleep(WAKE_INTERVAL);
        }
    }

    /// Has the thread take a ledger.
    fn take_ledger(&self, request: Request) -> TakenLedger {
        *self.orders.ledger() = Some(request.clone());
        self.wake_until(|orders| orders.ledger().is_none());
        // A thread that has found the end of the process takes no more orders.
        self.taken.recv().unwrap_or((LedgerResult::ProcessEnded(request), Continued::Yes))
    }

    /// Ends the watch. Returns the request, unless the process ended meanwhile.
    fn end(self) -> Option<WatchRequest> {
        self.orders.must_end.store(true, Ordering::Release);
        self.wake_until(|_| false);
        let request = self.thread.join().ok().flatten();
        exit_watch::wait_until_released(self.pid, self.tid);
        request
    }
}

/// A watching thread.
struct WatchingThread {
    watch: ExitWatch,
    request: WatchRequest,
    /// Whether the watch was interrupted, so that the end may have passed unnoticed.
    is_resumed: bool,
    orders: Arc<Orders>,
    shared: Shared,
    taken: Sender<TakenLedger>,
}

impl WatchingThread {
    /// Watches until the process ends or the watch must end. Returns the request if the process
    /// lives.
    fn run(mut self) -> Option<WatchRequest> {
        let process = self.request.process;
        loop {
            self.orders.is_busy.store(true, Ordering::Release);
            let request = self.orders.ledger().take();
            if let Some(request) = request
                && self.take_ledger(request) == Continued::No
                // If the process is at its end, this thread must report it.
                && !matches!(self.watch.poll(), Ok(WatchEvent::AtExit))
            {
                return Some(self.request);
            }
            self.orders.is_busy.store(false, Ordering::Release);
            let is_last = self.orders.must_end.load(Ordering::Acquire);
            match if is_last { self.watch.poll() } else { self.watch.sleep() } {
                Ok(WatchEvent::Woken) if is_last => return Some(self.request),
                Ok(WatchEvent::Woken) => {}
                Ok(WatchEvent::AtExit) => {
                    self.orders.is_busy.store(true, Ordering::Release);
                    if !self.watch.is_replaced_by_exec() {
                        report_end(&self.watch, &self.request, &self.shared);
                        return None;
                    }
                    match self.watch.follow() {
                        Ok(watch) => (self.watch, self.is_resumed) = (watch, true),
                        Err(error) => {
                            self.shared.send(LedgerResult::NotWatched(process, error.to_string()));
                            return None;
                        }
                    }
                }
                Ok(WatchEvent::Gone) => {
                    // The process had passed its exit stop when the watch resumed.
                    if self.is_resumed {
                        self.shared.send(LedgerResult::NotWatched(process, PAUSED_AT_END.to_owned()));
                    }
                    return None;
                }
                Err(error) => {
                    self.shared.send(LedgerResult::NotWatched(process, error.to_string()));
                    return None;
                }
            }
        }
    }

    fn take_ledger(&mut self, request: Request) -> Continued {
        let (result, continued) = self.watch.while_reading(|| {
            // A panic of a reader must not end the watch.
            std::panic::catch_unwind(AssertUnwindSafe(|| take_ledger(request.clone(), true, &self.shared)))
        });
        let result = result.unwrap_or_else(|_| LedgerResult::Failed(request, "a reader failed".to_owned()));
        // A process that is killed during an injected call passes its exit stop unnoticed.
        self.is_resumed = true;
        let _ = self.taken.send((result, continued));
        continued
    }
}

/// Reports the last figures and the ledger of a process that is stopped at its end.
fn report_end(watch: &ExitWatch, request: &WatchRequest, shared: &Shared) {
    let pid = watch.process().pid();
    // Taken before the slow part, during which the process is stopped.
    let at_us = shared.clock.now_us();
    if let Ok(mut sampler) = Sampler::open(watch.process())
        && let Ok((sample, _)) = sampler.sample_all(Units::read())
    {
        let high_water_kib = sampler.high_water_kib();
        shared.send(LedgerResult::Final { process: request.process, sample, high_water_kib });
    }
    let ledger_request =
        Request { process: request.process, pid, moment: Moment::Exit, mark: None, tree: Vec::new() };
    let result = watch.registers().map_err(|error| error.to_string()).and_then(|registers| {
        let other_threads = request.threads.load(Ordering::Relaxed).saturating_sub(1);
        let ending = Ending { registers: &[(pid, registers)], other_threads };
        explain::at_exit(pid, &ending, &ledger_options()).map_err(|error| error.to_string())
    });
    shared.send(match result {
        Ok(explanation) => {
            LedgerResult::Ledger(Box::new(ledger(&ledger_request, at_us, explanation, shared)))
        }
        Err(text) => LedgerResult::Failed(ledger_request, text),
    });
}
