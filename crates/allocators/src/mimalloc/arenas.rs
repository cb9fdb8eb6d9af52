//! Finds mimallocs with a page map (3.x), and divides their memory.
//!
//! The map has two levels. A word of the static data of the program or library that contains
//! mimalloc points to the upper level, which is recognised by pages whose own address matches the
//! map. Memory in no page is in arenas, to which static data points too, or was taken from the
//! kernel for mimalloc's own structures.

use std::collections::{BTreeSet, HashSet};
use std::time::Instant;

use super::layout::{
    ARENA_WORDS, BITMAP_BITS, CHUNK_BITS, COLLECT_3, LARGE_BYTES, MAP_BYTES, PAGE_3, PAGE_3_4, PURGE_BITMAP,
    PURGED_IN_RUNS, PageLayout, PageWords, SLICE_BYTES, SUBMAP_BYTES, SUBMAP_SPAN,
};
use super::parts::{Heap, Kind, Part, RunPurgedArena};
use crate::radix::{self, Leaf, StaticData, UnclaimedMemory};
use crate::scan::{each_word, each_word_by, is_mapped_memory, is_private_memory};
use strandline_claims::allocator::Context;
use strandline_process::host;
use strandline_process::memory::word_at;
use strandline_process::page_cache::PageCache;
use strandline_process::pages::{PAGE_BYTES, USER_ADDRESS_END};
use strandline_process::range::{AddressRange, RangeSet};

/// Minimum static data with a mimalloc: its statistics alone take more.
const MIN_DATA_BYTES: u64 = 4096;
/// Maximum words of static data followed, per program or library.
const MAX_TRIED: usize = 1 << 16;
/// Maximum bytes of candidates for maps read, per program or library.
const MAX_TRIED_BYTES: u64 = 16 << 20;
/// Number of entries checked to recognise a map.
const ENOUGH_ENTRIES: usize = 64;
/// Maximum slices of an arena, and arenas of a process (`bitmap.h`, `MI_BITMAP_MAX_BIT_COUNT`;
/// `types.h`, `MI_MAX_ARENAS`).
const MAX_ARENA_SLICES: u64 = 512 * 512;
const MAX_ARENAS: usize = 160;
/// Maximum pages kept: at least 256 GiB of them.
const MAX_PAGES: usize = 1 << 22;
/// Maximum submaps read.
const MAX_SUBMAPS: usize = 1 << 14;

/// A page map.
struct Map {
    upper: u64,
    layout: &'static PageLayout,
    submaps: Vec<Leaf>,
}

/// Finds all heaps of a process outside `taken` (claimed by others).
pub fn find(context: &Context<'_>, taken: &RangeSet) -> Vec<Heap> {
    let mut heaps: Vec<Heap> = Vec::new();
    let mut taken = taken.clone();
    for data in radix::large_data(context.space, MIN_DATA_BYTES) {
        let words = words(context, &data);
        let Some(map) = find_map(context, &words) else { continue };
        let mut heap = Heap {
            object: data.object.start,
            name: data.object.name.clone(),
            collect: COLLECT_3,
            has_thread_data: true,
            releases: if map.layout == &PAGE_3 { "3.0 to 3.3" } else { "3.4" },
            ..Heap::default()
        };
        let mut free = UnclaimedMemory::new(context, &taken);
        add_pages(context, &map, &mut free, &mut heap);
        let mut arenas: Vec<Arena> = Vec::new();
        for &word in &words {
            let is_beside = arenas.last().is_none_or(|last| last.range.end <= word);
            if is_beside && arenas.len() < MAX_ARENAS && Instant::now() < context.deadline {
                arenas.extend(arena_at(context, &data, word));
            }
        }
        heap.segments = arenas.len() as u64;
        add_own_structures(&map, &arenas, &mut free, &mut heap);
        // Unread memory may be in use.
        if heap.doubts.is_empty() {
            add_free_memory(&arenas, &mut free, &mut heap);
        }
        let are_in_runs = host::has_huge_pages() && has_large_pages(&heap.parts);
        let in_runs = arenas.into_iter().filter(|arena| arena.is_in_runs && are_in_runs);
        heap.run_purged_arenas =
            in_runs.map(|arena| RunPurgedArena { range: arena.range, marks: arena.purge }).collect();
        taken.add(heap.parts.iter().map(Part::range));
        heaps.push(heap);
    }
    heaps
}

