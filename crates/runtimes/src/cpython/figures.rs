//! CPython's figures, named as in `sys._debugmallocstats`, and its objects by type.

use std::collections::HashMap;
use std::time::Instant;

use super::arenas::Arenas;
use super::counted::{CensusResult, TypeCounts, TypedObjects};
use super::facts::{self, CPython, SparseArenas, TypeInSparseArenas};
use super::heap_blocks;
use super::layout::{self, Release};
use super::names::Names;
use super::pools::{self, Sums};
use super::types::Type;
use strandline_claims::facts::{TypeFacts, figures};
use strandline_claims::runtime::{ObjectTypes, Reading};

/// Limit on types listed for their bytes; types that pin sparse arenas are listed besides.
const MAX_TYPES: usize = 1000;
/// Limit on listed types that pin arenas.
const MAX_KEEPERS: usize = 10;

/// Fills in the figures common to all runtimes, and CPython's own, named as in
/// `sys._debugmallocstats`.
pub fn fill_in_facts(all: &[Arenas], sums: &Sums, release: &Release, reading: &mut Reading) {
    if !sums.doubts.is_empty() {
        return;
    }
    if release.is_free_threaded() {
        let bytes = |of: fn(&heap_blocks::HeapCounts) -> u64| Some(sums.heaps.heaps.iter().map(of).sum());
        reading.facts.used_bytes = bytes(|of| of.used_bytes);
        reading.facts.free_bytes = bytes(|of| of.free_bytes);
        reading.facts.committed_bytes = bytes(|of| of.page_bytes);
        return;
    }
    let number: u64 = all.iter().map(|arenas| arenas.all.len() as u64).sum();
    let bytes = |of: &dyn Fn(&Arenas) -> u64| -> u64 { all.iter().map(of).sum() };
    let committed = bytes(&|arenas| arenas.all.len() as u64 * arenas.sizes.arena_bytes);
    let of_blocks = |of: fn(&pools::SizeClassCounts) -> u64| -> u64 {
        pools::classes(sums).map(|(bytes, class)| of(&class) * bytes).sum()
    };
    let (used, free) = (of_blocks(|of| of.used), of_blocks(|of| of.free));
    let pools: u64 = pools::classes(sums).map(|(_, of)| of.pools).sum();
    let headers = pools * layout::POOL_HEADER_BYTES;
    let facts = &mut reading.facts;
    facts.used_bytes = Some(used);
    facts.free_bytes = Some(free + sums.unused_bytes);
    facts.committed_bytes = Some(committed);
    facts.own = figures(&[
        ("arenas_allocated_current", number),
        ("bytes_in_allocated_blocks", used),
        ("bytes_in_available_blocks", free),
        ("unused_pools", sums.unused_pools),
        ("bytes_lost_to_pool_headers", headers),
        ("bytes_lost_to_quantization", sums.quantization_bytes),
        ("bytes_lost_to_arena_alignment", sums.alignment_bytes),
    ]);
}

/// Returns the details of its arenas or heaps.
pub fn details(all: &[Arenas], sums: &Sums) -> CPython {
    let shape = all.first().map(|arenas| arenas.sizes);
    let heaps = layout::HEAP_NAMES.into_iter().zip(sums.heaps.heaps).map(|(name, of)| facts::Heap {
        name: name.to_owned(),
        pages: of.pages,
        used_blocks: of.used,
        used_bytes: of.used_bytes,
        free_bytes: of.free_bytes,
    });
    let size_classes = pools::classes(sums).map(|(block_bytes, of)| facts::SizeClass {
        block_bytes,
        pools: of.pools,
        used_blocks: of.used,
        free_blocks: of.free,
    });
    CPython {
        arena_bytes: shape.map(|shape| shape.arena_bytes),
        pool_bytes: shape.map(|shape| shape.pool_bytes),
        size_classes: size_classes.collect(),
        heaps: heaps.filter(|of| of.pages > 0).collect(),
        ..CPython::default()
    }
}

