//! The views of `holders`: what leaked, which roots retain the rest, which types it has, and which
//! blocks pin free memory.

pub mod page;
mod screen;

use std::collections::HashMap;

use strandline_claims::add_fields;
use strandline_inspect::environment::utc;
use strandline_inspect::holders::facts::{
    Holders, Holding, Root, RootKind, Shared, SharedType, Sum, Type, Unreachable,
};
use strandline_inspect::holders::growth::{Change, Changed, Comparison};

use crate::table::{Column, figures, words};
use crate::text::{clean, counted, shorten};
use crate::units::{UNKNOWN, bytes, percent, seconds, thousands};

pub use screen::{details, holders};

const ROOTS: [Column; 4] = [words("root"), figures("retained"), figures("blocks"), figures("pins")];
const TYPES: [Column; 5] =
    [words("type"), figures("bytes"), figures("instances"), figures("leaked"), figures("pins")];
const GROWTH_COLUMNS: [Column; 5] =
    [words("root"), figures("grew"), figures("blocks"), figures("now"), figures("rate")];
const TYPE_GROWTH_COLUMNS: [Column; 5] =
    [words("type"), figures("grew"), figures("instances"), figures("now"), figures("rate")];
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
/// Maximum number of kinds of leaked blocks in a sentence.
const MAX_LEAKED_KINDS: usize = 2;
/// Maximum number of root sets shown separately, and the width of a name among several.
const MAX_SETS: usize = 6;
const MAX_JOINED_COLUMNS: usize = 32;

/// The process, and the time of the snapshot.
fn process_line(found: &Holders) -> String {
    let executable = found.executable.as_deref().map_or(String::new(), |path| format!(" · {}", clean(path)));
    let seconds = found.taken_unix_seconds;
    let time = (1.0..1e11).contains(&seconds).then(|| format!(" · {}", utc(seconds as u64)));
    format!("process {}{executable}{}", found.pid, time.unwrap_or_default())
}

/// What leaked, and what alone retains most of the rest.
fn headline(found: &Holders) -> String {
    if found.live.blocks == 0 {
        return "no block of an allocator that is read is in use here (see strandline explain)".to_owned();
    }
    let all = format!("{} in {}", bytes(found.live.bytes), counted(found.live.blocks, "live block"));
    let lost = match &found.unreachable {
        None => "what leaked is not known (-v shows why)".to_owned(),
        Some(lost) if lost.blocks > 0 => leaked(found, lost),
        Some(_) if unattributed_part(found).is_some() => "every block that was read is reachable".to_owned(),
        Some(_) => "nothing leaked".to_owned(),
    };
    let alone = found.roots.first().map_or(0, |root| root.retained_bytes);
    let shared = shown_sets(found).0.first().filter(|set| set.retained_bytes > alone);
    let text = match (shared, found.roots.first()) {
        (Some(set), _) if set.retained_bytes > found.live.bytes / 10 => {
            format!("{lost}; {} together retain {} of {all}", join_root_names(set), bytes(set.retained_bytes))
        }
        (_, Some(root)) if alone > found.live.bytes / 10 => {
            format!("{lost}; {} alone retains {} of {all}", short(&root_name(root)), bytes(alone))
        }
        _ => format!("{lost}; {all} in all"),
    };
    text + &unattributed_part(found).unwrap_or_default() + &pinning_block(found).unwrap_or_default()
}

