//! tcmalloc's own structures. They have separate address space, mapped 1 GiB at a time; the part in
//! use is writable, and so its own mapping.

use std::collections::{BTreeSet, HashMap};

use super::layout::{ARENA_NOT_RESIDENT, HUGE_BYTES, REGION_BYTES};
use super::locate::Heap;
use crate::radix::StaticWord;
use crate::scan::{is_mapped_memory, is_private_memory, is_unclaimed};
use strandline_claims::allocator::Context;
use strandline_process::pages::{PAGE_BYTES, page_of};
use strandline_process::range::{AddressRange, RangeSet};

/// Returns the ranges that hold `structures` and the leaves of the page map, outside
/// `heap_and_taken` (the heap, and what others claim).
pub fn find(
    context: &Context<'_>,
    heap: &Heap,
    structures: &BTreeSet<u64>,
    heap_and_taken: &RangeSet,
) -> RangeSet {
    let leaves = heap.leaves.iter().flat_map(|leaf| {
        let end = heap.parts_of_leaf(leaf.address).end;
        [leaf.address, end.saturating_sub(1)]
    });
    let addresses: BTreeSet<u64> = structures.iter().copied().chain(leaves).collect();
    let mut ranges: Vec<AddressRange> = Vec::new();
    for at in addresses {
        if ranges.last().is_some_and(|last| at < last.end) {
            continue;
        }
        let Some(mapping) = context.space.find(at).filter(|mapping| is_mapped_memory(mapping)) else {
            continue;
        };
        let region = AddressRange::sized(at & !(REGION_BYTES - 1), REGION_BYTES);
        let range = mapping.range().intersection(region);
        let is_unshared = is_unclaimed(context, heap_and_taken, range);
        // If others share the range, only the page of the structure is taken.
        let page = AddressRange::sized(page_of(at), PAGE_BYTES);
        let range = if is_unshared { range } else { page };
        if is_unshared || is_private_memory(context, range) && !heap_and_taken.overlaps(range) {
            ranges.push(range);
        }
    }
    ranges.into_iter().collect()
}

/// Returns how many bytes of the memory for tcmalloc's own structures were released
/// (`bytes_nonresident_`). The `Arena` in static data that has it is recognised by the allocators
/// of single structures, which point to it.
pub fn not_resident_bytes(heap: &Heap, structures: &[AddressRange]) -> Option<u64> {
    let mut pointer_counts: HashMap<u64, usize> = HashMap::new();
    for word in heap.statics.words().filter(|word| heap.data.contains(word.value)) {
        *pointer_counts.entry(word.value).or_default() += 1;
    }
    let is_arena = |&StaticWord { address, value: next_free }: &StaticWord| {
        let Some(free_bytes) = heap.statics.word(address + 8) else { return false };
        let free_range = AddressRange::sized(next_free, free_bytes);
        let is_pointed_to = |start: u64| pointer_counts.get(&start).is_some_and(|&count| count > 1);
        free_range.end.is_multiple_of(HUGE_BYTES)
            // A lock may precede it.
            && (is_pointed_to(address) || is_pointed_to(address.wrapping_sub(8)))
            && structures.iter().any(|range| range.covers(free_range))
    };
    let arena = heap.statics.words().find(is_arena)?;
    heap.statics.word(arena.address + ARENA_NOT_RESIDENT)
}