/// Lists objects by type. Types with the same name (a module that was loaded again) count as one.
/// Beyond the limit, types are named until `deadline`. Returns names by address of the type.
pub fn list_types(
    names: &mut Names<'_>,
    counted: &CensusResult,
    deadline: Instant,
    reading: &mut Reading,
    details: &mut CPython,
) -> HashMap<u64, String> {
    let mut called = HashMap::new();
    let mut types: Vec<_> = counted.types.values().filter(|(_, sums)| sums.instances > 0).collect();
    types.sort_by_key(|(of, sums)| (std::cmp::Reverse(sums.bytes), of.address));
    let mut by_name: HashMap<String, TypeCounts> = HashMap::new();
    let is_shown = |(place, (_, sums)): &(usize, &&(Type, TypeCounts))| {
        *place < MAX_TYPES || sums.in_sparse_arenas > 0 && Instant::now() < deadline
    };
    for (_, (of, sums)) in types.iter().enumerate().filter(is_shown) {
        let name = names.type_name(of);
        called.insert(of.address, name.clone());
        let known = by_name.entry(name).or_default();
        known.instances += sums.instances;
        known.bytes = known.bytes.saturating_add(sums.bytes);
        known.in_sparse_arenas += sums.in_sparse_arenas;
    }
    let mut kept_by: Vec<TypeInSparseArenas> = by_name
        .iter()
        .filter(|(_, sums)| sums.in_sparse_arenas > 0)
        .map(|(name, sums)| TypeInSparseArenas { name: name.clone(), objects: sums.in_sparse_arenas })
        .collect();
    kept_by.sort_by(|a, b| b.objects.cmp(&a.objects).then_with(|| a.name.cmp(&b.name)));
    kept_by.truncate(MAX_KEEPERS);
    let facts = by_name.into_iter().map(|(name, sums)| TypeFacts {
        name,
        instances: sums.instances,
        bytes: sums.bytes,
    });
    reading.facts.types = facts.collect();
    reading.facts.types.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
    details.free_lists = Some(counted.dead.clone());
    details.interned = Some(counted.interned.clone());
    details.beside_arenas = Some(counted.outside.clone());
    let (arenas, blocks) = (counted.sparse_arenas, counted.sparse_blocks);
    details.sparse_arenas = Some(SparseArenas { arenas, blocks, kept_by });
    called
}

/// Adds names of unlisted types that own allocators' blocks.
pub fn name_owners(names: &mut Names<'_>, counted: &CensusResult, called: &mut HashMap<u64, String>) {
    let most = called.len() + MAX_TYPES;
    for held in &counted.held {
        if called.len() < most
            && let Some((of, _)) = counted.types.get(&held.of)
        {
            called.entry(held.of).or_insert_with(|| names.type_name(of));
        }
    }
}

/// The types of objects by the addresses of their blocks. Types not named by `deadline` stay
/// unknown.
pub fn object_types(
    names: &mut Names<'_>,
    typed: Vec<TypedObjects>,
    called: &HashMap<u64, String>,
    deadline: Instant,
) -> ObjectTypes {
    let mut all = ObjectTypes::default();
    let mut numbers: HashMap<u64, Option<u16>> = HashMap::new();
    for TypedObjects { mut objects, types } in typed {
        let mut known: Vec<Option<Option<u16>>> = vec![None; types.len()];
        let mut number = |all: &mut ObjectTypes, names: &mut Names<'_>, of: &Type| {
            *numbers.entry(of.address).or_insert_with(|| match called.get(&of.address) {
                Some(name) => Some(all.number(name)),
                None => (Instant::now() < deadline).then(|| all.number(&names.type_name(of))),
            })
        };
        objects.renumber(|theirs| {
            // All types beyond the maximum have this number.
            let theirs = Some(theirs).filter(|&theirs| theirs != u16::MAX).map(usize::from)?;
            let of = types.get(theirs)?;
            *known.get_mut(theirs)?.get_or_insert_with(|| number(&mut all, names, of))
        });
        all.append(objects);
    }
    all.sort();
    all
}
