//! Claims blocks in use; claims of other readers inside a block refine it.

use crate::parallel::Totals;
use crate::scan::within;
use strandline_claims::accumulator::{Accumulator, Class};
use strandline_claims::allocator::{Context, RangeClaim};
use strandline_claims::caveat::Caveat;
use strandline_claims::doubts::ReadProblems;
use strandline_claims::reader::ReaderInfo;
use strandline_claims::refinements::{Finder, Matches, Refinements};
use strandline_claims::units::counted;
use strandline_process::memory::word_at;
use strandline_process::page_cache::PageCache;
use strandline_process::range::{AddressRange, overlapping};

/// Maximum bytes of a span of blocks that is read completely; in a longer one, single words are.
const MAX_READ_BYTES: u64 = 1 << 20;

/// Claims a range; `claim` claims each of its bytes, in address order.
pub fn claim_range(
    context: &Context<'_>,
    range: AddressRange,
    claim: impl FnOnce(&mut Accumulator<'_>),
) -> RangeClaim {
    let AddressRange { start, end } = range;
    let pages = context.pages(range);
    let mut accumulator = Accumulator::new(start, &pages);
    claim(&mut accumulator);
    RangeClaim { start, end, sums: accumulator.cut().finish(&pages) }
}

/// Claims blocks in use, with their refinements: claims of other readers inside them.
pub struct Blocks<'a> {
    /// Finds the refinements, if there are any.
    pub finder: Option<Finder<'a>>,
    /// The refinements found so far, and all blocks in use if they are kept ([`Matches::blocks`]).
    pub matched: Matches,
}

impl<'a> Blocks<'a> {
    /// Takes the refinements from `context`.
    pub fn new(context: &Context<'a>) -> Self {
        Self::with_refinements(context.refinements, context.keeps_blocks)
    }

    /// Takes these refinements, and keeps all blocks in use if `keeps_blocks`.
    pub fn with_refinements(refinements: Option<&'a Refinements>, keeps_blocks: bool) -> Self {
        Self { finder: refinements.map(Refinements::finder), matched: Matches::new(keeps_blocks) }
    }

    /// Returns what was found since the last call.
    pub fn take_matched(&mut self) -> Matches {
        let keeps_blocks = self.matched.blocks.is_some();
        std::mem::replace(&mut self.matched, Matches::new(keeps_blocks))
    }

    /// Whether every block must be claimed by itself; otherwise adjacent blocks can be claimed as
    /// one.
    pub fn are_refined(&self) -> bool {
        self.finder.is_some() || self.matched.blocks.is_some()
    }

    /// Claims a block in use from the cursor to `end`.
    pub fn claim(&mut self, end: u64, accumulator: &mut Accumulator<'_>) {
        let start = accumulator.cursor();
        let block = Block { pointer: start, bytes: end.saturating_sub(start), header_bytes: 0 };
        self.claim_block(block, end, accumulator);
    }

    /// Claims the memory of a block in use from the cursor to `end`.
    #[inline]
    pub fn claim_block(&mut self, block: Block, end: u64, accumulator: &mut Accumulator<'_>) {
        let Block { pointer, bytes, header_bytes } = block;
        let nested = self.finder.as_mut().map(|finder| finder.nested(pointer, end)).unwrap_or_default();
        if !nested.is_empty() {
            self.matched.nested.extend_from_slice(nested);
            accumulator.claim_nesting(end, header_bytes, nested);
            return;
        }
        self.matched.push_block(pointer, bytes);
        match self.finder.as_mut().and_then(|finder| finder.find(pointer, bytes)) {
            Some(refined) => {
                self.matched.count(pointer, &refined);
                accumulator.claim_refined(end, header_bytes, &refined);
            }
            None => accumulator.claim_live(end, header_bytes),
        }
    }
}

/// A block in use.
#[derive(Clone, Copy)]
pub struct Block {
    /// Its address, as the program knows it.
    pub pointer: u64,
    /// Bytes that the program may use.
    pub bytes: u64,
    /// Bytes of the claimed memory that are the allocator's own.
    pub header_bytes: u64,
}

