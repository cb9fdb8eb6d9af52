//! Where the threads meet: a survey is requested and delivered here, and sleeping threads are woken
//! at the end.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::charges::ChargeReader;
use crate::exposition::Format;
use crate::page::Pages;
use crate::textfile::Writer;
use strandline_survey::select::Selection;
use strandline_survey::{Survey, Surveyor};

/// Interval of surveys without requests: ledgers need to know of new processes.
const SURVEY_INTERVAL: Duration = Duration::from_secs(30);
/// If no page was requested for this long, no process is stopped any more.
const READER_TIMEOUT: Duration = Duration::from_secs(600);

/// Delivers surveys and the end to all threads.
#[derive(Debug)]
pub struct SurveyExchange {
    state: Mutex<State>,
    changed: Condvar,
    delivered: EventFd,
}

#[derive(Debug)]
struct State {
    survey: Option<Arc<Survey>>,
    is_requested: bool,
    requested_at: Instant,
    has_ended: bool,
}

impl SurveyExchange {
    pub fn new() -> std::io::Result<Self> {
        let delivered = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let state =
            State { survey: None, is_requested: false, requested_at: Instant::now(), has_ended: false };
        Ok(Self { state: Mutex::new(state), changed: Condvar::new(), delivered })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests a new survey; [`SurveyExchange::delivered`] becomes readable once it is taken.
    pub fn request(&self) {
        let mut state = self.state();
        (state.is_requested, state.requested_at) = (true, Instant::now());
        self.changed.notify_all();
    }

    /// Notes that pages are read, without requesting a new survey.
    pub fn note_reader(&self) {
        self.state().requested_at = Instant::now();
    }

    pub fn survey(&self) -> Option<Arc<Survey>> {
        self.state().survey.clone()
    }

    /// Whether the pages are being read.
    pub fn is_read(&self) -> bool {
        self.state().requested_at.elapsed() < READER_TIMEOUT
    }

    /// Readable when a survey was delivered, until it is read.
    pub fn delivered(&self) -> &EventFd {
        &self.delivered
    }

    fn deliver(&self, survey: Arc<Survey>) {
        let mut state = self.state();
        (state.survey, state.is_requested) = (Some(survey), false);
        drop(state);
        // Fails only if it is readable already.
        let _ = self.delivered.write(1);
    }

    /// Tells all threads to end.
    pub fn end(&self) {
        self.state().has_ended = true;
        self.changed.notify_all();
    }

    /// Sleeps; false if it is time to end.
    pub fn sleep(&self, time: Duration) -> bool {
        let (state, _) = self
            .changed
            .wait_timeout_while(self.state(), time, |state| !state.has_ended)
            .unwrap_or_else(PoisonError::into_inner);
        !state.has_ended
    }

    /// Sleeps until a survey is requested or the time is over; false if it is time to end.
    fn wait_for_request(&self, time: Duration) -> bool {
        let (state, _) = self
            .changed
            .wait_timeout_while(self.state(), time, |state| !state.has_ended && !state.is_requested)
            .unwrap_or_else(PoisonError::into_inner);
        !state.has_ended
    }
}

/// Takes surveys, and writes pages to a file, on a separate thread.
pub struct SurveyThread {
    /// The processes.
    pub selection: Selection,
    /// Number of processes shown one by one.
    pub top: usize,
    /// Writes pages to a file.
    pub writer: Option<Writer>,
    /// Makes pages, and holds the states of the processes.
    pub pages: Arc<Pages>,
}

impl SurveyThread {
    /// Starts the thread.
    pub fn start(self, exchange: Arc<SurveyExchange>) -> std::io::Result<JoinHandle<()>> {
        std::thread::Builder::new().name("figures".into()).spawn(move || self.work(&exchange))
    }

    fn work(mut self, exchange: &SurveyExchange) {
        let mut surveyor = Surveyor::default();
        let mut charges = ChargeReader::default();
        loop {
            let mut survey = surveyor.take(&self.selection, self.top);
            self.pages.set_charges(charges.read(&survey, &self.selection));
            // How long a survey stays valid depends on what it cost.
            survey.took = survey.at.elapsed();
            let survey = Arc::new(survey);
            self.pages.states.follow(&survey);
            exchange.deliver(Arc::clone(&survey));
            let mut wait = SURVEY_INTERVAL;
            if let Some(writer) = &mut self.writer {
                if writer.is_due() {
                    exchange.note_reader();
                    writer.write(&self.pages.page(&survey, Format::Plain));
                }
                wait = wait.min(writer.wait());
            }
            if !exchange.wait_for_request(wait) {
                return;
            }
        }
    }
}

/// Waits for a thread to end, at most this long.
pub fn join_within(thread: JoinHandle<()>, time: Duration) {
    let until = Instant::now() + time;
    while !thread.is_finished() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(2));
    }
    if thread.is_finished() {
        // A thread that panicked has reported it.
        let _ = thread.join();
    }
}
