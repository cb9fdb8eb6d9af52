//! The terminal views of `holders`: what leaked, which roots retain the rest, and the types.

use strandline_inspect::holders::facts::{Holders, Holding};
use strandline_inspect::holders::growth::Comparison;

use super::{
    GROWTH_COLUMNS, MAX_SIBLINGS, MAX_STEPS, ROOTS, TYPE_GROWTH_COLUMNS, TYPES, duration, groups,
    growth_rows, headline, process_line, root_rows, type_name, type_row, type_rows,
};
use crate::brief::{cost_line, important_caveats};
use crate::model;
use crate::paint::Surface;
use crate::table::{Column, figures, lay_out, words};
use crate::terminal::{faint, joined, listed, next, strong, two_ends};
use crate::text::{counted, hanging, own_name, shorten, width, wrap, wrap_at_most};
use crate::units::{bytes, seconds, stopped, thousands};

/// Maximum numbers of lines of the answer, of rows of roots and of types, and of either beside the
/// tables of growth.
const MAX_ANSWER_LINES: usize = 4;
const MAX_ROOTS: usize = 10;
const MAX_TYPES: usize = 8;
const MAX_BESIDE_GROWTH: usize = 4;

const SHORT_ROOTS: [Column; 4] = [figures("retained"), figures("blocks"), words("root"), words("holds")];

/// The default view, with a final newline: at most 40 lines, unless `top` rows were requested.
pub fn holders(found: &Holders, top: Option<usize>, surface: Surface) -> String {
    let has_growth = found.since.is_some();
    let limit = |most: usize| top.unwrap_or(if has_growth { MAX_BESIDE_GROWTH } else { most });
    let name = own_name(&[], found.executable.as_deref()).unwrap_or_else(|| "process".to_owned());
    let live = format!("{} in {}", bytes(found.live.bytes), counted(found.live.blocks, "live block"));
    let mut lines = two_ends(&format!("{name}, pid {}", found.pid), &live, surface);
    lines.push(String::new());
    let (important, others) = important_caveats(&found.caveats, found.rss_bytes.unwrap_or(found.live.bytes));
    let answer: Vec<String> = std::iter::once(headline(found)).chain(important).collect();
    lines.extend(strong(&wrap_at_most(&answer.join(". "), surface.columns, MAX_ANSWER_LINES), surface));
    if let Some(since) = &found.since {
        lines.extend(growth(since, limit(MAX_BESIDE_GROWTH), false, surface));
    }
    for table in [
        roots(found, limit(MAX_ROOTS), surface),
        lay_out(&TYPES, &type_rows(found, limit(MAX_TYPES)), 0, surface.columns),
    ] {
        lines.push(String::new());
        lines.extend(table);
    }
    lines.push(String::new());
    let commands = [
        (format!("strandline reclaim --dry-run {}", found.pid), "what a call would release".to_owned()),
        (format!("strandline holders -v {}", found.pid), "every root, type, path, caveat".to_owned()),
    ];
    lines.extend(next(&commands, surface));
    let cost = cost_line(found.cost.stopped_seconds, found.cost.wall_seconds, None, others);
    lines.extend(faint(&[cost], surface));
    joined(&lines)
}

/// The view with all details, with a final newline; at most `top` roots and types if that is given.
pub fn details(found: &Holders, top: Option<usize>, surface: Surface) -> String {
    let top = top.unwrap_or(usize::MAX);
    let types: Vec<Vec<String>> = found.types.iter().take(top).map(type_row).collect();
    let mut lines = wrap(&process_line(found), surface.columns);
    lines.push(String::new());
    lines.extend(strong(&wrap(&headline(found), surface.columns), surface));
    if let Some(since) = &found.since {
        lines.extend(growth(since, top, true, surface));
    }
    lines.push(String::new());
    lines.extend(lay_out(&ROOTS, &root_rows(found, top), 0, surface.columns));
    lines.push(String::new());
    lines.extend(lay_out(&TYPES, &types, 0, surface.columns));
    lines.push(String::new());
    let text = "what a root alone holds: it would be unreachable without. pins: resident memory with free slots and no other blocks, \
                released if these were freed. Other sizes are of address space, as malloc has them, resident or not";
    lines.extend(hanging("retained: ", text, surface.columns));
    lines.extend(listed("caveats", &model::caveats(&found.caveats), surface));
    lines.push(String::new());
    lines.push(format!(
        "cost: {}, {} in all",
        stopped(found.cost.stopped_seconds),
        seconds(found.cost.wall_seconds)
    ));
    joined(&lines)
}

