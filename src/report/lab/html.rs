//! A page as one HTML file that needs nothing else: no network, no script. It forbids itself everything but its own
//! style, by its digest; every text goes through a template that escapes, and pictures through a writer that does.

use minijinja::value::{Serde, Value};
use minijinja::{Environment, context};
use serde::Serialize;

use super::cleaned::cleaned;
use super::page::{Cell, Page, Section, Table, Tone};
use super::plot;
use crate::report::json::VERSION;
use crate::report::timeline::NotDrawn;
use crate::report::timeline::html::digest;

const PAGE: &str = include_str!("assets/lab.html");
const STYLE: &str = include_str!("assets/lab.css");

/// The page as a whole HTML document.
///
/// # Errors
/// Where its template cannot be filled.
pub fn text(page: &Page) -> Result<String, NotDrawn> {
    let page = cleaned(page);
    let sections: Vec<Part> = page.sections.iter().map(Part::new).collect();
    let mut templates = Environment::new();
    templates.add_template("lab.html", PAGE)?;
    let text = templates.get_template("lab.html")?.render(context! {
        version => VERSION,
        title => page.title,
        headline => page.headline,
        sections => Value::from(Serde(sections)),
        caveats => page.caveats,
        environment => Value::from(Serde(page.environment)),
        style_digest => digest(STYLE),
        style => STYLE,
    })?;
    Ok(text)
}

/// A section, as the template reads it.
#[derive(Serialize)]
struct Part {
    heading: String,
    paragraphs: Vec<String>,
    tables: Vec<Rows>,
    /// Whole SVG documents, which are put in as they are.
    plots: Vec<String>,
    snippets: Vec<(String, String)>,
}

impl Part {
    fn new(section: &Section) -> Self {
        Self {
            heading: section.heading.clone(),
            paragraphs: section.paragraphs.clone(),
            tables: section.tables.iter().map(Rows::new).collect(),
            plots: section.plots.iter().map(plot::svg).collect(),
            snippets: section.snippets.clone(),
        }
    }
}

/// A table, as the template reads it.
#[derive(Serialize)]
struct Rows {
    caption: String,
    columns: Vec<Datum>,
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    /// Whether a line sets it apart from the row before.
    apart: bool,
    cells: Vec<Datum>,
}

/// A cell with the classes of its style.
#[derive(Serialize)]
struct Datum {
    text: String,
    class: String,
}

impl Rows {
    fn new(table: &Table) -> Self {
        let figures = |figures: bool| if figures { "n" } else { "" };
        let columns = table
            .columns
            .iter()
            .map(|column| Datum { text: column.title.clone(), class: figures(column.figures).to_owned() });
        let mut rows: Vec<Row> = Vec::with_capacity(table.rows.len());
        let mut apart = false;
        for row in &table.rows {
            if !row.is_empty() {
                let cells =
                    row.iter().zip(&table.columns).map(|(cell, column)| datum(cell, figures(column.figures)));
                rows.push(Row { apart, cells: cells.collect() });
            }
            apart = row.is_empty();
        }
        Self { caption: table.caption.clone(), columns: columns.collect(), rows }
    }
}

fn datum(cell: &Cell, figures: &str) -> Datum {
    let tone = match cell.tone {
        Tone::Plain => "",
        Tone::Good => "good",
        Tone::Bad => "bad",
        Tone::Faint => "faint",
    };
    Datum { text: cell.text.clone(), class: format!("{figures} {tone}").trim().to_owned() }
}
