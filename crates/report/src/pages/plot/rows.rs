//! Bars and strips: a row per name and series, along one axis of figures.

use std::collections::HashSet;

use super::axis::{Axis, ZeroEnd, label};
use super::drawing::{Anchor, Drawing, PointStyle, Position, WIDTH, fitted, text_width};
use super::{MARGIN, MAX_POINTS, Picture, not_drawn, not_placed, y_scale};
use crate::pages::page::{Interval, Plot, PlotKind, Point, Series};
use crate::text::counted;

/// Further names are counted, not drawn.
const MAX_NAMES: usize = 120;
/// Height of a row of a single series, in pixels, as all lengths here.
const ROW_HEIGHT: f64 = 22.0;
/// Height of a row of one of several series.
const SERIES_ROW_HEIGHT: f64 = 18.0;
/// Space between the rows of two names.
const GAP: f64 = 8.0;
/// Height of the axis below the rows, with its labels.
const AXIS_HEIGHT: f64 = 52.0;
const MAX_NAME_WIDTH: f64 = 250.0;
/// Width of the figures at the ends of bars.
const FIGURE_WIDTH: f64 = 76.0;
/// Width that one tick label takes, with its gap.
const TICK_WIDTH: f64 = 75.0;
/// The golden ratio without its whole part: its multiples, without theirs, are spread evenly.
const GOLDEN_FRACTION: f64 = 0.618_033_988_75;
/// In a row with more samples than this, covered samples are not drawn.
const MAX_SAMPLES_DRAWN: usize = 200;

/// The data of one series at one name.
#[derive(Clone, Default)]
struct Row {
    figures: Vec<f64>,
    /// The interval of the first figure, or of the median.
    interval: Option<Interval>,
    /// The label of the first figure.
    label: Option<String>,
}

/// The rows of all series at one position.
struct NamedRows {
    x: f64,
    name: String,
    /// By series.
    rows: Vec<Row>,
}

/// All rows of a plot, and what is left out.
struct Rows {
    /// In order of `x`.
    named: Vec<NamedRows>,
    /// Number of points without a position on the axis.
    missing_points: usize,
    /// Number of names beyond those that are drawn.
    more_names: usize,
}

impl Rows {
    fn new(plot: &Plot, series: &[&Series]) -> Self {
        let scale = y_scale(plot);
        let is_drawable = |y: f64| y.is_finite() && (!scale.is_logarithmic || y > 0.0);
        let empty_rows =
            |x: f64, name: String| NamedRows { x, name, rows: vec![Row::default(); series.len()] };
        let names = plot.x_names.iter().take(MAX_NAMES).enumerate();
        let mut named: Vec<NamedRows> =
            names.map(|(index, name)| empty_rows(index as f64, name.clone())).collect();
        let mut missing_points = 0;
        let mut more_positions = HashSet::new();
        for (series_index, one_series) in series.iter().enumerate() {
            for (point_index, &Point { x, y }) in one_series.points.iter().enumerate().take(MAX_POINTS) {
                if !x.is_finite() || !is_drawable(y) {
                    missing_points += 1;
                    continue;
                }
                // 0.0 and -0.0 are the same position.
                let place = match named.binary_search_by(|at| (at.x + 0.0).total_cmp(&(x + 0.0))) {
                    Ok(place) => place,
                    Err(_) if named.len() >= MAX_NAMES || !plot.x_names.is_empty() => {
                        more_positions.insert(x.to_bits());
                        continue;
                    }
                    Err(place) => {
                        named.insert(place, empty_rows(x, label(x, plot.x_is_bytes)));
                        place
                    }
                };
                let row = named.get_mut(place).and_then(|at| at.rows.get_mut(series_index));
                let Some(row) = row else { continue };
                row.figures.push(y);
                let interval = one_series.intervals.get(point_index);
                let interval = interval.filter(|ends| is_drawable(ends.low) && is_drawable(ends.high));
                row.interval = row.interval.or(interval.copied().map(in_order));
                row.label = row.label.take().or_else(|| one_series.labels.get(point_index).cloned());
            }
        }
        let more_names = more_positions.len() + plot.x_names.len().saturating_sub(MAX_NAMES);
        Self { named, missing_points, more_names }
    }
}

/// The interval with its smaller end first.
fn in_order(Interval { low, high }: Interval) -> Interval {
    Interval { low: low.min(high), high: low.max(high) }
}

