//! The views of `holders`: what leaked, which roots retain the rest, which types it has, and which
//! blocks pin free pages.

pub mod page;

use std::collections::HashMap;

use strandline_inspect::environment::utc;
use strandline_inspect::holders::facts::{Holders, Holding, Root, RootKind, Shared, SharedType, Type};
use strandline_inspect::holders::growth::{Change, Changed, Comparison};

use crate::model;
use crate::paint::{Paint, Surface};
use crate::table::{Column, figures, lay_out, words};
use crate::terminal;
use crate::text::{clean, counted, hanging, shorten, wrap};
use crate::units::{UNKNOWN, bytes, percent, seconds, stopped, thousands};

const ROOTS: [Column; 4] = [words("held by"), figures("retains"), figures("blocks"), figures("keeps")];
const TYPES: [Column; 5] =
    [words("what"), figures("bytes"), figures("instances"), figures("leaked"), figures("keeps")];
const GROWTH_COLUMNS: [Column; 5] =
    [words("held by"), figures("grew"), figures("blocks"), figures("now"), figures("rate")];
const TYPE_GROWTH_COLUMNS: [Column; 5] =
    [words("what"), figures("grew"), figures("instances"), figures("now"), figures("rate")];
/// Depth limit of the retention path shown below a root, which is followed only for parts above
/// 1/`MIN_PART` of all live bytes.
const MAX_STEPS: usize = 4;
const MIN_SHARE_DIVISOR: u64 = 50;
const MAX_SIBLINGS: usize = 3;
/// Blocks of one size get their own line from 1/`MIN_SIZE_PART` of all live bytes on.
const MIN_SIZE_PART: u64 = 100;
/// Unattributed memory below this is normal for any program.
const MIN_BEYOND_BYTES: u64 = 32 << 20;
/// Pinned memory below this is not mentioned; and the maximum width of a name within a sentence.
const MIN_PINNED_BYTES: u64 = 1 << 20;
const MAX_NAME_COLUMNS: usize = 60;
/// Maximum number of root sets shown separately, and the width of a name among several.
const MAX_SETS: usize = 6;
const MAX_JOINED_COLUMNS: usize = 32;

/// The whole view, with a final newline and at most `top` roots and types.
pub fn holders(found: &Holders, top: usize, surface: Surface) -> String {
    let mut lines: Vec<String> = wrap(&process_line(found), surface.columns);
    lines.push(String::new());
    let headline = wrap(&headline(found), surface.columns);
    lines.extend(headline.iter().map(|line| surface.paint(Paint::Strong, line)));
    if let Some(since) = &found.since {
        lines.extend(growth(since, top, surface));
    }
    lines.push(String::new());
    lines.extend(lay_out(&ROOTS, &root_rows(found, top), 0, surface.columns));
    lines.push(String::new());
    lines.extend(lay_out(&TYPES, &type_rows(found, top), 0, surface.columns));
    lines.push(String::new());
    let text = "what it alone holds: it would be lost without. keeps: resident pages with free places and no other blocks, which would \
                go back if these did. Sizes but these are of address space, as malloc has them, resident or not";
    lines.extend(hanging("retains: ", text, surface.columns));
    lines.extend(terminal::listed("caveats", &model::caveats(&found.caveats), surface));
    lines.push(String::new());
    lines.push(format!(
        "{}, in all {}",
        stopped(found.cost.stopped_seconds),
        seconds(found.cost.wall_seconds)
    ));
    lines.join("\n") + "\n"
}

/// The process, and the time of the snapshot.
fn process_line(found: &Holders) -> String {
    let executable = found.executable.as_deref().map_or(String::new(), |path| format!(" · {}", clean(path)));
    let seconds = found.taken_unix_seconds;
    let time = (1.0..1e11).contains(&seconds).then(|| format!(" · {}", utc(seconds as u64)));
    format!("process {}{executable}{}", found.pid, time.unwrap_or_default())
}

