//! Converts the tables of a file to a study: exclusions, claims, tables and plots.

use toml::de::DeValue;

use super::fields::{Fields, Node, number, type_name};
use super::file::{
    Claim, Exclusion, NamedChoice, PlotSpec, PublishedFigure, Selection, Side, Statistic, Study, TableSpec,
};
use super::parse_words::{check_name, names, patterns, scalar};
use super::problems::Problems;
use strandline_report::pages::page::PlotKind;

/// Maximum length of each list.
const MAX_ITEMS: usize = 1_000;
/// Maximum tolerance of a claim, as a fraction of the published figure.
const MAX_TOLERANCE: f64 = 1e6;
/// Maximum depth of published figures.
const MAX_DEPTH: usize = 8;

/// Parses `[[exclude]]`.
pub fn parse_exclusions(nodes: &[&Node<'_>], study: &mut Study, problems: &mut Problems) {
    for node in bounded(nodes, "[[exclude]]", problems) {
        let Some(mut fields) = Fields::of(node, "[[exclude]]", problems) else { continue };
        let selection = parse_selection(&mut fields, "where", Choices::One);
        if selection.is_empty() {
            fields.add_problem(fields.offset, "`where` is missing: which cells, as { AXIS = \"CHOICE\" }");
        }
        let (why, offset) = (fields.required_text("why").value, fields.offset);
        fields.finish();
        study.exclusions.push(Exclusion { offset, selection, why });
    }
}

/// Parses `[[claim]]`.
pub fn parse_claims(nodes: &[&Node<'_>], study: &mut Study, problems: &mut Problems) {
    let mut ids = std::collections::BTreeSet::new();
    for node in bounded(nodes, "[[claim]]", problems) {
        let Some(mut fields) = Fields::of(node, "[[claim]]", problems) else { continue };
        let id = fields.required_text("id");
        check_name(&id, "a claim's id", "-_.", fields.problems());
        if !ids.insert(id.value.clone()) {
            fields.add_problem(id.offset, format_args!("the id `{}` is defined twice", id.value));
        }
        let text = join_lines(&fields.required_text("text").value);
        let holds = fields.required_text("holds");
        let published = fields.node("published").map(|node| published_value(node, 0, fields.problems()));
        let tolerance = fields.number("tolerance", 0.0, MAX_TOLERANCE);
        let tolerance_reason = fields.text("why").map(|why| join_lines(&why.value));
        if let (Some(tolerance), None) = (&tolerance, &tolerance_reason) {
            fields.add_problem(
                tolerance.offset,
                "`tolerance` without `why`: give the reason for the tolerance",
            );
        }
        let note = fields.text("note").map(|note| join_lines(&note.value));
        fields.finish();
        study.claims.push(Claim {
            id: id.value,
            text,
            holds,
            published: published.unwrap_or(serde_json::Value::Null),
            tolerance: tolerance.map(|tolerance| tolerance.value),
            tolerance_reason,
            note,
        });
    }
}

/// Joins a sentence written in several lines.
fn join_lines(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Converts published figures to data: numbers, strings, and tables and lists of them.
fn published_value(node: &Node<'_>, depth: usize, problems: &mut Problems) -> serde_json::Value {
    use serde_json::Value;
    match node.get_ref() {
        DeValue::String(text) => Value::String(text.to_string()),
        DeValue::Boolean(flag) => Value::Bool(*flag),
        DeValue::Table(_) | DeValue::Array(_) if depth >= MAX_DEPTH => {
            let text = format!("[[claim]] published: figures are nested more than {MAX_DEPTH} deep");
            problems.add(node.span().start, text);
            Value::Null
        }
        DeValue::Table(table) => Value::Object(
            table
                .iter()
                .map(|(key, node)| (key.get_ref().to_string(), published_value(node, depth + 1, problems)))
                .collect(),
        ),
        DeValue::Array(items) => {
            Value::Array(items.iter().map(|node| published_value(node, depth + 1, problems)).collect())
        }
        other => match number(other).and_then(serde_json::Number::from_f64) {
            Some(number) => Value::Number(number),
            None => {
                problems.add(
                    node.span().start,
                    format!("[[claim]] published: figures are numbers, not {}", type_name(other)),
                );
                Value::Null
            }
        },
    }
}

/// Parses `[[table]]`.
pub fn parse_tables(nodes: &[&Node<'_>], study: &mut Study, problems: &mut Problems) {
    for node in bounded(nodes, "[[table]]", problems) {
        let Some(mut fields) = Fields::of(node, "[[table]]", problems) else { continue };
        let title = fields.required_text("title").value;
        let rows = parse_side(&mut fields, "rows");
        let columns = parse_side(&mut fields, "columns");
        let metric = fields.text("metric").map(|metric| metric.value);
        let wants_metric = matches!((&rows, &columns), (Side::Axis(_), Side::Axis(_)));
        if wants_metric != metric.is_some() {
            let text = if wants_metric {
                "`metric` is missing: rows and columns are both axes"
            } else {
                "`metric` has no place: `rows` or `columns` name metrics already"
            };
            fields.add_problem(fields.offset, text);
        }
        let spec = TableSpec {
            offset: fields.offset,
            title,
            rows,
            columns,
            metric,
            statistic: parse_statistic(&mut fields),
            shows_interval: fields.flag("interval").unwrap_or(false),
            selection: parse_selection(&mut fields, "where", Choices::Several),
            ratio_to: parse_selection(&mut fields, "ratio_to", Choices::One),
            unit: parse_unit(&mut fields),
            published: parse_published_cells(&mut fields),
        };
        fields.finish();
        study.tables.push(spec);
    }
}

/// The units available in a table, each with its size in the unit of the metric.
pub const UNITS: [(&str, f64); 9] = [
    ("B", 1.0),
    ("KiB", 1024.0),
    ("MiB", 1_048_576.0),
    ("GiB", 1_073_741_824.0),
    ("s", 1.0),
    ("ms", 1e-3),
    ("µs", 1e-6),
    ("million", 1e6),
    ("%", 0.01),
];

fn parse_unit(fields: &mut Fields<'_, '_>) -> Option<String> {
    let unit = fields.text("unit")?;
    if !UNITS.iter().any(|(name, _)| *name == unit.value) {
        let names: Vec<&str> = UNITS.iter().map(|(name, _)| *name).collect();
        fields.add_problem(unit.offset, format_args!("`unit` is one of {}", names.join(", ")));
    }
    Some(unit.value)
}

fn parse_statistic(fields: &mut Fields<'_, '_>) -> Statistic {
    let Some(name) = fields.text("statistic") else { return Statistic::Median };
    Statistic::named(&name.value).unwrap_or_else(|| {
        let names = Statistic::ALL.map(Statistic::name).join(", ");
        fields.add_problem(name.offset, format_args!("`statistic` is one of {names}"));
        Statistic::Median
    })
}

/// Parses the name of an axis, or a list of metrics.
fn parse_side(fields: &mut Fields<'_, '_>, key: &'static str) -> Side {
    let Some(node) = fields.node(key) else {
        fields.add_problem(fields.offset, format_args!("`{key}` is missing: an axis, or a list of metrics"));
        return Side::default();
    };
    match node.get_ref() {
        DeValue::Array(_) => {
            let names = patterns(fields, key);
            if names.is_empty() {
                fields.add_problem(node.span().start, format_args!("`{key}` is empty"));
            }
            Side::Metrics(names)
        }
        _ => fields.as_text(node, key).map_or_else(Side::default, |axis| Side::Axis(axis.value)),
    }
}

/// How many choices on one axis a selection may have.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Choices {
    One,
    Several,
}

/// Parses `where = { size = 2000, order = "up" }`.
fn parse_selection(fields: &mut Fields<'_, '_>, key: &'static str, allowed: Choices) -> Selection {
    let Some(node) = fields.node(key) else { return Vec::new() };
    let title = format!("{} {key}", fields.name());
    let Some(mut inner) = Fields::of(node, title, fields.problems()) else { return Vec::new() };
    let mut selection = Vec::new();
    for (axis, node) in inner.entries() {
        match (scalar(node), node.get_ref()) {
            (Some(name), _) => selection.push(NamedChoice::new(axis.value, name)),
            (None, DeValue::Array(items)) if allowed == Choices::Several && !items.is_empty() => {
                let names = names(node, inner.problems()).into_iter();
                selection.extend(names.map(|name| NamedChoice::new(&axis.value, name)));
            }
            _ => inner.add_problem(
                node.span().start,
                format_args!("expected the name of a choice, not {}", type_name(node.get_ref())),
            ),
        }
    }
    selection
}

/// Parses `published = { ROW = { COLUMN = 1.5 } }`.
fn parse_published_cells(fields: &mut Fields<'_, '_>) -> Vec<PublishedFigure> {
    let Some(node) = fields.node("published") else { return Vec::new() };
    let title = format!("{} published", fields.name());
    let Some(mut rows) = Fields::of(node, title.as_str(), fields.problems()) else { return Vec::new() };
    let mut cells = Vec::new();
    for (row, node) in rows.entries() {
        let Some(mut columns) = Fields::of(node, title.as_str(), rows.problems()) else { continue };
        for (column, node) in columns.entries() {
            match number(node.get_ref()) {
                Some(figure) => cells.push(PublishedFigure { row: row.clone(), column, figure }),
                None => {
                    columns.add_problem(node.span().start, "expected a number: { ROW = { COLUMN = 1.5 } }")
                }
            }
        }
    }
    cells
}

/// Parses `[[plot]]`.
pub fn parse_plots(nodes: &[&Node<'_>], study: &mut Study, problems: &mut Problems) {
    for node in bounded(nodes, "[[plot]]", problems) {
        let Some(mut fields) = Fields::of(node, "[[plot]]", problems) else { continue };
        let title = fields.required_text("title").value;
        let x = parse_side(&mut fields, "x");
        let y = patterns(&mut fields, "y");
        let kind = parse_plot_kind(&mut fields);
        let series = fields.text("series").map(|series| series.value);
        match (&x, y.len()) {
            (Side::Axis(_), 0) => {
                fields.add_problem(fields.offset, "`y` is missing: the metric that is drawn")
            }
            (_, 2..) if series.is_some() => {
                fields.add_problem(fields.offset, "`series` or several metrics in `y`, not both");
            }
            _ => {}
        }
        let spec = PlotSpec {
            offset: fields.offset,
            title,
            x,
            y,
            series,
            selection: parse_selection(&mut fields, "where", Choices::Several),
            x_title: fields.text("x_title").map(|title| title.value),
            y_title: fields.text("y_title").map(|title| title.value),
            kind,
            x_is_logarithmic: fields.flag("x_logarithmic").unwrap_or(false),
            y_is_logarithmic: fields.flag("y_logarithmic").unwrap_or(false),
        };
        fields.finish();
        study.plots.push(spec);
    }
}

fn parse_plot_kind(fields: &mut Fields<'_, '_>) -> PlotKind {
    let Some(name) = fields.text("kind") else { return PlotKind::Lines };
    match name.value.as_str() {
        "lines" => PlotKind::Lines,
        "points" => PlotKind::Points,
        "bars" => PlotKind::Bars,
        "strips" => PlotKind::Strips,
        _ => {
            fields.add_problem(name.offset, "`kind` is lines, points, bars or strips");
            PlotKind::Lines
        }
    }
}

/// The first [`MAX_ITEMS`] of `nodes`; more are a problem. `title` is the name of the list.
fn bounded<'n, 't>(nodes: &[&'n Node<'t>], title: &str, problems: &mut Problems) -> Vec<&'n Node<'t>> {
    if nodes.len() > MAX_ITEMS {
        problems.add(0, format!("more than {MAX_ITEMS} {title}"));
    }
    nodes.iter().copied().take(MAX_ITEMS).collect()
}
