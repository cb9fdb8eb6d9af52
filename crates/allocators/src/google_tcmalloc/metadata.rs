//! tcmalloc's own structures. They have separate address space, mapped 1 GiB at a time; the part in
//! use is writable, and so a mapping of its own.

use std::collections::{BTreeSet, HashMap};

use super::layout::{ARENA_NOT_RESIDENT, HUGE_BYTES, REGION_BYTES};
use super::locate::Heap;
use crate::scan::{is_mapped_memory, is_private_memory};
use strandline_claims::allocator::{Context, overlapping};
use strandline_claims::range::{PAGE_BYTES, merge, page_up};

/// Returns the ranges that hold `structures` and the leaves of the page map, outside `held` (heap
/// or claimed by others, in address order).
pub fn find(
    context: &Context<'_>,
    heap: &Heap,
    structures: &BTreeSet<u64>,
    held: &[(u64, u64)],
) -> Vec<(u64, u64)> {
    let leaves = heap.leaves.iter().flat_map(|&(_, leaf)| {
        let [.., end] = heap.parts_of_leaf(leaf);
        [leaf, end.saturating_sub(1)]
    });
    let all: BTreeSet<u64> = structures.iter().copied().chain(leaves).collect();
    let mut found: Vec<(u64, u64)> = Vec::new();
    for at in all {
        if found.last().is_some_and(|last| at < last.1) {
            continue;
        }
        let Some(mapping) = context.space.find(at).filter(|mapping| is_mapped_memory(mapping)) else {
            continue;
        };
        let region = at & !(REGION_BYTES - 1);
        let range = (mapping.start.max(region), mapping.end.min(region + REGION_BYTES));
        let is_free = overlapping(held, range.0, range.1).is_empty()
            && overlapping(context.stacks, range.0, range.1).is_empty();
        // If others share the range, only the page of the structure is taken.
        let page = at & !(PAGE_BYTES - 1);
        let range = if is_free { range } else { (page, page_up(at + 1)) };
        if is_private_memory(context, range.0, range.1) && overlapping(held, range.0, range.1).is_empty() {
            found.push(range);
        }
    }
    merge(&mut found);
    found
}

/// Returns how much of the memory for tcmalloc's own structures was released
/// (`bytes_nonresident_`). The `Arena` in static data that has it is recognised by the allocators
/// of single structures, which point to it.
pub fn not_resident(heap: &Heap, own: &[(u64, u64)]) -> Option<u64> {
    let mut leading: HashMap<u64, usize> = HashMap::new();
    for (_, word) in heap.statics.words().filter(|(_, word)| (heap.data.0..heap.data.1).contains(word)) {
        *leading.entry(word).or_default() += 1;
    }
    let is_arena = |&(at, next): &(u64, u64)| {
        let left = heap.statics.word(at + 8);
        let end = next.saturating_add(left);
        let is_own = own.iter().any(|range| range.0 <= next && end <= range.1);
        // A lock may precede it.
        let leads = |start: u64| leading.get(&start).is_some_and(|&count| count > 1);
        is_own && end.is_multiple_of(HUGE_BYTES) && (leads(at) || leads(at - 8))
    };
    heap.statics.words().find(is_arena).map(|(at, _)| heap.statics.word(at + ARENA_NOT_RESIDENT))
}
