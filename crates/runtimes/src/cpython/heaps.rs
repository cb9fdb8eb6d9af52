//! Heaps of builds without a global lock: their pages, and the kind of each.
//!
//! These builds have no arenas. They use a copy of mimalloc in which each thread has one heap per
//! kind of object, and each page has the tag of its heap (`pycore_mimalloc.h`): every block in use
//! in a page of objects is an object. Segments hold their own address, XORed with a key that is in
//! static data (`_mi_ptr_cookie`). mimalloc's reader accounts for the memory; this module only
//! finds the objects.

use std::collections::HashMap;
use std::time::Instant;

use super::layout::{
    Field, HEAP_NAMES, HEAPS, HeapLayout, PAGE_CAPACITY, PAGE_FREE, PAGE_RESERVED, SEGMENT_BYTES,
    SLICE_BYTES, TAG_MASK, blocks_offset,
};
use super::locate::Program;
use strandline_claims::doubts::ReadProblems;
use strandline_claims::range::PAGE_BYTES;
use strandline_claims::runtime::Context;
use strandline_claims::words::{each_word_until, is_mapped_memory};
use strandline_process::memory::{Memory, half_word_at, word_at};
use strandline_process::range::AddressRange;

/// Limit on candidates: at most two for each segment of 32 MiB, so at least 4 TiB.
const MAX_CANDIDATES: usize = 1 << 18;
/// Bytes read to recognise a segment: up to its first page structure.
const HEAD_BYTES: usize = 304;
/// Limit on a segment's entries for slices. One with a single block has more slices than entries.
const MAX_ENTRIES: u64 = SEGMENT_BYTES / SLICE_BYTES + 1;
/// Upper bound on the slices of a segment; one with a single block may have many.
const MAX_SLICES: u64 = 1 << 31;
/// Bits of `xthread_free` that are a state.
const THREAD_FREE_STATE: u64 = 3;
/// Limit on slices of a segment's own structures.
const MAX_INFO_SLICES: u64 = 16;
/// Blocks from this size on are as large as their page.
const HUGE_BLOCK_BYTES: u64 = 2 << 30;

/// A page: blocks of one size, in one heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// First byte of its memory.
    pub start: u64,
    /// End address (exclusive).
    pub end: u64,
    /// Address of its first block.
    pub first_block: u64,
    /// Bytes per block.
    pub block_bytes: u64,
    /// Blocks created so far.
    pub capacity_blocks: u64,
    /// Blocks in use, including those that other threads freed.
    pub used_blocks: u64,
    /// First blocks of its free lists.
    pub free_lists: FreeLists,
    /// Index of its heap in [`HEAP_NAMES`].
    pub heap: usize,
}

/// Addresses of the first blocks of a page's free lists; 0, as in the page, if a list is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeLists {
    /// `free`: blocks to allocate next.
    pub next: u64,
    /// `local_free`: blocks that the owning thread freed.
    pub local: u64,
    /// `xthread_free`: blocks that other threads freed.
    pub thread: u64,
}

impl Page {
    /// Whether the page contains only objects.
    pub fn has_objects(&self) -> bool {
        self.heap > 0
    }
}

/// The pages of all heaps, in address order.
#[derive(Debug, Default)]
pub struct Heaps {
    pub pages: Vec<Page>,
    /// Damaged segments, and whether the deadline passed.
    pub doubts: ReadProblems,
    /// Whether more segments may exist than are examined: their objects are not found.
    pub is_cut: bool,
}

