//! Where the threads meet: a picture is asked for here and laid down here, and whoever sleeps here hears of the end.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::exposition::Format;
use crate::page::Pages;
use crate::textfile::Writer;
use strandline_survey::picture::{Painter, Picture};
use strandline_survey::select::Selection;

/// Processes are looked for this often where nobody asks: ledgers want to know of new ones.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// Where nobody has asked for so long, no process is stopped any more.
const STILL_READ: Duration = Duration::from_secs(600);

/// See the module.
#[derive(Debug)]
pub struct Desk {
    state: Mutex<State>,
    changed: Condvar,
    laid: EventFd,
}

#[derive(Debug)]
struct State {
    picture: Option<Arc<Picture>>,
    is_asked: bool,
    asked_at: Instant,
    has_ended: bool,
}

impl Desk {
    /// An empty one.
    pub fn new() -> std::io::Result<Self> {
        let laid = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let state = State { picture: None, is_asked: false, asked_at: Instant::now(), has_ended: false };
        Ok(Self { state: Mutex::new(state), changed: Condvar::new(), laid })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for a new picture; it comes when [`Desk::laid`] is readable.
    pub fn ask(&self) {
        let mut state = self.state();
        (state.is_asked, state.asked_at) = (true, Instant::now());
        self.changed.notify_all();
    }

    /// Notes that somebody reads, without asking for a new picture.
    pub fn note_reader(&self) {
        self.state().asked_at = Instant::now();
    }

    /// The last picture.
    pub fn picture(&self) -> Option<Arc<Picture>> {
        self.state().picture.clone()
    }

    /// Whether anybody reads what is written.
    pub fn is_read(&self) -> bool {
        self.state().asked_at.elapsed() < STILL_READ
    }

    /// Readable when a picture was laid down, until it is read.
    pub fn laid(&self) -> &EventFd {
        &self.laid
    }

    fn lay(&self, picture: Arc<Picture>) {
        let mut state = self.state();
        (state.picture, state.is_asked) = (Some(picture), false);
        drop(state);
        // It fails where it is readable already.
        let _ = self.laid.write(1);
    }

    /// Everybody goes home.
    pub fn end(&self) {
        self.state().has_ended = true;
        self.changed.notify_all();
    }

    /// Sleeps; false where it is time to end.
    pub fn sleep(&self, time: Duration) -> bool {
        let (state, _) = self
            .changed
            .wait_timeout_while(self.state(), time, |state| !state.has_ended)
            .unwrap_or_else(PoisonError::into_inner);
        !state.has_ended
    }

    /// Sleeps until a picture is asked for or the time is over; false where it is time to end.
    fn wait_for_asking(&self, time: Duration) -> bool {
        let (state, _) = self
            .changed
            .wait_timeout_while(self.state(), time, |state| !state.has_ended && !state.is_asked)
            .unwrap_or_else(PoisonError::into_inner);
        !state.has_ended
    }
}

/// What it takes to make pictures.
pub struct Keeper {
    /// Of which processes.
    pub selection: Selection,
    /// So many one by one.
    pub top: usize,
    /// Writes a file of them.
    pub writer: Option<Writer>,
    /// Makes pages, and knows what is known of processes.
    pub pages: Arc<Pages>,
}

/// Starts the thread that makes pictures.
pub fn keep(desk: Arc<Desk>, mut keeper: Keeper) -> std::io::Result<JoinHandle<()>> {
    let body = move || {
        let mut painter = Painter::default();
        loop {
            let picture = Arc::new(painter.paint(&keeper.selection, keeper.top));
            keeper.pages.board.follow(&picture);
            desk.lay(Arc::clone(&picture));
            if let Some(writer) = &mut keeper.writer
                && writer.is_due()
            {
                desk.note_reader();
                writer.write(&keeper.pages.page(&picture, Format::Plain));
            }
            let wait = keeper.writer.as_ref().map_or(LOOK_EVERY, |writer| writer.wait().min(LOOK_EVERY));
            if !desk.wait_for_asking(wait) {
                return;
            }
        }
    };
    std::thread::Builder::new().name("figures".into()).spawn(body)
}

/// Waits for a thread's end, but not longer than this.
pub fn join_within(thread: JoinHandle<()>, time: Duration) {
    let until = Instant::now() + time;
    while !thread.is_finished() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(2));
    }
    if thread.is_finished() {
        // One that panicked has said so.
        let _ = thread.join();
    }
}
