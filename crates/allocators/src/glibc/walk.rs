//! Walks one range of an arena from chunk to chunk, in address order, and claims every byte of it.
//!
//! The size word of a chunk leads to the next chunk; the lowest bit of that one's size word shows
//! whether the chunk before it is in use. Chunks in thread caches look in use; their addresses are
//! known beforehand ([`SpecialChunks`]). Chunks in fastbins look in use too and are recognised by
//! their links ([`FastbinMode`]). An impossible size ends the chain: the walk then searches the
//! next place where a long run of chunks is consistent, and counts the bytes skipped. It never goes
//! back.

mod seek;

use super::fastbins::Candidate;
use super::layout;
use super::lists::{ChunkKind, SpecialChunks};
use super::mapped_header::chunk_at;
use super::walk_context::{Counts, FastbinMode, Part, Region, RegionKind, Top, WalkContext};
use crate::blocks::{Block, Blocks};
use strandline_claims::accumulator::{Accumulator, Class};
use strandline_claims::allocator::MappedBlock;
use strandline_claims::range::{PAGE_BYTES, page_of, page_up};
use strandline_claims::window::{PeekedPair, Window};

/// The size word of a fencepost in the main arena.
const FENCEPOST_HEAD: u64 = layout::FENCEPOST_BYTES | layout::PREV_INUSE;
/// Maximum bytes that a walk reads past the end of its segment; a longer chunk belongs to the walk
/// before it.
const MAX_OVERSHOOT_BYTES: u64 = 32 << 20;
/// Maximum reads outside the window for all searches of one walk, some 0.1 s.
const MAX_FAR_READS: u32 = 200_000;

/// The current free run: adjacent free chunks that consolidation would merge.
struct FreeRun {
    start: u64,
    /// Whether one of its chunks is in a fastbin.
    has_fastbin_chunk: bool,
    /// Whether its first chunk is in a bin.
    starts_in_bin: bool,
}

/// A walk through one region.
pub struct Walker<'a> {
    region: &'a Region,
    special_chunks: &'a SpecialChunks,
    fastbin_mode: FastbinMode<'a>,
    /// Chunks treated as members of fastbins; their memory is reserved from the budget.
    candidates: Vec<Candidate>,
    window: Window<'a>,
    accumulator: Accumulator<'a>,
    /// Claims blocks in use.
    blocks: Blocks<'a>,
    /// Current position.
    at: u64,
    /// Address of the next chunk, if its size word was already read.
    next_at: Option<u64>,
    /// That size word.
    next_head: u64,
    free_run: Option<FreeRun>,
    counts: Counts,
    /// Number of reads outside the window.
    far_reads: u32,
    is_done: bool,
    /// Where the walk gives up: a walk from a guessed start must not go far past its segment.
    limit: u64,
    has_given_up: bool,
}

impl<'a> Walker<'a> {
    /// A walk that starts at the chunk boundary `at`.
    pub fn new(walk_context: WalkContext<'a>, at: u64) -> Self {
        let WalkContext {
            region,
            special_chunks,
            fastbin_mode,
            memory,
            pages,
            refinements,
            keeps_blocks,
            deadline,
        } = walk_context;
        Self {
            region,
            special_chunks,
            fastbin_mode,
            candidates: Vec::new(),
            window: Window::new(memory, pages, at, deadline),
            accumulator: Accumulator::new(at, pages),
            blocks: Blocks::with_refinements(refinements, keeps_blocks),
            at,
            next_at: None,
            next_head: 0,
            free_run: None,
            counts: Counts::default(),
            far_reads: 0,
            is_done: at >= region.end,
            limit: region.end,
            has_given_up: false,
        }
    }

    /// A walk from the region's start, metadata included.
    pub fn from_start(walk_context: WalkContext<'a>) -> Self {
        let region = walk_context.region;
        let mut walker = Self::new(walk_context, region.start);
        match region.first_chunk {
            Some(first_chunk) => {
                walker.window.advance(first_chunk.saturating_sub(1).max(region.start));
                walker.accumulator.claim_to(first_chunk, Class::Metadata);
                walker.at = first_chunk;
            }
            None => walker.start_section(region.start),
        }
        walker
    }

