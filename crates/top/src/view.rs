//! What is on the screen. Nothing depends on colour: the selected row is inverted, the sorted
//! column has an arrow.

use std::time::Duration;

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Widget};
use strandline_report::text::{counted, width, wrap_at_most};
use strandline_report::units::{UNKNOWN, bytes, maybe_bytes, seconds};

use crate::keys;
use crate::rows::{Column, Kind, Row};
use crate::state::{Pane, State};

/// Shown without a ledger.
const NO_LEDGER: &str = "-";
/// Minimum width of the table as text.
const MIN_COLUMNS: usize = 40;
/// Maximum width of the table as text.
const MAX_COLUMNS: usize = 400;
/// Width of a process id: at most 4,194,304 (PID_MAX_LIMIT).
const PID_WIDTH: usize = 7;
/// Maximum width of a size: `96.0 MiB`.
const SIZE_WIDTH: usize = 8;
/// Width of the heading; a size with its sign takes one column less.
const GROWTH_WIDTH: usize = 10;
/// Maximum width of an age: see [`age`].
const AGE_WIDTH: usize = 4;

/// Maximum number of lines of a message.
const MAX_MESSAGE_LINES: usize = 8;

/// The footer of the table.
const KEYS: &str = " Enter ledger  r dry run  / filter  t tree  c groups  ←→ order  ? help  q quit";

/// Draws the screen.
pub fn draw(frame: &mut Frame<'_>, state: &mut State) {
    let footer = match state.pane {
        Pane::Table => footer(state, frame.area().width),
        Pane::Help | Pane::Text { .. } => Vec::new(),
    };
    let foot_height = footer.len().max(1) as u16;
    let [head, body, foot] =
        Layout::vertical([Constraint::Length(1), Constraint::Min(1), Constraint::Length(foot_height)])
            .areas(frame.area());
    let areas = Areas { head, body, foot };
    match &state.pane {
        Pane::Table => {
            frame.render_widget(Line::from(headline(state)).style(Modifier::BOLD), head);
            scroll_to_selected(state, usize::from(body.height.saturating_sub(1)));
            draw_table(state, body, frame.buffer_mut());
            frame.render_widget(Paragraph::new(footer), foot);
        }
        Pane::Help => {
            let lines =
                keys::HELP.iter().flat_map(|(key, effect)| [format!(" {key}"), format!("   {effect}")]);
            draw_text(frame, "keys", lines.collect(), &mut state.scroll, areas);
        }
        Pane::Text { title, lines } => {
            draw_text(frame, title, lines.clone(), &mut state.scroll, areas);
        }
    }
}

/// The parts of the screen, from top to bottom.
struct Areas {
    head: Rect,
    body: Rect,
    foot: Rect,
}

/// Draws a text that can be scrolled.
fn draw_text(frame: &mut Frame<'_>, title: &str, lines: Vec<String>, scroll: &mut u16, areas: Areas) {
    let max_scroll = lines.len().saturating_sub(usize::from(areas.body.height));
    *scroll = (*scroll).min(u16::try_from(max_scroll).unwrap_or(u16::MAX));
    frame.render_widget(Line::from(format!(" {title}")).style(Modifier::BOLD), areas.head);
    let lines: Vec<Line<'_>> = lines.into_iter().map(Line::from).collect();
    frame.render_widget(Paragraph::new(lines).scroll((*scroll, 0)), areas.body);
    let position =
        if max_scroll == 0 { String::new() } else { format!("  line {} of {}", *scroll + 1, max_scroll + 1) };
    frame.render_widget(Line::from(format!(" Esc back  ↑↓ PgUp PgDn scroll{position}")), areas.foot);
}

/// The table as text, with all rows.
pub fn table_text(state: &State, columns: u16) -> String {
    let columns = usize::from(columns).clamp(MIN_COLUMNS, MAX_COLUMNS);
    let mut text = headline(state).trim().to_owned() + "\n";
    for line in std::iter::once(heading_line(state)).chain(state.rows.iter().map(|row| row_line(state, row)))
    {
        let ends = line.char_indices().map(|(start, c)| start + c.len_utf8());
        let fitting_end = ends.take_while(|&end| width(&line[..end]) <= columns).last().unwrap_or(0);
        text.push_str(line[..fitting_end].trim_end());
        text.push('\n');
    }
    text
}

/// The line above the table.
fn headline(state: &State) -> String {
    let Some(survey) = &state.survey else { return " reading …".to_owned() };
    let subject = match state.kind {
        Kind::List | Kind::Tree => "process",
        Kind::Groups => "control group",
    };
    let subjects = counted(state.rows.len() as u64, subject);
    let filter =
        if state.filter.is_empty() { String::new() } else { format!(" with “{}”", state.filter) };
    let duration = seconds(survey.duration.as_secs_f64());
    let unread = match survey.unread_processes {
        0 => String::new(),
        count => format!(" · {} cannot be read", counted(count, "process")),
    };
    format!(" {subjects}{filter} · read in {duration}, none stopped{unread}")
}

/// The lines below the table: keys, the filter, or a message.
fn footer(state: &State, columns: u16) -> Vec<Line<'static>> {
    if state.is_typing {
        return vec![Line::from(format!(" filter: {}▏  Enter keeps it, Esc drops it", state.filter))];
    }
    let Some(message) = &state.message else { return vec![Line::from(KEYS)] };
    let lines = wrap_at_most(message, usize::from(columns).saturating_sub(1), MAX_MESSAGE_LINES);
    lines.iter().map(|line| Line::from(format!(" {line}")).style(Modifier::BOLD)).collect()
}

