//! Checks that the tables and plots of a study name existing axes, metrics, choices, rows and
//! columns.

use std::collections::BTreeSet;

use super::expression::unknown_metric_text;
use super::file::{NamedChoice, PublishedFigure, SUBJECT, Side, Statistic, Study, Subject, TableSpec};
use super::matrix::{CellError, Matrix};
use super::metric::{MAX_METRICS, Metric};
use super::nearest::nearest;
use super::problems::Problems;
use super::table::combined_metrics;

/// Maximum number of unknown names reported for one table or plot; once these are corrected, the
/// next check reports the others.
const MAX_REPORTED: usize = 5;

pub fn check_tables_and_plots(study: &Study, matrix: &Matrix, problems: &mut Problems) {
    for table in &study.tables {
        let metric: Vec<String> = table.metric.iter().cloned().collect();
        check_axes(study, &[&table.rows, &table.columns], table.offset, problems);
        check_metrics(
            matrix,
            [table.rows.metrics(), table.columns.metrics()],
            &table.selection,
            table.offset,
            problems,
        );
        check_metrics(matrix, [&metric, &[]], &table.selection, table.offset, problems);
        check_selection(&table.selection, matrix, table.offset, problems);
        check_selection(&table.ratio_to, matrix, table.offset, problems);
        let is_extreme = matches!(table.statistic, Statistic::Least | Statistic::Most);
        if is_extreme && !table.ratio_to.is_empty() {
            problems.add(
                table.offset,
                "[[table]]: a ratio has a median, low and high: no `statistic` \"least\" or \"most\" with `ratio_to`",
            );
        }
        check_several_choices(
            &table.selection,
            &[table.rows.axis(), table.columns.axis()],
            table.offset,
            problems,
        );
        check_published(table, study, problems);
    }
    for plot in &study.plots {
        let series = plot.series.clone().map(Side::Axis);
        let sides: Vec<&Side> = Some(&plot.x).into_iter().chain(&series).collect();
        check_axes(study, &sides, plot.offset, problems);
        check_metrics(matrix, [plot.x.metrics(), &plot.y], &plot.selection, plot.offset, problems);
        check_texts(study, [plot.x.metrics(), &plot.y], plot.offset, problems);
        check_selection(&plot.selection, matrix, plot.offset, problems);
        check_several_choices(
            &plot.selection,
            &[plot.x.axis(), plot.series.as_deref()],
            plot.offset,
            problems,
        );
    }
}

/// Checks that the choices exist.
pub fn check_selection(selection: &[NamedChoice], matrix: &Matrix, offset: usize, problems: &mut Problems) {
    for choice in selection {
        if let Err(CellError::Invalid(why) | CellError::NotRun(why)) = matrix.check_choice(choice) {
            problems.add(offset, why);
        }
    }
}

/// Checks that an axis with several given choices is a side of the table or plot.
fn check_several_choices(
    selection: &[NamedChoice],
    sides: &[Option<&str>],
    offset: usize,
    problems: &mut Problems,
) {
    let mut named_axes = BTreeSet::new();
    for NamedChoice { axis, .. } in selection {
        if !named_axes.insert(axis) && !sides.contains(&Some(axis)) {
            problems
                .add(offset, format!("`where` has several choices on `{axis}`, which is not a side of it"));
        }
    }
}

/// Checks that the axes along these sides exist.
fn check_axes(study: &Study, sides: &[&Side], offset: usize, problems: &mut Problems) {
    for side in sides {
        if let Side::Axis(name) = side
            && name != SUBJECT
            && study.axis(name).is_none()
        {
            problems
                .add(offset, format!("there is no axis `{name}`; metrics are given in a list: [\"{name}\"]"));
        }
    }
}

/// Checks that the metrics named by combining two lists exist in one of the selected subjects.
fn check_metrics(
    matrix: &Matrix,
    [prefixes, suffixes]: [&[String]; 2],
    selection: &[NamedChoice],
    offset: usize,
    problems: &mut Problems,
) {
    if prefixes.len().saturating_mul(suffixes.len()) > MAX_METRICS {
        problems.add(offset, format!("more than {MAX_METRICS} metrics in one table or plot"));
        return;
    }
    let subject_choices = selection.iter().filter(|choice| choice.axis == SUBJECT);
    let subjects: Vec<&String> = subject_choices.map(|choice| &choice.name).collect();
    let is_selected = |subject: &&Subject| subjects.is_empty() || subjects.contains(&&subject.name);
    let selected_subjects: Vec<&Subject> = matrix.subjects.iter().filter(is_selected).collect();
    // A missing subject is reported elsewhere.
    let is_known = |name: &String| {
        selected_subjects.is_empty()
            || selected_subjects.iter().any(|subject| subject.metrics.contains_key(name))
    };
    let names = combined_metrics(prefixes, suffixes);
    for name in names.iter().filter(|name| !is_known(name)).take(MAX_REPORTED) {
        let text = match subjects.first().filter(|_| matrix.study.metrics.contains_key(name)) {
            Some(subject) => format!("the subject `{subject}` has no metric `{name}`"),
            None => unknown_metric_text(name, matrix),
        };
        problems.add(offset, text);
    }
}

/// Checks that no metric named by combining two lists is a text: a plot shows figures.
fn check_texts(study: &Study, [prefixes, suffixes]: [&[String]; 2], offset: usize, problems: &mut Problems) {
    // `check_metrics` reports too many metrics.
    if prefixes.len().saturating_mul(suffixes.len()) > MAX_METRICS {
        return;
    }
    let is_text = |name: &&String| matches!(study.metrics.get(*name), Some(Metric::Text(_)));
    if let Some(name) = combined_metrics(prefixes, suffixes).iter().find(is_text) {
        problems.add(offset, format!("[[plot]]: `{name}` is a text: a plot shows figures"));
    }
}

/// Checks that published figures name existing rows and columns of the table.
fn check_published(table: &TableSpec, study: &Study, problems: &mut Problems) {
    let (rows, columns) = (side_names(&table.rows, study), side_names(&table.columns, study));
    let mut last_row = None;
    let mut reported_count = 0;
    for PublishedFigure { row, column, .. } in &table.published {
        // The name of a row is given once for several figures.
        let is_new_row = last_row.replace(row.offset) != Some(row.offset);
        let named = [("row", row, &rows, is_new_row), ("column", column, &columns, true)];
        for (side, name, side_names, is_new_name) in named {
            // The choices of some axes are supplied by the user at run time.
            if is_new_name
                && reported_count < MAX_REPORTED
                && !side_names.is_empty()
                && !side_names.contains(name.value.as_str())
            {
                reported_count += 1;
                let hint = match nearest(&name.value, side_names.iter().copied()) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => format!("it has {}", first_names(side_names)),
                };
                let text = format!("[[table]] published: `{}` is not a {side} of it; {hint}", name.value);
                problems.add(name.offset, text);
            }
        }
    }
}

/// The names along a side of a table.
fn side_names<'s>(side: &'s Side, study: &'s Study) -> BTreeSet<&'s str> {
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

fn first_names(names: &BTreeSet<&str>) -> String {
    const MAX_LISTED: usize = 8;
    let list = names.iter().take(MAX_LISTED).copied().collect::<Vec<_>>().join(", ");
    if names.len() > MAX_LISTED { format!("{list}, …") } else { list }
}
