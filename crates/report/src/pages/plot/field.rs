//! Lines and points on two axes.

use std::collections::HashSet;

use super::axis::{Axis, Tick, ZeroEnd, label};
use super::drawing::{Anchor, Drawing, PointStyle, Position, TEXT_PIXELS, WIDTH, fitted, text_width};
use super::{MARGIN, MAX_POINTS, Picture, not_placed, x_scale, y_scale};
use crate::pages::page::{self, Plot, PlotKind, Series};

/// Height of the plot field, in pixels, as all lengths here.
const FIELD_HEIGHT: f64 = 300.0;
/// Height of the label of the y axis, above the field.
const Y_LABEL_HEIGHT: f64 = 26.0;
/// Height of the tick labels below the field, if they are horizontal, and of the label of the x
/// axis.
const X_AXIS_HEIGHT: f64 = 52.0;
/// Height of the label of the x axis alone.
const X_LABEL_HEIGHT: f64 = 20.0;
/// Minimum width of the labels at the y axis.
const MIN_Y_TICK_WIDTH: f64 = 20.0;
/// Maximum width of the labels at the y axis.
const MAX_Y_TICK_WIDTH: f64 = 110.0;
/// Minimum space left of the field if there are names below it: rotated ones extend there.
const MIN_LEFT_OF_NAMES: f64 = 96.0;
/// Width that one tick label of the x axis takes, with its gap.
const X_TICK_WIDTH: f64 = 80.0;
/// Maximum number of ticks at the y axis.
const MAX_Y_TICKS: usize = 7;
/// Names below the field that do not fit side by side are rotated by this angle.
const ROTATION_DEGREES: i32 = -60;
/// Maximum width of a name below the field.
const MAX_NAME_WIDTH: f64 = 180.0;
/// Maximum width of a name beside a point.
const MAX_POINT_NAME_WIDTH: f64 = 240.0;
/// With more points than this, those that cover each other are drawn once, small and without
/// tooltip.
const MAX_LARGE_POINTS: usize = 500;
/// Up to this number of points, each point of a line is marked and has its own interval; above it,
/// the intervals are a band.
const MAX_MARKED: usize = 60;
/// Up to this number of points, names are written beside them if there is room; above it, names are
/// only in tooltips.
const MAX_LABELLED: usize = 40;

/// A point with a position on the axes.
struct PlacedPoint<'a> {
    at: Position,
    x_figure: f64,
    y_figure: f64,
    interval: Option<PlacedInterval>,
    name: Option<&'a str>,
}

/// A vertical interval in the picture.
#[derive(Clone, Copy)]
struct PlacedInterval {
    /// Where its lower figure is drawn.
    low_y: f64,
    /// Where its upper figure is drawn.
    high_y: f64,
}

/// The rectangle of the plot field, and its axes.
struct Frame {
    x: Axis,
    y: Axis,
    /// The ticks of the y axis; none if there are no points.
    y_ticks: Vec<Tick>,
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

impl Frame {
    /// The field below `top`, with room for the ticks of the y axis.
    fn below(
        plot: &Plot,
        series: &[&Series],
        points: impl Iterator<Item = page::Point> + Clone,
        top: f64,
    ) -> Self {
        let is_empty = points.clone().next().is_none();
        let intervals = series.iter().flat_map(|one_series| one_series.intervals.iter().take(MAX_POINTS));
        let interval_ends = intervals.flat_map(|interval| [interval.low, interval.high]);
        let y_figures = points.clone().map(|point| point.y).chain(interval_ends);
        let y = Axis::over(y_figures, y_scale(plot), ZeroEnd::Free);
        let x = match plot.x_names.len() {
            0 => Axis::over(points.map(|point| point.x), x_scale(plot), ZeroEnd::Free),
            count => Axis::categorical(count),
        };
        let y_ticks = if is_empty { Vec::new() } else { y.ticks(MAX_Y_TICKS) };
        let widest = y_ticks.iter().map(|tick| text_width(&tick.label)).fold(MIN_Y_TICK_WIDTH, f64::max);
        let min_left = if plot.x_names.is_empty() { 0.0 } else { MIN_LEFT_OF_NAMES };
        let left = (MARGIN + widest.min(MAX_Y_TICK_WIDTH) + 8.0).max(min_left);
        let top = top + Y_LABEL_HEIGHT;
        Self { x, y, y_ticks, left, right: WIDTH - 2.0 * MARGIN, top, bottom: top + FIELD_HEIGHT }
    }

