//! A page on a terminal: text and tables of its width. Figures are never truncated: a table that is
//! too wide first gets shorter names, then headings of several lines, then its columns in blocks
//! below each other.

use super::cleaned::cleaned;
use super::page::{Cell, Claim, Column, Fact, Page, Section, Snippet, Table, Tone};
use crate::paint::{self, Paint, Surface};
use crate::terminal::{faint, strong};
use crate::text::{hanging, pad_left, pad_right, shorten, width, wrap};

/// Spaces between columns.
const GAP: usize = 2;
/// Names are not shortened below this width.
const MIN_NAME_COLUMNS: usize = 20;
/// Names joined by `+` are not shortened below this width each.
const MIN_JOINED_NAME_COLUMNS: usize = 5;
/// Minimum width of a page.
const MIN_PAGE_COLUMNS: usize = 20;

/// The whole page, with a final newline.
pub fn text(page: &Page, surface: Surface) -> String {
    let page = cleaned(page);
    let surface = Surface { columns: surface.columns.max(MIN_PAGE_COLUMNS), ..surface };
    let mut lines = Vec::new();
    if !page.title.is_empty() {
        lines.push(surface.paint(Paint::Faint, &shorten(&page.title, surface.columns)));
    }
    if !page.headline.is_empty() {
        separate(&mut lines);
        lines.extend(strong(&wrap(&page.headline, surface.columns), surface));
    }
    for section in &page.sections {
        push_section(&mut lines, section, surface);
    }
    if !page.caveats.is_empty() {
        separate(&mut lines);
        lines.push(surface.paint(Paint::Strong, "caveats"));
        lines.extend(page.caveats.iter().flat_map(|caveat| hanging("- ", caveat, surface.columns)));
    }
    if !page.environment.is_empty() {
        separate(&mut lines);
        let facts: Vec<String> =
            page.environment.iter().map(|Fact { name, value }| format!("{name} {value}")).collect();
        lines.extend(faint(&hanging("measured on: ", &facts.join("; "), surface.columns), surface));
    }
    lines.iter().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// Adds an empty line, if there is anything before it.
fn separate(lines: &mut Vec<String>) {
    if lines.last().is_some_and(|line| !line.is_empty()) {
        lines.push(String::new());
    }
}

/// Adds the lines of a section.
fn push_section(lines: &mut Vec<String>, section: &Section, surface: Surface) {
    separate(lines);
    if !section.heading.is_empty() {
        lines.extend(strong(&wrap(&section.heading, surface.columns), surface));
    }
    for paragraph in &section.paragraphs {
        lines.extend(wrap(paragraph, surface.columns));
    }
    push_claims(lines, &section.claims, surface);
    for (index, table) in section.tables.iter().enumerate() {
        if index > 0
            || !section.claims.is_empty()
            || !section.paragraphs.is_empty()
            || !table.caption.is_empty()
        {
            separate(lines);
        }
        if !table.caption.is_empty() {
            lines.extend(wrap(&table.caption, surface.columns));
        }
        lines.extend(lay_out(table, surface));
    }
    for Snippet { purpose, text } in &section.snippets {
        separate(lines);
        if !purpose.is_empty() {
            lines.extend(wrap(purpose, surface.columns));
        }
        // Verbatim, whatever its width: it is meant for copying.
        lines.extend(text.lines().map(|line| format!("    {line}")));
    }
}

/// Wider published figures go below the table of claims.
const MAX_FIGURE_COLUMNS: usize = 20;

/// Claims as a table of verdicts that fits a terminal, and below it the text of each.
fn push_claims(lines: &mut Vec<String>, claims: &[Claim], surface: Surface) {
    if claims.is_empty() {
        return;
    }
    // Left-aligned names in the first column, the others are figures.
    let column = |title: &str| Column::new(title, title != "claim");
    let columns = ["claim", "", "published", "measured"].map(column).to_vec();
    let is_long = |claim: &Claim| width(&claim.published) > MAX_FIGURE_COLUMNS;
    let row = |claim: &Claim| {
        let published = if is_long(claim) { "below".to_owned() } else { claim.published.clone() };
        vec![
            Cell::plain(&claim.id),
            claim.verdict.clone(),
            Cell::plain(published),
            Cell::plain(&claim.measured),
        ]
    };
    let rows = claims.iter().map(row).collect();
    lines.extend(lay_out(&Table { caption: String::new(), columns, rows }, surface));
    let has_details = |claim: &&Claim| !claim.statement.is_empty() || is_long(claim);
    for (index, claim) in claims.iter().filter(has_details).enumerate() {
        if index == 0 {
            separate(lines);
        }
        let published = is_long(claim).then(|| format!("published: {}", claim.published));
        let details: Vec<&str> = [&claim.reason, &claim.note]
            .into_iter()
            .chain(&published)
            .chain(&claim.figures)
            .filter(|part| !part.is_empty())
            .map(|part| part.trim_end_matches('.'))
            .collect();
        let text = match (claim.statement.is_empty(), details.is_empty()) {
            (false, true) => claim.statement.clone(),
            (false, false) => format!("{} ({})", claim.statement, details.join("; ")),
            (true, _) => details.join("; "),
        };
        lines.extend(wrap(&format!("{}: {text}", claim.id), surface.columns));
    }
}

/// A table as lines that are not wider than the surface.
fn lay_out(table: &Table, surface: Surface) -> Vec<String> {
    let mut lines = Vec::new();
    for (index, block) in blocks(table, surface.columns).iter().enumerate() {
        if index > 0 {
            lines.push(String::new());
        }
        let heads: Vec<Vec<String>> =
            block.iter().map(|sized| wrap(&sized.column.title, sized.width)).collect();
        let head_lines = heads.iter().map(Vec::len).max().unwrap_or(0);
        for head_line in 0..head_lines {
            // Headings of several lines are bottom-aligned above the figures.
            let cell = |head: &Vec<String>| {
                (head_line + head.len()).checked_sub(head_lines).and_then(|line| head.get(line).cloned())
            };
            let cells =
                block.iter().zip(&heads).map(|(sized, head)| padded(&cell(head).unwrap_or_default(), sized));
            lines.push(surface.paint(Paint::Faint, joined(cells).trim_end()));
        }
        for row in &table.rows {
            if row.is_empty() {
                let rules = block.iter().map(|sized| {
                    if sized.column.has_figures { "─".repeat(sized.width) } else { " ".repeat(sized.width) }
                });
                lines.push(surface.paint(Paint::Faint, joined(rules).trim_end()));
                continue;
            }
            lines.push(joined(block.iter().map(|sized| toned(row.get(sized.index), sized, surface))));
        }
    }
    lines
}

/// The cells of a line, with the gaps between them.
fn joined(cells: impl Iterator<Item = String>) -> String {
    cells.collect::<Vec<_>>().join(&" ".repeat(GAP))
}

/// A column of a table with the width that it is shown in.
#[derive(Clone, Copy)]
struct SizedColumn<'a> {
    /// Its index in the table.
    index: usize,
    column: &'a Column,
    width: usize,
}