fn headline(found: &Holders) -> String {
    let all = format!("{} in {}", bytes(found.live.bytes), counted(found.live.blocks, "live block"));
    if found.live.blocks == 0 {
        return "no block of an allocator that is read is in use here (strandline explain says what its memory is)".to_owned();
    }
    let lost = match &found.unreachable {
        None => "what leaked of them is not known (see the caveats)".to_owned(),
        Some(lost) if lost.blocks == 0 && unattributed_part(found).is_some() => {
            "something leads to every one of them".to_owned()
        }
        Some(lost) if lost.blocks == 0 => "something leads to every one of them: nothing leaked".to_owned(),
        Some(lost) => format!(
            "nothing leads to {} in {} ({}){}",
            bytes(lost.bytes),
            counted(lost.blocks, "block"),
            percent(lost.bytes, found.live.bytes),
            if lost.definite.blocks == lost.blocks {
                String::new()
            } else {
                let blocks = counted(lost.definite.blocks, "block");
                format!(", of which {} in {blocks} lost the rest with them", bytes(lost.definite.bytes))
            }
        ),
    };
    let alone = found.roots.first().map_or(0, |root| root.retained_bytes);
    let shared = shown_sets(found).0.first().filter(|set| set.retained_bytes > alone);
    let text = match (shared, found.roots.first()) {
        (Some(set), _) if set.retained_bytes > found.live.bytes / 10 => {
            format!("{all}; {lost}; {} together hold {}", join_root_names(set), bytes(set.retained_bytes))
        }
        (_, Some(root)) if alone > found.live.bytes / 10 => {
            format!("{all}; {lost}; {} alone holds {}", short(&root_name(root)), bytes(alone))
        }
        _ => format!("{all}; {lost}"),
    };
    text + &unattributed_part(found).unwrap_or_default() + &pinning_block(found).unwrap_or_default()
}

/// The part of RSS that no reader explains, if it is most of it.
fn unattributed_part(found: &Holders) -> Option<String> {
    let rss = found.rss_bytes?;
    let beyond = found.unattributed_bytes.filter(|&beyond| beyond > rss / 2 && beyond > MIN_BEYOND_BYTES)?;
    Some(format!(
        "; {} of {} RSS is of no allocator that is read, and was not searched",
        bytes(beyond),
        bytes(rss)
    ))
}

/// The block that pins the most otherwise free pages, if these are worth mentioning.
fn pinning_block(found: &Holders) -> Option<String> {
    let least = (found.live.bytes / 10).max(MIN_PINNED_BYTES);
    let keeper = found.keepers.first().filter(|keeper| keeper.pins_bytes > least)?;
    let held = match keeper.root.and_then(|root| found.roots.get(root)) {
        Some(root) => format!(" (held by {})", short(&root_name(root))),
        None if keeper.unreachable => " (leaked)".to_owned(),
        None => String::new(),
    };
    Some(format!(
        "; {}{held} keeps {} that is free but for it",
        short(&clean(&keeper.name)),
        bytes(keeper.pins_bytes)
    ))
}

fn short(name: &str) -> String {
    shorten(name, MAX_NAME_COLUMNS)
}

/// Rows of the roots, of leaked blocks and of blocks with several roots, largest first; but leaked
/// blocks come first if they are a significant part.
fn root_rows(found: &Holders, top: usize) -> Vec<Vec<String>> {
    let least = found.live.bytes / MIN_SHARE_DIVISOR;
    let mut groups: Vec<(u64, Vec<Vec<String>>)> = Vec::new();
    let mut add = |order: u64, first: Vec<String>, holds: &[Holding], least: u64| {
        let mut rows = vec![first];
        retention_path(&mut rows, holds, least);
        groups.push((order, rows));
    };
    if let Some(lost) = found.unreachable.as_ref().filter(|lost| lost.blocks > 0) {
        let order = if lost.bytes > least { u64::MAX } else { lost.bytes };
        add(
            order,
            row("nothing: leaked".to_owned(), (lost.bytes, lost.blocks), lost.pins_bytes),
            &lost.holds,
            least,
        );
    }
    let (sets, others) = shown_sets(found);
    for set in sets {
        let sums = (set.retained_bytes, set.retained_blocks);
        let holds: Vec<Holding> = set.types.iter().map(holding).collect();
        add(set.retained_bytes, row(join_root_names(set), sums, 0), &holds, least);
    }
    if others.1 > 0 {
        // If sets are shown, this is the rest: blocks of types that have no row of their own.
        let (text, holds) = match sets {
            [] => ("several roots together", found.shared_holds.as_slice()),
            _ => ("other roots, several together", [].as_slice()),
        };
        add(others.0, row(text.to_owned(), others, 0), holds, least);
    }
    let folded = merge_threads(&found.roots);
    for (name, root) in folded.iter().take(top) {
        // A root that pins a lot retains little itself, so show its contents in more detail.
        let least = if root.pins_bytes >= least { root.retained_bytes / 2 } else { least };
        let sums = (root.retained_bytes, root.retained_blocks);
        add(root.retained_bytes, row(name.clone(), sums, root.pins_bytes), &root.holds, least);
    }
    groups.sort_by_key(|group| std::cmp::Reverse(group.0));
    let mut rows: Vec<Vec<String>> = groups.into_iter().flat_map(|(_, rows)| rows).collect();
    let rest = folded.iter().skip(top);
    let others = (found.other_roots.bytes, found.other_roots.blocks);
    let (of, blocks) = rest.fold(others, |sum, (_, root)| {
        (sum.0.saturating_add(root.retained_bytes), sum.1.saturating_add(root.retained_blocks))
    });
    if blocks > 0 {
        rows.push(row("other roots, each by itself".to_owned(), (of, blocks), 0));
    }
    rows
}

