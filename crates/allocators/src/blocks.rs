//! Claims blocks in use; claims of other readers inside a block refine it.

use std::time::Instant;

use strandline_claims::accumulator::{Accumulator, Class};
use strandline_claims::allocator::Context;
use strandline_claims::caveat::Caveat;
use strandline_claims::doubts::ReadProblems;
use strandline_claims::reader::ReaderInfo;
use strandline_claims::refinements::{Finder, Matches};
use strandline_process::memory::word_at;
use strandline_process::page_cache::PageCache;
use strandline_process::range::AddressRange;

/// Maximum bytes of a span of blocks that is read completely.
const MAX_READ_BYTES: u64 = 1 << 20;

/// The refinements of one allocator's blocks: claims of other readers inside them.
pub struct Blocks<'a> {
    finder: Option<Finder<'a>>,
    /// The refinements found so far, and all blocks in use if they are kept ([`Matches::blocks`]).
    pub matched: Matches,
}

impl<'a> Blocks<'a> {
    /// Takes the refinements from `context`.
    pub fn new(context: &Context<'a>) -> Self {
        Self {
            finder: context.refinements.map(|refinements| refinements.finder()),
            matched: Matches::new(context.collects_blocks),
        }
    }

    /// Whether every block must be claimed by itself; otherwise adjacent blocks can be claimed as
    /// one.
    pub fn are_refined(&self) -> bool {
        self.finder.is_some() || self.matched.blocks.is_some()
    }

    /// Claims a block in use from the cursor to `end`.
    pub fn claim(&mut self, end: u64, accumulator: &mut Accumulator<'_>) {
        let pointer = accumulator.cursor();
        let bytes = end.saturating_sub(pointer);
        let Some(finder) = &mut self.finder else {
            self.matched.push_block(pointer, bytes);
            accumulator.claim_live(end, 0);
            return;
        };
        let nested = finder.nested(pointer, end);
        if !nested.is_empty() {
            self.matched.nested.extend_from_slice(nested);
            accumulator.claim_nesting(end, 0, nested);
            return;
        }
        self.matched.push_block(pointer, bytes);
        if let Some(refined) = finder.find(pointer, bytes) {
            self.matched.count(pointer, &refined);
            accumulator.claim_refined(end, 0, &refined);
        } else {
            accumulator.claim_live(end, 0);
        }
    }
}

/// A free block in a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CachedBlock {
    /// Its address.
    pub address: u64,
    /// Its size class.
    pub class: u16,
}

/// Returns the caveat for `unmatched` cached blocks that are no block in use, and `broken` lists of
/// caches; `None` if there are none. They are named as `block`, "region", and as `lists`, "bins of
/// thread caches".
pub fn unmatched_caveat(
    about: &ReaderInfo,
    place: &str,
    (block, unmatched): (&str, u64),
    (lists, broken): (&str, u64),
) -> Option<Caveat> {
    let text = format!(
        "{unmatched} {block}s and {broken} {lists} match no {block} in use (damaged, or read during a change): their \
         contents count as in use"
    );
    let code = format!("{}_cache_broken", about.name);
    (unmatched > 0 || broken > 0).then(|| Caveat::new(&code, place, None, text))
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
    /// States of the blocks of the current span.
    pub states: Vec<BlockState>,
    /// Bytes of the current span from `start` on, if it was read completely; reused for the next.
    memory: Vec<u8>,
    is_read: bool,
    start: u64,
    bytes_read: u64,
}

impl<'a> SpanClaimer<'a> {
    /// Reads through `cache`.
    pub fn new(context: &'a Context<'a>, cache: PageCache<'a>) -> Self {
        Self {
            context,
            cache,
            blocks: Blocks::new(context),
            states: Vec::new(),
            memory: Vec::new(),
            is_read: false,
            start: 0,
            bytes_read: 0,
        }
    }

    /// Starts a span of `number` live blocks, which the caller limits; `None` if they are more than
    /// a `usize` counts.
    pub fn start(&mut self, number: u64) -> Option<()> {
        self.states.clear();
        self.is_read = false;
        self.states.resize(usize::try_from(number).ok()?, BlockState::Live);
        Some(())
    }

    /// Reads the span completely, unless it is too long.
    pub fn read(&mut self, span: AddressRange) {
        let bytes = span.len();
        if bytes > MAX_READ_BYTES || Instant::now() >= self.context.deadline {
            return;
        }
        self.memory.resize(bytes as usize, 0);
        self.is_read = self.context.memory.read(span.start, &mut self.memory).is_ok();
        if self.is_read {
            (self.start, self.bytes_read) = (span.start, self.bytes_read + bytes);
        }
    }

    /// The word at an address of the span. `None` if it is unreadable, or after the deadline, which
    /// is noted in `doubts`.
    pub fn word(&mut self, at: u64, doubts: &mut ReadProblems) -> Option<u64> {
        if self.is_read {
            return word_at(&self.memory, (at - self.start) as usize);
        }
        if Instant::now() < self.context.deadline {
            return self.cache.word(at);
        }
        doubts.note_timeout(at);
        None
    }

    /// Claims the blocks of the span, which have `bytes` each, from the cursor to `end` at most.
    pub fn claim(&mut self, bytes: u64, end: u64, accumulator: &mut Accumulator<'_>) {
        for state in &self.states {
            let end = (accumulator.cursor() + bytes).min(end);
            match state {
                BlockState::Live => self.blocks.claim(end, accumulator),
                BlockState::Cached => accumulator.claim_to(end, Class::Cached),
                BlockState::Free => accumulator.claim_to(end, Class::Free),
                BlockState::Own => accumulator.claim_to(end, Class::Metadata),
            }
        }
    }

    /// The refinements found, and the bytes read.
    pub fn finish(self) -> (Matches, u64) {
        (self.blocks.matched, self.bytes_read + self.cache.bytes_read)
    }
}
