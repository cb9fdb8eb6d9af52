//! Tables of a study: an axis against another axis or against metrics, or first parts of metric
//! names against second parts (marks against columns), with published figures next to the measured
//! ones.

use std::collections::{BTreeMap, BTreeSet};

use super::data::{Measured, estimate, figure, ratio};
use super::file::{SUBJECT, Selection, Side, Statistic, Study, Subject, TableSpec};
use super::matrix::Matrix;
use super::metric::{Metric, Unit, unit};
use super::parse_results::UNITS;
use strandline_report::pages::page::{Cell, Column, Table, Tone};
use strandline_report::text::{clean, grouped};
use strandline_report::units::{bytes, seconds};

/// Maximum number of tables of one `[[table]]`, one for each combination of unnamed axes.
pub const MAX_TABLES: usize = 50;
/// Further rows and columns are dropped, with a note in the caption.
const MAX_ROWS: usize = 2_000;
const MAX_COLUMNS: usize = 60;
/// Shown where nothing was measured.
const MISSING: &str = "–";

/// A row or column: its name in the file and as shown, the choice it represents, the metric it
/// shows.
struct Entry {
    name: String,
    label: String,
    choice: Option<(String, String)>,
    metric: Option<String>,
}

/// The tables of one `[[table]]`: one for each combination of unnamed axes.
pub fn tables(spec: &TableSpec, matrix: &Matrix, measured: &dyn Measured) -> Vec<Table> {
    let groups = groups_of(spec, matrix).unwrap_or_default();
    groups.iter().take(MAX_TABLES).map(|group| table(spec, matrix, measured, group)).collect()
}

/// What is omitted from one `[[table]]`, and why.
pub fn left_out(spec: &TableSpec, matrix: &Matrix) -> Option<String> {
    let why = match groups_of(spec, matrix) {
        Ok(groups) if groups.len() <= MAX_TABLES => return None,
        Ok(groups) => format!("{MAX_TABLES} of {} tables are shown; narrow an axis", groups.len()),
        Err(why) => format!("it is not shown: {why}"),
    };
    Some(format!("table \"{}\": {why}", clean(&spec.title)))
}

fn groups_of(spec: &TableSpec, matrix: &Matrix) -> Result<Vec<Selection>, String> {
    let mut named: BTreeSet<&str> = spec.given.iter().map(|(axis, _)| axis.as_str()).collect();
    for side in [&spec.rows, &spec.columns] {
        if let Side::Axis(axis) = side {
            named.insert(axis);
        }
    }
    groups(matrix, &named, &spec.given, &metrics_of(spec))
}

/// All metrics of a table.
fn metrics_of(spec: &TableSpec) -> Vec<String> {
    let between = combined_metrics(spec.rows.metrics(), spec.columns.metrics());
    between.into_iter().chain(spec.metric.clone()).collect()
}

/// All combinations of two lists of metrics, as in [`combined_metric`]; one list alone if the other
/// is empty.
pub fn combined_metrics(first: &[String], second: &[String]) -> Vec<String> {
    match (first, second) {
        ([], some) | (some, []) => some.to_vec(),
        (first, second) => {
            let of = |name| {
                second.iter().filter_map(move |other: &String| combined_metric(Some(name), Some(other)))
            };
            first.iter().flat_map(|name| of(name)).collect()
        }
    }
}

/// The combinations of the axes that are not `named`, for the subjects in `given`, else for
/// subjects that have all the `metrics`, else for subjects that have any of them.
///
/// # Errors
/// One line if there are too many.
pub fn groups(
    matrix: &Matrix,
    named: &BTreeSet<&str>,
    given: &[(String, String)],
    metrics: &[String],
) -> Result<Vec<Selection>, String> {
    let subjects: BTreeSet<String> =
        given.iter().filter(|(axis, _)| axis == SUBJECT).map(|(_, name)| name.clone()).collect();
    let has = |metric: &String| matrix.subjects.iter().any(|subject| subject.metrics.contains_key(metric));
    let has_all = |subject: &Subject| metrics.iter().all(|metric| subject.metrics.contains_key(metric));
    let has_any = |subject: &&Subject| metrics.iter().any(|metric| subject.metrics.contains_key(metric));
    let subjects = if subjects.is_empty() && !matrix.subjects.iter().any(has_all) && metrics.iter().any(has) {
        matrix.subjects.iter().filter(has_any).map(|subject| subject.name.clone()).collect()
    } else {
        matrix.relevant_subjects(&subjects, metrics.iter())
    };
    matrix.groups(&|axis| named.contains(axis), &subjects)
}

