//! Makes all texts of a page safe to show. Every writer starts with this.

use super::book::{Book, Chapter};
use super::page::{Cell, Claim, Column, Fact, Page, Plot, Section, Series, Snippet, Table};
use crate::text::{clean, clean_sentence, counted, shorten, start_of};

/// Maximum width of a paragraph, in terminal columns.
const MAX_COLUMNS: usize = 2_000;
/// Maximum length of a snippet. A mark where a longer one is cut would be copied too, so a caveat
/// counts those.
const MAX_SNIPPET_BYTES: usize = 64 * 1024;

/// A copy of `page` with every text cleaned and truncated, and every row as long as the table
/// header. An empty row stays empty: it is a separator line.
pub fn cleaned(page: &Page) -> Page {
    let is_cut = |snippet: &&Snippet| snippet.text.len() > MAX_SNIPPET_BYTES;
    let cut_count = page.sections.iter().flat_map(|section| &section.snippets).filter(is_cut).count();
    let cut_caveat = (cut_count > 0)
        .then(|| format!("cut after {MAX_SNIPPET_BYTES} bytes: {}", counted(cut_count as u64, "snippet")));
    Page {
        title: clean_sentence(&one_line(&page.title)),
        headline: clean_paragraph(&page.headline),
        sections: page.sections.iter().map(section).collect(),
        caveats: page.caveats.iter().map(|caveat| clean_paragraph(caveat)).chain(cut_caveat).collect(),
        environment: page.environment.iter().map(fact).collect(),
    }
}

/// The same for a book.
pub fn cleaned_book(book: &Book) -> Book {
    let chapter =
        |chapter: &Chapter| Chapter { name: clean_name(&chapter.name), page: cleaned(&chapter.page) };
    Book {
        title: clean_sentence(&one_line(&book.title)),
        headline: clean_paragraph(&book.headline),
        contents: table(&book.contents),
        chapters: book.chapters.iter().map(chapter).collect(),
        environment: book.environment.iter().map(fact).collect(),
    }
}

fn fact(fact: &Fact) -> Fact {
    Fact { name: clean_name(&fact.name), value: clean_name(&fact.value) }
}

fn section(section: &Section) -> Section {
    Section {
        heading: clean_name(&section.heading),
        row_kind: clean_name(&section.row_kind),
        paragraphs: section.paragraphs.iter().map(|paragraph| clean_paragraph(paragraph)).collect(),
        claims: section.claims.iter().map(claim).collect(),
        tables: section.tables.iter().map(table).collect(),
        plots: section.plots.iter().map(plot).collect(),
        snippets: section.snippets.iter().map(snippet).collect(),
    }
}

fn snippet(snippet: &Snippet) -> Snippet {
    Snippet { purpose: clean_paragraph(&snippet.purpose), text: clean_lines(&snippet.text) }
}

fn claim(claim: &Claim) -> Claim {
    Claim {
        id: clean_name(&claim.id),
        statement: clean_paragraph(&claim.statement),
        verdict: Cell { text: clean_name(&claim.verdict.text), tone: claim.verdict.tone },
        published: clean_paragraph(&claim.published),
        measured: clean_name(&claim.measured),
        reason: clean_paragraph(&claim.reason),
        note: clean_paragraph(&claim.note),
        figures: claim.figures.iter().map(|text| clean_paragraph(text)).collect(),
    }
}

fn table(table: &Table) -> Table {
    let columns: Vec<Column> = table
        .columns
        .iter()
        .map(|column| Column { title: clean_name(&column.title), has_figures: column.has_figures })
        .collect();
    let row = |row: &Vec<Cell>| -> Vec<Cell> {
        if row.is_empty() {
            return Vec::new();
        }
        let cells = row.iter().map(|cell| Cell { text: clean_name(&cell.text), tone: cell.tone });
        cells.chain(std::iter::repeat(Cell::default())).take(columns.len()).collect()
    };
    let rows = table.rows.iter().map(row).collect();
    Table { caption: clean_paragraph(&table.caption), columns, rows }
}

fn plot(plot: &Plot) -> Plot {
    let series = plot.series.iter().map(|series| Series {
        name: clean_name(&series.name),
        labels: series.labels.iter().map(|label| clean_name(label)).collect(),
        ..series.clone()
    });
    Plot {
        title: clean_name(&plot.title),
        x_label: clean_name(&plot.x_label),
        y_label: clean_name(&plot.y_label),
        series: series.collect(),
        x_names: plot.x_names.iter().map(|name| clean_name(name)).collect(),
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

/// A text of one or more sentences, as one line.
fn clean_paragraph(text: &str) -> String {
    shorten(&clean(&one_line(text)), MAX_COLUMNS)
}

/// A name or figure, as one line.
fn clean_name(text: &str) -> String {
    clean_sentence(&one_line(text))
}

/// A text that is meant for copying, with its lines and tabs.
fn clean_lines(text: &str) -> String {
    start_of(text, MAX_SNIPPET_BYTES)
        .lines()
        .map(|line| line.split('\t').map(clean).collect::<Vec<_>>().join("\t"))
        .collect::<Vec<_>>()
        .join("\n")
}
