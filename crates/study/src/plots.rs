//! Plots of a study: a metric over an axis with one line per choice on another axis, or metrics in
//! the given order (such as the marks of one run) with one line per column.

use std::collections::BTreeSet;

use super::data::{MeasuredData, estimate};
use super::file::{Axis, NamedChoice, PlotSpec, Selection, Side};
use super::matrix::Matrix;
use super::metric::{Metric, Unit, unit};
use super::table::{axis_choices, combined_metric, combined_metrics, groups, without_axes};
use strandline_report::pages::page::{Plot, PlotKind, Series};
use strandline_report::text::{clean, grouped};

/// Maximum number of plots of one `[[plot]]`, one for each combination of unnamed axes.
pub const MAX_PLOTS: usize = 24;
/// Maximum numbers of positions on an x axis, and of lines; [`left_out`] reports further ones.
const MAX_POSITIONS: usize = 10_000;
const MAX_SERIES: usize = 100;

/// With more names than this along the x axis, their numbers are used as x values, if they have
/// numbers.
const MAX_X_NAMES: usize = 12;

/// One position on the x axis.
struct XPosition {
    x: f64,
    /// The axis and choice that it stands for, if it is one.
    choice: Option<NamedChoice>,
    /// The metric, or first part of a metric's name, that it stands for, if it is one.
    metric: Option<String>,
}

#[derive(Default)]
struct XAxis {
    positions: Vec<XPosition>,
    /// Names of the positions; empty if they are numbers.
    names: Vec<String>,
    title: String,
    /// Whether the x values are sizes in bytes.
    is_bytes: bool,
}

/// The plots of one `[[plot]]`: one for each combination of unnamed axes.
pub fn plots(spec: &PlotSpec, matrix: &Matrix, measured: &dyn MeasuredData) -> Vec<Plot> {
    // `left_out` reports too many groups.
    let groups = groups_of(spec, matrix).unwrap_or_default();
    groups.iter().take(MAX_PLOTS).filter_map(|group| plot(spec, matrix, measured, group)).collect()
}

/// What is left out of one `[[plot]]`, and why.
pub fn left_out(spec: &PlotSpec, matrix: &Matrix) -> Vec<String> {
    let choice_count =
        spec.series.as_ref().map_or(0, |axis| axis_choices(matrix, axis, &spec.selection).len());
    let line_count = choice_count.max(spec.y.len());
    let series = (line_count > MAX_SERIES)
        .then(|| format!("{MAX_SERIES} of {line_count} lines are drawn; narrow an axis"));
    let position_count = match &spec.x {
        Side::Axis(axis) => axis_choices(matrix, axis, &spec.selection).len(),
        Side::Metrics(names) => names.len(),
    };
    let positions = (position_count > MAX_POSITIONS).then(|| {
        let (max, all) = (grouped(MAX_POSITIONS as u64), grouped(position_count as u64));
        format!("{max} of {all} positions on the x axis are drawn; narrow an axis")
    });
    let plots = match groups_of(spec, matrix) {
        Ok(groups) if groups.len() <= MAX_PLOTS => None,
        Ok(groups) => Some(format!("{MAX_PLOTS} of {} plots are shown; narrow an axis", groups.len())),
        Err(why) => Some(format!("it is not drawn: {why}")),
    };
    let reasons = plots.into_iter().chain(series).chain(positions);
    reasons.map(|why| format!("plot \"{}\": {why}", clean(&spec.title))).collect()
}

fn groups_of(spec: &PlotSpec, matrix: &Matrix) -> Result<Vec<Selection>, String> {
    let mut named: BTreeSet<&str> = spec.selection.iter().map(|choice| choice.axis.as_str()).collect();
    named.extend(spec.series.as_deref().into_iter().chain(spec.x.axis()));
    groups(matrix, &named, &spec.selection, &combined_metrics(spec.x.metrics(), &spec.y))
}

