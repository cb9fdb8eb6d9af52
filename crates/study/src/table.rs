//! Tables of a study: an axis against another axis or against metrics, or first parts of metric
//! names against second parts (marks against columns), with published figures next to the measured
//! ones.

use std::collections::{BTreeMap, BTreeSet};

use super::data::{MeasuredData, estimate, figure, ratio, ratio_figure};
use super::file::{NamedChoice, SUBJECT, Selection, Side, Study, Subject, TableSpec};
use super::matrix::Matrix;
use super::metric::{Metric, Unit, unit};
use super::parse_results::UNITS;
use strandline_report::pages::page::{Cell, Column, Table, Tone};
use strandline_report::text::clean;
use strandline_report::units::{self, bytes, seconds, thousands};

/// Maximum number of tables of one `[[table]]`, one for each combination of unnamed axes.
pub const MAX_TABLES: usize = 50;
/// Further rows and columns are dropped, with a note in the caption.
const MAX_ROWS: usize = 2_000;
const MAX_COLUMNS: usize = 60;
/// Shown for an unknown figure.
const MISSING: &str = "–";

/// A row or column.
struct Line {
    name: String,
    label: String,
    /// The axis and choice that it stands for, if it is one.
    choice: Option<NamedChoice>,
    /// The metric, or part of a metric's name, that it stands for, if it is one.
    metric: Option<String>,
}

/// The tables of one `[[table]]`: one for each combination of unnamed axes.
pub fn tables(spec: &TableSpec, matrix: &Matrix, measured: &dyn MeasuredData) -> Vec<Table> {
    // `left_out` reports too many groups.
    let groups = groups_of(spec, matrix).unwrap_or_default();
    groups.iter().take(MAX_TABLES).map(|group| table(spec, matrix, measured, group)).collect()
}

/// What is left out of one `[[table]]`, and why.
pub fn left_out(spec: &TableSpec, matrix: &Matrix) -> Option<String> {
    let why = match groups_of(spec, matrix) {
        Ok(groups) if groups.len() <= MAX_TABLES => return None,
        Ok(groups) => format!("{MAX_TABLES} of {} tables are shown; narrow an axis", groups.len()),
        Err(why) => format!("it is not shown: {why}"),
    };
    Some(format!("table \"{}\": {why}", clean(&spec.title)))
}

fn groups_of(spec: &TableSpec, matrix: &Matrix) -> Result<Vec<Selection>, String> {
    let mut named: BTreeSet<&str> = spec.selection.iter().map(|choice| choice.axis.as_str()).collect();
    named.extend([&spec.rows, &spec.columns].into_iter().filter_map(|side| side.axis()));
    groups(matrix, &named, &spec.selection, &metrics_of(spec))
}

fn metrics_of(spec: &TableSpec) -> Vec<String> {
    let side_metrics = combined_metrics(spec.rows.metrics(), spec.columns.metrics());
    side_metrics.into_iter().chain(spec.metric.clone()).collect()
}

/// All combinations of two lists of metrics, as in [`combined_metric`]; one list alone if the other
/// is empty.
pub fn combined_metrics(first: &[String], second: &[String]) -> Vec<String> {
    match (first, second) {
        ([], names) | (names, []) => names.to_vec(),
        (first, second) => {
            let combinations =
                first.iter().flat_map(|prefix| second.iter().map(move |suffix| (prefix, suffix)));
            combinations.filter_map(|(prefix, suffix)| combined_metric(Some(prefix), Some(suffix))).collect()
        }
    }
}

/// The combinations of the axes that are not `named`, for the subjects in `selection`, else for
/// subjects that have all the `metrics`, else for subjects that have any of them.
///
/// # Errors
/// Those of [`Matrix::groups`].
pub fn groups(
    matrix: &Matrix,
    named: &BTreeSet<&str>,
    selection: &[NamedChoice],
    metrics: &[String],
) -> Result<Vec<Selection>, String> {
    let subjects: BTreeSet<String> =
        selection.iter().filter(|choice| choice.axis == SUBJECT).map(|choice| choice.name.clone()).collect();
    let is_measured =
        |metric: &String| matrix.subjects.iter().any(|subject| subject.metrics.contains_key(metric));
    let has_all = |subject: &Subject| metrics.iter().all(|metric| subject.metrics.contains_key(metric));
    let has_any = |subject: &&Subject| metrics.iter().any(|metric| subject.metrics.contains_key(metric));
    let subjects =
        if subjects.is_empty() && !matrix.subjects.iter().any(has_all) && metrics.iter().any(is_measured) {
            matrix.subjects.iter().filter(has_any).map(|subject| subject.name.clone()).collect()
        } else {
            matrix.relevant_subjects(&subjects, metrics.iter())
        };
    matrix.groups(&|axis| named.contains(axis), &subjects)
}

