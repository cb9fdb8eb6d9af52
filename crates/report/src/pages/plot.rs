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
use drawing::{Anchor, Drawing, WIDTH, fitted, pixels};

use super::page::{Plot, PlotKind, Series};
use crate::text::{counted, grouped, shorten};

/// Further series are counted, not drawn.
const MAX_SERIES: usize = 24;
/// Further points are ignored.
const MAX_POINTS: usize = 200_000;
/// Heights of the title and of a legend row, and the margin, in pixels.
const TITLE: f64 = 30.0;
const LEGEND_ROW: f64 = 20.0;
const MARGIN: f64 = 12.0;
/// Maximum number of legend rows.
const MAX_LEGEND_ROWS: usize = 4;

/// The plot as an SVG document that can be embedded in a page. Names are escaped.
pub fn svg(plot: &Plot) -> String {
    drawn(plot, false)
}

/// Whether a file that starts with `begin` is a plot written by strandline.
pub fn is_file(begin: &[u8]) -> bool {
    let begin = String::from_utf8_lossy(begin);
    begin.starts_with("<svg ") && begin.contains(drawing::FILE_MARK)
}

/// The plot as a separate file, on white because its background is unknown.
pub fn file(plot: &Plot) -> String {
    drawn(plot, true)
}

fn drawn(plot: &Plot, is_file: bool) -> String {
    let left_out = plot.series.len().saturating_sub(MAX_SERIES);
    let series: Vec<&Series> = plot.series.iter().take(MAX_SERIES).collect();
    let legend = legend(&series);
    let top = TITLE + legend.iter().map(|entry| entry.bottom).fold(0.0, f64::max);
    let top = if legend.is_empty() { top } else { top + 6.0 };
    let mut notes = Vec::new();
    if left_out > 0 {
        notes.push(format!("not drawn: {} more series", grouped(left_out as u64)));
    }
    let picture = match plot.kind {
        PlotKind::Bars | PlotKind::Strips => rows::picture(plot, &series, top, notes),
        PlotKind::Lines | PlotKind::Points => field::picture(plot, &series, top, notes),
    };
    let Picture { mut drawing, height, notes } = picture;
    let room = WIDTH - 2.0 * MARGIN;
    drawing.bold((MARGIN, TITLE / 2.0), Anchor::Start, &fitted(&plot.title, room * 0.93));
    for entry in &legend {
        let y = TITLE + entry.bottom - LEGEND_ROW / 2.0;
        if plot.kind == PlotKind::Lines {
            drawing.line(entry.series, [Some((entry.x, y)), Some((entry.x + 18.0, y))].into_iter());
        }
        drawing.point(entry.series, (entry.x + 9.0, y), 4.0, 1.0, "");
        drawing.text((entry.x + 24.0, y), Anchor::Start, &entry.name);
    }
    let mut bottom = height;
    if !notes.is_empty() {
        drawing.muted((MARGIN, height + 6.0), Anchor::Start, &fitted(&notes.join("; "), room));
        bottom += 20.0;
    }
    if is_file {
        drawing.finished_on_white(bottom, &plot.title)
    } else {
        drawing.finished(bottom, &plot.title)
    }
}

/// A drawn plot without title and legend.
struct Picture {
    drawing: Drawing,
    height: f64,
    /// Remarks on what was left out.
    notes: Vec<String>,
}

/// A series name in the legend.
struct Entry {
    series: usize,
    name: String,
    x: f64,
    /// The bottom of its row, relative to the title.
    bottom: f64,
}

/// Positions of the series names, in rows; empty for a single series.
fn legend(series: &[&Series]) -> Vec<Entry> {
    let mut entries = Vec::new();
    let (mut x, mut row) = (MARGIN, 1);
    if series.len() < 2 {
        return entries;
    }
    for (index, one) in series.iter().enumerate() {
        let name = shorten(&one.name, 36);
        let wide = 24.0 + pixels(&name) + 18.0;
        if x > MARGIN && x + wide > WIDTH - MARGIN {
            (x, row) = (MARGIN, row + 1);
        }
        if row > MAX_LEGEND_ROWS {
            break;
        }
        entries.push(Entry { series: index, name, x, bottom: row as f64 * LEGEND_ROW });
        x += wide;
    }
    entries
}

fn x_measure(plot: &Plot) -> Scale {
    Scale { is_bytes: plot.x_is_bytes, is_logarithmic: plot.x_is_logarithmic }
}

fn y_measure(plot: &Plot) -> Scale {
    Scale { is_bytes: plot.y_is_bytes, is_logarithmic: plot.y_is_logarithmic }
}

/// A note on `count` points that are not drawn.
fn not_drawn(count: usize, is_logarithmic: bool) -> Option<String> {
    let what = if is_logarithmic { "not above 0" } else { "without a place on the axes" };
    (count > 0).then(|| format!("not drawn: {} {what}", counted(count as u64, "point")))
}

#[cfg(test)]
mod tests;
