//! Classifies each byte of mimalloc's memory: blocks in use, free blocks, free pages, its own
//! structures.
//!
//! A page in full use is one claim; in other pages the lists of free blocks are followed.

use std::collections::BTreeMap;

use super::layout::{OFFSETS, PageWords};
use super::parts::{Heap, Kind, Part};
use crate::blocks::{BlockState, SpanClaimer};
use crate::parallel::{Totals, claim_in_parts, impl_totals};
use crate::scan::within;
use strandline_claims::accumulator::{Accumulator, Class};
use strandline_claims::allocator::{Context, RangeClaim};
use strandline_claims::doubts::ReadProblems;
use strandline_claims::facts::SizeClass;
use strandline_claims::range::{page_of, page_up};
use strandline_claims::refinements::Matches;
use strandline_process::page_cache::PageCache;
use strandline_process::range::{AddressRange, RangeSet};

/// Totals of all pages.
#[derive(Default)]
pub struct Counts {
    /// By block size.
    pub classes: BTreeMap<u64, SizeClass>,
    /// Bytes of blocks in use.
    pub live_bytes: u64,
    /// Bytes of blocks that other threads freed.
    pub cached_bytes: u64,
    /// Bytes of free blocks, and of the unused rest of pages.
    pub free_bytes: u64,
    /// Bytes of mimalloc's own structures.
    pub own_bytes: u64,
    /// Number of pages.
    pub pages: u64,
    /// Refinements found.
    pub matched: Matches,
    /// Invalid pages, and where the deadline passed.
    pub doubts: ReadProblems,
    /// Bytes read from the target.
    pub bytes_read: u64,
}

/// Claims all of `heap`. `delayed` are blocks that other threads freed and that are in no page's
/// list, in address order; `released` is what a collection releases.
pub fn claim(
    context: &Context<'_>,
    heap: &Heap,
    delayed: &[u64],
    released: &RangeSet,
) -> (Vec<RangeClaim>, Counts) {
    let offset = choose_offset_function(heap);
    claim_in_parts(context, &heap.parts, &Part::range, &|parts, accumulator| {
        let spans = SpanClaimer::new(context, PageCache::new(context.memory));
        let mut claimer = Claimer { context, delayed, offset, spans, counts: Counts::default() };
        for part in parts {
            claimer.claim_part(part, released.overlapping(part.range()), accumulator);
        }
        accumulator.claim_to(parts.last().map_or(0, |last| last.end), Class::Free);
        let (matched, bytes_read) = claimer.spans.finish();
        claimer.counts.with(matched, bytes_read)
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
            let first = part.start + offset(page.block_bytes);
            let blocks =
                InitialisedBlocks { first, end: part.end, bytes: page.block_bytes, number: page.capacity };
            let room = part.end.saturating_sub(first) / page.block_bytes;
            let is_full = page.reserved == 0 || page.reserved == room;
            page.lists.iter().filter(|&&at| at != 0 && index_of(at, &blocks).is_none()).count()
                + usize::from(!is_full)
        };
        heap.parts.iter().map(contradictions_of_page).sum::<usize>()
    };
    OFFSETS.into_iter().min_by_key(contradictions)
}

struct Claimer<'a> {
    context: &'a Context<'a>,
    delayed: &'a [u64],
    offset: Option<fn(u64) -> u64>,
    spans: SpanClaimer<'a>,
    counts: Counts,
}

/// The initialised blocks of a page.
struct InitialisedBlocks {
    first: u64,
    /// End of the last one.
    end: u64,
    bytes: u64,
    number: u64,
}