/// Whether large blocks share pages, as from 3.1.6 on; up to 3.1.5, which purges no runs, each has
/// its own page. True if there are no large blocks.
fn has_large_pages(parts: &[Part]) -> bool {
    let pages = parts.iter().filter_map(Part::page);
    let large = pages.filter(|page| LARGE_BYTES.contains(&page.block_bytes));
    large.clone().filter(|page| page.reserved == 1).count() * 2 <= large.count()
}

/// Returns the words of static data that point to mapped memory.
fn words(context: &Context<'_>, data: &StaticData<'_>) -> Vec<u64> {
    let mut words = BTreeSet::new();
    each_word(context, data.range, &mut |_, word| {
        if word.is_multiple_of(PAGE_BYTES) && context.space.find(word).is_some_and(is_mapped_memory) {
            words.insert(word);
        }
        words.len() < MAX_TRIED
    });
    words.into_iter().collect()
}

/// Returns the page map that one of `words` points to. Hardly any page of an upper level was ever
/// written, so candidates with the fewest resident pages come first.
fn find_map(context: &Context<'_>, words: &[u64]) -> Option<Map> {
    let range = |upper: u64| AddressRange::sized(upper, MAP_BYTES);
    let may_be = |upper: &u64| is_private_memory(context, range(*upper));
    let mut uppers: Vec<u64> = words.iter().copied().filter(may_be).collect();
    uppers.sort_by_cached_key(|&upper| (context.resident_bytes(range(upper)), upper));
    let mut remaining_bytes = MAX_TRIED_BYTES;
    uppers.into_iter().find_map(|upper| map_at(context, upper, &mut remaining_bytes))
}

/// Returns the page map whose upper level is at `upper`; `None` if it is not one.
fn map_at(context: &Context<'_>, upper: u64, remaining_bytes: &mut u64) -> Option<Map> {
    if *remaining_bytes == 0
        || Instant::now() >= context.deadline
        || !is_private_memory(context, AddressRange::sized(upper, MAP_BYTES))
    {
        return None;
    }
    let (mut submaps, mut seen, mut is_map) = (Vec::new(), HashSet::new(), true);
    // The first entry covers addresses where nothing can be (`_mi_page_map_init`).
    let range = (upper + 8, upper + MAP_BYTES);
    *remaining_bytes = remaining_bytes.saturating_sub(each_word_by(
        context,
        range,
        PAGE_BYTES as usize,
        &mut |at, submap| {
            is_map = submap.is_multiple_of(PAGE_BYTES)
                && seen.insert(submap)
                && is_private_memory(context, AddressRange::sized(submap, SUBMAP_BYTES));
            submaps.push(Leaf { first: (at - upper) / 8 * SUBMAP_SPAN, at: submap });
            is_map && submaps.len() < MAX_SUBMAPS
        },
    ));
    if !is_map {
        return None;
    }
    let mut cache = PageCache::new(context.memory);
    let layouts = [&PAGE_3, &PAGE_3_4];
    let mut votes = [0_usize; 2];
    let mut entries = 0;
    for &Leaf { first, at: submap } in &submaps {
        if entries >= ENOUGH_ENTRIES || Instant::now() >= context.deadline {
            break;
        }
        each_word_by(context, (submap, submap + SUBMAP_BYTES), PAGE_BYTES as usize, &mut |at, page| {
            let slice = first + (at - submap) / 8 * SLICE_BYTES;
            for (layout, votes) in layouts.iter().zip(&mut votes) {
                let fits = read_page(&mut cache, layout, page).is_some_and(|(_, area)| area.contains(slice));
                *votes += usize::from(fits);
            }
            entries += 1;
            entries < ENOUGH_ENTRIES
        });
    }
    let best = if votes[0] >= votes[1] { 0 } else { 1 };
    // Some pages may be mid-update.
    let is_map = entries > 0 && votes[best] * 10 >= entries * 9;
    is_map.then_some(Map { upper, layout: layouts[best], submaps })
}

