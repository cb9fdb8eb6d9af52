//! tcmalloc's own structures. They have separate address space, reserved 1 GiB at a time; the part
//! in use is made writable, and is therefore a mapping of its own.

use std::collections::{BTreeSet, HashMap};

use super::layout::{
    ARENA_LOCK_BYTES, ARENA_NOT_RESIDENT, ARENA_NOT_RESIDENT_AFTER_LOCK, HUGE_BYTES, REGION_BYTES,
};
use super::locate::Heap;
use crate::radix::StaticWord;
use crate::scan::{is_mapped_memory, is_private_memory, is_unclaimed};
use strandline_claims::allocator::Context;
use strandline_process::pages::{PAGE_BYTES, page_of};
use strandline_process::range::{AddressRange, RangeSet};

/// Returns the ranges that hold the structures at `structure_pages` and the leaves of the page map,
/// outside `heap_and_taken` (the heap, and what others claim).
pub fn find(
    context: &Context<'_>,
    heap: &Heap,
    structure_pages: &BTreeSet<u64>,
    heap_and_taken: &RangeSet,
) -> RangeSet {
    let leaves = heap.leaves.iter().flat_map(|leaf| {
        let end = heap.parts_of_leaf(leaf.address).end;
        [leaf.address, end.saturating_sub(1)]
    });
    let addresses: BTreeSet<u64> = structure_pages.iter().copied().chain(leaves).collect();
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
        if is_unclaimed(context, heap_and_taken, range) {
            ranges.push(range);
            continue;
        }
        // If others share the range, only the page of the structure is taken, also one within the
        // bounds of a stack.
        let page = AddressRange::sized(page_of(at), PAGE_BYTES);
        if is_private_memory(context, page) && !heap_and_taken.overlaps(page) {
            ranges.push(page);
        }
    }
    ranges.into_iter().collect()
}

/// Returns how many bytes of the memory for tcmalloc's own structures, which are in `ranges`, were
/// released (`bytes_nonresident_`). The `Arena` in static data that has it is recognised by the
/// allocators of single structures, which point to it.
pub fn not_resident_bytes(heap: &Heap, ranges: &[AddressRange]) -> Option<u64> {
    let mut pointer_counts: HashMap<u64, usize> = HashMap::new();
    for word in heap.statics.words().filter(|word| heap.data.contains(word.value)) {
        *pointer_counts.entry(word.value).or_default() += 1;
    }
    let is_pointed_to = |start: u64| pointer_counts.get(&start).is_some_and(|&count| count > 1);
    let holds_free_range = |&StaticWord { address, value: next_free }: &StaticWord| {
        let Some(free_bytes) = heap.statics.word(address + 8) else { return false };
        let free_range = AddressRange::sized(next_free, free_bytes);
        // Memory for structures is taken in whole huge pages (`internal/system_allocator.h`,
        // `MmapRegion::Alloc`), and used from their start (`Arena::Alloc`).
        free_range.end.is_multiple_of(HUGE_BYTES) && ranges.iter().any(|range| range.covers(free_range))
    };
    heap.statics.words().filter(holds_free_range).find_map(|word| {
        let offset = if is_pointed_to(word.address) {
            ARENA_NOT_RESIDENT
        } else if is_pointed_to(word.address.wrapping_sub(ARENA_LOCK_BYTES)) {
            ARENA_NOT_RESIDENT_AFTER_LOCK
        } else {
            return None;
        };
        heap.statics.word(word.address + offset)
    })
}
