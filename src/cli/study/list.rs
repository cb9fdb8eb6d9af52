//! `study` without a name: those that there are, how large they are, and whether what they need is here.

use std::sync::Arc;

use super::super::arguments_lab::Study as Arguments;
use super::super::lab::show;
use super::super::output::Output;
use super::super::{Ending, Result};
use crate::lab::study::file::Study;
use crate::lab::study::matrix::Matrix;
use crate::lab::study::{find, run as runs};
use crate::report::lab::page::{Cell, Column, Page, Section, Table, Tone};
use crate::report::text::clean_sentence;

/// Names, titles, and whether what they need is here.
pub fn run(arguments: &Arguments, output: &mut Output) -> Result<Ending> {
    let mut rows = Vec::new();
    let mut items = Vec::new();
    for (name, folder) in find::list() {
        let path = folder.map_or_else(|| find::find(&name), Ok);
        let read = path.map_err(|line| vec![line]).and_then(|path| Study::glance(&path));
        let line = match read {
            Ok(study) => Line::of(Arc::new(study)),
            Err(lines) => Line {
                needs: format!("cannot be read: {}", lines.into_iter().next().unwrap_or_default()),
                tone: Tone::Bad,
                ..Line::default()
            },
        };
        items.push(serde_json::json!({
            "name": name, "title": line.title, "cells": line.cells, "claims": line.claims,
            "ready": line.tone == Tone::Good, "needs": line.needs,
        }));
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
        sections: vec![Section { tables: vec![table], ..Section::default() }],
        ..Page::default()
    };
    show("strandline/studies/1", &serde_json::json!({ "studies": items }), &page, &arguments.shown, output)?;
    Ok(Ending::Done)
}

/// What is told of one.
#[derive(Default)]
struct Line {
    title: String,
    /// As many as are run where no axis is given.
    cells: Option<u64>,
    claims: Option<u64>,
    needs: String,
    tone: Tone,
}

impl Line {
    fn of(study: Arc<Study>) -> Self {
        let (title, claims) = (study.title.clone(), Some(study.claims.len() as u64));
        let matrix = Matrix::chosen(study, false, &[]);
        let cells = matrix.as_ref().ok().and_then(Matrix::count);
        let (needs, tone) = matrix.map_or_else(|_| ("?".to_owned(), Tone::Faint), |matrix| needs(&matrix));
        Self { title, cells, claims, needs, tone }
    }
}

fn needs(matrix: &Matrix) -> (String, Tone) {
    const MOST_CELLS: u64 = 10_000;
    if matrix.count().is_none_or(|count| count > MOST_CELLS) {
        return ("not looked at: many cells".to_owned(), Tone::Faint);
    }
    let Ok(bill) = runs::bill(matrix) else { return ("?".to_owned(), Tone::Faint) };
    let mut missing: Vec<String> = bill.missing.into_iter().map(|(_, why)| why).collect();
    missing.sort();
    missing.dedup();
    if missing.is_empty() { ("met".to_owned(), Tone::Good) } else { (missing.join("; "), Tone::Bad) }
}
