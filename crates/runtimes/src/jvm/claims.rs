//! Classifies each byte: objects and free parts of the heap, metaspace, code.

use std::time::Duration;

use super::code::Segment;
use super::heap::{Area, Heap, is_claimable};
use super::metaspace::Metaspace;
use super::rows;
use super::threads::Tlab;
use super::trace::{Live, TracedObject};
use super::view::View;
use crate::work;
use strandline_claims::accumulator::{Accumulator, Class};
use strandline_claims::allocator::RangeClaim;
use strandline_claims::class::Slot;
use strandline_claims::palette::SlotTable;
use strandline_claims::range::{RangePages, page_of, page_up, pieces};
use strandline_claims::runtime::Context;
use strandline_claims::words::is_process_memory;
use strandline_process::range::{AddressRange, RangeSet, overlapping};

/// Bytes of heap that a worker claims at a time; a larger area is claimed whole.
const PART_BYTES: u64 = 64 << 20;
/// Time that claims may exceed the deadline by: without them the whole heap would be unknown.
const MAX_OVERTIME: Duration = Duration::from_secs(1);
/// Limit on bytes of the card table: one card per 512 bytes of heap.
const MAX_CARD_TABLE_BYTES: u64 = 1 << 38;

/// Live objects, and the slot that dead ones get.
#[derive(Clone, Copy)]
pub struct Traced<'a> {
    pub live: &'a Live,
    pub dead_slot: Slot,
}

/// The claims on a heap.
pub struct HeapClaims {
    pub claims: Vec<RangeClaim>,
    /// Resident bytes that were not claimed before the deadline.
    pub unclaimed_bytes: u64,
}

/// Claims the areas of the heap. Memory behind the objects of an area is free; whole free pages are
/// returnable, as in a free region or at the end of a space.
pub fn claim_heap(
    context: &Context<'_>,
    areas: &[Area],
    buffers: &[Tlab],
    traced: Option<Traced<'_>>,
) -> HeapClaims {
    let are_in_one_part = |area: &Area, next: &Area| {
        let part_start = area.start - area.start % PART_BYTES;
        area.end == next.start && next.start - part_start < PART_BYTES && is_claimable(part_start, next.end)
    };
    let parts: Vec<&[Area]> = areas.chunk_by(are_in_one_part).collect();
    let claim_part = |claims: &mut Vec<RangeClaim>, part: usize| {
        let Some((first_area, last_area)) = parts[part].first().zip(parts[part].last()) else { return };
        let (start, end) = (first_area.start, last_area.end);
        if context.resident_bytes((start, end)) == 0 {
            return;
        }
        let pages = context.pages(start, end);
        let mut accumulator = Accumulator::new(start, &pages);
        for area in parts[part] {
            claim_area(&mut accumulator, area, buffers, traced);
            let (from, to) = (page_up(accumulator.cursor()), page_of(area.end));
            accumulator.claim_free(area.end, from, to);
        }
        claims.push(RangeClaim { start, end, sums: accumulator.cut().finish(&pages) });
    };
    // Without a trace the work grows only with the number of regions.
    let deadline = context.deadline + MAX_OVERTIME;
    let (claims, unclaimed_parts) =
        work::run_jobs(context.workers, parts.len(), deadline, Vec::new, claim_part);
    let claims = claims.concat();
    if unclaimed_parts == 0 {
        return HeapClaims { claims, unclaimed_bytes: 0 };
    }
    let claimed_bytes: u64 = claims.iter().map(|claim| claim.sums.resident.total()).sum();
    let all_bytes: u64 = areas.iter().map(|area| context.resident_bytes(area.range())).sum();
    HeapClaims { claims, unclaimed_bytes: all_bytes.saturating_sub(claimed_bytes) }
}

/// Claims the part of an area that holds objects; the unused parts of threads' buffers are free.
fn claim_area(accumulator: &mut Accumulator<'_>, area: &Area, buffers: &[Tlab], traced: Option<Traced<'_>>) {
    let first = buffers.partition_point(|buffer| buffer.end <= area.start);
    for buffer in buffers.iter().skip(first).take_while(|buffer| buffer.top < area.top) {
        let (from, to) = (buffer.top.max(accumulator.cursor()), buffer.end.min(area.top));
        if from < to {
            claim_objects(accumulator, from, traced);
            accumulator.claim_to(to, Class::Free);
        }
    }
    claim_objects(accumulator, area.top.max(accumulator.cursor()), traced);
}

/// Claims consecutive objects, live and dead.
fn claim_objects(accumulator: &mut Accumulator<'_>, end: u64, traced: Option<Traced<'_>>) {
    // Memory before the first object counts as live.
    let mut class = Class::Live;
    if let Some(Traced { live, dead_slot }) = traced {
        for TracedObject { start, is_dead } in live.objects(accumulator.cursor(), end) {
            let next_class = if is_dead { Class::Refined(dead_slot) } else { Class::Live };
            if next_class != class {
                accumulator.claim_to(start, class);
                class = next_class;
            }
        }
    }
    accumulator.claim_to(end, class);
}

/// Returns the resident bytes of whole pages behind an area's objects.
pub fn free_resident_bytes(context: &Context<'_>, area: &Area) -> u64 {
    context.resident_bytes((page_up(area.top).min(area.end), area.end))
}

