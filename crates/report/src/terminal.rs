//! The terminal view of one process: the verdict first, then the bars, then the figures. Lays out a
//! `model::View` and decides nothing about its content.

use super::bars::{Segment, bar};
use super::model::{AllocatorView, RowView, View, state_name};
use super::paint::{self, Paint, Surface};
use super::table::{Column, figures, lay_out, words};
use super::text::{hanging, pad_left, pad_right, shorten, width, wrap};
use super::units::{bytes, percent};
use strandline_claims::section::Section;

/// The whole view, with a final newline.
pub fn explanation(view: &View, surface: Surface) -> String {
    let mut lines = heading(view, surface);
    lines.push(String::new());
    lines.extend(picture(view, surface));
    lines.push(String::new());
    lines.extend(ledger(view, surface));
    lines.extend(allocators(&view.allocators, surface));
    lines.extend(readings(&view.readings, surface));
    lines.extend(listed("runtimes", &view.runtimes, surface));
    lines.extend(remedies(view, surface));
    lines.extend(listed("caveats", &view.caveats, surface));
    lines.push(String::new());
    lines.extend(faint(&hanging("cost: ", &view.cost, surface.columns), surface));
    joined(&lines)
}

/// Title, verdict and the kernel's figures.
fn heading(view: &View, surface: Surface) -> Vec<String> {
    let mut lines = vec![surface.paint(Paint::Faint, &shorten(&view.title, surface.columns))];
    if !view.headline.is_empty() {
        lines.push(String::new());
        let headline = wrap(&view.headline, surface.columns);
        lines.extend(headline.iter().map(|line| surface.paint(Paint::Strong, line)));
    }
    lines.push(String::new());
    lines.extend(wrap(&view.resident, surface.columns));
    lines
}

/// The two bars with their legends.
pub fn picture(view: &View, surface: Surface) -> Vec<String> {
    let mut lines = stacked("state", &view.states, surface);
    lines.extend(stacked("stratum", &view.strata, surface));
    lines
}

/// One bar and its legend, to the right of the bar's name.
fn stacked(name: &str, segments: &[Segment], surface: Surface) -> Vec<String> {
    const NAME: usize = 9;
    let room = surface.columns - NAME;
    let whole = segments.iter().fold(0u64, |sum, segment| sum.saturating_add(segment.bytes));
    let drawn = pad_right(name, NAME) + &bar(segments, room, surface);
    let mut lines = vec![drawn.trim_end().to_owned()];
    let mut line = String::new();
    let mut used = 0;
    for segment in segments.iter().filter(|segment| segment.bytes > 0) {
        let text = format!(" {} {} {}", segment.name, bytes(segment.bytes), percent(segment.bytes, whole));
        let wide = 1 + width(&text);
        if used > 0 && used + 3 + wide > room {
            lines.push(" ".repeat(NAME) + &line);
            line.clear();
            used = 0;
        }
        if used > 0 {
            line += "   ";
            used += 3;
        }
        line += &surface.paint(segment.paint, &segment.glyph.to_string());
        line += &text;
        used += wide;
    }
    if used == 0 {
        line += "nothing is resident";
    }
    lines.push(" ".repeat(NAME) + &line);
    lines
}

/// The ledger rows. A holder that is too long for its column continues on one more line.
pub fn ledger(view: &View, surface: Surface) -> Vec<String> {
    const STATE: usize = 12;
    let all = || view.rows.iter().chain(&view.folded);
    let id_room = all().map(|row| width(&row.id)).max().unwrap_or(0).clamp(3, 24);
    // Size, share, state and id, separated by two spaces; the holder takes the rest.
    let before_holder = 9 + 2 + 7 + 2 + STATE + 2 + id_room + 2;
    let holder_room = surface.columns.saturating_sub(before_holder);
    let fixed = |size: &str, share: &str| format!("{}  {}  ", pad_left(size, 9), pad_left(share, 7));
    let head =
        fixed("bytes", "RSS") + &pad_right("state", STATE) + "  " + &pad_right("row", id_room) + "  held by";
    let mut lines = faint(&[head], surface);
    for row in all() {
        let state = pad_right(row.state.map_or("", state_name), STATE);
        let state = row.state.map_or(state.clone(), |s| surface.paint(paint::state(s), &state));
        let mut holder = wrap(&row.holder, holder_room);
        if holder.len() > 2 {
            let rest = holder.split_off(1).join(" ");
            holder.push(shorten(&rest, holder_room));
        }
        let first = holder.first().map_or("", String::as_str);
        let rest = format!("  {}  {first}", pad_right(&row.id, id_room));
        lines.push(fixed(&row.bytes, &row.share) + &state + rest.trim_end());
        lines.extend(holder.iter().skip(1).map(|more| " ".repeat(before_holder) + more));
    }
    lines
}

