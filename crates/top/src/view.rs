//! What is on the screen. Nothing depends on colour: the selected row is inverted, the sorted
//! column has an arrow.

use std::time::Duration;

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Widget};
use strandline_report::units::{bytes, maybe_bytes, thousands};

use crate::keys;
use crate::rows::{Column, Kind, Row};
use crate::state::{Pane, State};

/// Shown for an unknown figure.
const UNKNOWN: &str = "?";
/// Shown if there was no ledger.
const NONE: &str = "-";
/// Maximum width of the table as text.
const MAX_COLUMNS: u16 = 400;

const KEYS: &str = " Enter ledger  r dry run  / filter  t tree  c groups  ←→ order  ? help  q quit";

pub fn draw(frame: &mut Frame<'_>, state: &mut State) {
    let [head, middle, foot] =
        Layout::vertical([Constraint::Length(1), Constraint::Min(1), Constraint::Length(1)])
            .areas(frame.area());
    match &state.pane {
        Pane::Table => {
            frame.render_widget(Line::from(headline(state)).style(Modifier::BOLD), head);
            scroll_to_chosen(state, usize::from(middle.height.saturating_sub(1)));
            table(state, middle, frame.buffer_mut(), true);
            frame.render_widget(footer(state), foot);
        }
        Pane::Help => {
            let lines = keys::ALL.iter().flat_map(|(key, what)| [format!(" {key}"), format!("   {what}")]);
            text(frame, "keys", lines.collect(), &mut state.scroll, (head, middle, foot));
        }
        Pane::Text { title, lines } => {
            text(frame, title, lines.clone(), &mut state.scroll, (head, middle, foot));
        }
    }
}

fn text(frame: &mut Frame<'_>, title: &str, lines: Vec<String>, scroll: &mut u16, areas: (Rect, Rect, Rect)) {
    let (head, middle, foot) = areas;
    let most = lines.len().saturating_sub(usize::from(middle.height));
    *scroll = (*scroll).min(u16::try_from(most).unwrap_or(u16::MAX));
    frame.render_widget(Line::from(format!(" {title}")).style(Modifier::BOLD), head);
    let shown: Vec<Line<'_>> = lines.into_iter().map(Line::from).collect();
    frame.render_widget(Paragraph::new(shown).scroll((*scroll, 0)), middle);
    let where_it_is =
        if most == 0 { String::new() } else { format!("  line {} of {}", *scroll + 1, most + 1) };
    frame.render_widget(Line::from(format!(" Esc back  ↑↓ PgUp PgDn scroll{where_it_is}")), foot);
}

/// The table as text, with all rows.
pub fn text_of(state: &State, columns: u16) -> String {
    let height = u16::try_from(state.rows.len() + 1).unwrap_or(u16::MAX);
    let area = Rect::new(0, 0, columns.clamp(40, MAX_COLUMNS), height);
    let mut buffer = Buffer::empty(area);
    table(state, area, &mut buffer, false);
    let mut all = headline(state).trim().to_owned() + "\n";
    for y in 0..area.height {
        let line: String = (0..area.width).filter_map(|x| Some(buffer.cell((x, y))?.symbol())).collect();
        all.push_str(line.trim_end());
        all.push('\n');
    }
    all
}

fn headline(state: &State) -> String {
    let Some(survey) = &state.survey else { return " reading …".to_owned() };
    let what = match state.kind {
        Kind::List | Kind::Tree => "processes",
        Kind::Groups => "control groups",
    };
    let chosen =
        if state.filter.is_empty() { String::new() } else { format!(" with “{}”", state.filter) };
    let took = strandline_report::units::seconds(survey.took.as_secs_f64());
    format!(" {} {what}{chosen} · read in {took}, none stopped", thousands(state.rows.len() as u64))
}

fn footer(state: &State) -> Line<'_> {
    if state.is_typing {
        return Line::from(format!(" filter: {}▏  Enter keeps it, Esc forgets it", state.filter));
    }
    match &state.message {
        Some(message) => Line::from(format!(" {message}")).style(Modifier::BOLD),
        None => Line::from(KEYS),
    }
}

fn scroll_to_chosen(state: &mut State, height: usize) {
    let (at, height) = (state.selected_index(), height.max(1));
    state.first = state.first.clamp((at + 1).saturating_sub(height), at);
    state.first = state.first.min(state.rows.len().saturating_sub(height));
}

/// Width of a column; the last takes the rest.
fn width(column: Column) -> usize {
    match column {
        Column::Pid => 7,
        Column::Growth => 10,
        Column::Rss | Column::Pss | Column::Pinned => 8,
        // Includes the age.
        Column::Stranded => 13,
        Column::Name => 0,
    }
}

fn table(state: &State, area: Rect, buffer: &mut Buffer, is_live: bool) {
    let heads = Column::ALL.iter().map(|column| heading(state, *column)).collect::<Vec<_>>();
    let mut line = area;
    line.height = 1;
    Line::from(Span::styled(joined(&heads), Style::from(Modifier::UNDERLINED))).render(line, buffer);
    let rows = state.rows.iter().enumerate().skip(if is_live { state.first } else { 0 });
    for (at, row) in rows.take(usize::from(area.height.saturating_sub(1))) {
        line.y += 1;
        let mut shown = joined(&Column::ALL.map(|column| cell(state, row, column)));
        let mut style = Style::new();
        if is_live && at == state.selected_index() {
            style = Style::from(Modifier::REVERSED);
            let missing = usize::from(area.width).saturating_sub(shown.chars().count());
            shown.extend(std::iter::repeat_n(' ', missing));
        }
        Line::from(Span::styled(shown, style)).render(line, buffer);
    }
}

fn joined(cells: &[String]) -> String {
    let padded = Column::ALL.iter().zip(cells).map(|(column, cell)| match width(*column) {
        0 => cell.clone(),
        width => format!("{cell:>width$}"),
    });
    padded.collect::<Vec<_>>().join(" ")
}

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

fn cell(state: &State, row: &Row, column: Column) -> String {
    match column {
        Column::Pid => row.pid.map_or_else(|| row.processes.to_string(), |pid| pid.to_string()),
        Column::Rss => bytes(row.rss_bytes),
        Column::Pss => maybe_bytes(row.pss_bytes),
        Column::Growth => row.growth_bytes.map_or_else(|| UNKNOWN.to_owned(), signed),
        Column::Stranded => row.ledger.map_or_else(
            || format!("{NONE:>8}     "),
            |sums| format!("{:>8} {:>4}", bytes(sums.stranded_bytes), age(sums.at.elapsed())),
        ),
        Column::Pinned => row.ledger.map_or_else(|| NONE.to_owned(), |sums| bytes(sums.pinned_bytes)),
        Column::Name if state.kind == Kind::Tree => format!(" {}{}", "  ".repeat(row.depth), row.name),
        Column::Name => format!(" {}", row.name),
    }
}

fn signed(change: i64) -> String {
    let size = bytes(change.unsigned_abs());
    match change {
        0 => "0".to_owned(),
        1.. => format!("+{size}"),
        _ => format!("-{size}"),
    }
}

/// A time in at most four characters: `12s`, `5m`, `3h`, `2d`.
fn age(age: Duration) -> String {
    match age.as_secs() {
        seconds @ 0..100 => format!("{seconds}s"),
        seconds @ 100..6_000 => format!("{}m", seconds / 60),
        seconds @ 6_000..360_000 => format!("{}h", seconds / 3_600),
        seconds => format!("{}d", (seconds / 86_400).min(999)),
    }
}
