//! A plot as SVG: within a page it follows the reader's theme, as a file it is dark on white.
//!
//! Bars and strips are drawn as rows with the names to the left, where long names fit; lines and
//! points on two axes. Any input can be drawn: values that are not finite, or not positive on a
//! logarithmic axis, are left out and counted.

mod axis;
mod drawing;
mod field;
mod rows;

use axis::Scale;
pub(crate) use axis::label;
pub(crate) use drawing::Position;
use drawing::{Anchor, Drawing, PointStyle, WIDTH, fitted, text_width};

use super::page::{Plot, PlotKind, Series};
use crate::text::{counted, shorten};
use crate::units::thousands;

/// Further series are counted, not drawn.
const MAX_SERIES: usize = 24;
/// Further points of a series are counted, not drawn.
const MAX_POINTS: usize = 200_000;
/// Height of the title, in pixels, as all lengths here.
const TITLE_HEIGHT: f64 = 30.0;
const LEGEND_ROW_HEIGHT: f64 = 20.0;
/// Width of the sign of a series in the legend: a line of this width with a point in its middle.
const LEGEND_SIGN_WIDTH: f64 = 18.0;
/// Space after the sign; there is three times as much after the name.
const LEGEND_GAP: f64 = 6.0;
/// Maximum width of a name in the legend, in columns of a terminal.
const MAX_LEGEND_COLUMNS: usize = 36;
const MAX_LEGEND_ROWS: usize = 4;
/// Margin at both sides.
const MARGIN: f64 = 12.0;
/// The part of the width that a title may take by [`text_width`], as its bold letters are wider.
const BOLD_FACTOR: f64 = 0.93;

/// The plot as an SVG document that can be embedded in a page. Names are escaped.
pub fn svg(plot: &Plot) -> String {
    let Picture { drawing, height, .. } = drawn(plot);
    drawing.into_svg(height, &plot.title)
}

/// Whether a file that starts with `start` is a plot written by strandline.
pub fn is_file(start: &[u8]) -> bool {
    let start = String::from_utf8_lossy(start);
    start.starts_with("<svg ") && start.contains(drawing::FILE_MARK)
}

/// The plot as a separate file, on white because its background is unknown.
pub fn file(plot: &Plot) -> String {
    let Picture { drawing, height, .. } = drawn(plot);
    drawing.into_svg_on_white(height, &plot.title)
}

/// Draws title, legend, the plot itself, and the notes on what was left out.
fn drawn(plot: &Plot) -> Picture {
    let undrawn_count = plot.series.len().saturating_sub(MAX_SERIES);
    let series: Vec<&Series> = plot.series.iter().take(MAX_SERIES).collect();
    let legend = legend(&series);
    let legend_height = legend.iter().map(|entry| entry.bottom).fold(0.0, f64::max);
    let top = TITLE_HEIGHT + if legend.is_empty() { 0.0 } else { legend_height + LEGEND_GAP };
    let mut notes = Vec::new();
    if undrawn_count > 0 {
        notes.push(format!("not drawn: {} more series", thousands(undrawn_count as u64)));
    }
    let surplus_count: usize = series.iter().map(|one| one.points.len().saturating_sub(MAX_POINTS)).sum();
    notes.extend(not_drawn(surplus_count, "beyond the limit of a series"));
    let unnamed_count = if legend.is_empty() { 0 } else { series.len() - legend.len() };
    if unnamed_count > 0 {
        notes.push(format!("not in the legend: {unnamed_count} more series"));
    }
    let picture = match plot.kind {
        PlotKind::Bars | PlotKind::Strips => rows::picture(plot, &series, top, notes),
        PlotKind::Lines | PlotKind::Points => field::picture(plot, &series, top, notes),
    };
    let Picture { mut drawing, mut height, notes } = picture;
    let max_text_width = WIDTH - 2.0 * MARGIN;
    let title = fitted(&plot.title, max_text_width * BOLD_FACTOR);
    drawing.bold(Position::new(MARGIN, TITLE_HEIGHT / 2.0), Anchor::Start, &title);
    for entry in &legend {
        draw_legend_entry(&mut drawing, entry, plot.kind == PlotKind::Lines);
    }
    if !notes.is_empty() {
        let note = fitted(&notes.join("; "), max_text_width);
        drawing.muted(Position::new(MARGIN, height + 6.0), Anchor::Start, &note);
        height += 20.0;
    }
    Picture { drawing, height, notes }
}

struct Picture {
    drawing: Drawing,
    height: f64,
    /// Remarks on what was left out.
    notes: Vec<String>,
}

/// A series name in the legend.
struct LegendEntry {
    /// The index of the series.
    series: usize,
    name: String,
    /// Where its sign begins.
    x: f64,
    /// The bottom of its row, relative to the title.
    bottom: f64,
}

/// Positions of the series names, in rows; empty for a single series.
fn legend(series: &[&Series]) -> Vec<LegendEntry> {
    let mut entries = Vec::new();
    let (mut x, mut row) = (MARGIN, 1);
    if series.len() < 2 {
        return entries;
    }
    for (index, named) in series.iter().enumerate() {
        let name = shorten(&named.name, MAX_LEGEND_COLUMNS);
        let width = LEGEND_SIGN_WIDTH + LEGEND_GAP + text_width(&name) + 3.0 * LEGEND_GAP;
        if x > MARGIN && x + width > WIDTH - MARGIN {
            (x, row) = (MARGIN, row + 1);
        }
        if row > MAX_LEGEND_ROWS {
            break;
        }
        entries.push(LegendEntry { series: index, name, x, bottom: row as f64 * LEGEND_ROW_HEIGHT });
        x += width;
    }
    entries
}

/// Draws the sign and the name of a series.
fn draw_legend_entry(drawing: &mut Drawing, entry: &LegendEntry, has_line: bool) {
    let y = TITLE_HEIGHT + entry.bottom - LEGEND_ROW_HEIGHT / 2.0;
    let sign_end = entry.x + LEGEND_SIGN_WIDTH;
    if has_line {
        let ends = [entry.x, sign_end].map(|x| Some(Position { x, y }));
        drawing.line(entry.series, ends.into_iter());
    }
    let sign_middle = Position::new(entry.x + LEGEND_SIGN_WIDTH / 2.0, y);
    drawing.point(entry.series, sign_middle, PointStyle { radius: 4.0, opacity: 1.0 }, "");
    drawing.text(Position::new(sign_end + LEGEND_GAP, y), Anchor::Start, &entry.name);
}

fn x_scale(plot: &Plot) -> Scale {
    Scale { is_bytes: plot.x_is_bytes, is_logarithmic: plot.x_is_logarithmic }
}

fn y_scale(plot: &Plot) -> Scale {
    Scale { is_bytes: plot.y_is_bytes, is_logarithmic: plot.y_is_logarithmic }
}

/// A note on `count` points without a position on the axes.
fn not_placed(count: usize, is_logarithmic: bool) -> Option<String> {
    not_drawn(count, if is_logarithmic { "not above 0" } else { "without a place on the axes" })
}

/// A note on `count` points that are not drawn, for this reason.
fn not_drawn(count: usize, reason: &str) -> Option<String> {
    (count > 0).then(|| format!("not drawn: {} {reason}", counted(count as u64, "point")))
}

#[cfg(test)]
mod tests;
