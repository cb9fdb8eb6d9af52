//! A live table of processes by the memory they hold. It reads only what the kernel counts, which
//! stops no process. When the user presses a key, a callback of the caller takes a ledger of one
//! process, or makes a dry run of a remedy.
//!
//! Data flows one way: `watch` (a thread that takes surveys of all processes) → `rows` (growth,
//! order, filter, tree) → `view` (what is on the screen). `state` holds what the user chose by
//! `keys`; `requests` has the thread that reads what was requested; `terminal` is the only module
//! that accesses the terminal, and restores it. `document` is the table for scripts.

#![forbid(unsafe_code)]

mod document;
mod keys;
mod requests;
mod rows;
mod state;
mod terminal;
mod view;
mod watch;

use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;

use strandline_survey::{Selection, Survey, Surveyor, raise_file_limit};

pub use document::Document;
pub use requests::{LedgerCallback, Request, RequestResult, StateSums};
use rows::History;
pub use rows::{Column, Kind};
use state::{Effect, State};
use terminal::{Screen, ScreenEvent};

/// What to show.
#[derive(Debug)]
pub struct Options {
    /// Which processes.
    pub selection: Selection,
    /// Interval between surveys; longer if taking them takes long.
    pub interval: Duration,
    /// Column by which the table is sorted.
    pub sort: Column,
    /// Processes as a list or a tree, or control groups.
    pub kind: Kind,
}

/// Maximum time between the two surveys for a single table.
const ONCE_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum time for proportional set sizes, all in the second one: no later one reads the others.
const ONCE_PSS_TIME: Duration = Duration::from_millis(500);

/// The table as text, once, `columns` wide, with all rows. Takes up to two seconds, to measure
/// growth.
pub fn once(options: Options, columns: u16) -> String {
    view::table_text(&state_once(options), columns)
}

/// The table for scripts, once, with all rows. Takes as long as [`once`].
pub fn document_once(options: Options) -> Document {
    let has_groups = options.kind == Kind::Groups;
    let state = state_once(options);
    let unread_processes = state.survey.as_ref().map_or(0, |survey| survey.unread_processes);
    Document::new(&state.rows, has_groups, unread_processes)
}

/// The rows of a single table.
fn state_once(options: Options) -> State {
    raise_file_limit();
    let mut surveyor = Surveyor::default();
    surveyor.pss_time_limit = Duration::ZERO;
    let mut history = History::default();
    history.add(&surveyor.take(&options.selection, usize::MAX));
    std::thread::sleep(ONCE_INTERVAL.min(options.interval));
    surveyor.pss_time_limit = ONCE_PSS_TIME;
    let survey = surveyor.take(&options.selection, usize::MAX);
    history.add(&survey);
    let mut state = State::new(options.sort, options.kind);
    state.survey = Some(survey);
    state.arrange(&history);
    state
}

/// Shows the table until the user, a signal, or the end of the terminal ends it.
///
/// # Errors
/// One line: the terminal cannot be used, or no thread can be started.
pub fn run(options: Options, read_process: LedgerCallback) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("the terminal cannot be used: {error}");
    if !terminal::is_interactive() {
        let message =
            "top needs a terminal on standard input and output; `strandline top --once` prints the table";
        return Err(message.to_owned());
    }
    let no_thread = |error: std::io::Error| format!("no thread can be started: {error}");
    raise_file_limit();
    let mut screen = Screen::open().map_err(failed)?;
    terminal::exit_on_hangup().map_err(no_thread)?;
    let surveys = watch::start(options.selection, options.interval, screen.waker()).map_err(no_thread)?;
    let requester = requests::start(read_process, screen.waker()).map_err(no_thread)?;
    let state = State::new(options.sort, options.kind);
    match run_screen(&mut screen, state, &surveys, &requester) {
        // The terminal was closed in the middle of a step, which is a normal end.
        Err(_) if terminal::has_hung_up() => Ok(()),
        result => result.map_err(failed),
    }
}

/// Draws, waits and handles input until the user or a signal ends the program.
fn run_screen(
    screen: &mut Screen,
    mut state: State,
    surveys: &Receiver<Survey>,
    requester: &requests::Requester,
) -> std::io::Result<()> {
    let mut history = History::default();
    loop {
        screen.draw(|frame| view::draw(frame, &mut state))?;
        match screen.wait()? {
            ScreenEvent::End => return Ok(()),
            ScreenEvent::Suspend => screen.suspend()?,
            ScreenEvent::News => {}
            ScreenEvent::Keys(keys) => {
                for key in keys {
                    match keys::press(&mut state, key) {
                        Effect::Nothing => {}
                        Effect::End => return Ok(()),
                        Effect::Suspend => screen.suspend()?,
                        Effect::Read { pid, request } => {
                            let columns = screen.columns();
                            state.request_read(pid, request, || requester.send(pid, request, columns));
                        }
                    }
                }
            }
        }
        match surveys.try_recv() {
            Ok(survey) => {
                history.add(&survey);
                state.survey = Some(survey);
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => {
                let message = "the figures are not updated any more: the thread that reads them has failed";
                state.message.get_or_insert_with(|| message.to_owned());
            }
        }
        requester.answers().for_each(|answer| state.take_result(answer));
        state.arrange(&history);
    }
}
