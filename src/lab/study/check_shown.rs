//! Whether the tables and plots that a study wants name what there is: axes, metrics, choices, rows and columns.

use std::collections::BTreeSet;

use super::check::selection;
use super::diagnostics::{Problems, nearest};
use super::expression::unknown_metric;
use super::file::{PublishedFigure, SUBJECT, Side, Statistic, Study, TableSpec};
use super::matrix::Matrix;
use super::metric::MOST_METRICS;
use super::table::met;

/// Of the names in one table or plot that are none, so many are told.
const MOST_TOLD: usize = 5;

/// Checks the tables and plots of `study`.
pub fn results(study: &Study, matrix: &Matrix, problems: &mut Problems) {
    for table in &study.tables {
        sides(matrix, [&table.rows, &table.columns], table.offset, problems);
        metrics(matrix, table.metric.iter().cloned(), table.offset, problems);
        selection(&table.given, matrix, table.offset, problems);
        selection(&table.ratio_to, matrix, table.offset, problems);
        let is_extreme = matches!(table.statistic, Statistic::Least | Statistic::Most);
        if is_extreme && !table.ratio_to.is_empty() {
            problems.add(
                table.offset,
                "[[table]]: a ratio has a median, low and high: no `statistic` \"least\" or \"most\" with `ratio_to`",
            );
        }
        published(table, study, problems);
    }
    for plot in &study.plots {
        let y = if plot.y.is_empty() { None } else { Some(Side::Metrics(plot.y.clone())) };
        match (&plot.x, &y) {
            (Side::Axis(_), _) | (_, None) => {
                side(matrix, &plot.x, plot.offset, problems);
                metrics(matrix, plot.y.iter().cloned(), plot.offset, problems);
            }
            (x, Some(y)) => sides(matrix, [x, y], plot.offset, problems),
        }
        plot.series.iter().for_each(|name| axis(study, name, plot.offset, problems));
        selection(&plot.given, matrix, plot.offset, problems);
    }
}

fn axis(study: &Study, name: &str, offset: usize, problems: &mut Problems) {
    if name != SUBJECT && study.axis(name).is_none() {
        problems.add(offset, format!("there is no axis `{name}`; metrics stand in a list: [\"{name}\"]"));
    }
}

fn side(matrix: &Matrix, side: &Side, offset: usize, problems: &mut Problems) {
    match side {
        Side::Axis(name) => axis(&matrix.study, name, offset, problems),
        Side::Metrics(names) => metrics(matrix, names.iter().cloned(), offset, problems),
    }
}

/// Where both are lists, what stands where they meet are metrics.
fn sides(matrix: &Matrix, both: [&Side; 2], offset: usize, problems: &mut Problems) {
    let [Side::Metrics(rows), Side::Metrics(columns)] = both else {
        both.into_iter().for_each(|one| side(matrix, one, offset, problems));
        return;
    };
    if rows.len().saturating_mul(columns.len()) > MOST_METRICS {
        problems.add(offset, format!("more than {MOST_METRICS} metrics in one table or plot"));
        return;
    }
    let names = rows.iter().flat_map(|row| columns.iter().filter_map(|column| met(Some(row), Some(column))));
    metrics(matrix, names, offset, problems);
}

fn metrics(matrix: &Matrix, names: impl Iterator<Item = String>, offset: usize, problems: &mut Problems) {
    let unknown = names.filter(|name| !matrix.study.metrics.contains_key(name));
    for name in unknown.take(MOST_TOLD) {
        problems.add(offset, unknown_metric(&name, matrix));
    }
}

/// Published figures are of rows and columns that the table has.
fn published(table: &TableSpec, study: &Study, problems: &mut Problems) {
    let (rows, columns) = (lines(&table.rows, study), lines(&table.columns, study));
    let mut last_row = None;
    let mut told = 0;
    for PublishedFigure { row, column, .. } in &table.published {
        // A row's name stands before several figures.
        let is_new = last_row.replace(row.offset) != Some(row.offset);
        let places = [("row", row, &rows, is_new), ("column", column, &columns, true)];
        for (what, name, known, is_told) in places {
            // The choices of some axes are given by whoever runs it.
            if is_told && told < MOST_TOLD && !known.is_empty() && !known.contains(name.value.as_str()) {
                told += 1;
                let hint = match nearest(&name.value, known.iter().copied()) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => format!("it has {}", some(known)),
                };
                let text = format!("[[table]] published: `{}` is no {what} of it; {hint}", name.value);
                problems.add(name.offset, text);
            }
        }
    }
}

/// The names along a side of a table.
fn lines<'s>(side: &'s Side, study: &'s Study) -> BTreeSet<&'s str> {
    match side {
        Side::Axis(axis) if axis == SUBJECT => {
            study.subjects.iter().map(|subject| subject.name.as_str()).collect()
        }
        Side::Axis(axis) => {
            let choices = study.axis(axis).map_or(&[][..], |axis| &axis.choices);
            choices.iter().map(|choice| choice.name.as_str()).collect()
        }
        Side::Metrics(names) => names.iter().map(String::as_str).collect(),
    }
}

fn some(names: &BTreeSet<&str>) -> String {
    const MOST: usize = 8;
    let shown = names.iter().take(MOST).copied().collect::<Vec<_>>().join(", ");
    if names.len() > MOST { format!("{shown}, …") } else { shown }
}
