//! Walks regions and blocks with their own mapping, and classifies each byte.

use std::ops::Range;

use super::super::counts::Counts;
use super::super::forward::ForwardReader;
use super::super::layout::PAGE_BYTES;
use super::layout::{ALIGNMENT, FIRST_CHUNK_OFFSET, FREE_HEADER_BYTES, HEADER_BYTES, IN_USE};
use crate::blocks::{Blocks, claim_range};
use crate::parallel::Totals;
use crate::scan::{DeadlineCheck, is_mapped_memory};
use strandline_claims::accumulator::{Accumulator, Class};
use strandline_claims::allocator::{Context, RangeClaim};
use strandline_process::map::Mapping;
use strandline_process::memory::pair_at;
use strandline_process::modules;
use strandline_process::range::{AddressRange, RangeSet};

/// Minimum consistent chunks of a region that has no valid end.
const MIN_CONSISTENT_CHUNKS: u64 = 8;
/// Maximum pages of a mapping searched for an aligned block, if its first chunk is plausible.
const MAX_PAGES_IF_PLAUSIBLE: u64 = 16;
/// Maximum pages of a mapping searched for an aligned block, if its first chunk is not plausible.
const MAX_PAGES_IF_IMPLAUSIBLE: u64 = 1 << 10;
/// Binary logarithms of alignments of less than a page that a block may have, above that of every
/// block.
const SMALL_ALIGNMENT_SHIFTS: Range<u32> = 6..12;
/// Binary logarithms of larger alignments that a block may have: up to half of the address space.
const LARGE_ALIGNMENT_SHIFTS: Range<u32> = 16..47;
/// Number of pages whose first words are read with one call.
const BATCH_PAGES: usize = 512;

/// A region, as far as its chunks are consistent.
struct Region {
    start: u64,
    /// End of the last consistent chunk.
    consistent_end: u64,
    /// Its end; if unknown, the end of a page after `consistent_end`.
    end: u64,
}

/// The header of a chunk. The lowest bit of a size is set if that chunk is in use.
#[derive(Clone, Copy)]
struct Sizes {
    /// Size of the previous chunk.
    previous: u64,
    /// Size of the chunk itself.
    current: u64,
}

/// A chunk.
#[derive(Clone, Copy)]
struct Chunk {
    address: u64,
    sizes: Sizes,
}

/// A walk over all memory that may be musl's.
pub struct Walk<'a> {
    context: &'a Context<'a>,
    /// Memory that others claim, stacks and static data.
    taken: RangeSet,
    /// Reads headers of chunks.
    pub memory: ForwardReader<'a>,
    /// Claims blocks in use.
    pub blocks: Blocks<'a>,
    /// Totals of all claims.
    pub counts: Counts,
    /// Number of regions claimed.
    pub region_count: u64,
    /// Claims, in address order.
    pub claims: Vec<RangeClaim>,
    /// Ranges that the loader donated.
    donated_ranges: Vec<AddressRange>,
}

impl<'a> Walk<'a> {
    /// A new walk outside `taken` (claimed by others).
    pub fn new(context: &'a Context<'a>, taken: &RangeSet) -> Self {
        let mut taken = taken.clone();
        taken.add(context.stacks.iter().copied());
        let data = modules::file_groups(context.space);
        taken.add(data.iter().flatten().map(|mapping| mapping.range()));
        Self {
            context,
            taken,
            memory: ForwardReader::new(context.memory),
            blocks: Blocks::new(context),
            counts: Counts::default(),
            region_count: 0,
            claims: Vec::new(),
            donated_ranges: Vec::new(),
        }
    }

    /// Claims all of musl's memory.
    pub fn claim_all(&mut self) {
        let space = self.context.space;
        let mappings = space.mappings().iter().filter(|mapping| is_mapped_memory(mapping));
        // A region may span several mappings, for example if one is locked.
        let mapped_ranges: RangeSet = mappings.map(Mapping::range).collect();
        for range in mapped_ranges {
            for run in self.context.resident_runs(range) {
                self.claim_run(run, range.end);
            }
        }
        for group in modules::file_groups(space) {
            for mapping in group.iter().filter(|mapping| mapping.permissions.write) {
                self.count_donated_in(mapping.start, mapping.end);
            }
        }
    }

