//! Bars and strips: a row per name and series, along one axis of figures.

use std::collections::{BTreeMap, HashSet};

use super::axis::{Axis, label};
use super::drawing::{Anchor, Drawing, WIDTH, fitted, pixels};
use super::{MARGIN, MAX_POINTS, Picture, not_drawn, y_measure};
use crate::pages::page::{Plot, PlotKind, Series};
use crate::text::counted;

/// Further positions are counted, not drawn.
const MAX_PLACES: usize = 120;
/// Height of a row for a single series and for one of several, and the gap between positions.
const ROW: f64 = 22.0;
const ROW_OF_SEVERAL: f64 = 18.0;
const GAP: f64 = 8.0;
/// Height of the axis below.
const AXIS: f64 = 52.0;
/// Maximum width in pixels of names, and of figures at the ends of bars.
const MAX_NAME_WIDTH: f64 = 250.0;
const FIGURE_WIDTH: f64 = 76.0;
/// In a row with more samples than this, covered samples are not drawn.
const MAX_SAMPLES_DRAWN: usize = 200;

/// The data of one series at one position.
#[derive(Default)]
struct Row {
    figures: Vec<f64>,
    interval: Option<(f64, f64)>,
    label: Option<String>,
}

/// Rows by position and series, with the names of the positions.
struct Rows {
    places: Vec<(String, Vec<Row>)>,
    not_drawn: usize,
    more_places: usize,
}

impl Rows {
    fn of(plot: &Plot, series: &[&Series]) -> Self {
        let measure = y_measure(plot);
        let drawable = |y: f64| y.is_finite() && (!measure.is_logarithmic || y > 0.0);
        let mut places: BTreeMap<Ordered, Vec<Row>> = BTreeMap::new();
        let mut not_drawn = 0;
        let mut others = HashSet::new();
        if !plot.x_names.is_empty() {
            for place in 0..plot.x_names.len().min(MAX_PLACES) {
                places.insert(Ordered(place as f64), empty(series.len()));
            }
        }
        for (index, one) in series.iter().enumerate() {
            for (point, &(x, y)) in one.points.iter().enumerate().take(MAX_POINTS) {
                if !x.is_finite() || !drawable(y) {
                    not_drawn += 1;
                    continue;
                }
                let known = places.len();
                if !places.contains_key(&Ordered(x)) && (known >= MAX_PLACES || !plot.x_names.is_empty()) {
                    others.insert(x.to_bits());
                    continue;
                }
                let rows = places.entry(Ordered(x)).or_insert_with(|| empty(series.len()));
                let Some(row) = rows.get_mut(index) else { continue };
                row.figures.push(y);
                let interval =
                    one.intervals.get(point).filter(|(low, high)| drawable(*low) && drawable(*high));
                row.interval = row.interval.or(interval.map(|&(low, high)| (low.min(high), low.max(high))));
                row.label = row.label.take().or_else(|| one.labels.get(point).cloned());
            }
        }
        let named = |(Ordered(x), rows): (Ordered, Vec<Row>)| {
            let name = plot.x_names.get(x as usize).filter(|_| x >= 0.0);
            (name.cloned().unwrap_or_else(|| label(x, plot.x_is_bytes)), rows)
        };
        let places: Vec<(String, Vec<Row>)> = places.into_iter().map(named).collect();
        let more_places = others.len() + plot.x_names.len().saturating_sub(MAX_PLACES);
        Self { places, not_drawn, more_places }
    }
}

fn empty(series: usize) -> Vec<Row> {
    (0..series).map(|_| Row::default()).collect()
}

/// A figure that is not NaN, as an ordered key.
#[derive(Clone, Copy, PartialEq)]
struct Ordered(f64);

impl Eq for Ordered {}

impl PartialOrd for Ordered {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ordered {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        // 0.0 and -0.0 are the same position.
        (self.0 + 0.0).total_cmp(&(other.0 + 0.0))
    }
}

/// The area of the rows, and their axis.
struct Frame {
    axis: Axis,
    left: f64,
    right: f64,
    is_bytes: bool,
}

impl Frame {
    fn x(&self, figure: f64) -> Option<f64> {
        Some(self.left + self.axis.position(figure)? * (self.right - self.left))
    }

    fn base(&self) -> f64 {
        self.left + self.axis.base() * (self.right - self.left)
    }
}