/// The area of the rows, and their axis.
struct Frame {
    axis: Axis,
    left: f64,
    right: f64,
    is_bytes: bool,
}

impl Frame {
    /// Where a figure is drawn; `None` if it has no position on the axis.
    fn x(&self, figure: f64) -> Option<f64> {
        Some(self.left + self.axis.position(figure)? * self.width())
    }

    /// Where bars begin.
    fn base(&self) -> f64 {
        self.left + self.axis.base() * self.width()
    }

    fn width(&self) -> f64 {
        self.right - self.left
    }

    fn middle(&self) -> f64 {
        (self.left + self.right) / 2.0
    }
}

/// Where a row is drawn.
#[derive(Clone, Copy)]
struct RowPosition {
    series: usize,
    y: f64,
    height: f64,
}

/// Draws the rows and their axis below `top`.
pub fn picture(plot: &Plot, series: &[&Series], top: f64, mut notes: Vec<String>) -> Picture {
    let Rows { named, missing_points, more_names } = Rows::new(plot, series);
    notes.extend(not_placed(missing_points, plot.y_is_logarithmic));
    if more_names > 0 {
        notes.push(format!("not drawn: {} more", counted(more_names as u64, "row")));
    }
    let is_bars = plot.kind == PlotKind::Bars;
    let all_rows = || named.iter().flat_map(|named| &named.rows);
    if is_bars {
        let surplus_count = all_rows().map(|row| row.figures.len().saturating_sub(1)).sum();
        notes.extend(not_drawn(surplus_count, "after the first of a bar"));
    }
    let intervals = all_rows().filter_map(|row| row.interval);
    let interval_ends = intervals.flat_map(|interval| [interval.low, interval.high]);
    let figures = all_rows().flat_map(|row| row.figures.iter().copied()).chain(interval_ends);
    let zero_end = if is_bars { ZeroEnd::Forced } else { ZeroEnd::Free };
    let axis = Axis::over(figures, y_scale(plot), zero_end);
    let widest_name =
        named.iter().map(|named| text_width(&named.name)).fold(0.0, f64::max).min(MAX_NAME_WIDTH);
    let right = WIDTH - if is_bars { FIGURE_WIDTH } else { 2.0 * MARGIN };
    let frame = Frame { axis, left: MARGIN + widest_name + 10.0, right, is_bytes: plot.y_is_bytes };
    let row_height = if series.len() > 1 { SERIES_ROW_HEIGHT } else { ROW_HEIGHT };
    let name_height = row_height * series.len().max(1) as f64 + GAP;
    let bottom = top + name_height * named.len().max(1) as f64 + GAP / 2.0;
    let mut drawing = Drawing::new();
    draw_axis(&mut drawing, plot, &frame, top, bottom);
    for (index, NamedRows { name, rows, .. }) in named.iter().enumerate() {
        let start = top + name_height * index as f64 + GAP;
        let middle = start + (name_height - GAP) / 2.0;
        drawing.text(Position::new(frame.left - 8.0, middle), Anchor::End, &fitted(name, widest_name + 1.0));
        for (series, row) in rows.iter().enumerate() {
            let y = start + row_height * (series as f64 + 0.5);
            let position = RowPosition { series, y, height: row_height };
            if is_bars {
                draw_bar(&mut drawing, &frame, row, position)
            } else {
                draw_strip(&mut drawing, &frame, row, position)
            }
        }
    }
    if all_rows().all(|row| row.figures.is_empty()) {
        drawing.muted(Position::new(frame.middle(), (top + bottom) / 2.0), Anchor::Middle, "no figures");
    }
    Picture { drawing, height: bottom + AXIS_HEIGHT, notes }
}

/// Draws the axis below the rows, with its ticks and labels, and the grid.
fn draw_axis(drawing: &mut Drawing, plot: &Plot, frame: &Frame, top: f64, bottom: f64) {
    let mut last_label_end = f64::NEG_INFINITY;
    for tick in frame.axis.ticks((frame.width() / TICK_WIDTH) as usize) {
        let x = frame.left + tick.position * frame.width();
        drawing.grid(Position::new(x, top), Position::new(x, bottom));
        let half_width = text_width(&tick.label) / 2.0;
        if x - half_width > last_label_end {
            drawing.muted(Position::new(x, bottom + 13.0), Anchor::Middle, &tick.label);
            last_label_end = x + half_width + 4.0;
        }
    }
    drawing.axis(Position::new(frame.base(), top), Position::new(frame.base(), bottom));
    let y_label = fitted(&plot.y_label, frame.width());
    drawing.muted(Position::new(frame.middle(), bottom + 34.0), Anchor::Middle, &y_label);
    // The label of the rows is below their names, left of that of the axis.
    let x_label = fitted(&plot.x_label, frame.left - 20.0);
    drawing.muted(Position::new(frame.left - 8.0, bottom + 13.0), Anchor::End, &x_label);
}

