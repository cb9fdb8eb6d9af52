//! Exchange between the threads: they request and deliver surveys here, and are woken here to end.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::eventfd::{EfdFlags, EventFd};
use strandline_survey::Survey;

/// If no page was requested, or written to a file, for this long, no process is stopped any more.
const READER_TIMEOUT: Duration = Duration::from_secs(600);
/// Interval of checking whether a thread has ended.
const JOIN_CHECK_INTERVAL: Duration = Duration::from_millis(2);

/// Delivers surveys and the request to end to all threads.
#[derive(Debug)]
pub struct SurveyExchange {
    state: Mutex<State>,
    /// Wakes threads that wait for a request or for the end.
    changed: Condvar,
    /// Wakes the server: see [`SurveyExchange::delivered`].
    delivered: EventFd,
}

#[derive(Debug)]
struct State {
    /// The last survey.
    survey: Option<Arc<Survey>>,
    /// Whether a newer survey is requested.
    is_requested: bool,
    /// When a page was last requested, or written to a file; at first, when the exporter started.
    last_reader_at: Instant,
    /// Whether the threads have to end.
    has_ended: bool,
    /// Whether the thread that takes surveys has failed.
    has_failed: bool,
}

impl SurveyExchange {
    /// An exchange without a survey.
    ///
    /// # Errors
    /// If no descriptor can be created.
    pub fn new() -> std::io::Result<Self> {
        let delivered = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let state = State {
            survey: None,
            is_requested: false,
            last_reader_at: Instant::now(),
            has_ended: false,
            has_failed: false,
        };
        Ok(Self { state: Mutex::new(state), changed: Condvar::new(), delivered })
    }

    fn lock_state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests a new survey; [`SurveyExchange::delivered`] becomes readable once it is taken. A
    /// survey that is being taken answers it too.
    pub fn request(&self) {
        let mut state = self.lock_state();
        (state.is_requested, state.last_reader_at) = (true, Instant::now());
        self.changed.notify_all();
    }

    /// Notes that pages are read, without requesting a new survey.
    pub fn note_reader(&self) {
        self.lock_state().last_reader_at = Instant::now();
    }

    /// The last survey.
    pub fn survey(&self) -> Option<Arc<Survey>> {
        self.lock_state().survey.clone()
    }

    /// Whether a page was requested, or written to a file, recently: see [`READER_TIMEOUT`].
    pub fn has_recent_reader(&self) -> bool {
        self.lock_state().last_reader_at.elapsed() < READER_TIMEOUT
    }

    /// Whether no survey will be delivered any more.
    pub fn has_failed(&self) -> bool {
        self.lock_state().has_failed
    }

    /// Readable when a survey was delivered or the thread for surveys has failed, until it is read.
    pub fn delivered(&self) -> &EventFd {
        &self.delivered
    }

    /// Delivers a new survey, and wakes the server.
    pub fn deliver(&self, survey: Arc<Survey>) {
        let mut state = self.lock_state();
        (state.survey, state.is_requested) = (Some(survey), false);
        drop(state);
        self.wake_server();
    }

    /// Notes that no survey will be delivered any more, and wakes the server.
    pub fn fail(&self) {
        self.lock_state().has_failed = true;
        self.wake_server();
    }

    fn wake_server(&self) {
        // Fails only if it is readable already.
        let _ = self.delivered.write(1);
    }

    /// Makes all threads end.
    pub fn end(&self) {
        self.lock_state().has_ended = true;
        self.changed.notify_all();
    }

    /// Sleeps for `timeout`; false if the thread has to end.
    pub fn sleep(&self, timeout: Duration) -> bool {
        self.sleep_while(timeout, |_| true)
    }

    /// Sleeps until a survey is requested, at most for `timeout`; false if the thread has to end.
    pub fn wait_for_request(&self, timeout: Duration) -> bool {
        self.sleep_while(timeout, |state| !state.is_requested)
    }

    /// Sleeps while `condition` holds, at most for `timeout`; false if the thread has to end.
    fn sleep_while(&self, timeout: Duration, condition: impl Fn(&State) -> bool) -> bool {
        let (state, _) = self
            .changed
            .wait_timeout_while(self.lock_state(), timeout, |state| !state.has_ended && condition(state))
            .unwrap_or_else(PoisonError::into_inner);
        !state.has_ended
    }
}

/// Waits for a thread to end, at most for `timeout`.
pub fn join_within(thread: JoinHandle<()>, timeout: Duration) {
    let deadline = Instant::now() + timeout;
    while !thread.is_finished() && Instant::now() < deadline {
        std::thread::sleep(JOIN_CHECK_INTERVAL);
    }
    if thread.is_finished() {
        // A thread that panicked has reported it.
        let _ = thread.join();
    }
}
