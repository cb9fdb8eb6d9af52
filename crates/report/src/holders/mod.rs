//! The views of `holders`: what is lost, who holds the rest, what it is, and who keeps free pages.

pub mod page;

use strandline_inspect::holders::facts::{Holders, Holding, Root, RootKind, Type};
use strandline_inspect::holders::growth::{Change, Grown, Growth};

use crate::model;
use crate::paint::{Paint, Surface};
use crate::table::{Column, figures, lay_out, words};
use crate::terminal;
use crate::text::{clean, counted, hanging, wrap};
use crate::units::{bytes, percent, seconds, thousands};

const ROOTS: [Column; 4] = [words("held by"), figures("retains"), figures("blocks"), figures("keeps")];
const TYPES: [Column; 5] =
    [words("what"), figures("bytes"), figures("instances"), figures("leaked"), figures("keeps")];
const GREW: [Column; 5] =
    [words("held by"), figures("grew"), figures("blocks"), figures("now"), figures("rate")];
const TYPES_GREW: [Column; 5] =
    [words("what"), figures("grew"), figures("instances"), figures("now"), figures("rate")];
/// The way to what is held is told so far, where it leads to this part of all that is live.
const MOST_STEPS: usize = 4;
const LEAST_PART: u64 = 50;
const MOST_BESIDE: usize = 3;

/// The whole view, ending with a newline: so many roots and types at most.
pub fn holders(found: &Holders, top: usize, surface: Surface) -> String {
    let mut lines: Vec<String> = wrap(&headline(found), surface.columns)
        .iter()
        .map(|line| surface.paint(Paint::Strong, line))
        .collect();
    lines.push(String::new());
    lines.extend(lay_out(&ROOTS, &root_rows(found, top), 0, surface.columns));
    lines.push(String::new());
    let types: Vec<Vec<String>> = found.types.iter().take(top).map(type_row).collect();
    lines.extend(lay_out(&TYPES, &types, 0, surface.columns));
    if let Some(since) = &found.since {
        lines.extend(growth(since, top, surface));
    }
    lines.push(String::new());
    let text = "what it alone holds: it would be lost without. keeps: resident pages with free places and no other blocks, which would \
                go back if these did";
    lines.extend(hanging("retains: ", text, surface.columns));
    lines.extend(terminal::listed("caveats", &model::caveats(&found.caveats), surface));
    lines.push(String::new());
    lines.push(format!(
        "stopped {}, in all {}",
        seconds(found.cost.stopped_seconds),
        seconds(found.cost.wall_seconds)
    ));
    lines.join("\n") + "\n"
}

