//! The address ranges of each arena, ready to be walked.
//!
//! A secondary arena lists its heaps. The main arena is on brk and, if brk was blocked, continues
//! in mappings that `pieces` finds.

use super::layout;
use super::locate::{Arena, Heap};
use super::parameters::Parameters;
use super::pieces;
use super::walk_context::{Region, RegionKind, Top};
use strandline_claims::allocator::Context;
use strandline_claims::range::MAX_BYTES;
use strandline_process::pages::{PAGE_BYTES, page_up};
use strandline_process::range::{AddressRange, RangeSet, overlapping};

/// A region, and the index of the arena that it belongs to.
pub struct ArenaRegion {
    /// The region.
    pub region: Region,
    /// Index of the arena.
    pub arena: usize,
}

/// Returns the size of the chunk at `address`, from its header; `None` if it cannot be read.
fn chunk_bytes(context: &Context<'_>, address: u64) -> Option<u64> {
    let head = context.whole_memory.read_word(address.checked_add(layout::CHUNK_SIZE)?).ok()?;
    Some(head & !layout::SIZE_BITS)
}

/// Returns the regions of all arenas, in address order, outside `taken` (other readings) and
/// `excluded` (not a heap).
pub fn of_arenas(
    context: &Context<'_>,
    arenas: &[Arena],
    parameters: Option<&Parameters>,
    taken: &RangeSet,
    excluded: &RangeSet,
) -> Vec<ArenaRegion> {
    let mut all_regions: Vec<ArenaRegion> = Vec::new();
    let mut piece_regions = Vec::new();
    for (index, arena) in arenas.iter().enumerate() {
        // A top that cannot be read, or is smaller than a chunk, is damage to the walk, which
        // continues after it.
        let top_bytes = chunk_bytes(context, arena.top).unwrap_or(0).max(layout::FENCEPOST_BYTES);
        let top = Top { address: arena.top, bytes: top_bytes };
        let regions = if arena.is_main {
            regions_of_main_arena(context, arena, top, parameters)
        } else {
            regions_of_heaps(context, arena, top)
        };
        for region in regions {
            let list = if region.kind == RegionKind::Pieces { &mut piece_regions } else { &mut all_regions };
            list.push(ArenaRegion { region, arena: index });
        }
    }
    all_regions.retain(|arena_region| !taken.overlaps(arena_region.region.range()));
    all_regions.sort_by_key(|arena_region| arena_region.region.start);
    drop_overlapping(&mut all_regions);
    // Pieces are searched in whole mappings, which the kernel may have merged with heaps.
    let mut taken = taken.clone();
    taken.add(excluded.iter().copied());
    taken.add(all_regions.iter().map(|arena_region| arena_region.region.range()));
    for ArenaRegion { region, arena } in &piece_regions {
        let outside = taken.gaps_in(region.range()).map(|range| region.cut_to(range));
        all_regions.extend(outside.map(|region| ArenaRegion { region, arena: *arena }));
    }
    all_regions.sort_by_key(|arena_region| arena_region.region.start);
    limit_bytes(&mut all_regions);
    all_regions
}

/// Drops each region that begins within the one before it. Two arenas cannot own one byte, but a
/// damaged list may claim so.
fn drop_overlapping(regions: &mut Vec<ArenaRegion>) {
    let mut end = 0;
    regions.retain(|arena_region| {
        let is_separate = arena_region.region.start >= end;
        end = if is_separate { arena_region.region.end } else { end };
        is_separate
    });
}

/// Limits the bytes of all regions together. Each of their pages needs bits of our memory, and
/// mappings can have any size at no cost.
fn limit_bytes(regions: &mut Vec<ArenaRegion>) {
    let mut remaining_bytes = MAX_BYTES;
    regions.retain_mut(|ArenaRegion { region, .. }| {
        region.end = region.end.min(region.start.saturating_add(remaining_bytes));
        region.top = region.top.filter(|top| top.address < region.end);
        region.first_chunk = region.first_chunk.map(|first_chunk| first_chunk.min(region.end));
        remaining_bytes -= region.end - region.start;
        region.start < region.end
    });
}

