//! Finds mimallocs with a page map (3.x), and divides their memory.
//!
//! The map has two levels. A word of the static data of the program or library that contains
//! mimalloc points to the upper level, which is recognised by pages whose own address matches the
//! map. Memory in no page is in arenas, to which static data points too, or was taken from the
//! kernel for mimalloc's own structures.

use std::collections::{BTreeSet, HashSet};

use super::arena_layout::{
    ARENA_WORDS, BITMAP_BITS_OFFSET, CHUNK_BITS, COLLECT_3, MIN_THREAD_HEAP_BYTES, PAGE_MAP_BYTES,
    PURGE_BITMAP, SUBMAP_BYTES, SUBMAP_SPAN,
};
use super::layout::{PAGE_3, PAGE_3_4, PageLayout, PageWords, SLICE_BYTES};
use super::options;
use super::parts::{Heap, Part, PartKind, RunPurgedArena, ThreadDataBytes};
use crate::radix::{self, Leaf, StaticData, UnclaimedMemory};
use crate::scan::{
    each_word, each_word_in_steps, is_mapped_memory, is_private_memory, is_resident, read_words,
};
use strandline_claims::allocator::Context;
use strandline_process::page_cache::PageCache;
use strandline_process::pages::{PAGE_BYTES, USER_ADDRESS_END};
use strandline_process::range::{AddressRange, RangeSet};

/// Minimum static data with a mimalloc: its statistics alone take more.
const MIN_DATA_BYTES: u64 = 4096;
/// Maximum words of static data followed, per program or library: only a hostile one has more.
const MAX_POINTERS: usize = 1 << 16;
/// Maximum bytes of candidates for maps read, per program or library.
const MAX_TRIED_BYTES: u64 = 16 << 20;
/// Number of entries checked to recognise a map.
const ENOUGH_ENTRIES: usize = 64;
/// Maximum slices of an arena (`bitmap.h`, `MI_BITMAP_MAX_BIT_COUNT`).
const MAX_ARENA_SLICES: u64 = 512 * 512;
/// Maximum arenas of a process (`types.h`, `MI_MAX_ARENAS`).
const MAX_ARENAS: usize = 160;
/// Maximum parts kept: at least 256 GiB of pages. With more, the next part counts as damage.
const MAX_PARTS: usize = 1 << 22;
/// Maximum submaps read: 8 TiB of addresses.
const MAX_SUBMAPS: usize = 1 << 14;

/// A page map of two levels (`page-map.c`), and its layout of pages.
struct PageMap {
    /// Address of its upper level.
    upper: u64,
    /// Layout of the pages.
    layout: &'static PageLayout,
    /// Its lower level, in address order.
    submaps: Vec<Leaf>,
}

/// Finds all heaps of a process outside `taken` (claimed by others).
pub fn find(context: &Context<'_>, taken: &RangeSet) -> Vec<Heap> {
    let mut heaps: Vec<Heap> = Vec::new();
    let mut taken = taken.clone();
    for data in radix::large_data(context.space, MIN_DATA_BYTES) {
        let pointers = pointers_to_mapped_memory(context, &data);
        let Some(map) = find_map(context, &pointers) else { continue };
        let mut heap = Heap {
            object: data.object.start,
            name: data.object.name.clone(),
            collect_rules: COLLECT_3,
            thread_data: Some(ThreadDataBytes { earlier: MIN_THREAD_HEAP_BYTES, later: None }),
            releases: if map.layout == &PAGE_3 { "3.0 to 3.3" } else { "3.4" },
            ..Heap::default()
        };
        let mut unclaimed = UnclaimedMemory::new(context, &taken);
        add_pages(context, &map, &mut unclaimed, &mut heap);
        let mut arenas: Vec<Arena> = Vec::new();
        for &pointer in &pointers {
            let is_beside = arenas.last().is_none_or(|last| last.range.end <= pointer);
            if is_beside && arenas.len() < MAX_ARENAS && !context.deadline_passed() {
                arenas.extend(arena_at(context, &data, pointer));
            }
        }
        heap.segment_count = arenas.len() as u64;
        add_own_structures(&map, &arenas, &mut unclaimed, &mut heap);
        // Unread memory may be in use.
        if heap.doubts.is_empty() {
            add_free_memory(context, &arenas, &mut unclaimed, &mut heap);
        }
        let slices_per_run = options::slices_per_run(context, &data);
        let run_purged =
            arenas.into_iter().filter(|arena| slices_per_run > 1 && !arena.purge_bits.is_empty());
        heap.run_purged_arenas = run_purged
            .map(|arena| RunPurgedArena { range: arena.range, slices_per_run, marks: arena.purge_bits })
            .collect();
        taken.add(heap.parts.iter().map(Part::range));
        heaps.push(heap);
    }
    heaps
}

