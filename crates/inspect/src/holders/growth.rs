//! Growth between two inspections of one process, by root and by type.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::facts::{Holders, Root, RootKind, Sum, Type};

/// Growth from an earlier inspection to a later one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Seconds between the inspections; `None` if the time of either is not known.
    pub seconds: Option<f64>,
    /// All live blocks.
    pub live: Change,
    /// Unreachable blocks; `None` if they are unknown in either inspection.
    pub unreachable: Option<Change>,
    /// Roots that retain more or less than before, largest growth first.
    pub roots: Vec<ChangedEntry>,
    /// Types, in the same order.
    pub types: Vec<ChangedEntry>,
    /// Whether one of the inspections does not list all its roots or types, so that some changes
    /// may be missing.
    #[serde(default)]
    pub is_partial: bool,
}

/// An increase; negative for a decrease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// In bytes.
    pub bytes: i64,
    /// In blocks.
    pub blocks: i64,
}

impl Change {
    /// Wraps for figures that no process has: an earlier inspection is read from a file.
    fn between(before: Sum, now: Sum) -> Self {
        let increase = |before: u64, now: u64| now.cast_signed().wrapping_sub(before.cast_signed());
        Self { bytes: increase(before.bytes, now.bytes), blocks: increase(before.blocks, now.blocks) }
    }
}

/// A root or a type that grew or shrank.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ChangedEntry {
    /// The kind of a root; `None` for a type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<RootKind>,
    /// As in [`Root::name`] or [`Type::name`].
    pub name: String,
    /// As in [`Root::module`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
    /// As in [`Root::thread`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
    /// Bytes now: retained ones of a root, all of a type.
    pub bytes: u64,
    /// The increase.
    pub grew: Change,
}

/// Identifies a root or a type in both inspections. Names of threads contain their number.
#[derive(PartialEq, Eq, Hash)]
struct Key<'a> {
    /// `None` for a type.
    kind: Option<RootKind>,
    name: &'a str,
    module: Option<&'a str>,
    thread: Option<&'a str>,
}

/// The roots or the types that an inspection lists.
struct Listing<'a> {
    sums: HashMap<Key<'a>, Sum>,
    /// Whether it found more than it lists.
    has_more: bool,
}

impl<'a> Listing<'a> {
    fn new(entries: impl Iterator<Item = (Key<'a>, Sum)>, has_more: bool) -> Self {
        let mut sums: HashMap<Key<'a>, Sum> = HashMap::new();
        for (key, Sum { bytes, blocks }) in entries {
            let sum = sums.entry(key).or_default();
            sum.bytes = sum.bytes.saturating_add(bytes);
            sum.blocks = sum.blocks.saturating_add(blocks);
        }
        Self { sums, has_more }
    }

    fn of_roots(holders: &'a Holders) -> Self {
        let entry = |root: &'a Root| {
            let (module, thread) = (root.module.as_deref(), root.thread.as_deref());
            let key = Key { kind: Some(root.kind), name: &root.name, module, thread };
            (key, Sum { bytes: root.retained_bytes, blocks: root.retained_blocks })
        };
        // Roots beyond the list that retain nothing are 0 in any case.
        Self::new(holders.roots.iter().map(entry), holders.other_roots.blocks > 0)
    }

    fn of_types(holders: &'a Holders) -> Self {
        let entry = |listed: &'a Type| {
            let key = Key { kind: None, name: &listed.name, module: None, thread: None };
            (key, Sum { bytes: listed.bytes, blocks: listed.instances })
        };
        Self::new(holders.types.iter().map(entry), holders.type_count > holders.types.len() as u64)
    }
}

/// Compares two inspections. What only one of them lists counts as 0 in the other; if the other
/// does not list everything, it is left out.
pub fn between(before: &Holders, now: &Holders) -> Comparison {
    let (roots_before, roots_now) = (Listing::of_roots(before), Listing::of_roots(now));
    let (types_before, types_now) = (Listing::of_types(before), Listing::of_types(now));
    let is_partial =
        [&roots_before, &roots_now, &types_before, &types_now].iter().any(|listing| listing.has_more);
    let unreachable = |holders: &Holders| {
        let unreachable = holders.unreachable.as_ref()?;
        Some(Sum { bytes: unreachable.bytes, blocks: unreachable.blocks })
    };
    let time = |holders: &Holders| Some(holders.taken_unix_seconds).filter(|&seconds| seconds > 0.0);
    Comparison {
        seconds: time(before).zip(time(now)).map(|(before, now)| now - before),
        live: Change::between(before.live, now.live),
        unreachable: unreachable(before)
            .zip(unreachable(now))
            .map(|(before, now)| Change::between(before, now)),
        roots: changes(roots_before, roots_now),
        types: changes(types_before, types_now),
        is_partial,
    }
}