    /// Where a position on the x axis is drawn.
    fn x_pixel(&self, position: f64) -> f64 {
        self.left + position * self.width()
    }

    /// Where a position on the y axis is drawn.
    fn y_pixel(&self, position: f64) -> f64 {
        self.bottom - position * (self.bottom - self.top)
    }

    /// Where a point is drawn; `None` if it has no position on an axis.
    fn at(&self, x_figure: f64, y_figure: f64) -> Option<Position> {
        let (x, y) = (self.x.position(x_figure)?, self.y.position(y_figure)?);
        Some(Position { x: self.x_pixel(x), y: self.y_pixel(y) })
    }

    fn width(&self) -> f64 {
        self.right - self.left
    }

    fn middle(&self) -> f64 {
        (self.left + self.right) / 2.0
    }
}

/// Draws the field with its axes below `top`.
pub fn picture(plot: &Plot, series: &[&Series], top: f64, mut notes: Vec<String>) -> Picture {
    let finite_points = || {
        let points = series.iter().flat_map(|one_series| one_series.points.iter().take(MAX_POINTS));
        points.copied().filter(|point| point.x.is_finite() && point.y.is_finite())
    };
    let is_empty = finite_points().next().is_none();
    let frame = Frame::below(plot, series, finite_points(), top);
    let x_labels = if is_empty && plot.x_names.is_empty() {
        XLabels { ticks: Vec::new(), are_rotated: false }
    } else {
        XLabels::new(plot, &frame)
    };
    let longest = x_labels.ticks.iter().map(|tick| text_width(&tick.label)).fold(0.0, f64::max);
    let rotated_height = longest * f64::from(-ROTATION_DEGREES).to_radians().sin();
    let missing_label = if plot.x_label.is_empty() { X_LABEL_HEIGHT } else { 0.0 };
    let extra_height = if x_labels.are_rotated { rotated_height - 4.0 } else { 0.0 };
    let height = frame.bottom + X_AXIS_HEIGHT - missing_label + extra_height;
    let mut drawing = Drawing::new();
    draw_y_axis(&mut drawing, plot, &frame);
    draw_x_axis(&mut drawing, plot, &frame, &x_labels, height);
    let mut missing_count = 0;
    let mut drawn_points = Vec::new();
    for (index, drawn_series) in series.iter().enumerate() {
        let points = points_in_pixels(drawn_series, &frame, plot.kind == PlotKind::Lines);
        missing_count += points.iter().filter(|point| point.is_none()).count();
        if plot.kind == PlotKind::Lines {
            draw_line(&mut drawing, plot, index, drawn_series, &points);
        } else {
            draw_points(&mut drawing, plot, index, drawn_series, &points);
        }
        drawn_points.extend(points.into_iter().flatten().take(MAX_LABELLED + 1));
    }
    notes.extend(not_placed(missing_count, plot.x_is_logarithmic || plot.y_is_logarithmic));
    if plot.kind == PlotKind::Points && drawn_points.len() <= MAX_LABELLED {
        let mut occupied: Vec<Rect> = drawn_points.iter().map(|point| Rect::around(point.at, 4.0)).collect();
        drawn_points.iter().for_each(|point| draw_name(&mut drawing, &frame, point, &mut occupied));
    }
    if drawn_points.is_empty() {
        let middle = Position::new(frame.middle(), frame.top + FIELD_HEIGHT / 2.0);
        drawing.muted(middle, Anchor::Middle, "no figures");
    }
    Picture { drawing, height, notes }
}

/// The points of a series in pixels, sorted by x for lines; `None` for a point without a position.
fn points_in_pixels<'a>(series: &'a Series, frame: &Frame, must_sort: bool) -> Vec<Option<PlacedPoint<'a>>> {
    let point = |(index, &page::Point { x: x_figure, y: y_figure }): (usize, &page::Point)| {
        let at = frame.at(x_figure, y_figure)?;
        let y_pixel = |figure: f64| Some(frame.y_pixel(frame.y.position(figure)?));
        let interval = series.intervals.get(index).and_then(|interval| {
            Some(PlacedInterval { low_y: y_pixel(interval.low)?, high_y: y_pixel(interval.high)? })
        });
        let name = series.labels.get(index).map(String::as_str).filter(|name| !name.is_empty());
        Some(PlacedPoint { at, x_figure, y_figure, interval, name })
    };
    let mut points: Vec<Option<PlacedPoint<'a>>> =
        series.points.iter().take(MAX_POINTS).enumerate().map(point).collect();
    if must_sort && !points.iter().flatten().map(|point| point.x_figure).is_sorted() {
        points.sort_by(|a, b| {
            let x = |point: &Option<PlacedPoint<'_>>| {
                point.as_ref().map_or(f64::INFINITY, |point| point.x_figure)
            };
            x(a).total_cmp(&x(b))
        });
    }
    points
}

