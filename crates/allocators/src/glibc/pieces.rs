//! Finds the pieces of the main arena outside of brk: mappings that malloc took when brk was
//! blocked (`sysmalloc` in malloc/malloc.c, where MORECORE failed).
//!
//! malloc keeps no list of them. They are recognised by what leads into them (the top, the free
//! chunks) or by the chunks at their start, which may follow chunks with their own mapping: the
//! kernel places both next to each other, and lists them as one mapping.

use std::collections::{BTreeMap, BTreeSet};

use super::layout;
use super::locate::Arena;
use super::mapped_header::{HeaderWords, chunk_at};
use super::walk_context::Region;
use crate::scan::is_resident;
use strandline_claims::allocator::Context;
use strandline_process::map::Mapping;
use strandline_process::pages::PAGE_BYTES;
use strandline_process::range::AddressRange;

/// Returns the ranges in which the main arena continues, outside of `known_regions`.
pub fn ranges(context: &Context<'_>, arena: &Arena, known_regions: &[Region]) -> Vec<AddressRange> {
    contiguous_ranges(context.space.mappings(), &mappings_of_pieces(context, arena, known_regions))
}

/// Maximum length of a part that a program may have protected within one of its blocks; a longer
/// one counts as a foreign reservation.
const MAX_PROTECTED_BYTES: u64 = 16 << 20;

/// Returns the contiguous ranges around the mappings `pieces` among all `mappings`: madvise, mlock,
/// mprotect or prctl within a block makes the kernel split a mapping.
fn contiguous_ranges(mappings: &[Mapping], pieces: &[&Mapping]) -> Vec<AddressRange> {
    let mut ranges: Vec<AddressRange> = Vec::new();
    for mapping in pieces {
        if ranges.last().is_some_and(|last| mapping.end <= last.end) {
            continue;
        }
        let index = mappings.partition_point(|other| other.start < mapping.start);
        let below = mappings[..index].iter().rev().map(Neighbour::below);
        let above = mappings[index..].iter().skip(1).map(Neighbour::above);
        ranges
            .push(AddressRange::new(furthest_edge(mapping.start, below), furthest_edge(mapping.end, above)));
    }
    ranges
}

/// A mapping before or after a piece.
struct Neighbour<'a> {
    mapping: &'a Mapping,
    /// Its edge nearer to the piece.
    near_edge: u64,
    /// Its edge farther from the piece.
    far_edge: u64,
}

impl<'a> Neighbour<'a> {
    fn below(mapping: &'a Mapping) -> Self {
        Self { mapping, near_edge: mapping.end, far_edge: mapping.start }
    }

    fn above(mapping: &'a Mapping) -> Self {
        Self { mapping, near_edge: mapping.start, far_edge: mapping.end }
    }
}

/// Returns how far a piece may reach from `edge`: over adjacent neighbours, to the last writable
/// one.
fn furthest_edge<'a>(mut edge: u64, neighbours: impl Iterator<Item = Neighbour<'a>>) -> u64 {
    let mut furthest_edge = edge;
    for Neighbour { mapping, near_edge, far_edge } in neighbours {
        let may_belong = mapping.is_private_anonymous()
            && !is_named_by_kernel(mapping)
            && (mapping.permissions.write || mapping.bytes() <= MAX_PROTECTED_BYTES);
        if near_edge != edge || !may_belong {
            break;
        }
        edge = far_edge;
        if mapping.permissions.write {
            furthest_edge = far_edge;
        }
    }
    furthest_edge
}

/// Maximum number of free chunks whose mapping is looked up, over all bins: pieces that only later
/// chunks lead to are found by [`begins_with_chunks`].
const MAX_CHUNKS_CHECKED: usize = 4096;

