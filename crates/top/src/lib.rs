//! A live table of processes by the memory they hold. It looks at what the kernel counts only, for which nothing is stopped; a
//! ledger, or a remedy's dry run, of one process is taken where its reader asks for it by a key, and by whoever started this:
//! how is not known here.
//!
//! Data flows one way: `watch` (a thread that makes pictures of all processes) → `rows` (growth, order, filter, tree) → `view`
//! (what is on the screen). `state` is what its reader chose by `keys`; `look` is the thread that takes what was asked for;
//! `terminal` is the only room that knows the terminal, and gives it back as it was.

#![forbid(unsafe_code)]

mod keys;
mod look;
mod rows;
mod state;
mod terminal;
mod view;
mod watch;

use std::sync::mpsc::Receiver;
use std::time::Duration;

use strandline_survey::{Painter, Picture, Selection};

pub use look::{Look, Looked, Wanted};
use rows::History;
pub use rows::{Column, Kind};
use state::{Act, State};
use terminal::{Heard, Screen};

/// What to show.
#[derive(Debug)]
pub struct Options {
    /// Which processes.
    pub selection: Selection,
    /// How often it looks at them; less often where looking takes long.
    pub interval: Duration,
    /// By which column the table is in order.
    pub sort: Column,
    /// Processes in order, as a tree, or control groups.
    pub kind: Kind,
}

/// Between two looks of one that is asked for a single table.
const ONCE: Duration = Duration::from_secs(2);

/// The table, once, as text: `columns` wide, of all rows. It takes two seconds, after which growth is known.
pub fn once(options: Options, columns: u16) -> String {
    let mut painter = Painter::default();
    let mut history = History::default();
    history.add(&painter.paint(&options.selection, usize::MAX));
    std::thread::sleep(ONCE.min(options.interval));
    let picture = painter.paint(&options.selection, usize::MAX);
    history.add(&picture);
    let mut state = State::new(options.sort, options.kind);
    state.picture = Some(picture);
    state.arrange(&history);
    view::text_of(&state, columns)
}

/// Shows the table until its reader, a signal, or the end of the terminal ends it.
///
/// # Errors
/// One line: a terminal that cannot be used.
pub fn run(options: Options, look: Look) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("the terminal cannot be used: {error}");
    if !terminal::is_there() {
        let line =
            "top needs a terminal on standard input and output; `strandline top --once` prints the table";
        return Err(line.to_owned());
    }
    let mut screen = Screen::open().map_err(failed)?;
    let watch = watch::start(options.selection, options.interval, screen.waker()).map_err(failed)?;
    let looker = look::start(look, screen.waker()).map_err(failed)?;
    let state = State::new(options.sort, options.kind);
    match show(&mut screen, state, &watch, &looker) {
        // The terminal went in the midst of a step: its end, as any.
        Err(_) if terminal::has_hung_up() => Ok(()),
        shown => shown.map_err(failed),
    }
}

/// Draws, waits and answers until it ends.
fn show(
    screen: &mut Screen,
    mut state: State,
    watch: &Receiver<Picture>,
    looker: &look::Looker,
) -> std::io::Result<()> {
    let mut history = History::default();
    loop {
        screen.draw(|frame| view::draw(frame, &mut state))?;
        match screen.wait()? {
            Heard::End => return Ok(()),
            Heard::Suspend => screen.suspend()?,
            Heard::News => {}
            Heard::Keys(all) => {
                for key in all {
                    match keys::press(&mut state, key) {
                        Act::Nothing => {}
                        Act::End => return Ok(()),
                        Act::Suspend => screen.suspend()?,
                        Act::Look(pid, wanted) => {
                            let columns = screen.columns();
                            state.ask(pid, wanted, || looker.ask(pid, wanted, columns));
                        }
                    }
                }
            }
        }
        if let Some(picture) = watch.try_iter().last() {
            history.add(&picture);
            state.picture = Some(picture);
        }
        looker.answers().for_each(|answer| state.hear(answer));
        state.arrange(&history);
    }
}