/// Returns the words of static data that point to mapped memory.
fn pointers_to_mapped_memory(context: &Context<'_>, data: &StaticData<'_>) -> Vec<u64> {
    let mut pointers = BTreeSet::new();
    each_word(context, data.range, &mut |_, word| {
        if word.is_multiple_of(PAGE_BYTES) && context.space.find(word).is_some_and(is_mapped_memory) {
            pointers.insert(word);
        }
        pointers.len() < MAX_POINTERS
    });
    pointers.into_iter().collect()
}

/// Returns the page map that one of `pointers` points to. Hardly any page of an upper level was
/// ever written, so candidates with the fewest resident pages come first.
fn find_map(context: &Context<'_>, pointers: &[u64]) -> Option<PageMap> {
    let range = |upper: u64| AddressRange::sized(upper, PAGE_MAP_BYTES);
    let may_be_map = |upper: &u64| is_private_memory(context, range(*upper));
    let mut uppers: Vec<u64> = pointers.iter().copied().filter(may_be_map).collect();
    uppers.sort_by_cached_key(|&upper| (context.resident_bytes(range(upper)), upper));
    let mut remaining_bytes = MAX_TRIED_BYTES;
    uppers.into_iter().find_map(|upper| map_at(context, upper, &mut remaining_bytes))
}

/// Returns the page map whose upper level is at `upper`; `None` if it is not one.
fn map_at(context: &Context<'_>, upper: u64, remaining_bytes: &mut u64) -> Option<PageMap> {
    if *remaining_bytes == 0
        || context.deadline_passed()
        || !is_private_memory(context, AddressRange::sized(upper, PAGE_MAP_BYTES))
    {
        return None;
    }
    let submaps = submaps_at(context, upper, remaining_bytes)?;
    let layout = layout_by_votes(context, &submaps)?;
    Some(PageMap { upper, layout, submaps })
}

/// Returns the submaps of a page map; `None` if a word of its upper level points to none.
fn submaps_at(context: &Context<'_>, upper: u64, remaining_bytes: &mut u64) -> Option<Vec<Leaf>> {
    let mut submaps = Vec::new();
    let mut seen_submaps = HashSet::new();
    let mut is_map = true;
    // The first entry covers addresses where nothing can be (`_mi_page_map_init`).
    let range = (upper + 8, upper + PAGE_MAP_BYTES);
    *remaining_bytes = remaining_bytes.saturating_sub(each_word_in_steps(
        context,
        range,
        PAGE_BYTES as usize,
        &mut |at, submap| {
            is_map = submap.is_multiple_of(PAGE_BYTES)
                && seen_submaps.insert(submap)
                && is_private_memory(context, AddressRange::sized(submap, SUBMAP_BYTES));
            submaps.push(Leaf { covered_start: (at - upper) / 8 * SUBMAP_SPAN, address: submap });
            is_map && submaps.len() < MAX_SUBMAPS
        },
    ));
    is_map.then_some(submaps)
}

