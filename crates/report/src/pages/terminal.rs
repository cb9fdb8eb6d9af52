//! A page on a terminal: text and tables of its width. Figures are never truncated: a table that is
//! too wide first gets shorter names, then headings of several lines, then its columns in blocks
//! below each other.

use super::cleaned::cleaned;
use super::page::{Cell, Claim, Column, Page, Section, Table, Tone};
use crate::paint::{Paint, Surface};
use crate::text::{hanging, pad_left, pad_right, shorten, width, wrap};

/// Spaces between columns.
const GAP: usize = 2;
/// Names are not shortened below this.
const SHORTEST_NAME: usize = 20;

/// The whole page, with a final newline.
pub fn lines(page: &Page, surface: Surface) -> String {
    let page = cleaned(page);
    let surface = Surface { columns: surface.columns.max(20), ..surface };
    let mut lines = Vec::new();
    if !page.title.is_empty() {
        lines.push(surface.paint(Paint::Faint, &shorten(&page.title, surface.columns)));
    }
    if !page.headline.is_empty() {
        apart(&mut lines);
        painted(&mut lines, Paint::Strong, wrap(&page.headline, surface.columns), surface);
    }
    for section in &page.sections {
        part(&mut lines, section, surface);
    }
    if !page.caveats.is_empty() {
        apart(&mut lines);
        painted(&mut lines, Paint::Strong, vec!["caveats".to_owned()], surface);
        lines.extend(page.caveats.iter().flat_map(|caveat| hanging("- ", caveat, surface.columns)));
    }
    if !page.environment.is_empty() {
        apart(&mut lines);
        let facts: Vec<String> =
            page.environment.iter().map(|(name, value)| format!("{name} {value}")).collect();
        painted(
            &mut lines,
            Paint::Faint,
            hanging("measured on: ", &facts.join("; "), surface.columns),
            surface,
        );
    }
    lines.iter().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// Adds an empty line, if there is anything before it.
fn apart(lines: &mut Vec<String>) {
    if lines.last().is_some_and(|line| !line.is_empty()) {
        lines.push(String::new());
    }
}

fn painted(lines: &mut Vec<String>, paint: Paint, text: Vec<String>, surface: Surface) {
    lines.extend(text.iter().map(|line| surface.paint(paint, line)));
}

fn part(lines: &mut Vec<String>, section: &Section, surface: Surface) {
    apart(lines);
    if !section.heading.is_empty() {
        painted(lines, Paint::Strong, wrap(&section.heading, surface.columns), surface);
    }
    for paragraph in &section.paragraphs {
        lines.extend(wrap(paragraph, surface.columns));
    }
    claims(lines, &section.claims, surface);
    for (index, table) in section.tables.iter().enumerate() {
        if index > 0
            || !section.claims.is_empty()
            || !section.paragraphs.is_empty()
            || !table.caption.is_empty()
        {
            apart(lines);
        }
        if !table.caption.is_empty() {
            lines.extend(wrap(&table.caption, surface.columns));
        }
        lines.extend(lay_out(table, surface));
    }
    for (what, text) in &section.snippets {
        apart(lines);
        if !what.is_empty() {
            lines.extend(wrap(what, surface.columns));
        }
        // Verbatim, whatever its width: it is meant for copying.
        lines.extend(text.lines().map(|line| format!("    {line}")));
    }
}

/// Wider published figures go below the table of claims.
const MAX_FIGURE_COLUMNS: usize = 20;

/// Claims as a table of verdicts that fits a terminal, and below it the text of each.
fn claims(lines: &mut Vec<String>, claims: &[Claim], surface: Surface) {
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
    let has_details = |claim: &&Claim| !claim.says.is_empty() || is_long(claim);
    for (index, claim) in claims.iter().filter(has_details).enumerate() {
        if index == 0 {
            apart(lines);
        }
        let published = is_long(claim).then(|| format!("published: {}", claim.published));
        let rest: Vec<&str> = [&claim.reason, &claim.note]
            .into_iter()
            .chain(&published)
            .chain(&claim.figures)
            .filter(|part| !part.is_empty())
            .map(|part| part.trim_end_matches('.'))
            .collect();
        let said = match (claim.says.is_empty(), rest.is_empty()) {
            (false, true) => claim.says.clone(),
            (false, false) => format!("{} ({})", claim.says, rest.join("; ")),
            (true, _) => rest.join("; "),
        };
        lines.extend(wrap(&format!("{}: {said}", claim.id), surface.columns));
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
            block.iter().map(|place| wrap(&place.column.title, place.room)).collect();
        let high = heads.iter().map(Vec::len).max().unwrap_or(0);
        for row in 0..high {
            // Headings of several lines are bottom-aligned above the figures.
            let cell = |head: &Vec<String>| {
                (row + head.len()).checked_sub(high).and_then(|line| head.get(line).cloned())
            };
            let cells =
                block.iter().zip(&heads).map(|(place, head)| padded(&cell(head).unwrap_or_default(), place));
            lines.push(surface.paint(Paint::Faint, joined(cells).trim_end()));
        }
        for row in &table.rows {
            if row.is_empty() {
                let rules = block.iter().map(|place| {
                    if place.column.figures { "─".repeat(place.room) } else { " ".repeat(place.room) }
                });
                lines.push(surface.paint(Paint::Faint, joined(rules).trim_end()));
                continue;
            }
            lines.push(joined(block.iter().map(|place| toned(row.get(place.index), place, surface))));
        }
    }
    lines
}

fn joined(cells: impl Iterator<Item = String>) -> String {
    cells.collect::<Vec<_>>().join(&" ".repeat(GAP))
}

/// A column with its width.
struct Place<'a> {
    index: usize,
    column: &'a Column,
    room: usize,
}