/// `78.2 MiB leaked in 359,327 blocks (12.3 %): 30,000 24-byte blocks, linked behind 12`.
fn leaked(found: &Holders, lost: &Unreachable) -> String {
    let mut text = format!(
        "{} leaked in {} ({})",
        bytes(lost.bytes),
        counted(lost.blocks, "block"),
        percent(lost.bytes, found.live.bytes)
    );
    let kinds = lost.holds.iter().take(MAX_LEAKED_KINDS).map(|of| short(&instances(of)));
    let kinds = kinds.collect::<Vec<_>>().join(" and ");
    if !kinds.is_empty() {
        text += &format!(": {kinds}");
    }
    if lost.definite.blocks != lost.blocks {
        let first = counted(lost.definite.blocks, "block");
        text += &format!("; {first} ({}) lead to the others", bytes(lost.definite.bytes));
    }
    let since = found.since.as_ref().filter(|since| since.seconds > 0.0);
    let grew = since.and_then(|since| Some((since.unreachable?.bytes, since.seconds)));
    if let Some((grew, seconds)) = grew.filter(|&(grew, _)| grew > 0) {
        text += &format!("; growing {}/min", bytes((grew as f64 * 60.0 / seconds) as u64));
    }
    text
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

/// The block that pins the most otherwise free memory, if these are worth mentioning.
fn pinning_block(found: &Holders) -> Option<String> {
    let least = (found.live.bytes / 10).max(MIN_PINNED_BYTES);
    let keeper = found.keepers.first().filter(|keeper| keeper.pins_bytes > least)?;
    let held = match keeper.root.and_then(|root| found.roots.get(root)) {
        Some(root) => format!(" (retained by {})", short(&root_name(root))),
        None if keeper.unreachable => " (leaked)".to_owned(),
        None => String::new(),
    };
    let is_one = found.types.iter().any(|of| of.name == keeper.name && of.instances == 1);
    let pin = if is_one { "pins" } else { "pin" };
    Some(format!(
        "; {}{held} {pin} {} that is otherwise free",
        short(&clean(&keeper.name)),
        bytes(keeper.pins_bytes)
    ))
}

fn short(name: &str) -> String {
    shorten(name, MAX_NAME_COLUMNS)
}

/// A root, leaked blocks, or blocks with several roots.
struct Group {
    name: String,
    retained: Sum,
    pins_bytes: u64,
    holds: Vec<Holding>,
    /// Minimum of retained bytes of what its paths show.
    least: u64,
}

/// The groups, largest first, but leaked blocks come first if they are a significant part; and the
/// roots beyond the `top` largest.
fn groups(found: &Holders, top: usize) -> (Vec<Group>, Rest) {
    let least = found.live.bytes / MIN_SHARE_DIVISOR;
    let mut groups = Vec::new();
    let lost = found.unreachable.as_ref().filter(|lost| lost.blocks > 0);
    if let Some(lost) = lost {
        let name = "nothing: leaked".to_owned();
        let retained = Sum { bytes: lost.bytes, blocks: lost.blocks };
        let holds = lost.holds.clone();
        groups.push(Group { name, retained, pins_bytes: lost.pins_bytes, holds, least });
    }
    let (sets, others) = shown_sets(found);
    for set in sets {
        let holds = set.types.iter().map(holding).collect();
        let retained = Sum { bytes: set.retained_bytes, blocks: set.retained_blocks };
        groups.push(Group { name: join_root_names(set), retained, pins_bytes: 0, holds, least });
    }
    if others.blocks > 0 {
        // If sets are shown, this is the rest: blocks of types without their own row.
        let (text, holds) = match sets {
            [] => ("several roots together", found.shared_holds.clone()),
            _ => ("other roots, several together", Vec::new()),
        };
        groups.push(Group { name: text.to_owned(), retained: others, pins_bytes: 0, holds, least });
    }
    let folded = merge_threads(&found.roots);
    let unlisted = found.root_count.saturating_sub(found.roots.len() as u64);
    let mut rest = Rest {
        count: unlisted.saturating_add(folded.len().saturating_sub(top) as u64),
        retained: found.other_roots,
    };
    for (index, (name, root)) in folded.into_iter().enumerate() {
        let retained = Sum { bytes: root.retained_bytes, blocks: root.retained_blocks };
        if index >= top {
            rest.add(retained);
            continue;
        }
        // A root that pins a lot retains little itself, so show its contents in more detail.
        let least = if root.pins_bytes >= least { root.retained_bytes / 2 } else { least };
        groups.push(Group { name, retained, pins_bytes: root.pins_bytes, holds: root.holds, least });
    }
    let first = lost.is_some_and(|lost| lost.bytes > least);
    groups[usize::from(first)..].sort_by_key(|group| std::cmp::Reverse(group.retained.bytes));
    (groups, rest)
}

/// What is not shown one by one.
#[derive(Default)]
struct Rest {
    count: u64,
    retained: Sum,
}

impl Rest {
    fn add(&mut self, retained: Sum) {
        self.retained.bytes = self.retained.bytes.saturating_add(retained.bytes);
        self.retained.blocks = self.retained.blocks.saturating_add(retained.blocks);
    }
}

/// Rows of the groups, each with the paths to most of what it retains.
fn root_rows(found: &Holders, top: usize) -> Vec<Vec<String>> {
    let (groups, rest) = groups(found, top);
    let mut rows = Vec::new();
    for group in groups {
        rows.push(row(group.name, group.retained, group.pins_bytes));
        retention_path(&mut rows, &group.holds, group.least);
    }
    if rest.retained.blocks > 0 {
        rows.push(row("other roots, each by itself".to_owned(), rest.retained, 0));
    }
    rows
}

/// The root sets shown separately, and what all other sets retain.
fn shown_sets(found: &Holders) -> (&[Shared], Sum) {
    let least = found.live.bytes / MIN_SHARE_DIVISOR;
    let is_shown = |set: &Shared| set.retained_bytes > least && !set.nearest.is_empty();
    let count = found.shared.iter().take(MAX_SETS).take_while(|set| is_shown(set)).count();
    let (sets, _) = found.shared.split_at(count);
    let rest = sets.iter().fold(found.shared_total.unwrap_or_default(), |rest, set| Sum {
        bytes: rest.bytes.saturating_sub(set.retained_bytes),
        blocks: rest.blocks.saturating_sub(set.retained_blocks),
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
    let mut folded: Vec<(Root, Vec<&[Holding]>)> = Vec::new();
    for root in roots {
        let key = (root.kind, root.name.as_str(), root.module.as_deref());
        let known = if root.thread.is_some() { places.get(&key).copied() } else { None };
        match known.and_then(|place| folded.get_mut(place)) {
            Some((of, lists)) => {
                add_fields!(saturating of, root: retained_bytes, retained_blocks, pins_bytes);
                lists.push(&root.holds);
                of.thread = Some(format!("{} threads", lists.len()));
            }
            None => {
                places.insert(key, folded.len());
                folded.push((root.clone(), vec![root.holds.as_slice()]));
            }
        }
    }
    let merged = |(root, lists): (Root, Vec<&[Holding]>)| match lists.as_slice() {
        [_] => root,
        several => Root { holds: merge(several), ..root },
    };
    let mut folded: Vec<(String, Root)> =
        folded.into_iter().map(merged).map(|root| (root_name(&root), root)).collect();
    folded.sort_by_key(|(_, root)| std::cmp::Reverse(root.retained_bytes));
    folded
}

fn row(name: String, retained: Sum, pins: u64) -> Vec<String> {
    let Sum { bytes: of, blocks } = retained;
    vec![name, bytes(of), thousands(blocks), if pins > 0 { bytes(pins) } else { String::new() }]
}

/// Adds rows for the path to most of what a root retains, type by type, down to `least` bytes.
fn retention_path(rows: &mut Vec<Vec<String>>, holds: &[Holding], least: u64) {
    let mut holds = holds;
    for depth in 1..=MAX_STEPS {
        for of in holds.iter().filter(|of| of.retained_bytes >= least).take(MAX_SIBLINGS) {
            let name = format!("{}{}", "  ".repeat(depth), instances(of));
            rows.push(row(name, Sum { bytes: of.retained_bytes, blocks: of.retained_blocks }, 0));
        }
        // Continue only below a single child; with several, the parent of deeper rows would be
        // unclear.
        match holds {
            [only] => holds = &only.holds,
            _ => return,
        }
    }
}

/// Merges what several roots retain, type by type.
fn merge(lists: &[&[Holding]]) -> Vec<Holding> {
    // A document may have millions of names.
    let mut places: HashMap<&str, usize> = HashMap::new();
    let mut merged: Vec<(Holding, Vec<&[Holding]>)> = Vec::new();
    for of in lists.iter().copied().flatten() {
        let known = places.get(of.name.as_str()).copied();
        match known.and_then(|place| merged.get_mut(place)) {
            Some((known, below)) => {
                add_fields!(saturating known, of: instances, chained, retained_bytes, retained_blocks);
                below.push(&of.holds);
            }
            None => {
                places.insert(&of.name, merged.len());
                let alone = Holding { name: of.name.clone(), holds: Vec::new(), ..*of };
                merged.push((alone, vec![of.holds.as_slice()]));
            }
        }
    }
    let with_below = |(of, below): (Holding, Vec<&[Holding]>)| match below.as_slice() {
        [only] => Holding { holds: only.to_vec(), ..of },
        several => Holding { holds: merge(several), ..of },
    };
    merged.into_iter().map(with_below).collect()
}

/// The number of instances, their type, and whether they are linked to each other.
fn instances(of: &Holding) -> String {
    let chained = match of.instances.checked_sub(of.chained).filter(|_| of.chained > 0) {
        Some(1) => ", linked".to_owned(),
        Some(first) => format!(", linked behind {}", thousands(first)),
        None => String::new(),
    };
    format!("{} {}{chained}", thousands(of.instances), type_name(of))
}

/// The name of a type, in the number of its instances. A type named `bytes` would read as a size
/// after a number.
fn type_name(of: &Holding) -> String {
    let is_one = of.instances == 1;
    match of.name.strip_suffix("-byte blocks") {
        Some(size) if is_one => format!("{size}-byte block"),
        None if of.name == "bytes" => format!("bytes object{}", if is_one { "" } else { "s" }),
        _ => clean(&of.name),
    }
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
        RootKind::Runtime if root.module.is_some() => name,
        RootKind::Runtime => format!("{name}'s memory"),
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
        add_fields!(saturating all, of: bytes, instances, pins_bytes);
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
    fn roots_of_several_threads_are_merged_type_by_type() {
        let holding = |name: &str, bytes: u64, holds: Vec<Holding>| Holding {
            name: name.into(),
            instances: 1,
            retained_bytes: bytes,
            holds,
            ..Holding::default()
        };
        let root = |number: u64, holds| Root {
            kind: RootKind::Stack,
            name: "main".into(),
            thread: Some(format!("{number}")),
            retained_bytes: 10,
            holds,
            ..Root::default()
        };
        let roots = [
            root(1, vec![holding("a", 6, vec![holding("c", 1, Vec::new())])]),
            root(2, vec![holding("b", 4, Vec::new()), holding("a", 3, vec![holding("d", 2, Vec::new())])]),
            root(3, vec![holding("a", 1, vec![holding("c", 1, Vec::new())])]),
        ];
        let all = merge_threads(&roots);
        assert_eq!(all.len(), 1);
        let merged = &all[0].1;
        assert_eq!((merged.thread.as_deref(), merged.retained_bytes), (Some("3 threads"), 30));
        let summary = |holds: &[Holding]| -> Vec<(String, u64, u64)> {
            holds.iter().map(|of| (of.name.clone(), of.instances, of.retained_bytes)).collect()
        };
        assert_eq!(summary(&merged.holds), [("a".to_owned(), 3, 10), ("b".to_owned(), 1, 4)]);
        assert_eq!(summary(&merged.holds[0].holds), [("c".to_owned(), 2, 2), ("d".to_owned(), 1, 2)]);
    }

    #[test]
    fn a_small_heap_in_a_large_process_is_no_proof_that_nothing_leaked() {
        let mut found = of_sizes(&[(2 << 20, 2)]);
        assert!(headline(&found).contains("nothing leaked"));
        (found.rss_bytes, found.unattributed_bytes) = (Some(159 << 20), Some(157 << 20));
        let text = headline(&found);
        assert!(!text.contains("nothing leaked") && text.contains("157 MiB of 159 MiB RSS"), "{text}");
    }

    /// A heap with more roots, types, sets and caveats than a screen has lines.
    fn crowded() -> Holders {
        let sizes: Vec<(u64, u64)> = (1..40).map(|number| (number << 20, 1 << 10)).collect();
        let mut found = of_sizes(&sizes);
        let holds = |name: &str, bytes| {
            vec![Holding { name: name.into(), instances: 3, retained_bytes: bytes, ..Holding::default() }]
        };
        found.executable = Some(format!("/usr/lib/{}/server", "folder".repeat(20)));
        found.roots = (1..40)
            .map(|number| Root {
                name: format!("module.table_of_entries_number_{number}"),
                retained_bytes: (50 - number) << 20,
                retained_blocks: 3,
                holds: holds("a type of a name that is long enough for two lines", (50 - number) << 20),
                ..Root::default()
            })
            .collect();
        let lost = found.live.bytes / 3;
        let unreachable = Unreachable { bytes: lost, blocks: 9, ..Unreachable::default() };
        found.unreachable = Some(Unreachable { holds: holds("server::Session", lost), ..unreachable });
        for number in 0..9 {
            let text = format!("part {number} was not read, for a reason that takes a sentence");
            found.caveats.push(strandline_claims::Caveat::new("part", "heap", Some(1 << 30), text));
        }
        found
    }

    #[test]
    fn a_default_screen_has_at_most_40_lines_and_details_have_the_rest() {
        let plain = crate::paint::Surface { columns: 80, colour: false };
        let fits = |text: &str| text.lines().all(|line| crate::text::width(line) <= 80);
        let mut found = crowded();
        let change = Changed { name: "server::Session".into(), bytes: 9 << 20, ..Changed::default() };
        for since in [None, Some(vec![change; 30])] {
            found.since = since.map(|changed| Comparison {
                seconds: 600.0,
                unreachable: Some(Change { bytes: 12 << 20, blocks: 9 }),
                roots: changed.clone(),
                types: changed,
                ..Comparison::default()
            });
            let text = holders(&found, None, plain);
            assert!(fits(&text) && text.lines().count() <= 40, "{text}");
            assert!(text.contains("7 caveats (-v)") && text.contains(" leaked in 9 blocks"), "{text}");
            assert!(text.contains("smaller roots") && !text.contains("number_39"), "{text}");
        }
        assert!(holders(&found, None, plain).contains("growing 1.20 MiB/min"));
        let all = details(&found, None, plain);
        assert!(fits(&all), "{all}");
        let unwrapped = all.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(found.roots.iter().all(|root| all.contains(&root.name)), "{all}");
        assert!(found.types.iter().all(|of| all.contains(&of.name)), "{all}");
        assert!(found.caveats.iter().all(|caveat| unwrapped.contains(&caveat.text)), "{all}");
    }
}