/// Reads a page; also returns the range of its memory.
fn read_page(
    cache: &mut PageCache<'_>,
    layout: &PageLayout,
    address: u64,
) -> Option<(PageWords, AddressRange)> {
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
    let own = page.slices.filter(|slices| slices.start == area).map(|slices| slices.end);
    let end = own.filter(|end| *end < USER_ADDRESS_END).unwrap_or(end).max(end);
    Some((page, AddressRange::new(area, end.next_multiple_of(SLICE_BYTES))))
}

/// Adds all pages.
fn add_pages(context: &Context<'_>, map: &Map, free: &mut UnclaimedMemory<'_>, heap: &mut Heap) {
    let mut cache = PageCache::new(context.memory);
    let mut cursor = 0;
    for &Leaf { first, at: submap } in &map.submaps {
        if Instant::now() >= context.deadline {
            heap.doubts.note_timeout(first);
            break;
        }
        each_word(context, (submap, submap + SUBMAP_BYTES), &mut |at, address| {
            let slice = first + (at - submap) / 8 * SLICE_BYTES;
            if slice < cursor {
                return true;
            }
            match read_page(&mut cache, map.layout, address) {
                Some((page, area))
                    if area.start == slice && heap.parts.len() < MAX_PAGES && free.contains(area) =>
                {
                    let AddressRange { start, end } = area;
                    heap.parts.push(Part {
                        start,
                        end,
                        kind: Kind::Page(page),
                        unit: start,
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

/// An arena.
struct Arena {
    range: AddressRange,
    /// End of the structures at its start.
    own_end: u64,
    /// Slices to purge, one bit each.
    purge: Vec<u8>,
    /// Whether they are purged in runs only.
    is_in_runs: bool,
}

/// Returns the arena at `address`; `None` if absent.
fn arena_at(context: &Context<'_>, data: &StaticData<'_>, address: u64) -> Option<Arena> {
    let mut bytes = [0; 8 * ARENA_WORDS];
    if !address.is_multiple_of(SLICE_BYTES) || context.resident_runs((address, address + 8)).is_empty() {
        return None;
    }
    context.memory.read(address, &mut bytes).ok()?;
    let word = |index: usize| word_at(&bytes, 8 * index).unwrap_or(0);
    // In this order: its owner, mostly in static data; from 3.2 on its index; its number of slices;
    // how many of them are its own.
    let owner = (0..ARENA_WORDS).find(|&index| data.range.contains(word(index)))?;
    let (end, own_end) = (owner + 1..owner + 3).find_map(|index| {
        let (slices, own) = (word(index), word(index + 1));
        let end = address.checked_add(slices.checked_mul(SLICE_BYTES)?)?;
        let is_arena = own > 0
            && own < slices
            && slices <= MAX_ARENA_SLICES
            && is_private_memory(context, (address, end));
        is_arena.then_some((end, address + own * SLICE_BYTES))
    })?;
    // Its bitmaps are among its own structures.
    let is_bitmap = |index: &usize| (address..own_end).contains(&word(*index));
    let first = (owner + 1..ARENA_WORDS - PURGE_BITMAP)
        .find(|index| (*index..=index + PURGE_BITMAP).all(|index| is_bitmap(&index)));
    let mut purge = Vec::new();
    if let Some(first) = first {
        let bits = ((end - address) / SLICE_BYTES).next_multiple_of(CHUNK_BITS);
        purge.resize((bits / 8) as usize, 0);
        // Memory that was never written has no bit set.
        let got = context.memory.read_some(word(first + PURGE_BITMAP) + BITMAP_BITS, &mut purge);
        purge.truncate(got);
    }
    let is_in_runs = first.is_some_and(|first| PURGED_IN_RUNS.contains(&first));
    Some(Arena { range: AddressRange::new(address, end), own_end, purge, is_in_runs })
}

impl Arena {
    /// Divides a free range by whether slices are to be purged.
    fn divide(&self, AddressRange { start, end }: AddressRange, parts: &mut Vec<Part>) {
        let kind = |at: u64| {
            let slice = ((at - self.range.start) / SLICE_BYTES) as usize;
            let is_set = self.purge.get(slice / 8).is_some_and(|byte| byte >> (slice % 8) & 1 != 0);
            if is_set { Kind::PurgePending } else { Kind::Free }
        };
        let mut at = start;
        while at < end {
            let next = (at + SLICE_BYTES).min(end);
            let kind = kind(at);
            match parts.last_mut() {
                Some(last)
                    if last.end == at
                        && matches!(kind, Kind::PurgePending) == matches!(last.kind, Kind::PurgePending) =>
                {
                    last.end = next;
                }
                _ => parts.push(Part { start: at, end: next, kind, unit: 0, thread: 0 }),
            }
            at = next;
        }
    }
}

/// Adds mimalloc's own structures: the map, those of arenas, and slices with threads' heaps.
fn add_own_structures(map: &Map, arenas: &[Arena], free: &mut UnclaimedMemory<'_>, heap: &mut Heap) {
    let mut own: Vec<AddressRange> =
        arenas.iter().map(|arena| AddressRange::new(arena.range.start, arena.own_end)).collect();
    // The submap of the first addresses, which follows the upper level, is not included.
    own.push(AddressRange::sized(map.upper, MAP_BYTES));
    own.extend(map.submaps.iter().map(|submap| AddressRange::sized(submap.at, SUBMAP_BYTES)));
    let heaps: BTreeSet<u64> = heap
        .parts
        .iter()
        .filter_map(Part::page)
        .flat_map(|page| page.heaps)
        .map(|heap| heap - heap % SLICE_BYTES)
        .collect();
    let in_arena = |slice: &u64| arenas.iter().any(|arena| arena.range.contains(*slice));
    own.extend(heaps.into_iter().filter(in_arena).map(|slice| AddressRange::sized(slice, SLICE_BYTES)));
    own.sort_unstable();
    let mut parts: Vec<Part> = Vec::new();
    for AddressRange { start, end } in own {
        let next = heap.parts.partition_point(|part| part.end <= start);
        let is_beside = heap.parts.get(next).is_none_or(|part| part.start >= end)
            && parts.last().is_none_or(|last| last.end <= start);
        if is_beside && free.contains((start, end)) {
            parts.push(Part { start, end, kind: Kind::Own, unit: 0, thread: 0 });
        }
    }
    heap.parts.extend(parts);
    heap.parts.sort_unstable_by_key(|part| part.start);
}

/// Adds the memory of each arena that is in no page.
fn add_free_memory(arenas: &[Arena], free: &mut UnclaimedMemory<'_>, heap: &mut Heap) {
    let mut parts = Vec::new();
    for arena in arenas {
        let first = heap.parts.partition_point(|part| part.end <= arena.range.start);
        let mut at = arena.range.start;
        let mut gaps = Vec::new();
        for part in heap.parts[first..].iter().take_while(|part| part.start < arena.range.end) {
            gaps.push(AddressRange::new(at, part.start));
            at = at.max(part.end);
        }
        gaps.push(AddressRange::new(at, arena.range.end));
        gaps.retain(|gap| free.contains(*gap));
        for gap in gaps {
            arena.divide(gap, &mut parts);
        }
    }
    heap.parts.extend(parts);
    heap.parts.sort_unstable_by_key(|part| part.start);
}