    /// Checks that the chunks on free lists are free, and in regions or donated memory.
    pub fn check_free_chunks(&mut self, chunks: &[u64]) {
        for &chunk in chunks {
            let next = self.claims.partition_point(|claim| claim.end <= chunk);
            let is_claimed = self.claims.get(next).is_some_and(|claim| claim.start <= chunk);
            let is_donated = self.donated_ranges.iter().any(|range| range.contains(chunk));
            let is_free = self.sizes_at(chunk).is_some_and(|sizes| sizes.current & IN_USE == 0);
            if !(is_claimed || is_donated) || !is_free {
                self.counts.doubts.note_damage(chunk, 0);
            }
        }
    }

    /// Reads the header of the chunk at `at`.
    fn sizes_at(&mut self, at: u64) -> Option<Sizes> {
        let bytes: [u8; 16] = self.memory.read(at)?;
        let (previous, current) = pair_at(&bytes, 0)?;
        Some(Sizes { previous, current })
    }

    /// Whether no other reader claims a byte of `start..end`.
    fn is_unclaimed(&self, start: u64, end: u64) -> bool {
        !self.taken.overlaps((start, end))
    }

    /// Claims the regions and blocks that begin in a run of resident pages; they end by `limit`.
    fn claim_run(&mut self, run: AddressRange, limit: u64) {
        let mut at = self.claims.last().map_or(run.start, |claim| claim.end.max(run.start));
        while at < run.end {
            if self.context.deadline_passed() {
                return self.counts.doubts.note_timeout(at);
            }
            if let Some(taken_range) = self.taken.overlapping(AddressRange::sized(at, PAGE_BYTES)).last() {
                at = taken_range.end.next_multiple_of(PAGE_BYTES).max(at + PAGE_BYTES);
                continue;
            }
            let pages = (at..run.end).step_by(PAGE_BYTES as usize).take(BATCH_PAGES);
            let headers: Vec<u64> = pages
                .take_while(|page| self.is_unclaimed(*page, *page + PAGE_BYTES))
                .map(|page| page + FIRST_CHUNK_OFFSET)
                .collect();
            let pairs = self.context.memory.read_pairs(&headers);
            at += headers.len() as u64 * PAGE_BYTES;
            for (header, pair) in headers.iter().zip(pairs) {
                if let Some(end) = pair.and_then(|(previous, current)| {
                    self.claim_at(header - FIRST_CHUNK_OFFSET, Sizes { previous, current }, limit)
                }) {
                    // The scan continues after the region or block.
                    at = end;
                    break;
                }
            }
        }
    }

    /// Claims the region or block that begins with the page at `at` and a chunk of these sizes;
    /// returns its end, `None` if it is neither.
    fn claim_at(&mut self, at: u64, sizes: Sizes, limit: u64) -> Option<u64> {
        let Sizes { previous, current: size } = sizes;
        // A block with its own mapping has no adjacent chunk, so neither size has the lowest bit.
        if previous == FIRST_CHUNK_OFFSET && size & IN_USE == 0 {
            // Up to a thousand pages are read for each.
            if self.context.deadline_passed() {
                self.counts.doubts.note_timeout(at);
                return None;
            }
            let block =
                self.find_mapped_block(at, size, limit).filter(|block| self.is_unclaimed(at, block.end))?;
            self.claim_mapped(at, block);
            return Some(block.end);
        }
        if previous != IN_USE || size == IN_USE {
            return None;
        }
        let region = self.follow_chunks(at, limit)?;
        if !self.is_unclaimed(at, region.end) {
            self.counts.doubts.note_damage(at, 0);
            return None;
        }
        let end = region.end;
        self.claim_region(&region);
        Some(end)
    }