/// A text as wide as its column.
fn padded(text: &str, sized: &SizedColumn<'_>) -> String {
    if sized.column.has_figures {
        pad_left(text, sized.width)
    } else {
        pad_right(&shorten_names(text, sized.width), sized.width)
    }
}

/// Shortens names joined by `+` individually if necessary: shortened in the middle of the whole,
/// two pairs could be identical.
fn shorten_names(text: &str, columns: usize) -> String {
    let names: Vec<&str> = text.split('+').collect();
    let name_columns = (columns + 1).checked_div(names.len()).unwrap_or(0).saturating_sub(1);
    if names.len() < 2 || width(text) <= columns || name_columns < MIN_JOINED_NAME_COLUMNS {
        return text.to_owned();
    }
    names.iter().map(|name| shorten(name, name_columns)).collect::<Vec<_>>().join("+")
}

/// A cell in its colour; its padding is not coloured.
fn toned(cell: Option<&Cell>, sized: &SizedColumn<'_>, surface: Surface) -> String {
    let Some(cell) = cell else { return " ".repeat(sized.width) };
    let padded_text = padded(&cell.text, sized);
    let paint = match cell.tone {
        Tone::Plain => return padded_text,
        Tone::Good => paint::GREEN,
        Tone::Bad => paint::VERMILLION,
        Tone::Faint => Paint::Faint,
    };
    let text = padded_text.trim();
    match padded_text.split_once(text) {
        Some((before, after)) if !text.is_empty() => format!("{before}{}{after}", surface.paint(paint, text)),
        _ => padded_text,
    }
}

