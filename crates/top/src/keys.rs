//! What the keys do.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::requests::Request;
use crate::rows::{Column, Kind};
use crate::state::{Effect, Pane, State};

/// Rows by which a page key moves: a little less than a screen of 24 lines.
const PAGE_ROWS: u16 = 20;
/// Maximum length of a filter: it is shown on one line.
const MAX_FILTER_BYTES: usize = 64;

/// All keys and what they do, for the help screen.
pub const HELP: [(&str, &str); 11] = [
    ("Enter", "take a ledger of a process, stopped for a moment; list those of a group"),
    ("r", "show what the best remedy would release; stops it briefly, applies nothing"),
    ("Up Down PgUp PgDn Home End", "select another row; so do j and k"),
    ("Left Right", "sort by another column"),
    ("R", "reverse the order"),
    ("/", "show only rows with a text in name, group or id; Enter keeps, Esc drops it"),
    ("t", "show processes as a tree of parents and children"),
    ("c", "show control groups, each the sum of its processes"),
    ("?", "this list of keys"),
    ("Esc", "go back"),
    ("q", "end; so does Ctrl-C; Ctrl-Z stops it for a while"),
];

/// Handles a key.
pub fn press(state: &mut State, key: KeyEvent) -> Effect {
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return match key.code {
            KeyCode::Char('c') => Effect::End,
            KeyCode::Char('z') => Effect::Suspend,
            _ => Effect::Nothing,
        };
    }
    if state.is_typing {
        type_filter(state, key.code);
        return Effect::Nothing;
    }
    match &state.pane {
        Pane::Table => press_in_table(state, key.code),
        Pane::Help | Pane::Text { .. } => {
            press_in_text(state, key.code);
            Effect::Nothing
        }
    }
}

/// A key while the filter is typed.
fn type_filter(state: &mut State, key: KeyCode) {
    match key {
        KeyCode::Enter => state.is_typing = false,
        KeyCode::Esc => (state.is_typing, state.filter) = (false, String::new()),
        KeyCode::Backspace => drop(state.filter.pop()),
        KeyCode::Char(character) if state.filter.len() < MAX_FILTER_BYTES => state.filter.push(character),
        _ => {}
    }
}

/// A key on the screen with the keys or a result.
fn press_in_text(state: &mut State, key: KeyCode) {
    let lines: i32 = match key {
        KeyCode::Up | KeyCode::Char('k') => -1,
        KeyCode::Down | KeyCode::Char('j') | KeyCode::Enter => 1,
        KeyCode::PageUp => -i32::from(PAGE_ROWS),
        KeyCode::PageDown | KeyCode::Char(' ') => i32::from(PAGE_ROWS),
        KeyCode::Home => i32::MIN,
        KeyCode::End => i32::from(u16::MAX),
        KeyCode::Esc | KeyCode::Char('q' | '?') => return state.pane = Pane::Table,
        _ => 0,
    };
    state.scroll = u16::try_from(i32::from(state.scroll).saturating_add(lines).max(0)).unwrap_or(u16::MAX);
}

/// A key on the table.
fn press_in_table(state: &mut State, key: KeyCode) -> Effect {
    match key {
        KeyCode::Char('q') => return Effect::End,
        KeyCode::Char('?' | 'h') => (state.pane, state.scroll) = (Pane::Help, 0),
        KeyCode::Up | KeyCode::Char('k') => state.move_by(-1),
        KeyCode::Down | KeyCode::Char('j') => state.move_by(1),
        KeyCode::PageUp => state.move_by(-(PAGE_ROWS as isize)),
        KeyCode::PageDown => state.move_by(PAGE_ROWS as isize),
        KeyCode::Home => state.move_by(isize::MIN),
        KeyCode::End => state.move_by(isize::MAX),
        KeyCode::Left | KeyCode::Char('<') => state.sort_by(|index, count| (index + count - 1) % count),
        KeyCode::Right | KeyCode::Char('>') => state.sort_by(|index, count| (index + 1) % count),
        KeyCode::Char('R') => state.is_reversed = !state.is_reversed,
        KeyCode::Char('/') => state.is_typing = true,
        KeyCode::Char('t') => state.toggle(Kind::Tree),
        KeyCode::Char('c') => state.toggle(Kind::Groups),
        KeyCode::Esc => (state.filter, state.message) = (String::new(), None),
        KeyCode::Enter => return enter(state),
        KeyCode::Char('r') => return request_read(state, Request::DryRun),
        _ => {}
    }
    Effect::Nothing
}

/// Requests a ledger of the selected process, or lists the processes of the selected group.
fn enter(state: &mut State) -> Effect {
    let Some(row) = state.selected() else { return Effect::Nothing };
    if state.kind != Kind::Groups {
        return request_read(state, Request::Ledger);
    }
    // The sum of small groups has no list.
    if let Some(group) = row.group.clone().filter(|group| group.starts_with('/')) {
        (state.kind, state.filter) = (Kind::List, group);
        state.sort = Column::Rss;
    }
    Effect::Nothing
}

/// Requests to read the selected process.
fn request_read(state: &mut State, request: Request) -> Effect {
    match state.selected().and_then(|row| row.pid) {
        Some(pid) => Effect::Read { pid, request },
        None => {
            state.message = Some("only a process can be read: press c for the list of processes".to_owned());
            Effect::Nothing
        }
    }
}
