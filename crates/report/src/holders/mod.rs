//! The views of `holders`: what leaked, which roots retain the rest, which types it has, and which
//! blocks pin free memory.

mod growth;
mod leaked;
mod names;
pub mod page;
mod screen;

use std::collections::HashMap;

use strandline_claims::add_fields;
use strandline_inspect::environment::utc;
use strandline_inspect::holders::facts::{
    Holders, Holding, Nearest, Root, RootKind, Shared, SharedType, Sum, Type,
};

use crate::table::{Column, figures, words};
use crate::text::{clean, counted, shorten_apart};
use crate::units::{UNKNOWN, bytes, thousands};

use leaked::leaked_text;
use names::{OF_SIZE, instances, root_name, root_text, shortened, shown_type, size_of_type};
pub use screen::{details, holders};

const ROOT_HEAD: [Column; 4] = [words("root"), figures("retained"), figures("blocks"), figures("pins")];
const TYPE_HEAD: [Column; 5] =
    [words("type"), figures("bytes"), figures("instances"), figures("leaked"), figures("pins")];
/// Depth limit of the retention path shown below a root.
const MAX_STEPS: usize = 4;
/// A part of what a root retains is shown from 1/`MIN_SHARE_DIVISOR` of all live bytes on.
const MIN_SHARE_DIVISOR: u64 = 50;
/// Maximum number of types at one step of a retention path.
const MAX_SIBLINGS: usize = 3;
/// A root or set belongs to the headline if it retains more than 1/`HEADLINE_DIVISOR` of all live
/// bytes.
const HEADLINE_DIVISOR: u64 = 10;
/// Blocks of one size have a line of their own from 1/`MIN_SIZE_DIVISOR` of all live bytes on.
const MIN_SIZE_DIVISOR: u64 = 100;
/// Unattributed memory below this is normal for any program.
const MIN_UNATTRIBUTED_BYTES: u64 = 32 << 20;
/// Pinned memory below this is not mentioned.
const MIN_PINNED_BYTES: u64 = 1 << 20;
/// Maximum number of root sets shown separately.
const MAX_SETS: usize = 6;
/// Maximum width of a root's name among several.
const MAX_JOINED_COLUMNS: usize = 32;
/// Later times, after the year 5138, are not shown: a clock or a document is wrong.
const MAX_UNIX_SECONDS: f64 = 1e11;
/// The name of the leaked blocks among the roots.
const LEAKED_NAME: &str = "nothing: leaked";

/// The process, and the time of the snapshot.
fn process_line(facts: &Holders) -> String {
    let executable = facts.executable.as_deref().map_or(String::new(), |path| format!(" · {}", clean(path)));
    let seconds = facts.taken_unix_seconds;
    let time = (1.0..MAX_UNIX_SECONDS).contains(&seconds).then(|| format!(" · {}", utc(seconds as u64)));
    format!("process {}{executable}{}", facts.pid, time.unwrap_or_default())
}

/// What leaked, and what alone retains most of the rest.
fn headline(facts: &Holders) -> String {
    if facts.live.blocks == 0 {
        return "no block of an allocator that is read is in use here (see strandline explain)".to_owned();
    }
    let live = format!("{} in {}", bytes(facts.live.bytes), counted(facts.live.blocks, "live block"));
    let leaked = match &facts.unreachable {
        None => "what leaked is not known (-v shows why)".to_owned(),
        Some(unreachable) if unreachable.blocks > 0 => leaked_text(facts, unreachable),
        Some(_) if unattributed_part(facts).is_some() => "every block that was read is reachable".to_owned(),
        Some(_) => format!("nothing leaked{}", unsearched_memory(facts)),
    };
    let min_bytes = facts.live.bytes / HEADLINE_DIVISOR;
    let root_bytes = facts.roots.first().map_or(0, |root| root.retained_bytes);
    let sets = RootSets::of(facts);
    let set_and_names = sets.shown.iter().zip(sets.names()).next();
    let larger_set = set_and_names.filter(|(set, _)| set.retained_bytes > root_bytes);
    let text = match (larger_set, facts.roots.first()) {
        (Some((set, names)), _) if set.retained_bytes > min_bytes => {
            let retained = bytes(set.retained_bytes);
            format!("{leaked}; {names} together retain {retained} of {live}")
        }
        (_, Some(root)) if root_bytes > min_bytes => {
            let (name, retained) = (shortened(&root_name(root)), bytes(root_bytes));
            format!("{leaked}; {name} alone retains {retained} of {live}")
        }
        _ => format!("{leaked}; {live} in all"),
    };
    text + &unattributed_part(facts).unwrap_or_default() + &pinning_block(facts).unwrap_or_default()
}

