//! The address ranges of each arena, ready to be walked.

use std::collections::BTreeMap;

use super::layout;
use super::locate::{Arena, Heap, Parameters};
use super::walk_context::{Region, RegionKind, Top};
use strandline_claims::allocator::Context;
use strandline_claims::range::MAX_BYTES;
use strandline_process::map::Mapping;
use strandline_process::pages::{PAGE_BYTES, page_up};
use strandline_process::range::{AddressRange, RangeSet, overlapping};

/// A region, and the index of the arena that it belongs to.
pub struct ArenaRegion {
    /// The region.
    pub region: Region,
    /// Index of the arena.
    pub arena: usize,
}

/// Returns the size of the chunk at `address`, from its header; 0 if it cannot be read.
fn chunk_bytes(context: &Context<'_>, address: u64) -> u64 {
    let head = address.checked_add(8).and_then(|at| context.whole_memory.read_word(at).ok());
    head.unwrap_or(0) & !layout::SIZE_BITS
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
    let mut all: Vec<ArenaRegion> = Vec::new();
    let mut pieces = Vec::new();
    for (index, arena) in arenas.iter().enumerate() {
        // A top smaller than a chunk is damage, but the walk can still continue after it.
        let bytes = chunk_bytes(context, arena.top).max(layout::FENCEPOST_BYTES);
        let top = Top { address: arena.top, bytes };
        let regions =
            if arena.main { main(context, arena, top, parameters) } else { secondary(context, arena, top) };
        for region in regions {
            let list = if region.kind == RegionKind::Pieces { &mut pieces } else { &mut all };
            list.push(ArenaRegion { region, arena: index });
        }
    }
    all.retain(|owned| !taken.overlaps(owned.region.range()));
    all.sort_by_key(|owned| owned.region.start);
    // Two arenas cannot own one byte: if a damaged list claims so, the later range is dropped.
    let mut end = 0;
    all.retain(|owned| {
        let is_separate = owned.region.start >= end;
        end = if is_separate { owned.region.end } else { end };
        is_separate
    });
    // Pieces are searched in whole mappings, which the kernel may have merged with heaps.
    let mut taken = taken.clone();
    taken.add(excluded.iter().copied());
    taken.add(all.iter().map(|owned| owned.region.range()));
    for ArenaRegion { region, arena } in &pieces {
        let outside = taken.gaps_in(region.range()).map(|range| region.cut_to(range));
        all.extend(outside.map(|region| ArenaRegion { region, arena: *arena }));
    }
    all.sort_by_key(|owned| owned.region.start);
    // Limits the pages of all regions together, which need bits: mappings can have any size at no
    // cost.
    let mut remaining_bytes = MAX_BYTES;
    all.retain_mut(|ArenaRegion { region, .. }| {
        region.end = region.end.min(region.start.saturating_add(remaining_bytes));
        region.top = region.top.filter(|top| top.address < region.end);
        region.first = region.first.map(|first| first.min(region.end));
        remaining_bytes -= region.end - region.start;
        region.start < region.end
    });
    all
}