    /// Follows the chunks of a possible region at `start` while they are consistent; `None` if it
    /// is not a region.
    fn follow_chunks(&mut self, start: u64, limit: u64) -> Option<Region> {
        let (mut at, mut count) = (start + FIRST_CHUNK_OFFSET, 0_u64);
        // At the first check there are enough consistent chunks for a region.
        let mut deadline = DeadlineCheck::after_first_steps(self.context);
        let mut size = self.sizes_at(at)?.current;
        let page_end = |at: u64| (at + HEADER_BYTES).next_multiple_of(PAGE_BYTES);
        loop {
            let Some(Chunk { address: next, sizes }) = self.next_chunk(at, size, limit) else {
                if count < MIN_CONSISTENT_CHUNKS {
                    return None;
                }
                self.counts.doubts.note_damage(at, page_end(at) - at);
                return Some(Region { start, consistent_end: at, end: page_end(at) });
            };
            let end = next + HEADER_BYTES;
            if sizes.current == IN_USE && end.is_multiple_of(PAGE_BYTES) {
                return Some(Region { start, consistent_end: next, end });
            }
            (at, size) = (next, sizes.current);
            count += 1;
            if deadline.passed() {
                self.counts.doubts.note_timeout(at);
                return Some(Region { start, consistent_end: at, end: page_end(at) });
            }
        }
    }

    /// Returns the chunk after the one of `size` at `at`; `None` unless its header ends by `limit`
    /// and repeats the size.
    fn next_chunk(&mut self, at: u64, size: u64, limit: u64) -> Option<Chunk> {
        let bytes = size & !IN_USE;
        let next = at.checked_add(bytes)?;
        let is_possible =
            next.checked_add(HEADER_BYTES)? <= limit && bytes >= ALIGNMENT && bytes.is_multiple_of(ALIGNMENT);
        let sizes = if is_possible { self.sizes_at(next)? } else { return None };
        (sizes.previous == size).then_some(Chunk { address: next, sizes })
    }

    /// Claims a region.
    fn claim_region(&mut self, region: &Region) {
        let range = AddressRange::new(region.start, region.end);
        let claim = claim_range(self.context, range, |accumulator| self.claim_chunks(region, accumulator));
        self.region_count += 1;
        (self.context.progress)(range.len());
        self.claims.push(claim);
    }

    /// Claims the chunks of a region.
    fn claim_chunks(&mut self, region: &Region, accumulator: &mut Accumulator<'_>) {
        let (mut at, mut deadline) = (region.start + FIRST_CHUNK_OFFSET, DeadlineCheck::new(self.context));
        accumulator.claim_to(at, Class::Header);
        while at < region.consistent_end {
            let sizes = if deadline.passed() { None } else { self.sizes_at(at) };
            let size = sizes.map(|sizes| sizes.current);
            let next = size.map(|size| at.saturating_add(size & !IN_USE));
            // The process is stopped, so the chunks are still consistent: only the deadline ends
            // this, after which reads fail too.
            let (Some(size), Some(next)) =
                (size, next.filter(|&next| at < next && next <= region.consistent_end))
            else {
                self.counts.doubts.note_timeout(at);
                break;
            };
            self.claim_chunk(AddressRange::new(at, next), size & IN_USE != 0, accumulator);
            at = next;
        }
        // The last chunk has size 0.
        let is_whole = at == region.consistent_end && region.end - at == HEADER_BYTES;
        accumulator.claim_to(region.end, if is_whole { Class::Header } else { Class::Unread });
    }

    /// Claims a chunk of a region, of at least `ALIGNMENT` bytes.
    fn claim_chunk(&mut self, chunk: AddressRange, is_used: bool, accumulator: &mut Accumulator<'_>) {
        if is_used {
            accumulator.claim_to(chunk.start + HEADER_BYTES, Class::Header);
            self.blocks.claim(chunk.end, accumulator);
            self.counts.live_blocks += 1;
            self.counts.live_bytes += chunk.len() - HEADER_BYTES;
            self.counts.head_bytes += HEADER_BYTES;
        } else {
            accumulator.claim_to(chunk.start + FREE_HEADER_BYTES, Class::Header);
            accumulator.claim_to(chunk.end, Class::Free);
            self.counts.free_bytes += chunk.len();
        }
    }

