//! Takes ledgers outside the sampler's thread, so that no sample is missed: one after another on a
//! separate thread, and for processes that end on the thread that watches for the end.
//!
//! A watched process is traced, and only one thread can trace: the watch pauses while a ledger
//! stops the process. At a mark the program waits meanwhile. Otherwise the process can end just
//! before or after the stop, within a fraction of a millisecond without a watch; the recording then
//! contains a caveat.

use std::collections::HashMap;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::eventfd::{EfdFlags, EventFd};
use strandline_inspect::environment::Environment;
use strandline_inspect::explain::{self, Ending, Options};
use strandline_inspect::facts::Explanation;
use strandline_process::error::Error;
use strandline_process::procfs::Process;
use strandline_process::smaps;
use strandline_process::target::exit_watch::{self, ExitWatch, WatchEvent};
use strandline_process::target::hold;
use strandline_recording::{Ledger, Moment, Sample};

use super::LedgerSettings;
use super::clock::Clock;
use super::sampler::{Sampler, Units};

/// Stack of a watching thread, which also takes ledgers.
const STACK_BYTES: usize = 1 << 20;
/// Why a process has no ledger at its end if its watch was paused.
const MISSED: &str = "it ended while another ledger was taken";
/// Interval between wake-ups of a thread that is to end its watch.
const WAKE_AGAIN: Duration = Duration::from_micros(100);

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
    made: Receiver<LedgerResult>,
    wake: Arc<EventFd>,
    watches: Watches,
    under_way: usize,
}

/// The watched processes, by process id.
type Watches = Arc<Mutex<HashMap<i32, Arc<Watched>>>>;

/// Shared by all threads.
#[derive(Clone, Debug)]
struct Shared {
    made: Sender<LedgerResult>,
    wake: Arc<EventFd>,
    clock: Clock,
    machine: Arc<Environment>,
    looks: LedgerSettings,
}

impl Shared {
    fn send(&self, made: LedgerResult) {
        // Fails only if the recorder has ended.
        drop(self.made.send(made));
        let _ = self.wake.write(1);
    }
}

impl Ledgers {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the kernel has no descriptor or thread left.
    pub fn start(clock: Clock, environment: &Environment, looks: LedgerSettings) -> std::io::Result<Self> {
        let wake = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
        let (jobs, wanted) = channel();
        let (sender, made) = channel();
        let machine = Arc::new(environment.clone());
        let shared = Shared { made: sender, wake: Arc::clone(&wake), clock, machine, looks };
        let watches = Watches::default();
        let own = Arc::clone(&watches);
        let thread = std::thread::Builder::new().name("ledgers".into()).spawn(move || {
            while let Ok(job) = wanted.recv() {
                work(job, &own, &shared);
            }
            all(&own).iter().for_each(|watched| watched.end());
        })?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread), made, wake, watches, under_way: 0 })
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
        let watches = all(&self.watches);
        watches.iter().for_each(|watched| explain::Watch::pause(&**watched));
        let done = hold::while_nothing_is_held(work);
        watches.iter().for_each(|watched| explain::Watch::resume(&**watched));
        done
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
    pub fn look(&mut self, request: Request) {
        self.under_way += usize::from(self.send(Job::TakeLedger(request)));
    }

    /// Number of requested ledgers without a result yet, except those at ends.
    pub fn under_way(&self) -> usize {
        self.under_way
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
        let made: Vec<LedgerResult> = self.made.try_iter().collect();
        let of_requests = |made: &&LedgerResult| match made {
            LedgerResult::Ledger(ledger) => ledger.moment != Moment::Exit,
            LedgerResult::Failed(request, _) | LedgerResult::ProcessEnded(request) => {
                request.moment != Moment::Exit
            }
            _ => false,
        };
        self.under_way = self.under_way.saturating_sub(made.iter().filter(of_requests).count());
        made
    }
}

/// The watched processes.
fn all(watches: &Watches) -> Vec<Arc<Watched>> {
    watches.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
}

