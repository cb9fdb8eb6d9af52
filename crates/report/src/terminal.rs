//! The terminal views of one process: the answer first, then bars and rows, then what releases
//! memory. Lays out a `model::View` and decides nothing about its content.

use super::bars::bars;
use super::brief::{Brief, NextCommand, Release};
use super::model::{RowView, View, state_name};
use super::paint::{self, Paint, Surface};
use super::table::lay_out;
use super::text::{hanging, listed_by_verbose, pad_left, pad_right, shorten, width, wrap, wrap_at_most};
use strandline_claims::section::Section;

/// Maximum number of lines of the default view, unless more rows were requested.
const MAX_LINES: usize = 40;
/// Maximum number of lines of an answer.
const MAX_ANSWER_LINES: usize = 6;
/// The lines below the remedies: an empty one, two commands, the cost.
const LINES_BELOW_REMEDIES: usize = 4;
/// The lines that the remedies have at least: three remedies of two lines, and what is around them.
const MIN_REMEDIES_LINES: usize = 6 + LINES_AROUND_REMEDIES;
/// The lines around the remedies: an empty one, the heading, the number of the others.
const LINES_AROUND_REMEDIES: usize = 3;
/// Spaces between two columns of a table.
const GAP: usize = 2;
/// Width of a size in the ledger, `96.0 MiB`, and of the indent before it.
const SIZE_COLUMNS: usize = 10;
/// Maximum width of a share in the ledger: `100 %`.
const SHARE_COLUMNS: usize = 5;
/// Maximum width of the id of a row.
const MAX_ROW_ID_COLUMNS: usize = 24;
/// Width of the indent of a command on lines of its own.
const COMMAND_INDENT: usize = 7;
/// Maximum width of the name of a remedy.
const MAX_REMEDY_ID_COLUMNS: usize = 32;

