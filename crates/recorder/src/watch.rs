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
    CallingThread, LedgerResult, Request, Shared, WatchRequest, ledger_options, new_ledger, take_ledger,
    without_panic,
};
use super::sampler::{Sampler, Units, WholeSample};

/// Stack of a watching thread, which also takes ledgers.
const STACK_BYTES: usize = 1 << 20;
/// Why a process has no ledger at its end if its watch was paused.
pub(super) const PAUSED_AT_END: &str = "it ended while another ledger was taken";
/// Interval between signals to a watching thread that has an order.
const WAKE_INTERVAL: Duration = Duration::from_micros(100);

/// What other threads ask of a watching thread.
#[derive(Debug, Default)]
struct WatchOrders {
    /// Whether the watch has to end.
    must_end: AtomicBool,
    /// Whether it takes a ledger, at the end or before: it must not be woken meanwhile.
    is_busy: AtomicBool,
    /// The ledger to take next.
    ledger: Mutex<Option<Request>>,
    /// Whether the thread found that the process has ended; set before the thread returns.
    has_process_ended: AtomicBool,
}

impl WatchOrders {
    fn lock_ledger(&self) -> MutexGuard<'_, Option<Request>> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a process was watched before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EarlierWatch {
    None,
    /// That watch was paused, and the end of the process may have passed meanwhile.
    Paused,
}

/// Why a watch did not begin.
#[derive(Debug)]
pub(super) enum NotBegun {
    /// The process has ended.
    Ended,
    /// The kernel refuses it, and the reason.
    Refused(String),
}

/// Result of a requested ledger.
#[derive(Debug)]
pub(super) struct TakenLedger {
    pub result: LedgerResult,
    /// Whether the watch continued.
    pub continued: Continued,
}

/// A thread that watches for the end of one process.
#[derive(Debug)]
pub(super) struct Watch {
    pid: i32,
    /// Returns the request if the process lives.
    thread: JoinHandle<Option<WatchRequest>>,
    /// Thread id.
    tid: i32,
    orders: Arc<WatchOrders>,
    /// The ledgers that the thread took.
    taken_ledgers: Receiver<TakenLedger>,
}

impl Watch {
    /// Begins to watch.
    ///
    /// # Errors
    /// See [`NotBegun`].
    pub fn begin(
        pid: i32,
        request: WatchRequest,
        shared: &Shared,
        earlier: EarlierWatch,
    ) -> Result<Self, NotBegun> {
        let orders = Arc::new(WatchOrders::default());
        let (begun_sender, begun) = channel();
        let (ledger_sender, taken_ledgers) = channel();
        let body = {
            let (shared, orders) = (shared.clone(), Arc::clone(&orders));
            move || match ExitWatch::begin(pid) {
                Ok(watch) => {
                    let _ = begun_sender.send(Ok(strandline_sys::signal::own_thread()));
                    WatchLoop {
                        watch,
                        request,
                        may_have_missed_end: earlier == EarlierWatch::Paused,
                        orders,
                        shared,
                        taken_ledgers: ledger_sender,
                    }
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
        let tid = begun
            .recv()
            .unwrap_or_else(|_| Err(NotBegun::Refused("its watching thread failed".to_owned())))?;
        Ok(Self { pid, thread, tid, orders, taken_ledgers })
    }

    /// Whether the process has ended, or can no longer be watched.
    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Wakes the thread until `is_done` holds, or it is gone: it may have checked its orders just
    /// before it slept.
    fn wake_until(&self, is_done: impl Fn(&WatchOrders) -> bool) {
        let own_pid = std::process::id().cast_signed();
        while !is_done(&self.orders) && !self.thread.is_finished() {
            if !self.orders.is_busy.load(Ordering::Acquire) {
                let wake = strandline_sys::signal::wake_signal();
                // If it fails, the thread has ended, which the loop checks.
                drop(strandline_sys::process::signal_thread(own_pid, self.tid, wake));
            }
            std::thread::sleep(WAKE_INTERVAL);
        }
    }

    /// Has the thread take a ledger.
    pub fn take_ledger(&self, request: Request) -> TakenLedger {
        *self.orders.lock_ledger() = Some(request.clone());
        self.wake_until(|orders| orders.lock_ledger().is_none());
        // A thread whose watch has ended takes no more orders.
        self.taken_ledgers.recv().unwrap_or_else(|_| {
            let result = if self.orders.has_process_ended.load(Ordering::Acquire) {
                LedgerResult::ProcessEnded(request)
            } else {
                LedgerResult::Failed { request, reason: "its watch ended".to_owned(), stopped_us: 0 }
            };
            TakenLedger { result, continued: Continued::Yes }
        })
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
    may_have_missed_end: bool,
    orders: Arc<WatchOrders>,
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
                        self.orders.has_process_ended.store(true, Ordering::Release);
                        return None;
                    }
                    match self.watch.follow() {
                        Ok(watch) => (self.watch, self.may_have_missed_end) = (watch, true),
                        Err(error) => {
                            let has_ended =
                                matches!(error, Error::Ended { .. } | Error::NoSuchProcess { .. });
                            self.orders.has_process_ended.store(has_ended, Ordering::Release);
                            self.shared.send(LedgerResult::NotWatched { process, reason: error.to_string() });
                            return None;
                        }
                    }
                }
                Ok(WatchEvent::Gone) => {
                    // The process had passed its exit stop when the watch resumed.
                    if self.may_have_missed_end {
                        let reason = PAUSED_AT_END.to_owned();
                        self.shared.send(LedgerResult::NotWatched { process, reason });
                    }
                    self.orders.has_process_ended.store(true, Ordering::Release);
                    return None;
                }
                Err(error) => {
                    self.shared.send(LedgerResult::NotWatched { process, reason: error.to_string() });
                    return None;
                }
            }
        }
    }

    /// Takes a requested ledger. Returns whether the watch continued.
    fn take_ledger(&mut self, request: Request) -> Continued {
        let (result, continued) =
            self.watch.while_reading(|| take_ledger(request, CallingThread::Watcher, &self.shared));
        // A process that is killed during an injected call passes its exit stop unnoticed.
        self.may_have_missed_end = true;
        let _ = self.taken_ledgers.send(TakenLedger { result, continued });
        continued
    }
}