    /// Returns the block, to the end of its mapping, which seems to begin at `start` with a chunk
    /// of `size`. A block that was moved to be aligned (`aligned_alloc`) leaves its first header
    /// there, whose size is outdated after a resize.
    fn find_mapped_block(&mut self, start: u64, size: u64, limit: u64) -> Option<AddressRange> {
        let end_of = |chunk: u64, size: u64| {
            chunk.checked_add(size).filter(|end| end.is_multiple_of(PAGE_BYTES) && *end <= limit)
        };
        let unmoved_end = end_of(start + FIRST_CHUNK_OFFSET, size).filter(|end| *end > start);
        let small_alignments = SMALL_ALIGNMENT_SHIFTS.map(|shift| start + (1 << shift));
        // The offset of a block in its mapping stays the same when the mapping moves.
        let max_pages = if unmoved_end.is_some() { MAX_PAGES_IF_PLAUSIBLE } else { MAX_PAGES_IF_IMPLAUSIBLE };
        let pages = (1..max_pages).map(|page| start + page * PAGE_BYTES);
        let large_alignments = LARGE_ALIGNMENT_SHIFTS.map(|shift| (start + 1).next_multiple_of(1 << shift));
        let candidates = small_alignments.chain(pages).chain(large_alignments).filter(|block| *block < limit);
        let moved_block = candidates.into_iter().find_map(|block| {
            let Sizes { previous, current: size } = self.sizes_at(block - HEADER_BYTES)?;
            let end = end_of(block - HEADER_BYTES, size).filter(|end| *end > block && size & IN_USE == 0)?;
            (previous == block - HEADER_BYTES - start).then_some(AddressRange::new(block, end))
        });
        moved_block
            .or_else(|| Some(AddressRange::new(start + FIRST_CHUNK_OFFSET + HEADER_BYTES, unmoved_end?)))
    }

    /// Claims a block with its own mapping, which begins at `start`.
    fn claim_mapped(&mut self, start: u64, block: AddressRange) {
        let range = AddressRange::new(start, block.end);
        self.claims.push(claim_range(self.context, range, |accumulator| {
            accumulator.claim_to(block.start, Class::Header);
            self.blocks.claim(block.end, accumulator);
        }));
        self.counts.live_blocks += 1;
        self.counts.mapped_blocks += 1;
        self.counts.live_bytes += block.len();
        self.counts.head_bytes += block.start - start;
        (self.context.progress)(range.len());
    }

    /// Counts the memory in `start..end`, of static data, that the loader donated; it stays on the
    /// row of that data. It precedes the data, from the start of a page, or follows it, to the end
    /// of a page.
    fn count_donated_in(&mut self, start: u64, end: u64) {
        if let Some(Sizes { previous: IN_USE, current: size }) = self.sizes_at(start + FIRST_CHUNK_OFFSET) {
            self.count_donated_from(start + FIRST_CHUNK_OFFSET, size, end.min(start + PAGE_BYTES));
        }
        let Some(Sizes { previous: size, current: IN_USE }) = self.sizes_at(end - HEADER_BYTES) else {
            return;
        };
        let (mut first_chunk, mut bytes) = (end - HEADER_BYTES, size & !IN_USE);
        while bytes >= ALIGNMENT && first_chunk.saturating_sub(bytes) >= end - PAGE_BYTES {
            first_chunk -= bytes;
            match self.sizes_at(first_chunk) {
                Some(Sizes { previous: IN_USE, current }) => {
                    return self.count_donated_from(first_chunk, current, end);
                }
                Some(sizes) => bytes = sizes.previous & !IN_USE,
                None => return,
            }
        }
    }

    /// Counts the chunks from `first_chunk` on, if all of them are consistent.
    fn count_donated_from(&mut self, first_chunk: u64, mut size: u64, limit: u64) {
        let mut donated_counts = Counts::default();
        let mut at = first_chunk;
        loop {
            let Some(Chunk { address: next, sizes }) = self.next_chunk(at, size, limit) else { return };
            let bytes = size & !IN_USE;
            if size & IN_USE != 0 {
                donated_counts.live_blocks += 1;
                donated_counts.live_bytes += bytes - HEADER_BYTES;
                donated_counts.head_bytes += HEADER_BYTES;
            } else {
                donated_counts.free_bytes += bytes;
            }
            (at, size) = (next, sizes.current);
            if size == IN_USE {
                break;
            }
        }
        self.donated_ranges.push(AddressRange::new(first_chunk, at));
        self.counts.add(donated_counts);
    }
}
