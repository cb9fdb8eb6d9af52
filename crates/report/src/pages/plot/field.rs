//! Lines and points on two axes.

use std::collections::HashSet;

use super::axis::{Axis, Tick, label};
use super::drawing::{Anchor, Drawing, TEXT, WIDTH, fitted, pixels};
use super::{MARGIN, MAX_POINTS, Picture, not_drawn, x_measure, y_measure};
use crate::pages::page::{Plot, PlotKind, Series};

/// Height of the plot field, and of the axis labels below it if they are horizontal.
const PLOT_HEIGHT: f64 = 300.0;
const AXIS: f64 = 52.0;
/// Names below the field that do not fit side by side are rotated by this angle and shortened to
/// this width in pixels.
const TURNED: i32 = -60;
const MAX_NAME: f64 = 180.0;
/// Up to this number of points, each point of a line is marked and has its own interval; above it,
/// the intervals are a band.
const MAX_MARKED: usize = 60;
/// Up to this number of points, names are written beside them if there is room; above it, names are
/// only in tooltips.
const MAX_LABELLED: usize = 40;

/// A point with a position on the axes.
struct Point<'a> {
    at: (f64, f64),
    figure: (f64, f64),
    /// The ends of its interval, in pixels.
    interval: Option<(f64, f64)>,
    name: Option<&'a str>,
}

/// The rectangle of the plot field, and its axes.
struct Frame {
    x: Axis,
    y: Axis,
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

impl Frame {
    fn x(&self, place: f64) -> f64 {
        self.left + place * (self.right - self.left)
    }

    fn y(&self, place: f64) -> f64 {
        self.bottom - place * (self.bottom - self.top)
    }