fn table(spec: &TableSpec, matrix: &Matrix, measured: &dyn Measured, group: &Selection) -> Table {
    let (mut rows, mut columns) = (lines(&spec.rows, spec, matrix), lines(&spec.columns, spec, matrix));
    let group_name = matrix.group_name(group);
    let mut caption = clean(&spec.title);
    if !group_name.is_empty() {
        caption = format!("{caption} ({})", clean(&group_name));
    }
    if let Some(unit) = &spec.unit {
        caption = format!("{caption}, {unit}");
    }
    if rows.len() > MAX_ROWS || columns.len() > MAX_COLUMNS {
        caption = format!("{caption}; of {} rows and {} columns the first", rows.len(), columns.len());
        rows.truncate(MAX_ROWS);
        columns.truncate(MAX_COLUMNS);
    }
    // The first of several figures for one place counts.
    let figures: BTreeMap<(&str, &str), f64> = spec
        .published
        .iter()
        .rev()
        .map(|one| ((one.row.value.as_str(), one.column.value.as_str()), one.figure))
        .collect();
    let published =
        |row: &Entry, column: &Entry| figures.get(&(row.name.as_str(), column.name.as_str())).copied();
    let has_published: Vec<bool> =
        columns.iter().map(|column| rows.iter().any(|row| published(row, column).is_some())).collect();
    let mut heads = vec![Column::new(side_name(&spec.rows), false)];
    for (column, &has) in columns.iter().zip(&has_published) {
        heads.push(Column::new(clean(&column.label), true));
        if has {
            heads.push(Column::new("published", true));
        }
    }
    let rows = rows.iter().map(|row| {
        let mut cells = vec![Cell::plain(clean(&row.label))];
        for (column, &has) in columns.iter().zip(&has_published) {
            cells.push(cell(spec, matrix, measured, group, [row, column]));
            if has {
                let metric = metric_of(spec, [row, column]);
                let text = published(row, column).map_or_else(
                    || MISSING.to_owned(),
                    |figure| show_published(spec, matrix, metric.as_deref().unwrap_or_default(), figure),
                );
                cells.push(Cell { text, tone: Tone::Faint });
            }
        }
        cells
    });
    Table { caption, columns: heads, rows: rows.collect() }
}

fn side_name(side: &Side) -> String {
    match side {
        Side::Axis(axis) => clean(axis),
        Side::Metrics(_) => String::new(),
    }
}

/// The rows or columns of a side; only subjects that have a metric of the table.
fn lines(side: &Side, spec: &TableSpec, matrix: &Matrix) -> Vec<Entry> {
    let metrics = metrics_of(spec);
    let is_shown = |axis: &str, name: &str| {
        let subject = matrix.subjects.iter().find(|subject| axis == SUBJECT && subject.name == name);
        subject.is_none_or(|subject| metrics.iter().any(|metric| subject.metrics.contains_key(metric)))
    };
    match side {
        Side::Metrics(names) => names
            .iter()
            .map(|name| Entry {
                name: name.clone(),
                label: name.clone(),
                choice: None,
                metric: Some(name.clone()),
            })
            .collect(),
        Side::Axis(axis) => choices(matrix, axis, &spec.given)
            .into_iter()
            .filter(|name| is_shown(axis, name))
            .map(|name| Entry {
                choice: Some((axis.clone(), name.clone())),
                label: matrix.label(axis, &name),
                name,
                metric: None,
            })
            .collect(),
    }
}

/// Names of the choices of an axis, or of the subjects; limited to those in `given`, if any.
pub fn choices(matrix: &Matrix, axis: &str, given: &[(String, String)]) -> Vec<String> {
    let all: Vec<String> = if axis == SUBJECT {
        matrix.subjects.iter().map(|subject| subject.name.clone()).collect()
    } else {
        let found = matrix.axes.iter().find(|found| found.name == axis);
        found.map_or_else(Vec::new, |axis| axis.choices.iter().map(|choice| choice.name.clone()).collect())
    };
    let wanted: Vec<&String> =
        given.iter().filter(|(known, _)| known == axis).map(|(_, name)| name).collect();
    if wanted.is_empty() {
        return all;
    }
    wanted.into_iter().filter(|name| all.contains(name)).cloned().collect()
}

/// The entries of `given` for axes that are not sides.
pub fn without(given: &[(String, String)], axes: &[Option<&str>]) -> Selection {
    given.iter().filter(|(axis, _)| !axes.contains(&Some(axis))).cloned().collect()
}

fn metric_of(spec: &TableSpec, lines: [&Entry; 2]) -> Option<String> {
    let [row, column] = lines.map(|line| line.metric.as_deref());
    combined_metric(row, column).or_else(|| spec.metric.clone())
}