/// The root sets shown separately, and bytes and blocks of all other sets.
fn shown_sets(found: &Holders) -> (&[Shared], (u64, u64)) {
    let least = found.live.bytes / MIN_SHARE_DIVISOR;
    let is_told = |set: &Shared| set.retained_bytes > least && !set.nearest.is_empty();
    let count = found.shared.iter().take(MAX_SETS).take_while(|set| is_told(set)).count();
    let (sets, _) = found.shared.split_at(count);
    let all = found.shared_total.unwrap_or_default();
    let rest = sets.iter().fold((all.bytes, all.blocks), |rest, set| {
        (rest.0.saturating_sub(set.retained_bytes), rest.1.saturating_sub(set.retained_blocks))
    });
    (sets, rest)
}

/// The names of the nearest of several roots, shortened, and the number of others.
fn join_root_names(set: &Shared) -> String {
    let mut names: Vec<String> = Vec::new();
    for of in &set.nearest {
        let (name, module, thread) = (of.name.clone(), of.module.clone(), of.thread.clone());
        let name = self::root_name(&Root { kind: of.kind, name, module, thread, ..Root::default() });
        names.push(shorten(&name, MAX_JOINED_COLUMNS));
    }
    let more = set.roots.len().saturating_sub(names.len());
    match (more, set.has_more) {
        (0, false) => {}
        (more, true) => names.push(format!("{more} or more others")),
        (more, false) => names.push(format!("{more} more")),
    }
    match names.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, first)) => format!("{} and {last}", first.join(", ")),
        None => "several roots".to_owned(),
    }
}

fn holding(of: &SharedType) -> Holding {
    let (retained_bytes, retained_blocks) = (of.bytes, of.instances);
    let (name, instances, bytes) = (of.name.clone(), of.instances, of.bytes);
    Holding { name, instances, bytes, retained_bytes, retained_blocks, ..Holding::default() }
}

/// Merges roots of the same name in several threads; largest first.
fn merge_threads(roots: &[Root]) -> Vec<(String, Root)> {
    let mut places: HashMap<(RootKind, &str, Option<&str>), usize> = HashMap::new();
    let mut folded: Vec<(u64, Root)> = Vec::new();
    for root in roots {
        let key = (root.kind, root.name.as_str(), root.module.as_deref());
        let known = if root.thread.is_some() { places.get(&key).copied() } else { None };
        match known.and_then(|place| folded.get_mut(place)) {
            Some((threads, of)) => {
                *threads += 1;
                of.retained_bytes = of.retained_bytes.saturating_add(root.retained_bytes);
                of.retained_blocks = of.retained_blocks.saturating_add(root.retained_blocks);
                of.pins_bytes = of.pins_bytes.saturating_add(root.pins_bytes);
                merge(&mut of.holds, &root.holds);
                of.thread = Some(format!("{threads} threads"));
            }
            None => {
                places.insert(key, folded.len());
                folded.push((1, root.clone()));
            }
        }
    }
    let mut folded: Vec<(String, Root)> =
        folded.into_iter().map(|(_, root)| (root_name(&root), root)).collect();
    folded.sort_by_key(|(_, root)| std::cmp::Reverse(root.retained_bytes));
    folded
}

fn row(name: String, (of, blocks): (u64, u64), pins: u64) -> Vec<String> {
    vec![name, bytes(of), thousands(blocks), if pins > 0 { bytes(pins) } else { String::new() }]
}

