//! A page as one self-contained HTML file: no network, no script. Its content security policy
//! permits only its own style, by digest. Every text goes through an escaping template, and
//! pictures through an escaping writer.

use minijinja::context;
use minijinja::value::{Serde, Value};
use serde::Serialize;

use super::book::Book;
use super::cleaned::{cleaned, cleaned_book};
use super::names::{Names, slug};
use super::page::{Cell, Claim, Column, Page, Section, Snippet, Table};
use super::plot;
use crate::template::{DrawError, render};
use crate::text::counted;

const PAGE: &str = include_str!("assets/lab.html");
const STYLE: &str = include_str!("assets/lab.css");
/// Maximum number of links in a chapter's contents.
const MAX_LINKS: usize = 40;
/// The start of a book file, by which it is recognised.
const BOOK_MARK: &str = "<!doctype html>\n<html lang=\"en\" data-strandline=\"studies\">";

/// The page as a complete HTML document.
///
/// # Errors
/// Fails if the template cannot be rendered.
pub fn text(page: &Page) -> Result<String, DrawError> {
    let page = cleaned(page);
    let chapter = ChapterView::new(&page, None, &mut Names::default());
    let content = context! {
        title => page.title,
        headline => page.headline,
        chapters => Value::from(Serde([chapter])),
        environment => Value::from(Serde(page.environment)),
    };
    render(PAGE, STYLE, content)
}

/// The book as a complete HTML document, starting with its contents.
///
/// # Errors
/// As [`text`].
pub fn book(book: &Book) -> Result<String, DrawError> {
    let book = cleaned_book(book);
    let mut names = Names::default();
    let chapters = book.chapters.iter().map(|chapter| {
        let anchor = names.unique(&slug(&chapter.name));
        ChapterView::new(&chapter.page, Some(anchor), &mut names)
    });
    let chapters: Vec<ChapterView> = chapters.collect();
    let contents = TableView::new(&book.contents, String::new(), &mut |row| {
        chapters.get(row).map(|chapter| chapter.anchor.clone()).unwrap_or_default()
    });
    let content = context! {
        is_book => true,
        title => book.title,
        headline => book.headline,
        contents => Value::from(Serde(contents)),
        chapters => Value::from(Serde(chapters)),
        environment => Value::from(Serde(book.environment)),
    };
    render(PAGE, STYLE, content)
}

/// Whether a file that starts with `start` is a book written by strandline.
pub fn is_book(start: &[u8]) -> bool {
    start.starts_with(BOOK_MARK.as_bytes())
}

/// A page as the template reads it.
#[derive(Serialize)]
struct ChapterView {
    /// Its anchor in a book; empty if it is the whole document.
    anchor: String,
    title: String,
    headline: String,
    /// Links to its parts.
    links: Vec<Link>,
    /// Numbers of the parts: `52 claims, 5 tables, 12 plots`.
    part_counts: String,
    sections: Vec<SectionView>,
    caveats: Vec<String>,
}

impl ChapterView {
    fn new(page: &Page, anchor: Option<String>, names: &mut Names) -> Self {
        let base = anchor.as_ref().map(|anchor| format!("{anchor}-")).unwrap_or_default();
        let sections: Vec<SectionView> =
            page.sections.iter().map(|section| SectionView::new(section, &base, names)).collect();
        let links = sections.iter().flat_map(SectionView::links).filter(|link| !link.name.is_empty());
        let total = |count_in: fn(&Section) -> usize, noun: &str| {
            let count: usize = page.sections.iter().map(count_in).sum();
            (count > 0).then(|| counted(count as u64, noun))
        };
        let parts = [
            total(|section| section.claims.len(), "claim"),
            total(|section| section.tables.len(), "table"),
            total(|section| section.plots.len(), "plot"),
        ];
        let part_counts: Vec<String> = parts.into_iter().flatten().collect();
        Self {
            links: links.take(MAX_LINKS).collect(),
            part_counts: part_counts.join(", "),
            anchor: anchor.unwrap_or_default(),
            title: page.title.clone(),
            headline: page.headline.clone(),
            sections,
            caveats: page.caveats.clone(),
        }
    }
}