/// Returns what grew or shrank, by growth, largest first, and then by name.
fn changes<'a>(mut before: Listing<'a>, now: Listing<'a>) -> Vec<ChangedEntry> {
    let mut changes: Vec<ChangedEntry> = Vec::new();
    let mut add = |key: Key<'a>, earlier: Sum, now: Sum| {
        let grew = Change::between(earlier, now);
        if grew != Change::default() {
            let (module, thread) = (key.module.map(str::to_owned), key.thread.map(str::to_owned));
            let (kind, name) = (key.kind, key.name.to_owned());
            changes.push(ChangedEntry { kind, name, module, thread, bytes: now.bytes, grew });
        }
    };
    for (key, sum) in now.sums {
        let listed = before.sums.remove(&key);
        if let Some(earlier) = listed.or((!before.has_more).then_some(Sum::default())) {
            add(key, earlier, sum);
        }
    }
    for (key, earlier) in before.sums.into_iter().filter(|_| !now.has_more) {
        add(key, earlier, Sum::default());
    }
    changes.sort_by(|a, b| {
        let by_name =
            || (&a.name, &a.thread, &a.module, a.kind).cmp(&(&b.name, &b.thread, &b.module, b.kind));
        b.grew.bytes.cmp(&a.grew.bytes).then_with(by_name)
    });
    changes
}

#[cfg(test)]
mod tests {
    use super::super::facts::Unreachable;
    use super::*;

    fn root(name: &str, retained_bytes: u64) -> Root {
        Root { name: name.to_owned(), retained_bytes, retained_blocks: 1, ..Root::default() }
    }

    fn inspection(seconds: f64, roots: Vec<Root>, types: &[(&str, u64)]) -> Holders {
        let of =
            |&(name, bytes): &(&str, u64)| Type { name: name.into(), bytes, instances: 1, ..Type::default() };
        let unreachable = Some(Unreachable { bytes: seconds as u64, blocks: 1, ..Unreachable::default() });
        let live = Sum { bytes: 1000, blocks: 5 };
        let types = types.iter().map(of).collect();
        Holders { taken_unix_seconds: seconds, live, unreachable, roots, types, ..Holders::default() }
    }

    #[test]
    fn what_grew_comes_first_and_what_went_last() {
        let before =
            inspection(10.0, vec![root("same", 7), root("gone", 90), root("cache", 100)], &[("A", 5)]);
        let now = inspection(
            70.0,
            vec![root("cache", 500), root("new", 20), root("same", 7)],
            &[("B", 9), ("A", 4)],
        );
        let growth = between(&before, &now);
        assert_eq!((growth.seconds, growth.live), (Some(60.0), Change::default()));
        assert_eq!(growth.unreachable, Some(Change { bytes: 60, blocks: 0 }));
        let grown = |all: &[ChangedEntry]| {
            all.iter().map(|one| (one.name.clone(), one.grew.bytes)).collect::<Vec<_>>()
        };
        assert_eq!(grown(&growth.roots), [("cache".into(), 400), ("new".into(), 20), ("gone".into(), -90)]);
        assert_eq!(grown(&growth.types), [("B".into(), 9), ("A".into(), -1)]);
    }

    /// What is not listed may have existed nevertheless.
    #[test]
    fn entries_missing_before_did_not_grow() {
        let before = Holders { type_count: 5, ..inspection(0.0, vec![root("a", 10)], &[("A", 5)]) };
        let before = Holders { other_roots: Sum { bytes: 100, blocks: 1 }, ..before };
        let growth =
            between(&before, &inspection(1.0, vec![root("a", 30), root("b", 20)], &[("A", 6), ("B", 9)]));
        assert_eq!((growth.roots.len(), growth.types.len(), growth.is_partial), (1, 1, true));
        assert_eq!(growth.seconds, None, "a time of 0 is not known");
    }

    #[test]
    fn hostile_figures_of_a_file_are_harmless() {
        let before =
            inspection(0.0, vec![root("a", u64::MAX), root("a", u64::MAX)], &[("A", u64::MAX), ("A", 1)]);
        let growth = between(&before, &inspection(f64::NAN, Vec::new(), &[]));
        assert_eq!((growth.roots.len(), growth.types.len(), growth.seconds), (1, 1, None));
    }
}