/// Finds the pages of all heaps of `program`.
pub fn find(context: &Context<'_>, memory: &dyn Memory, program: &Program) -> Heaps {
    let candidates = candidates(context, memory);
    let mut heaps = Heaps { is_cut: candidates.len() >= MAX_CANDIDATES, ..Heaps::default() };
    let mut segments_by_key: HashMap<u64, usize> = HashMap::new();
    for candidate in &candidates {
        *segments_by_key.entry(candidate.key).or_default() += 1;
    }
    // Of the keys that are in static data, the one with the most segments wins, among equals the
    // highest: the true key is random, and those computed with the wrong layout are small.
    let mut best_key = None;
    each_word_until(memory, context.resident_runs(program.data), context.deadline, &mut |_, word| {
        if let Some(&segments) = segments_by_key.get(&word) {
            best_key = best_key.max(Some(FoundKey { segments, key: word }));
        }
        true
    });
    let Some(FoundKey { key, .. }) = best_key else {
        if Instant::now() >= context.deadline {
            heaps.doubts.note_timeout(program.runtime);
        }
        return heaps;
    };
    let mut previous_end = 0;
    for candidate in candidates.iter().filter(|candidate| candidate.key == key) {
        if Instant::now() >= context.deadline {
            heaps.doubts.note_timeout(candidate.start);
            break;
        }
        if candidate.start >= previous_end {
            previous_end = add_segment(context, memory, candidate, &mut heaps);
        }
    }
    heaps
}

/// A key in static data. The order is that in which keys are preferred.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct FoundKey {
    /// Number of the segments with it.
    segments: usize,
    key: u64,
}

/// A possible segment.
struct Candidate {
    start: u64,
    layout: &'static HeapLayout,
    /// Key that its address would be XORed with.
    key: u64,
}

/// Returns the possible segments in resident memory, in address order.
fn candidates(context: &Context<'_>, memory: &dyn Memory) -> Vec<Candidate> {
    let mut candidates = Vec::new();
    for mapping in context.space.mappings().iter().filter(|mapping| is_mapped_memory(mapping)) {
        for run in context.resident_runs(mapping.range()) {
            let mut at = run.start.next_multiple_of(SEGMENT_BYTES);
            while at < run.end && candidates.len() < MAX_CANDIDATES && Instant::now() < context.deadline {
                let mut bytes = [0; HEAD_BYTES];
                if memory.read(at, &mut bytes).is_ok() {
                    let is_match = |layout: &&HeapLayout| may_be_segment(layout, &bytes);
                    candidates.extend(HEAPS.iter().filter(is_match).filter_map(|layout| {
                        let key = word_at(&bytes, layout.cookie)? ^ at;
                        (key != 0).then_some(Candidate { start: at, layout, key })
                    }));
                }
                let Some(next) = at.checked_add(SEGMENT_BYTES) else { break };
                at = next;
            }
        }
    }
    candidates
}

/// Whether the first bytes could be those of a segment.
fn may_be_segment(layout: &HeapLayout, bytes: &[u8]) -> bool {
    let word = |at: usize| word_at(bytes, at).unwrap_or(u64::MAX);
    let own_slices = word(layout.info_slice_count);
    half_word_at(bytes, layout.segment_kind).is_some_and(|kind| kind <= 1)
        && (1..=MAX_ENTRIES).contains(&word(layout.entry_count))
        && (1..MAX_SLICES).contains(&word(layout.slice_count))
        && (1..=MAX_INFO_SLICES).contains(&own_slices)
        // The first slices hold the segment's own structures.
        && half_word_at(bytes, layout.page_structures).map(u64::from) == Some(own_slices)
}

