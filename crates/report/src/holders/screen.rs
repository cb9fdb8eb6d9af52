//! The terminal views of `holders`: what leaked, which roots retain the rest, and the types.

use strandline_inspect::holders::facts::{Holders, Holding};
use strandline_inspect::holders::growth::Comparison;

use super::growth::{GROWTH_HEAD, GrowthRows, PARTIAL_GROWTH, TYPE_GROWTH_HEAD, age_text, growth_rows};
use super::leaked::{LEAKED_HEAD, leaked_rows};
use super::names::{LINKED, OF_SIZE, step_text};
use super::{
    MAX_SIBLINGS, MAX_STEPS, ROOT_HEAD, RootGroups, TYPE_HEAD, headline, pinning_block, process_line,
    root_rows, type_row, type_rows,
};
use crate::brief::{ImportantCaveats, NextCommand, cost_line};
use crate::model;
use crate::paint::Surface;
use crate::table::{Column, figures, lay_out, words};
use crate::terminal::{faint, joined, listed, next_commands, strong, two_ends};
use crate::text::{counted, hanging, listed_by_verbose, own_name, shorten_apart, width, wrap, wrap_at_most};
use crate::units::{bytes, seconds, stopped, thousands};

/// Maximum number of lines of the answer. With those of the tables, a screen has 40 at most.
const MAX_ANSWER_LINES: usize = 6;
/// Maximum number of rows of roots.
const MAX_ROOTS: usize = 10;
/// Maximum number of rows of types.
const MAX_TYPES: usize = 8;
/// Maximum number of rows of each table if there are also those of growth.
const MAX_BESIDE_GROWTH: usize = 4;
/// Spaces between two columns.
const GAP: usize = 2;

const SHORT_ROOT_HEAD: [Column; 4] = [figures("retained"), figures("blocks"), words("root"), words("holds")];

/// The default view, with a final newline: at most 40 lines, unless `top` rows were requested.
pub fn holders(facts: &Holders, top: Option<usize>, surface: Surface) -> String {
    let has_growth = facts.since.is_some();
    let limit = |max_rows: usize| top.unwrap_or(if has_growth { MAX_BESIDE_GROWTH } else { max_rows });
    let name = own_name(&facts.command, facts.executable.as_deref()).unwrap_or_else(|| "process".to_owned());
    let live = format!("{} in {}", bytes(facts.live.bytes), counted(facts.live.blocks, "live block"));
    let mut lines = two_ends(&format!("{name}, pid {}", facts.pid), &live, surface);
    lines.push(String::new());
    let important = ImportantCaveats::of(&facts.caveats, facts.rss_bytes.unwrap_or(facts.live.bytes));
    let answer: Vec<String> = std::iter::once(headline(facts)).chain(important.sentences).collect();
    lines.extend(strong(&wrap_at_most(&answer.join(". "), surface.columns, MAX_ANSWER_LINES), surface));
    if let Some(since) = &facts.since {
        lines.extend(growth(since, limit(MAX_BESIDE_GROWTH), None, surface));
    }
    let types = type_rows(facts, limit(MAX_TYPES));
    let roots = roots(facts, limit(MAX_ROOTS), surface);
    let types_table = lay_out(&TYPE_HEAD, &types, 0, surface.columns);
    // The head alone says nothing.
    for table in [roots, types_table].into_iter().filter(|table| table.len() > 1) {
        lines.push(String::new());
        lines.extend(table);
    }
    if !facts.block_sizes.is_empty() && types.iter().flatten().any(|text| text.starts_with(OF_SIZE)) {
        let note = format!("block sizes are as allocated: {}", facts.block_sizes.join("; "));
        lines.extend(faint(&wrap(&note, surface.columns), surface));
    }
    lines.push(String::new());
    lines.extend(next_commands(&commands(facts), surface));
    let cost = cost_line(facts.cost.stopped_seconds, facts.cost.wall_seconds, None, important.other_count);
    lines.extend(faint(&[cost], surface));
    joined(&lines)
}