    fn at(&self, (x, y): (f64, f64)) -> Option<(f64, f64)> {
        Some((self.x(self.x.position(x)?), self.y(self.y.position(y)?)))
    }
}

/// Draws the field with its axes below `top`.
pub fn picture(plot: &Plot, series: &[&Series], top: f64, mut notes: Vec<String>) -> Picture {
    let figures = || series.iter().flat_map(|one| one.points.iter().take(MAX_POINTS));
    let usable = |&&(x, y): &&(f64, f64)| x.is_finite() && y.is_finite();
    let ends = series
        .iter()
        .flat_map(|one| one.intervals.iter().take(MAX_POINTS).flat_map(|&(low, high)| [low, high]));
    let y = Axis::over(figures().filter(usable).map(|point| point.1).chain(ends), y_measure(plot), false);
    let x = match plot.x_names.len() {
        0 => Axis::over(figures().filter(usable).map(|point| point.0), x_measure(plot), false),
        names => Axis::categorical(names),
    };
    let top = top + 26.0;
    let is_empty = !figures().any(|point| usable(&point));
    let y_ticks = if is_empty { Vec::new() } else { y.ticks(7) };
    let widest = y_ticks.iter().map(|(_, text)| pixels(text)).fold(20.0, f64::max).min(110.0);
    // Rotated names extend to the left of their positions.
    let left = (MARGIN + widest + 8.0).max(if plot.x_names.is_empty() { 0.0 } else { 96.0 });
    let frame = Frame { x, y, left, right: WIDTH - 2.0 * MARGIN, top, bottom: top + PLOT_HEIGHT };
    let (mut labels, is_turned) = below(plot, &frame);
    if is_empty && plot.x_names.is_empty() {
        labels.clear();
    }
    let deep = labels.iter().map(|(_, text)| pixels(text)).fold(0.0, f64::max)
        * f64::from(-TURNED).to_radians().sin();
    let below_labels = if plot.x_label.is_empty() { 20.0 } else { 0.0 };
    let height = frame.bottom + AXIS - below_labels + if is_turned { deep - 4.0 } else { 0.0 };
    let mut drawing = Drawing::new();
    axes(&mut drawing, plot, &frame, &y_ticks, &labels, is_turned, height);
    let mut missing = 0;
    let mut taken: Vec<Rect> = Vec::new();
    let mut named = Vec::new();
    for (index, one) in series.iter().enumerate() {
        let points = points(one, &frame, plot.kind == PlotKind::Lines);
        missing += one.points.len() - points.iter().flatten().count();
        if plot.kind == PlotKind::Lines {
            line(&mut drawing, plot, index, one, &points);
        } else {
            scatter(&mut drawing, plot, index, one, &points);
        }
        named.extend(points.into_iter().flatten().take(MAX_LABELLED + 1));
    }
    notes.extend(not_drawn(missing, plot.x_is_logarithmic || plot.y_is_logarithmic));
    if plot.kind == PlotKind::Points && named.len() <= MAX_LABELLED {
        taken.extend(named.iter().map(|point| Rect::around(point.at, 4.0)));
        named.iter().for_each(|point| name_beside(&mut drawing, &frame, point, &mut taken));
    }
    if named.is_empty() {
        drawing.muted(
            ((frame.left + frame.right) / 2.0, frame.top + PLOT_HEIGHT / 2.0),
            Anchor::Middle,
            "no figures",
        );
    }
    Picture { drawing, height, notes }
}

/// The points of a series in pixels, sorted by x for lines; `None` for a point without a position.
fn points<'a>(series: &'a Series, frame: &Frame, in_order: bool) -> Vec<Option<Point<'a>>> {
    let point = |(index, &figure): (usize, &(f64, f64))| {
        let at = frame.at(figure)?;
        let place = |end: f64| Some(frame.y(frame.y.position(end)?));
        let interval = series.intervals.get(index).and_then(|&(low, high)| Some((place(low)?, place(high)?)));
        let name = series.labels.get(index).map(String::as_str).filter(|name| !name.is_empty());
        Some(Point { at, figure, interval, name })
    };
    let mut points: Vec<Option<Point<'a>>> =
        series.points.iter().take(MAX_POINTS).enumerate().map(point).collect();
    let ordered =
        |points: &[Option<Point<'_>>]| points.iter().flatten().map(|point| point.figure.0).is_sorted();
    if in_order && !ordered(&points) {
        points.sort_by(|one, other| {
            let x = |point: &Option<Point<'_>>| point.as_ref().map_or(f64::INFINITY, |point| point.figure.0);
            x(one).total_cmp(&x(other))
        });
    }
    points
}

