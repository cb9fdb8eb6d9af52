//! A page as Markdown, for an issue or a mailing list: GitHub tables, padded so that the source is
//! readable too. Texts are escaped, so that they make no heading, list, link text, image or HTML.
//! GitHub still links bare addresses and mentions.

use super::book::Book;
use super::cleaned::{cleaned, cleaned_book};
use super::page::{Cell, Claim, Column, Fact, Page, Plot, Section, Snippet, Table, Tone};
use crate::text::{pad_left, pad_right, width};

/// Cells that are wider do not widen their column: one long name would widen every line.
const MAX_ALIGNED_COLUMNS: usize = 100;
/// Minimum width of a column, for its rule: `---:`.
const MIN_COLUMN_WIDTH: usize = 4;
/// Maximum digits of a list item's number (CommonMark 0.31, 5.2).
const MAX_LIST_DIGITS: usize = 9;

/// Writes a page, with a final newline; it links the plots that exist as files.
pub fn text(page: &Page) -> String {
    let mut parts = Vec::new();
    append_page(&mut parts, &cleaned(page));
    parts.join("\n\n") + "\n"
}

/// Writes a book, with a final newline: overall result and machine first, then the chapters.
pub fn book(book: &Book) -> String {
    let book = cleaned_book(book);
    let mut parts = vec![format!("# {}", escaped(&book.title)), format!("**{}**", escaped(&book.headline))];
    parts.push(table_text(&book.contents));
    let facts: Vec<String> = book
        .environment
        .iter()
        .map(|Fact { name, value }| format!("- {}: {}", escaped(name), escaped(value)))
        .collect();
    if !facts.is_empty() {
        parts.push(format!("Measured on:\n\n{}", facts.join("\n")));
    }
    for chapter in book.chapters {
        append_page(&mut parts, &Page { environment: Vec::new(), ..chapter.page });
    }
    parts.join("\n\n") + "\n"
}

/// Appends title, headline and all parts of a cleaned page.
fn append_page(parts: &mut Vec<String>, page: &Page) {
    if !page.title.is_empty() {
        parts.push(format!("## {}", escaped(&page.title)));
    }
    if !page.headline.is_empty() {
        parts.push(format!("**{}**", escaped(&page.headline)));
    }
    for section in &page.sections {
        append_section(parts, section);
    }
    if !page.caveats.is_empty() {
        let caveats: Vec<String> =
            page.caveats.iter().map(|caveat| format!("- {}", escaped(caveat))).collect();
        parts.push(format!("Caveats:\n\n{}", caveats.join("\n")));
    }
    if !page.environment.is_empty() {
        let facts: Vec<String> =
            page.environment.iter().map(|Fact { name, value }| format!("{name} {value}")).collect();
        parts.push(format!("Measured on: {}.", escaped(&facts.join("; "))));
    }
}

/// Appends the heading, paragraphs, claims, tables, plots and snippets of a section.
fn append_section(parts: &mut Vec<String>, section: &Section) {
    if !section.heading.is_empty() {
        parts.push(format!("### {}", escaped(&section.heading)));
    }
    parts.extend(section.paragraphs.iter().map(|paragraph| escaped(paragraph)));
    append_claims(parts, &section.claims);
    for table in &section.tables {
        if !table.caption.is_empty() {
            parts.push(escaped(&table.caption));
        }
        if !table.columns.is_empty() {
            parts.push(table_text(table));
        }
    }
    for plot in section.plots.iter().filter(|plot| !plot.address.is_empty()) {
        parts.push(picture(plot));
    }
    for Snippet { purpose, text } in &section.snippets {
        if !purpose.is_empty() {
            parts.push(escaped(purpose));
        }
        // The fence must be longer than any in the text.
        let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
        let fence = "`".repeat((longest + 1).max(3));
        parts.push(format!("{fence}\n{text}\n{fence}"));
    }
}