/// What to type next: all details; then what may pin less, if much is pinned, which no call
/// releases; or else what shows growth.
fn commands(facts: &Holders) -> Vec<NextCommand> {
    let pid = facts.pid;
    let details = NextCommand::new(format!("strandline holders -v {pid}"), "all roots, types, paths");
    let second = if pinning_block(facts).is_some() {
        Some(NextCommand::new(
            "strandline try -- COMMAND".to_owned(),
            "settings and allocators that pin less",
        ))
    } else if facts.since.is_none() {
        let command = format!("strandline holders --json {pid} > before.json");
        Some(NextCommand::new(command, "then --since before.json"))
    } else {
        None
    };
    std::iter::once(details).chain(second).collect()
}

/// The view with all details, with a final newline; at most `top` roots and types if that is given.
pub fn details(facts: &Holders, top: Option<usize>, surface: Surface) -> String {
    let top = top.unwrap_or(usize::MAX);
    let types: Vec<Vec<String>> = facts.types.iter().take(top).map(type_row).collect();
    let mut lines = wrap(&process_line(facts), surface.columns);
    lines.push(String::new());
    lines.extend(strong(&wrap(&headline(facts), surface.columns), surface));
    if let Some(since) = &facts.since {
        let note = since.is_partial.then_some(PARTIAL_GROWTH);
        lines.extend(growth(since, top, note, surface));
    }
    lines.push(String::new());
    lines.extend(lay_out(&ROOT_HEAD, &root_rows(facts, top), 0, surface.columns));
    let leaked = leaked_rows(facts, top);
    if !leaked.is_empty() {
        lines.push(String::new());
        lines.extend(lay_out(&LEAKED_HEAD, &leaked, 0, surface.columns));
    }
    lines.push(String::new());
    lines.extend(lay_out(&TYPE_HEAD, &types, 0, surface.columns));
    lines.push(String::new());
    let text = "what a root alone holds: without the root it would be unreachable. pins: resident memory with free slots and no other blocks, \
                released if these were freed; explain counts only the free bytes on them as pinned. Pages with blocks of several \
                types count for none of them. Other sizes are of address space, as malloc has them, resident or not. \
                live: allocated and not freed, leaked or not";
    lines.extend(hanging("retained: ", text, surface.columns));
    lines.extend(listed("caveats", &model::caveats(&facts.caveats), surface));
    lines.push(String::new());
    lines.push(format!(
        "cost: {}, {} in all",
        stopped(facts.cost.stopped_seconds),
        seconds(facts.cost.wall_seconds)
    ));
    joined(&lines)
}

/// The largest roots, a line each, with what they hold.
fn roots(facts: &Holders, top: usize, surface: Surface) -> Vec<String> {
    let RootGroups { listed: mut groups, mut unlisted } = RootGroups::new(facts, top);
    for group in groups.drain(top.min(groups.len())..) {
        unlisted.add(group.retained);
    }
    // A third for names, so that what the roots hold has the larger part.
    let max_name_columns = surface.columns * 7 / 20;
    let names: Vec<String> = groups.iter().map(|group| group.name.clone()).collect();
    let rows = groups
        .iter()
        .zip(shorten_apart(&names, max_name_columns))
        .map(|(group, name)| [bytes(group.retained.bytes), thousands(group.retained.blocks), name]);
    let mut rows: Vec<[String; 3]> = rows.collect();
    if unlisted.retained.blocks > 0 {
        rows.push([
            bytes(unlisted.retained.bytes),
            thousands(unlisted.retained.blocks),
            counted(unlisted.count, "smaller root"),
        ]);
    }
    let column_width = |column: usize| {
        let title_width = width(SHORT_ROOT_HEAD[column].title);
        rows.iter().map(|row| width(&row[column])).fold(title_width, usize::max)
    };
    let other_columns: usize = (0..3).map(|column| column_width(column) + GAP).sum();
    let path_columns = surface.columns.saturating_sub(other_columns);
    let paths = groups.iter().map(|group| path_text(&group.holds, group.min_path_bytes, path_columns));
    let paths = paths.chain(std::iter::once(listed_by_verbose(unlisted.count).to_owned()));
    let rows: Vec<Vec<String>> =
        rows.into_iter().zip(paths).map(|(row, path)| row.into_iter().chain([path]).collect()).collect();
    lay_out(&SHORT_ROOT_HEAD, &rows, 2, surface.columns)
}

/// A step of a path: the blocks of one or more types, or a single block.
struct Step {
    text: String,
    is_single: bool,
}

