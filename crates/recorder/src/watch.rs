//! A thread that watches for the end of one process, and takes its ledgers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use strandline_inspect::explain::{self, Ending};
use strandline_process::error::Error;
use strandline_process::target::exit_watch::{self, Continued, ExitWatch, WatchEvent};
use strandline_recording::Moment;

use super::ledgers::{
    LedgerResult, Request, Shared, WatchRequest, ledger_options, new_ledger, take_ledger, without_panic,
};
use super::sampler::{Sampler, Units};

/// Stack of a watching thread, which also takes ledgers.
const STACK_BYTES: usize = 1 << 20;
/// Why a process has no ledger at its end if its watch was paused.
pub(super) const PAUSED_AT_END: &str = "it ended while another ledger was taken";
/// Interval between signals to a watching thread that has an order.
const WAKE_INTERVAL: Duration = Duration::from_micros(100);

/// Requests of other threads to a watching thread.
#[derive(Debug, Default)]
struct Orders {
    /// Whether the watch has to end.
    must_end: AtomicBool,
    /// Whether it takes a ledger, at the end or before: it must not be woken meanwhile.
    is_busy: AtomicBool,
    /// The ledger to take next.
    ledger: Mutex<Option<Request>>,
}

impl Orders {
    fn lock_ledger(&self) -> MutexGuard<'_, Option<Request>> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a watch did not begin.
#[derive(Debug)]
pub(super) enum NotBegun {
    /// The process has ended.
    Ended,
    /// The kernel refuses it, and the reason.
    Refused(String),
}

/// Result of an ordered ledger.
type TakenLedger = (LedgerResult, Continued);

/// A thread that watches for the end of one process.
#[derive(Debug)]
pub(super) struct Watch {
    pid: i32,
    /// Returns the request if the process lives.
    thread: JoinHandle<Option<WatchRequest>>,
    /// Thread id.
    tid: i32,
    orders: Arc<Orders>,
    /// The ledgers that the thread took.
    taken_ledgers: Receiver<TakenLedger>,
}

impl Watch {
    /// Begins to watch. `is_resumed`: the process was watched before, and then for a while not.
    pub fn begin(
        pid: i32,
        request: WatchRequest,
        shared: &Shared,
        is_resumed: bool,
    ) -> Result<Self, NotBegun> {
        let orders = Arc::new(Orders::default());
        let (begun_sender, begun) = channel();
        let (ledger_sender, taken_ledgers) = channel();
        let body = {
            let (shared, orders) = (shared.clone(), Arc::clone(&orders));
            move || match ExitWatch::begin(pid) {
                Ok(watch) => {
                    let _ = begun_sender.send(Ok(strandline_sys::signal::own_thread()));
                    WatchLoop { watch, request, is_resumed, orders, shared, taken_ledgers: ledger_sender }
                        .run()
                }
                Err(error) => {
                    let _ = begun_sender.send(Err(match error {
                        Error::Ended { .. } | Error::NoSuchProcess { .. } => NotBegun::Ended,
                        error => NotBegun::Refused(error.to_string()),
                    }));
                    None
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("watch".into())
            .stack_size(STACK_BYTES)
            .spawn(body)
            .map_err(|error| NotBegun::Refused(format!("no thread could be started: {error}")))?;
        let tid = begun.recv().unwrap_or(Err(NotBegun::Ended))?;
        Ok(Self { pid, thread, tid, orders, taken_ledgers })
    }

    /// Whether the process has ended, or can no longer be watched.
    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
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
    pub fn take_ledger(&self, request: Request) -> TakenLedger {
        *self.orders.lock_ledger() = Some(request.clone());
        self.wake_until(|orders| orders.lock_ledger().is_none());
        // A thread that has found the end of the process takes no more orders.
        self.taken_ledgers.recv().unwrap_or((LedgerResult::ProcessEnded(request), Continued::Yes))
    }

    /// Ends the watch. Returns the request, unless the process ended meanwhile.
    pub fn end(self) -> Option<WatchRequest> {
        self.orders.must_end.store(true, Ordering::Release);
        self.wake_until(|_| false);
        let request = self.thread.join().ok().flatten();
        exit_watch::wait_until_released(self.pid, self.tid);
        request
    }
}

/// A watching thread.
struct WatchLoop {
    watch: ExitWatch,
    request: WatchRequest,
    /// Whether the watch was interrupted, so that the end may have passed unnoticed.
    is_resumed: bool,
    orders: Arc<Orders>,
    shared: Shared,
    taken_ledgers: Sender<TakenLedger>,
}

impl WatchLoop {
    /// Watches until the process ends or the watch must end. Returns the request if the process
    /// lives.
    fn run(mut self) -> Option<WatchRequest> {
        let process = self.request.process;
        loop {
            self.orders.is_busy.store(true, Ordering::Release);
            let request = self.orders.lock_ledger().take();
            if let Some(request) = request
                && self.take_ledger(request) == Continued::No
                // If the process is at its end, this thread must report it.
                && !matches!(self.watch.poll(), Ok(WatchEvent::AtExit))
            {
                return Some(self.request);
            }
            self.orders.is_busy.store(false, Ordering::Release);
            let must_end = self.orders.must_end.load(Ordering::Acquire);
            let event = if must_end { self.watch.poll() } else { self.watch.sleep() };
            match event {
                Ok(WatchEvent::Woken) if must_end => return Some(self.request),
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
                            self.shared.send(LedgerResult::NotWatched { process, reason: error.to_string() });
                            return None;
                        }
                    }
                }
                Ok(WatchEvent::Gone) => {
                    // The process had passed its exit stop when the watch resumed.
                    if self.is_resumed {
                        self.shared
                            .send(LedgerResult::NotWatched { process, reason: PAUSED_AT_END.to_owned() });
                    }
                    return None;
                }
                Err(error) => {
                    self.shared.send(LedgerResult::NotWatched { process, reason: error.to_string() });
                    return None;
                }
            }
        }
    }

    /// Takes an ordered ledger. Returns whether the watch continued.
    fn take_ledger(&mut self, request: Request) -> Continued {
        let (result, continued) = self.watch.while_reading(|| take_ledger(request, true, &self.shared));
        // A process that is killed during an injected call passes its exit stop unnoticed.
        self.is_resumed = true;
        let _ = self.taken_ledgers.send((result, continued));
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
    let result = without_panic(|| {
        let registers = watch.registers().map_err(|error| error.to_string())?;
        let other_threads = request.threads.load(Ordering::Relaxed).saturating_sub(1);
        let ending = Ending { registers: &[(pid, registers)], other_threads };
        explain::at_exit(pid, &ending, &ledger_options()).map_err(|error| error.to_string())
    });
    shared.send(match result {
        Ok(explanation) => {
            LedgerResult::Ledger(Box::new(new_ledger(&ledger_request, at_us, explanation, shared)))
        }
        Err(reason) => {
            let stopped_us = shared.clock.now_us().saturating_sub(at_us);
            LedgerResult::Failed { request: ledger_request, reason, stopped_us }
        }
    });
}