/// Draws a line; if it has few points, with marks and their intervals, or else with a band.
fn draw_line(
    drawing: &mut Drawing,
    plot: &Plot,
    index: usize,
    series: &Series,
    points: &[Option<PlacedPoint<'_>>],
) {
    let has_marks = points.len() <= MAX_MARKED;
    if has_marks {
        points.iter().flatten().for_each(|point| draw_interval(drawing, index, point));
    } else {
        let Band { upper, lower } = Band::of(points);
        if !upper.is_empty() {
            drawing.area(index, upper.into_iter().chain(lower.into_iter().rev()));
        }
    }
    drawing.line(index, thinned(points.iter().map(|point| point.as_ref().map(|point| point.at))).into_iter());
    if has_marks {
        let style = PointStyle { radius: 3.5, opacity: 1.0 };
        for point in points.iter().flatten() {
            drawing.point(index, point.at, style, &tooltip_text(plot, series, point));
        }
    }
}

/// Draws points, and their intervals if there are few.
fn draw_points(
    drawing: &mut Drawing,
    plot: &Plot,
    index: usize,
    series: &Series,
    points: &[Option<PlacedPoint<'_>>],
) {
    let is_dense = points.len() > MAX_LARGE_POINTS;
    // Of points in the same cell of this grid, one is drawn.
    let cell_pixels = if is_dense { 4.0 } else { 1.0 };
    let dense_style = PointStyle { radius: 2.2, opacity: 0.5 };
    let style = if is_dense { dense_style } else { PointStyle { radius: 4.2, opacity: 0.85 } };
    let mut drawn_cells = HashSet::new();
    for point in points.iter().flatten() {
        let Position { x, y } = point.at;
        if !drawn_cells.insert(((x / cell_pixels) as i64, (y / cell_pixels) as i64)) {
            continue;
        }
        if !is_dense {
            draw_interval(drawing, index, point);
        }
        let tooltip = if is_dense { String::new() } else { tooltip_text(plot, series, point) };
        drawing.point(index, point.at, style, &tooltip);
    }
}

/// Draws the interval of a point, if it has one.
fn draw_interval(drawing: &mut Drawing, series: usize, point: &PlacedPoint<'_>) {
    if let Some(PlacedInterval { low_y, high_y }) = point.interval {
        drawing.interval(Some(series), Position::new(point.at.x, low_y), Position::new(point.at.x, high_y));
    }
}

/// The area of all intervals, between two polylines with a point per pixel.
struct Band {
    upper: Vec<Position>,
    lower: Vec<Position>,
}

impl Band {
    fn of(points: &[Option<PlacedPoint<'_>>]) -> Self {
        let (mut upper, mut lower) = (Vec::<Position>::new(), Vec::<Position>::new());
        let intervals = points.iter().flatten().filter_map(|point| Some((point.at.x, point.interval?)));
        for (x, PlacedInterval { low_y, high_y }) in intervals {
            let (top, bottom) = (low_y.min(high_y), low_y.max(high_y));
            match (upper.last_mut(), lower.last_mut()) {
                (Some(above), Some(below)) if x - above.x < 1.0 => {
                    above.y = above.y.min(top);
                    below.y = below.y.max(bottom);
                }
                _ => {
                    upper.push(Position { x, y: top });
                    lower.push(Position { x, y: bottom });
                }
            }
        }
        Self { upper, lower }
    }
}

/// Reduces a line to the first, the two extreme and the last point per pixel, which draws the same.
fn thinned(points: impl Iterator<Item = Option<Position>>) -> Vec<Option<Position>> {
    let mut thinned: Vec<Option<Position>> = Vec::new();
    let mut column: Vec<Position> = Vec::new();
    for point in points {
        let is_same_column = point
            .zip(column.first())
            .is_some_and(|(point, first_point)| (point.x - first_point.x).abs() < 0.5);
        if !is_same_column {
            thinned.extend(column.drain(..).map(Some));
        }
        match point {
            Some(point) if column.len() < 4 => column.push(point),
            Some(point) => {
                // Holds in order: the first, the least and the greatest so far, and the last.
                if let [_, least, greatest, last] = column.as_mut_slice() {
                    // At first these are the second and the third point, in any order.
                    if least.y > greatest.y {
                        std::mem::swap(least, greatest);
                    }
                    if last.y < least.y {
                        *least = *last;
                    }
                    if last.y > greatest.y {
                        *greatest = *last;
                    }
                    *last = point;
                }
            }
            None if thinned.last().is_some_and(Option::is_some) => thinned.push(None),
            None => {}
        }
    }
    thinned.extend(column.into_iter().map(Some));
    thinned
}

/// The tooltip of a point: its name or that of the series, and its figures.
fn tooltip_text(plot: &Plot, series: &Series, point: &PlacedPoint<'_>) -> String {
    let x = match plot.x_names.get(point.x_figure as usize) {
        Some(name) => name.clone(),
        None => label(point.x_figure, plot.x_is_bytes),
    };
    let name = point.name.unwrap_or(&series.name);
    let name = if name.is_empty() { String::new() } else { format!("{name}: ") };
    format!("{name}{x}, {}", label(point.y_figure, plot.y_is_bytes))
}

/// The labels below the field: figures, or as many names as do not overlap.
struct XLabels {
    ticks: Vec<Tick>,
    are_rotated: bool,
}

impl XLabels {
    fn new(plot: &Plot, frame: &Frame) -> Self {
        if plot.x_names.is_empty() {
            let ticks = frame.x.ticks((frame.width() / X_TICK_WIDTH) as usize);
            return Self { ticks, are_rotated: false };
        }
        let name_width = frame.width() / plot.x_names.len() as f64;
        let widest = plot.x_names.iter().map(|name| text_width(name)).fold(0.0, f64::max);
        let are_rotated = widest > name_width - 6.0;
        // Minimum distance between rotated lines of text.
        let stride = if are_rotated { (TEXT_PIXELS * 1.25 / name_width).ceil().max(1.0) as usize } else { 1 };
        let tick = |(index, name): (usize, &String)| {
            let position = frame.x.position(index as f64)?;
            // A rotated name ends below its position and must start within the picture.
            let width_from_left =
                (frame.x_pixel(position) - 4.0) / f64::from(ROTATION_DEGREES).to_radians().cos();
            let max_width = if are_rotated {
                MAX_NAME_WIDTH.min(width_from_left)
            } else {
                MAX_NAME_WIDTH.max(name_width)
            };
            Some(Tick { position, label: fitted(name, max_width) })
        };
        let ticks = plot.x_names.iter().enumerate().step_by(stride).filter_map(tick).collect();
        Self { ticks, are_rotated }
    }
}

/// Draws the label of the y axis, its ticks and the grid.
fn draw_y_axis(drawing: &mut Drawing, plot: &Plot, frame: &Frame) {
    for tick in &frame.y_ticks {
        let y = frame.y_pixel(tick.position);
        drawing.grid(Position::new(frame.left, y), Position::new(frame.right, y));
        let label = fitted(&tick.label, frame.left - MARGIN);
        drawing.muted(Position::new(frame.left - 7.0, y), Anchor::End, &label);
    }
    let y_label = fitted(&plot.y_label, frame.width());
    drawing.muted(Position::new(MARGIN, frame.top - 18.0), Anchor::Start, &y_label);
}

/// Draws the x axis with its ticks, and its label above the bottom of the picture at `height`.
fn draw_x_axis(drawing: &mut Drawing, plot: &Plot, frame: &Frame, labels: &XLabels, height: f64) {
    drawing.axis(Position::new(frame.left, frame.bottom), Position::new(frame.right, frame.bottom));
    let mut last_label_end = f64::NEG_INFINITY;
    for tick in &labels.ticks {
        let x = frame.x_pixel(tick.position);
        let half_width = text_width(&tick.label) / 2.0;
        if labels.are_rotated {
            let name_end = Position::new(x + 4.0, frame.bottom + 12.0);
            drawing.rotated(name_end, Anchor::End, ROTATION_DEGREES, &tick.label);
        } else if x - half_width > last_label_end {
            drawing.axis(Position::new(x, frame.bottom), Position::new(x, frame.bottom + 4.0));
            drawing.muted(Position::new(x, frame.bottom + 14.0), Anchor::Middle, &tick.label);
            last_label_end = x + half_width + 4.0;
        }
    }
    let x_label = fitted(&plot.x_label, frame.width());
    drawing.muted(Position::new(frame.middle(), height - 16.0), Anchor::Middle, &x_label);
}

/// An occupied part of the picture.
#[derive(Clone, Copy)]
struct Rect {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

impl Rect {
    fn around(center: Position, reach: f64) -> Self {
        let Position { x, y } = center;
        Self { left: x - reach, right: x + reach, top: y - reach, bottom: y + reach }
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.left < other.right
            && other.left < self.right
            && self.top < other.bottom
            && other.top < self.bottom
    }
}

/// Writes a point's name beside, above or below it, at the first free place; omits it if there is
/// none.
fn draw_name(drawing: &mut Drawing, frame: &Frame, point: &PlacedPoint<'_>, occupied: &mut Vec<Rect>) {
    /// Distance of the name from its point.
    const GAP: f64 = 8.0;
    let Some(name) = point.name.map(|name| fitted(name, MAX_POINT_NAME_WIDTH)) else { return };
    let Position { x, y } = point.at;
    let (width, half_height) = (text_width(&name), TEXT_PIXELS * 0.55);
    let candidates = [
        (Position::new(x + GAP, y), Anchor::Start),
        (Position::new(x - GAP, y), Anchor::End),
        (Position::new(x, y - GAP - half_height), Anchor::Middle),
        (Position::new(x, y + GAP + half_height), Anchor::Middle),
    ];
    for (position, anchor) in candidates {
        let Position { x, y } = position;
        let left = match anchor {
            Anchor::Start => x,
            Anchor::Middle => x - width / 2.0,
            Anchor::End => x - width,
        };
        let rect = Rect { left, right: left + width, top: y - half_height, bottom: y + half_height };
        let is_inside = rect.left >= frame.left
            && rect.right <= WIDTH
            && rect.top >= frame.top - half_height
            && rect.bottom <= frame.bottom;
        if is_inside && !occupied.iter().any(|label| label.overlaps(&rect)) {
            occupied.push(rect);
            drawing.text(position, anchor, &name);
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Position, thinned};

    #[test]
    fn a_thinned_line_keeps_its_extreme_points() {
        let thinned_figures = |figures: &[f64]| -> Vec<f64> {
            let points = figures.iter().map(|&y| Some(Position { x: 10.0, y }));
            thinned(points).into_iter().flatten().map(|point| point.y).collect()
        };
        assert_eq!(thinned_figures(&[5.0, 9.0, 1.0, 4.0, 3.0, 6.0]), [5.0, 1.0, 9.0, 6.0]);
        assert_eq!(thinned_figures(&[5.0, 4.0, 6.0, 9.0, 1.0, 7.0]), [5.0, 1.0, 9.0, 7.0]);
        assert_eq!(thinned_figures(&[5.0, 9.0, 1.0]), [5.0, 9.0, 1.0]);
    }
}
