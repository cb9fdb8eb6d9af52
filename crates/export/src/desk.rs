//! Communication between the threads: pictures are requested and delivered here, and sleeping
//! threads are woken at the end.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::exposition::Format;
use crate::page::Pages;
use crate::textfile::Writer;
use strandline_survey::picture::{Survey, Surveyor};
use strandline_survey::select::Selection;

/// Interval of looking for processes without requests: ledgers need to know of new ones.
const PICTURE_INTERVAL: Duration = Duration::from_secs(30);
/// If no page was requested for this long, no process is stopped any more.
const READER_TIMEOUT: Duration = Duration::from_secs(600);

/// Delivers pictures and the end to all threads.
#[derive(Debug)]
pub struct PictureExchange {
    state: Mutex<State>,
    changed: Condvar,
    laid: EventFd,
}

#[derive(Debug)]
struct State {
    picture: Option<Arc<Survey>>,
    is_requested: bool,
    asked_at: Instant,
    has_ended: bool,
}

impl PictureExchange {
    pub fn new() -> std::io::Result<Self> {
        let laid = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let state = State { picture: None, is_requested: false, asked_at: Instant::now(), has_ended: false };
        Ok(Self { state: Mutex::new(state), changed: Condvar::new(), laid })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests a new picture; [`PictureExchange::laid`] becomes readable when it is there.
    pub fn request(&self) {
        let mut state = self.state();
        (state.is_requested, state.asked_at) = (true, Instant::now());
        self.changed.notify_all();
    }

    /// Notes that pages are read, without requesting a new picture.
    pub fn note_reader(&self) {
        self.state().asked_at = Instant::now();
    }

    pub fn picture(&self) -> Option<Arc<Survey>> {
        self.state().picture.clone()
    }

    /// Whether the pages are being read.
    pub fn is_read(&self) -> bool {
        self.state().asked_at.elapsed() < READER_TIMEOUT
    }

    /// Readable when a picture was delivered, until it is read.
    pub fn delivered(&self) -> &EventFd {
        &self.laid
    }

    fn deliver(&self, picture: Arc<Survey>) {
        let mut state = self.state();
        (state.picture, state.is_requested) = (Some(picture), false);
        drop(state);
        // Fails only if it is readable already.
        let _ = self.laid.write(1);
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

    /// Sleeps until a picture is requested or the time is over; false if it is time to end.
    fn wait_for_asking(&self, time: Duration) -> bool {
        let (state, _) = self
            .changed
            .wait_timeout_while(self.state(), time, |state| !state.has_ended && !state.is_requested)
            .unwrap_or_else(PoisonError::into_inner);
        !state.has_ended
    }
}

/// What is needed to make pictures.
pub struct PictureMaker {
    /// The processes.
    pub selection: Selection,
    /// Number of processes shown one by one.
    pub top: usize,
    /// Writes pages to a file.
    pub writer: Option<Writer>,
    /// Makes pages, and holds the board.
    pub pages: Arc<Pages>,
}

/// Starts the thread that makes pictures.
pub fn start(desk: Arc<PictureExchange>, mut keeper: PictureMaker) -> std::io::Result<JoinHandle<()>> {
    let body = move || {
        let mut painter = Surveyor::default();
        loop {
            let picture = Arc::new(painter.paint(&keeper.selection, keeper.top));
            keeper.pages.board.follow(&picture);
            desk.deliver(Arc::clone(&picture));
            if let Some(writer) = &mut keeper.writer
                && writer.is_due()
            {
                desk.note_reader();
                writer.write(&keeper.pages.page(&picture, Format::Plain));
            }
            let wait =
                keeper.writer.as_ref().map_or(PICTURE_INTERVAL, |writer| writer.wait().min(PICTURE_INTERVAL));
            if !desk.wait_for_asking(wait) {
                return;
            }
        }
    };
    std::thread::Builder::new().name("figures".into()).spawn(body)
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
