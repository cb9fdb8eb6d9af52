//! Document and page of a study.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value, json};
use strandline_inspect::environment::Environment;
use strandline_lab::cell::LabCaveat;
use strandline_lab::nodes::NodeKind;

use crate::claim::{JudgedClaim, REASON_FAILS, Verdict};
use crate::data::{CellData, Data, MeasuredData as _, estimate};
use crate::expression::{FigureRead, ReadValue};
use crate::matrix::{Key, Matrix, OmittedCell};
use crate::metric::Metric;
use crate::{plots, table};
use strandline_report::pages::environment_facts;
use strandline_report::pages::page::{Cell, Claim, Page, Section, Tone};
use strandline_report::text::{clean, clean_sentence, counted, shorten};
use strandline_report::units;

/// Maximum width of a measured text in a table; the document has the whole text.
const MAX_TEXT_COLUMNS: usize = 20;
/// Maximum width of published figures, in every format.
const MAX_PUBLISHED_COLUMNS: usize = 2000;
/// Maximum number of figures in the row of a claim, with metric and cell.
const MAX_FIGURES: usize = 6;
/// Maximum number of figures in a column of claims, without metric and cell.
const MAX_VALUES: usize = 3;

/// Input of the document and the page.
pub struct StudyInput<'a> {
    /// The cells.
    pub matrix: &'a Matrix,
    /// Their measured data.
    pub data: &'a Data,
    /// The judged claims.
    pub claims: &'a [JudgedClaim],
    /// Caveats on the figures.
    pub caveats: Vec<LabCaveat>,
    /// Kinds of machines that ran it, if runs were made elsewhere.
    pub nodes: Vec<NodeKind>,
}

/// The document of a study.
#[derive(Serialize)]
pub struct Document {
    study: String,
    folder: String,
    title: String,
    provenance: Map<String, Value>,
    repeats: u32,
    cells: Vec<Value>,
    claims: Vec<JudgedClaim>,
    caveats: Vec<Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    nodes: Vec<NodeKind>,
}

/// Builds the document for scripts. A figure that was not measured is null in it.
///
/// # Errors
/// One line: the study has too many cells to list.
pub fn document(input: &StudyInput<'_>) -> Result<Document, String> {
    let study = &input.matrix.study;
    let describe = |key: &Key, cell: &CellData| {
        let axes = input.matrix.names_by_axis(key);
        let subject = input.matrix.subjects.get(key.subject);
        let mut metrics = Map::new();
        let mut texts = Map::new();
        for (name, metric) in subject.iter().flat_map(|subject| &subject.metrics) {
            if matches!(metric, Metric::Text(_)) {
                let different: Vec<&String> =
                    cell.texts.get(name).into_iter().flat_map(|texts| texts.keys()).collect();
                let different = if different.is_empty() { Value::Null } else { json!(different) };
                texts.insert(name.clone(), input.data.text(key, name).map_or(different, Value::String));
            } else {
                metrics.insert(name.clone(), json!(estimate(input.data, key, name).ok()));
            }
        }
        json!({ "axes": axes, "metrics": metrics, "texts": texts, "not_run": cell.not_run,
            "runs_that_count": (cell.valid_runs < cell.total_runs).then_some(cell.valid_runs) })
    };
    let cells = input.data.cells.iter().map(|(key, cell)| describe(key, cell));
    let excluded_cells = input.matrix.excluded_cells()?.into_iter().map(|OmittedCell { key, why }| {
        describe(&key, &CellData { not_run: Some(format!("left out: {why}")), ..CellData::default() })
    });
    Ok(Document {
        study: study.name.clone(),
        folder: study.folder.to_string_lossy().into_owned(),
        title: study.title.clone(),
        provenance: study.provenance.iter().map(|entry| (entry.name.clone(), json!(entry.value))).collect(),
        repeats: input.matrix.max_repeats(),
        cells: cells.chain(excluded_cells).collect(),
        claims: input.claims.to_vec(),
        caveats: input
            .caveats
            .iter()
            .map(|LabCaveat { code, text }| json!({ "code": code, "text": text }))
            .collect(),
        nodes: input.nodes.clone(),
    })
}

