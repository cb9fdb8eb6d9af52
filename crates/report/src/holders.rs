//! The terminal's view of `holders`: what is lost, who holds the rest, what it is, and who keeps free pages.

use strandline_inspect::holders::facts::{Holders, Root, RootKind, Type};

use super::model;
use super::paint::{Paint, Surface};
use super::table::{Column, figures, lay_out, words};
use super::terminal;
use super::text::{clean, counted, hanging, wrap};
use super::units::{bytes, percent, seconds};

const ROOTS: [Column; 4] = [words("held by"), figures("retains"), figures("blocks"), figures("keeps")];
const TYPES: [Column; 5] =
    [words("what"), figures("bytes"), figures("instances"), figures("leaked"), figures("keeps")];

/// The whole view, ending with a newline: so many roots and types at most.
pub fn holders(found: &Holders, top: usize, surface: Surface) -> String {
    let mut lines: Vec<String> = wrap(&headline(found), surface.columns)
        .iter()
        .map(|line| surface.paint(Paint::Strong, line))
        .collect();
    lines.push(String::new());
    lines.extend(lay_out(&ROOTS, &roots(found, top), 0, surface.columns));
    lines.push(String::new());
    let types: Vec<Vec<String>> = found.types.iter().take(top).map(kind).collect();
    lines.extend(lay_out(&TYPES, &types, 0, surface.columns));
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
            "nothing leads to {} in {} of them ({}), of which {} in {} lost the rest with them",
            bytes(lost.bytes),
            counted(lost.blocks, "block"),
            percent(lost.bytes, found.live.bytes),
            bytes(lost.definite.bytes),
            counted(lost.definite.blocks, "block")
        ),
    };
    match found.roots.first() {
        Some(root) if root.retained_bytes > found.live.bytes / 10 => {
            format!("{all}; {lost}; {} alone holds {}", name(root), bytes(root.retained_bytes))
        }
        _ => format!("{all}; {lost}"),
    }
}

fn roots(found: &Holders, top: usize) -> Vec<Vec<String>> {
    let row = |name: String, of: u64, blocks: u64, pins: u64| {
        vec![name, bytes(of), blocks.to_string(), if pins > 0 { bytes(pins) } else { String::new() }]
    };
    let mut rows = Vec::new();
    if let Some(lost) = found.unreachable.as_ref().filter(|lost| lost.blocks > 0) {
        rows.push(row("nothing: leaked".to_owned(), lost.bytes, lost.blocks, lost.pins_bytes));
    }
    if let Some(shared) = found.shared.filter(|shared| shared.blocks > 0) {
        rows.push(row("several of these together".to_owned(), shared.bytes, shared.blocks, 0));
    }
    let told = found.roots.iter().take(top);
    rows.extend(told.map(|root| row(name(root), root.retained_bytes, root.retained_blocks, root.pins_bytes)));
    let rest = found.roots.iter().skip(top);
    let others = (found.other_roots.bytes, found.other_roots.blocks);
    let (of, blocks) = rest.fold(others, |sum, root| {
        (sum.0.saturating_add(root.retained_bytes), sum.1.saturating_add(root.retained_blocks))
    });
    if blocks > 0 {
        rows.push(row("other roots, each by itself".to_owned(), of, blocks, 0));
    }
    rows
}

/// A root in a few words.
fn name(root: &Root) -> String {
    let name = clean(&root.name);
    let thread = root.thread.as_deref().map(clean).unwrap_or_default();
    match root.kind {
        RootKind::Stack => format!("stack of {thread}"),
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

fn kind(of: &Type) -> Vec<String> {
    let maybe = |of: u64| if of > 0 { bytes(of) } else { String::new() };
    vec![
        clean(&of.name),
        bytes(of.bytes),
        of.instances.to_string(),
        maybe(of.unreachable_bytes.unwrap_or(0)),
        maybe(of.pins_bytes),
    ]
}