/// Draws a bar from zero to the first figure of the row, with its interval, and the figure at its
/// end.
fn draw_bar(drawing: &mut Drawing, frame: &Frame, row: &Row, position: RowPosition) {
    let Some(&figure) = row.figures.first() else { return };
    let Some(x) = frame.x(figure) else { return };
    let y = position.y;
    let half_height = position.height / 2.0 - 1.5;
    let text = label(figure, frame.is_bytes);
    let tooltip = tooltip_text(row, &text, frame.is_bytes);
    let (corner, opposite) =
        (Position::new(frame.base(), y - half_height), Position::new(x, y + half_height));
    drawing.bar(position.series, corner, opposite, &tooltip);
    let interval_end = draw_interval(drawing, frame, row, y);
    let text_start = interval_end.map_or(x, |end| end.max(x)) + 6.0;
    drawing.text(Position::new(text_start, y), Anchor::Start, &fitted(&text, WIDTH - text_start - 2.0));
}

/// Draws every sample of the row, spread vertically, with the median and its interval on top.
fn draw_strip(drawing: &mut Drawing, frame: &Frame, row: &Row, position: RowPosition) {
    let RowPosition { series, y, height } = position;
    let is_dense = row.figures.len() > MAX_SAMPLES_DRAWN;
    // Of samples in the same cell of this grid, one is drawn.
    let cell_pixels = if is_dense { 2.0 } else { 0.5 };
    let style = PointStyle { radius: 2.8, opacity: 0.5 };
    let mut drawn_cells = HashSet::new();
    for (index, figure) in row.figures.iter().enumerate() {
        // Separates neighbouring samples vertically.
        let spread = (index as f64 * GOLDEN_FRACTION).fract() - 0.5;
        let Some(x) = frame.x(*figure) else { continue };
        let sample_y = y + spread * (height - 8.0);
        if drawn_cells.insert(((x / cell_pixels) as i64, (sample_y / cell_pixels) as i64)) {
            let tooltip = if is_dense { String::new() } else { label(*figure, frame.is_bytes) };
            drawing.point(series, Position::new(x, sample_y), style, &tooltip);
        }
    }
    draw_interval(drawing, frame, row, y);
    let Some(median) = median_of(&row.figures) else { return };
    let Some(x) = frame.x(median) else { return };
    let text = format!("median {}", label(median, frame.is_bytes));
    let tooltip = tooltip_text(row, &text, frame.is_bytes);
    let half_height = height / 2.0 - 2.0;
    drawing.median(Position::new(x, y - half_height), Position::new(x, y + half_height), &tooltip);
}

/// Draws the interval of a row, if it has one. Returns where it ends.
fn draw_interval(drawing: &mut Drawing, frame: &Frame, row: &Row, y: f64) -> Option<f64> {
    let Interval { low, high } = row.interval?;
    let (low_x, high_x) = (frame.x(low)?, frame.x(high)?);
    drawing.interval(None, Position::new(low_x, y), Position::new(high_x, y));
    Some(high_x)
}

/// The median of the samples; `None` if there are none.
fn median_of(figures: &[f64]) -> Option<f64> {
    let mut sorted = figures.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let upper = sorted.get(sorted.len() / 2)?;
    let lower = sorted.get(sorted.len().saturating_sub(1) / 2)?;
    // Halving before the addition keeps the sum finite.
    Some(lower / 2.0 + upper / 2.0)
}

/// The tooltip: the label if there is one, the figure as text, the interval.
fn tooltip_text(row: &Row, figure: &str, is_bytes: bool) -> String {
    let name = row.label.as_ref().filter(|label| !label.is_empty()).map(|label| format!("{label}: "));
    let interval = row.interval.map(|interval| {
        format!(" ({} to {})", label(interval.low, is_bytes), label(interval.high, is_bytes))
    });
    format!("{}{figure}{}", name.unwrap_or_default(), interval.unwrap_or_default())
}