/// Adds rows for the path to most of what a root retains, type by type, down to `least` bytes.
fn retention_path(rows: &mut Vec<Vec<String>>, holds: &[Holding], least: u64) {
    let mut holds = holds;
    for depth in 1..=MAX_STEPS {
        for of in holds.iter().filter(|of| of.retained_bytes >= least).take(MAX_SIBLINGS) {
            let name = format!("{}{}", "  ".repeat(depth), instances(of));
            rows.push(row(name, (of.retained_bytes, of.retained_blocks), 0));
        }
        // Continue only below a single child; with several, the parent of deeper rows would be
        // unclear.
        match holds {
            [only] => holds = &only.holds,
            _ => return,
        }
    }
}

/// Adds what another root retains, type by type.
fn merge(holds: &mut Vec<Holding>, more: &[Holding]) {
    for of in more {
        match holds.iter_mut().find(|known| known.name == of.name) {
            Some(known) => {
                known.instances = known.instances.saturating_add(of.instances);
                known.chained = known.chained.saturating_add(of.chained);
                known.retained_bytes = known.retained_bytes.saturating_add(of.retained_bytes);
                known.retained_blocks = known.retained_blocks.saturating_add(of.retained_blocks);
                merge(&mut known.holds, &of.holds);
            }
            None => holds.push(of.clone()),
        }
    }
}

/// The number of instances, their type, and whether they are linked to each other.
fn instances(of: &Holding) -> String {
    let chained = match of.instances.checked_sub(of.chained).filter(|_| of.chained > 0) {
        Some(1) => ", linked".to_owned(),
        Some(first) => format!(", linked behind {}", thousands(first)),
        None => String::new(),
    };
    let size = of.name.strip_suffix("-byte blocks").filter(|_| of.instances == 1);
    let kind = size.map_or_else(|| clean(&of.name), |size| format!("{size}-byte block"));
    format!("{} {kind}{chained}", thousands(of.instances))
}

/// Rows of what grew since an earlier snapshot: roots, then types.
fn growth_rows(since: &Comparison, top: usize) -> [Vec<Vec<String>>; 2] {
    let hours = since.seconds / 3600.0;
    let rate = |of: i64| {
        let of_hour = of as f64 / hours;
        if hours > 0.0 && of > 0 { format!("{}/h", bytes(of_hour as u64)) } else { String::new() }
    };
    let signed = |of: i64| format!("{}{}", if of < 0 { "-" } else { "+" }, bytes(of.unsigned_abs()));
    let row = |name: String, grew: Change, now: Option<u64>| {
        let blocks =
            format!("{}{}", if grew.blocks < 0 { "-" } else { "+" }, thousands(grew.blocks.unsigned_abs()));
        vec![name, signed(grew.bytes), blocks, now.map_or(String::new(), bytes), rate(grew.bytes)]
    };
    let mut rows = vec![row("all live blocks".to_owned(), since.live, None)];
    rows.extend(since.unreachable.map(|grew| row("nothing: leaked".to_owned(), grew, None)));
    let of_root = |of: &Changed| {
        let (name, module, thread) = (of.name.clone(), of.module.clone(), of.thread.clone());
        let root = Root { kind: of.kind.unwrap_or_default(), name, module, thread, ..Root::default() };
        row(self::root_name(&root), of.grew, Some(of.bytes))
    };
    rows.extend(since.roots.iter().take(top).map(of_root));
    let of_type = |of: &Changed| row(clean(&of.name), of.grew, Some(of.bytes));
    [rows, since.types.iter().take(top).map(of_type).collect()]
}

fn growth(since: &Comparison, top: usize, surface: Surface) -> Vec<String> {
    let [roots, types] = growth_rows(since, top);
    let mut lines = vec![String::new(), format!("since the look {}", duration(since.seconds))];
    lines.extend(lay_out(&GROWTH_COLUMNS, &roots, 0, surface.columns));
    if since.is_partial {
        let text =
            "one of the looks has more roots or types than it tells: what only the other tells is left out";
        lines.extend(wrap(text, surface.columns));
    }
    if !types.is_empty() {
        lines.push(String::new());
        lines.extend(lay_out(&TYPE_GROWTH_COLUMNS, &types, 0, surface.columns));
    }
    lines
}

fn duration(of: f64) -> String {
    match of {
        of if !(0.0..1e10).contains(&of) => "of a time that is not known".to_owned(),
        of if of >= 7200.0 => format!("{:.1} hours before", of / 3600.0),
        of if of >= 120.0 => format!("{:.1} minutes before", of / 60.0),
        of => format!("{} before", seconds(of)),
    }
}

