//! What a study came to: its document and its page.

use serde::Serialize;
use serde_json::{Map, Value, json};
use strandline_inspect::environment::Environment;

use super::page::{Cell, Column, Page, Section, Table, Tone};
use super::surroundings;
use crate::lab::study::claim::{Judged, Verdict};
use crate::lab::study::data::{Data, estimate};
use crate::lab::study::expression::Read;
use crate::lab::study::matrix::Matrix;
use crate::lab::study::{plots, table};
use crate::report::text::{clean, clean_sentence, counted};

/// Figures that a claim's row names.
const MOST_FIGURES: usize = 6;

/// All that is told of a study's run.
pub struct Facts<'a> {
    /// The cells.
    pub matrix: &'a Matrix,
    /// What was measured of them.
    pub data: &'a Data,
    /// The claims, judged.
    pub claims: &'a [Judged],
    /// What is to be known about the figures: code and sentence.
    pub caveats: Vec<(&'static str, String)>,
}

/// The document of a study.
#[derive(Serialize)]
pub struct Document {
    study: String,
    title: String,
    provenance: Map<String, Value>,
    repeats: u32,
    cells: Vec<Value>,
    claims: Vec<Judged>,
    caveats: Vec<Value>,
}

/// The document, for scripts.
pub fn document(facts: &Facts<'_>) -> Document {
    let study = &facts.matrix.study;
    let cells = facts.data.cells.iter().map(|(key, cell)| {
        let axes: Map<String, Value> =
            facts.matrix.names(key).into_iter().map(|(axis, choice)| (axis, json!(choice))).collect();
        let metrics: Map<String, Value> = study
            .metrics
            .keys()
            .map(|name| (name.clone(), json!(estimate(facts.data, key, name).ok())))
            .collect();
        json!({ "axes": axes, "metrics": metrics, "not_run": cell.not_run })
    });
    Document {
        study: study.name.clone(),
        title: study.title.clone(),
        provenance: study.provenance.iter().map(|(name, value)| (name.clone(), json!(value))).collect(),
        repeats: facts.matrix.repeats,
        cells: cells.collect(),
        claims: facts.claims.to_vec(),
        caveats: facts.caveats.iter().map(|(code, text)| json!({ "code": code, "text": text })).collect(),
    }
}

/// The report.
pub fn page(facts: &Facts<'_>) -> Page {
    let study = &facts.matrix.study;
    let mut sections = Vec::new();
    let about: Vec<String> = study.about.iter().map(|about| clean(about.replace('\n', " ").trim())).collect();
    let from = study.provenance.iter().map(|(name, value)| format!("{}: {}", clean(name), clean(value)));
    let from = from.collect::<Vec<_>>().join("; ");
    let paragraphs: Vec<String> =
        about.into_iter().chain(Some(from).filter(|from| !from.is_empty())).collect();
    if !paragraphs.is_empty() {
        sections.push(Section { paragraphs, ..Section::default() });
    }
    if !facts.claims.is_empty() {
        sections.push(claims(facts));
    }
    for spec in &study.tables {
        let tables = table::tables(spec, facts.matrix, facts.data);
        sections.push(Section { tables, ..Section::default() });
    }
    let plots: Vec<_> =
        study.plots.iter().flat_map(|spec| plots::plots(spec, facts.matrix, facts.data)).collect();
    if !plots.is_empty() {
        sections.push(Section { heading: "Plots".to_owned(), plots, ..Section::default() });
    }
    Page {
        title: format!("study {}: {}", clean(&study.name), clean(&study.title)),
        headline: headline(facts),
        sections,
        caveats: facts.caveats.iter().map(|(_, text)| clean_sentence(text)).collect(),
        environment: surroundings(&Environment::read()),
    }
}

fn headline(facts: &Facts<'_>) -> String {
    let count = |verdict: Verdict| facts.claims.iter().filter(|claim| claim.verdict == verdict).count();
    let (holds, fails, not_run) = (count(Verdict::Holds), count(Verdict::Fails), count(Verdict::NotRun));
    let cells = counted(facts.data.cells.len() as u64, "cell");
    let runs = format!("{cells}, each run {}", counted(u64::from(facts.matrix.repeats), "time"));
    if facts.claims.is_empty() {
        return format!("{runs}; nothing is claimed.");
    }
    let all = facts.claims.len();
    let rest: Vec<String> = [(fails, "fail"), (not_run, "not run")]
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}{}", if what == "fail" && count == 1 { "s" } else { "" }))
        .collect();
    let rest = if rest.is_empty() { String::new() } else { format!(", {}", rest.join(", ")) };
    let verb = if holds == 1 { "holds" } else { "hold" };
    format!("{holds} of {} {verb}{rest} ({runs}).", counted(all as u64, "claim"))
}

fn claims(facts: &Facts<'_>) -> Section {
    let column = |title: &str, figures: bool| Column { title: title.to_owned(), figures };
    let columns = vec![
        column("claim", false),
        column("", false),
        column("published", false),
        column("measured", false),
    ];
    let plain = |text: String| Cell { text, tone: Tone::Plain };
    let rows = facts.claims.iter().map(|claim| {
        let (text, tone) = match claim.verdict {
            Verdict::Holds => ("holds", Tone::Good),
            Verdict::Fails => ("fails", Tone::Bad),
            Verdict::NotRun => ("not run", Tone::Faint),
        };
        vec![
            plain(clean(&claim.text)),
            Cell { text: text.to_owned(), tone },
            plain(published(&claim.published)),
            plain(figures(&claim.measured, facts.matrix)),
        ]
    });
    let table = Table { caption: String::new(), columns, rows: rows.collect() };
    let mut paragraphs = Vec::new();
    for claim in facts.claims {
        let parts: Vec<String> =
            claim.reason.iter().chain(&claim.note).map(|part| clean_sentence(part)).collect();
        let is_wanted = claim.verdict != Verdict::Holds || !parts.is_empty();
        if is_wanted {
            paragraphs.push(format!("{}: {}", clean(&claim.id), parts.join(". ")));
        }
    }
    let mut section = Section { heading: "Claims".to_owned(), tables: vec![table], ..Section::default() };
    section.paragraphs = paragraphs;
    section
}

/// Published figures, in short.
fn published(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::Number(number) => table::digits(number.as_f64().unwrap_or_default()),
        Value::String(text) => clean(text),
        Value::Bool(flag) => flag.to_string(),
        Value::Array(items) => items.iter().map(published).collect::<Vec<_>>().join(", "),
        Value::Object(items) => {
            let one = |(name, value): (&String, &Value)| format!("{} {}", clean(name), published(value));
            items.iter().map(one).collect::<Vec<_>>().join(", ")
        }
    }
}

/// The figures that a claim read, the first of them.
fn figures(reads: &[Read], matrix: &Matrix) -> String {
    let one = |read: &Read| {
        let value = if read.statistic.starts_with("ratio") {
            format!("{:.3}", read.value)
        } else {
            table::show(None, &matrix.study, &read.metric, read.value)
        };
        let choices: Vec<String> =
            read.axes.iter().map(|(axis, choice)| format!("{axis}={choice}")).collect();
        let place =
            if choices.is_empty() { String::new() } else { format!(" ({})", clean(&choices.join(", "))) };
        format!("{} {value}{place}", clean(&read.metric))
    };
    let shown: Vec<String> = reads.iter().take(MOST_FIGURES).map(one).collect();
    let more = reads.len().saturating_sub(MOST_FIGURES);
    let shown = shown.join("; ");
    if more > 0 { format!("{shown}; and {more} more") } else { shown }
}
