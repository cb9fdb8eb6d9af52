//! The control group in the terminal: its rows stacked over time below the limit, a table of them,
//! and what it held at a kill.

use super::chart::{AXIS_COLUMNS, with_axes};
use super::choice::seconds_of;
use super::group_view::{Band, GroupView, Line, in_cells};
use super::{GroupPoint, Timeline};
use crate::paint::{Paint, Surface};
use crate::table::{Column, figures, lay_out, words};
use crate::terminal::{strong, table_lines};
use crate::text::wrap;
use crate::units::{bytes, maybe_bytes};

/// Height of the chart in lines.
const LINES: usize = 10;
/// The letters of the bands, at least as many as there are bands.
const LETTERS: &[u8; 8] = b"ABCDEFGH";
/// The colours of the bands, of the 256.
const COLOURS: [u8; 8] = [32, 166, 36, 175, 214, 74, 245, 61];
/// What the limit is drawn with.
const LIMIT: char = '─';

/// The groups of a recording. A group without a limit takes one line: other programs may run in it,
/// which are not recorded.
pub(super) fn groups(timeline: &Timeline, surface: Surface) -> Vec<String> {
    let mut lines = Vec::new();
    for view in GroupView::all(timeline) {
        lines.push(String::new());
        if !view.is_limited() {
            let peak = maybe_bytes(view.group.peak().map(|peak| peak.current_bytes));
            let text = format!("{}: charge up to {peak}; --format html has its rows", view.title);
            lines.extend(wrap(&text, surface.columns));
            continue;
        }
        lines.extend(wrap(&view.title, surface.columns));
        let kill: Vec<String> =
            view.kill_sentences().iter().flat_map(|text| wrap(text, surface.columns)).collect();
        lines.extend(strong(&kill, surface));
        lines.extend(stacked_chart(&view, timeline.last_us(), surface));
        lines.extend(table(&view, surface));
    }
    lines
}

/// The bands stacked over time, with axes.
fn stacked_chart(view: &GroupView<'_>, end_us: u64, surface: Surface) -> Vec<String> {
    let columns = surface.columns.saturating_sub(AXIS_COLUMNS);
    let points = in_cells(view.group, end_us, columns);
    let row = |level: usize| line_text(&line_cells(view, &points, level, end_us), surface);
    let rows = (0..LINES).rev().map(row).collect();
    let labels = [view.top_bytes, view.top_bytes / 2].map(bytes);
    with_axes(rows, labels, &"─".repeat(columns), end_us)
}

/// What a cell of the chart shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cell {
    /// A band, by its index.
    Band(usize),
    Limit,
    Nothing,
}

/// The cells of the line `level`, counted from the bottom. A cell shows the band that covers its
/// middle, or else the limit if that is within the line.
fn line_cells(view: &GroupView<'_>, points: &[Option<&GroupPoint>], level: usize, end_us: u64) -> Vec<Cell> {
    // Bytes at a height in half lines.
    let bytes_at = |height: usize| (u128::from(view.top_bytes) * height as u128 / (2 * LINES as u128)) as u64;
    let (low, middle, high) = (bytes_at(2 * level), bytes_at(2 * level + 1), bytes_at(2 * level + 2));
    let limit_at = |column: usize| {
        let at_us = u128::from(end_us) * (column as u128 + 1) / points.len().max(1) as u128;
        let steps = view.group.limits.iter().take_while(|step| u128::from(step.at_us) <= at_us);
        steps.last().and_then(|step| step.bytes)
    };
    let mut cells = Vec::with_capacity(points.len());
    for (column, point) in points.iter().enumerate() {
        let mut sum = 0u64;
        let mut reaches_middle = |point: &GroupPoint, band: &Band| {
            sum = sum.saturating_add(band.bytes(point));
            sum > middle
        };
        let band = point.and_then(|point| view.bands.iter().position(|band| reaches_middle(point, band)));
        let has_limit = limit_at(column).is_some_and(|limit| low < limit && limit <= high);
        cells.push(match band {
            Some(band) => Cell::Band(band),
            None if has_limit => Cell::Limit,
            None => Cell::Nothing,
        });
    }
    cells
}