fn table(spec: &TableSpec, matrix: &Matrix, measured: &dyn MeasuredData, group: &Selection) -> Table {
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
        let (all_rows, all_columns) = (rows.len(), columns.len());
        rows.truncate(MAX_ROWS);
        columns.truncate(MAX_COLUMNS);
        let (shown_rows, shown_columns) = (rows.len(), columns.len());
        caption += &format!(
            "; the first {shown_rows} of {all_rows} rows and the first {shown_columns} of {all_columns} columns"
        );
    }
    // The first of several published figures for one cell counts.
    let published_figures: BTreeMap<(&str, &str), f64> = spec
        .published
        .iter()
        .rev()
        .map(|published| ((published.row.value.as_str(), published.column.value.as_str()), published.figure))
        .collect();
    let published_figure = |row: &Line, column: &Line| {
        published_figures.get(&(row.name.as_str(), column.name.as_str())).copied()
    };
    let has_published: Vec<bool> =
        columns.iter().map(|column| rows.iter().any(|row| published_figure(row, column).is_some())).collect();
    let mut heads = vec![Column::new(side_name(&spec.rows), false)];
    for (column, &has_published) in columns.iter().zip(&has_published) {
        heads.push(Column::new(clean(&column.label), true));
        if has_published {
            heads.push(Column::new("published", true));
        }
    }
    let rows = rows.iter().map(|row| {
        let mut cells = vec![Cell::plain(clean(&row.label))];
        for (column, &has_published) in columns.iter().zip(&has_published) {
            cells.push(cell(spec, matrix, measured, group, [row, column]));
            if has_published {
                let metric = metric_of(spec, [row, column]);
                let text = published_figure(row, column).map_or_else(
                    || MISSING.to_owned(),
                    |figure| format_published(spec, matrix, metric.as_deref().unwrap_or_default(), figure),
                );
                cells.push(Cell { text, tone: Tone::Faint });
            }
        }
        cells
    });
    Table { caption, columns: heads, rows: rows.collect() }
}

/// Title of the column with the names of rows.
fn side_name(side: &Side) -> String {
    match side {
        Side::Axis(axis) => clean(axis),
        Side::Metrics(_) => String::new(),
    }
}

/// The rows or columns of a side; only subjects that have a metric of the table.
fn lines(side: &Side, spec: &TableSpec, matrix: &Matrix) -> Vec<Line> {
    let metrics = metrics_of(spec);
    let is_shown = |axis: &str, name: &str| {
        let subject = matrix.subjects.iter().find(|subject| axis == SUBJECT && subject.name == name);
        subject.is_none_or(|subject| metrics.iter().any(|metric| subject.metrics.contains_key(metric)))
    };
    match side {
        Side::Metrics(names) => names
            .iter()
            .map(|name| Line {
                name: name.clone(),
                label: name.clone(),
                choice: None,
                metric: Some(name.clone()),
            })
            .collect(),
        Side::Axis(axis) => axis_choices(matrix, axis, &spec.selection)
            .into_iter()
            .filter(|name| is_shown(axis, name))
            .map(|name| Line {
                choice: Some(NamedChoice::new(axis, &name)),
                label: matrix.label(axis, &name),
                name,
                metric: None,
            })
            .collect(),
    }
}

/// Names of the choices of an axis, or of the subjects; limited to those in `selection`, if any.
pub fn axis_choices(matrix: &Matrix, axis: &str, selection: &[NamedChoice]) -> Vec<String> {
    let choices: Vec<String> = if axis == SUBJECT {
        matrix.subjects.iter().map(|subject| subject.name.clone()).collect()
    } else {
        let axis = matrix.axes.iter().find(|listed| listed.name == axis);
        axis.map_or_else(Vec::new, |axis| axis.choices.iter().map(|choice| choice.name.clone()).collect())
    };
    let selected: Vec<&String> =
        selection.iter().filter(|choice| choice.axis == axis).map(|choice| &choice.name).collect();
    if selected.is_empty() {
        return choices;
    }
    selected.into_iter().filter(|name| choices.contains(name)).cloned().collect()
}

/// The entries of `selection` for axes that are not sides.
pub fn without_axes(selection: &[NamedChoice], axes: &[Option<&str>]) -> Selection {
    selection.iter().filter(|choice| !axes.contains(&Some(&choice.axis))).cloned().collect()
}

/// The metric in the cell of two lines.
fn metric_of(spec: &TableSpec, lines: [&Line; 2]) -> Option<String> {
    let [row, column] = lines.map(|line| line.metric.as_deref());
    combined_metric(row, column).or_else(|| spec.metric.clone())
}

/// The metric in a cell: `FIRST.SECOND`, or the only one that is named.
pub fn combined_metric(first: Option<&str>, second: Option<&str>) -> Option<String> {
    match (first, second) {
        (Some(first), Some(second)) => Some(format!("{first}.{second}")),
        (first, second) => first.or(second).map(str::to_owned),
    }
}