impl<'a> Claimer<'a> {
    fn claim_part(&mut self, part: &Part, released: &[AddressRange], accumulator: &mut Accumulator<'_>) {
        let bytes = part.end - part.start;
        match part.kind {
            Kind::Own if released.is_empty() => {
                self.counts.own_bytes += bytes;
                accumulator.claim_to(part.end, Class::Metadata);
            }
            Kind::Page(page) if !released.is_empty() => {
                self.counts.pages += 1;
                // Nothing in it is live: other threads freed the blocks in use.
                match self.initialised_blocks(part, &page) {
                    Some((blocks, free)) => self.count(part, &blocks, [free, page.used, 0]),
                    None => self.counts.doubts.note_damage(part.start, 0),
                }
                self.claim_free_part(part, released, accumulator);
            }
            Kind::Own | Kind::Free | Kind::PurgePending => self.claim_free_part(part, released, accumulator),
            Kind::Page(page) => {
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

    /// Claims free memory, of which a collection releases the ranges `released`. The kernel page at
    /// the end belongs to the next part if that is released too.
    fn claim_free_part(&mut self, part: &Part, released: &[AddressRange], accumulator: &mut Accumulator<'_>) {
        let mut end = part.end;
        for range in released {
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
        let (blocks, free) = self.initialised_blocks(part, page)?;
        let delayed = self.delayed_of(part);
        let mut cached = 0;
        if free == 0 && page.lists[2] == 0 && delayed.is_empty() && !self.spans.blocks.are_refined() {
            accumulator.claim_to(blocks.first, Class::Header);
            accumulator.claim_to(blocks.end, Class::Live);
        } else {
            self.spans.start(page.capacity)?;
            if page.lists.iter().any(|&list| list != 0) {
                self.spans.read(AddressRange::sized(blocks.first, blocks.number * blocks.bytes));
            }
            let own = self.follow(page.lists[0], &blocks, BlockState::Free)?
                + self.follow(page.lists[1], &blocks, BlockState::Free)?;
            if own != free {
                return None;
            }
            cached = self.follow(page.lists[2], &blocks, BlockState::Cached)?;
            for &pointer in delayed {
                let index = index_of(pointer, &blocks)?;
                let state = self.spans.states.get_mut(index).filter(|state| **state == BlockState::Live)?;
                *state = BlockState::Cached;
                cached += 1;
            }
            page.used.checked_sub(cached)?;
            accumulator.claim_to(blocks.first, Class::Header);
            self.spans.claim(blocks.bytes, blocks.end, accumulator);
        }
        accumulator.claim_to(part.end, Class::Free);
        self.count(part, &blocks, [free, cached, page.used - cached]);
        Some(())
    }

    /// Returns the initialised blocks of a page, and how many of them are in its own lists; `None`
    /// if that is impossible.
    fn initialised_blocks(&self, part: &Part, page: &PageWords) -> Option<(InitialisedBlocks, u64)> {
        let offset = self.offset.map_or(0, |offset| offset(page.block_bytes));
        let first = page.start.unwrap_or(part.start + offset);
        let end = first.checked_add(page.capacity.checked_mul(page.block_bytes)?)?;
        // A block with a large alignment begins later, and is shorter.
        let end = if page.reserved == 1 { end.min(part.end) } else { end };
        let is_consistent =
            (part.start..=end).contains(&first) && end <= part.end && page.capacity <= page.reserved;
        let free = page.capacity.checked_sub(page.used).filter(|_| is_consistent)?;
        let blocks = InitialisedBlocks { first, end, bytes: page.block_bytes, number: page.capacity };
        Some((blocks, free))
    }

    /// Counts a page with these numbers of free, cached and live blocks.
    fn count(&mut self, part: &Part, blocks: &InitialisedBlocks, [free, cached, live]: [u64; 3]) {
        let class = SizeClass {
            bytes: blocks.bytes,
            spans: 1,
            span_bytes: part.end - part.start,
            free_blocks: free,
            cached_blocks: cached,
            live_blocks: live,
        };
        // A single block that begins late is shorter.
        let block_bytes = blocks.bytes.min(part.end - blocks.first);
        self.counts.free_bytes += free * block_bytes + (part.end - blocks.end);
        self.counts.live_bytes += live * block_bytes;
        self.counts.cached_bytes += cached * block_bytes;
        self.counts.classes.entry(blocks.bytes).or_default().add(&class);
    }

    fn delayed_of(&self, part: &Part) -> &'a [u64] {
        within(self.delayed, part.range(), |&pointer| pointer)
    }

    /// Follows a list of free blocks through their first words, and returns their number.
    fn follow(&mut self, list: u64, blocks: &InitialisedBlocks, new_state: BlockState) -> Option<u64> {
        let (mut at, mut count) = (list, 0);
        while at != 0 {
            let index = index_of(at, blocks)?;
            // A block that already has another state closes a cycle.
            let state = self.spans.states.get_mut(index).filter(|state| **state == BlockState::Live)?;
            *state = new_state;
            count += 1;
            at = self.spans.word(at, &mut self.counts.doubts)?;
        }
        Some(count)
    }
}

/// Returns the index of the block at `pointer`.
fn index_of(pointer: u64, blocks: &InitialisedBlocks) -> Option<usize> {
    let offset = pointer.checked_sub(blocks.first)?;
    let is_block =
        blocks.bytes > 0 && offset.is_multiple_of(blocks.bytes) && offset / blocks.bytes < blocks.number;
    if is_block { usize::try_from(offset / blocks.bytes).ok() } else { None }
}

impl_totals! { Counts: live_bytes, cached_bytes, free_bytes, own_bytes, pages }
