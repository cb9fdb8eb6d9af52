//! Lists blocks that several roots hold together, by set of roots.

use std::collections::HashMap;

use strandline_claims::caveat::Caveat;
use strandline_claims::units::thousands;
use strandline_holders::{DominatorTree, SharedSet};

use super::counted;
use super::facts::{Holders, Nearest, Shared, SharedType, Sum};
use super::roots::FoundRoot;
use super::types::Types;

/// Maximum number of sets to list.
const MAX_SETS: usize = 100;
/// Maximum number of roots of a set with kind, module and thread.
const MAX_NEAREST: usize = 3;
/// Maximum number of types of a set.
const MAX_TYPES: usize = 5;
/// Maximum number of pairs of a set and a type to count.
const MAX_PAIRS: usize = 1 << 16;

/// Adds the blocks that several roots hold to `holders`.
pub fn add(holders: &mut Holders, held: &DominatorTree, found: &[FoundRoot], types: &Types) {
    let SetTypes { by_set: mut types, other_bytes } = types_by_set(held, types);
    if other_bytes > 0 {
        let text = format!(
            "blocks that several roots hold have more than {} pairs of a set of roots and a type: the types of these bytes are not \
             listed with their sets",
            thousands(MAX_PAIRS as u64)
        );
        holders.caveats.push(Caveat::new("holders_pairs", "heap", Some(other_bytes), text));
    }
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

/// The types of blocks of the listed sets.
struct SetTypes {
    /// The types of each set, by bytes, largest first.
    by_set: HashMap<usize, Vec<SharedType>>,
    /// Bytes of blocks whose pair of a set and a type is beyond the maximum.
    other_bytes: u64,
}

/// Sums up the blocks of each listed set by type.
fn types_by_set(held: &DominatorTree, types: &Types) -> SetTypes {
    let mut sums: HashMap<(usize, u32), Sum> = HashMap::new();
    let mut other_bytes = 0;
    for (block, set) in held.each_shared().filter(|(_, set)| *set < MAX_SETS) {
        let bytes = held.blocks().bytes(block);
        match counted(&mut sums, (set, types.kind(block as usize)), MAX_PAIRS) {
            Some(sum) => {
                sum.bytes += bytes;
                sum.blocks += 1;
            }
            None => other_bytes += bytes,
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
    SetTypes { by_set, other_bytes }
}

/// Describes a set.
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
