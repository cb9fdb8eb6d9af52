//! Classifies each byte of mimalloc's memory: blocks in use, free blocks, free pages, its own
//! structures.
//!
//! A page in full use is one claim; in other pages the lists of free blocks are followed.

use std::collections::BTreeMap;

use super::layout::{FIRST_BLOCK_OFFSETS, FreeLists, PageWords};
use super::parts::{Heap, Part, PartKind};
use crate::blocks::{BlockState, SpanClaimer};
use crate::parallel::{Claimed, claim_in_parts, impl_totals};
use crate::scan::within;
use strandline_claims::accumulator::{Accumulator, Class};
use strandline_claims::allocator::Context;
use strandline_claims::doubts::ReadProblems;
use strandline_claims::facts::SizeClass;
use strandline_claims::range::{page_of, page_up};
use strandline_claims::refinements::Matches;
use strandline_process::page_cache::PageCache;
use strandline_process::range::{AddressRange, RangeSet};

/// Totals of the parts of one range of memory, or of all.
#[derive(Default)]
pub struct Counts {
    /// By block size.
    pub classes: BTreeMap<u64, SizeClass>,
    /// Bytes of blocks in use.
    pub live_bytes: u64,
    /// Bytes of blocks that other threads freed.
    pub cached_bytes: u64,
    /// Bytes of free blocks, and of the unused ends of pages.
    pub free_bytes: u64,
    /// Bytes of mimalloc's own structures.
    pub structure_bytes: u64,
    /// Number of pages.
    pub pages: u64,
    /// Refinements found.
    pub matched: Matches,
    /// Invalid pages, and where the deadline passed.
    pub doubts: ReadProblems,
    /// Bytes read from the target.
    pub bytes_read: u64,
}

/// Claims all of `heap`. `delayed_blocks` are those that other threads freed and that are in no
/// page's list, in address order; `releasable` is what a collection releases.
pub fn claim(
    context: &Context<'_>,
    heap: &Heap,
    delayed_blocks: &[u64],
    releasable: &RangeSet,
) -> Claimed<Counts> {
    let first_block_offset = choose_offset_function(heap);
    claim_in_parts(context, &heap.parts, &Part::range, &|parts, accumulator| {
        let spans = SpanClaimer::new(context, PageCache::new(context.memory));
        let mut claimer =
            Claimer { context, delayed_blocks, first_block_offset, spans, counts: Counts::default() };
        for part in parts {
            claimer.claim_part(part, releasable.overlapping(part.range()), accumulator);
        }
        if let Some(last) = parts.last() {
            accumulator.claim_to(last.end, Class::Free);
        }
        claimer.spans.finish(claimer.counts)
    })
}

/// Chooses the function for the first block of pages that do not hold it: the one that contradicts
/// the fewest of their fields.
fn choose_offset_function(heap: &Heap) -> Option<fn(u64) -> u64> {
    if !heap.has_offsets {
        return None;
    }
    let contradictions = |offset: &fn(u64) -> u64| {
        let contradictions_of_page = |part: &Part| {
            let Some(page) = part.page() else { return 0 };
            let start = part.start + offset(page.block_bytes);
            let grid =
                BlockGrid { start, end: part.end, block_bytes: page.block_bytes, count: page.capacity };
            let fitting_blocks = part.end.saturating_sub(start).checked_div(page.block_bytes);
            let has_all_blocks = page.reserved == 0 || Some(page.reserved) == fitting_blocks;
            let is_outside = |&block: &u64| block != 0 && !grid.has_block_at(block);
            page.lists.first_blocks().into_iter().filter(is_outside).count() + usize::from(!has_all_blocks)
        };
        heap.parts.iter().map(contradictions_of_page).sum::<usize>()
    };
    FIRST_BLOCK_OFFSETS.into_iter().min_by_key(contradictions)
}

struct Claimer<'a> {
    context: &'a Context<'a>,
    /// Addresses of blocks that other threads freed into lists of heaps, in address order.
    delayed_blocks: &'a [u64],
    /// Returns the bytes before the first block of a page, from the size of its blocks; `None` if
    /// pages hold that address themselves.
    first_block_offset: Option<fn(u64) -> u64>,
    /// States of the blocks of the current page.
    spans: SpanClaimer<'a>,
    counts: Counts,
}

/// Where the initialised blocks of a page are: adjacent to each other, all of one size.
struct BlockGrid {
    /// Address of the first block.
    start: u64,
    /// Address of the first byte past the last block.
    end: u64,
    /// Size of each block in bytes.
    block_bytes: u64,
    /// Number of blocks.
    count: u64,
}

impl BlockGrid {
    /// Whether a block begins at `pointer`.
    fn has_block_at(&self, pointer: u64) -> bool {
        let offset = pointer.checked_sub(self.start).filter(|offset| offset.is_multiple_of(self.block_bytes));
        offset.and_then(|offset| offset.checked_div(self.block_bytes)).is_some_and(|index| index < self.count)
    }
}

/// Number of blocks of a page, by their state.
struct BlockCounts {
    /// In the lists of the page's own thread.
    free: u64,
    /// Freed by other threads, and not collected yet.
    cached: u64,
    /// In use by the program.
    live: u64,
}