/// Draws the plot of a group; `None` if it has no data.
fn plot(spec: &PlotSpec, matrix: &Matrix, measured: &dyn MeasuredData, group: &Selection) -> Option<Plot> {
    let input = PlotInput { spec, matrix, measured, group };
    let x = x_axis(spec, matrix);
    // `None` is the single line through the metrics of `x`.
    let columns: Vec<Option<&str>> =
        if spec.y.is_empty() { vec![None] } else { spec.y.iter().map(|name| Some(name.as_str())).collect() };
    let metric_of =
        |position: &XPosition, column: Option<&str>| combined_metric(position.metric.as_deref(), column);
    let first_position = x.positions.first()?;
    let metrics: Vec<String> =
        columns.iter().filter_map(|column| metric_of(first_position, *column)).take(MAX_SERIES).collect();
    let mut series = Vec::new();
    let choices = spec.series.as_ref().map(|axis| axis_choices(matrix, axis, &spec.selection));
    let choices = choices.unwrap_or_default();
    // `None` is the only line of a plot without an axis of lines.
    let line_choices: Vec<Option<&String>> =
        if spec.series.is_some() { choices.iter().map(Some).collect() } else { vec![None] };
    for choice in line_choices.into_iter().take(MAX_SERIES) {
        for (&column, metric) in columns.iter().zip(&metrics) {
            let mut selection = without_axes(&spec.selection, &[spec.x.axis(), spec.series.as_deref()]);
            let name = match (&spec.series, choice) {
                (Some(axis), Some(choice)) => {
                    selection.push(NamedChoice::new(axis, choice));
                    matrix.label(axis, choice)
                }
                _ => column.unwrap_or(metric).to_owned(),
            };
            let line = input.line(&selection, column, &x.positions);
            if !line.points.is_empty() {
                series.push(Series { name: clean(&name), ..line });
            }
        }
    }
    if series.is_empty() {
        return None;
    }
    let group_name = matrix.group_name(group);
    let title = clean(&spec.title);
    let y_unit = common_unit(&metrics, matrix);
    Some(Plot {
        title: if group_name.is_empty() { title } else { format!("{title} ({})", clean(&group_name)) },
        x_label: spec.x_title.as_deref().map_or(x.title, clean),
        y_label: y_title(spec, y_unit, &columns),
        kind: spec.kind,
        x_is_bytes: x.is_bytes && x.names.is_empty(),
        y_is_bytes: y_unit == Some(Unit::Bytes),
        x_is_logarithmic: spec.x_is_logarithmic && x.names.is_empty(),
        y_is_logarithmic: spec.y_is_logarithmic,
        series,
        x_names: x.names,
        address: String::new(),
    })
}

/// Title of the y axis: that in the file, or the unit or the name of the metric.
fn y_title(spec: &PlotSpec, unit: Option<Unit>, columns: &[Option<&str>]) -> String {
    match (spec.y_title.as_deref(), unit, columns) {
        (Some(title), ..) => clean(title),
        (None, Some(Unit::Seconds), _) => "seconds".to_owned(),
        (None, _, [Some(column)]) => clean(column),
        (None, _, [None]) => common_suffix(&spec.x).map_or_else(String::new, clean),
        _ => String::new(),
    }
}

/// The unit shared by all metrics, if there is one.
fn common_unit(metrics: &[String], matrix: &Matrix) -> Option<Unit> {
    let unit_of = |metric: &String| unit(metric, matrix.study.metrics.get(metric));
    let first_unit = unit_of(metrics.first()?);
    metrics.iter().all(|metric| unit_of(metric) == first_unit).then_some(first_unit)
}

/// Title of an axis with its unit; sizes in bytes are shown with their own units.
fn axis_title(axis: &Axis, unit: Option<&str>) -> String {
    match unit {
        Some(unit) if unit != "bytes" => format!("{}, {}", clean(&axis.name), clean(unit)),
        _ => clean(&axis.name),
    }
}

fn x_axis(spec: &PlotSpec, matrix: &Matrix) -> XAxis {
    match &spec.x {
        Side::Metrics(names) => x_axis_of_metrics(spec, names, matrix),
        Side::Axis(name) => x_axis_of_choices(spec, name, matrix),
    }
}

/// An x axis along metrics, in the given order.
fn x_axis_of_metrics(spec: &PlotSpec, names: &[String], matrix: &Matrix) -> XAxis {
    let suffix = common_suffix(&spec.x).filter(|_| spec.y.is_empty());
    let shortened = |name: &String| match suffix {
        Some(suffix) => {
            name.strip_suffix(suffix).and_then(|name| name.strip_suffix('.')).unwrap_or(name).to_owned()
        }
        None => name.clone(),
    };
    let short_names: Vec<String> = names.iter().take(MAX_POSITIONS).map(shortened).collect();
    // Many names do not fit on the axis; their numbers give the same information.
    let numbered =
        split_numbers(&short_names).filter(|_| short_names.len() > MAX_X_NAMES && !is_horizontal(spec));
    let position = |(index, name): (usize, &String)| XPosition {
        x: numbered.as_ref().and_then(|names| names.numbers.get(index).copied()).unwrap_or(index as f64),
        choice: None,
        metric: Some(name.clone()),
    };
    let positions = names.iter().take(MAX_POSITIONS).enumerate().map(position).collect();
    let is_mark = |name: &String| {
        let metric = combined_metric(Some(name), spec.y.first().map(String::as_str));
        let metric = metric.and_then(|metric| matrix.study.metrics.get(&metric));
        matches!(metric, Some(Metric::Mark { .. } | Metric::Row { .. }))
    };
    let title = if names.iter().all(is_mark) { "mark" } else { "" }.to_owned();
    match numbered {
        Some(names) => XAxis { positions, title: clean(names.title), ..XAxis::default() },
        None => XAxis {
            positions,
            names: short_names.iter().map(|name| clean(name)).collect(),
            title,
            is_bytes: false,
        },
    }
}

