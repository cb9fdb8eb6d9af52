//! A page as Markdown, for an issue or a mailing list: GitHub tables, padded so that the source is
//! readable too. Names of programs are escaped and never act as markup.

use super::book::Book;
use super::cleaned::{cleaned, cleaned_book};
use super::page::{Cell, Claim, Column, Page, Plot, Section, Table, Tone};
use crate::text::{pad_left, pad_right, width};

/// Cells wider than this are not padded to: one long name would widen every line.
const MAX_ALIGNED: usize = 100;

/// The whole page, with a final newline. Refers to those plots that exist as files.
pub fn text(page: &Page) -> String {
    let mut parts = Vec::new();
    whole(&mut parts, &cleaned(page));
    parts.join("\n\n") + "\n"
}

/// The whole book, with a final newline: overall result and machine first, then the chapters.
pub fn book(book: &Book) -> String {
    let book = cleaned_book(book);
    let mut parts = vec![format!("# {}", escaped(&book.title)), format!("**{}**", escaped(&book.headline))];
    parts.push(rows(&book.contents));
    let facts: Vec<String> = book
        .environment
        .iter()
        .map(|(name, value)| format!("- {}: {}", escaped(name), escaped(value)))
        .collect();
    if !facts.is_empty() {
        parts.push(format!("Measured on:\n\n{}", facts.join("\n")));
    }
    for chapter in book.chapters {
        whole(&mut parts, &Page { environment: Vec::new(), ..chapter.page });
    }
    parts.join("\n\n") + "\n"
}

/// Appends title, headline and all parts of a cleaned page.
fn whole(parts: &mut Vec<String>, page: &Page) {
    if !page.title.is_empty() {
        parts.push(format!("## {}", escaped(&page.title)));
    }
    if !page.headline.is_empty() {
        parts.push(format!("**{}**", escaped(&page.headline)));
    }
    for section in &page.sections {
        part(parts, section);
    }
    if !page.caveats.is_empty() {
        let caveats: Vec<String> =
            page.caveats.iter().map(|caveat| format!("- {}", escaped(caveat))).collect();
        parts.push(format!("Caveats:\n\n{}", caveats.join("\n")));
    }
    if !page.environment.is_empty() {
        let facts: Vec<String> =
            page.environment.iter().map(|(name, value)| format!("{name} {value}")).collect();
        parts.push(format!("Measured on: {}.", escaped(&facts.join("; "))));
    }
}

fn part(parts: &mut Vec<String>, section: &Section) {
    if !section.heading.is_empty() {
        parts.push(format!("### {}", escaped(&section.heading)));
    }
    parts.extend(section.paragraphs.iter().map(|paragraph| escaped(paragraph)));
    claims(parts, &section.claims);
    for table in &section.tables {
        if !table.caption.is_empty() {
            parts.push(escaped(&table.caption));
        }
        if !table.columns.is_empty() {
            parts.push(rows(table));
        }
    }
    for plot in section.plots.iter().filter(|plot| !plot.address.is_empty()) {
        parts.push(picture(plot));
    }
    for (what, text) in &section.snippets {
        if !what.is_empty() {
            parts.push(escaped(what));
        }
        // The fence must be longer than any in the text.
        let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
        let fence = "`".repeat((longest + 1).max(3));
        parts.push(format!("{fence}\n{text}\n{fence}"));
    }
}

/// Appends the claims as a table, and below it the reasons for those that do not or not always
/// hold.
pub fn claims(parts: &mut Vec<String>, claims: &[Claim]) {
    if claims.is_empty() {
        return;
    }
    let row = |claim: &Claim| {
        let says = if claim.says.is_empty() { String::new() } else { format!(": {}", claim.says) };
        vec![
            Cell::plain(format!("{}{says}", claim.id)),
            claim.verdict.clone(),
            Cell::plain(&claim.published),
            Cell::plain(&claim.measured),
        ]
    };
    let columns =
        ["claim", "verdict", "published", "measured"].map(|title| Column::new(title, false)).to_vec();
    let rows_of_claims = claims.iter().map(row).collect();
    parts.push(rows(&Table { caption: String::new(), columns, rows: rows_of_claims }));
    let doubtful = |claim: &&Claim| claim.verdict.tone != Tone::Good || !claim.reason.is_empty();
    let said = |claim: &Claim| {
        let parts = [&claim.reason, &claim.note].into_iter().chain(&claim.figures);
        let parts: Vec<&str> =
            parts.filter(|part| !part.is_empty()).map(|part| part.trim_end_matches('.')).collect();
        let verdict = escaped(&claim.verdict.text);
        (!parts.is_empty())
            .then(|| format!("- **{}** ({verdict}): {}", escaped(&claim.id), escaped(&parts.join("; "))))
    };
    let said: Vec<String> = claims.iter().filter(doubtful).filter_map(said).collect();
    if !said.is_empty() {
        parts.push(said.join("\n"));
    }
}