/// Scrolls a table of this height in rows so that the selected row is visible.
fn scroll_to_selected(state: &mut State, height: usize) {
    let (selected, height) = (state.selected_index(), height.max(1));
    let first = state.first_visible.clamp((selected + 1).saturating_sub(height), selected);
    state.first_visible = first.min(state.rows.len().saturating_sub(height));
}

/// Width of a column; `None` for the last, which takes the rest.
fn column_width(column: Column) -> Option<usize> {
    match column {
        Column::Pid => Some(PID_WIDTH),
        Column::Growth => Some(GROWTH_WIDTH),
        Column::Rss | Column::Pss | Column::Pinned => Some(SIZE_WIDTH),
        Column::Stranded => Some(SIZE_WIDTH + 1 + AGE_WIDTH),
        Column::Name => None,
    }
}

/// Draws the rows from the first visible one on, with the selected row inverted.
fn draw_table(state: &State, area: Rect, buffer: &mut Buffer) {
    let mut line = Rect { height: 1, ..area };
    Line::from(Span::styled(heading_line(state), Modifier::UNDERLINED)).render(line, buffer);
    let rows = state.rows.iter().enumerate().skip(state.first_visible);
    for (index, row) in rows.take(usize::from(area.height.saturating_sub(1))) {
        line.y += 1;
        let mut text = row_line(state, row);
        let mut style = Style::new();
        if index == state.selected_index() {
            style = Style::from(Modifier::REVERSED);
            text.push_str(&" ".repeat(usize::from(area.width).saturating_sub(width(&text))));
        }
        Line::from(Span::styled(text, style)).render(line, buffer);
    }
}

/// The line with the headings of the columns.
fn heading_line(state: &State) -> String {
    joined(&Column::ALL.map(|column| heading(state, column)))
}

/// The line of a row.
fn row_line(state: &State, row: &Row) -> String {
    joined(&Column::ALL.map(|column| cell(state, row, column)))
}

/// A line of the table, with its cells padded to the widths of the columns.
fn joined(cells: &[String]) -> String {
    let padded = Column::ALL.iter().zip(cells).map(|(column, cell)| match column_width(*column) {
        None => cell.clone(),
        Some(width) => format!("{cell:>width$}"),
    });
    padded.collect::<Vec<_>>().join(" ")
}

/// The heading of a column, with an arrow if rows are sorted by it.
fn heading(state: &State, column: Column) -> String {
    let name = match column {
        Column::Pid if state.kind == Kind::Groups => "COUNT",
        Column::Pid => "PID",
        Column::Rss => "RSS",
        Column::Pss => "PSS",
        Column::Growth => "GROWTH/MIN",
        Column::Stranded => "STRANDED  AGE",
        Column::Pinned => "PINNED",
        Column::Name => " NAME",
    };
    if column != state.sort {
        return name.to_owned();
    }
    let arrow = if state.is_reversed { '▲' } else { '▼' };
    // The arrow takes the place of one character.
    format!("{arrow}{}", name.trim_start().replace("GROWTH/MIN", "GROWTH/M").replace("  ", " "))
}

/// The cell of a row in a column.
fn cell(state: &State, row: &Row, column: Column) -> String {
    match column {
        Column::Pid => row.pid.map_or_else(|| row.processes.to_string(), |pid| pid.to_string()),
        Column::Rss => bytes(row.rss_bytes),
        Column::Pss => maybe_bytes(row.pss_bytes),
        Column::Growth => row.growth_bytes_per_minute.map_or_else(|| UNKNOWN.to_owned(), signed),
        Column::Stranded => row.ledger.map_or_else(
            || size_and_age(NO_LEDGER, ""),
            |sums| size_and_age(&bytes(sums.stranded_bytes), &age(sums.at.elapsed())),
        ),
        Column::Pinned => row.ledger.map_or_else(|| NO_LEDGER.to_owned(), |sums| bytes(sums.pinned_bytes)),
        Column::Name if state.kind == Kind::Tree => format!(" {}{}", "  ".repeat(row.depth), row.name),
        Column::Name => format!(" {}", row.name),
    }
}

/// The cell of a size of the last ledger, with its age.
fn size_and_age(size: &str, age: &str) -> String {
    format!("{size:>SIZE_WIDTH$} {age:>AGE_WIDTH$}")
}

/// A change of a size, with its sign.
fn signed(change: i64) -> String {
    let size = bytes(change.unsigned_abs());
    match change {
        0 => "0".to_owned(),
        1.. => format!("+{size}"),
        _ => format!("-{size}"),
    }
}

/// A time in at most [`AGE_WIDTH`] characters: `12s`, `5m`, `3h`, `2d`.
fn age(elapsed: Duration) -> String {
    match elapsed.as_secs() {
        seconds @ 0..100 => format!("{seconds}s"),
        seconds @ 100..6_000 => format!("{}m", seconds / 60),
        seconds @ 6_000..360_000 => format!("{}h", seconds / 3_600),
        seconds => format!("{}d", (seconds / 86_400).min(999)),
    }
}