/// Cells as text: a letter for each band.
fn line_text(cells: &[Cell], surface: Surface) -> String {
    let mut text = String::new();
    for run in cells.chunk_by(|a, b| a == b) {
        let cell = run.first().copied().unwrap_or(Cell::Nothing);
        let repeated = |glyph: char| glyph.to_string().repeat(run.len());
        text += &match cell {
            Cell::Band(band) => {
                let letter = LETTERS.get(band).map_or('?', |&letter| char::from(letter));
                let colour = COLOURS.get(band).copied().unwrap_or_default();
                surface.paint(Paint::Colour(colour), &repeated(letter))
            }
            Cell::Limit => repeated(LIMIT),
            Cell::Nothing => repeated(' '),
        };
    }
    text.trim_end().to_owned()
}

/// The rows at the peak, before a kill and at the last sample.
fn table(view: &GroupView<'_>, surface: Surface) -> Vec<String> {
    let mut head: Vec<Column> =
        vec![words(" "), figures("at the peak"), figures("last"), words("row"), words("state")];
    if view.kill.is_some() {
        head.insert(2, figures("before the kill"));
    }
    let row = |line: &Line| {
        let letter = line.band.and_then(|band| LETTERS.get(band));
        let mut cells = vec![letter.map_or(String::new(), |&letter| char::from(letter).to_string())];
        cells.push(bytes(line.peak_bytes));
        cells.extend(view.kill.map(|_| maybe_bytes(line.kill_bytes)));
        cells.extend([bytes(line.last_bytes), line.name.clone(), line.state.to_owned()]);
        cells
    };
    let rows: Vec<Vec<String>> = view.lines.iter().map(row).collect();
    let mut lines = vec![String::new()];
    let row_names = head.len() - 2;
    lines.extend(table_lines(lay_out(&head, &rows, row_names, surface.columns), surface));
    let limit = match view.group.limits.iter().filter_map(|step| step.bytes).min() {
        Some(limit) if limit <= view.top_bytes => format!("; {LIMIT} is the limit"),
        Some(limit) => format!("; the limit of {} is above the picture", bytes(limit)),
        None => String::new(),
    };
    lines.push(format!("the peak was at {:.3} s{limit}", seconds_of(view.peak_us)));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::is_unsafe;
    use crate::timeline::chart::{Glyphs, chart};
    use crate::timeline::fabricated;

    const PLAIN: Surface = Surface { columns: 80, has_colour: false };

    #[test]
    fn a_group_is_stacked_below_its_limit() {
        let timeline = fabricated::limited();
        insta::assert_snapshot!(groups(&timeline, PLAIN).join("\n"));
    }

    #[test]
    fn without_a_limit_there_is_one_line() {
        let mut timeline = fabricated::limited();
        timeline.groups[0].limits.clear();
        timeline.groups[0].start.effective_limit_bytes = None;
        timeline.end = None;
        let lines = groups(&timeline, PLAIN);
        assert!(lines.len() == 2 && lines[1].contains("(no limit): charge up to"), "{lines:?}");
    }

    #[test]
    fn any_figures_and_names_are_shown() {
        for timeline in [fabricated::hostile(), fabricated::absurd(), fabricated::limited()] {
            for columns in [80, 200] {
                for glyphs in [Glyphs::Braille, Glyphs::Ascii] {
                    let surface = Surface { columns, has_colour: false };
                    let text = chart(std::slice::from_ref(&timeline), None, surface, glyphs);
                    assert!(text.contains("control group"), "{text}");
                    assert!(!text.chars().any(|c| is_unsafe(c) && c != '\n'));
                }
            }
        }
    }
}