    /// A walk from the first plausible chunk boundary in `from..to` that follows a chunk in use;
    /// `None` if absent. It gives up instead of going far past `to`.
    pub fn from_plausible_start(walk_context: WalkContext<'a>, from: u64, to: u64) -> Option<Self> {
        let mut walker = Self::new(walk_context, from);
        walker.limit = to;
        walker.at = walker.seek(from, layout::ALIGNMENT)?;
        walker.accumulator = Accumulator::new(walker.at, walk_context.pages);
        walker.limit = to.saturating_add(MAX_OVERSHOOT_BYTES).min(walk_context.region.end);
        while !walker.is_done && walker.at < to {
            if walker.step() {
                let at = walker.at;
                walker.accumulator = Accumulator::new(at, walk_context.pages);
                walker.counts = Counts::default();
                walker.blocks.take_matched();
                walker.candidates.clear();
                return Some(walker);
            }
        }
        None
    }

    /// Whether the walk reached its limit: the last part that it returned must not be used.
    pub fn has_given_up(&self) -> bool {
        self.has_given_up
    }

    /// Ends the walk, claims the bytes up to `end` as unread, and returns the part that they end.
    pub fn abandon(&mut self, end: u64) -> Part {
        self.leave_unread(end);
        self.walk(0, end)
    }

    /// Ends the walk and claims the bytes up to `end` as unread.
    fn leave_unread(&mut self, end: u64) {
        self.free_run = None;
        let start = self.accumulator.cursor();
        self.counts.note_damage(start);
        self.counts.is_late = true;
        self.counts.unread_bytes += end.saturating_sub(start);
        self.accumulator.claim_to(end, Class::Unread);
        self.is_done = true;
    }

    /// Current position of the walk.
    pub fn position(&self) -> u64 {
        self.at
    }

    /// Whether the end of the region was reached.
    pub fn is_done(&self) -> bool {
        self.is_done
    }

    /// Bytes read from the target.
    pub fn bytes_read(&self) -> u64 {
        self.window.bytes_read()
    }

    /// Resident bytes that could not be read.
    pub fn unreadable_bytes(&self) -> u64 {
        self.window.unreadable_bytes()
    }

    /// Walks to the first boundary after a chunk in use that is at or after `until` and at least
    /// `min_bytes` on, or to the end of the region, and returns the part between. After the
    /// deadline the region stays unread from the first free chunk on.
    pub fn walk(&mut self, min_bytes: u64, until: u64) -> Part {
        while !self.is_done {
            let is_boundary = self.step();
            if is_boundary && self.at >= until && self.accumulator.claimed_bytes() >= min_bytes {
                break;
            }
            if !is_boundary && !self.is_done && self.window.is_late() {
                self.leave_unread(self.region.end);
            }
        }
        let mut candidates = std::mem::take(&mut self.candidates);
        if let FastbinMode::Guess { budget, .. } = self.fastbin_mode {
            budget.give_back(&mut candidates);
        }
        Part {
            claims: self.accumulator.cut(),
            counts: Counts { refined: self.blocks.take_matched(), ..std::mem::take(&mut self.counts) },
            candidates,
        }
    }

    /// Claims the next chunk; true if that was a chunk in use, after which no free run is open.
    #[inline]
    fn step(&mut self) -> bool {
        let at = self.at;
        if at >= self.region.end {
            self.close_run(at);
            self.is_done = true;
            return true;
        }
        if let Some(top) = self.region.top
            && top.address == at
        {
            self.claim_top(top);
            return false;
        }
        let head = if self.next_at == Some(at) { self.next_head } else { self.window.pair(at).1 };
        let bytes = head & !layout::SIZE_BITS;
        if bytes < layout::MIN_CHUNK_BYTES {
            self.claim_fencepost(at, head);
            return false;
        }
        if !self.is_plausible(at, head) {
            self.take_damage(at);
            return false;
        }
        let candidate = self.fastbin_candidate(at, bytes);
        let next = at + bytes;
        if next > self.limit {
            self.has_given_up = true;
            self.is_done = true;
            return false;
        }
        let (previous_bytes, next_head) = self.window.pair(next);
        (self.next_at, self.next_head) = (Some(next), next_head);
        if next_head & layout::PREV_INUSE == 0 {
            if previous_bytes != bytes {
                // The chain still holds, but a trim would not trust it: damage, or mid-update.
                self.counts.note_damage(at);
            }
            self.extend_run(at, next, bytes, false);
            return false;
        }
        let kind = match (self.special_chunks.kind_of(at), candidate) {
            (None, Some(candidate)) if self.reserve_candidate() => {
                self.candidates.push(candidate);
                Some(ChunkKind::Fastbin)
            }
            (kind, _) => kind,
        };
        if kind == Some(ChunkKind::Fastbin) {
            self.extend_run(at, next, bytes, true);
            return false;
        }
        self.close_run(at);
        self.claim_used(next, bytes, kind)
    }