/// Builds the page of a study.
pub fn page(input: &StudyInput<'_>) -> Page {
    let study = &input.matrix.study;
    let mut sections = Vec::new();
    let about: Vec<String> = study.about.iter().map(|about| clean(about.replace('\n', " ").trim())).collect();
    let provenance =
        study.provenance.iter().map(|entry| format!("{}: {}", clean(&entry.name), clean(&entry.value)));
    let provenance = provenance.collect::<Vec<_>>().join("; ");
    let paragraphs: Vec<String> =
        about.into_iter().chain(Some(provenance).filter(|text| !text.is_empty())).collect();
    if !paragraphs.is_empty() {
        sections.push(Section { paragraphs, ..Section::default() });
    }
    if !input.claims.is_empty() {
        sections.push(Section {
            heading: "Claims".to_owned(),
            row_kind: "claim".to_owned(),
            claims: claims(input),
            ..Section::default()
        });
    }
    for spec in &study.tables {
        let tables = table::tables(spec, input.matrix, input.data);
        sections.push(Section { tables, ..Section::default() });
    }
    let plots: Vec<_> =
        study.plots.iter().flat_map(|spec| plots::plots(spec, input.matrix, input.data)).collect();
    if !plots.is_empty() {
        sections.push(Section { plots, ..Section::default() });
    }
    let left_out_notes = study.tables.iter().filter_map(|spec| table::left_out(spec, input.matrix));
    let left_out_notes =
        left_out_notes.chain(study.plots.iter().flat_map(|spec| plots::left_out(spec, input.matrix)));
    let caveats = input.caveats.iter().map(|caveat| caveat.text.clone()).chain(left_out_notes);
    Page {
        title: format!("study {}: {}", clean(&study.name), clean(&study.title)),
        headline: headline(input),
        sections,
        caveats: caveats.map(|text| clean_sentence(&text)).collect(),
        environment: environment_facts(&Environment::read()),
    }
}

/// The numbers of claims by verdict, of cells and of runs, in a sentence.
fn headline(input: &StudyInput<'_>) -> String {
    let cells = counted(input.data.cells.len() as u64, "cell");
    let repeats = || input.matrix.subjects.iter().map(|subject| subject.repeats.unwrap_or(1));
    let (min, max) = (repeats().min().unwrap_or(0), repeats().max().unwrap_or(0));
    let times = counted(u64::from(max), "time");
    let times = if min < max { format!("{min} to {times}") } else { times };
    let runs = format!("{cells}, each run {times}");
    let tally = Tally::of(input.claims);
    if tally.claims == 0 {
        return format!("{runs}; nothing is claimed.");
    }
    let verb = if tally.holds == 1 || tally.claims == 1 { "holds" } else { "hold" };
    let claims = counted(tally.claims, "claim");
    format!("{} of {claims} {verb}{} ({runs}).", tally.holds, tally.others())
}

/// Number of claims by verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// All claims.
    pub claims: u64,
    /// Claims that hold.
    pub holds: u64,
    /// Claims that fail.
    pub fails: u64,
    /// Claims that could not be judged.
    pub not_run: u64,
}

impl Tally {
    /// Counts the verdicts of `claims`.
    pub fn of(claims: &[JudgedClaim]) -> Self {
        let count = |verdict| claims.iter().filter(|claim| claim.verdict == verdict).count() as u64;
        Self {
            claims: claims.len() as u64,
            holds: count(Verdict::Holds),
            fails: count(Verdict::Fails),
            not_run: count(Verdict::NotRun),
        }
    }

    /// The numbers of claims that do not hold, such as ", 2 fail, 1 not run"; empty if all hold.
    pub fn others(self) -> String {
        let fails = match self.fails {
            0 => String::new(),
            1 => ", 1 fails".to_owned(),
            count => format!(", {count} fail"),
        };
        if self.not_run > 0 { format!("{fails}, {} not run", self.not_run) } else { fails }
    }
}

impl std::ops::Add for Tally {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            claims: self.claims + other.claims,
            holds: self.holds + other.holds,
            fails: self.fails + other.fails,
            not_run: self.not_run + other.not_run,
        }
    }
}

/// Builds the row of each claim, for terminal, Markdown and HTML.
pub fn claims(input: &StudyInput<'_>) -> Vec<Claim> {
    input.claims.iter().map(|claim| claim_row(claim, input.matrix)).collect()
}

