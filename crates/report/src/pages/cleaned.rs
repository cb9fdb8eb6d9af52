//! Makes all texts of a page safe to show. Every writer starts with this.

use super::book::{Book, Chapter};
use super::page::{Cell, Claim, Column, Page, Plot, Section, Series, Table};
use crate::text::{clean, clean_sentence, shorten};

/// Maximum width of a paragraph, in terminal columns.
const MAX_COLUMNS: usize = 2_000;
/// Maximum length of a snippet, in bytes.
const MAX_SNIPPET: usize = 64 * 1024;

/// A copy of `page` with every text cleaned and truncated, and every row as long as the table
/// header. An empty row stays empty: it is a separator line.
pub fn cleaned(page: &Page) -> Page {
    Page {
        title: clean_sentence(&one_line(&page.title)),
        headline: sentence(&page.headline),
        sections: page.sections.iter().map(section).collect(),
        caveats: page.caveats.iter().map(|caveat| sentence(caveat)).collect(),
        environment: page.environment.iter().map(|(name, value)| (name_of(name), name_of(value))).collect(),
    }
}

/// The same for a book.
pub fn cleaned_book(book: &Book) -> Book {
    let chapter = |chapter: &Chapter| Chapter { name: name_of(&chapter.name), page: cleaned(&chapter.page) };
    Book {
        title: clean_sentence(&one_line(&book.title)),
        headline: sentence(&book.headline),
        contents: table(&book.contents),
        chapters: book.chapters.iter().map(chapter).collect(),
        environment: book.environment.iter().map(|(name, value)| (name_of(name), name_of(value))).collect(),
    }
}

fn section(section: &Section) -> Section {
    Section {
        heading: name_of(&section.heading),
        row_kind: name_of(&section.row_kind),
        paragraphs: section.paragraphs.iter().map(|paragraph| sentence(paragraph)).collect(),
        claims: section.claims.iter().map(claim).collect(),
        tables: section.tables.iter().map(table).collect(),
        plots: section.plots.iter().map(plot).collect(),
        snippets: section.snippets.iter().map(|(what, text)| (sentence(what), snippet(text))).collect(),
    }
}

fn claim(claim: &Claim) -> Claim {
    Claim {
        id: name_of(&claim.id),
        says: sentence(&claim.says),
        verdict: Cell { text: name_of(&claim.verdict.text), tone: claim.verdict.tone },
        published: sentence(&claim.published),
        measured: name_of(&claim.measured),
        reason: sentence(&claim.reason),
        note: sentence(&claim.note),
        figures: claim.figures.iter().map(|text| sentence(text)).collect(),
    }
}

fn table(table: &Table) -> Table {
    let columns: Vec<Column> = table
        .columns
        .iter()
        .map(|column| Column { title: name_of(&column.title), figures: column.figures })
        .collect();
    let row = |row: &Vec<Cell>| -> Vec<Cell> {
        if row.is_empty() {
            return Vec::new();
        }
        let cells = row.iter().map(|cell| Cell { text: name_of(&cell.text), tone: cell.tone });
        cells.chain(std::iter::repeat(Cell::default())).take(columns.len()).collect()
    };
    let rows = table.rows.iter().map(row).collect();
    Table { caption: sentence(&table.caption), columns, rows }
}

fn plot(plot: &Plot) -> Plot {
    let series = plot.series.iter().map(|series| Series {
        name: name_of(&series.name),
        labels: series.labels.iter().map(|label| name_of(label)).collect(),
        ..series.clone()
    });
    Plot {
        title: name_of(&plot.title),
        x_label: name_of(&plot.x_label),
        y_label: name_of(&plot.y_label),
        series: series.collect(),
        x_names: plot.x_names.iter().map(|name| name_of(name)).collect(),
        ..plot.clone()
    }
}

/// Joins the lines of a sentence; the writer decides where to break it.
fn one_line(text: &str) -> String {
    text.split(['\n', '\r', '\t'])
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}

fn sentence(text: &str) -> String {
    shorten(&clean(&one_line(text)), MAX_COLUMNS)
}

fn name_of(text: &str) -> String {
    clean_sentence(&one_line(text))
}

/// Keeps lines and tabs of text that is meant for copying.
fn snippet(text: &str) -> String {
    let end = (0..=MAX_SNIPPET.min(text.len())).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    let lines = text.get(..end).unwrap_or_default().lines();
    lines
        .map(|line| line.split('\t').map(clean).collect::<Vec<_>>().join("\t"))
        .collect::<Vec<_>>()
        .join("\n")
}