/// Reports the last figures and the ledger of a process that is stopped at its end.
fn report_end(watch: &ExitWatch, request: &WatchRequest, shared: &Shared) {
    let pid = watch.process().pid();
    // Taken before the slow part, during which the process is stopped.
    let at_us = shared.clock.now_us();
    // If this fails, the last sample stands for the final figures.
    if let Ok(mut sampler) = Sampler::open(watch.process())
        && let Ok(WholeSample { sample, .. }) = sampler.sample_all(Units::read())
    {
        let high_water_kib = sampler.high_water_kib();
        shared.send(LedgerResult::Final { process: request.process, sample, high_water_kib });
    }
    let ledger_request =
        Request { process: request.process, pid, moment: Moment::Exit, mark: None, tree_pids: Vec::new() };
    let result = without_panic(|| {
        let registers = watch.registers().map_err(|error| error.to_string())?;
        let other_threads = request.threads.load(Ordering::Relaxed).saturating_sub(1);
        let ending = Ending { registers: &[(pid, registers)], other_threads };
        let explanation = explain::at_exit(pid, &ending, &ledger_options());
        let explanation = explanation.map_err(|error| error.to_string())?;
        Ok(Box::new(new_ledger(&ledger_request, at_us, explanation, shared)))
    });
    shared.send(match result {
        Ok(ledger) => LedgerResult::Ledger(ledger),
        Err(reason) => {
            let stopped_us = shared.clock.now_us().saturating_sub(at_us);
            LedgerResult::Failed { request: ledger_request, reason, stopped_us }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result of a request to a thread that ended before it took it.
    fn result_of_ended_thread(has_process_ended: bool) -> LedgerResult {
        let orders = Arc::new(WatchOrders::default());
        // It is not woken.
        orders.is_busy.store(true, Ordering::Release);
        orders.has_process_ended.store(has_process_ended, Ordering::Release);
        let (_, taken_ledgers) = channel();
        let thread = std::thread::spawn(|| None);
        let watch = Watch { pid: 1, thread, tid: 1, orders, taken_ledgers };
        let request = Request { process: 0, pid: 1, moment: Moment::Mark, mark: None, tree_pids: Vec::new() };
        watch.take_ledger(request).result
    }

    #[test]
    fn the_end_of_a_watch_is_not_that_of_the_process() {
        assert!(matches!(result_of_ended_thread(true), LedgerResult::ProcessEnded(_)));
        let LedgerResult::Failed { reason, .. } = result_of_ended_thread(false) else { panic!() };
        assert_eq!(reason, "its watch ended");
    }
}