fn secondary(context: &Context<'_>, arena: &Arena, top: Top) -> Vec<Region> {
    let region = |&Heap { start, end, first_chunk }: &Heap| {
        let end = anonymous_end(context, start, end)?;
        Some(Region {
            start,
            end,
            first: Some(first_chunk.min(end)),
            kind: RegionKind::Heap,
            main: false,
            top: (start..end).contains(&top.address).then_some(top),
            break_at_top: false,
            trim_unit_bytes: PAGE_BYTES,
            locked: overlapping(context.locked, (start, end)).to_vec(),
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

fn main(context: &Context<'_>, arena: &Arena, top: Top, parameters: Option<&Parameters>) -> Vec<Region> {
    let mut regions = Vec::new();
    let base = parameters.map_or_else(|| context.start_brk.unwrap_or(0), |p| p.sbrk_base);
    let break_end = break_end(context, base);
    let trim_unit_bytes = parameters.map_or(0, |p| p.thp_pagesize).max(PAGE_BYTES);
    if let Some(break_end) = break_end {
        let top_end = top.address.saturating_add(top.bytes);
        let has_top = (base..break_end).contains(&top.address)
            && top_end <= break_end
            && top.bytes >= layout::MIN_CHUNK_BYTES;
        regions.push(Region {
            start: base,
            end: if has_top { top_end } else { break_end },
            first: Some(base.next_multiple_of(layout::ALIGNMENT)),
            kind: RegionKind::Brk,
            main: true,
            top: has_top.then_some(top),
            break_at_top: top_end == break_end,
            trim_unit_bytes,
            locked: overlapping(context.locked, (base, break_end)).to_vec(),
        });
    }
    if !arena.noncontiguous && break_end.is_some() {
        return regions;
    }
    let known_bytes: u64 = regions.iter().map(|r| r.end - r.start).sum();
    if arena.system_mem > known_bytes {
        let mappings = piece_mappings(context, arena, &regions);
        for AddressRange { start, end } in contiguous_ranges(context.space.mappings(), &mappings) {
            regions.push(Region {
                start,
                end,
                first: None,
                kind: RegionKind::Pieces,
                main: true,
                top: (start..end).contains(&top.address).then_some(top),
                break_at_top: false,
                trim_unit_bytes,
                locked: overlapping(context.locked, (start, end)).to_vec(),
            });
        }
    }
    regions
}

/// Returns the end of the memory grown by brk from `base` on: the mappings named `[heap]`, which
/// other protections may have split. `None` if `base` is not in it.
fn break_end(context: &Context<'_>, base: u64) -> Option<u64> {
    let mut end = None;
    if base == 0 {
        return end;
    }
    for mapping in context.space.mappings() {
        let is_heap = mapping.name == "[heap]" && mapping.end > base;
        // The break may start on the last page of the program's data, which is another mapping.
        let starts = mapping.contains(base) || mapping.start == page_up(base);
        if is_heap && (starts || end == Some(mapping.start)) {
            end = Some(mapping.end);
        }
    }
    end
}

/// Maximum length of a part that a program may have protected within one of its blocks; a longer
/// one counts as a foreign reservation.
const MAX_PROTECTED_BYTES: u64 = 16 << 20;

/// Returns the contiguous ranges around the mappings of a heap: madvise, mlock, mprotect or prctl
/// within a block makes the kernel split a mapping.
fn contiguous_ranges(all: &[Mapping], heap: &[&Mapping]) -> Vec<AddressRange> {
    let mut ranges: Vec<AddressRange> = Vec::new();
    for mapping in heap {
        if ranges.last().is_some_and(|last| mapping.end <= last.end) {
            continue;
        }
        let at = all.partition_point(|m| m.start < mapping.start);
        let before = all[..at].iter().rev().map(|m| Neighbour { mapping: m, near: m.end, far: m.start });
        let after = all[at..].iter().skip(1).map(|m| Neighbour { mapping: m, near: m.start, far: m.end });
        ranges.push(AddressRange::new(furthest(mapping.start, before), furthest(mapping.end, after)));
    }
    ranges
}

/// A mapping before or after a heap.
struct Neighbour<'a> {
    mapping: &'a Mapping,
    /// Its end nearer to the heap.
    near: u64,
    /// Its other end.
    far: u64,
}

/// Returns how far a heap may reach from `edge`: over adjacent neighbours, to the last writable
/// one.
fn furthest<'a>(mut edge: u64, neighbours: impl Iterator<Item = Neighbour<'a>>) -> u64 {
    let mut furthest = edge;
    for Neighbour { mapping, near, far } in neighbours {
        let may_be_cut = mapping.is_private_anonymous()
            && !is_named_by_kernel(mapping)
            && (mapping.permissions.write || mapping.bytes() <= MAX_PROTECTED_BYTES);
        if near != edge || !may_be_cut {
            break;
        }
        edge = far;
        if mapping.permissions.write {
            furthest = far;
        }
    }
    furthest
}

/// Maximum number of free chunks whose mapping is looked up.
const MAX_CHUNKS_CHECKED: usize = 4096;

/// Returns the mappings in which the main arena continues: those of its top and of its free chunks,
/// and those that begin with a chain of chunks, for pieces in full use.
fn piece_mappings<'a>(context: &'a Context<'_>, arena: &Arena, known: &[Region]) -> Vec<&'a Mapping> {
    let is_known = |address| known.iter().any(|r| (r.start..r.end).contains(&address));
    let may_be_heap =
        |m: &&Mapping| m.is_private_anonymous() && m.permissions.write && !is_named_by_kernel(m);
    let mut found: BTreeMap<u64, &Mapping> = BTreeMap::new();
    let mut add = |address: u64| {
        if let Some(mapping) = context.space.find(address).filter(may_be_heap).filter(|_| !is_known(address))
        {
            found.insert(mapping.start, mapping);
        }
    };
    add(arena.top);
    arena.fastbins.iter().for_each(|&chunk| add(chunk));
    let mut followed_chunks = 0;
    for bin in &arena.bins {
        add(bin.first);
        add(bin.last);
        let mut chunk = bin.first;
        while followed_chunks < MAX_CHUNKS_CHECKED {
            followed_chunks += 1;
            // fd of a free chunk: the next one in its bin, or the bin itself in the arena.
            let place = chunk.saturating_add(16);
            if !is_resident(context, place) {
                break;
            }
            let Ok(next) = context.whole_memory.read_word(place) else { break };
            if next == bin.first || (arena.address..arena.address + PAGE_BYTES).contains(&next) {
                break;
            }
            add(next);
            chunk = next;
        }
    }
    let begins = |m: &&Mapping| !is_known(m.start) && begins_with_chunks(context, m);
    context.space.mappings().iter().filter(may_be_heap).filter(begins).for_each(|mapping| add(mapping.start));
    found.into_values().collect()
}

/// Whether the kernel's name for a mapping shows its purpose.
fn is_named_by_kernel(mapping: &Mapping) -> bool {
    mapping.name == "[heap]" || mapping.name.starts_with("[stack")
}

/// Whether a page is resident: reading a missing one would make the kernel map one in the target.
fn is_resident(context: &Context<'_>, address: u64) -> bool {
    !context.resident_runs(AddressRange::sized(address, 1)).is_empty()
}

/// Number of consecutive chunks that a mapping must begin with.
const MIN_CHAIN: usize = 12;

/// Whether a mapping begins with chunks of the main arena: each leads to the next, or to the
/// fenceposts at the end of a short piece.
fn begins_with_chunks(context: &Context<'_>, mapping: &Mapping) -> bool {
    let mut at = mapping.start;
    for _ in 0..MIN_CHAIN {
        if at >= mapping.end || !is_resident(context, at) {
            return false;
        }
        let Ok(head) = context.whole_memory.read_word(at + 8) else { return false };
        let bytes = head & !layout::SIZE_BITS;
        if bytes == layout::FENCEPOST_BYTES {
            return at > mapping.start;
        }
        let is_chunk = bytes >= layout::MIN_CHUNK_BYTES
            && bytes.is_multiple_of(layout::ALIGNMENT)
            && head & (layout::IS_MMAPPED | layout::NON_MAIN_ARENA) == 0
            && (at > mapping.start || head & layout::PREV_INUSE != 0);
        match at.checked_add(bytes).filter(|_| is_chunk) {
            Some(next) => at = next,
            None => return false,
        }
    }
    true
}
