//! Exchange between the threads: they request and deliver surveys here, and are woken here to end.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::Log;
use crate::charges::ChargeReader;
use crate::exposition::Format;
use crate::page::Pages;
use crate::textfile::Writer;
use strandline_survey::select::Selection;
use strandline_survey::{Survey, Surveyor};

/// Interval of surveys without requests: ledgers need to know of new processes.
const SURVEY_INTERVAL: Duration = Duration::from_secs(30);
/// Maximum number of messages on what the selection matches: processes may come and go repeatedly.
const MAX_MATCH_MESSAGES: u32 = 8;
/// If no page was requested for this long, no process is stopped any more.
const READER_TIMEOUT: Duration = Duration::from_secs(600);
/// Interval of checking whether a thread has ended.
const JOIN_CHECK_INTERVAL: Duration = Duration::from_millis(2);

/// Delivers surveys to all threads, and the request to end.
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
    /// When a page was last requested, or written to a file.
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
    /// If the kernel has no descriptor left.
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

    /// Requests a new survey; [`SurveyExchange::delivered`] becomes readable once it is taken.
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

    /// Whether pages were read recently: see [`READER_TIMEOUT`].
    pub fn is_read(&self) -> bool {
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
    fn deliver(&self, survey: Arc<Survey>) {
        let mut state = self.lock_state();
        (state.survey, state.is_requested) = (Some(survey), false);
        drop(state);
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
    fn wait_for_request(&self, timeout: Duration) -> bool {
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

/// Takes surveys, and writes pages to a file, on a separate thread.
pub struct SurveyThread {
    /// Which processes to survey.
    pub selection: Selection,
    /// Number of processes shown one by one.
    pub top: usize,
    /// Writes pages to a file.
    pub writer: Option<Writer>,
    /// Makes pages, and holds the states of the processes.
    pub pages: Arc<Pages>,
    /// Receives a line when the selection matches nothing, and when it matches again.
    pub log: Log,
}

impl SurveyThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the kernel has no thread left.
    pub fn start(self, exchange: Arc<SurveyExchange>) -> std::io::Result<JoinHandle<()>> {
        let body = move || {
            if catch_unwind(AssertUnwindSafe(|| self.take_surveys(&exchange))).is_err() {
                exchange.lock_state().has_failed = true;
                exchange.wake_server();
            }
        };
        std::thread::Builder::new().name("figures".into()).spawn(body)
    }

    /// Takes surveys until the end, at requests and at least once in an interval.
    fn take_surveys(mut self, exchange: &SurveyExchange) {
        let mut surveyor = Surveyor::default();
        let mut charge_reader = ChargeReader::default();
        let mut matches_any = None;
        let mut match_messages = 0;
        loop {
            let mut survey = surveyor.take(&self.selection, self.top);
            let process_count = process_count(&survey);
            let line = match_message(matches_any, process_count, &self.selection);
            if let Some(line) = line.filter(|_| match_messages < MAX_MATCH_MESSAGES) {
                match_messages += 1;
                let is_last = match_messages == MAX_MATCH_MESSAGES;
                (self.log)(&(line + if is_last { "; further changes are not reported" } else { "" }));
            }
            matches_any = Some(process_count > 0);
            self.pages.set_charges(charge_reader.read(&survey, &self.selection));
            // How long a survey stays valid depends on what it cost.
            survey.duration = survey.at.elapsed();
            let survey = Arc::new(survey);
            self.pages.states.follow(&survey);
            exchange.deliver(Arc::clone(&survey));
            let mut timeout = SURVEY_INTERVAL;
            if let Some(writer) = &mut self.writer {
                if writer.is_due() {
                    exchange.note_reader();
                    writer.write(&self.pages.page(&survey, Format::Plain));
                }
                timeout = timeout.min(writer.time_until_due());
            }
            if !exchange.wait_for_request(timeout) {
                return;
            }
        }
    }
}

/// Number of processes that the selection matches.
fn process_count(survey: &Survey) -> u64 {
    survey.processes.len() as u64 + survey.others.as_ref().map_or(0, |others| others.processes)
}

/// The line for a survey with `process_count` processes: if no process matches, or if one matches
/// again. `matched_any` is whether the last survey had any; `None` for the first survey.
fn match_message(matched_any: Option<bool>, process_count: u64, selection: &Selection) -> Option<String> {
    match (matched_any, process_count) {
        (None, 0) => Some(format!("no process matches {selection} yet; its metrics begin when one does")),
        (Some(true), 0) => Some(format!("no process matches {selection} any more")),
        (Some(false), 1..) => Some(format!("processes that match {selection}: {process_count}")),
        _ => None,
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

#[cfg(test)]
mod tests {
    use strandline_survey::select::SelectionRequest;

    use super::*;

    #[test]
    fn a_selection_that_matches_nothing_is_reported_once() {
        let request = SelectionRequest { units: vec!["web".to_owned()], ..SelectionRequest::default() };
        let selection = Selection::new(request).unwrap();
        let message = |matched_any, count| match_message(matched_any, count, &selection);
        let first = message(None, 0).unwrap();
        assert!(first.starts_with("no process matches --unit web yet"), "{first}");
        assert_eq!(message(Some(false), 0), None);
        assert!(message(Some(false), 2).unwrap().ends_with(": 2"));
        assert_eq!((message(Some(true), 2), message(None, 2)), (None, None));
        assert!(message(Some(true), 0).unwrap().ends_with("any more"));
    }
}
