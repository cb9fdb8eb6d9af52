//! CPython's figures, named as in `sys._debugmallocstats`, and its objects by type.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::time::Instant;

use super::arenas::ArenaSet;
use super::counted::{CensusResult, CountedType, TypeCounts, TypedObjects, UNNUMBERED_TYPE};
use super::facts::{self, CPython, SparseArenas, TypeInSparseArenas};
use super::heap_blocks;
use super::layout::{self, Release};
use super::names::Names;
use super::pools::{self, Sums, UsedClass};
use super::types::Type;
use strandline_claims::facts::{OTHER_TYPES, TypeFacts, figures};
use strandline_claims::runtime::{ObjectTypes, Reading};

/// Limit on types listed for their bytes; types that pin sparse arenas are listed in addition, and
/// the sum of the others.
const MAX_TYPES: usize = 1000;
/// Limit on the types listed as pinning sparse arenas.
const MAX_PINNING_TYPES: usize = 10;

/// Fills in the figures common to all runtimes, and CPython's own, named as in
/// `sys._debugmallocstats`. Without arenas or heaps they stay unknown: objects are in malloc's
/// blocks (PYTHONMALLOC=malloc), and which other blocks CPython uses is not known.
pub fn fill_in_facts(arena_sets: &[ArenaSet], sums: &Sums, release: &Release, reading: &mut Reading) {
    if !sums.doubts.is_empty() {
        return;
    }
    let has_heaps = sums.heaps.heaps.iter().any(|heap| heap.pages > 0);
    if arena_sets.is_empty() && !has_heaps {
        return;
    }
    if release.is_free_threaded() {
        let sum = |field: fn(&heap_blocks::HeapCounts) -> u64| Some(sums.heaps.heaps.iter().map(field).sum());
        reading.facts.used_bytes = sum(|heap| heap.used_bytes);
        reading.facts.free_bytes = sum(|heap| heap.free_bytes);
        reading.facts.committed_bytes = sum(|heap| heap.page_bytes);
        return;
    }
    let arena_count: u64 = arena_sets.iter().map(|set| set.arenas.len() as u64).sum();
    let committed_bytes: u64 =
        arena_sets.iter().map(|set| set.arenas.len() as u64 * set.sizes.arena_bytes).sum();
    let sum_of_blocks = |field: fn(&pools::SizeClassCounts) -> u64| -> u64 {
        pools::used_classes(sums).map(|class| field(&class.counts) * class.block_bytes).sum()
    };
    let (used_bytes, free_bytes) =
        (sum_of_blocks(|class| class.used_blocks), sum_of_blocks(|class| class.free_blocks));
    let pool_count: u64 = pools::used_classes(sums).map(|class| class.counts.pools).sum();
    let header_bytes = pool_count * layout::POOL_HEADER_BYTES;
    let facts = &mut reading.facts;
    facts.used_bytes = Some(used_bytes);
    facts.free_bytes = Some(free_bytes + sums.unused_bytes);
    facts.committed_bytes = Some(committed_bytes);
    facts.own = figures(&[
        ("arenas_allocated_current", arena_count),
        ("bytes_in_allocated_blocks", used_bytes),
        ("bytes_in_available_blocks", free_bytes),
        ("unused_pools", sums.unused_pools),
        ("bytes_lost_to_pool_headers", header_bytes),
        ("bytes_lost_to_quantization", sums.quantization_bytes),
        ("bytes_lost_to_arena_alignment", sums.alignment_bytes),
    ]);
}

/// Returns the details of its arenas or heaps.
pub fn details(arena_sets: &[ArenaSet], sums: &Sums) -> CPython {
    let sizes = arena_sets.first().map(|set| set.sizes);
    let heaps = layout::HEAP_NAMES.into_iter().zip(sums.heaps.heaps).map(|(name, counts)| facts::Heap {
        name: name.to_owned(),
        pages: counts.pages,
        used_blocks: counts.used_blocks,
        used_bytes: counts.used_bytes,
        free_bytes: counts.free_bytes,
    });
    let size_classes = pools::used_classes(sums).map(|UsedClass { block_bytes, counts }| facts::SizeClass {
        block_bytes,
        pools: counts.pools,
        used_blocks: counts.used_blocks,
        free_blocks: counts.free_blocks,
    });
    CPython {
        arena_bytes: sizes.map(|sizes| sizes.arena_bytes),
        pool_bytes: sizes.map(|sizes| sizes.pool_bytes),
        size_classes: size_classes.collect(),
        heaps: heaps.filter(|counts| counts.pages > 0).collect(),
        ..CPython::default()
    }
}