/// The columns with their widths, in as many blocks as necessary; each block starts with the key
/// columns.
fn blocks(table: &Table, page_columns: usize) -> Vec<Vec<SizedColumn<'_>>> {
    let mut other_columns = sized_columns(table, page_columns);
    let name_count = table.columns.iter().take_while(|column| !column.has_figures).count();
    let mut key: Vec<SizedColumn<'_>> =
        other_columns.drain(..name_count.max(1).min(other_columns.len())).collect();
    // A wider key leaves few columns for figures: keep only its last columns.
    let max_key_width = page_columns * 2 / 3;
    let last_index = key.len().saturating_sub(1);
    let is_narrow =
        |&start: &usize| key.get(start..).is_some_and(|columns| total_width(columns) <= max_key_width);
    let key_start = (0..last_index).find(is_narrow).unwrap_or(last_index);
    other_columns.splice(0..0, key.drain(..key_start));
    for sized in &mut key {
        sized.width = sized.width.min(max_key_width);
    }
    // Limits every column to the page, also figures of absurd length.
    let max_width = page_columns.saturating_sub(total_width(&key) + GAP);
    let mut blocks = Vec::new();
    let mut block = key.clone();
    for column in other_columns {
        let sized = SizedColumn { width: column.width.min(max_width), ..column };
        block.push(sized);
        if total_width(&block) > page_columns {
            block.pop();
            blocks.push(std::mem::replace(&mut block, key.iter().copied().chain([sized]).collect()));
        }
    }
    blocks.push(block);
    blocks
}

/// All columns with widths that fit into `page_columns` if possible: headings are broken at spaces
/// if necessary, then names are shortened.
fn sized_columns(table: &Table, page_columns: usize) -> Vec<SizedColumn<'_>> {
    let sized = |breaks_heading: bool| -> Vec<SizedColumn<'_>> {
        let columns = table.columns.iter().enumerate();
        columns.map(|(index, column)| sized_column(table, index, column, breaks_heading)).collect()
    };
    let mut columns = sized(false);
    if total_width(&columns) > page_columns {
        columns = sized(true);
    }
    // Shrinks the widest text column, step by step.
    for _ in 0..total_width(&columns).saturating_sub(page_columns) {
        let names =
            columns.iter_mut().filter(|name| !name.column.has_figures && name.width > MIN_NAME_COLUMNS);
        let Some(widest) = names.max_by_key(|name| name.width) else { break };
        widest.width -= 1;
    }
    columns
}

/// A column as wide as its widest cell and its heading, or a word of that if it is broken.
fn sized_column<'a>(
    table: &Table,
    index: usize,
    column: &'a Column,
    breaks_heading: bool,
) -> SizedColumn<'a> {
    let cells = table.rows.iter().filter_map(|row| row.get(index));
    let cell_width = cells.map(|cell| width(&cell.text)).max().unwrap_or(0);
    let longest_word = || column.title.split(' ').map(width).max().unwrap_or(0);
    let head_width = if breaks_heading { longest_word() } else { width(&column.title) };
    SizedColumn { index, column, width: head_width.max(cell_width) }
}

/// Width of a row of these columns.
fn total_width(columns: &[SizedColumn<'_>]) -> usize {
    columns.iter().map(|sized| sized.width).sum::<usize>() + GAP * columns.len().saturating_sub(1)
}