/// A clause that names the memory of runtimes, if there is any: all blocks in it count as
/// reachable, also garbage in cycles.
fn unsearched_memory(facts: &Holders) -> String {
    let is_memory = |root: &&Root| root.kind == RootKind::Runtime && root.module.is_none();
    let names: Vec<String> = facts.roots.iter().filter(is_memory).map(root_name).collect();
    if names.is_empty() { String::new() } else { format!(" outside {}", names.join(" and ")) }
}

/// The part of RSS that no reader explains, if it is most of it.
fn unattributed_part(facts: &Holders) -> Option<String> {
    let rss = facts.rss_bytes?;
    let is_large = |unattributed: &u64| *unattributed > (rss / 2).max(MIN_UNATTRIBUTED_BYTES);
    let unattributed = facts.unattributed_bytes.filter(is_large)?;
    Some(format!(
        "; {} of {} RSS is of no allocator that is read, and was not searched",
        bytes(unattributed),
        bytes(rss)
    ))
}

/// The blocks that pin the most memory, if these are worth mentioning. The figure counts whole
/// pages, with the blocks themselves, because whole pages would be released.
fn pinning_block(facts: &Holders) -> Option<String> {
    let min_bytes = (facts.live.bytes / HEADLINE_DIVISOR).max(MIN_PINNED_BYTES);
    let keeper = facts.keepers.first().filter(|keeper| keeper.pins_bytes > min_bytes)?;
    let holder = match keeper.root.and_then(|root| facts.roots.get(root)) {
        Some(root) => format!(" (retained by {})", shortened(&root_name(root))),
        None if keeper.unreachable => " (leaked)".to_owned(),
        None => String::new(),
    };
    let is_single = facts.types.iter().any(|kind| kind.name == keeper.name && kind.instances == 1);
    let verb = if is_single { "pins" } else { "pin" };
    Some(format!(
        "; {}{holder} {verb} {} of pages that hold no other blocks",
        shortened(&shown_type(&keeper.name)),
        bytes(keeper.pins_bytes)
    ))
}

/// A root, leaked blocks, or blocks with several roots.
struct RootGroup {
    name: String,
    retained: Sum,
    pins_bytes: u64,
    /// What it retains, by type.
    holds: Vec<Holding>,
    /// Minimum size of what its retention path shows.
    min_path_bytes: u64,
}

/// The groups that are shown, and what is left of the roots.
struct RootGroups {
    /// Largest first, but leaked blocks come first if they are a significant part.
    listed: Vec<RootGroup>,
    unlisted: UnlistedRoots,
}

impl RootGroups {
    /// The groups, with the `top` largest roots.
    fn new(facts: &Holders, top: usize) -> Self {
        let min_path_bytes = facts.live.bytes / MIN_SHARE_DIVISOR;
        let group_of = |name: String, retained: Sum, holds: Vec<Holding>| RootGroup {
            name,
            retained,
            pins_bytes: 0,
            holds,
            min_path_bytes,
        };
        let mut listed = Vec::new();
        let leaked = facts.unreachable.as_ref().filter(|leaked| leaked.blocks > 0);
        if let Some(leaked) = leaked {
            let retained = Sum { bytes: leaked.bytes, blocks: leaked.blocks };
            let group = group_of(LEAKED_NAME.to_owned(), retained, leaked.holds.clone());
            listed.push(RootGroup { pins_bytes: leaked.pins_bytes, ..group });
        }
        let sets = RootSets::of(facts);
        for (set, names) in sets.shown.iter().zip(sets.names()) {
            let retained = Sum { bytes: set.retained_bytes, blocks: set.retained_blocks };
            listed.push(group_of(names, retained, set.types.iter().map(holding).collect()));
        }
        if sets.others.blocks > 0 {
            listed.push(group_of(sets.others_name().to_owned(), sets.others, sets.others_holds().to_vec()));
        }
        let unlisted_count = facts.root_count.saturating_sub(facts.roots.len() as u64);
        let mut unlisted = UnlistedRoots { count: unlisted_count, retained: facts.other_roots };
        for (index, root) in merge_threads(&facts.roots).into_iter().enumerate() {
            let retained = Sum { bytes: root.retained_bytes, blocks: root.retained_blocks };
            if index >= top {
                unlisted.add(retained);
                continue;
            }
            // A root that pins a lot retains little itself, so show its contents in more detail.
            let pins_much = root.pins_bytes >= min_path_bytes;
            let min_path_bytes = if pins_much { root.retained_bytes / 2 } else { min_path_bytes };
            let group = group_of(root_name(&root), retained, root.holds);
            listed.push(RootGroup { pins_bytes: root.pins_bytes, min_path_bytes, ..group });
        }
        let is_leaked_first = leaked.is_some_and(|leaked| leaked.bytes > min_path_bytes);
        listed[usize::from(is_leaked_first)..].sort_by_key(|group| std::cmp::Reverse(group.retained.bytes));
        Self { listed, unlisted }
    }
}