fn padded(text: &str, place: &Place<'_>) -> String {
    if place.column.figures {
        pad_left(text, place.room)
    } else {
        pad_right(&names(text, place.room), place.room)
    }
}

/// Shortens names joined by `+` individually if necessary: shortened in the middle of the whole,
/// two pairs could be identical.
fn names(text: &str, most: usize) -> String {
    const LEAST: usize = 5;
    let parts: Vec<&str> = text.split('+').collect();
    let each = (most + 1).checked_div(parts.len()).unwrap_or(0).saturating_sub(1);
    if parts.len() < 2 || width(text) <= most || each < LEAST {
        return text.to_owned();
    }
    parts.iter().map(|part| shorten(part, each)).collect::<Vec<_>>().join("+")
}

/// A cell in its colour; its padding is not coloured.
fn toned(cell: Option<&Cell>, place: &Place<'_>, surface: Surface) -> String {
    let Some(cell) = cell else { return " ".repeat(place.room) };
    let padded = padded(&cell.text, place);
    let paint = match cell.tone {
        Tone::Plain => return padded,
        Tone::Good => Paint::Colour(36),
        Tone::Bad => Paint::Colour(166),
        Tone::Faint => Paint::Faint,
    };
    let text = padded.trim();
    match padded.split_once(text) {
        Some((before, after)) if !text.is_empty() => format!("{before}{}{after}", surface.paint(paint, text)),
        _ => padded,
    }
}

/// The columns with their widths, in as many blocks as necessary; each block starts with the key
/// columns.
fn blocks(table: &Table, columns: usize) -> Vec<Vec<Place<'_>>> {
    let cells = |index: usize| {
        let texts = table.rows.iter().filter_map(move |row| row.get(index));
        texts.map(|cell| width(&cell.text)).max().unwrap_or(0)
    };
    let place = |(index, column): (usize, &_), narrow: bool| {
        let column: &Column = column;
        let longest_word = || column.title.split(' ').map(width).max().unwrap_or(0);
        let head = if narrow { longest_word() } else { width(&column.title) };
        (index, head.max(cells(index)))
    };
    let measured = |narrow: bool| -> Vec<(usize, usize)> {
        table.columns.iter().enumerate().map(|pair| place(pair, narrow)).collect()
    };
    let all = |rooms: &[(usize, usize)]| {
        rooms.iter().map(|(_, room)| room).sum::<usize>() + GAP * rooms.len().saturating_sub(1)
    };
    let mut rooms = measured(false);
    if all(&rooms) > columns {
        rooms = measured(true);
    }
    // Shrink the widest text column, step by step.
    let mut excess = all(&rooms).saturating_sub(columns);
    while excess > 0 {
        let names = rooms.iter_mut().filter(|(index, room)| {
            *room > SHORTEST_NAME && table.columns.get(*index).is_some_and(|column| !column.figures)
        });
        let Some((_, room)) = names.max_by_key(|(_, room)| *room) else { break };
        *room -= 1;
        excess -= 1;
    }
    let mut blocks: Vec<Vec<(usize, usize)>> = Vec::new();
    let names = table.columns.iter().take_while(|column| !column.figures).count().max(1).min(rooms.len());
    let mut key: Vec<(usize, usize)> = rooms.drain(..names).collect();
    // A key this wide leaves room for few figures: keep only its last columns.
    let wide = (0..key.len().saturating_sub(1))
        .find(|&first| key.get(first..).is_some_and(|rest| all(rest) <= columns * 2 / 3));
    rooms.splice(0..0, key.drain(..wide.unwrap_or(key.len().saturating_sub(1))));
    for (_, room) in &mut key {
        *room = (*room).min(columns * 2 / 3);
    }
    let rest = columns.saturating_sub(all(&key) + GAP);
    let mut block = key.clone();
    for (index, room) in rooms {
        // Limit every column to the surface, also figures of absurd length.
        block.push((index, room.min(rest)));
        if all(&block) > columns {
            block.pop();
            blocks.push(std::mem::replace(
                &mut block,
                key.iter().copied().chain([(index, room.min(rest))]).collect(),
            ));
        }
    }
    blocks.push(block);
    let placed = |(index, room)| table.columns.get(index).map(|column| Place { index, column, room });
    blocks.into_iter().map(|block| block.into_iter().filter_map(placed).collect()).collect()
}
