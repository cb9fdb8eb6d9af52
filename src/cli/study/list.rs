//! `study` without a name: lists the studies with their size, and whether their requirements are
//! met.

use std::sync::Arc;

use super::super::arguments_lab::Study as Arguments;
use super::super::lab::show;
use super::super::output::Output;
use super::super::{CommandResult, Result};
use strandline_report::pages::page::{Cell, Column, Page, Section, Table, Tone};
use strandline_report::text::clean_sentence;
use strandline_study::file::Study;
use strandline_study::matrix::Matrix;
use strandline_study::{find, needs};

/// Larger studies are not checked for their requirements.
const MAX_CELLS: u64 = 10_000;

/// Shows names, titles, and whether the requirements are met.
pub fn run(arguments: &Arguments, output: &mut Output) -> Result<CommandResult> {
    let mut rows = Vec::new();
    let (mut items, mut sentences) = (Vec::new(), Vec::new());
    for (name, folder) in find::list() {
        let path = find::folder_of_listed(&name, folder);
        let read = path.map_err(|line| vec![line]).and_then(|path| Study::read_without_claims(&path));
        let line = match read {
            Ok(study) => Listing::of(Arc::new(study)),
            Err(lines) => Listing {
                needs: "cannot be read".to_owned(),
                missing: lines.into_iter().take(1).collect(),
                tone: Tone::Bad,
                ..Listing::default()
            },
        };
        items.push(serde_json::json!({
            "name": name, "title": line.title, "cells": line.cells, "claims": line.claims,
            "ready": line.tone == Tone::Good, "needs": line.needs(),
        }));
        let missing =
            line.missing.iter().chain(&line.probed).map(|why| clean_sentence(&format!("{name}: {why}")));
        sentences.extend(missing);
        let plain = |text: &str| Cell { text: clean_sentence(text), tone: Tone::Plain };
        let count = |count: Option<u64>| plain(&count.map_or_else(String::new, |count| count.to_string()));
        let needs = Cell { text: clean_sentence(&line.needs), tone: line.tone };
        rows.push(vec![plain(&name), plain(&line.title), count(line.cells), count(line.claims), needs]);
    }
    let column =
        |title: &str| Column { title: title.to_owned(), figures: matches!(title, "cells" | "claims") };
    let headline = if rows.is_empty() {
        "There is none: `strandline study new NAME` makes one.".to_owned()
    } else {
        "`strandline study NAME` runs one, `--all` all of them; `strandline study new NAME` makes one."
            .to_owned()
    };
    let columns = ["study", "title", "cells", "claims", "needs"].map(column).to_vec();
    let table = Table { caption: String::new(), columns, rows };
    let page = Page {
        title: "studies".to_owned(),
        headline,
        sections: vec![
            Section { tables: vec![table], ..Section::default() },
            Section { paragraphs: sentences, ..Section::default() },
        ],
        ..Page::default()
    };
    show("strandline/studies/1", &serde_json::json!({ "studies": items }), &page, &arguments.shown, output)?;
    Ok(CommandResult::Done)
}

/// The listing of one study.
#[derive(Default)]
struct Listing {
    title: String,
    /// Number of cells that run without --axis.
    cells: Option<u64>,
    claims: Option<u64>,
    needs: String,
    /// The missing requirements, or the errors in the study.
    missing: Vec<String>,
    /// Requirements that only a command can check.
    probed: Option<String>,
    tone: Tone,
}

impl Listing {
    fn of(study: Arc<Study>) -> Self {
        let line =
            Self { title: study.title.clone(), claims: Some(study.claims.len() as u64), ..Self::default() };
        let unknown = |cells, needs: &str| Self {
            cells,
            needs: needs.to_owned(),
            tone: Tone::Faint,
            ..Self::default()
        };
        let looked_at = match Matrix::chosen(study, false, &[]) {
            Ok(matrix) if matrix.count().is_none_or(|count| count > MAX_CELLS) => {
                unknown(matrix.count(), "not looked at: many cells")
            }
            Ok(matrix) => needs::check_cells(&matrix)
                .map_or_else(|_| unknown(None, "?"), |bill| Self::needing(&matrix, &bill)),
            Err(_) => unknown(None, "?"),
        };
        Self { title: line.title, claims: line.claims, ..looked_at }
    }

    /// The listing with the requirements of its cells.
    fn needing(matrix: &Matrix, bill: &needs::RunnableCells) -> Self {
        let (here, gone) = (bill.cells.len(), bill.missing.len());
        let mut missing: Vec<String> = bill.missing.iter().map(|(_, why)| why.clone()).collect();
        missing.sort();
        missing.dedup();
        let (needs, tone) = match (here, gone) {
            (_, 0) => ("met".to_owned(), Tone::Good),
            (0, _) => ("not met".to_owned(), Tone::Bad),
            _ => (format!("met for {here} cells"), Tone::Bad),
        };
        // Checking them would mean running something.
        let probed = needs::probed(matrix, &bill.cells);
        let probed = (!probed.is_empty()).then(|| format!("not looked at: {}", probed.join(", ")));
        Self { cells: Some((here + gone) as u64), needs, missing, probed, tone, ..Self::default() }
    }

    /// The requirements in a word, or what is missing.
    fn needs(&self) -> String {
        let needs = if self.missing.is_empty() { self.needs.clone() } else { self.missing.join("; ") };
        self.probed.iter().fold(needs, |needs, probed| format!("{needs}; {probed}"))
    }
}