fn x_axis_of_choices(spec: &PlotSpec, name: &str, matrix: &Matrix) -> XAxis {
    let axis = matrix.axes.iter().find(|axis| axis.name == *name);
    let choices: Vec<String> =
        axis_choices(matrix, name, &spec.selection).into_iter().take(MAX_POSITIONS).collect();
    let numbers: Option<Vec<f64>> =
        axis.and_then(|axis| choices.iter().map(|name| axis.choice(name)?.number).collect());
    // Bars and strips are placed side by side, whatever their numbers.
    let numbers = numbers.filter(|_| !is_horizontal(spec));
    let position = |(index, choice): (usize, &String)| XPosition {
        x: numbers.as_ref().and_then(|numbers| numbers.get(index).copied()).unwrap_or(index as f64),
        choice: Some(NamedChoice::new(name, choice)),
        metric: None,
    };
    let mut positions: Vec<XPosition> = choices.iter().enumerate().map(position).collect();
    if numbers.is_some() {
        positions.sort_by(|a, b| a.x.total_cmp(&b.x));
    }
    let label = |choice: &String| clean(&matrix.label(name, choice));
    let names = if numbers.is_some() { Vec::new() } else { choices.iter().map(label).collect() };
    let unit = axis.and_then(|axis| axis.unit.as_deref());
    let title = axis.map_or_else(|| clean(name), |axis| axis_title(axis, unit));
    XAxis { positions, names, title, is_bytes: unit == Some("bytes") }
}

/// Whether it is drawn as rows, each with a name on the left.
fn is_horizontal(spec: &PlotSpec) -> bool {
    matches!(spec.kind, PlotKind::Bars | PlotKind::Strips)
}

/// The common suffix after the first dot: `rss_bytes` for `a.rss_bytes`, `b.rss_bytes`.
fn common_suffix(side: &Side) -> Option<&str> {
    let Side::Metrics(names) = side else { return None };
    let (_, suffix) = names.first()?.split_once('.')?;
    let has_suffix =
        |name: &String| name.split_once('.').is_some_and(|(_, name_suffix)| name_suffix == suffix);
    names.iter().all(has_suffix).then_some(suffix)
}

/// Names with the same beginning and increasing numbers: `f1`, `f2`, `f5`.
struct NumberedNames<'n> {
    /// What they have in common: `f`.
    title: &'n str,
    /// 1, 2, 5.
    numbers: Vec<f64>,
}

/// Splits `names` into their common beginning and their numbers; `None` if they have another form.
fn split_numbers(names: &[String]) -> Option<NumberedNames<'_>> {
    let prefix = names.first()?.trim_end_matches(|c: char| c.is_ascii_digit());
    let number = |name: &String| -> Option<f64> {
        let digits = name.strip_prefix(prefix)?;
        let has_only_digits = digits.bytes().all(|byte| byte.is_ascii_digit());
        digits.parse().ok().filter(|_| has_only_digits)
    };
    let numbers: Vec<f64> = names.iter().map(number).collect::<Option<_>>()?;
    let title = prefix.trim_end_matches(['.', '_', '-', ' ']);
    numbers.is_sorted_by(|a, b| a < b).then_some(NumberedNames { title, numbers })
}

/// The study and the group of cells that a plot is drawn from.
struct PlotInput<'a> {
    spec: &'a PlotSpec,
    matrix: &'a Matrix,
    measured: &'a dyn MeasuredData,
    group: &'a Selection,
}

impl PlotInput<'_> {
    /// The line of one choice and column, without points for cells that have no data.
    fn line(&self, selection: &[NamedChoice], column: Option<&str>, positions: &[XPosition]) -> Series {
        let mut series = Series::default();
        for position in positions {
            let mut named = selection.to_vec();
            named.extend(position.choice.clone());
            let Some(metric) = combined_metric(position.metric.as_deref(), column) else { continue };
            let Ok(key) = self.matrix.resolve(&named, self.group) else { continue };
            let Ok(estimate) = estimate(self.measured, &key, &metric) else { continue };
            if self.spec.kind == PlotKind::Strips {
                series.points.extend(estimate.samples.iter().map(|&sample| (position.x, sample)));
                continue;
            }
            // An unknown interval is drawn without extent.
            let median = estimate.median;
            series.points.push((position.x, median));
            series.intervals.push((estimate.low.unwrap_or(median), estimate.high.unwrap_or(median)));
        }
        series
    }
}