/// Draws the rows and their axis below `top`.
pub fn picture(plot: &Plot, series: &[&Series], top: f64, mut notes: Vec<String>) -> Picture {
    let rows = Rows::of(plot, series);
    notes.extend(not_drawn(rows.not_drawn, plot.y_is_logarithmic));
    if rows.more_places > 0 {
        notes.push(format!("not drawn: {} more", counted(rows.more_places as u64, "row")));
    }
    let bars = plot.kind == PlotKind::Bars;
    let all = rows.places.iter().flat_map(|(_, rows)| rows);
    let figures = all.flat_map(|row| {
        row.figures.iter().copied().chain(row.interval.into_iter().flat_map(|(a, b)| [a, b]))
    });
    let axis = Axis::over(figures, y_measure(plot), bars);
    let widest = rows.places.iter().map(|(name, _)| pixels(name)).fold(0.0, f64::max).min(MAX_NAME_WIDTH);
    let figures = if bars { FIGURE_WIDTH } else { 2.0 * MARGIN };
    let frame =
        Frame { axis, left: MARGIN + widest + 10.0, right: WIDTH - figures, is_bytes: plot.y_is_bytes };
    let high = if series.len() > 1 { ROW_OF_SEVERAL } else { ROW };
    let place_high = high * series.len().max(1) as f64 + GAP;
    let bottom = top + place_high * rows.places.len().max(1) as f64 + GAP / 2.0;
    let height = bottom + AXIS;
    let mut drawing = Drawing::new();
    axis_below(&mut drawing, plot, &frame, top, bottom);
    for (index, (name, of_place)) in rows.places.iter().enumerate() {
        let start = top + place_high * index as f64 + GAP;
        let middle = start + (place_high - GAP) / 2.0;
        drawing.text((frame.left - 8.0, middle), Anchor::End, &fitted(name, widest + 1.0));
        for (series, row) in of_place.iter().enumerate() {
            let y = start + high * (series as f64 + 0.5);
            if bars {
                bar(&mut drawing, &frame, series, row, y, high)
            } else {
                strip(&mut drawing, &frame, series, row, y, high)
            }
        }
    }
    if rows.places.iter().all(|(_, rows)| rows.iter().all(|row| row.figures.is_empty())) {
        drawing.muted(((frame.left + frame.right) / 2.0, (top + bottom) / 2.0), Anchor::Middle, "no figures");
    }
    Picture { drawing, height, notes }
}

fn axis_below(drawing: &mut Drawing, plot: &Plot, frame: &Frame, top: f64, bottom: f64) {
    let mut reached = f64::NEG_INFINITY;
    for (place, text) in frame.axis.ticks(((frame.right - frame.left) / 75.0) as usize) {
        let x = frame.left + place * (frame.right - frame.left);
        drawing.grid((x, top), (x, bottom));
        if x - pixels(&text) / 2.0 > reached {
            drawing.muted((x, bottom + 13.0), Anchor::Middle, &text);
            reached = x + pixels(&text) / 2.0 + 4.0;
        }
    }
    drawing.edge((frame.base(), top), (frame.base(), bottom));
    drawing.muted(
        ((frame.left + frame.right) / 2.0, bottom + 34.0),
        Anchor::Middle,
        &fitted(&plot.y_label, frame.right - frame.left),
    );
    // The label of the rows is below their names, left of that of the axis.
    drawing.muted((frame.left - 8.0, bottom + 13.0), Anchor::End, &fitted(&plot.x_label, frame.left - 20.0));
}

/// A bar from zero to the first figure of the row, with its interval, and the figure at its end.
fn bar(drawing: &mut Drawing, frame: &Frame, series: usize, row: &Row, y: f64, high: f64) {
    let Some((&figure, x)) = row.figures.first().and_then(|figure| Some((figure, frame.x(*figure)?))) else {
        return;
    };
    let half = high / 2.0 - 1.5;
    let shown = label(figure, frame.is_bytes);
    let says = tooltip(row, &shown, frame.is_bytes);
    drawing.bar(series, (frame.base(), y - half), (x, y + half), &says);
    let mut end = x;
    if let Some((low, high)) = row.interval.and_then(|(low, high)| Some((frame.x(low)?, frame.x(high)?))) {
        drawing.interval(None, (low, y), (high, y));
        end = end.max(high);
    }
    drawing.text((end + 6.0, y), Anchor::Start, &fitted(&shown, WIDTH - end - 8.0));
}

/// Every sample of the row, spread vertically, with the median and its interval on top.
fn strip(drawing: &mut Drawing, frame: &Frame, series: usize, row: &Row, y: f64, high: f64) {
    let mut sorted = row.figures.clone();
    sorted.sort_unstable_by(f64::total_cmp);
    let many = row.figures.len() > MAX_SAMPLES_DRAWN;
    let mut drawn = HashSet::new();
    for (index, figure) in row.figures.iter().enumerate() {
        // Separates neighbouring samples vertically: the golden ratio spreads any number of them
        // evenly.
        let spread = (index as f64 * 0.618_033_988_75).fract() - 0.5;
        let Some(x) = frame.x(*figure) else { continue };
        let at = (x, y + spread * (high - 8.0));
        let grid = if many { 2.0 } else { 0.5 };
        if drawn.insert(((at.0 / grid) as i64, (at.1 / grid) as i64)) {
            let says = if many { String::new() } else { label(*figure, frame.is_bytes) };
            drawing.point(series, at, 2.8, 0.5, &says);
        }
    }
    if let Some((low, high)) = row.interval.and_then(|(low, high)| Some((frame.x(low)?, frame.x(high)?))) {
        drawing.interval(None, (low, y), (high, y));
    }
    let upper = sorted.get(sorted.len() / 2);
    let lower = sorted.get(sorted.len().saturating_sub(1) / 2);
    let Some((lower, upper)) = lower.zip(upper) else { return };
    let median = lower / 2.0 + upper / 2.0;
    let Some(x) = frame.x(median) else { return };
    let says = tooltip(row, &format!("median {}", label(median, frame.is_bytes)), frame.is_bytes);
    drawing.median((x, y - high / 2.0 + 2.0), (x, y + high / 2.0 - 2.0), &says);
}

/// The tooltip: the label if there is one, the figure, the interval.
fn tooltip(row: &Row, shown: &str, is_bytes: bool) -> String {
    let name = row.label.as_ref().filter(|label| !label.is_empty()).map(|label| format!("{label}: "));
    let interval =
        row.interval.map(|(low, high)| format!(" ({} to {})", label(low, is_bytes), label(high, is_bytes)));
    format!("{}{shown}{}", name.unwrap_or_default(), interval.unwrap_or_default())
}