/// Returns the mappings in which the main arena continues: those of its top and of its free chunks,
/// and those that begin with a chain of chunks, for pieces in full use.
fn mappings_of_pieces<'a>(
    context: &'a Context<'_>,
    arena: &Arena,
    known_regions: &[Region],
) -> Vec<&'a Mapping> {
    let is_known = |address| known_regions.iter().any(|region| region.range().contains(address));
    let may_be_piece = |mapping: &&Mapping| {
        mapping.is_private_anonymous() && mapping.permissions.write && !is_named_by_kernel(mapping)
    };
    let mut pieces: BTreeMap<u64, &Mapping> = BTreeMap::new();
    let mut add = |address: u64| {
        if let Some(mapping) = context.space.find(address).filter(may_be_piece).filter(|_| !is_known(address))
        {
            pieces.insert(mapping.start, mapping);
        }
    };
    add(arena.top);
    arena.fastbins.iter().for_each(|&chunk| add(chunk));
    let mut followed_count = 0;
    for bin in &arena.bins {
        add(bin.first_chunk);
        add(bin.last_chunk);
        let mut chunk = bin.first_chunk;
        while followed_count < MAX_CHUNKS_CHECKED {
            followed_count += 1;
            // fd of a free chunk: the next one in its bin, or the bin itself in the arena.
            let link = chunk.saturating_add(layout::CHUNK_FORWARD);
            if !is_resident(context, link) {
                break;
            }
            let Ok(next) = context.whole_memory.read_word(link) else { break };
            if next == bin.first_chunk || (arena.address..arena.address + PAGE_BYTES).contains(&next) {
                break;
            }
            add(next);
            chunk = next;
        }
    }
    let mut leading = LeadingChunks { context, remaining: MAX_LEADING_CHUNKS, end: 0 };
    for (mapping, end) in with_ends_of_areas(context.space.mappings()) {
        if !may_be_piece(&mapping) || is_known(mapping.start) {
            continue;
        }
        let start = leading.skip(mapping.start, end);
        // A chunk whose length was misread may end within a piece.
        for start in BTreeSet::from([start, mapping.start]) {
            if begins_with_chunks(context, start, end) {
                add(start);
                break;
            }
        }
    }
    pieces.into_values().collect()
}

/// Returns each mapping with the end of the contiguous private anonymous memory that it begins.
fn with_ends_of_areas(mappings: &[Mapping]) -> Vec<(&Mapping, u64)> {
    let mut area: Option<AddressRange> = None;
    let mut mappings_and_ends: Vec<(&Mapping, u64)> = Vec::with_capacity(mappings.len());
    for mapping in mappings.iter().rev() {
        let is_adjacent = |area: &AddressRange| area.start == mapping.end && mapping.is_private_anonymous();
        let end = area.filter(is_adjacent).map_or(mapping.end, |area| area.end);
        area = mapping.is_private_anonymous().then(|| AddressRange::new(mapping.start, end));
        mappings_and_ends.push((mapping, end));
    }
    mappings_and_ends.reverse();
    mappings_and_ends
}

/// Maximum number of chunks with their own mapping that are skipped, over all mappings: each costs
/// some calls.
const MAX_LEADING_CHUNKS: usize = 4096;

/// Skips chunks with their own mapping.
struct LeadingChunks<'a> {
    context: &'a Context<'a>,
    /// How many chunks may still be skipped.
    remaining: usize,
    /// The end of the last chunk skipped.
    end: u64,
}

impl LeadingChunks<'_> {
    /// Returns the end of the adjacent chunks from `start` on, which end by `limit`; `start` if
    /// there are none.
    fn skip(&mut self, start: u64, limit: u64) -> u64 {
        // A mapping may start within a chunk.
        let mut at = start.max(self.end);
        while at < limit && self.remaining > 0 && !self.context.deadline_passed() {
            let read = |address| -> Option<HeaderWords> {
                let is_there = is_resident(self.context, address);
                is_there.then(|| self.context.whole_memory.read_pair(address))?.map(Into::into)
            };
            let Some(block) = read(at).and_then(|header| chunk_at(header, at, limit, read)) else { break };
            self.remaining -= 1;
            at = block.end;
            self.end = at;
        }
        at
    }
}

/// Whether the kernel's name for a mapping shows its purpose.
fn is_named_by_kernel(mapping: &Mapping) -> bool {
    mapping.name == "[heap]" || mapping.name.starts_with("[stack")
}

/// Number of consecutive chunks that a mapping must begin with to be a piece.
const MIN_CHAIN: usize = 12;

/// Whether chunks of the main arena begin at `start`, in memory up to `end`: each leads to the
/// next, or to the fenceposts at the end of a short piece.
fn begins_with_chunks(context: &Context<'_>, start: u64, end: u64) -> bool {
    let mut at = start;
    for _ in 0..MIN_CHAIN {
        if at >= end || !is_resident(context, at) {
            return false;
        }
        let Ok(head) = context.whole_memory.read_word(at + layout::CHUNK_SIZE) else { return false };
        let bytes = head & !layout::SIZE_BITS;
        if bytes == layout::FENCEPOST_BYTES {
            return at > start;
        }
        let is_chunk = bytes >= layout::MIN_CHUNK_BYTES
            && bytes.is_multiple_of(layout::ALIGNMENT)
            && head & (layout::IS_MMAPPED | layout::NON_MAIN_ARENA) == 0
            && (at > start || head & layout::PREV_INUSE != 0);
        match at.checked_add(bytes).filter(|_| is_chunk) {
            Some(next) => at = next,
            None => return false,
        }
    }
    true
}