/// The roots that are not shown one by one.
struct UnlistedRoots {
    count: u64,
    /// What they retain together.
    retained: Sum,
}

impl UnlistedRoots {
    /// Adds a root that retains `retained`.
    fn add(&mut self, retained: Sum) {
        self.count = self.count.saturating_add(1);
        self.retained.bytes = self.retained.bytes.saturating_add(retained.bytes);
        self.retained.blocks = self.retained.blocks.saturating_add(retained.blocks);
    }
}

/// Rows of the groups, each with the paths to most of what it retains.
fn root_rows(facts: &Holders, top: usize) -> Vec<Vec<String>> {
    let RootGroups { listed, unlisted } = RootGroups::new(facts, top);
    let mut rows = Vec::new();
    for group in listed {
        rows.push(row(group.name, group.retained, group.pins_bytes));
        push_retention_path(&mut rows, &group.holds, group.min_path_bytes);
    }
    if unlisted.retained.blocks > 0 {
        rows.push(row("other roots, each by itself".to_owned(), unlisted.retained, 0));
    }
    rows
}

/// Sets of roots that retain blocks together.
struct RootSets<'a> {
    /// The sets shown separately.
    shown: &'a [Shared],
    /// What all other sets retain.
    others: Sum,
    /// What all sets retain, by type.
    all_holds: &'a [Holding],
}

impl<'a> RootSets<'a> {
    fn of(facts: &'a Holders) -> Self {
        let min_bytes = facts.live.bytes / MIN_SHARE_DIVISOR;
        let is_shown = |set: &&Shared| set.retained_bytes > min_bytes && !set.nearest.is_empty();
        let shown_count = facts.shared.iter().take(MAX_SETS).take_while(is_shown).count();
        let shown = &facts.shared[..shown_count];
        // Without a total the references were not followed, and no set is known.
        let others = shown.iter().fold(facts.shared_total.unwrap_or_default(), |sum, set| Sum {
            bytes: sum.bytes.saturating_sub(set.retained_bytes),
            blocks: sum.blocks.saturating_sub(set.retained_blocks),
        });
        Self { shown, others, all_holds: &facts.shared_holds }
    }

    /// The names of the nearest roots of each shown set. A text in two sets stands for one root.
    fn names(&self) -> Vec<String> {
        let name =
            |root: &Nearest| root_text(root.kind, &root.name, root.module.as_deref(), root.thread.as_deref());
        let names: Vec<String> = self.shown.iter().flat_map(|set| &set.nearest).map(name).collect();
        let mut names = shorten_apart(&names, MAX_JOINED_COLUMNS).into_iter();
        self.shown
            .iter()
            .map(|set| join_names(set, names.by_ref().take(set.nearest.len()).collect()))
            .collect()
    }

    /// The name of all other sets.
    fn others_name(&self) -> &'static str {
        if self.shown.is_empty() { "several roots together" } else { "other roots, several together" }
    }

    /// What all other sets retain, by type; empty if some sets are shown, as it is not known then.
    fn others_holds(&self) -> &'a [Holding] {
        if self.shown.is_empty() { self.all_holds } else { &[] }
    }
}

