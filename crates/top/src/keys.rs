//! What the keys do.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::look::Request;
use crate::rows::{Column, Kind};
use crate::state::{Effect, Pane, State};

/// All keys, for the help screen.
pub const ALL: [(&str, &str); 11] = [
    ("Enter", "a ledger of the process, stopped for a moment; of a group: its processes"),
    ("r", "what the best remedy would release; stops it for a moment, applies nothing"),
    ("Up Down PgUp PgDn Home End", "another row; so do j and k"),
    ("Left Right", "the order: another column"),
    ("R", "the order: the other way round"),
    ("/", "only what has this in its name, group or id; Enter keeps it, Esc forgets it"),
    ("t", "processes as a tree of parents and children"),
    ("c", "control groups, each the sum of its processes"),
    ("?", "this"),
    ("Esc", "back"),
    ("q", "the end; so does Ctrl-C; Ctrl-Z stops it for a while"),
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
        Pane::Table => in_table(state, key.code),
        Pane::Help | Pane::Text { .. } => {
            in_text(state, key.code);
            Effect::Nothing
        }
    }
}

fn type_filter(state: &mut State, key: KeyCode) {
    match key {
        KeyCode::Enter => state.is_typing = false,
        KeyCode::Esc => (state.is_typing, state.filter) = (false, String::new()),
        KeyCode::Backspace => drop(state.filter.pop()),
        KeyCode::Char(character) if state.filter.len() < 64 => state.filter.push(character),
        _ => {}
    }
}

fn in_text(state: &mut State, key: KeyCode) {
    let by: i32 = match key {
        KeyCode::Up | KeyCode::Char('k') => -1,
        KeyCode::Down | KeyCode::Char('j') | KeyCode::Enter => 1,
        KeyCode::PageUp => -20,
        KeyCode::PageDown | KeyCode::Char(' ') => 20,
        KeyCode::Home => i32::MIN,
        KeyCode::End => i32::from(u16::MAX),
        KeyCode::Esc | KeyCode::Char('q' | '?') => return state.pane = Pane::Table,
        _ => 0,
    };
    state.scroll = u16::try_from(i32::from(state.scroll).saturating_add(by).max(0)).unwrap_or(u16::MAX);
}

fn in_table(state: &mut State, key: KeyCode) -> Effect {
    match key {
        KeyCode::Char('q') => return Effect::End,
        KeyCode::Char('?' | 'h') => (state.pane, state.scroll) = (Pane::Help, 0),
        KeyCode::Up | KeyCode::Char('k') => state.move_by(-1),
        KeyCode::Down | KeyCode::Char('j') => state.move_by(1),
        KeyCode::PageUp => state.move_by(-20),
        KeyCode::PageDown => state.move_by(20),
        KeyCode::Home => state.move_by(isize::MIN),
        KeyCode::End => state.move_by(isize::MAX),
        KeyCode::Left | KeyCode::Char('<') => state.sort_by(|all, at| (at + all - 1) % all),
        KeyCode::Right | KeyCode::Char('>') => state.sort_by(|all, at| (at + 1) % all),
        KeyCode::Char('R') => state.is_reversed = !state.is_reversed,
        KeyCode::Char('/') => state.is_typing = true,
        KeyCode::Char('t') => state.toggle(Kind::Tree),
        KeyCode::Char('c') => state.toggle(Kind::Groups),
        KeyCode::Esc => (state.filter, state.message) = (String::new(), None),
        KeyCode::Enter => return enter(state),
        KeyCode::Char('r') => return look(state, Request::DryRun),
        _ => {}
    }
    Effect::Nothing
}

fn enter(state: &mut State) -> Effect {
    let Some(row) = state.selected() else { return Effect::Nothing };
    if state.kind != Kind::Groups {
        return look(state, Request::Ledger);
    }
    // The sum of small groups has no list.
    if let Some(group) = row.group.clone().filter(|group| group.starts_with('/')) {
        (state.kind, state.filter) = (Kind::List, group);
        state.sort = Column::Rss;
    }
    Effect::Nothing
}

fn look(state: &mut State, wanted: Request) -> Effect {
    match state.selected().and_then(|row| row.pid) {
        Some(pid) => Effect::Look(pid, wanted),
        None => {
            state.message = Some("that is for a process: press c for the list of them".to_owned());
            Effect::Nothing
        }
    }
}