fn line(drawing: &mut Drawing, plot: &Plot, index: usize, series: &Series, points: &[Option<Point<'_>>]) {
    let few = points.len() <= MAX_MARKED;
    if few {
        for (point, (low, high)) in points.iter().flatten().filter_map(|point| Some((point, point.interval?)))
        {
            drawing.interval(Some(index), (point.at.0, low), (point.at.0, high));
        }
    } else {
        let (upper, lower) = envelope(points);
        if !upper.is_empty() {
            drawing.area(index, upper.into_iter().chain(lower.into_iter().rev()));
        }
    }
    drawing.line(index, thinned(points.iter().map(|point| point.as_ref().map(|point| point.at))).into_iter());
    if few {
        for point in points.iter().flatten() {
            drawing.point(index, point.at, 3.5, 1.0, &tooltip(plot, series, point));
        }
    }
}

fn scatter(drawing: &mut Drawing, plot: &Plot, index: usize, series: &Series, points: &[Option<Point<'_>>]) {
    let mut drawn = HashSet::new();
    let many = points.len() > 500;
    for point in points.iter().flatten() {
        // With very many points, those closer than this cover each other.
        let grid = if many { 4.0 } else { 1.0 };
        let place = ((point.at.0 / grid) as i64, (point.at.1 / grid) as i64);
        if !drawn.insert(place) {
            continue;
        }
        if let Some((low, high)) = point.interval.filter(|_| !many) {
            drawing.interval(Some(index), (point.at.0, low), (point.at.0, high));
        }
        let says = if many { String::new() } else { tooltip(plot, series, point) };
        drawing.point(index, point.at, if many { 2.2 } else { 4.2 }, if many { 0.5 } else { 0.85 }, &says);
    }
}

/// The points of a polyline.
type Edge = Vec<(f64, f64)>;

/// The upper and the lower edge of all intervals, per pixel.
fn envelope(points: &[Option<Point<'_>>]) -> (Edge, Edge) {
    let (mut upper, mut lower) = (Edge::new(), Edge::new());
    for (x, (one, other)) in points.iter().flatten().filter_map(|point| Some((point.at.0, point.interval?))) {
        let (high, low) = (one.min(other), one.max(other));
        match (upper.last_mut(), lower.last_mut()) {
            (Some(above), Some(below)) if x - above.0 < 1.0 => {
                above.1 = above.1.min(high);
                below.1 = below.1.max(low);
            }
            _ => {
                upper.push((x, high));
                lower.push((x, low));
            }
        }
    }
    (upper, lower)
}

/// Reduces a line to the first, lowest, highest and last point per pixel, which draws the same.
fn thinned(points: impl Iterator<Item = Option<(f64, f64)>>) -> Vec<Option<(f64, f64)>> {
    let mut kept: Vec<Option<(f64, f64)>> = Vec::new();
    let mut column: Vec<(f64, f64)> = Vec::new();
    for point in points {
        let goes_on = point.zip(column.first()).is_some_and(|(point, first)| (point.0 - first.0).abs() < 0.5);
        if !goes_on {
            flush_column(&mut kept, &mut column);
        }
        match point {
            Some(point) if column.len() < 4 => column.push(point),
            Some(point) => {
                // Holds in order: the first, the lowest and the highest so far, and the last.
                if let [_, lowest, highest, last] = column.as_mut_slice() {
                    // At first these are the second and the third point, in any order.
                    if lowest.1 > highest.1 {
                        std::mem::swap(lowest, highest);
                    }
                    if last.1 < lowest.1 {
                        *lowest = *last;
                    }
                    if last.1 > highest.1 {
                        *highest = *last;
                    }
                    *last = point;
                }
            }
            None if kept.last().is_some_and(Option::is_some) => kept.push(None),
            None => {}
        }
    }
    flush_column(&mut kept, &mut column);
    kept
}

fn flush_column(kept: &mut Vec<Option<(f64, f64)>>, column: &mut Vec<(f64, f64)>) {
    kept.extend(column.drain(..).map(Some));
}

/// The tooltip of a point.
fn tooltip(plot: &Plot, series: &Series, point: &Point<'_>) -> String {
    let x = match plot.x_names.get(point.figure.0 as usize) {
        Some(name) => name.clone(),
        None => label(point.figure.0, plot.x_is_bytes),
    };
    let name = point.name.unwrap_or(&series.name);
    let name = if name.is_empty() { String::new() } else { format!("{name}: ") };
    format!("{name}{x}, {}", label(point.figure.1, plot.y_is_bytes))
}

/// The labels below the field, and whether they are rotated: figures, or as many names as do not
/// overlap.
fn below(plot: &Plot, frame: &Frame) -> (Vec<Tick>, bool) {
    let room = frame.right - frame.left;
    if plot.x_names.is_empty() {
        return (frame.x.ticks((room / 80.0) as usize), false);
    }
    let each = room / plot.x_names.len() as f64;
    let widest = plot.x_names.iter().map(|name| pixels(name)).fold(0.0, f64::max);
    let is_turned = widest > each - 6.0;
    // Minimum distance between rotated lines of text.
    let stride = if is_turned { (TEXT * 1.25 / each).ceil().max(1.0) as usize } else { 1 };
    let name = |(index, name): (usize, &String)| {
        let place = frame.x.position(index as f64)?;
        // A rotated name ends below its position and must start within the picture.
        let before = (frame.x(place) - 4.0) / f64::from(TURNED).to_radians().cos();
        Some((place, fitted(name, if is_turned { MAX_NAME.min(before) } else { MAX_NAME.max(each) })))
    };
    (plot.x_names.iter().enumerate().step_by(stride).filter_map(name).collect(), is_turned)
}

fn axes(
    drawing: &mut Drawing,
    plot: &Plot,
    frame: &Frame,
    rows: &[Tick],
    names: &[Tick],
    is_turned: bool,
    height: f64,
) {
    for (place, text) in rows {
        let y = frame.y(*place);
        drawing.grid((frame.left, y), (frame.right, y));
        drawing.muted((frame.left - 7.0, y), Anchor::End, &fitted(text, frame.left - MARGIN));
    }
    drawing.edge((frame.left, frame.bottom), (frame.right, frame.bottom));
    let mut reached = f64::NEG_INFINITY;
    for (place, text) in names {
        let x = frame.x(*place);
        if is_turned {
            drawing.turned((x + 4.0, frame.bottom + 12.0), Anchor::End, TURNED, text);
        } else if x - pixels(text) / 2.0 > reached {
            drawing.edge((x, frame.bottom), (x, frame.bottom + 4.0));
            drawing.muted((x, frame.bottom + 14.0), Anchor::Middle, text);
            reached = x + pixels(text) / 2.0 + 4.0;
        }
    }
    let room = frame.right - frame.left;
    drawing.muted((MARGIN, frame.top - 18.0), Anchor::Start, &fitted(&plot.y_label, room));
    let middle = (frame.left + frame.right) / 2.0;
    drawing.muted((middle, height - 16.0), Anchor::Middle, &fitted(&plot.x_label, room));
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
    fn around((x, y): (f64, f64), reach: f64) -> Self {
        Self { left: x - reach, right: x + reach, top: y - reach, bottom: y + reach }
    }

    fn meets(&self, other: &Self) -> bool {
        self.left < other.right
            && other.left < self.right
            && self.top < other.bottom
            && other.top < self.bottom
    }
}

/// Writes a point's name beside, above or below it, at the first free place; omits it if there is
/// none.
fn name_beside(drawing: &mut Drawing, frame: &Frame, point: &Point<'_>, taken: &mut Vec<Rect>) {
    const AWAY: f64 = 8.0;
    let Some(name) = point.name.map(|name| fitted(name, 240.0)) else { return };
    let (x, y) = point.at;
    let (wide, half) = (pixels(&name), TEXT * 0.55);
    let places = [
        (x + AWAY, y, Anchor::Start, 0.0),
        (x - AWAY, y, Anchor::End, 1.0),
        (x, y - AWAY - half, Anchor::Middle, 0.5),
        (x, y + AWAY + half, Anchor::Middle, 0.5),
    ];
    for (x, y, anchor, part) in places {
        let left = x - wide * part;
        let place = Rect { left, right: left + wide, top: y - half, bottom: y + half };
        let inside = place.left >= frame.left
            && place.right <= WIDTH
            && place.top >= frame.top - half
            && place.bottom <= frame.bottom;
        if inside && !taken.iter().any(|other| other.meets(&place)) {
            taken.push(place);
            drawing.text((x, y), anchor, &name);
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::thinned;

    #[test]
    fn a_thinned_line_keeps_its_lowest_and_highest_point() {
        let of = |figures: &[f64]| -> Vec<f64> {
            let points = figures.iter().map(|&y| Some((10.0, y)));
            thinned(points).into_iter().flatten().map(|(_, y)| y).collect()
        };
        assert_eq!(of(&[5.0, 9.0, 1.0, 4.0, 3.0, 6.0]), [5.0, 1.0, 9.0, 6.0]);
        assert_eq!(of(&[5.0, 4.0, 6.0, 9.0, 1.0, 7.0]), [5.0, 1.0, 9.0, 7.0]);
        assert_eq!(of(&[5.0, 9.0, 1.0]), [5.0, 9.0, 1.0]);
    }
}
