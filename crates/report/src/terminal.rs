//! The terminal views of one process: the answer first, then bars and rows, then what releases
//! memory. Lays out a `model::View` and decides nothing about its content.

use super::bars::bars;
use super::brief::{Brief, Release};
use super::model::{AllocatorView, RowView, View, state_name};
use super::paint::{self, Paint, Surface};
use super::table::{Column, figures, lay_out, words};
use super::text::{hanging, pad_left, pad_right, shorten, width, wrap, wrap_at_most};
use strandline_claims::section::Section;

/// Maximum number of lines of an answer. With those of the tables, a screen has 40 at most.
const MAX_ANSWER_LINES: usize = 6;
/// Maximum number of lines of one remedy.
const MAX_REMEDY_LINES: usize = 2;

/// The default view, with a final newline: at most 40 lines, unless more rows were requested.
pub fn explanation(view: &View, surface: Surface) -> String {
    let brief = &view.brief;
    let mut lines = heading(brief, MAX_ANSWER_LINES, surface);
    lines.extend(bars(&view.states, surface));
    lines.push(String::new());
    lines.extend(ledger(view, 1, surface));
    lines.extend(types(brief, surface));
    lines.extend(releases(&brief.releases, brief.more_releases, surface));
    lines.push(String::new());
    lines.extend(next(&brief.next, surface));
    lines.extend(faint(&[shorten(&brief.cost, surface.columns)], surface));
    joined(&lines)
}

/// The view with all details, with a final newline.
pub fn details(view: &View, surface: Surface) -> String {
    let mut lines = heading(&view.brief, usize::MAX, surface);
    lines.extend(wrap(&view.title, surface.columns));
    lines.extend(wrap(&view.resident, surface.columns));
    for segments in [&view.states, &view.strata] {
        lines.push(String::new());
        lines.extend(bars(segments, surface));
    }
    lines.push(String::new());
    lines.extend(ledger(view, usize::MAX, surface));
    lines.extend(allocators(&view.allocators, surface));
    lines.extend(readings(&view.readings, surface));
    lines.extend(listed("runtimes", &view.runtimes, surface));
    lines.extend(remedies(view, surface));
    lines.extend(listed("caveats", &view.caveats, surface));
    lines.push(String::new());
    lines.extend(next(&view.brief.next[..1], surface));
    lines.extend(faint(&hanging("cost: ", &view.cost, surface.columns), surface));
    joined(&lines)
}

/// `left` and `right` at the two ends of a line, or on two lines if one is too short.
pub fn two_ends(left: &str, right: &str, surface: Surface) -> Vec<String> {
    match surface.columns.checked_sub(width(left) + width(right)) {
        Some(gap) if gap >= 2 => vec![format!("{left}{}{right}", " ".repeat(gap))],
        _ => [left, right].map(|end| shorten(end, surface.columns)).to_vec(),
    }
}

/// Name, RSS, and the answer in at most `most` lines.
fn heading(brief: &Brief, most: usize, surface: Surface) -> Vec<String> {
    let mut lines = two_ends(&brief.name, &brief.resident, surface);
    lines.push(String::new());
    if !brief.answer.is_empty() {
        lines.extend(strong(&wrap_at_most(&brief.answer, surface.columns, most), surface));
        lines.push(String::new());
    }
    lines
}

/// The largest types in one line.
fn types(brief: &Brief, surface: Surface) -> Vec<String> {
    let mut line = String::new();
    for of in &brief.types {
        let more = if line.is_empty() { format!("types  {of}") } else { format!("{line} · {of}") };
        if width(&more) > surface.columns {
            break;
        }
        line = more;
    }
    if line.is_empty() { Vec::new() } else { vec![String::new(), line] }
}

/// What releases memory: name, prediction, command.
pub fn releases(releases: &[Release], more: usize, surface: Surface) -> Vec<String> {
    if releases.is_empty() {
        return Vec::new();
    }
    let name_room = releases.iter().map(|one| width(&one.id)).max().unwrap_or(0).clamp(7, 32);
    let before = |name: &str, predicted: &str| {
        format!("  {}  {}  ", pad_right(name, name_room), pad_left(predicted, 9))
    };
    let head = format!("{}how", before("", "predicted").replacen("         ", "release  ", 1));
    let mut lines = vec![String::new()];
    lines.extend(faint(&[head], surface));
    for one in releases {
        let first = before(&one.id, &one.predicted);
        let how = wrap_at_most(&one.how, surface.columns.saturating_sub(width(&first)), MAX_REMEDY_LINES);
        let indent = " ".repeat(width(&first));
        lines.extend(how.iter().enumerate().map(|(index, line)| {
            let start = if index == 0 { &first } else { &indent };
            format!("{start}{}", surface.paint(Paint::Strong, line)).trim_end().to_owned()
        }));
    }
    if more > 0 {
        lines.push(format!("  {} more       -v lists them", more));
    }
    lines
}