/// The metric in a cell: `FIRST.SECOND`, or the only one that is named.
pub fn combined_metric(first: Option<&str>, second: Option<&str>) -> Option<String> {
    match (first, second) {
        (Some(first), Some(second)) => Some(format!("{first}.{second}")),
        (one, other) => one.or(other).map(str::to_owned),
    }
}

fn cell(
    spec: &TableSpec,
    matrix: &Matrix,
    measured: &dyn Measured,
    group: &Selection,
    lines: [&Entry; 2],
) -> Cell {
    let nothing = || Cell { text: MISSING.to_owned(), tone: Tone::Faint };
    let Some(metric) = metric_of(spec, lines) else { return nothing() };
    let mut named = without(&spec.given, &[spec.rows.axis(), spec.columns.axis()]);
    named.extend(lines.iter().filter_map(|line| line.choice.clone()));
    let Ok(key) = matrix.resolve(&named, group) else { return nothing() };
    if !spec.ratio_to.is_empty() {
        named.retain(|(axis, _)| !spec.ratio_to.iter().any(|(other, _)| other == axis));
        named.extend(spec.ratio_to.iter().cloned());
        let found = matrix.resolve(&named, group).map_err(|_| String::new());
        let Ok(ratio) = found.and_then(|to| ratio(measured, &key, &to, &metric)) else { return nothing() };
        let value = match spec.statistic {
            Statistic::Low => ratio.low,
            Statistic::High => ratio.high,
            Statistic::Median | Statistic::Least | Statistic::Most => Some(ratio.median),
        };
        return shown(spec, value, [ratio.low, ratio.high], &|value| format_ratio(spec, value));
    }
    if matches!(matrix.study.metrics.get(&metric), Some(Metric::Text(_))) {
        return measured.text(&key, &metric).map_or_else(|_| nothing(), |text| Cell::plain(clean(&text)));
    }
    let Ok(estimate) = estimate(measured, &key, &metric) else { return nothing() };
    let show = |value: f64| format_figure(spec.unit.as_deref(), &matrix.study, &metric, value);
    shown(spec, figure(&estimate, spec.statistic), [estimate.low, estimate.high], &show)
}

/// A figure, with its interval if requested and known.
fn shown(spec: &TableSpec, value: Option<f64>, ends: [Option<f64>; 2], show: &dyn Fn(f64) -> String) -> Cell {
    let Some(value) = value else { return Cell { text: MISSING.to_owned(), tone: Tone::Faint } };
    match ends {
        [Some(low), Some(high)] if spec.interval => {
            Cell::plain(format!("{} ({} – {})", show(value), show(low), show(high)))
        }
        _ => Cell::plain(show(value)),
    }
}

fn format_ratio(spec: &TableSpec, ratio: f64) -> String {
    if spec.unit.as_deref() == Some("%") { format_number(ratio * 100.0) } else { format!("{ratio:.3}") }
}

fn show_published(spec: &TableSpec, matrix: &Matrix, metric: &str, figure: f64) -> String {
    // With a unit, published figures are given in that unit.
    if spec.unit.is_some() || !spec.ratio_to.is_empty() {
        return format_number(figure);
    }
    format_figure(None, &matrix.study, metric, figure)
}

/// A figure in readable form.
pub fn format_figure(wanted: Option<&str>, study: &Study, metric: &str, value: f64) -> String {
    if let Some((_, factor)) = UNITS.iter().find(|(name, _)| Some(*name) == wanted) {
        return format_number(value / factor);
    }
    match unit(metric, study.metrics.get(metric)) {
        Unit::Bytes if value < 0.0 => format!("−{}", bytes((-value).round() as u64)),
        Unit::Bytes => bytes(value.round() as u64),
        Unit::Seconds if value >= 0.0 => seconds(value),
        Unit::Seconds | Unit::Count => format_number(value),
    }
}

/// Whole numbers with thousands separators, others with three significant digits.
pub fn format_number(value: f64) -> String {
    let sign = if value < 0.0 { "−" } else { "" };
    let size = value.abs();
    if size < 1e15 && (size.fract() == 0.0 || size >= 1_000.0) {
        return format!("{sign}{}", grouped(size.round() as u64));
    }
    if !(1e-4..1e15).contains(&size) {
        return format!("{sign}{size:.2e}");
    }
    let places = if size >= 100.0 {
        0
    } else if size >= 10.0 {
        1
    } else if size >= 1.0 {
        2
    } else {
        3
    };
    format!("{sign}{size:.places$}")
}
