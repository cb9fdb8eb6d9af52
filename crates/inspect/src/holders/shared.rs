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
pub fn tell(holders: &mut Holders, held: &DominatorTree, found: &[FoundRoot], types: &Types) {
    let sum = |sum: strandline_holders::Sum| Sum { bytes: sum.bytes, blocks: u64::from(sum.blocks) };
    let sets = held.shared_sets();
    let mut of_types = count(held, types);
    holders.shared_total = Some(sum(held.shared()));
    for (place, set) in sets.iter().enumerate() {
        if place < MAX_SETS {
            holders.shared.push(shared(set, found, of_types.remove(&place).unwrap_or_default()));
        } else {
            holders.other_shared.bytes += set.sum.bytes;
            holders.other_shared.blocks += u64::from(set.sum.blocks);
        }
    }
}

/// Returns the types of the blocks of each listed set, by bytes, largest first.
fn count(held: &DominatorTree, types: &Types) -> HashMap<usize, Vec<SharedType>> {
    let mut sums: HashMap<(usize, u32), Sum> = HashMap::new();
    for (block, set) in held.each_shared().filter(|(_, set)| *set < MAX_SETS) {
        let key = (set, types.of(block as usize));
        if sums.len() < MAX_PAIRS || sums.contains_key(&key) {
            let sum = sums.entry(key).or_default();
            sum.bytes += held.blocks().bytes(block);
            sum.blocks += 1;
        }
    }
    let mut of_sets: HashMap<usize, Vec<SharedType>> = HashMap::new();
    for ((set, kind), sum) in sums {
        let name = types.name(kind).to_owned();
        of_sets.entry(set).or_default().push(SharedType { name, instances: sum.blocks, bytes: sum.bytes });
    }
    for of in of_sets.values_mut() {
        of.sort_by(|one, next| next.bytes.cmp(&one.bytes).then_with(|| one.name.cmp(&next.name)));
        of.truncate(MAX_TYPES);
    }
    of_sets
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