/// Joins the `names` of the nearest roots of a set, and the number of others.
fn join_names(set: &Shared, mut names: Vec<String>) -> String {
    let unnamed_count = set.roots.len().saturating_sub(names.len());
    match (unnamed_count, set.has_more) {
        (0, false) => {}
        (count, true) => names.push(format!("{count} or more others")),
        (count, false) => names.push(format!("{count} more")),
    }
    match names.split_last() {
        Some((name, [])) => name.clone(),
        Some((last_name, names)) => format!("{} and {last_name}", names.join(", ")),
        None => "several roots".to_owned(),
    }
}

/// The blocks of a type that several roots retain.
fn holding(shared: &SharedType) -> Holding {
    let (retained_bytes, retained_blocks) = (shared.bytes, shared.instances);
    let (name, instances, bytes) = (shared.name.clone(), shared.instances, shared.bytes);
    Holding { name, instances, bytes, retained_bytes, retained_blocks, ..Holding::default() }
}

/// Merges roots of the same name in several threads; largest first.
fn merge_threads(roots: &[Root]) -> Vec<Root> {
    let mut indexes: HashMap<(RootKind, &str, Option<&str>), usize> = HashMap::new();
    // Each root with what it holds in each thread.
    let mut merged: Vec<(Root, Vec<&[Holding]>)> = Vec::new();
    for root in roots {
        let key = (root.kind, root.name.as_str(), root.module.as_deref());
        let index = if root.thread.is_some() { indexes.get(&key).copied() } else { None };
        match index.and_then(|index| merged.get_mut(index)) {
            Some((sum, lists)) => {
                add_fields!(saturating sum, root: retained_bytes, retained_blocks, pins_bytes);
                lists.push(&root.holds);
                sum.thread = Some(format!("{} threads", lists.len()));
            }
            None => {
                indexes.insert(key, merged.len());
                merged.push((root.clone(), vec![root.holds.as_slice()]));
            }
        }
    }
    let with_holds = |(root, lists): (Root, Vec<&[Holding]>)| match lists.as_slice() {
        [_] => root,
        several => Root { holds: merge_types(several), ..root },
    };
    let mut roots: Vec<Root> = merged.into_iter().map(with_holds).collect();
    roots.sort_by_key(|root| std::cmp::Reverse(root.retained_bytes));
    roots
}

/// A row of the table of roots.
fn row(name: String, retained: Sum, pins_bytes: u64) -> Vec<String> {
    let pins = if pins_bytes > 0 { bytes(pins_bytes) } else { String::new() };
    vec![name, bytes(retained.bytes), thousands(retained.blocks), pins]
}

/// Adds rows for the path to most of what a root retains, type by type, down to `min_bytes`.
fn push_retention_path(rows: &mut Vec<Vec<String>>, holds: &[Holding], min_bytes: u64) {
    let mut holds = holds;
    for depth in 1..=MAX_STEPS {
        let is_large = |kind: &&Holding| kind.retained_bytes >= min_bytes;
        for kind in holds.iter().filter(is_large).take(MAX_SIBLINGS) {
            let name = format!("{}{}", "  ".repeat(depth), instances(kind));
            rows.push(row(name, Sum { bytes: kind.retained_bytes, blocks: kind.retained_blocks }, 0));
        }
        // Continue only below a single child; with several, the parent of deeper rows would be
        // unclear.
        match holds {
            [single] => holds = &single.holds,
            _ => return,
        }
    }
}

/// Merges what several roots retain, type by type.
fn merge_types(lists: &[&[Holding]]) -> Vec<Holding> {
    // A map, because a document may have millions of names.
    let mut indexes: HashMap<&str, usize> = HashMap::new();
    // Each type with what its instances hold in each list.
    let mut merged: Vec<(Holding, Vec<&[Holding]>)> = Vec::new();
    for kind in lists.iter().copied().flatten() {
        let index = indexes.get(kind.name.as_str()).copied();
        match index.and_then(|index| merged.get_mut(index)) {
            Some((sum, held_lists)) => {
                add_fields!(saturating sum, kind: instances, bytes, chained, retained_bytes, retained_blocks);
                held_lists.push(&kind.holds);
            }
            None => {
                indexes.insert(&kind.name, merged.len());
                let without_holds = Holding { name: kind.name.clone(), holds: Vec::new(), ..*kind };
                merged.push((without_holds, vec![kind.holds.as_slice()]));
            }
        }
    }
    let with_holds = |(kind, lists): (Holding, Vec<&[Holding]>)| match lists.as_slice() {
        [single] => Holding { holds: single.to_vec(), ..kind },
        several => Holding { holds: merge_types(several), ..kind },
    };
    merged.into_iter().map(with_holds).collect()
}