/// A reference to a plot that exists as a file.
pub fn picture(plot: &Plot) -> String {
    // Square brackets would end the link text.
    let title = escaped(&plot.title.replace('[', "(").replace(']', ")"));
    format!("![{title}]({})", plot.address)
}

/// The table, with its columns padded to equal width.
pub fn rows(table: &Table) -> String {
    let mut rooms: Vec<usize> =
        table.columns.iter().map(|column| width(&escaped(&column.title)).max(4)).collect();
    for row in &table.rows {
        for (cell, room) in row.iter().zip(&mut rooms) {
            let wide = width(&escaped(&cell.text));
            *room = (*room).max(if wide <= MAX_ALIGNED { wide } else { 0 });
        }
    }
    let places = || table.columns.iter().zip(&rooms);
    let line = |cells: Vec<String>| {
        let filled = places().zip(cells).map(|((column, &room), cell)| match column.figures {
            _ if width(&cell) > room => cell,
            true => pad_left(&cell, room),
            false => pad_right(&cell, room),
        });
        format!("| {} |", filled.collect::<Vec<_>>().join(" | "))
    };
    let head = line(table.columns.iter().map(|column| escaped(&column.title)).collect());
    let rules =
        places().map(
            |(column, &room)| {
                if column.figures { format!("{}:", "-".repeat(room - 1)) } else { "-".repeat(room) }
            },
        );
    let rules = line(rules.collect());
    let rows = table.rows.iter().map(|row| match row.is_empty() {
        true => line(
            table.columns.iter().map(|column| if column.figures { "----" } else { "" }.to_owned()).collect(),
        ),
        false => line(row.iter().map(|cell| escaped(&cell.text)).collect()),
    });
    [head, rules].into_iter().chain(rows).collect::<Vec<_>>().join("\n")
}

/// Escapes with backslashes exactly the characters that Markdown would interpret, as the source is
/// also read directly.
pub fn escaped(text: &str) -> String {
    let characters: Vec<char> = text.chars().collect();
    let mut safe = String::with_capacity(text.len());
    let is_word = |at: Option<&char>| at.is_some_and(|c| c.is_alphanumeric());
    let is_dark = |at: Option<&char>| at.is_some_and(|c| !c.is_whitespace());
    for (index, &c) in characters.iter().enumerate() {
        let before = index.checked_sub(1).and_then(|before| characters.get(before));
        let after = characters.get(index + 1);
        let acts = match c {
            '\\' | '`' | '|' => true,
            '*' => is_dark(before) || is_dark(after),
            '_' => !(is_word(before) && is_word(after)),
            '~' => is_dark(before) || after == Some(&'~'),
            '$' => before.is_some() && is_dark(before),
            '<' => after.is_some_and(|c| c.is_ascii_alphabetic() || matches!(c, '/' | '!' | '?')),
            '&' => after.is_some_and(|c| c.is_ascii_alphabetic() || *c == '#'),
            ']' => after.is_some_and(|c| matches!(c, '(' | '[' | ':')),
            // At the start of a line these make a heading, quotation, list, task or rule.
            '#' | '>' | '[' | '=' => index == 0,
            '+' | '-' => index == 0 && !after.is_some_and(char::is_ascii_digit),
            '.' | ')' => {
                index > 0
                    && index < 10
                    && characters.iter().take(index).all(char::is_ascii_digit)
                    && !is_dark(after)
            }
            _ => false,
        };
        if acts {
            safe.push('\\');
        }
        safe.push(c);
    }
    safe
}