fn work(job: Job, watches: &Watches, shared: &Shared) {
    let lock = || watches.lock().unwrap_or_else(PoisonError::into_inner);
    lock().retain(|_, watched| !watched.is_over());
    let watch = |pid, request| {
        let watched = Watched::begin(pid, request, shared);
        lock().insert(pid, watched);
    };
    match job {
        Job::TakeLedger(request) => {
            let watched = lock().get(&request.pid).cloned();
            let watched = watched.map(|watched| watched as Arc<dyn explain::Watch>);
            shared.send(look(request, watched.as_ref(), shared));
        }
        Job::Watch(pid, request) => watch(pid, request),
        Job::Unwatch(pid) => {
            let watched = lock().remove(&pid);
            watched.iter().for_each(|watched| watched.end());
        }
        Job::WatchFirst(gate, request) => {
            if let Some(pid) = strandline_sys::spawn::Gate::wait_for_child(&gate) {
                watch(pid, request);
            }
            strandline_sys::spawn::Gate::release(&gate);
        }
    }
}

/// Takes one ledger.
fn look(request: Request, watch: Option<&Arc<dyn explain::Watch>>, shared: &Shared) -> LedgerResult {
    let at_us = shared.clock.now_us();
    let LedgerSettings { max_stop, snapshot, quiet_for } = shared.looks;
    let quiet_for = if request.moment == Moment::Peak { Duration::ZERO } else { quiet_for };
    match explain::explain(request.pid, &Options { max_stop, snapshot, quiet_for, watch, ..options() }) {
        Ok(explanation) => LedgerResult::Ledger(Box::new(ledger(&request, at_us, explanation, shared))),
        Err(Error::Ended { .. } | Error::NoSuchProcess { .. } | Error::Zombie { .. }) => {
            LedgerResult::ProcessEnded(request)
        }
        Err(error) => LedgerResult::Failed(request, error.to_string()),
    }
}

fn options() -> Options<'static> {
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
        environment: shared.machine.again(),
        explain,
    }
}

/// The proportional set size of several processes together, in which shared pages count once.
/// `None` if there are fewer than two, or if one cannot be read.
pub fn tree_pss_bytes(pids: &[i32]) -> Option<u64> {
    if pids.len() < 2 {
        return None;
    }
    let mut sum = 0;
    for &pid in pids {
        let rollup = Process::open(pid).and_then(|process| process.open_file("smaps_rollup"));
        match rollup.map(smaps::read_rollup) {
            Ok(Ok(sums)) => sum += sums.pss_bytes,
            // It ended meanwhile and has no memory left.
            Err(Error::NoSuchProcess { .. } | Error::Ended { .. }) => {}
            Ok(Err(error)) if error.raw_os_error() == Some(3) => {}
            Ok(Err(_)) | Err(_) => return None,
        }
    }
    Some(sum)
}

/// A process whose end is watched for.
#[derive(Debug)]
struct Watched {
    pid: i32,
    shared: Shared,
    state: Mutex<(State, Pauses)>,
}

/// Number of pauses that were not resumed yet.
type Pauses = u32;

#[derive(Debug)]
enum State {
    /// A thread watches it.
    On(Watch),
    /// Paused: no thread watches it.
    Paused(WatchRequest),
    /// The process has ended, or cannot be watched.
    Over,
}

impl Watched {
    fn begin(pid: i32, request: WatchRequest, shared: &Shared) -> Arc<Self> {
        let state = Watch::begin(pid, request, shared, false).map_or(State::Over, State::On);
        Arc::new(Self { pid, shared: shared.clone(), state: Mutex::new((state, 0)) })
    }

    fn is_over(&self) -> bool {
        match &self.state.lock().unwrap_or_else(PoisonError::into_inner).0 {
            State::On(watch) => watch.thread.is_finished(),
            State::Paused(_) => false,
            State::Over => true,
        }
    }

    fn end(&self) {
        explain::Watch::pause(self);
    }
}

impl explain::Watch for Watched {
    fn pause(&self) {
        let mut locked = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (state, pauses) = &mut *locked;
        *pauses += 1;
        if *pauses == 1
            && let State::On(watch) = std::mem::replace(state, State::Over)
        {
            *state = watch.end().map_or(State::Over, State::Paused);
        }
    }