/// The cell of a row and a column, in this order; a cell without data is marked as missing.
fn cell(
    spec: &TableSpec,
    matrix: &Matrix,
    measured: &dyn MeasuredData,
    group: &Selection,
    lines: [&Line; 2],
) -> Cell {
    let missing = || Cell { text: MISSING.to_owned(), tone: Tone::Faint };
    let Some(metric) = metric_of(spec, lines) else { return missing() };
    let mut named = without_axes(&spec.selection, &[spec.rows.axis(), spec.columns.axis()]);
    named.extend(lines.iter().filter_map(|line| line.choice.clone()));
    let Ok(key) = matrix.resolve(&named, group) else { return missing() };
    if !spec.ratio_to.is_empty() {
        named.retain(|choice| !spec.ratio_to.iter().any(|reference| reference.axis == choice.axis));
        named.extend(spec.ratio_to.iter().cloned());
        let Ok(denominator) = matrix.resolve(&named, group) else { return missing() };
        let Ok(ratio) = ratio(measured, &key, &denominator, &metric) else { return missing() };
        let value = ratio_figure(&ratio, spec.statistic);
        return figure_cell(spec, value, [ratio.low, ratio.high], &|value| format_ratio(spec, value));
    }
    if matches!(matrix.study.metrics.get(&metric), Some(Metric::Text(_))) {
        return measured.text(&key, &metric).map_or_else(|_| missing(), |text| Cell::plain(clean(&text)));
    }
    let Ok(estimate) = estimate(measured, &key, &metric) else { return missing() };
    let format = |value: f64| format_figure(spec.unit.as_deref(), &matrix.study, &metric, value);
    figure_cell(spec, figure(&estimate, spec.statistic), [estimate.low, estimate.high], &format)
}

/// A figure, with its interval between the `bounds` if that is requested and known.
fn figure_cell(
    spec: &TableSpec,
    value: Option<f64>,
    bounds: [Option<f64>; 2],
    format: &dyn Fn(f64) -> String,
) -> Cell {
    let Some(value) = value else { return Cell { text: MISSING.to_owned(), tone: Tone::Faint } };
    match bounds {
        [Some(low), Some(high)] if spec.shows_interval => {
            Cell::plain(format!("{} ({} – {})", format(value), format(low), format(high)))
        }
        _ => Cell::plain(format(value)),
    }
}

fn format_ratio(spec: &TableSpec, ratio: f64) -> String {
    if spec.unit.as_deref() == Some("%") { format_number(ratio * 100.0) } else { units::ratio(ratio) }
}

fn format_published(spec: &TableSpec, matrix: &Matrix, metric: &str, figure: f64) -> String {
    // With a unit, published figures are given in that unit.
    if spec.unit.is_some() || !spec.ratio_to.is_empty() {
        return format_number(figure);
    }
    format_figure(None, &matrix.study, metric, figure)
}

/// A figure in readable form, in the unit of the table if it has one.
pub fn format_figure(table_unit: Option<&str>, study: &Study, metric: &str, value: f64) -> String {
    if let Some((_, factor)) = UNITS.iter().find(|(name, _)| Some(*name) == table_unit) {
        return format_number(value / factor);
    }
    match unit(metric, study.metrics.get(metric)) {
        Unit::Bytes if value < 0.0 => format!("−{}", bytes((-value).round() as u64)),
        Unit::Bytes => bytes(value.round() as u64),
        Unit::Seconds if value >= 0.0 => seconds(value),
        Unit::Seconds | Unit::Count => format_number(value),
    }
}

/// Whole numbers, and all from 1,000 on rounded to one, with thousands separators; smaller ones
/// with three significant digits, or three decimals below 1; very small and very large ones with an
/// exponent.
pub fn format_number(value: f64) -> String {
    // With three decimals, smaller numbers could be shown as 0.
    const MIN_WITHOUT_EXPONENT: f64 = 1e-3;
    const MAX_WITHOUT_EXPONENT: f64 = 1e15;
    let sign = if value < 0.0 { "−" } else { "" };
    let size = value.abs();
    if size < MAX_WITHOUT_EXPONENT && (size.fract() == 0.0 || size >= 1_000.0) {
        return format!("{sign}{}", thousands(size.round() as u64));
    }
    if !(MIN_WITHOUT_EXPONENT..MAX_WITHOUT_EXPONENT).contains(&size) {
        return format!("{sign}{size:.2e}");
    }
    let decimals = match size {
        100.0.. => 0,
        10.0.. => 1,
        1.0.. => 2,
        _ => 3,
    };
    format!("{sign}{size:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::format_number;

    #[test]
    fn numbers_other_than_0_are_not_shown_as_0() {
        for (value, expected) in
            [(0.0, "0"), (0.0004, "4.00e-4"), (-0.002, "−0.002"), (1.5, "1.50"), (-1234.6, "−1,235")]
        {
            assert_eq!(format_number(value), expected);
        }
    }
}
