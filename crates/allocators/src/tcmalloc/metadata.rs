//! tcmalloc's own structures: spans, leaves of the page map, thread caches. They are allocated
//! consecutively in steps of 128 KiB, from chunks that are in no page map.

use super::caches::CacheContents;
use super::layout::{ALL_FREE_LISTS_BYTES, CACHE_LINKS_BYTES, METADATA_CHUNK_BYTES, METADATA_STEP_BYTES};
use super::locate::Heap;
use super::spans::Spans;
use crate::scan::{is_mapped_memory, is_private_memory};
use strandline_claims::allocator::Context;
use strandline_process::pages::{PAGE_BYTES, page_up};
use strandline_process::range::{AddressRange, RangeSet, overlapping};

/// Returns the ranges that hold the structures, outside `taken` (claimed by others).
pub fn find(
    context: &Context<'_>,
    heap: &Heap,
    spans: &Spans,
    caches: &CacheContents,
    taken: &RangeSet,
) -> Vec<AddressRange> {
    let pages = spans.structure_pages.iter().map(|&page| AddressRange::sized(page, PAGE_BYTES));
    let leaf_bytes = heap.map_layout.leaf_bytes();
    let leaves =
        heap.leaves.iter().map(|leaf| AddressRange::sized(leaf.address, leaf_bytes).widened_to_pages());
    let cache_bytes = (ALL_FREE_LISTS_BYTES + CACHE_LINKS_BYTES) as u64;
    let cache_ranges =
        caches.thread_caches.iter().map(|&at| AddressRange::sized(at, cache_bytes).widened_to_pages());
    let known_structures: RangeSet = pages.chain(leaves).chain(cache_ranges).collect();
    let mut chunks: Vec<AddressRange> = Vec::new();
    let mut unvisited: &[AddressRange] = &known_structures;
    while let Some((&AddressRange { start, end: first_end }, following)) = unvisited.split_first() {
        unvisited = following;
        let Some(limit) = gap_end(context, spans, taken, start) else { continue };
        // The known structures of a chunk are before the next span, and at most a chunk apart.
        let mut end = first_end;
        while let Some((next, following)) = unvisited.split_first() {
            if next.start >= limit || next.start - end > METADATA_CHUNK_BYTES {
                break;
            }
            end = next.end;
            unvisited = following;
        }
        let end = start + (end - start).next_multiple_of(METADATA_STEP_BYTES);
        // For the current chunk the end of the used part is known: static data points to it
        // (`common.cc`, `metadata_chunk_alloc_`). All other static pointers into a chunk point to
        // used parts.
        let chunk_end = limit.min(start + METADATA_CHUNK_BYTES);
        let used_end = spans.outside_pointers.targets.range(start..chunk_end).next_back();
        let end = end.max(used_end.copied().map_or(0, page_up)).min(limit);
        let is_new = chunks.last().is_none_or(|last| last.end <= start);
        if is_new && is_private_memory(context, (start, end)) {
            chunks.push(AddressRange::new(start, end));
        }
    }
    chunks
}

/// Returns the end of the memory around `address` that is neither in a span nor claimed by others.
fn gap_end(context: &Context<'_>, spans: &Spans, taken: &RangeSet, address: u64) -> Option<u64> {
    let mapping = context.space.find(address).filter(|mapping| is_mapped_memory(mapping))?;
    let next = spans.all.partition_point(|span| span.end <= address);
    let next_span_start = spans.all.get(next).map_or(u64::MAX, |span| span.start);
    let first_start = |ranges: &[AddressRange]| {
        overlapping(ranges, (address, u64::MAX)).first().map_or(u64::MAX, |range| range.start)
    };
    let end = mapping.end.min(next_span_start).min(first_start(taken)).min(first_start(context.stacks));
    (end > address).then_some(end)
}