/// A link to a part of a chapter.
#[derive(Serialize)]
struct Link {
    anchor: String,
    name: String,
}

impl Link {
    fn new(anchor: &str, name: &str) -> Self {
        Self { anchor: anchor.to_owned(), name: name.to_owned() }
    }
}

/// A section, as the template reads it.
#[derive(Serialize)]
struct SectionView {
    /// Its anchor, as in the other views; empty for none.
    anchor: String,
    heading: String,
    paragraphs: Vec<String>,
    claims: Vec<ClaimView>,
    tables: Vec<TableView>,
    plots: Vec<PlotView>,
    snippets: Vec<Snippet>,
}

/// A claim, as the template reads it.
#[derive(Serialize)]
struct ClaimView {
    anchor: String,
    #[serde(flatten)]
    claim: Claim,
}

/// A plot, as the template reads it.
#[derive(Serialize)]
struct PlotView {
    anchor: String,
    title: String,
    /// A complete SVG document, inserted verbatim.
    svg: String,
}

impl SectionView {
    fn new(section: &Section, base: &str, names: &mut Names) -> Self {
        let mut new_anchor = |kind: &str, text: &str| {
            if text.is_empty() { String::new() } else { names.unique(&format!("{base}{kind}{}", slug(text))) }
        };
        let anchor = new_anchor("", &section.heading);
        let claim_view =
            |claim: &Claim| ClaimView { anchor: new_anchor("claim-", &claim.id), claim: claim.clone() };
        let claims = section.claims.iter().map(claim_view).collect();
        let mut tables = Vec::new();
        for table in &section.tables {
            let table_anchor = new_anchor("table-", &table.caption);
            let row_kind = format!("{}-", slug(&section.row_kind));
            tables.push(TableView::new(table, table_anchor, &mut |row| {
                let name = table.rows.get(row).and_then(|row| row.first()).map_or("", |cell| &cell.text);
                if section.row_kind.is_empty() { String::new() } else { new_anchor(&row_kind, name) }
            }));
        }
        let plots = section.plots.iter().map(|plot| PlotView {
            anchor: new_anchor("plot-", &plot.title),
            title: plot.title.clone(),
            svg: plot::svg(plot),
        });
        Self {
            plots: plots.collect(),
            anchor,
            heading: section.heading.clone(),
            paragraphs: section.paragraphs.clone(),
            claims,
            tables,
            snippets: section.snippets.clone(),
        }
    }

    /// Links to it, its tables and its plots.
    fn links(&self) -> Vec<Link> {
        let tables = self.tables.iter().map(|table| Link::new(&table.anchor, &table.caption));
        let plots = self.plots.iter().map(|plot| Link::new(&plot.anchor, &plot.title));
        [Link::new(&self.anchor, &self.heading)].into_iter().chain(tables).chain(plots).collect()
    }
}

/// A table, as the template reads it.
#[derive(Serialize)]
struct TableView {
    anchor: String,
    caption: String,
    columns: Vec<Column>,
    rows: Vec<RowView>,
}

/// A row of a table, as the template reads it.
#[derive(Serialize)]
struct RowView {
    /// Its anchor or, in a table of contents, the anchor that it links to; empty for none.
    anchor: String,
    /// Whether a line separates it from the previous row.
    is_apart: bool,
    cells: Vec<Cell>,
}

impl TableView {
    /// The table with this `anchor`; `row_anchor` returns those of its rows, by index.
    fn new(table: &Table, anchor: String, row_anchor: &mut dyn FnMut(usize) -> String) -> Self {
        let mut rows: Vec<RowView> = Vec::with_capacity(table.rows.len());
        let mut is_apart = false;
        for (index, row) in table.rows.iter().enumerate() {
            if !row.is_empty() {
                rows.push(RowView { anchor: row_anchor(index), is_apart, cells: row.clone() });
            }
            is_apart = row.is_empty();
        }
        Self { anchor, caption: table.caption.clone(), columns: table.columns.clone(), rows }
    }
}
