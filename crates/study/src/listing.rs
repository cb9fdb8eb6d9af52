//! The list of studies with their size, and whether their requirements are met.

use std::sync::Arc;

use serde_json::{Value, json};

use super::file::Study;
use super::find::{self, ListedStudy};
use super::matrix::{Form, Matrix};
use super::needs::{self, CheckedCells};
use strandline_report::pages::page::{Cell, Column, Page, Section, Table, Tone};
use strandline_report::text::{clean_sentence, counted};

/// Larger studies are not checked for their requirements.
const MAX_CHECKED_CELLS: u64 = 10_000;

/// All studies, as a document and as a page.
pub struct StudyList {
    /// The document for scripts.
    pub document: Value,
    /// The page.
    pub page: Page,
}

/// Lists all studies.
///
/// # Errors
/// One line if a folder with studies cannot be read.
pub fn list() -> Result<StudyList, String> {
    let listings: Vec<Listing> = find::list()?.iter().map(Listing::read).collect();
    let items: Vec<Value> = listings.iter().map(Listing::item).collect();
    let rows = listings.iter().map(Listing::row).collect();
    let reasons = listings.iter().flat_map(|listing| {
        let reasons = listing.missing.iter().chain(&listing.probe_note);
        reasons.map(move |why| clean_sentence(&format!("{}: {why}", listing.name)))
    });
    let column = |title: &str| Column::new(title, matches!(title, "cells" | "claims"));
    let columns = ["study", "title", "cells", "claims", "needs"].map(column).to_vec();
    let headline = if listings.is_empty() {
        "There is no study: `strandline study new NAME` creates one."
    } else {
        "`strandline study NAME` runs one, `--all` all of them; `strandline study new NAME` creates one."
    };
    let page = Page {
        title: "studies".to_owned(),
        headline: headline.to_owned(),
        sections: vec![
            Section { tables: vec![Table { caption: String::new(), columns, rows }], ..Section::default() },
            Section { paragraphs: reasons.collect(), ..Section::default() },
        ],
        ..Page::default()
    };
    Ok(StudyList { document: json!({ "studies": items }), page })
}

#[derive(Default)]
struct Listing {
    name: String,
    title: String,
    /// Number of cells that run without --axis.
    cells: Option<u64>,
    claims: Option<u64>,
    /// Whether the requirements are met, in a few words.
    needs: String,
    /// The missing requirements, or why they are unknown.
    missing: Vec<String>,
    /// Requirements that only a command can check.
    probe_note: Option<String>,
    /// Good if all cells can run.
    tone: Tone,
}

impl Listing {
    fn read(listed: &ListedStudy) -> Self {
        let folder = listed.unpacked_folder().map_err(|line| vec![line]);
        let listing = match folder.and_then(|folder| Study::read_without_claims(&folder)) {
            Ok(study) => Self::of(Arc::new(study)),
            Err(lines) => Self {
                needs: "cannot be read".to_owned(),
                // `strandline study check` prints the others.
                missing: lines.into_iter().take(1).collect(),
                tone: Tone::Bad,
                ..Self::default()
            },
        };
        Self { name: listed.name.clone(), ..listing }
    }

    fn item(&self) -> Value {
        json!({
            "name": self.name, "title": self.title, "cells": self.cells, "claims": self.claims,
            "ready": self.tone == Tone::Good, "needs": self.needs_text(),
        })
    }

    fn row(&self) -> Vec<Cell> {
        let plain = |text: &str| Cell::plain(clean_sentence(text));
        let count = |count: Option<u64>| plain(&count.map_or_else(String::new, |count| count.to_string()));
        let needs = Cell { text: clean_sentence(&self.needs), tone: self.tone };
        vec![plain(&self.name), plain(&self.title), count(self.cells), count(self.claims), needs]
    }

    /// The listing of a study that can be read.
    fn of(study: Arc<Study>) -> Self {
        let (title, claims) = (study.title.clone(), Some(study.claims.len() as u64));
        let listing = Self::of_cells(study).unwrap_or_else(|why| Self {
            missing: vec![why],
            needs: "?".to_owned(),
            tone: Tone::Faint,
            ..Self::default()
        });
        Self { title, claims, ..listing }
    }

    /// The cells of a listing and their requirements.
    fn of_cells(study: Arc<Study>) -> Result<Self, String> {
        let matrix = Matrix::chosen(study, Form::Full, &[])?;
        let cells = matrix.cell_count();
        if cells.is_none_or(|count| count > MAX_CHECKED_CELLS) {
            let needs = "not checked: many cells".to_owned();
            return Ok(Self { cells, needs, tone: Tone::Faint, ..Self::default() });
        }
        let CheckedCells { runnable, unrunnable } = needs::check_cells(&matrix)?;
        let (can_run, cannot_run) = (runnable.len(), unrunnable.len());
        let mut missing: Vec<String> = unrunnable.into_iter().map(|cell| cell.why).collect();
        missing.sort();
        missing.dedup();
        let (needs, tone) = match (can_run, cannot_run) {
            (_, 0) => ("met".to_owned(), Tone::Good),
            (0, _) => ("not met".to_owned(), Tone::Bad),
            _ => (format!("met for {}", counted(can_run as u64, "cell")), Tone::Bad),
        };
        // Checking them would mean running something.
        let names = needs::probe_names(&matrix, &runnable);
        let probe_note = (!names.is_empty()).then(|| format!("not checked: {}", names.join(", ")));
        let cells = Some((can_run + cannot_run) as u64);
        Ok(Self { cells, needs, missing, probe_note, tone, ..Self::default() })
    }

    /// The requirements in a word, or what is missing.
    fn needs_text(&self) -> String {
        let needs = if self.missing.is_empty() { self.needs.clone() } else { self.missing.join("; ") };
        self.probe_note.iter().fold(needs, |needs, note| format!("{needs}; {note}"))
    }
}
