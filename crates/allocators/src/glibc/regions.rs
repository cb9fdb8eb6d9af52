//! The address ranges of each arena, ready to be walked.

use std::collections::BTreeMap;

use super::layout;
use super::locate::{Arena, Parameters};
use super::walk_context::{Region, Shape, Top};
use strandline_claims::allocator::{Context, overlapping};
use strandline_claims::range::merge;
use strandline_claims::range::{MAX_BYTES, PAGE_BYTES, page_up};
use strandline_process::map::Mapping;

/// A region and the arena (its index) that it belongs to.
pub struct Owned {
    /// The region.
    pub region: Region,
    /// Index of the arena.
    pub arena: usize,
}

/// The size of the chunk at `address`, from its header; 0 where it cannot be read.
fn chunk_bytes(context: &Context<'_>, address: u64) -> u64 {
    let head = address.checked_add(8).and_then(|at| context.whole_memory.read_word(at).ok());
    head.unwrap_or(0) & !layout::SIZE_BITS
}

/// The regions of all arenas, in address order, beside what other readings have `taken`, and beside what is `apart` from
/// any heap (both in address order).
pub fn of_arenas(
    context: &Context<'_>,
    arenas: &[Arena],
    parameters: Option<&Parameters>,
    taken: &[(u64, u64)],
    apart: &[(u64, u64)],
) -> Vec<Owned> {
    let mut all: Vec<Owned> = Vec::new();
    let mut pieces = Vec::new();
    for (index, arena) in arenas.iter().enumerate() {
        // A top of less than a chunk is damage; it still is a place that the walk can go on behind.
        let bytes = chunk_bytes(context, arena.top).max(layout::FENCEPOST_BYTES);
        let top = Top { address: arena.top, bytes };
        let regions =
            if arena.main { main(context, arena, top, parameters) } else { secondary(context, arena, top) };
        for region in regions {
            let place = if region.shape == Shape::Pieces { &mut pieces } else { &mut all };
            place.push(Owned { region, arena: index });
        }
    }
    all.retain(|owned| overlapping(taken, owned.region.start, owned.region.end).is_empty());
    all.sort_by_key(|owned| owned.region.start);
    // Two arenas cannot own one byte: a damaged list that says so loses its later range.
    let mut end = 0;
    all.retain(|owned| {
        let apart = owned.region.start >= end;
        end = if apart { owned.region.end } else { end };
        apart
    });
    // Pieces are looked for in whole mappings, with which the kernel may have merged heaps.
    let mut taken = taken.to_vec();
    taken.extend(apart);
    taken.extend(all.iter().map(|owned| (owned.region.start, owned.region.end)));
    merge(&mut taken);
    for piece in pieces {
        all.extend(
            without(piece.region, &taken).into_iter().map(|region| Owned { region, arena: piece.arena }),
        );
    }
    all.sort_by_key(|owned| owned.region.start);
    // All together they get bits for so many pages: mappings can be of any size, and cost nothing.
    let mut rest = MAX_BYTES;
    all.retain_mut(|Owned { region, .. }| {
        region.end = region.end.min(region.start.saturating_add(rest));
        region.top = region.top.filter(|top| top.address < region.end);
        region.first = region.first.map(|first| first.min(region.end));
        rest -= region.end - region.start;
        region.start < region.end
    });
    all
}

/// What is left of `region` beside the ranges `taken`, which are in address order.
fn without(region: Region, taken: &[(u64, u64)]) -> Vec<Region> {
    let mut rest = Vec::new();
    let mut from = region.start;
    let cut = |start: u64, end: u64| {
        let top = region.top.filter(|top| (start..end).contains(&top.address));
        Region { start, end, top, ..region.clone() }
    };
    for &(start, end) in overlapping(taken, region.start, region.end) {
        if start > from {
            rest.push(cut(from, start));
        }
        from = from.max(end);
    }
    if from < region.end {
        rest.push(cut(from, region.end));
    }
    rest
}

fn secondary(context: &Context<'_>, arena: &Arena, top: Top) -> Vec<Region> {
    let region = |&(start, end, first): &(u64, u64, u64)| {
        let end = anonymous_end(context, start, end)?;
        Some(Region {
            start,
            end,
            first: Some(first.min(end)),
            shape: Shape::Heap,
            main: false,
            top: (start..end).contains(&top.address).then_some(top),
            break_at_top: false,
            trim_unit_bytes: PAGE_BYTES,
            locked: overlapping(context.locked, start, end).to_vec(),
        })
    };
    arena.heaps.iter().filter_map(region).collect()
}

/// How far from `start` on, `end` at most, memory is private and anonymous without a gap: what a
/// damaged heap_info says beyond is not malloc's. `None` where nothing is.
fn anonymous_end(context: &Context<'_>, start: u64, end: u64) -> Option<u64> {
    let mut upto = start;
    while upto < end {
        match context.space.find(upto).filter(|mapping| mapping.is_private_anonymous()) {
            Some(mapping) => upto = mapping.end,
            None => break,
        }
    }
    (upto > start).then_some(upto.min(end))
}