/// The commands to type next, with what each shows.
pub fn next(commands: &[(String, String)], surface: Surface) -> Vec<String> {
    let room = commands.iter().map(|(command, _)| width(command)).max().unwrap_or(0);
    let line = |(index, (command, shows)): (usize, &(String, String))| {
        let label = if index == 0 { "next   " } else { "       " };
        let line = format!("{label}{}  {shows}", surface.paint(Paint::Strong, &pad_right(command, room)));
        line.trim_end().to_owned()
    };
    commands.iter().enumerate().map(line).collect()
}

/// The ledger rows. What a row is takes at most `most` lines.
pub fn ledger(view: &View, most: usize, surface: Surface) -> Vec<String> {
    let all = || view.rows.iter().chain(&view.folded);
    let widest = |of: fn(&RowView) -> usize| all().map(of).max().unwrap_or(0);
    let state_room = widest(|row| row.state.map_or(0, |state| width(state_name(state)))).max(5);
    let id_room = widest(|row| width(&row.id)).clamp(3, 24);
    // Size, share, state and id, separated by two spaces; what it is takes the rest.
    let before = 10 + 2 + 5 + 2 + state_room + 2 + id_room + 2;
    let room = surface.columns.saturating_sub(before);
    let fixed = |size: &str, share: &str| format!("{}  {}  ", pad_left(size, 10), pad_left(share, 5));
    let state_head = pad_right("state", state_room);
    let head = format!("{}{state_head}  {}  what it is", fixed("bytes", "RSS"), pad_right("row", id_room));
    let mut lines = faint(&[head], surface);
    for row in all() {
        let state = pad_right(row.state.map_or("", state_name), state_room);
        let state = row.state.map_or(state.clone(), |s| surface.paint(paint::state(s), &state));
        // A path has no spaces to wrap it at.
        let is_name = most == 1 && !row.holder.contains(' ');
        let holder =
            if is_name { vec![shorten(&row.holder, room)] } else { wrap_at_most(&row.holder, room, most) };
        let first = holder.first().map_or("", String::as_str);
        let rest = format!("  {}  {first}", pad_right(&row.id, id_room));
        lines.push(fixed(&row.bytes, &row.share) + &state + rest.trim_end());
        lines.extend(holder.iter().skip(1).map(|more| " ".repeat(before) + more));
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
            let table = lay_out(&SIZE_HEAD, &allocator.sizes, 0, surface.columns);
            lines.extend(table_lines(table, surface));
        }
        if allocator.arenas.is_empty() {
            continue;
        }
        let columns = allocator.arenas.iter().map(Vec::len).max().unwrap_or(0).min(ARENA_HEAD.len());
        let table = lay_out(&ARENA_HEAD[..columns], &allocator.arenas, 0, surface.columns);
        lines.extend(table_lines(table, surface));
    }
    lines
}

/// The lines of a table, its heading dim if there is colour.
pub fn table_lines(mut table: Vec<String>, surface: Surface) -> Vec<String> {
    if let Some(heading) = table.first_mut() {
        *heading = surface.paint(Paint::Faint, heading);
    }
    table
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
            lines.extend(table_lines(table, surface));
        }
    }
    lines
}

/// Ranked remedies with the text to paste; those with little effect in one line at the end.
fn remedies(view: &View, surface: Surface) -> Vec<String> {
    let mut lines = Vec::new();
    if !view.remedies.is_empty() {
        lines = vec![String::new(), "what releases memory, best first".to_owned()];
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

/// `lines`, bold if there is colour.
pub fn strong(lines: &[String], surface: Surface) -> Vec<String> {
    lines.iter().map(|line| surface.paint(Paint::Strong, line)).collect()
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
    let mut lines = strong(&wrap(&view.headline, surface.columns), surface);
    lines.extend(bars(&view.states, surface));
    let rows: Vec<RowView> = view.rows.iter().take(most).cloned().collect();
    lines.extend(ledger(&View { rows, folded: None, ..view.clone() }, 1, surface));
    lines
}