/// The path to most of what a root retains, down to `min_bytes`: `list → 150,000 dict → str, list,
/// int`. If it is wider than `columns`, single blocks are left out, then the end of the path.
fn path_text(holds: &[Holding], min_bytes: u64, columns: usize) -> String {
    let mut steps: Vec<Step> = Vec::new();
    let mut holds = holds;
    for _ in 0..MAX_STEPS {
        let large = holds.iter().filter(|kind| kind.retained_bytes >= min_bytes).take(MAX_SIBLINGS);
        let names: Vec<String> = large.map(step_text).collect();
        if names.is_empty() {
            break;
        }
        let is_single = matches!(holds, [kind] if kind.instances == 1);
        steps.push(Step { text: names.join(", "), is_single });
        match holds {
            [kind] => holds = &kind.holds,
            _ => break,
        }
    }
    let join_steps = |steps: &[Step], end: &str| {
        steps.iter().map(|step| step.text.as_str()).collect::<Vec<_>>().join(" → ") + end
    };
    if width(&join_steps(&steps, "")) > columns && steps.iter().any(|step| !step.is_single) {
        steps.retain(|step| !step.is_single);
    }
    let mut line = join_steps(&steps, "");
    if width(&line) > columns {
        // The size says more than that the blocks refer to each other.
        line = line.replace(LINKED, " ");
    }
    while width(&line) > columns && steps.len() > 1 {
        steps.pop();
        line = join_steps(&steps, " → …");
    }
    wrap_at_most(&line, columns, 1).into_iter().next().unwrap_or_default()
}

/// Growth since an earlier result: the tables of roots and of types, with `note` below the first.
fn growth(comparison: &Comparison, top: usize, note: Option<&str>, surface: Surface) -> Vec<String> {
    let GrowthRows { roots, types } = growth_rows(comparison, top);
    let mut lines = vec![String::new(), format!("since the result {}", age_text(comparison.seconds))];
    lines.extend(lay_out(&GROWTH_HEAD, &roots, 0, surface.columns));
    lines.extend(note.map_or_else(Vec::new, |note| wrap(note, surface.columns)));
    if !types.is_empty() {
        lines.push(String::new());
        lines.extend(lay_out(&TYPE_GROWTH_HEAD, &types, 0, surface.columns));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_is_too_long_keeps_complete_steps() {
        let holding = |name: &str, instances, holds| Holding {
            name: name.into(),
            instances,
            retained_bytes: 9,
            holds,
            ..Holding::default()
        };
        let entries = holding("server::Entry", 5000, vec![holding("24-byte blocks", 6000, Vec::new())]);
        let holds = [holding("4000-byte blocks", 1, vec![entries])];
        let path = |columns| path_text(&holds, 1, columns);
        assert_eq!(path(80), "block of 4,000 bytes → 5,000 server::Entry → 6,000 blocks of 24 bytes");
        assert_eq!(path(50), "5,000 server::Entry → 6,000 blocks of 24 bytes");
        assert_eq!(path(30), "5,000 server::Entry → …");
        assert_eq!(path(10), "5,000 …");
        let linked = Holding { chained: 207_999, ..holding("104-byte blocks", 208_000, Vec::new()) };
        let path = |columns| path_text(std::slice::from_ref(&linked), 1, columns);
        assert_eq!(path(40), "208,000 linked blocks of 104 bytes");
        assert_eq!(path(30), "208,000 blocks of 104 bytes");
    }

    #[test]
    fn sizes_are_explained_by_the_allocators_that_have_blocks() {
        use strandline_inspect::holders::facts::Type;
        let named = Type { name: "4000-byte blocks".into(), bytes: 4000, instances: 1, ..Type::default() };
        let mut facts = Holders { types: vec![named], ..Holders::default() };
        let plain = Surface { columns: 80, has_colour: false };
        assert!(!holders(&facts, None, plain).contains("as allocated"));
        facts.block_sizes = vec!["one rounds up", "two does not"];
        let text = holders(&facts, None, plain);
        assert!(text.contains("block sizes are as allocated: one rounds up; two does not\n"), "{text}");
    }

    #[test]
    fn a_type_named_bytes_is_no_size() {
        let text = |instances| step_text(&Holding { name: "bytes".into(), instances, ..Holding::default() });
        assert_eq!([text(1), text(2)], ["bytes object", "2 bytes objects"]);
    }
}
