//! tcmalloc's own structures: spans, leaves of the page map, thread caches. They are allocated
//! consecutively in steps of 128 KiB, from chunks that are in no page map.

use super::caches::Cached;
use super::layout::{CACHE_LINKS_BYTES, CACHE_LISTS_BYTES, METADATA_CHUNK_BYTES, METADATA_STEP_BYTES};
use super::locate::Heap;
use super::spans::Spans;
use crate::scan::{is_mapped_memory, is_private_memory};
use strandline_claims::allocator::{Context, overlapping};
use strandline_claims::range::{PAGE_BYTES, merge, page_of, page_up};

/// Returns the ranges that hold them, outside `taken` (claimed by others, in address order).
pub fn find(
    context: &Context<'_>,
    heap: &Heap,
    (spans, cached): (&Spans, &Cached),
    taken: &[(u64, u64)],
) -> Vec<(u64, u64)> {
    let mut known: Vec<(u64, u64)> = spans.structures.iter().map(|&page| (page, page + PAGE_BYTES)).collect();
    known.extend(
        heap.leaves.iter().map(|&(_, leaf)| (page_of(leaf), page_up(leaf + heap.shape.leaf_bytes()))),
    );
    let cache_bytes = (CACHE_LISTS_BYTES + CACHE_LINKS_BYTES) as u64;
    known.extend(cached.threads.iter().map(|&at| (page_of(at), page_up(at + cache_bytes))));
    merge(&mut known);
    let mut found: Vec<(u64, u64)> = Vec::new();
    let mut rest = known.as_slice();
    while let Some(&(start, first_end)) = rest.first() {
        rest = &rest[1..];
        let Some(limit) = gap_end(context, spans, taken, start) else { continue };
        // The known structures of a chunk are before the next span, and at most a chunk apart.
        let mut end = first_end;
        while let Some(&(next, next_end)) = rest.first() {
            if next >= limit || next - end > METADATA_CHUNK_BYTES {
                break;
            }
            end = next_end;
            rest = &rest[1..];
        }
        let end = start + (end - start).next_multiple_of(METADATA_STEP_BYTES);
        // For the current chunk the end of the used part is known: static data points to it
        // (`common.cc`, `metadata_chunk_alloc_`). All other static pointers into a chunk point to
        // used parts.
        let used = spans.outside_pointers.range(start..limit.min(start + METADATA_CHUNK_BYTES)).next_back();
        let end = end.max(used.copied().map_or(0, page_up)).min(limit);
        let is_new = found.last().is_none_or(|last| last.1 <= start);
        if is_new && is_private_memory(context, start, end) {
            found.push((start, end));
        }
    }
    found
}

/// Returns the end of the memory around `address` that is neither in a span nor claimed by others.
fn gap_end(context: &Context<'_>, spans: &Spans, taken: &[(u64, u64)], address: u64) -> Option<u64> {
    let mapping = context.space.find(address).filter(|mapping| is_mapped_memory(mapping))?;
    let next = spans.all.partition_point(|span| span.end <= address);
    let span = spans.all.get(next).map_or(u64::MAX, |span| span.start);
    let of_others =
        |all: &[(u64, u64)]| overlapping(all, address, u64::MAX).first().map_or(u64::MAX, |range| range.0);
    let end = mapping.end.min(span).min(of_others(taken)).min(of_others(context.stacks));
    (end > address).then_some(end)
}