/// Claims a range: `used_ranges` get `used_slot`, the memory between them `free_slot`.
/// `used_ranges` may contain ranges elsewhere.
fn claim_parts(
    pages: &RangePages,
    range: AddressRange,
    used_ranges: &[AddressRange],
    used_slot: Slot,
    free_slot: Slot,
) -> RangeClaim {
    let AddressRange { start, end } = range;
    let mut accumulator = Accumulator::new(start, pages);
    for used in overlapping(used_ranges, range) {
        accumulator.claim_to(used.start.clamp(accumulator.cursor(), end), Class::Refined(free_slot));
        accumulator.claim_to(used.end.clamp(accumulator.cursor(), end), Class::Refined(used_slot));
    }
    accumulator.claim_to(end, Class::Refined(free_slot));
    RangeClaim { start, end, sums: accumulator.cut().finish(pages) }
}

/// Claims metaspace and class space.
pub fn claim_metaspace(
    context: &Context<'_>,
    palette: &mut SlotTable,
    metaspace: &Metaspace,
) -> Vec<RangeClaim> {
    let mut claims = Vec::new();
    let Some(free_slot) = palette.add(&rows::METASPACE_FREE, None) else { return claims };
    for (space, row) in
        [(&metaspace.non_class_space, &rows::METASPACE), (&metaspace.class_space, &rows::CLASS_SPACE)]
    {
        let Some(used_slot) = palette.add(row, None) else { continue };
        for &range in &space.ranges {
            let pages = context.pages(range.start, range.end);
            claims.push(claim_parts(&pages, range, &space.used_ranges, used_slot, free_slot));
        }
    }
    claims
}

/// Claims the code cache and the maps of its segments.
pub fn claim_code(context: &Context<'_>, palette: &mut SlotTable, segments: &[Segment]) -> Vec<RangeClaim> {
    let slots = palette.add(&rows::CODE, None).zip(palette.add(&rows::CODE_FREE, None));
    let Some((used_slot, free_slot)) = slots else { return Vec::new() };
    let code = segments.iter().map(|segment| {
        let range = segment.range;
        claim_parts(&context.pages(range.start, range.end), range, &segment.used_ranges, used_slot, free_slot)
    });
    let maps = segments.iter().filter(|segment| !segment.map.is_empty());
    code.chain(maps.map(|segment| context.claim_whole(segment.map, Class::Metadata))).collect()
}

/// Claims the heap of a collector that keeps it in shared memory, in each of its views.
pub fn claim_shared(context: &Context<'_>, palette: &mut SlotTable, heap: &Heap) -> Vec<RangeClaim> {
    if heap.views.is_empty() {
        return Vec::new();
    }
    let slots = palette.add(&rows::SHARED_OBJECT, None).zip(palette.add(&rows::SHARED_FREE, None));
    let Some((used_slot, free_slot)) = slots else { return Vec::new() };
    let claim = |range: AddressRange| {
        let pages = context.shared_pages(range.start, range.end);
        claim_parts(&pages, range, &heap.shared_used_ranges, used_slot, free_slot)
    };
    // A view may be larger than the largest claim.
    let unread: RangeSet = heap.shared_unread_ranges.iter().copied().collect();
    heap.views.iter().flat_map(|&view| unread.gaps_in(view)).flat_map(pieces).map(claim).collect()
}

/// Claims the card table of collectors that have one (`BarrierSet::_barrier_set`,
/// gc/shared/cardTable.hpp).
pub fn claim_card_table(
    context: &Context<'_>,
    view: &View<'_>,
    palette: &mut SlotTable,
) -> Option<RangeClaim> {
    let barriers = view.static_field(&["BarrierSet::_barrier_set"])?;
    let table = view.field(barriers, &["CardTableBarrierSet::_card_table"])?;
    let start = view.field(table, &["CardTable::_byte_map"])?;
    let bytes =
        view.field(table, &["CardTable::_byte_map_size"]).filter(|&bytes| bytes <= MAX_CARD_TABLE_BYTES)?;
    let end = start.checked_add(bytes)?;
    if !is_process_memory(context.space, start, end) || context.resident_bytes((start, end)) == 0 {
        return None;
    }
    Some(context.claim_whole((start, end), Class::Refined(palette.add(&rows::COLLECTOR, None)?)))
}

/// Sorts claims, and drops those that begin within the previous one or overlap `foreign_ranges`.
/// Returns whether it dropped any.
pub fn drop_overlapping(claims: &mut Vec<RangeClaim>, foreign_ranges: &RangeSet) -> bool {
    claims.sort_by_key(|claim| claim.start);
    let (mut end, count) = (0, claims.len());
    claims.retain(|claim| {
        let is_apart = claim.start >= end && !foreign_ranges.overlaps(claim.range());
        end = if is_apart { claim.end } else { end };
        is_apart
    });
    claims.len() < count
}

#[cfg(test)]
mod tests {
    use strandline_claims::accumulator::Sums;

    use super::*;

    #[test]
    fn claims_that_overlap_are_dropped_and_reported() {
        let claim = |start, end| RangeClaim { start, end, sums: Sums::default() };
        let kept = |claims: &[RangeClaim], foreign_ranges: &[(u64, u64)]| {
            let (mut claims, foreign_ranges) = (claims.to_vec(), foreign_ranges.iter().copied().collect());
            let has_dropped = drop_overlapping(&mut claims, &foreign_ranges);
            (claims.iter().map(|claim| claim.start).collect::<Vec<_>>(), has_dropped)
        };
        let claims = [claim(4, 6), claim(0, 2), claim(2, 4), claim(3, 5)];
        assert_eq!(kept(&claims[..3], &[]), (vec![0, 2, 4], false));
        assert_eq!(kept(&claims, &[]), (vec![0, 2, 4], true), "the claim on 3..5 begins within another");
        assert_eq!(kept(&claims[..3], &[(5, 8)]), (vec![0, 2], true), "another JVM has 5..8");
    }
}