/// Builds the row of a claim.
fn claim_row(claim: &JudgedClaim, matrix: &Matrix) -> Claim {
    let (text, tone) = match claim.verdict {
        Verdict::Holds => ("holds", Tone::Good),
        Verdict::Fails => ("fails", Tone::Bad),
        Verdict::NotRun => ("not run", Tone::Faint),
    };
    let measured = list_figures(&claim.measured, matrix);
    let measured = (!measured.is_empty()).then(|| format!("measured: {measured}"));
    let tolerance = claim.tolerance.zip(claim.tolerance_reason.as_ref());
    let tolerance = tolerance.map(|(fraction, why)| {
        format!("tolerance {} % ({})", table::format_number(fraction * 100.0), clean(why))
    });
    // The verdict already shows that it fails.
    let reason = claim.reason.as_deref().filter(|reason| *reason != REASON_FAILS);
    Claim {
        id: clean(&claim.id),
        statement: clean(&claim.text),
        verdict: Cell { text: text.to_owned(), tone },
        published: shorten(&format_published(&claim.published), MAX_PUBLISHED_COLUMNS),
        measured: list_values(&claim.measured, matrix),
        reason: reason.map(clean_sentence).unwrap_or_default(),
        // Not shortened: the note gives the explanation.
        note: claim.note.as_deref().map(|note| clean(note.replace('\n', " ").trim())).unwrap_or_default(),
        figures: measured.into_iter().chain(tolerance).collect(),
    }
}

/// Published figures in one line.
fn format_published(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::Number(number) => number.as_f64().map_or_else(|| number.to_string(), table::format_number),
        Value::String(text) => clean(text),
        Value::Bool(flag) => flag.to_string(),
        Value::Array(items) => items.iter().map(format_published).collect::<Vec<_>>().join(", "),
        Value::Object(items) => {
            let item =
                |(name, value): (&String, &Value)| format!("{} {}", clean(name), format_published(value));
            items.iter().map(item).collect::<Vec<_>>().join(", ")
        }
    }
}

/// The value of a figure that a claim read.
fn format_value(read: &FigureRead, matrix: &Matrix) -> String {
    match &read.value {
        ReadValue::Text(text) => format!("\"{}\"", shorten(&clean(text), MAX_TEXT_COLUMNS)),
        ReadValue::Number(ratio) if read.statistic.starts_with("ratio") => units::ratio(*ratio),
        ReadValue::Number(number) => table::format_figure(None, &matrix.study, &read.metric, *number),
    }
}

/// The figures that a claim read, without metric and cell.
fn list_values(reads: &[FigureRead], matrix: &Matrix) -> String {
    let mut values: Vec<String> =
        reads.iter().take(MAX_VALUES).map(|read| format_value(read, matrix)).collect();
    if reads.len() > MAX_VALUES {
        values.push(format!("{} more", reads.len() - MAX_VALUES));
    }
    values.join(", ")
}

/// The first figures that a claim read, with metric and cell.
fn list_figures(reads: &[FigureRead], matrix: &Matrix) -> String {
    let figure = |read: &FigureRead| {
        let place = cell_name(&read.axes, matrix);
        let place = if place.is_empty() { place } else { format!(" at {place}") };
        let denominator = read.denominator.as_ref().map(|axes| format!(" to {}", cell_name(axes, matrix)));
        let denominator = denominator.unwrap_or_default();
        let statistic = if ["median", "text"].contains(&read.statistic.as_str()) {
            String::new()
        } else {
            format!("{} of ", read.statistic)
        };
        format!("{statistic}{} {}{place}{denominator}", clean(&read.metric), format_value(read, matrix))
    };
    let figures: Vec<String> = reads.iter().take(MAX_FIGURES).map(figure).collect();
    let unlisted = reads.len().saturating_sub(MAX_FIGURES);
    let list = figures.join(", ");
    if unlisted > 0 { format!("{list}, and {unlisted} more") } else { list }
}

/// Name of the cell with these choices; axes with a single choice are omitted.
fn cell_name(axes: &BTreeMap<String, String>, matrix: &Matrix) -> String {
    let has_single = |name: &str| matrix.axes.iter().any(|axis| axis.name == name && axis.choices.len() == 1);
    let named = axes.iter().filter(|(axis, _)| !has_single(axis));
    let choices: Vec<String> = named.map(|(axis, choice)| format!("{axis}={choice}")).collect();
    clean(&choices.join(" "))
}