/// A free block in a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CachedBlock {
    /// Its address.
    pub address: u64,
    /// Its size class.
    pub class: u16,
}

/// Contents of caches that match no block in use.
pub struct UnmatchedCaches {
    /// What the allocator calls a block: "region".
    pub block_word: &'static str,
    /// Number of cached blocks that are no block in use.
    pub blocks: u64,
    /// What the allocator calls a list of a cache: "bin".
    pub list_word: &'static str,
    /// Number of invalid lists.
    pub lists: u64,
}

impl UnmatchedCaches {
    /// Returns the caveat for the program or library at `place`; `None` if all matched.
    pub fn caveat(&self, about: &ReaderInfo, place: &str) -> Option<Caveat> {
        let &Self { block_word, blocks, list_word, lists } = self;
        let text = format!(
            "{} and {} of caches match no {block_word} in use (damaged, swapped out, or read during a change): their contents count as in use",
            counted(blocks, block_word),
            counted(lists, list_word)
        );
        let code = format!("{}_cache_broken", about.name);
        (blocks > 0 || lists > 0).then(|| Caveat::new(&code, place, None, text))
    }
}

/// Caches of threads or processors that were not read because they may be swapped out: a read would
/// load their pages.
#[derive(Clone, Debug, Default)]
pub struct SwappedCaches {
    /// Address of the first one.
    first: Option<u64>,
    count: u64,
    /// Whether some may never have been used instead, so that the number is unknown.
    may_be_unused: bool,
}

impl SwappedCaches {
    /// Counts the cache at `range` if a page of it may be swapped out; true if it was counted.
    pub fn count_if_swapped(&mut self, context: &Context<'_>, range: AddressRange) -> bool {
        let swapped = overlapping(context.swapped_mappings, range).iter();
        let has_missing_page = swapped.map(|mapping| mapping.intersection(range)).any(|part| {
            let pages = part.widened_to_pages();
            context.resident_bytes(pages) < pages.len()
        });
        if has_missing_page {
            self.first.get_or_insert(range.start);
            self.count += 1;
        }
        has_missing_page
    }

    /// Notes that a cache may be at `range` if a page of it may be swapped out, where a cache that
    /// was never used has missing pages too.
    pub fn note_possible(&mut self, context: &Context<'_>, range: AddressRange) {
        self.may_be_unused = self.may_be_unused || self.count_if_swapped(context, range);
    }

    /// Returns the caveat; `None` if there are none.
    pub fn caveat(&self, about: &ReaderInfo) -> Option<Caveat> {
        let place = format!("{:#x}", self.first?);
        let caches = if self.may_be_unused {
            "some thread or processor caches".to_owned()
        } else {
            counted(self.count, "thread or processor cache")
        };
        let text = format!(
            "{caches} of {} may be swapped out, and reading them would load them: their free blocks count as in use",
            about.title
        );
        Some(Caveat::new(&format!("{}_cache_swapped", about.name), place, None, text))
    }
}

/// State of a block of a span.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum BlockState {
    /// In use by the program.
    Live,
    /// In a cache, or freed by another thread.
    Cached,
    /// Free.
    Free,
    /// In use by the allocator itself.
    Own,
}

/// Claims spans of blocks of one size, block by block.
pub struct SpanClaimer<'a> {
    context: &'a Context<'a>,
    /// The target's memory, by pages.
    pub cache: PageCache<'a>,
    /// Claims blocks in use.
    pub blocks: Blocks<'a>,
    /// Address of the first block of the current span.
    span_start: u64,
    /// Size of each block of the current span.
    block_bytes: u64,
    /// States of the blocks of the current span.
    states: Vec<BlockState>,
    /// The bytes of the current span, if it was read completely; reused for the next.
    span_bytes: Vec<u8>,
    /// Whether the current span was read completely.
    is_span_read: bool,
    /// Bytes read from the target, besides those that `cache` has read.
    bytes_read: u64,
}