impl<'a> Claimer<'a> {
    fn claim_part(&mut self, part: &Part, releasable: &[AddressRange], accumulator: &mut Accumulator<'_>) {
        let bytes = part.end - part.start;
        match part.kind {
            PartKind::Own if releasable.is_empty() => {
                self.counts.structure_bytes += bytes;
                accumulator.claim_to(part.end, Class::Metadata);
            }
            PartKind::Page(page) if !releasable.is_empty() => {
                self.counts.pages += 1;
                // Nothing in it is live: other threads freed the blocks in use.
                match self.block_grid(part, &page).zip(page.free_count()) {
                    Some((grid, free)) => {
                        self.count(part, &grid, &BlockCounts { free, cached: page.used, live: 0 });
                    }
                    None => self.counts.doubts.note_damage(part.start, 0),
                }
                self.claim_free_part(part, releasable, accumulator);
            }
            PartKind::Own | PartKind::Free | PartKind::PurgePending => {
                self.claim_free_part(part, releasable, accumulator);
            }
            PartKind::Page(page) => {
                self.counts.pages += 1;
                if self.claim_page(part, &page, accumulator).is_none() {
                    if !self.counts.doubts.timed_out() {
                        self.counts.doubts.note_damage(part.start, part.end - accumulator.cursor());
                    }
                    accumulator.claim_to(part.end, Class::Unread);
                }
            }
        }
    }

    /// Claims free memory, which a collection releases in the ranges `releasable`. The kernel page
    /// at the end belongs to the next part if that is released too.
    fn claim_free_part(
        &mut self,
        part: &Part,
        releasable: &[AddressRange],
        accumulator: &mut Accumulator<'_>,
    ) {
        let mut end = part.end;
        for range in releasable {
            let start = range.start.max(accumulator.cursor());
            let to = page_of(range.end.min(part.end));
            if !self.context.is_locked((start, to)) {
                accumulator.claim_to(start, Class::Free);
                accumulator.claim_free(to.max(start), page_up(start), to);
                if range.end > part.end {
                    end = to;
                }
            }
        }
        accumulator.claim_to(end, Class::Free);
    }

    /// Claims a page. `None` if it is invalid; then nothing is claimed.
    fn claim_page(&mut self, part: &Part, page: &PageWords, accumulator: &mut Accumulator<'_>) -> Option<()> {
        let grid = self.block_grid(part, page)?;
        let free = page.free_count()?;
        let lists = page.lists;
        let delayed_blocks = self.delayed_blocks_of(part);
        let mut cached = 0;
        if free == 0
            && lists.thread_free == 0
            && delayed_blocks.is_empty()
            && !self.spans.blocks.are_refined()
        {
            accumulator.claim_to(grid.start, Class::Header);
            accumulator.claim_to(grid.end, Class::Live);
        } else {
            self.spans.start_span(grid.start, grid.block_bytes, grid.count)?;
            if lists != FreeLists::default() {
                self.spans.read_span(grid.end - grid.start);
            }
            let listed_count = self.follow_list(lists.free, BlockState::Free)?
                + self.follow_list(lists.local_free, BlockState::Free)?;
            if listed_count != free {
                return None;
            }
            cached = self.follow_list(lists.thread_free, BlockState::Cached)?;
            for &pointer in delayed_blocks {
                self.spans.mark(pointer, BlockState::Cached)?;
                cached += 1;
            }
            page.used.checked_sub(cached)?;
            accumulator.claim_to(grid.start, Class::Header);
            self.spans.claim_span(grid.end, accumulator);
        }
        accumulator.claim_to(part.end, Class::Free);
        self.count(part, &grid, &BlockCounts { free, cached, live: page.used - cached });
        Some(())
    }

    /// Returns where the initialised blocks of a page are; `None` if its fields contradict each
    /// other.
    fn block_grid(&self, part: &Part, page: &PageWords) -> Option<BlockGrid> {
        let offset = self.first_block_offset.map_or(0, |offset| offset(page.block_bytes));
        let start = page.start.unwrap_or(part.start + offset);
        let end = start.checked_add(page.capacity.checked_mul(page.block_bytes)?)?;
        // A block with a large alignment begins later, and is shorter.
        let end = if page.reserved == 1 { end.min(part.end) } else { end };
        let is_consistent = (part.start..=end).contains(&start)
            && end <= part.end
            && page.capacity <= page.reserved
            && page.used <= page.capacity;
        is_consistent.then_some(BlockGrid { start, end, block_bytes: page.block_bytes, count: page.capacity })
    }

    /// Adds a page to the totals.
    fn count(&mut self, part: &Part, grid: &BlockGrid, counts: &BlockCounts) {
        let &BlockCounts { free, cached, live } = counts;
        let class = SizeClass {
            bytes: grid.block_bytes,
            spans: 1,
            span_bytes: part.end - part.start,
            free_blocks: free,
            cached_blocks: cached,
            live_blocks: live,
        };
        // A single block that begins late is shorter.
        let block_bytes = grid.block_bytes.min(part.end - grid.start);
        self.counts.free_bytes += free * block_bytes + (part.end - grid.end);
        self.counts.live_bytes += live * block_bytes;
        self.counts.cached_bytes += cached * block_bytes;
        self.counts.classes.entry(grid.block_bytes).or_default().add(&class);
    }

    /// Returns the blocks of a part that other threads freed into lists of heaps.
    fn delayed_blocks_of(&self, part: &Part) -> &'a [u64] {
        within(self.delayed_blocks, part.range(), |&pointer| pointer)
    }

    /// Follows a list of free blocks through their first words, sets their state, and returns their
    /// number.
    ///
    /// `None` if the list leaves the page's blocks, or has a block that is in a list already.
    fn follow_list(&mut self, first_block: u64, new_state: BlockState) -> Option<u64> {
        let (mut at, mut count) = (first_block, 0);
        while at != 0 {
            // A block that already has another state closes a cycle.
            self.spans.mark(at, new_state)?;
            count += 1;
            at = self.spans.word(at, &mut self.counts.doubts)?;
        }
        Some(count)
    }
}

impl_totals! { Counts: live_bytes, cached_bytes, free_bytes, structure_bytes, pages }
