//! The runtime's own structures: the mappings, or the pages, that hold known structures.
//!
//! The runtime takes this memory from the kernel in pieces, and no list contains all of them. Pages
//! with known structures belong to the runtime, and so does the gap between two such pages if it is
//! too small for a mapping made by other code.

use std::collections::BTreeSet;
use std::time::Instant;

use super::heap::{Heap, Instance};
use super::layout::{
    ARENA_BASE, ARENA_ENTRY_BYTES, ARENA_TABLE_BYTES, CHUNK_DATA_BYTES, CHUNK_ENTRIES, Layout, MHEAP_BYTES,
    PAGE_ALLOC_CHUNKS, SUMMARY_LEVELS,
};
use crate::batch::PageCache;
use strandline_claims::range::{PAGE_BYTES, page_of};
use strandline_claims::runtime::Context;
use strandline_claims::words::{self, each_word_until, is_mapped_memory};
use strandline_process::memory::Memory;
use strandline_process::pages::USER_ADDRESS_END;
use strandline_process::range::{AddressRange, RangeSet};

/// Smallest block that glibc's malloc maps (`DEFAULT_MMAP_THRESHOLD`); its heaps are larger.
const MIN_FOREIGN_BYTES: u64 = 128 << 10;
/// Assumed lower bound on mappings that a program without a C library makes itself.
const MIN_MAPPED_BYTES: u64 = 1 << 20;
/// Limit on pages with known structures: 16 GiB.
const MAX_PAGES: usize = 1 << 22;
/// Limit on ranges claimed; ranges close to each other are joined.
const MAX_RANGES: usize = 1 << 16;
/// Limit on bytes of a slice or array that only the runtime can have made.
const MAX_TABLE_BYTES: u64 = 64 << 30;
/// Bytes of a slice of Go: address, length, capacity.
const SLICE_BYTES: u64 = 24;
/// `capacity` in a slice.
const SLICE_CAPACITY: u64 = 16;

/// The runtime's structures outside the heap.
pub struct Structures {
    /// Their ranges that have resident pages, in address order.
    pub ranges: Vec<AddressRange>,
    /// Whether the table of arenas is known, and no limit and no deadline cut the search.
    pub is_complete: bool,
}

/// Finds the runtime's structures outside the heap.
pub fn find(context: &Context<'_>, memory: &dyn Memory, instance: Instance<'_>) -> Structures {
    let Instance { program, layout, heap, spans } = instance;
    let mut pages = PageCache::new(memory);
    let arenas = pages.word(heap.address.wrapping_add(layout.arenas));
    let mut ranges = known_tables(context, &mut pages, layout, heap, arenas);
    ranges.push(heap.span_table.range());
    let mut known_pages: BTreeSet<u64> = spans.structure_pages.iter().copied().take(MAX_PAGES).collect();
    let mut add_targets = |range: AddressRange| {
        each_word_until(memory, context.resident_runs(range), context.deadline, &mut |_, word| {
            let is_mapped = || context.space.find(word).is_some_and(is_mapped_memory);
            if word < USER_ADDRESS_END
                && word.is_multiple_of(8)
                && is_mapped()
                && !heap.contains(word, word + 1)
            {
                known_pages.insert(page_of(word));
            }
            known_pages.len() < MAX_PAGES
        });
    };
    add_targets(AddressRange::sized(heap.address, MHEAP_BYTES));
    if program.is_only_module {
        // Everything that its static data points to belongs to the runtime, or was mapped by the
        // program itself.
        if let Some(arenas) = arenas {
            add_targets(AddressRange::sized(arenas, ARENA_TABLE_BYTES));
        }
        add_targets(program.data);
    }
    let mut is_complete = arenas.is_some()
        && !spans.has_left_out_structures
        && known_pages.len() < MAX_PAGES
        && Instant::now() < context.deadline;
    let known_pages = known_pages.into_iter().filter(|&page| page < USER_ADDRESS_END);
    ranges.extend(known_pages.map(|page| AddressRange::sized(page, PAGE_BYTES)));
    let ranges: RangeSet = ranges.into_iter().collect();
    let min_foreign_bytes = if program.is_only_module { MIN_MAPPED_BYTES } else { MIN_FOREIGN_BYTES };
    let ranges = join_near(context, &ranges, min_foreign_bytes);
    let heap_ranges: RangeSet = heap.ranges.iter().copied().collect();
    let outside = |range: AddressRange| outside_heap(context, &heap_ranges, range.widened_to_pages());
    let own_ranges: RangeSet = ranges.into_iter().flat_map(outside).collect();
    let mut own_ranges: Vec<AddressRange> = own_ranges.into_iter().collect();
    own_ranges.retain(|&range| !context.resident_runs(range).is_empty());
    is_complete &= own_ranges.len() <= MAX_RANGES;
    own_ranges.truncate(MAX_RANGES);
    Structures { ranges: own_ranges, is_complete }
}