/// Returns the layout of the pages in these submaps; `None` if fewer than nine in ten have it, or
/// there are none.
fn layout_by_votes(context: &Context<'_>, submaps: &[Leaf]) -> Option<&'static PageLayout> {
    let mut cache = PageCache::new(context.memory);
    let layouts: [&'static PageLayout; 2] = [&PAGE_3, &PAGE_3_4];
    let mut votes = [0_usize; 2];
    let mut checked_entries = 0;
    for &Leaf { covered_start, address: submap } in submaps {
        if checked_entries >= ENOUGH_ENTRIES || context.deadline_passed() {
            break;
        }
        each_word_in_steps(
            context,
            (submap, submap + SUBMAP_BYTES),
            PAGE_BYTES as usize,
            &mut |at, structure| {
                let slice = covered_start + (at - submap) / 8 * SLICE_BYTES;
                for (layout, votes) in layouts.iter().zip(&mut votes) {
                    let fits = read_page(&mut cache, layout, structure)
                        .is_some_and(|page| page.area.contains(slice));
                    *votes += usize::from(fits);
                }
                checked_entries += 1;
                checked_entries < ENOUGH_ENTRIES
            },
        );
    }
    // The first layout of equals.
    let (layout, votes) = layouts.into_iter().zip(votes).rev().max_by_key(|&(_, votes)| votes)?;
    // Some pages may be mid-update: nine in ten suffice.
    let is_known = checked_entries > 0 && votes * 10 >= checked_entries * 9;
    is_known.then_some(layout)
}

/// A page, and the range of its memory.
struct PageInMemory {
    page: PageWords,
    area: AddressRange,
}

/// Reads the page whose structure is at `address`.
fn read_page(cache: &mut PageCache<'_>, layout: &PageLayout, address: u64) -> Option<PageInMemory> {
    if address == 0 || !address.is_multiple_of(8) || address >= USER_ADDRESS_END {
        return None;
    }
    let mut bytes = [0; PAGE_3.bytes];
    cache.read(address, bytes.get_mut(..layout.bytes)?).ok()?;
    let page = layout.read(&bytes, address)?;
    let start = page.start?;
    let is_page =
        page.block_bytes > 0 && page.reserved > 0 && page.capacity <= page.reserved && start > address;
    let end = start.checked_add(page.reserved.checked_mul(page.block_bytes)?)?;
    if !is_page || end >= USER_ADDRESS_END {
        return None;
    }
    // The structure is at the start of that memory, or among those of an arena.
    let is_at_start = address.is_multiple_of(SLICE_BYTES) && start - address <= SLICE_BYTES;
    let area = if is_at_start { address } else { start - start % SLICE_BYTES };
    // Slices too small for another block may follow the last one.
    let slices_end = page.slices.filter(|slices| slices.start == area).map(|slices| slices.end);
    let end = slices_end.filter(|end| *end < USER_ADDRESS_END).unwrap_or(end).max(end);
    Some(PageInMemory { page, area: AddressRange::new(area, end.next_multiple_of(SLICE_BYTES)) })
}

/// Adds all pages.
fn add_pages(context: &Context<'_>, map: &PageMap, unclaimed: &mut UnclaimedMemory<'_>, heap: &mut Heap) {
    let mut cache = PageCache::new(context.memory);
    let mut cursor = 0;
    for &Leaf { covered_start, address: submap } in &map.submaps {
        if context.deadline_passed() {
            heap.doubts.note_timeout(covered_start);
            break;
        }
        each_word(context, (submap, submap + SUBMAP_BYTES), &mut |at, address| {
            let slice = covered_start + (at - submap) / 8 * SLICE_BYTES;
            if slice < cursor {
                return true;
            }
            match read_page(&mut cache, map.layout, address) {
                Some(PageInMemory { page, area })
                    if area.start == slice && heap.parts.len() < MAX_PARTS && unclaimed.contains(area) =>
                {
                    let AddressRange { start, end } = area;
                    heap.parts.push(Part {
                        start,
                        end,
                        kind: PartKind::Page(page),
                        release_unit: Some(start),
                        thread: page.thread,
                    });
                    (context.progress)(end - start);
                    cursor = end;
                }
                _ => heap.doubts.note_damage(slice, 0),
            }
            true
        });
        heap.bytes_read += SUBMAP_BYTES;
    }
    heap.bytes_read += cache.bytes_read;
}

/// An arena of 3.x (`arena.c`, `mi_arena_s`).
struct Arena {
    /// Its addresses.
    range: AddressRange,
    /// End of the structures at its start.
    structures_end: u64,
    /// Slices to purge, one bit each.
    purge_bits: Vec<u8>,
}

/// Returns the arena at `address`; `None` if no arena begins there.
fn arena_at(context: &Context<'_>, data: &StaticData<'_>, address: u64) -> Option<Arena> {
    if !address.is_multiple_of(SLICE_BYTES) || !is_resident(context, address) {
        return None;
    }
    let words: [u64; ARENA_WORDS] = read_words(context, address)?;
    // In this order: its owner, mostly in static data; from 3.2 on its index; its number of slices;
    // how many of them are its own.
    let owner = words.iter().position(|&word| data.range.contains(word))?;
    let (end, structures_end) = (owner + 1..owner + 3).find_map(|index| {
        let (&slices, &own_slices) = (words.get(index)?, words.get(index + 1)?);
        let end = address.checked_add(slices.checked_mul(SLICE_BYTES)?)?;
        let is_arena = own_slices > 0
            && own_slices < slices
            && slices <= MAX_ARENA_SLICES
            && is_private_memory(context, (address, end));
        is_arena.then_some((end, address + own_slices * SLICE_BYTES))
    })?;
    // Its bitmaps are among its own structures.
    let are_bitmaps = |pointers: &[u64]| pointers.iter().all(|at| (address..structures_end).contains(at));
    let first_bitmap = (owner + 1..ARENA_WORDS - PURGE_BITMAP)
        .find(|&index| are_bitmaps(&words[index..=index + PURGE_BITMAP]));
    let mut purge_bits = Vec::new();
    if let Some(first_bitmap) = first_bitmap {
        let bit_count = ((end - address) / SLICE_BYTES).next_multiple_of(CHUNK_BITS);
        purge_bits.resize((bit_count / 8) as usize, 0);
        // Memory that was never written has no bit set.
        let bits_at = words[first_bitmap + PURGE_BITMAP] + BITMAP_BITS_OFFSET;
        let read_length = context.memory.read_some(bits_at, &mut purge_bits);
        purge_bits.truncate(read_length);
    }
    Some(Arena { range: AddressRange::new(address, end), structures_end, purge_bits })
}

impl Arena {
    /// Divides a free range by whether slices are to be purged, and adds its parts to `parts`. The
    /// target's bits decide how many these are, so there are at most `max_parts` of them.
    ///
    /// # Errors
    /// The first address that was not added.
    fn divide(&self, range: AddressRange, parts: &mut Vec<Part>, max_parts: usize) -> Result<(), u64> {
        let kind = |at: u64| {
            let slice = ((at - self.range.start) / SLICE_BYTES) as usize;
            let is_set = self.purge_bits.get(slice / 8).is_some_and(|byte| byte >> (slice % 8) & 1 != 0);
            if is_set { PartKind::PurgePending } else { PartKind::Free }
        };
        let mut at = range.start;
        while at < range.end {
            let next = (at + SLICE_BYTES).min(range.end);
            let kind = kind(at);
            match parts.last_mut() {
                Some(last)
                    if last.end == at
                        && matches!(kind, PartKind::PurgePending)
                            == matches!(last.kind, PartKind::PurgePending) =>
                {
                    last.end = next;
                }
                _ => {
                    if parts.len() >= max_parts {
                        return Err(at);
                    }
                    parts.push(Part { start: at, end: next, kind, release_unit: None, thread: None });
                }
            }
            at = next;
        }
        Ok(())
    }
}

/// Adds mimalloc's own structures: the map, those of `arenas` (in address order), and the slices
/// that hold threads' heaps.
fn add_own_structures(map: &PageMap, arenas: &[Arena], unclaimed: &mut UnclaimedMemory<'_>, heap: &mut Heap) {
    let mut structures: Vec<AddressRange> =
        arenas.iter().map(|arena| AddressRange::new(arena.range.start, arena.structures_end)).collect();
    // The submap of the first addresses, which follows the upper level, is not included.
    structures.push(AddressRange::sized(map.upper, PAGE_MAP_BYTES));
    structures.extend(map.submaps.iter().map(|submap| AddressRange::sized(submap.address, SUBMAP_BYTES)));
    let heaps: BTreeSet<u64> = heap
        .parts
        .iter()
        .filter_map(Part::page)
        .flat_map(|page| page.heaps)
        .map(|heap| heap - heap % SLICE_BYTES)
        .collect();
    let in_arena = |slice: &u64| {
        let next = arenas.partition_point(|arena| arena.range.end <= *slice);
        arenas.get(next).is_some_and(|arena| arena.range.contains(*slice))
    };
    structures
        .extend(heaps.into_iter().filter(in_arena).map(|slice| AddressRange::sized(slice, SLICE_BYTES)));
    structures.sort_unstable();
    let mut parts: Vec<Part> = Vec::new();
    for AddressRange { start, end } in structures {
        let next = heap.parts.partition_point(|part| part.end <= start);
        let is_beside = heap.parts.get(next).is_none_or(|part| part.start >= end)
            && parts.last().is_none_or(|last| last.end <= start);
        if is_beside && unclaimed.contains((start, end)) {
            parts.push(Part { start, end, kind: PartKind::Own, release_unit: None, thread: None });
        }
    }
    heap.parts.extend(parts);
    heap.parts.sort_unstable_by_key(|part| part.start);
}

/// Adds the memory of each arena that is in no page.
fn add_free_memory(
    context: &Context<'_>,
    arenas: &[Arena],
    unclaimed: &mut UnclaimedMemory<'_>,
    heap: &mut Heap,
) {
    let max_parts = MAX_PARTS.saturating_sub(heap.parts.len());
    let mut parts = Vec::new();
    for arena in arenas {
        if context.deadline_passed() {
            heap.doubts.note_timeout(arena.range.start);
            break;
        }
        let first_part = heap.parts.partition_point(|part| part.end <= arena.range.start);
        let mut at = arena.range.start;
        let mut gaps = Vec::new();
        for part in heap.parts[first_part..].iter().take_while(|part| part.start < arena.range.end) {
            gaps.push(AddressRange::new(at, part.start));
            at = at.max(part.end);
        }
        gaps.push(AddressRange::new(at, arena.range.end));
        gaps.retain(|gap| unclaimed.contains(*gap));
        let divided = gaps.into_iter().try_for_each(|gap| arena.divide(gap, &mut parts, max_parts));
        if let Err(at) = divided {
            heap.doubts.note_damage(at, 0);
            break;
        }
    }
    heap.parts.extend(parts);
    heap.parts.sort_unstable_by_key(|part| part.start);
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 0x200_0000_0000;
    const SLICES: u64 = 64;

    #[test]
    fn bits_of_the_target_make_a_bounded_number_of_parts() {
        let range = AddressRange::sized(START, SLICES * SLICE_BYTES);
        let arena =
            |bits: u8| Arena { range, structures_end: START, purge_bits: vec![bits; SLICES as usize / 8] };
        let divided = |bits: u8, max_parts: usize| {
            let mut parts = Vec::new();
            let result = arena(bits).divide(range, &mut parts, max_parts);
            (result, parts.len(), parts.last().map(|part| (part.end - START) / SLICE_BYTES))
        };
        assert_eq!(divided(0b0101_0101, 10), (Err(START + 10 * SLICE_BYTES), 10, Some(10)));
        assert_eq!(divided(0b0101_0101, 0), (Err(START), 0, None));
        assert_eq!(divided(0b0101_0101, 64), (Ok(()), 64, Some(64)));
        // A part that grows is not another one.
        assert_eq!(divided(0, 1), (Ok(()), 1, Some(64)));
        assert_eq!(divided(0b0000_1111, 1), (Err(START + 4 * SLICE_BYTES), 1, Some(4)));
    }
}