/// Rows of the types, largest first. Size classes with few bytes that pin few bytes are merged into
/// one line.
fn type_rows(facts: &Holders, top: usize) -> Vec<Vec<String>> {
    let min_bytes = facts.live.bytes / MIN_SIZE_DIVISOR;
    let is_small = |kind: &&Type| {
        kind.bytes.max(kind.pins_bytes) < min_bytes
            && kind.unreachable_bytes == Some(0)
            && size_of_type(&kind.name).is_some()
    };
    let (small, mut types): (Vec<&Type>, Vec<&Type>) = facts.types.iter().partition(is_small);
    if small.len() < 2 {
        return facts.types.iter().take(top).map(type_row).collect();
    }
    let name = format!("{OF_SIZE}{} other sizes", thousands(small.len() as u64));
    let mut sum = Type { name, unreachable_bytes: Some(0), ..Type::default() };
    for kind in &small {
        add_fields!(saturating sum, kind: bytes, instances, pins_bytes);
    }
    types.push(&sum);
    types.sort_by_key(|kind| std::cmp::Reverse(kind.bytes));
    types.into_iter().take(top).map(type_row).collect()
}

fn type_row(kind: &Type) -> Vec<String> {
    let blank_if_zero = |size: u64| if size > 0 { bytes(size) } else { String::new() };
    vec![
        shown_type(&kind.name),
        bytes(kind.bytes),
        thousands(kind.instances),
        kind.unreachable_bytes.map_or(UNKNOWN.to_owned(), blank_if_zero),
        blank_if_zero(kind.pins_bytes),
    ]
}

#[cfg(test)]
mod tests {
    use strandline_inspect::holders::facts::{Sum, Unreachable};
    use strandline_inspect::holders::growth::{Change, ChangedEntry, Comparison};

    use super::*;

    #[test]
    fn roots_of_several_sets_are_numbered_once() {
        let names = ["first", "second"]
            .map(|middle| format!("g_table_of_all_sessions_by_{middle}_key_of_each_open_connection"));
        let nearest = |name: &String| Nearest { name: name.clone(), ..Nearest::default() };
        let set = |roots: &[String]| Shared {
            roots: roots.to_vec(),
            nearest: roots.iter().map(nearest).collect(),
            ..Shared::default()
        };
        let sets = [set(&names), set(&names[1..])];
        let sets = RootSets { shown: &sets, others: Sum::default(), all_holds: &[] };
        let shown = sets.names();
        assert!(shown[0].contains(" #1 and ") && shown[0].ends_with(" #2"), "{shown:?}");
        assert!(shown[0].ends_with(&shown[1]), "{shown:?}");
    }

    /// A heap with types of these bytes and instances.
    fn heap_of(sizes: &[(u64, u64)]) -> Holders {
        let kind = |&(bytes, instances): &(u64, u64)| Type {
            name: format!("{}-byte blocks", bytes / instances),
            bytes,
            instances,
            unreachable_bytes: Some(0),
            ..Type::default()
        };
        let types: Vec<Type> = sizes.iter().map(kind).collect();
        let bytes = sizes.iter().map(|(bytes, _)| bytes).sum();
        let blocks = sizes.iter().map(|(_, instances)| instances).sum();
        Holders {
            live: Sum { bytes, blocks },
            types,
            unreachable: Some(Unreachable::default()),
            ..Holders::default()
        }
    }

