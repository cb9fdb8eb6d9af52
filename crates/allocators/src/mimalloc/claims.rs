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
/// list, in address order; `given` is what a collection releases.
pub fn claim(
    context: &Context<'_>,
    heap: &Heap,
    delayed: &[u64],
    given: &RangeSet,
) -> (Vec<RangeClaim>, Counts) {
    let offset = choose_offset_function(heap);
    claim_in_parts(context, &heap.parts, &Part::range, &|parts, accumulator| {
        let spans = SpanClaimer::new(context, PageCache::new(context.memory));
        let mut claimer = Claimer { context, delayed, offset, spans, counts: Counts::default() };
        for part in parts {
            claimer.part(part, given.overlapping(part.range()), accumulator);
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
    let against = |offset: &fn(u64) -> u64| {
        let pages = heap.parts.iter().filter_map(|part| match part.kind {
            Kind::Page(page) => Some((part, page)),
            Kind::Own | Kind::Free | Kind::PurgePending => None,
        });
        let of_page = |(part, page): (&Part, PageWords)| {
            let first = part.start + offset(page.block_bytes);
            let made =
                InitialisedBlocks { first, end: part.end, bytes: page.block_bytes, number: page.capacity };
            let room = part.end.saturating_sub(first) / page.block_bytes;
            let is_full = page.reserved == 0 || page.reserved == room;
            page.lists.iter().filter(|&&at| at != 0 && index_of(at, &made).is_none()).count()
                + usize::from(!is_full)
        };
        pages.map(of_page).sum::<usize>()
    };
    OFFSETS.into_iter().min_by_key(against)
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
    fn part(&mut self, part: &Part, given: &[AddressRange], accumulator: &mut Accumulator<'_>) {
        let bytes = part.end - part.start;
        match part.kind {
            Kind::Own if given.is_empty() => {
                self.counts.own_bytes += bytes;
                accumulator.claim_to(part.end, Class::Metadata);
            }
            Kind::Page(page) if !given.is_empty() => {
                self.counts.pages += 1;
                // Nothing in it is live: other threads freed the blocks in use.
                match self.made(part, &page) {
                    Some((made, free)) => self.count(part, &made, [free, page.used, 0]),
                    None => self.counts.doubts.note_damage(part.start, 0),
                }
                self.free(part, given, accumulator);
            }
            Kind::Own | Kind::Free | Kind::PurgePending => self.free(part, given, accumulator),
            Kind::Page(page) => {
                self.counts.pages += 1;
                if self.page(part, &page, accumulator).is_none() {
                    if !self.counts.doubts.timed_out() {
                        self.counts.doubts.note_damage(part.start, part.end - accumulator.cursor());
                    }
                    accumulator.claim_to(part.end, Class::Unread);
                }
            }
        }
    }

    /// Claims free memory, released as far as `given` says. The kernel page at the end goes to the
    /// next part if that is released too.
    fn free(&mut self, part: &Part, given: &[AddressRange], accumulator: &mut Accumulator<'_>) {
        let mut end = part.end;
        for range in given {
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
    fn page(&mut self, part: &Part, page: &PageWords, accumulator: &mut Accumulator<'_>) -> Option<()> {
        let (made, free) = self.made(part, page)?;
        let delayed = self.delayed_of(part);
        let mut cached = 0;
        if free == 0 && page.lists[2] == 0 && delayed.is_empty() && !self.spans.blocks.are_refined() {
            accumulator.claim_to(made.first, Class::Header);
            accumulator.claim_to(made.end, Class::Live);
        } else {
            self.spans.start(page.capacity)?;
            if page.lists.iter().any(|&list| list != 0) {
                self.spans.read(AddressRange::sized(made.first, made.number * made.bytes));
            }
            let own = self.follow(page.lists[0], &made, BlockState::Free)?
                + self.follow(page.lists[1], &made, BlockState::Free)?;
            if own != free {
                return None;
            }
            cached = self.follow(page.lists[2], &made, BlockState::Cached)?;
            for &pointer in delayed {
                let index = index_of(pointer, &made)?;
                let state = self.spans.states.get_mut(index).filter(|state| **state == BlockState::Live)?;
                *state = BlockState::Cached;
                cached += 1;
            }
            page.used.checked_sub(cached)?;
            accumulator.claim_to(made.first, Class::Header);
            self.spans.claim(made.bytes, made.end, accumulator);
        }
        accumulator.claim_to(part.end, Class::Free);
        self.count(part, &made, [free, cached, page.used - cached]);
        Some(())
    }

    /// Returns the initialised blocks of a page, and how many of them are in its own lists; `None`
    /// if that is impossible.
    fn made(&self, part: &Part, page: &PageWords) -> Option<(InitialisedBlocks, u64)> {
        let offset = self.offset.map_or(0, |offset| offset(page.block_bytes));
        let first = page.start.unwrap_or(part.start + offset);
        let end = first.checked_add(page.capacity.checked_mul(page.block_bytes)?)?;
        // A block with a large alignment begins later.
        let end = if page.reserved == 1 { end.min(part.end) } else { end };
        let is_one = (part.start..=end).contains(&first) && end <= part.end && page.capacity <= page.reserved;
        let free = page.capacity.checked_sub(page.used).filter(|_| is_one)?;
        let made = InitialisedBlocks { first, end, bytes: page.block_bytes, number: page.capacity };
        Some((made, free))
    }

    /// Counts a page with these numbers of free, cached and live blocks.
    fn count(&mut self, part: &Part, made: &InitialisedBlocks, [free, cached, live]: [u64; 3]) {
        let of = SizeClass {
            bytes: made.bytes,
            spans: 1,
            span_bytes: part.end - part.start,
            free_blocks: free,
            cached_blocks: cached,
            live_blocks: live,
        };
        // A single block that begins late is shorter.
        let each = made.bytes.min(part.end - made.first);
        self.counts.free_bytes += free * each + (part.end - made.end);
        self.counts.live_bytes += live * each;
        self.counts.cached_bytes += cached * each;
        self.counts.classes.entry(made.bytes).or_default().add(&of);
    }

    fn delayed_of(&self, part: &Part) -> &'a [u64] {
        within(self.delayed, part.range(), |&pointer| pointer)
    }

    /// Follows a list of free blocks through their first words, and returns their number.
    fn follow(&mut self, list: u64, made: &InitialisedBlocks, as_what: BlockState) -> Option<u64> {
        let (mut at, mut count) = (list, 0);
        while at != 0 {
            let index = index_of(at, made)?;
            // A block that already has another state closes a cycle.
            let state = self.spans.states.get_mut(index).filter(|state| **state == BlockState::Live)?;
            *state = as_what;
            count += 1;
            at = self.spans.word(at, &mut self.counts.doubts)?;
        }
        Some(count)
    }
}

/// Returns the index of the block at `pointer`.
fn index_of(pointer: u64, made: &InitialisedBlocks) -> Option<usize> {
    let offset = pointer.checked_sub(made.first)?;
    let is_one = made.bytes > 0 && offset.is_multiple_of(made.bytes) && offset / made.bytes < made.number;
    if is_one { usize::try_from(offset / made.bytes).ok() } else { None }
}

impl_totals! { Counts: live_bytes, cached_bytes, free_bytes, own_bytes, pages }