    /// Returns the chunk as a member of a fastbin, if its size and its link allow it.
    #[inline]
    fn fastbin_candidate(&mut self, at: u64, bytes: u64) -> Option<Candidate> {
        let FastbinMode::Guess { targets, links, .. } = self.fastbin_mode else { return None };
        if !targets.may_hold(bytes) {
            return None;
        }
        let link = self.window.pair(at + layout::CHUNK_FORWARD).0;
        targets.candidate(at, link, links)
    }

    /// Reserves memory for a candidate; false once the budget is used up.
    fn reserve_candidate(&mut self) -> bool {
        match self.fastbin_mode {
            FastbinMode::Guess { budget, .. } => budget.grow(&mut self.candidates),
            FastbinMode::Known => false,
        }
    }

    /// Claims a chunk that looks in use and ends at `next`; true if it is in use.
    fn claim_used(&mut self, next: u64, bytes: u64, kind: Option<ChunkKind>) -> bool {
        self.at = next;
        // If the top of a heap was too small to be freed, one chunk of it and the fencepost remain
        // (arena.c's sizes, malloc.c, sysmalloc: "Setup fencepost and free the old top chunk").
        // That chunk is not a block.
        let bytes_after = self.region.end.saturating_sub(next);
        let is_old_top = bytes_after == layout::FENCEPOST_BYTES && self.region.kind == RegionKind::Heap;
        let kind = if is_old_top { Some(ChunkKind::Metadata) } else { kind };
        match kind {
            Some(ChunkKind::ThreadCache) => {
                self.counts.cached_bytes += bytes;
                self.accumulator.claim_to(next, Class::Cached);
            }
            Some(ChunkKind::Metadata) => self.accumulator.claim_to(next, Class::Metadata),
            Some(ChunkKind::Fastbin) | None => self.claim_live(next, bytes),
        }
        kind != Some(ChunkKind::ThreadCache)
    }

    /// Claims the chunk in use that ends at `next`.
    #[inline]
    fn claim_live(&mut self, next: u64, bytes: u64) {
        let usable_bytes = bytes - layout::SIZE_WORD_BYTES;
        self.counts.payload_bytes += usable_bytes;
        self.counts.blocks += 1;
        // The last word of a block in use is in the header of the next chunk (malloc.c, chunk2mem).
        // The walk counts that word with the next chunk, so other claims must end before it.
        let block = Block {
            pointer: next - bytes + layout::CHUNK_HEADER_BYTES,
            bytes: usable_bytes,
            header_bytes: layout::SIZE_WORD_BYTES,
        };
        self.blocks.claim_block(block, next, &mut self.accumulator);
    }

    /// Adds a free chunk to the free run, or begins one with it.
    fn extend_run(&mut self, at: u64, next: u64, bytes: u64, is_in_fastbin: bool) {
        let new_run = FreeRun { start: at, has_fastbin_chunk: false, starts_in_bin: !is_in_fastbin };
        self.free_run.get_or_insert(new_run).has_fastbin_chunk |= is_in_fastbin;
        let (chunk_count, chunk_bytes) = if is_in_fastbin {
            (&mut self.counts.fast_chunks, &mut self.counts.fast_bytes)
        } else {
            (&mut self.counts.bin_chunks, &mut self.counts.bin_bytes)
        };
        *chunk_count += 1;
        *chunk_bytes += bytes;
        self.at = next;
    }

    /// Ends the free run at `end` and claims it, with what `malloc_trim(0)` releases of it: after
    /// consolidation, the whole pages after the merged chunk's own header (malloc.c, mtrim).
    ///
    /// Consolidation clears fd_nextsize of the merged chunk. If that word is on an untouched page,
    /// the trim brings one page in: it is counted, so that the prediction holds.
    fn close_run(&mut self, end: u64) {
        let Some(run) = self.free_run.take() else { return };
        let trim_start = page_up(run.start + layout::CHUNK_STRUCT_BYTES);
        // One madvise for the run: the kernel stops at the first locked mapping in it.
        let trim_end = self.first_locked(trim_start).min(page_of(end));
        if trim_start >= trim_end {
            self.accumulator.claim_free(end, 0, 0);
            return;
        }
        if end - run.start >= layout::DEFAULT_THRESHOLD_BYTES {
            self.counts.add_large_run(self.window.pages().runs_in(trim_start, trim_end));
        }
        let cleared_word = run.start + layout::CHUNK_NEXT_SIZE;
        if run.has_fastbin_chunk
            && run.starts_in_bin
            && cleared_word.is_multiple_of(PAGE_BYTES)
            && !self.window.pages().is_resident(cleared_word)
        {
            self.counts.touched_pages += 1;
        }
        self.accumulator.claim_free(end, trim_start, trim_end);
    }