/// Returns the tables of known size that `mheap_` points to, until the deadline; `arenas` is the
/// address of its table of arenas. A page of their addresses that cannot be read was usually never
/// written: it counts as a page without addresses.
fn known_tables(
    context: &Context<'_>,
    pages: &mut PageCache<'_>,
    layout: &Layout,
    heap: &Heap,
    arenas: Option<u64>,
) -> Vec<AddressRange> {
    let mut ranges = Vec::new();
    let mut add = |start: u64, bytes: u64| {
        if let Some(end) = start.checked_add(bytes).filter(|_| start != 0 && bytes <= MAX_TABLE_BYTES) {
            ranges.push(AddressRange { start, end });
        }
    };
    let page_alloc = heap.address.wrapping_add(layout.page_alloc);
    for level in 0..SUMMARY_LEVELS {
        let slice = page_alloc.wrapping_add(SLICE_BYTES * level);
        let (start, capacity) = (pages.word(slice), pages.word(slice.wrapping_add(SLICE_CAPACITY)));
        if let (Some(start), Some(capacity)) = (start, capacity) {
            add(start, capacity.saturating_mul(8));
        }
    }
    for index in 0..CHUNK_ENTRIES {
        if let Some(start) = pages.word(page_alloc.wrapping_add(PAGE_ALLOC_CHUNKS + 8 * index)) {
            add(start, CHUNK_ENTRIES * CHUNK_DATA_BYTES);
        }
    }
    if let Some(arenas) = arenas {
        add(arenas, ARENA_TABLE_BYTES);
        for &AddressRange { start, end } in &heap.ranges {
            for at in (start - start % ARENA_ENTRY_BYTES..end).step_by(ARENA_ENTRY_BYTES as usize) {
                let entry = arenas.wrapping_add(8 * (at.wrapping_sub(ARENA_BASE) / ARENA_ENTRY_BYTES));
                if let Some(start) = pages.word(entry) {
                    add(start, layout.arena_bytes);
                }
                if at.is_multiple_of(ARENA_ENTRY_BYTES << 10) && Instant::now() >= context.deadline {
                    return ranges;
                }
            }
        }
    }
    ranges
}

/// Joins ranges of one mapping that are less than `min_foreign_bytes` apart: the gap is too small
/// for a foreign mapping.
fn join_near(context: &Context<'_>, ranges: &RangeSet, min_foreign_bytes: u64) -> Vec<AddressRange> {
    let mut joined: Vec<AddressRange> = Vec::new();
    for &range in ranges {
        let start = range.start;
        let is_near = |last: &&mut AddressRange| {
            let mapping = context.space.find(last.end - 1);
            start.saturating_sub(last.end) < min_foreign_bytes
                && mapping.is_some_and(|mapping| start < mapping.end)
        };
        match joined.last_mut().filter(is_near) {
            Some(last) => last.end = last.end.max(range.end),
            None => joined.push(range),
        }
    }
    joined
}

/// The parts of a range that are mapped memory, but neither heap nor static data.
fn outside_heap<'a>(
    context: &'a Context<'_>,
    heap_ranges: &'a RangeSet,
    range: AddressRange,
) -> impl Iterator<Item = AddressRange> + 'a {
    let mappings = context.space.mappings();
    let first = mappings.partition_point(|mapping| mapping.end <= range.start);
    let pieces = mappings[first..].iter().take_while(move |mapping| mapping.start < range.end);
    let pieces = pieces.map(move |mapping| (mapping, mapping.range().intersection(range)));
    let own_pieces = pieces.filter(|(mapping, piece)| {
        is_mapped_memory(mapping) && words::is_process_memory(context.space, piece.start, piece.end)
    });
    own_pieces.flat_map(|(_, piece)| heap_ranges.gaps_in(piece))
}

#[cfg(test)]
mod tests {
    use super::super::heap::Slice;
    use super::super::layout::LAYOUTS;
    use super::*;
    use strandline_process::map::AddressSpace;
    use strandline_process::procfs::Process;

    /// Address of a table of chunks.
    const TABLE: u64 = 0x7f00_0000_0000;

    /// Memory of which only the second page can be read; its words are the address of the table.
    struct SecondPage;

    impl Memory for SecondPage {
        fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
            if page_of(address) != PAGE_BYTES {
                return 0;
            }
            buffer.chunks_mut(8).for_each(|word| word.copy_from_slice(&TABLE.to_le_bytes()[..word.len()]));
            buffer.len()
        }
    }

    #[test]
    fn a_table_behind_entries_that_were_never_written_is_found() {
        let (space, _) = AddressSpace::parse(b"");
        let process = Process::open(std::process::id().cast_signed()).unwrap();
        let resident = |_: AddressRange| Vec::new();
        let context = Context::of_image(&SecondPage, &process, &space, &resident);
        let span_table = Slice { address: 0, length: 0, capacity: 0 };
        let heap = Heap { address: 0, ranges: Vec::new(), span_table };
        let tables = known_tables(&context, &mut PageCache::new(&SecondPage), &LAYOUTS[0], &heap, None);
        let table = AddressRange::sized(TABLE, CHUNK_ENTRIES * CHUNK_DATA_BYTES);
        assert!(tables.contains(&table), "{tables:?}");
    }
}