fn main(context: &Context<'_>, arena: &Arena, top: Top, parameters: Option<&Parameters>) -> Vec<Region> {
    let mut regions = Vec::new();
    let base = parameters.map_or_else(|| context.start_brk.unwrap_or(0), |p| p.sbrk_base);
    let break_end = break_end(context, base);
    let trim_unit_bytes = parameters.map_or(0, |p| p.thp_pagesize).max(PAGE_BYTES);
    if let Some(break_end) = break_end {
        let top_end = top.address.saturating_add(top.bytes);
        let top_here = (base..break_end).contains(&top.address)
            && top_end <= break_end
            && top.bytes >= layout::MIN_CHUNK_BYTES;
        regions.push(Region {
            start: base,
            end: if top_here { top_end } else { break_end },
            first: Some(base.next_multiple_of(layout::ALIGNMENT)),
            shape: Shape::Brk,
            main: true,
            top: top_here.then_some(top),
            break_at_top: top_end == break_end,
            trim_unit_bytes,
            locked: overlapping(context.locked, base, break_end).to_vec(),
        });
    }
    if !arena.noncontiguous && break_end.is_some() {
        return regions;
    }
    let known_bytes: u64 = regions.iter().map(|r| r.end - r.start).sum();
    if arena.system_mem > known_bytes {
        for (start, end) in stretches(context.space.mappings(), &piece_mappings(context, arena, &regions)) {
            regions.push(Region {
                start,
                end,
                first: None,
                shape: Shape::Pieces,
                main: true,
                top: (start..end).contains(&top.address).then_some(top),
                break_at_top: false,
                trim_unit_bytes,
                locked: overlapping(context.locked, start, end).to_vec(),
            });
        }
    }
    regions
}

/// Where the memory grown by brk from `base` on ends: the mappings named `[heap]`, which other
/// protections may have cut into pieces. `None` where `base` is not in it.
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

/// The longest part in between that a program may have protected within one of its blocks; what is longer is taken
/// for a reservation of somebody else's.
const MAX_PROTECTED_BYTES: u64 = 16 << 20;

/// The stretches of memory that the mappings `of` a heap stand in: a program that calls madvise, mlock, mprotect or
/// prctl within a block makes the kernel list what was one mapping as several.
fn stretches(all: &[Mapping], of: &[&Mapping]) -> Vec<(u64, u64)> {
    let mut stretches: Vec<(u64, u64)> = Vec::new();
    for mapping in of {
        if stretches.last().is_some_and(|last| mapping.end <= last.1) {
            continue;
        }
        let at = all.partition_point(|m| m.start < mapping.start);
        let before = all[..at].iter().rev().map(|m| (m, m.end, m.start));
        let behind = all[at..].iter().skip(1).map(|m| (m, m.start, m.end));
        stretches.push((furthest(mapping.start, before), furthest(mapping.end, behind)));
    }
    stretches
}

/// How far from `edge` on a heap may go: over the neighbours that touch it, each with its nearer and its further end, to
/// the last one that can be written to.
fn furthest<'a>(mut edge: u64, neighbours: impl Iterator<Item = (&'a Mapping, u64, u64)>) -> u64 {
    let mut furthest = edge;
    for (mapping, near, far) in neighbours {
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

/// The most free chunks that are asked where they stand.
const MAX_CHUNKS_ASKED: usize = 4096;

/// The mappings in which the main arena goes on: those of its top and of its free chunks, and those that begin with
/// a chain of chunks, for a piece that is all in use.
fn piece_mappings<'a>(context: &'a Context<'_>, arena: &Arena, known: &[Region]) -> Vec<&'a Mapping> {
    let is_known = |address| known.iter().any(|r| (r.start..r.end).contains(&address));
    let may_be = |m: &&Mapping| m.is_private_anonymous() && m.permissions.write && !is_named_by_kernel(m);
    let mut found: BTreeMap<u64, &Mapping> = BTreeMap::new();
    let mut take = |address: u64| {
        if let Some(mapping) = context.space.find(address).filter(may_be).filter(|_| !is_known(address)) {
            found.insert(mapping.start, mapping);
        }
    };
    take(arena.top);
    arena.fastbins.iter().for_each(|&chunk| take(chunk));
    let mut asked = 0;
    for bin in &arena.bins {
        take(bin.first);
        take(bin.last);
        let mut chunk = bin.first;
        while asked < MAX_CHUNKS_ASKED {
            asked += 1;
            // fd of a free chunk: the next one of its bin, or the bin itself in the arena.
            let Ok(next) = context.whole_memory.read_word(chunk.saturating_add(16)) else { break };
            if next == bin.first || (arena.address..arena.address + 4096).contains(&next) {
                break;
            }
            take(next);
            chunk = next;
        }
    }
    let begins = |m: &&Mapping| !is_known(m.start) && begins_with_chunks(context, m);
    context.space.mappings().iter().filter(may_be).filter(begins).for_each(|mapping| take(mapping.start));
    found.into_values().collect()
}

/// Whether the kernel gives a mapping a name that tells what it is for.
fn is_named_by_kernel(mapping: &Mapping) -> bool {
    mapping.name == "[heap]" || mapping.name.starts_with("[stack")
}

/// Chunks that must follow each other before a mapping is believed to begin with them.
const CHAIN: usize = 12;

/// Whether a mapping begins with chunks of the main arena: each leads to the next, up to the fenceposts that end a
/// piece if there are not that many.
fn begins_with_chunks(context: &Context<'_>, mapping: &Mapping) -> bool {
    let mut at = mapping.start;
    for _ in 0..CHAIN {
        // Reading a page that is not there would have the kernel map one in the target.
        if at >= mapping.end || (context.resident)(at, at + 1).is_empty() {
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