impl<'a> SpanClaimer<'a> {
    /// Reads through `cache`.
    pub fn new(context: &'a Context<'a>, cache: PageCache<'a>) -> Self {
        Self {
            context,
            cache,
            blocks: Blocks::new(context),
            span_start: 0,
            block_bytes: 0,
            states: Vec::new(),
            span_bytes: Vec::new(),
            is_span_read: false,
            bytes_read: 0,
        }
    }

    /// Starts a span of `block_count` live blocks, which the caller limits, the first of them at
    /// `start`; `None` if they are more than a `usize` counts.
    pub fn start_span(&mut self, start: u64, block_bytes: u64, block_count: u64) -> Option<()> {
        (self.span_start, self.block_bytes, self.is_span_read) = (start, block_bytes, false);
        self.states.clear();
        self.states.resize(usize::try_from(block_count).ok()?, BlockState::Live);
        Some(())
    }

    /// Gives the live block that begins at `address` another state; `None` if no live block of the
    /// span begins there.
    pub fn mark(&mut self, address: u64, state: BlockState) -> Option<()> {
        let offset = address.checked_sub(self.span_start)?;
        let index =
            offset.checked_div(self.block_bytes).filter(|_| offset.is_multiple_of(self.block_bytes))?;
        self.mark_nth(index, state)
    }

    /// Gives the live block with this index another state; `None` if it is not live.
    pub fn mark_nth(&mut self, index: u64, state: BlockState) -> Option<()> {
        let block = self.states.get_mut(usize::try_from(index).ok()?)?;
        (*block == BlockState::Live).then(|| *block = state)
    }

    /// Marks as cached each live block of the span, which takes `range`, that `cached_blocks` (in
    /// address order) has with this class; returns their number.
    pub fn mark_cached(&mut self, cached_blocks: &[CachedBlock], range: AddressRange, class: u16) -> u64 {
        let cached_blocks = within(cached_blocks, range, |block| block.address);
        let of_class = cached_blocks.iter().filter(|block| block.class == class);
        of_class.filter(|block| self.mark(block.address, BlockState::Cached).is_some()).count() as u64
    }

    /// Reads the first `bytes` of the span, so that [`Self::word`] needs no further reads; does
    /// nothing if they are too many.
    pub fn read_span(&mut self, bytes: u64) {
        if bytes > MAX_READ_BYTES || self.context.deadline_passed() {
            return;
        }
        self.span_bytes.resize(bytes as usize, 0);
        self.is_span_read = self.context.memory.read(self.span_start, &mut self.span_bytes).is_ok();
        if self.is_span_read {
            self.bytes_read += bytes;
        }
    }

    /// Returns the word at an address of the span. `None` if it is unreadable, or after the
    /// deadline, which is then noted in `doubts`.
    pub fn word(&mut self, at: u64, doubts: &mut ReadProblems) -> Option<u64> {
        if self.is_span_read {
            let offset = usize::try_from(at.checked_sub(self.span_start)?).ok()?;
            return word_at(&self.span_bytes, offset);
        }
        if !self.context.deadline_passed() {
            return self.cache.word(at);
        }
        doubts.note_timeout(at);
        None
    }

    /// Claims the blocks of the span from the cursor to `end` at most.
    pub fn claim_span(&mut self, end: u64, accumulator: &mut Accumulator<'_>) {
        for state in &self.states {
            let block_end = (accumulator.cursor() + self.block_bytes).min(end);
            match state {
                BlockState::Live => self.blocks.claim(block_end, accumulator),
                BlockState::Cached => accumulator.claim_to(block_end, Class::Cached),
                BlockState::Free => accumulator.claim_to(block_end, Class::Free),
                BlockState::Own => accumulator.claim_to(block_end, Class::Metadata),
            }
        }
    }

    /// Adds to `counts` the refinements found and the bytes read.
    pub fn finish<Counts: Totals>(self, counts: Counts) -> Counts {
        counts.with_matches(self.blocks.matched, self.bytes_read + self.cache.bytes_read)
    }
}