/// A short description of a root.
fn root_name(root: &Root) -> String {
    let name = clean(&root.name);
    let thread = root.thread.as_deref().map(clean).unwrap_or_default();
    match root.kind {
        RootKind::Stack if root.name == "stack" => format!("stack of {thread}"),
        RootKind::Stack => format!("{name} on the stack of {thread}"),
        RootKind::Register => format!("registers of {thread}"),
        RootKind::Tls if !thread.is_empty() => format!("{name} of {thread}"),
        RootKind::Runtime => match root.module.as_deref() {
            Some(runtime) => format!("{name} in {}", clean(runtime)),
            None => format!("{name}'s memory"),
        },
        RootKind::Static | RootKind::Tls => match root.module.as_deref() {
            Some(module) if !root.name.starts_with(&format!("{module}+0x")) => {
                format!("{name} in {}", clean(module))
            }
            _ => name,
        },
    }
}

/// Rows of the types, largest first. Small size classes are merged into one line.
fn type_rows(found: &Holders, top: usize) -> Vec<Vec<String>> {
    let least = found.live.bytes / MIN_SIZE_PART;
    let size = |of: &Type| of.name.strip_suffix("-byte blocks")?.parse::<u64>().ok();
    let is_small = |of: &&Type| of.bytes < least && of.unreachable_bytes == Some(0) && size(of).is_some();
    let small: Vec<&Type> = found.types.iter().filter(is_small).collect();
    let (least, most) =
        (small.iter().filter_map(|of| size(of)).min(), small.iter().filter_map(|of| size(of)).max());
    let Some((least, most)) = least.zip(most).filter(|_| small.len() > 1) else {
        return found.types.iter().take(top).map(type_row).collect();
    };
    let mut all = Type {
        name: format!("blocks of {} to {} bytes", thousands(least), thousands(most)),
        ..Type::default()
    };
    all.unreachable_bytes = Some(0);
    for of in &small {
        all.bytes = all.bytes.saturating_add(of.bytes);
        all.instances = all.instances.saturating_add(of.instances);
        all.pins_bytes = all.pins_bytes.saturating_add(of.pins_bytes);
    }
    let mut types: Vec<&Type> = found.types.iter().filter(|of| !is_small(of)).collect();
    types.push(&all);
    types.sort_by_key(|of| std::cmp::Reverse(of.bytes));
    types.into_iter().take(top).map(type_row).collect()
}

fn type_row(of: &Type) -> Vec<String> {
    let maybe = |of: u64| if of > 0 { bytes(of) } else { String::new() };
    vec![
        clean(&of.name),
        bytes(of.bytes),
        thousands(of.instances),
        of.unreachable_bytes.map_or(UNKNOWN.to_owned(), maybe),
        maybe(of.pins_bytes),
    ]
}

#[cfg(test)]
mod tests {
    use strandline_inspect::holders::facts::{Sum, Unreachable};

    use super::*;

    fn of_sizes(sizes: &[(u64, u64)]) -> Holders {
        let of = |&(bytes, instances): &(u64, u64)| Type {
            name: format!("{}-byte blocks", bytes / instances),
            bytes,
            instances,
            unreachable_bytes: Some(0),
            ..Type::default()
        };
        let types: Vec<Type> = sizes.iter().map(of).collect();
        let (bytes, blocks) = sizes.iter().fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1));
        Holders {
            live: Sum { bytes, blocks },
            types,
            unreachable: Some(Unreachable::default()),
            ..Holders::default()
        }
    }

    #[test]
    fn small_blocks_of_several_sizes_are_one_line() {
        let found = of_sizes(&[(1 << 20, 1), (4000, 4), (3000, 5), (64, 1)]);
        let names: Vec<String> = type_rows(&found, 20).into_iter().map(|row| row[..3].join(" ")).collect();
        assert_eq!(names, ["1048576-byte blocks 1.00 MiB 1", "blocks of 64 to 1,000 bytes 6.90 KiB 10"]);
    }

    #[test]
    fn a_small_heap_in_a_large_process_is_no_proof_that_nothing_leaked() {
        let mut found = of_sizes(&[(2 << 20, 2)]);
        assert!(headline(&found).contains("nothing leaked"));
        (found.rss_bytes, found.unattributed_bytes) = (Some(159 << 20), Some(157 << 20));
        let text = headline(&found);
        assert!(!text.contains("nothing leaked") && text.contains("157 MiB of 159 MiB RSS"), "{text}");
    }
}