    /// Returns the first locked byte at or after `address`.
    fn first_locked(&self, address: u64) -> u64 {
        let index = self.region.locked.partition_point(|range| range.end <= address);
        self.region.locked.get(index).map_or(u64::MAX, |range| range.start.max(address))
    }

    /// Claims the top chunk and the free run before it, which consolidation merges into it. The
    /// main arena's top is released by lowering the break, as far as malloc.c's systrim does.
    fn claim_top(&mut self, top: Top) {
        let end = top.address.saturating_add(top.bytes).min(self.region.end);
        self.window.advance(end - 1);
        let start = self.free_run.take().map_or(top.address, |run| run.start);
        let usable_bytes = (end - start).saturating_sub(layout::MIN_CHUNK_BYTES + 1);
        let released_bytes = usable_bytes - usable_bytes % self.region.trim_unit_bytes.max(PAGE_BYTES);
        if self.region.is_main && self.region.is_break_at_top && released_bytes > 0 {
            self.accumulator.claim_free(end, end - released_bytes, end);
        } else {
            self.accumulator.claim_free(end, 0, 0);
        }
        let is_trimmable = !self.region.is_main || self.region.is_break_at_top;
        // Fastbin chunks before the top merge into it only when a large chunk is freed.
        let kept_bytes = layout::MIN_CHUNK_BYTES + 1 + layout::DEFAULT_THRESHOLD_BYTES;
        let excess_bytes = (end - top.address).saturating_sub(kept_bytes);
        if is_trimmable && excess_bytes >= PAGE_BYTES {
            let runs = self.window.pages().runs_in(end - excess_bytes / PAGE_BYTES * PAGE_BYTES, end);
            self.counts.add_over_threshold(runs);
        }
        self.counts.top_bytes += end - top.address;
        // The top always reaches to the end of its heap.
        if top.bytes < layout::MIN_CHUNK_BYTES
            || (self.region.kind == RegionKind::Heap && end != self.region.end)
        {
            self.counts.note_damage(top.address);
        }
        self.start_section(end);
    }

    /// Handles a chunk too small to be one: the end of a section, or damage.
    fn claim_fencepost(&mut self, at: u64, head: u64) {
        let end = if self.region.kind == RegionKind::Heap {
            self.heap_end(at, head)
        } else {
            self.fenceposts_end(at, head)
        };
        let Some(end) = end else {
            self.take_damage(at);
            return;
        };
        self.close_run(at);
        self.accumulator.claim_to(end, Class::Metadata);
        self.start_section(end);
    }

    /// Returns the end of the heap of a secondary arena if its fenceposts begin at `at`: one of 16
    /// bytes and one of 0 bytes, or the latter alone.
    fn heap_end(&self, at: u64, head: u64) -> Option<u64> {
        let (remaining, bytes) = (self.region.end - at, head & !layout::SIZE_BITS);
        let is_end = matches!((remaining, bytes), (32, layout::FENCEPOST_BYTES) | (16, 0));
        is_end.then_some(self.region.end)
    }

    /// Returns the end of the fenceposts at `at`, which malloc makes of the old top when the main
    /// arena continues elsewhere: two of 16 bytes, or three if the top had `MINSIZE` and 16 bytes;
    /// the first one is then a remainder too small to be freed (malloc.c, sysmalloc: "Shrink
    /// old_top to insert fenceposts"). The old top ended on a page boundary, which distinguishes a
    /// third fencepost from foreign data after two.
    fn fenceposts_end(&mut self, at: u64, head: u64) -> Option<u64> {
        let second_fencepost = at + layout::FENCEPOST_BYTES;
        let third_fencepost = second_fencepost + layout::FENCEPOST_BYTES;
        let is_pair = head & !layout::NON_MAIN_ARENA & !layout::PREV_INUSE == layout::FENCEPOST_BYTES
            && self.region.end - at >= 2 * layout::FENCEPOST_BYTES
            && self.window.pair(second_fencepost).1 == FENCEPOST_HEAD;
        let end_of_three = third_fencepost + layout::FENCEPOST_BYTES;
        let is_third = |walker: &mut Self| {
            end_of_three.is_multiple_of(PAGE_BYTES)
                && end_of_three <= walker.region.end
                && walker.window.pair(third_fencepost).1 == FENCEPOST_HEAD
        };
        is_pair.then(|| if is_third(self) { end_of_three } else { third_fencepost })
    }