const ARENA_HEAD: [Column; 7] = [
    words("arena"),
    figures("mapped"),
    figures("used"),
    figures("free"),
    figures("tcache"),
    figures("top"),
    figures("trim"),
];

const SIZE_HEAD: [Column; 6] = [
    figures("size"),
    figures("in use"),
    figures("cached"),
    figures("free"),
    figures("free bytes"),
    figures("used"),
];

fn allocators(allocators: &[AllocatorView], surface: Surface) -> Vec<String> {
    let mut lines = Vec::new();
    for allocator in allocators {
        lines.push(String::new());
        lines.extend(hanging("", &format!("allocator {}", allocator.title), surface.columns));
        if !allocator.sizes.is_empty() {
            add_table(&mut lines, lay_out(&SIZE_HEAD, &allocator.sizes, 0, surface.columns), surface);
        }
        if allocator.arenas.is_empty() {
            continue;
        }
        let columns = allocator.arenas.iter().map(Vec::len).max().unwrap_or(0).min(ARENA_HEAD.len());
        add_table(
            &mut lines,
            lay_out(&ARENA_HEAD[..columns], &allocator.arenas, 0, surface.columns),
            surface,
        );
    }
    lines
}

fn add_table(lines: &mut Vec<String>, table: Vec<String>, surface: Surface) {
    lines.extend(faint(&table[..table.len().min(1)], surface));
    lines.extend(table.into_iter().skip(1));
}

/// Runtimes that were read, as sentences and tables.
fn readings(readings: &[Section], surface: Surface) -> Vec<String> {
    let mut lines = Vec::new();
    for reading in readings {
        lines.push(String::new());
        lines.extend(hanging("", &format!("runtime {}", reading.title), surface.columns));
        lines.extend(reading.lines.iter().flat_map(|line| hanging("  - ", line, surface.columns)));
        for table in &reading.tables {
            let table = lay_out(table.head, &table.rows, table.flexible, surface.columns);
            lines.extend(faint(&table[..1], surface));
            lines.extend_from_slice(&table[1..]);
        }
    }
    lines
}

/// Ranked remedies with the text to paste; those with little effect in one line at the end.
fn remedies(view: &View, surface: Surface) -> Vec<String> {
    let mut lines = Vec::new();
    if !view.remedies.is_empty() {
        lines = vec![String::new(), "what gives memory back, best first".to_owned()];
    }
    for (index, remedy) in view.remedies.iter().enumerate() {
        let first = format!("  {}. ", index + 1);
        lines.extend(hanging(&first, &format!("{}: {}", remedy.id, remedy.gives), surface.columns));
        if !remedy.how.is_empty() {
            let how = hanging("       ", &remedy.how, surface.columns);
            lines.extend(how.iter().map(|line| surface.paint(Paint::Strong, line)));
        }
        if !remedy.cost.is_empty() {
            lines.extend(faint(&hanging("     cost: ", &remedy.cost, surface.columns), surface));
        }
    }
    if let Some(small) = &view.minor_remedies {
        if view.remedies.is_empty() {
            lines.push(String::new());
        }
        lines.extend(faint(&wrap(small, surface.columns), surface));
    }
    lines
}

/// A list under its name; nothing if it is empty.
pub fn listed(name: &str, items: &[String], surface: Surface) -> Vec<String> {
    if items.is_empty() {
        return Vec::new();
    }
    let mut lines = vec![String::new(), name.to_owned()];
    lines.extend(items.iter().flat_map(|item| hanging("  - ", item, surface.columns)));
    lines
}

/// `lines`, dim if there is colour.
pub fn faint(lines: &[String], surface: Surface) -> Vec<String> {
    lines.iter().map(|line| surface.paint(Paint::Faint, line)).collect()
}

/// Joins lines into text with a final newline.
pub fn joined(lines: &[String]) -> String {
    lines.join("\n") + "\n"
}

/// The parts that change between refreshes: verdict, bars and the first `most` rows.
pub fn summary(view: &View, most: usize, surface: Surface) -> Vec<String> {
    let mut lines: Vec<String> =
        wrap(&view.headline, surface.columns).iter().map(|line| surface.paint(Paint::Strong, line)).collect();
    lines.extend(stacked("state", &view.states, surface));
    let rows: Vec<RowView> = view.rows.iter().take(most).cloned().collect();
    lines.extend(ledger(&View { rows, folded: None, ..view.clone() }, surface));
    lines
}