fn headline(found: &Holders) -> String {
    let all = format!("{} in {}", bytes(found.live.bytes), counted(found.live.blocks, "live block"));
    if found.live.blocks == 0 {
        return "no block of an allocator that is read is in use here (strandline explain says what its memory is)".to_owned();
    }
    let lost = match &found.unreachable {
        None => "what leaked of them is not known (see the caveats)".to_owned(),
        Some(lost) if lost.blocks == 0 => "something leads to every one of them: nothing leaked".to_owned(),
        Some(lost) => format!(
            "nothing leads to {} in {} of them ({}){}",
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
    let text = match found.roots.first() {
        Some(root) if root.retained_bytes > found.live.bytes / 10 => {
            format!("{all}; {lost}; {} alone holds {}", name(root), bytes(root.retained_bytes))
        }
        _ => format!("{all}; {lost}"),
    };
    text + &keeper(found).unwrap_or_default()
}

/// Who keeps most of the pages that are free but for a few blocks, where these are a part worth a word.
fn keeper(found: &Holders) -> Option<String> {
    let of = found.types.iter().max_by_key(|of| of.pins_bytes)?;
    if of.pins_bytes <= found.live.bytes / 10 {
        return None;
    }
    let root = found.roots.iter().max_by_key(|root| root.pins_bytes)?;
    let is_all = root.pins_bytes >= of.pins_bytes / 5 * 4;
    let held = if is_all { format!(", held by {}", name(root)) } else { String::new() };
    let instances = thousands(of.instances);
    Some(format!(
        "; {} ({instances} instances{held}) keep {} that is free but for them",
        clean(&of.name),
        bytes(of.pins_bytes)
    ))
}

fn root_rows(found: &Holders, top: usize) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    let least = found.live.bytes / LEAST_PART;
    if let Some(lost) = found.unreachable.as_ref().filter(|lost| lost.blocks > 0) {
        rows.push(row("nothing: leaked".to_owned(), (lost.bytes, lost.blocks), lost.pins_bytes));
        way(&mut rows, &lost.holds, least);
    }
    if let Some(shared) = found.shared.filter(|shared| shared.blocks > 0) {
        rows.push(row("several of these together".to_owned(), (shared.bytes, shared.blocks), 0));
        way(&mut rows, &found.shared_holds, least);
    }
    for root in found.roots.iter().take(top) {
        rows.push(row(name(root), (root.retained_bytes, root.retained_blocks), root.pins_bytes));
        // What keeps much is small.
        way(&mut rows, &root.holds, if root.pins_bytes >= least { root.retained_bytes / 2 } else { least });
    }
    let rest = found.roots.iter().skip(top);
    let others = (found.other_roots.bytes, found.other_roots.blocks);
    let (of, blocks) = rest.fold(others, |sum, root| {
        (sum.0.saturating_add(root.retained_bytes), sum.1.saturating_add(root.retained_blocks))
    });
    if blocks > 0 {
        rows.push(row("other roots, each by itself".to_owned(), (of, blocks), 0));
    }
    rows
}

fn row(name: String, (of, blocks): (u64, u64), pins: u64) -> Vec<String> {
    vec![name, bytes(of), thousands(blocks), if pins > 0 { bytes(pins) } else { String::new() }]
}

/// The way to most of what a root holds, kind by kind, as far as that has `least` bytes.
fn way(rows: &mut Vec<Vec<String>>, holds: &[Holding], least: u64) {
    let mut holds = holds;
    for depth in 1..=MOST_STEPS {
        for of in holds.iter().filter(|of| of.retained_bytes >= least).take(MOST_BESIDE) {
            let name = format!("{}{}", "  ".repeat(depth), instances(of));
            rows.push(row(name, (of.retained_bytes, of.retained_blocks), 0));
        }
        // What is below is told of the largest alone: it would not be seen whose the others' is.
        match holds {
            [only] => holds = &only.holds,
            _ => return,
        }
    }
}

/// How many of which type, and whether they hang from each other.
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

/// What grew since an earlier look.
fn growth(since: &Growth, top: usize, surface: Surface) -> Vec<String> {
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
    let of_root = |of: &Grown| {
        let (name, module, thread) = (of.name.clone(), of.module.clone(), of.thread.clone());
        let root = Root { kind: of.kind.unwrap_or_default(), name, module, thread, ..Root::default() };
        row(self::name(&root), of.grew, Some(of.bytes))
    };
    rows.extend(since.roots.iter().take(top).map(of_root));
    let mut lines = vec![String::new(), format!("since the look {} before", duration(since.seconds))];
    lines.extend(lay_out(&GREW, &rows, 0, surface.columns));
    let of_type = |of: &Grown| row(clean(&of.name), of.grew, Some(of.bytes));
    let rows: Vec<_> = since.types.iter().take(top).map(of_type).collect();
    if !rows.is_empty() {
        lines.push(String::new());
        lines.extend(lay_out(&TYPES_GREW, &rows, 0, surface.columns));
    }
    lines
}

fn duration(of: f64) -> String {
    match of {
        of if of >= 7200.0 => format!("{:.1} hours", of / 3600.0),
        of if of >= 120.0 => format!("{:.1} minutes", of / 60.0),
        of => seconds(of),
    }
}

/// A root in a few words.
fn name(root: &Root) -> String {
    let name = clean(&root.name);
    let thread = root.thread.as_deref().map(clean).unwrap_or_default();
    match root.kind {
        RootKind::Stack if root.name == "stack" => format!("stack of {thread}"),
        RootKind::Stack => format!("{name} on the stack of {thread}"),
        RootKind::Register => format!("registers of {thread}"),
        RootKind::Tls if !thread.is_empty() => format!("{name} of {thread}"),
        RootKind::Runtime => format!("{name}'s memory"),
        RootKind::Static | RootKind::Tls => match root.module.as_deref() {
            Some(module) if !root.name.starts_with(&format!("{module}+0x")) => {
                format!("{name} in {}", clean(module))
            }
            _ => name,
        },
    }
}

fn type_row(of: &Type) -> Vec<String> {
    let maybe = |of: u64| if of > 0 { bytes(of) } else { String::new() };
    vec![
        clean(&of.name),
        bytes(of.bytes),
        thousands(of.instances),
        maybe(of.unreachable_bytes.unwrap_or(0)),
        maybe(of.pins_bytes),
    ]
}