    /// Handles the end of a section at `from`: the next one starts there or after foreign bytes.
    fn start_section(&mut self, from: u64) {
        self.at = from;
        if from >= self.region.end {
            self.is_done = true;
            return;
        }
        let step = if self.region.kind == RegionKind::Pieces { PAGE_BYTES } else { layout::ALIGNMENT };
        let mut from = from;
        let mut next_section = self.seek(from, step);
        loop {
            if self.has_given_up {
                self.is_done = true;
                return;
            }
            if self.window.is_late() {
                return self.leave_unread(self.region.end);
            }
            let until = next_section.unwrap_or(self.region.end);
            if let Some(block) = self.mmapped_before(from, until) {
                self.skip(block.start, Class::Foreign);
                self.window.advance(block.end - 1);
                self.claim_mmapped(block);
                self.counts.mmapped_chunks += 1;
                self.counts.mmapped_bytes += block.end - block.start;
                from = block.end;
                self.at = from;
                if from < self.region.end {
                    // The next section stays the same, unless the chunk covers it.
                    if next_section.is_some_and(|start| start < from) {
                        next_section = self.seek(from, step);
                    }
                    continue;
                }
                self.is_done = true;
                return;
            }
            if next_section.is_none() {
                self.counts.trailing_bytes += until.saturating_sub(self.accumulator.cursor());
            }
            self.skip(until, Class::Foreign);
            self.at = until;
            self.is_done = next_section.is_none();
            return;
        }
    }

    /// Claims a chunk with its own mapping.
    fn claim_mmapped(&mut self, block: MappedBlock) {
        let MappedBlock { pointer, usable_end, end, .. } = block;
        let usable_bytes = usable_end.saturating_sub(pointer);
        self.counts.blocks += 1;
        self.counts.payload_bytes += usable_bytes;
        let finder = self.blocks.finder.as_mut();
        let nested = finder.map(|finder| finder.nested(pointer, usable_end)).unwrap_or_default();
        self.blocks.matched.nested.extend_from_slice(nested);
        for range in nested {
            self.accumulator.claim_to(range.start, Class::Mmapped);
            self.accumulator.skip_to(range.end);
        }
        if nested.is_empty() {
            self.blocks.matched.push_block(pointer, usable_bytes);
            let finder = self.blocks.finder.as_mut();
            if let Some(refined) = finder.and_then(|finder| finder.find(pointer, usable_bytes)) {
                self.blocks.matched.count(pointer, &refined);
                self.accumulator.claim_to(pointer, Class::Mmapped);
                self.accumulator.claim_to(pointer + refined.bytes, Class::Refined(refined.slot));
            }
        }
        self.accumulator.claim_to(end, Class::Mmapped);
    }

    /// Returns the first chunk with its own mapping, which may be between pieces, in `from..until`.
    /// Those that it misses after [`MAX_FAR_READS`] are missing in the count of `mmapped`.
    fn mmapped_before(&mut self, from: u64, until: u64) -> Option<MappedBlock> {
        if self.region.kind != RegionKind::Pieces {
            return None;
        }
        let runs = self.window.pages().runs_in(page_up(from), until);
        for page in runs.flat_map(|run| run.pages()) {
            if self.far_reads >= MAX_FAR_READS {
                return None;
            }
            let Some(PeekedPair { pair, is_far }) = self.window.peek(page) else { continue };
            self.far_reads += u32::from(is_far);
            let (window, far_reads) = (&self.window, &mut self.far_reads);
            let read = |address| {
                let PeekedPair { pair, is_far } = window.peek(address)?;
                *far_reads += u32::from(is_far);
                Some(pair.into())
            };
            if let Some(block) = chunk_at(pair.into(), page, self.region.end, read) {
                return Some(block);
            }
        }
        None
    }

    /// Claims the bytes up to `until` as foreign or unread.
    fn skip(&mut self, until: u64, class: Class) {
        self.window.advance(until.saturating_sub(1));
        let bytes = until.saturating_sub(self.accumulator.cursor());
        match class {
            Class::Foreign => self.counts.foreign_bytes += bytes,
            _ => self.counts.unread_bytes += bytes,
        }
        self.accumulator.claim_to(until, class);
    }

    /// Handles an inconsistent chunk at `at`: continues where the chain is consistent again.
    fn take_damage(&mut self, at: u64) {
        self.close_run(at);
        self.counts.note_damage(at);
        let next_chunk = self.seek(at + layout::ALIGNMENT, layout::ALIGNMENT);
        if self.has_given_up {
            self.is_done = true;
            return;
        }
        if self.window.is_late() {
            return self.leave_unread(self.region.end);
        }
        let until = next_chunk.unwrap_or(self.region.end);
        self.skip(until, Class::Unread);
        self.at = until;
        self.is_done = next_chunk.is_none();
    }
}