/// The largest roots, a line each, with what they hold.
fn roots(found: &Holders, top: usize, surface: Surface) -> Vec<String> {
    let (mut groups, mut rest) = groups(found, top);
    for group in groups.drain(top.min(groups.len())..) {
        rest.count = rest.count.saturating_add(1);
        rest.add(group.retained);
    }
    let root_room = surface.columns * 7 / 20;
    let rows = groups.iter().map(|group| {
        let name = shorten(&group.name, root_room);
        [bytes(group.retained.bytes), thousands(group.retained.blocks), name]
    });
    let mut rows: Vec<[String; 3]> = rows.collect();
    if rest.retained.blocks > 0 {
        rows.push([
            bytes(rest.retained.bytes),
            thousands(rest.retained.blocks),
            counted(rest.count, "smaller root"),
        ]);
    }
    let widest = |column: usize| {
        let title = width(SHORT_ROOTS[column].title);
        rows.iter().map(|row| width(&row[column])).fold(title, usize::max)
    };
    let before: usize = (0..3).map(|column| widest(column) + 2).sum();
    let room = surface.columns.saturating_sub(before);
    let held = groups.iter().map(|group| path(&group.holds, group.least, room));
    let held = held.chain(std::iter::once("-v lists them".to_owned()));
    let rows: Vec<Vec<String>> =
        rows.into_iter().zip(held).map(|(row, held)| row.into_iter().chain([held]).collect()).collect();
    lay_out(&SHORT_ROOTS, &rows, 2, surface.columns)
}

/// A step of a path: the blocks of one or more types, or a single block.
struct Step {
    text: String,
    is_single: bool,
}

/// The path to most of what a root retains: `list → 150,000 dict → str, list, int`. If it is wider
/// than `room`, single blocks are left out, then the end of the path.
fn path(holds: &[Holding], least: u64, room: usize) -> String {
    let mut steps: Vec<Step> = Vec::new();
    let mut holds = holds;
    for _ in 0..MAX_STEPS {
        let large = holds.iter().filter(|of| of.retained_bytes >= least).take(MAX_SIBLINGS);
        let names: Vec<String> = large.map(step).collect();
        if names.is_empty() {
            break;
        }
        let is_single = matches!(holds, [only] if only.instances == 1);
        steps.push(Step { text: names.join(", "), is_single });
        match holds {
            [only] => holds = &only.holds,
            _ => break,
        }
    }
    let text = |steps: &[Step], end: &str| {
        steps.iter().map(|step| step.text.as_str()).collect::<Vec<_>>().join(" → ") + end
    };
    if width(&text(&steps, "")) > room && steps.iter().any(|step| !step.is_single) {
        steps.retain(|step| !step.is_single);
    }
    let mut line = text(&steps, "");
    while width(&line) > room && steps.len() > 1 {
        steps.pop();
        line = text(&steps, " → …");
    }
    wrap_at_most(&line, room, 1).into_iter().next().unwrap_or_default()
}

/// The blocks of one type; a single one needs no number.
fn step(of: &Holding) -> String {
    let name = type_name(of);
    match of.instances {
        1 => name,
        instances if of.chained == 0 => format!("{} {name}", thousands(instances)),
        instances => format!("{} linked {name}", thousands(instances)),
    }
}

/// Growth since an earlier result; `all` adds what is missing there.
fn growth(since: &Comparison, top: usize, all: bool, surface: Surface) -> Vec<String> {
    let [roots, types] = growth_rows(since, top);
    let mut lines = vec![String::new(), format!("since the result {}", duration(since.seconds))];
    lines.extend(lay_out(&GROWTH_COLUMNS, &roots, 0, surface.columns));
    if all && since.is_partial {
        let text = "one of the two results lists only its largest roots or types: those of one result alone are left out";
        lines.extend(wrap(text, surface.columns));
    }
    if !types.is_empty() {
        lines.push(String::new());
        lines.extend(lay_out(&TYPE_GROWTH_COLUMNS, &types, 0, surface.columns));
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
        let path = |room| path(&holds, 1, room);
        assert_eq!(path(80), "4000-byte block → 5,000 server::Entry → 6,000 24-byte blocks");
        assert_eq!(path(45), "5,000 server::Entry → 6,000 24-byte blocks");
        assert_eq!(path(30), "5,000 server::Entry → …");
        assert_eq!(path(10), "5,000 …");
    }

    #[test]
    fn a_type_named_bytes_is_no_size() {
        let of = |instances| step(&Holding { name: "bytes".into(), instances, ..Holding::default() });
        assert_eq!([of(1), of(2)], ["bytes object", "2 bytes objects"]);
    }
}