    #[test]
    fn small_blocks_of_several_sizes_are_one_line() {
        let facts = heap_of(&[(1 << 20, 1), (4000, 4), (3000, 5), (64, 1)]);
        let names: Vec<String> = type_rows(&facts, 20).into_iter().map(|row| row[..3].join(" ")).collect();
        assert_eq!(names, ["blocks of 1,048,576 bytes 1.00 MiB 1", "blocks of 3 other sizes 6.90 KiB 10"]);
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
        let merged = &all[0];
        assert_eq!((merged.thread.as_deref(), merged.retained_bytes), (Some("3 threads"), 30));
        let summary = |holds: &[Holding]| -> Vec<(String, u64, u64)> {
            holds.iter().map(|kind| (kind.name.clone(), kind.instances, kind.retained_bytes)).collect()
        };
        assert_eq!(summary(&merged.holds), [("a".to_owned(), 3, 10), ("b".to_owned(), 1, 4)]);
        assert_eq!(summary(&merged.holds[0].holds), [("c".to_owned(), 2, 2), ("d".to_owned(), 1, 2)]);
    }

    #[test]
    fn a_small_heap_in_a_large_process_is_no_proof_that_nothing_leaked() {
        let mut facts = heap_of(&[(2 << 20, 2)]);
        assert!(headline(&facts).contains("nothing leaked"));
        (facts.rss_bytes, facts.unattributed_bytes) = (Some(159 << 20), Some(157 << 20));
        let text = headline(&facts);
        assert!(!text.contains("nothing leaked") && text.contains("157 MiB of 159 MiB RSS"), "{text}");
    }

    /// A heap with more roots, types, sets and caveats than a screen has lines.
    fn crowded() -> Holders {
        let sizes: Vec<(u64, u64)> = (1..40).map(|number| (number << 20, 1 << 10)).collect();
        let mut facts = heap_of(&sizes);
        let holds = |name: &str, bytes| {
            vec![Holding { name: name.into(), instances: 3, retained_bytes: bytes, ..Holding::default() }]
        };
        facts.executable = Some(format!("/usr/lib/{}/server", "folder".repeat(20)));
        facts.roots = (1..40)
            .map(|number| Root {
                name: format!("module.table_of_entries_number_{number}"),
                retained_bytes: (50 - number) << 20,
                retained_blocks: 3,
                holds: holds("a type of a name that is long enough for two lines", (50 - number) << 20),
                ..Root::default()
            })
            .collect();
        let leaked_bytes = facts.live.bytes / 3;
        let unreachable = Unreachable { bytes: leaked_bytes, blocks: 9, ..Unreachable::default() };
        facts.unreachable =
            Some(Unreachable { holds: holds("server::Session", leaked_bytes), ..unreachable });
        for number in 0..9 {
            let text = format!("part {number} was not read, for a reason that takes a sentence");
            facts.caveats.push(strandline_claims::Caveat::new("part", "heap", Some(1 << 30), text));
        }
        facts
    }

    #[test]
    fn a_default_screen_has_at_most_40_lines_and_details_have_the_rest() {
        let plain = crate::paint::Surface { columns: 80, has_colour: false };
        let fits = |text: &str| text.lines().all(|line| crate::text::width(line) <= 80);
        let mut facts = crowded();
        let change =
            ChangedEntry { name: "server::Session".into(), bytes: 9 << 20, ..ChangedEntry::default() };
        for since in [None, Some(vec![change; 30])] {
            facts.since = since.map(|changed| Comparison {
                seconds: Some(600.0),
                unreachable: Some(Change { bytes: 12 << 20, blocks: 9 }),
                roots: changed.clone(),
                types: changed,
                ..Comparison::default()
            });
            let text = holders(&facts, None, plain);
            assert!(fits(&text) && text.lines().count() <= 40, "{text}");
            assert!(text.contains("7 caveats (-v)") && text.contains(" leaked in 9 blocks"), "{text}");
            assert!(text.contains("smaller roots") && !text.contains("number_39"), "{text}");
        }
        let unwrap = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(unwrap(&holders(&facts, None, plain)).contains("growing 1.20 MiB/min"));
        let all = details(&facts, None, plain);
        assert!(fits(&all), "{all}");
        let unwrapped = unwrap(&all);
        assert!(facts.roots.iter().all(|root| all.contains(&root.name)), "{all}");
        assert!(facts.types.iter().all(|kind| all.contains(&shown_type(&kind.name))), "{all}");
        assert!(facts.caveats.iter().all(|caveat| unwrapped.contains(&caveat.text)), "{all}");
    }
}
