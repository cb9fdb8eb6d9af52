//! V8's memory outside its heap that comes from no allocator: tables through which V8 calls
//! functions, and the blocks that Abseil's mutexes map for themselves.

use super::heap::Heaps;
use super::layout::{
    ABSEIL_HEADER_BYTES, ABSEIL_MAGICS, DISPATCH_ENTRY_BYTES, DISPATCH_POINTER_SHIFT, SEGMENT_BYTES,
};
use super::rows;
use crate::batch::PageCache;
use strandline_claims::accumulator::Class;
use strandline_claims::allocator::RangeClaim;
use strandline_claims::palette::SlotTable;
use strandline_claims::range::PAGE_BYTES;
use strandline_claims::runtime::Context;
use strandline_process::map::Mapping;
use strandline_process::memory::{Memory, word_at};
use strandline_process::range::{AddressRange, RangeSet};

/// Number of entries read at the start of what may be a dispatch table.
const CHECKED_ENTRIES: usize = 8;
/// Minimum number of valid entries among these.
const MIN_VALID_ENTRIES: usize = 2;
/// Limit on Abseil's blocks in all mappings: each costs a read. Further ones stay anonymous.
const MAX_BLOCKS: usize = 1 << 16;
/// Limit on a mapping that may be a dispatch table: V8 reserves at most 256 MiB for one
/// (`kJSDispatchTableReservationSize` in `include/v8-internal.h`, later `src/common/globals.h`).
const MAX_TABLE_BYTES: u64 = 512 << 20;

/// Claims dispatch tables and Abseil's blocks, except what `claims` or other runtimes
/// (`foreign_ranges`) claim.
pub fn claim(
    context: &Context<'_>,
    memory: &dyn Memory,
    heaps: &Heaps,
    palette: &mut SlotTable,
    claims: &mut Vec<RangeClaim>,
    foreign_ranges: &RangeSet,
) {
    // Without a slot this memory stays anonymous.
    let Some(slot) = palette.add(&rows::METADATA, None) else { return };
    let claimed: RangeSet = claims.iter().map(RangeClaim::range).collect();
    let objects = heaps.object_areas();
    let mut cache = PageCache::new(memory);
    let is_candidate = |mapping: &&Mapping| {
        mapping.is_private_anonymous()
            && mapping.name.is_empty()
            && mapping.permissions.read
            && !mapping.permissions.execute
            && mapping.end - mapping.start <= MAX_TABLE_BYTES
    };
    let mut blocks_left = MAX_BLOCKS;
    for mapping in context.space.mappings().iter().filter(is_candidate) {
        let end = abseil_end(&mut cache, mapping, &mut blocks_left)
            .or_else(|| is_dispatch_table(context, &mut cache, mapping, &objects).then_some(mapping.end));
        let range = end.map(|end| AddressRange::new(mapping.start, end));
        if let Some(range) =
            range.filter(|range| !claimed.overlaps(*range) && !foreign_ranges.overlaps(*range))
        {
            claims.push(context.claim_whole(range, Class::Refined(slot)));
        }
    }
}

/// Returns the end of the blocks of Abseil's `LowLevelAlloc` that start with the mapping: each has
/// its size and a number that depends on its address. `None` if there are none.
fn abseil_end(cache: &mut PageCache<'_>, mapping: &Mapping, blocks_left: &mut usize) -> Option<u64> {
    let mut at = mapping.start;
    while *blocks_left > 0 {
        *blocks_left -= 1;
        let Some((bytes, magic)) = cache.pair(at) else { break };
        let is_block = ABSEIL_MAGICS.iter().any(|expected| expected ^ at == magic);
        let end = at.checked_add(bytes).filter(|&end| {
            is_block && bytes >= ABSEIL_HEADER_BYTES && bytes % ABSEIL_HEADER_BYTES == 0 && end <= mapping.end
        });
        let Some(end) = end else { break };
        at = end;
    }
    // Its arenas take whole pages from the kernel.
    Some(at - at % PAGE_BYTES).filter(|&end| end > mapping.start)
}

/// Whether a mapping starts with entries of a dispatch table: addresses of code, each with a
/// pointer to an object.
fn is_dispatch_table(
    context: &Context<'_>,
    cache: &mut PageCache<'_>,
    mapping: &Mapping,
    objects: &RangeSet,
) -> bool {
    let is_segments = mapping.start.is_multiple_of(SEGMENT_BYTES)
        && (mapping.end - mapping.start).is_multiple_of(SEGMENT_BYTES);
    let mut entries = [0; CHECKED_ENTRIES * DISPATCH_ENTRY_BYTES];
    if !is_segments || cache.read(mapping.start, &mut entries).is_err() {
        return false;
    }
    let is_entry = |entry: &[u8]| {
        let (Some(address), Some(word)) = (word_at(entry, 0), word_at(entry, 8)) else { return false };
        let is_code = context.space.find(address).is_some_and(|mapping| mapping.permissions.execute);
        is_code && objects.contains(word >> DISPATCH_POINTER_SHIFT)
    };
    // Other entries may point to read-only pages that `heap` does not find.
    entries.chunks_exact(DISPATCH_ENTRY_BYTES).filter(|entry| is_entry(entry)).count() >= MIN_VALID_ENTRIES
}