/// The default view, with a final newline: at most 40 lines, unless more rows were requested.
pub fn explanation(view: &View, surface: Surface) -> String {
    let brief = &view.brief;
    let mut lines = heading(brief, MAX_ANSWER_LINES, surface);
    lines.extend(bars(&view.states, surface));
    lines.push(String::new());
    lines.extend(ledger(view, 1, surface));
    lines.extend(types(brief, surface));
    let free_lines = MAX_LINES.saturating_sub(lines.len() + LINES_BELOW_REMEDIES);
    let max_lines = free_lines.max(MIN_REMEDIES_LINES);
    lines.extend(releases(&brief.releases, brief.hidden_releases, max_lines, surface));
    lines.push(String::new());
    lines.extend(next_commands(&brief.next, surface));
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
    lines.extend(sections("allocator", &view.allocators, surface));
    lines.extend(sections("runtime", &view.read_runtimes, surface));
    lines.extend(listed("runtimes", &view.unread_runtimes, surface));
    lines.extend(remedies(view, surface));
    lines.extend(listed("caveats", &view.caveats, surface));
    lines.push(String::new());
    lines.extend(next_commands(&view.brief.next[..1], surface));
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

/// Name, RSS, and the answer in at most `max_lines`.
fn heading(brief: &Brief, max_lines: usize, surface: Surface) -> Vec<String> {
    let mut lines = two_ends(&brief.name, &brief.resident, surface);
    lines.push(String::new());
    if !brief.answer.is_empty() {
        lines.extend(strong(&wrap_at_most(&brief.answer, surface.columns, max_lines), surface));
        lines.push(String::new());
    }
    lines
}

/// The largest types, as many as fit in one line.
fn types(brief: &Brief, surface: Surface) -> Vec<String> {
    let mut line = String::new();
    for text in &brief.types {
        let longer = if line.is_empty() { format!("types  {text}") } else { format!("{line} · {text}") };
        if width(&longer) > surface.columns {
            break;
        }
        line = longer;
    }
    if line.is_empty() { Vec::new() } else { vec![String::new(), line] }
}

/// What releases memory: name, prediction, command; and that `-v` lists `hidden_count` others, and
/// those that do not fit into `max_lines`. A command is never cut, because a user pastes it; the
/// first one is always shown.
pub fn releases(
    releases: &[Release],
    hidden_count: usize,
    max_lines: usize,
    surface: Surface,
) -> Vec<String> {
    if releases.is_empty() {
        return Vec::new();
    }
    let (id_title, predicted_title) = ("release", "predicted");
    let longest_id = releases.iter().map(|release| width(&release.id)).max().unwrap_or(0);
    let id_columns = longest_id.clamp(width(id_title), MAX_REMEDY_ID_COLUMNS);
    let predicted_columns = width(predicted_title);
    // The title of the names is not indented.
    let head = format!("{}  {predicted_title}  how", pad_right(id_title, id_columns + GAP));
    let mut lines = vec![String::new()];
    lines.extend(faint(&[head], surface));
    let mut free_lines = max_lines.saturating_sub(LINES_AROUND_REMEDIES);
    let mut hidden_count = hidden_count;
    for (number, release) in releases.iter().enumerate() {
        let id = pad_right(&release.id, id_columns);
        let label = format!("  {id}  {}  ", pad_left(&release.predicted, predicted_columns));
        let release_lines = release_lines(&label, &release.how, surface);
        if number > 0 && release_lines.len() > free_lines {
            hidden_count += 1;
            continue;
        }
        free_lines = free_lines.saturating_sub(release_lines.len());
        lines.extend(release_lines);
    }
    if hidden_count > 0 {
        let remark = listed_by_verbose(hidden_count as u64);
        lines.push(format!("  {hidden_count} more       {remark}"));
    }
    lines
}

/// The lines of one release: its label, and its command, which a user pastes. If a word is too wide
/// for the space beside the label, the command is on lines of its own, and the word is not broken.
fn release_lines(label: &str, how: &str, surface: Surface) -> Vec<String> {
    let widest_word = how.split(' ').map(width).max().unwrap_or(0);
    let is_beside = width(label) + widest_word <= surface.columns;
    let indent = if is_beside { width(label) } else { COMMAND_INDENT };
    let mut lines = if is_beside { Vec::new() } else { vec![label.trim_end().to_owned()] };
    let spaces = " ".repeat(indent);
    let how = wrap(how, surface.columns.saturating_sub(indent));
    lines.extend(how.iter().enumerate().map(|(index, line)| {
        let start = if index == 0 && is_beside { label } else { &spaces };
        format!("{start}{}", surface.paint(Paint::Strong, line)).trim_end().to_owned()
    }));
    lines
}

/// The commands to type next, with the effect of each. A command is never cut; effects that would
/// make the lines too wide are left out.
pub fn next_commands(commands: &[NextCommand], surface: Surface) -> Vec<String> {
    let columns = commands.iter().map(|next| width(&next.command)).max().unwrap_or(0);
    let line = |(index, NextCommand { command, effect }): (usize, &NextCommand)| {
        let label = if index == 0 { "next   " } else { "       " };
        let has_room = width(label) + columns + GAP + width(effect) <= surface.columns;
        let effect = if has_room { effect } else { "" };
        let line = format!("{label}{}  {effect}", surface.paint(Paint::Strong, &pad_right(command, columns)));
        line.trim_end().to_owned()
    };
    commands.iter().enumerate().map(line).collect()
}

/// The ledger rows. The description of a row takes at most `max_lines`.
pub fn ledger(view: &View, max_lines: usize, surface: Surface) -> Vec<String> {
    let rows = || view.rows.iter().chain(&view.hidden_rows);
    let widest = |columns: fn(&RowView) -> usize| rows().map(columns).max().unwrap_or(0);
    let (state_title, id_title) = ("state", "row");
    let state_columns =
        widest(|row| row.state.map_or(0, |state| width(state_name(state)))).max(width(state_title));
    let id_columns = widest(|row| width(&row.id)).clamp(width(id_title), MAX_ROW_ID_COLUMNS);
    // The description takes the columns that remain.
    let indent = SIZE_COLUMNS + SHARE_COLUMNS + state_columns + id_columns + 4 * GAP;
    let description_columns = surface.columns.saturating_sub(indent);
    let numbers = |size: &str, share: &str| {
        format!("{}  {}  ", pad_left(size, SIZE_COLUMNS), pad_left(share, SHARE_COLUMNS))
    };
    let state_head = pad_right(state_title, state_columns);
    let id_head = pad_right(id_title, id_columns);
    let head = format!("{}{state_head}  {id_head}  what it is", numbers("bytes", "RSS"));
    let mut lines = faint(&[head], surface);
    for row in rows() {
        let padded = pad_right(row.state.map_or("", state_name), state_columns);
        let state = row.state.map_or(padded.clone(), |state| surface.paint(paint::state(state), &padded));
        // A path has no spaces to wrap it at.
        let is_name = max_lines == 1 && !row.holder.contains(' ');
        let holder = if is_name {
            vec![shorten(&row.holder, description_columns)]
        } else {
            wrap_at_most(&row.holder, description_columns, max_lines)
        };
        let holder_start = holder.first().map_or("", String::as_str);
        let description = format!("  {}  {holder_start}", pad_right(&row.id, id_columns));
        lines.push(numbers(&row.bytes, &row.share) + &state + description.trim_end());
        lines.extend(holder.iter().skip(1).map(|line| " ".repeat(indent) + line));
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

/// Allocators or runtimes (by `kind`), as sentences and tables.
fn sections(kind: &str, sections: &[Section], surface: Surface) -> Vec<String> {
    let mut lines = Vec::new();
    for section in sections {
        lines.push(String::new());
        lines.extend(hanging("", &format!("{kind} {}", section.title), surface.columns));
        lines.extend(section.lines.iter().flat_map(|line| hanging("  - ", line, surface.columns)));
        for table in &section.tables {
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
        let label = format!("  {}. ", index + 1);
        lines.extend(hanging(&label, &format!("{}: {}", remedy.id, remedy.effect), surface.columns));
        if !remedy.how.is_empty() {
            let how = hanging(&" ".repeat(COMMAND_INDENT), &remedy.how, surface.columns);
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

/// Verdict, bars and rows.
pub fn summary(view: &View, surface: Surface) -> Vec<String> {
    let mut lines = strong(&wrap(&view.headline, surface.columns), surface);
    lines.extend(bars(&view.states, surface));
    lines.extend(ledger(view, 1, surface));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_command_is_cut_and_those_that_do_not_fit_are_counted() {
        let release = |id: &str, words: usize| Release {
            id: id.to_owned(),
            predicted: "unknown".to_owned(),
            how: "MALLOC_CONF=dirty_decay_ms:0,muzzy_decay_ms:0 ".repeat(words) + "(next start)",
        };
        let releases_of_all = [release("one", 3), release("two", 2), release("three", 1), release("four", 2)];
        let surface = Surface { columns: 80, has_colour: false };
        let text = |max_lines: usize| releases(&releases_of_all, 1, max_lines, surface).join(" ");
        let starts = |text: &str| text.matches("(next start)").count();
        let full_text = text(usize::MAX);
        let unwrapped = full_text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(releases_of_all.iter().all(|release| unwrapped.contains(&release.how)), "{full_text}");
        assert!(unwrapped.ends_with("1 more -v lists it"), "{full_text}");
        let shortest = text(0);
        let shortest = shortest.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(starts(&shortest) == 1 && shortest.ends_with("4 more -v lists them"), "{shortest}");
    }

    #[test]
    fn a_word_too_wide_beside_its_label_is_not_broken() {
        let wide = "JAVA_TOOL_OPTIONS='-XX:+UnlockExperimentalVMOptions";
        let release = Release {
            id: "jvm_shenandoah_uncommit".to_owned(),
            predicted: "unknown".to_owned(),
            how: format!("{wide} -XX:ShenandoahUncommitDelay=10000'"),
        };
        let surface = Surface { columns: 80, has_colour: false };
        let lines = releases(&[release], 0, usize::MAX, surface);
        assert!(lines.iter().any(|line| line.trim_start() == wide), "{lines:?}");
        assert!(lines.iter().all(|line| width(line) <= 80), "{lines:?}");
    }
}