/// Adds the pages of a segment; returns its end.
fn add_segment(context: &Context<'_>, memory: &dyn Memory, segment: &Candidate, heaps: &mut Heaps) -> u64 {
    let layout = segment.layout;
    let bytes = read_structures(context, memory, segment);
    // `bytes` contains all fields.
    let word = |at: usize| word_at(&bytes, at).unwrap_or(0);
    let end = segment.start.saturating_add(word(layout.slice_count).saturating_mul(SLICE_BYTES));
    if word(layout.thread_id) == 0 && word(layout.used_pages) == 0 {
        // A freed segment still holds its old size.
        return segment.start + 1;
    }
    let is_huge = word(layout.segment_kind) as u32 == 1;
    let pages_before = heaps.pages.len();
    let mut index = word(layout.info_slice_count);
    while index < word(layout.entry_count).min(MAX_ENTRIES) {
        let start = segment.start.saturating_add(index * SLICE_BYTES);
        let at = layout.page_structures + index as usize * layout.structure_bytes;
        let Some(structure) = bytes.get(at..at + layout.structure_bytes) else { break };
        let count = half_word_at(structure, 0).map_or(0, u64::from);
        let page_end = if is_huge { end } else { start.saturating_add(count * SLICE_BYTES) };
        if page_end <= start || page_end > end {
            heaps.doubts.note_damage(start, 0);
            return end.max(segment.start + 1);
        }
        heaps.pages.extend(parse_page(layout, structure, start, page_end));
        index = (page_end - segment.start) / SLICE_BYTES;
    }
    let page_count = (heaps.pages.len() - pages_before) as u64;
    // A page that is being freed may still be counted.
    if page_count > word(layout.used_pages) || page_count + 1 < word(layout.used_pages) {
        heaps.doubts.note_damage(segment.start, 0);
    }
    end.max(segment.start + 1)
}

/// Reads a segment's own structures; zeros where nothing was ever written.
fn read_structures(context: &Context<'_>, memory: &dyn Memory, segment: &Candidate) -> Vec<u8> {
    let max_bytes = (segment.layout.page_structures as u64)
        .saturating_add(MAX_ENTRIES * segment.layout.structure_bytes as u64)
        .next_multiple_of(PAGE_BYTES);
    let mut bytes = vec![0; max_bytes as usize];
    for run in context.resident_runs(AddressRange::sized(segment.start, max_bytes)) {
        let range = (run.start - segment.start) as usize..(run.end - segment.start) as usize;
        if let Some(piece) = bytes.get_mut(range) {
            memory.read_some(run.start, piece);
        }
    }
    bytes
}

/// Returns the page at `start..end` that a structure describes; `None` if it is not the first
/// structure of a page, or is invalid: then the segment's count of pages shows that one is missing.
fn parse_page(layout: &HeapLayout, structure: &[u8], start: u64, end: u64) -> Option<Page> {
    let word_32 = |at: usize| half_word_at(structure, at).map(u64::from);
    let word_16 = |at: usize| word_32(at).map(|word| word & 0xffff);
    let number = |field: Field| match field.bits {
        16 => word_16(field.offset),
        32 => word_32(field.offset),
        _ => word_at(structure, field.offset),
    };
    // Slices that do not start a page have 0 or 1 here.
    let stated_bytes = number(layout.block_bytes).filter(|&stated_bytes| stated_bytes > 1)?;
    let block_bytes =
        if stated_bytes >= HUGE_BLOCK_BYTES { end - start } else { stated_bytes.min(end - start) };
    let first_block = match layout.blocks_start {
        Some(at) => word_at(structure, at)?,
        None => start + blocks_offset(stated_bytes),
    };
    let heap = usize::from(structure.get(layout.tag)? >> layout.tag_shift & TAG_MASK);
    let capacity_blocks = word_16(PAGE_CAPACITY)?;
    let blocks_end = first_block.checked_add(capacity_blocks.checked_mul(block_bytes)?)?;
    // A block with a large alignment starts later and may end behind the page.
    let is_whole = blocks_end <= end || word_16(PAGE_RESERVED)? == 1;
    let used_blocks = number(layout.page_used)?;
    let is_valid = is_whole
        && (start..end).contains(&first_block)
        && used_blocks <= capacity_blocks
        && heap < HEAP_NAMES.len();
    is_valid.then_some(Page {
        start,
        end,
        first_block,
        block_bytes,
        capacity_blocks,
        used_blocks,
        free_lists: FreeLists {
            next: word_at(structure, PAGE_FREE)?,
            local: word_at(structure, layout.local_free)?,
            thread: word_at(structure, layout.thread_free)? & !THREAD_FREE_STATE,
        },
        heap,
    })
}