    fn resume(&self) {
        let mut locked = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (state, pauses) = &mut *locked;
        *pauses = pauses.saturating_sub(1);
        if *pauses == 0
            && let State::Paused(request) = std::mem::replace(state, State::Over)
        {
            let process = request.process;
            match Watch::begin(self.pid, request, &self.shared, true) {
                Some(watch) => *state = State::On(watch),
                None => self.shared.send(LedgerResult::NotWatched(process, MISSED.to_owned())),
            }
        }
    }
}

/// A thread that watches for the end of one process.
#[derive(Debug)]
struct Watch {
    pid: i32,
    thread: JoinHandle<Option<WatchRequest>>,
    tid: i32,
    must_end: Arc<AtomicBool>,
}

impl Watch {
    /// Begins to watch. `None` if the process has ended, or if the kernel refuses, which is
    /// reported.
    fn begin(pid: i32, request: WatchRequest, shared: &Shared, is_resumed: bool) -> Option<Self> {
        let shall_end = Arc::new(AtomicBool::new(false));
        let (begun, wait) = channel();
        let body = {
            let (shared, shall_end) = (shared.clone(), Arc::clone(&shall_end));
            move || match ExitWatch::begin(pid) {
                Ok(watch) => {
                    let _ = begun.send(strandline_sys::signal::own_thread());
                    watch_until_the_end(watch, request, is_resumed, &shall_end, &shared)
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
        let tid = wait.recv().ok()?;
        Some(Self { pid, thread, tid, must_end: shall_end })
    }

    /// Ends the watch. Returns the request, unless the process ended meanwhile.
    fn end(self) -> Option<WatchRequest> {
        self.must_end.store(true, Ordering::Release);
        let own = std::process::id().cast_signed();
        while !self.thread.is_finished() {
            // The thread may have checked the flag just before it slept: wake it until it is gone.
            drop(strandline_sys::process::signal_thread(
                own,
                self.tid,
                strandline_sys::signal::wake_signal(),
            ));
            std::thread::sleep(WAKE_AGAIN);
        }
        let request = self.thread.join().ok().flatten();
        exit_watch::wait_until_released(self.pid, self.tid);
        request
    }
}

/// Body of a watching thread. Returns the request if the watch was ended and the process lives.
fn watch_until_the_end(
    mut watch: ExitWatch,
    request: WatchRequest,
    is_resumed: bool,
    shall_end: &AtomicBool,
    shared: &Shared,
) -> Option<WatchRequest> {
    loop {
        let is_last = shall_end.load(Ordering::Acquire);
        match if is_last { watch.poll() } else { watch.sleep() } {
            Ok(WatchEvent::Woken) if is_last => return Some(request),
            Ok(WatchEvent::Woken) => {}
            Ok(WatchEvent::AtExit) => {
                report_end(&watch, &request, shared);
                return None;
            }
            Ok(WatchEvent::Gone) => {
                // The process had passed its exit stop when the watch resumed.
                if is_resumed {
                    shared.send(LedgerResult::NotWatched(request.process, MISSED.to_owned()));
                }
                return None;
            }
            Err(error) => {
                shared.send(LedgerResult::NotWatched(request.process, error.to_string()));
                return None;
            }
        }
    }
}

/// Reports the last figures and the ledger of a process that is stopped at its end.
fn report_end(watch: &ExitWatch, request: &WatchRequest, shared: &Shared) {
    let pid = watch.process().pid();
    // The time before the slow part: meanwhile the process is stopped.
    let at_us = shared.clock.now_us();
    if let Ok(mut sampler) = Sampler::open(watch.process())
        && let Ok((sample, _)) = sampler.sample_all(Units::read())
    {
        let high_water_kib = sampler.high_water_kib();
        shared.send(LedgerResult::Final { process: request.process, sample, high_water_kib });
    }
    let wanted =
        Request { process: request.process, pid, moment: Moment::Exit, mark: None, tree: Vec::new() };
    let made = watch.registers().map_err(|error| error.to_string()).and_then(|registers| {
        let other_threads = request.threads.load(Ordering::Relaxed).saturating_sub(1);
        let ending = Ending { registers: &[(pid, registers)], other_threads };
        explain::at_exit(pid, &ending, &options()).map_err(|error| error.to_string())
    });
    shared.send(match made {
        Ok(explanation) => LedgerResult::Ledger(Box::new(ledger(&wanted, at_us, explanation, shared))),
        Err(text) => LedgerResult::Failed(wanted, text),
    });
}
