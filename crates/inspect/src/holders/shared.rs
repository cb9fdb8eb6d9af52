//! Lists blocks that several roots hold together, by set of roots.

use std::collections::HashMap;

use strandline_holders::{DominatorTree, SharedSet};

use super::facts::{Holders, Nearest, Shared, SharedType, Sum};
use super::roots::FoundRoot;
use super::types::Types;

/// Maximum number of sets to list; for each, maximum number of roots with kind, module and thread,
/// and of types.
const MAX_SETS: usize = 100;
const MAX_NEAREST: usize = 3;
const MAX_TYPES: usize = 5;
/// Maximum number of pairs of a set and a type to count.
const MAX_PAIRS: usize = 1 << 16;

/// Adds the blocks that several roots hold to `holders`.
pub fn add(holders: &mut Holders, held: &DominatorTree, found: &[FoundRoot], types: &Types) {
    let mut types = types_by_set(held, types);
    holders.shared_total = Some(held.shared().into());
    for (index, set) in held.shared_sets().iter().enumerate() {
        if index < MAX_SETS {
            holders.shared.push(shared(set, found, types.remove(&index).unwrap_or_default()));
        } else {
            holders.other_shared.bytes += set.sum.bytes;
            holders.other_shared.blocks += u64::from(set.sum.blocks);
        }
    }
}

/// Returns the types of the blocks of each listed set, by bytes, largest first.
fn types_by_set(held: &DominatorTree, types: &Types) -> HashMap<usize, Vec<SharedType>> {
    let mut sums: HashMap<(usize, u32), Sum> = HashMap::new();
    for (block, set) in held.each_shared().filter(|(_, set)| *set < MAX_SETS) {
        let key = (set, types.kind(block as usize));
        if sums.len() < MAX_PAIRS || sums.contains_key(&key) {
            let sum = sums.entry(key).or_default();
            sum.bytes += held.blocks().bytes(block);
            sum.blocks += 1;
        }
    }
    let mut by_set: HashMap<usize, Vec<SharedType>> = HashMap::new();
    for ((set, kind), sum) in sums {
        let name = types.name(kind).to_owned();
        by_set.entry(set).or_default().push(SharedType { name, instances: sum.blocks, bytes: sum.bytes });
    }
    for types in by_set.values_mut() {
        types.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
        types.truncate(MAX_TYPES);
    }
    by_set
}

fn shared(set: &SharedSet, found: &[FoundRoot], types: Vec<SharedType>) -> Shared {
    let roots = || set.roots.iter().filter_map(|&root| found.get(root as usize));
    let nearest = |root: &FoundRoot| Nearest {
        kind: root.kind,
        name: root.name.clone(),
        module: root.module.clone(),
        thread: root.thread.clone(),
    };
    Shared {
        roots: roots().map(|root| root.name.clone()).collect(),
        has_more: set.has_more,
        retained_bytes: set.sum.bytes,
        retained_blocks: u64::from(set.sum.blocks),
        nearest: roots().take(MAX_NEAREST).map(nearest).collect(),
        types,
    }
}