/// Appends the claims as a table, and below it the reasons for those that do not or not always
/// hold.
pub fn append_claims(parts: &mut Vec<String>, claims: &[Claim]) {
    if claims.is_empty() {
        return;
    }
    let row = |claim: &Claim| {
        let statement =
            if claim.statement.is_empty() { String::new() } else { format!(": {}", claim.statement) };
        vec![
            Cell::plain(format!("{}{statement}", claim.id)),
            claim.verdict.clone(),
            Cell::plain(&claim.published),
            Cell::plain(&claim.measured),
        ]
    };
    let columns =
        ["claim", "verdict", "published", "measured"].map(|title| Column::new(title, false)).to_vec();
    let rows = claims.iter().map(row).collect();
    parts.push(table_text(&Table { caption: String::new(), columns, rows }));
    let needs_reason = |claim: &&Claim| claim.verdict.tone != Tone::Good || !claim.reason.is_empty();
    let reason_line = |claim: &Claim| {
        let reasons = [&claim.reason, &claim.note].into_iter().chain(&claim.figures);
        let reasons: Vec<&str> =
            reasons.filter(|reason| !reason.is_empty()).map(|reason| reason.trim_end_matches('.')).collect();
        let verdict = escaped(&claim.verdict.text);
        (!reasons.is_empty())
            .then(|| format!("- **{}** ({verdict}): {}", escaped(&claim.id), escaped(&reasons.join("; "))))
    };
    let reason_lines: Vec<String> = claims.iter().filter(needs_reason).filter_map(reason_line).collect();
    if !reason_lines.is_empty() {
        parts.push(reason_lines.join("\n"));
    }
}

/// Writes an image link to a plot's file.
pub fn picture(plot: &Plot) -> String {
    // Square brackets would end the link text.
    let title = escaped(&plot.title.replace('[', "(").replace(']', ")"));
    format!("![{title}]({})", plot.address)
}

/// Writes a table, with its columns padded to equal width.
pub fn table_text(table: &Table) -> String {
    let mut widths: Vec<usize> =
        table.columns.iter().map(|column| width(&escaped(&column.title)).max(MIN_COLUMN_WIDTH)).collect();
    for row in &table.rows {
        for (cell, column_width) in row.iter().zip(&mut widths) {
            let cell_width = width(&escaped(&cell.text));
            if cell_width <= MAX_ALIGNED_COLUMNS {
                *column_width = (*column_width).max(cell_width);
            }
        }
    }
    let columns_with_widths = || table.columns.iter().zip(&widths);
    let line = |cells: Vec<String>| {
        let padded = columns_with_widths().zip(cells).map(|((column, &column_width), cell)| {
            if width(&cell) > column_width {
                cell
            } else if column.has_figures {
                pad_left(&cell, column_width)
            } else {
                pad_right(&cell, column_width)
            }
        });
        format!("| {} |", padded.collect::<Vec<_>>().join(" | "))
    };
    let head = line(table.columns.iter().map(|column| escaped(&column.title)).collect());
    let rule = |(column, &column_width): (&Column, &usize)| {
        if column.has_figures {
            format!("{}:", "-".repeat(column_width - 1))
        } else {
            "-".repeat(column_width)
        }
    };
    let rules = line(columns_with_widths().map(rule).collect());
    let separator = |column: &Column| if column.has_figures { "----" } else { "" }.to_owned();
    let rows = table.rows.iter().map(|row| {
        if row.is_empty() {
            line(table.columns.iter().map(separator).collect())
        } else {
            line(row.iter().map(|cell| escaped(&cell.text)).collect())
        }
    });
    [head, rules].into_iter().chain(rows).collect::<Vec<_>>().join("\n")
}

/// Escapes with backslashes exactly the characters that Markdown would interpret, as the source is
/// also read directly.
pub fn escaped(text: &str) -> String {
    let characters: Vec<char> = text.chars().collect();
    let mut safe = String::with_capacity(text.len());
    let is_word = |neighbour: Option<&char>| neighbour.is_some_and(|c| c.is_alphanumeric());
    let is_visible = |neighbour: Option<&char>| neighbour.is_some_and(|c| !c.is_whitespace());
    for (index, &c) in characters.iter().enumerate() {
        let before = index.checked_sub(1).and_then(|before| characters.get(before));
        let after = characters.get(index + 1);
        let is_interpreted = match c {
            '\\' | '`' | '|' => true,
            '*' => is_visible(before) || is_visible(after),
            '_' => !(is_word(before) && is_word(after)),
            '~' => is_visible(before) || after == Some(&'~'),
            '$' => is_visible(before),
            '<' => after.is_some_and(|c| c.is_ascii_alphabetic() || matches!(c, '/' | '!' | '?')),
            '&' => after.is_some_and(|c| c.is_ascii_alphabetic() || *c == '#'),
            ']' => after.is_some_and(|c| matches!(c, '(' | '[' | ':')),
            // At the start of a line these make a heading, quotation, list, task or rule.
            '#' | '>' | '[' | '=' => index == 0,
            '+' | '-' => index == 0 && !after.is_some_and(char::is_ascii_digit),
            '.' | ')' => {
                index > 0
                    && index <= MAX_LIST_DIGITS
                    && characters.iter().take(index).all(char::is_ascii_digit)
                    && !is_visible(after)
            }
            _ => false,
        };
        if is_interpreted {
            safe.push('\\');
        }
        safe.push(c);
    }
    safe
}