/// Lists objects by type. Types with the same name (a module that was loaded again) count as one.
/// Beyond the limit, only types in sparse arenas are listed, until `deadline`; the others have no
/// names, and one entry has their sum. Returns names by address of the type.
pub fn list_types(
    names: &mut Names<'_>,
    result: &CensusResult,
    deadline: Instant,
    reading: &mut Reading,
    details: &mut CPython,
) -> HashMap<u64, String> {
    let mut type_names = HashMap::new();
    let mut types: Vec<_> = result.types.values().filter(|counted| counted.counts.instances > 0).collect();
    types.sort_by_key(|counted| (std::cmp::Reverse(counted.counts.bytes), counted.object_type.address));
    let mut by_name: HashMap<String, TypeCounts> = HashMap::new();
    let mut others = TypeCounts::default();
    for (rank, CountedType { object_type, counts }) in types.into_iter().enumerate() {
        if rank < MAX_TYPES || counts.in_sparse_arenas > 0 && Instant::now() < deadline {
            let name = names.type_name(object_type);
            type_names.insert(object_type.address, name.clone());
            by_name.entry(name).or_default().add(counts);
        } else {
            others.add(counts);
        }
    }
    let mut kept_by: Vec<TypeInSparseArenas> = by_name
        .iter()
        .filter(|(_, counts)| counts.in_sparse_arenas > 0)
        .map(|(name, counts)| TypeInSparseArenas { name: name.clone(), objects: counts.in_sparse_arenas })
        .collect();
    kept_by.sort_by(|a, b| b.objects.cmp(&a.objects).then_with(|| a.name.cmp(&b.name)));
    kept_by.truncate(MAX_PINNING_TYPES);
    let facts = by_name.into_iter();
    reading.facts.types = facts
        .map(|(name, TypeCounts { instances, bytes, .. })| TypeFacts { name, instances, bytes })
        .collect();
    reading.facts.types.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
    if others.instances > 0 {
        let TypeCounts { instances, bytes, .. } = others;
        reading.facts.types.push(TypeFacts { name: OTHER_TYPES.to_owned(), instances, bytes });
    }
    details.free_lists = Some(result.free_listed_objects.clone());
    details.interned = Some(result.interned_objects.clone());
    details.beside_arenas = Some(result.outside_objects.clone());
    let (arenas, blocks) = (result.sparse_arenas, result.sparse_arena_blocks);
    details.sparse_arenas = Some(SparseArenas { arenas, blocks, kept_by });
    type_names
}

/// Adds names of at most [`MAX_TYPES`] unlisted types that own allocators' blocks; the blocks of
/// others stay without a holder.
pub fn name_owners(names: &mut Names<'_>, result: &CensusResult, type_names: &mut HashMap<u64, String>) {
    let max_names = type_names.len() + MAX_TYPES;
    for block in &result.claimed_blocks {
        if type_names.len() < max_names
            && let Some(counted) = result.types.get(&block.type_address)
        {
            type_names.entry(block.type_address).or_insert_with(|| names.type_name(&counted.object_type));
        }
    }
}

/// Returns the types of objects by the addresses of their blocks. Types not named by `deadline`
/// stay unknown.
pub fn object_types(
    names: &mut Names<'_>,
    typed_objects: Vec<TypedObjects>,
    type_names: &HashMap<u64, String>,
    deadline: Instant,
) -> ObjectTypes {
    let mut object_types = ObjectTypes::default();
    // By address of the type; `None` for a type that was not named by the deadline.
    let mut numbers: HashMap<u64, Option<u16>> = HashMap::new();
    for TypedObjects { mut objects, types } in typed_objects {
        let mut number = |object_types: &mut ObjectTypes, names: &mut Names<'_>, object_type: &Type| {
            *numbers.entry(object_type.address).or_insert_with(|| {
                match type_names.get(&object_type.address) {
                    Some(name) => Some(object_types.number(name)),
                    None => (Instant::now() < deadline)
                        .then(|| object_types.number(&names.type_name(object_type))),
                }
            })
        };
        // By the worker's number; looked up at the type's first object.
        let numbers_by_worker: Vec<OnceCell<Option<u16>>> = vec![OnceCell::new(); types.len()];
        objects.renumber(|worker_number| {
            let index = Some(worker_number).filter(|&number| number != UNNUMBERED_TYPE).map(usize::from)?;
            let object_type = types.get(index)?;
            *numbers_by_worker.get(index)?.get_or_init(|| number(&mut object_types, names, object_type))
        });
        object_types.append(objects);
    }
    object_types.sort();
    object_types
}
