//! The control group in the terminal: its rows stacked over time below the limit, a table of them,
//! and what it held at a kill.

use super::choice::{seconds_of, time};
use super::group_view::{Band, GroupView, Line, in_cells};
use super::{GroupPoint, Timeline};
use crate::paint::{Paint, Surface};
use crate::table::{Column, figures, lay_out, words};
use crate::terminal::{strong, table_lines};
use crate::text::{pad_left, width, wrap};
use crate::units::bytes;

/// Height of the stack in lines.
const LINES: usize = 10;
/// Width of the axis in columns: `1.56 GiB ┤`.
const AXIS: usize = 11;
/// Letters of the bands.
const LETTERS: &[u8] = b"ABCDEFGH";
/// Their colours, of the 256.
const COLOURS: [u8; 8] = [32, 166, 36, 175, 214, 74, 245, 61];
/// Where the limit is.
const LIMIT: char = '─';

/// The groups of a recording. Those without a limit take one line: what else runs in them is not
/// recorded.
pub(super) fn groups(timeline: &Timeline, surface: Surface) -> Vec<String> {
    let mut lines = Vec::new();
    for view in GroupView::all(timeline) {
        lines.push(String::new());
        if !view.is_limited() {
            let peak = view.group.peak().map_or(0, |peak| peak.current_bytes);
            let text = format!("{}: charge up to {}; --format html has its rows", view.title, bytes(peak));
            lines.extend(wrap(&text, surface.columns));
            continue;
        }
        lines.extend(wrap(&view.title, surface.columns));
        let kill: Vec<String> =
            view.kill_sentences().iter().flat_map(|text| wrap(text, surface.columns)).collect();
        lines.extend(strong(&kill, surface));
        lines.extend(drawn(&view, timeline.last_us(), surface));
        lines.extend(table(&view, surface));
    }
    lines
}

/// The stack, with axes.
fn drawn(view: &GroupView<'_>, end_us: u64, surface: Surface) -> Vec<String> {
    let cells = surface.columns - AXIS;
    let moments = in_cells(view.group, end_us, cells);
    let mut lines = Vec::new();
    for index in 0..LINES {
        let label = match index {
            0 => bytes(view.most_bytes),
            _ if index == LINES / 2 => bytes(view.most_bytes / 2),
            _ => String::new(),
        };
        let tick = if label.is_empty() { '│' } else { '┤' };
        let line = painted(&level(view, &moments, LINES - 1 - index, end_us), surface);
        lines.push(format!("{}{tick}{line}", pad_left(&label, AXIS - 1)));
    }
    lines.push(format!("{}└{}", pad_left("0 B", AXIS - 1), "─".repeat(cells)));
    let last = time(end_us);
    let gap = cells.saturating_sub(3 + width(&last));
    lines.push(format!("{}0 s{}{last}", " ".repeat(AXIS), " ".repeat(gap)));
    lines
}

/// What a place in the stack shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// A band, by its index.
    Band(usize),
    Limit,
    Nothing,
}

/// One line of the stack, counted from the bottom.
fn level(view: &GroupView<'_>, moments: &[Option<&GroupPoint>], level: usize, end_us: u64) -> Vec<Place> {
    let step = |at: usize| (u128::from(view.most_bytes) * at as u128 / (2 * LINES as u128)) as u64;
    let (low, middle, high) = (step(2 * level), step(2 * level + 1), step(2 * level + 2));
    let limit_at = |cell: usize| {
        let at_us = u128::from(end_us) * (cell as u128 + 1) / moments.len().max(1) as u128;
        let steps = view.group.limits.iter().take_while(|step| u128::from(step.at_us) <= at_us);
        steps.last().and_then(|step| step.bytes)
    };
    let mut line = Vec::with_capacity(moments.len());
    for (cell, moment) in moments.iter().enumerate() {
        let mut sum = 0u64;
        let mut reaches = |point: &GroupPoint, band: &Band| {
            sum = sum.saturating_add(band.bytes(point));
            sum > middle
        };
        let band = moment.and_then(|point| view.bands.iter().position(|band| reaches(point, band)));
        let has_limit = limit_at(cell).is_some_and(|limit| low < limit && limit <= high);
        line.push(match band {
            Some(band) => Place::Band(band),
            None if has_limit => Place::Limit,
            None => Place::Nothing,
        });
    }
    line
}

/// The line as text: a letter for each band.
fn painted(line: &[Place], surface: Surface) -> String {
    let mut text = String::new();
    for run in line.chunk_by(|a, b| a == b) {
        let place = run.first().copied().unwrap_or(Place::Nothing);
        let drawn = |glyph: char| glyph.to_string().repeat(run.len());
        text += &match place {
            Place::Band(band) => {
                let letter = LETTERS.get(band).map_or('?', |&letter| char::from(letter));
                let colour = COLOURS.get(band).copied().unwrap_or_default();
                surface.paint(Paint::Colour(colour), &drawn(letter))
            }
            Place::Limit => drawn(LIMIT),
            Place::Nothing => drawn(' '),
        };
    }
    text.trim_end().to_owned()
}

/// The rows at the peak, at a kill and at the last sample.
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
        cells.extend(line.kill_bytes.map(bytes));
        cells.extend([bytes(line.last_bytes), line.name.clone(), line.state.to_owned()]);
        cells
    };
    let rows: Vec<Vec<String>> = view.lines.iter().map(row).collect();
    let mut lines = vec![String::new()];
    lines.extend(table_lines(lay_out(&head, &rows, head.len() - 2, surface.columns), surface));
    let limit = match view.group.limits.iter().filter_map(|step| step.bytes).min() {
        Some(limit) if limit <= view.most_bytes => format!("; {LIMIT} is the limit"),
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

    const PLAIN: Surface = Surface { columns: 80, colour: false };

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
                    let surface = Surface { columns, colour: false };
                    let text = chart(std::slice::from_ref(&timeline), None, surface, glyphs);
                    assert!(text.contains("control group"), "{text}");
                    assert!(!text.chars().any(|c| is_unsafe(c) && c != '\n'));
                }
            }
        }
    }
}