/// Returns the regions of a secondary arena: its heaps.
fn regions_of_heaps(context: &Context<'_>, arena: &Arena, top: Top) -> Vec<Region> {
    let region = |&Heap { start, end, first_chunk }: &Heap| {
        let end = anonymous_end(context, start, end)?;
        Some(Region {
            start,
            end,
            first_chunk: Some(first_chunk.min(end)),
            kind: RegionKind::Heap,
            is_main: false,
            top: (start..end).contains(&top.address).then_some(top),
            is_break_at_top: false,
            trim_unit_bytes: PAGE_BYTES,
            locked: overlapping(context.locked_mappings, (start, end)).to_vec(),
        })
    };
    arena.heaps.iter().filter_map(region).collect()
}

/// Returns the end of the private anonymous memory that begins at `start`, at most `end`; `None` if
/// none begins there. The bounds in a damaged heap_info may include memory that malloc did not map.
fn anonymous_end(context: &Context<'_>, start: u64, end: u64) -> Option<u64> {
    let mut until = start;
    while until < end {
        match context.space.find(until).filter(|mapping| mapping.is_private_anonymous()) {
            Some(mapping) => until = mapping.end,
            None => break,
        }
    }
    (until > start).then_some(until.min(end))
}

/// Returns the regions of the main arena: the memory grown by brk, and the pieces elsewhere.
fn regions_of_main_arena(
    context: &Context<'_>,
    arena: &Arena,
    top: Top,
    parameters: Option<&Parameters>,
) -> Vec<Region> {
    let mut regions = Vec::new();
    let base = parameters.map_or(context.start_brk, |parameters| parameters.sbrk_base);
    let brk_range = base.and_then(|base| Some(AddressRange::new(base, break_end(context, base)?)));
    let trim_unit_bytes =
        parameters.map_or(PAGE_BYTES, |parameters| parameters.thp_page_bytes.max(PAGE_BYTES));
    if let Some(AddressRange { start: base, end: break_end }) = brk_range {
        let top_end = top.address.saturating_add(top.bytes);
        let has_top = (base..break_end).contains(&top.address)
            && top_end <= break_end
            && top.bytes >= layout::MIN_CHUNK_BYTES;
        regions.push(Region {
            start: base,
            end: if has_top { top_end } else { break_end },
            first_chunk: Some(base.next_multiple_of(layout::ALIGNMENT)),
            kind: RegionKind::Brk,
            is_main: true,
            top: has_top.then_some(top),
            is_break_at_top: top_end == break_end,
            trim_unit_bytes,
            locked: overlapping(context.locked_mappings, (base, break_end)).to_vec(),
        });
    }
    if !arena.is_noncontiguous && brk_range.is_some() {
        return regions;
    }
    let known_bytes: u64 = regions.iter().map(|region| region.range().len()).sum();
    if arena.system_bytes > known_bytes {
        for AddressRange { start, end } in pieces::ranges(context, arena, &regions) {
            regions.push(Region {
                start,
                end,
                first_chunk: None,
                kind: RegionKind::Pieces,
                is_main: true,
                top: (start..end).contains(&top.address).then_some(top),
                is_break_at_top: false,
                trim_unit_bytes,
                locked: overlapping(context.locked_mappings, (start, end)).to_vec(),
            });
        }
    }
    regions
}

/// Returns the end of the memory grown by brk from `base` on: the mappings named `[heap]`, which
/// other protections may have split. `None` if `base` is not in it.
fn break_end(context: &Context<'_>, base: u64) -> Option<u64> {
    let mut end = None;
    for mapping in context.space.mappings() {
        let is_heap = mapping.name == "[heap]" && mapping.end > base;
        // The break may start on the last page of the program's data, which is another mapping.
        let is_first = mapping.contains(base) || mapping.start == page_up(base);
        if is_heap && (is_first || end == Some(mapping.start)) {
            end = Some(mapping.end);
        }
    }
    end
}
