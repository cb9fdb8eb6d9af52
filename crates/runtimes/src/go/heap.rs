//! Finds the structure of the heap (`runtime.mheap_`) and reads all spans.
//!
//! Stripped programs have no symbol for it. Two slices in it, at offsets known for each version,
//! identify it: the address ranges of the heap, and the pointers to all spans. The first spans must
//! be in these ranges.

use super::claims;
use super::layout::{
    ARENA_BASE, CHUNK_BYTES, CHUNK_DATA_BYTES, CHUNK_ENTRIES, Layout, MAX_OBJECTS, PAGE_ALLOC_CHUNKS,
    PAGE_ALLOC_RANGES, RUNTIME_PAGE_BYTES, SPAN_BYTES, SPAN_DEAD, SPAN_IN_USE, SPAN_MANUAL, SPAN_PAGES,
    SPAN_START,
};
use super::locate::Program;
use crate::batch::PageCache;
use crate::work;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use strandline_claims::doubts::ReadProblems;
use strandline_claims::runtime::Context;
use strandline_claims::words::{self, READ_BYTES, each_word};
use strandline_process::memory::{Memory, half_word_at, word_at, words_in};
use strandline_process::pages::USER_ADDRESS_END;
use strandline_process::range::AddressRange;

/// Limit on address ranges of one heap.
const MAX_RANGES: u64 = 1 << 12;
/// Limit on spans of one heap: 128 GiB of the smallest.
const MAX_SPANS: u64 = 1 << 24;
/// Spans checked to recognise a heap.
const MAX_CHECKED_SPANS: u64 = 16;
/// Steps between two checks of the deadline; a word of static data is one step.
const STEPS_PER_DEADLINE_CHECK: u64 = 1 << 16;
/// Steps that a word counts as that may be the address of the table of spans.
const STEPS_PER_CANDIDATE: u64 = 1 << 10;
/// Limit on the pages of structures that a worker lists: 4 GiB.
const MAX_STRUCTURE_PAGES: usize = 1 << 20;
/// Spans that a worker reads at a time.
const SPANS_PER_JOB: usize = 4096;

/// The heap of a runtime.
#[derive(Clone, Debug)]
pub struct Heap {
    /// Address of `mheap_`.
    pub address: u64,
    /// Address ranges of the heap, in order.
    pub ranges: Vec<AddressRange>,
    /// Pointers to all spans, in use or not (`mheap_.allspans`).
    pub span_table: Slice,
}

/// A slice of Go.
#[derive(Clone, Copy, Debug)]
pub struct Slice {
    /// Address of the first element.
    pub address: u64,
    /// Number of elements.
    pub length: u64,
    /// Number of elements that fit.
    pub capacity: u64,
}

impl Slice {
    /// Its addresses, up to its capacity, if its elements are words.
    pub fn range(self) -> AddressRange {
        AddressRange::sized(self.address, 8 * self.capacity)
    }
}

/// The bitmaps of a chunk, one bit for each page (`pallocData`).
pub struct ChunkBits {
    /// Pages in use or in a processor's cache.
    pub used_pages: [u64; 8],
    /// Pages released to the kernel (`scavenged`).
    pub released_pages: [u64; 8],
}

/// What a span holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    Objects,
    /// Stacks and other memory that the runtime manages by hand (`mSpanManual`).
    Manual,
}

/// A span in use.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// First byte.
    pub start: u64,
    /// End address (exclusive).
    pub end: u64,
    /// What the span holds.
    pub kind: SpanKind,
    /// Bytes per object.
    pub object_bytes: u64,
    pub object_capacity: u64,
    /// Objects in use (`allocCount`), including those not swept yet.
    pub used_objects: u64,
    /// All objects before this index are in use, or were when the index last moved.
    pub free_index: u64,
    /// Address of the bitmap of objects in use, one bit each.
    pub bitmap_address: u64,
}

/// A runtime whose heap was found and whose spans were read.
#[derive(Clone, Copy)]
pub struct Instance<'a> {
    /// The file that holds it.
    pub program: &'a Program,
    /// The layout of its version.
    pub layout: &'static Layout,
    pub heap: &'a Heap,
    /// The spans of the heap.
    pub spans: &'a Spans,
}

/// All spans in use.
#[derive(Debug, Default)]
pub struct Spans {
    /// The spans, in address order.
    pub by_address: Vec<Span>,
    /// Addresses of the pages with span structures and their bitmaps, in order.
    pub structure_pages: Vec<u64>,
    /// Whether some of these pages are left out.
    pub has_left_out_structures: bool,
    /// Spans that were not valid or could not be read, and whether the deadline passed.
    pub doubts: ReadProblems,
}

/// Finds the heap of a runtime by its symbol, or else in static data until the deadline.
pub fn find(context: &Context<'_>, memory: &dyn Memory, program: &Program, layout: &Layout) -> Option<Heap> {
    let mut pages = PageCache::new(memory);
    if let Some(address) = program.symbols.heap {
        return heap_at(context, &mut pages, address, layout);
    }
    let (mut heap, mut steps) = (None, 0_u64);
    each_word(memory, context.resident, program.data, READ_BYTES, &mut |at, word| {
        steps += 1;
        if word.is_multiple_of(8) && context.space.find(word).is_some_and(words::is_mapped_memory) {
            steps += STEPS_PER_CANDIDATE;
            let address = at.wrapping_sub(layout.all_spans);
            let is_within = address >= program.data.start && address < at;
            heap = if is_within { heap_at(context, &mut pages, address, layout) } else { None };
        }
        let is_check_due = steps >= STEPS_PER_DEADLINE_CHECK;
        if is_check_due {
            steps = 0;
        }
        heap.is_none() && (!is_check_due || Instant::now() < context.deadline)
    });
    heap
}

/// Returns the heap whose structure is at `address`; `None` if the structure there is not one.
fn heap_at(context: &Context<'_>, pages: &mut PageCache<'_>, address: u64, layout: &Layout) -> Option<Heap> {
    let slice = |pages: &mut PageCache<'_>, at: u64| {
        let (length, capacity) = pages.pair(at.checked_add(8)?)?;
        Some(Slice { address: pages.word(at)?, length, capacity })
    };
    let span_table = slice(pages, address.checked_add(layout.all_spans)?)?;
    let ranges = slice(pages, address.checked_add(layout.page_alloc)?.checked_add(PAGE_ALLOC_RANGES)?)?;
    let Slice { address: spans, length, capacity } = span_table;
    if length == 0 || length > capacity || capacity > MAX_SPANS {
        return None;
    }
    if !words::is_process_memory(context.space, spans, spans.checked_add(8 * capacity)?) {
        return None;
    }
    let ranges = heap_ranges(context, pages, ranges.address, ranges.length)?;
    let heap = Heap { address, ranges, span_table };
    let start_of = |index: u64| {
        let span = pages.word(spans + 8 * index)?;
        pages.word(span.checked_add(SPAN_START as u64)?)
    };
    let starts: Vec<u64> = (0..length.min(MAX_CHECKED_SPANS)).filter_map(start_of).collect();
    let is_in_heap = |&start: &u64| start.checked_add(1).is_some_and(|end| heap.contains(start, end));
    let is_heap = !starts.is_empty() && starts.iter().all(is_in_heap);
    is_heap.then_some(heap)
}

/// Reads `count` address ranges of a heap from the array at `array`; `None` if they cannot be those
/// of one.
fn heap_ranges(
    context: &Context<'_>,
    pages: &mut PageCache<'_>,
    array: u64,
    count: u64,
) -> Option<Vec<AddressRange>> {
    if count == 0 || count > MAX_RANGES {
        return None;
    }
    let mut ranges: Vec<AddressRange> = Vec::new();
    for index in 0..count {
        let (start, end) = pages.pair(array.checked_add(16 * index)?)?;
        let is_valid = start < end
            && end <= USER_ADDRESS_END
            && start.is_multiple_of(CHUNK_BYTES)
            && end.is_multiple_of(CHUNK_BYTES)
            && ranges.last().is_none_or(|last| last.end <= start)
            && words::is_process_memory(context.space, start, end);
        if !is_valid {
            return None;
        }
        ranges.push(AddressRange { start, end });
    }
    Some(ranges)
}

impl Heap {
    /// Whether `start..end` is within one of the heap's ranges.
    pub fn contains(&self, start: u64, end: u64) -> bool {
        let next = self.ranges.partition_point(|range| range.end <= start);
        self.ranges.get(next).is_some_and(|range| range.covers(AddressRange { start, end }))
    }

    /// Reads the bitmaps of the chunk at address `chunk`; `None` if they cannot be read.
    pub fn chunk_bits(&self, pages: &mut PageCache<'_>, layout: &Layout, chunk: u64) -> Option<ChunkBits> {
        let chunks = self.address.checked_add(layout.page_alloc)?.checked_add(PAGE_ALLOC_CHUNKS)?;
        let number = chunk.wrapping_sub(ARENA_BASE) / CHUNK_BYTES;
        let table = pages.word(chunks.checked_add(8 * (number / CHUNK_ENTRIES))?)?;
        let at = table.checked_add(CHUNK_DATA_BYTES * (number % CHUNK_ENTRIES))?;
        let bytes: [u8; CHUNK_DATA_BYTES as usize] = pages.array(at)?;
        let words =
            |first: usize| std::array::from_fn(|index| word_at(&bytes, first + 8 * index).unwrap_or(0));
        Some(ChunkBits { used_pages: words(0), released_pages: words(64) })
    }

    /// Bytes of address space of the heap.
    pub fn bytes(&self) -> u64 {
        self.ranges.iter().map(|range| range.len()).sum()
    }

    /// Reads all spans.
    pub fn read_spans(&self, context: &Context<'_>, memory: &dyn Memory, layout: &Layout) -> Spans {
        let Slice { address: table, length, .. } = self.span_table;
        let may_be_swapped = context.may_be_swapped();
        let remaining_spans = AtomicU64::new(max_spans(context, self));
        let reader = SpanReader { heap: self, context, layout, may_be_swapped, remaining_spans };
        let jobs = (length as usize).div_ceil(SPANS_PER_JOB);
        let worker = || SpanWorker { pages: PageCache::new(memory), spans: Spans::default() };
        let job = |SpanWorker { pages, spans }: &mut SpanWorker<'_>, number: usize| {
            let first = (number * SPANS_PER_JOB) as u64;
            let mut pointers = vec![0; SPANS_PER_JOB.min((length - first) as usize) * 8];
            let read_bytes = memory.read_some(table + 8 * first, &mut pointers);
            words_in(&pointers[..read_bytes]).for_each(|pointer| reader.read_span(pages, pointer, spans));
            if read_bytes < pointers.len() {
                spans.note_damage(table + 8 * first + read_bytes as u64);
            }
        };
        let (workers, unfinished_jobs) = work::run_jobs(context.workers, jobs, context.deadline, worker, job);
        let mut spans = Spans::default();
        if unfinished_jobs > 0 {
            spans.doubts.note_timeout(table);
        }
        for SpanWorker { spans: read, .. } in workers {
            spans.by_address.extend(read.by_address);
            spans.structure_pages.extend(read.structure_pages);
            spans.has_left_out_structures |= read.has_left_out_structures;
            spans.doubts.add(&read.doubts);
        }
        spans.structure_pages.sort_unstable();
        spans.structure_pages.dedup();
        spans.by_address.sort_unstable_by_key(|span| span.start);
        let doubts = &mut spans.doubts;
        drop_overlapping(&mut spans.by_address, &mut |span| doubts.note_damage(span.start, 0));
        spans
    }
}

/// Upper bound on the spans of a heap: each has at least one page, and a structure in resident
/// memory.
fn max_spans(context: &Context<'_>, heap: &Heap) -> u64 {
    let mappings = context.space.mappings().iter();
    let resident_bytes: u64 = mappings.map(|mapping| context.resident_bytes(mapping.range())).sum();
    (resident_bytes / SPAN_BYTES as u64).min(heap.bytes() / RUNTIME_PAGE_BYTES)
}

/// Drops spans that overlap: neither of the two is trusted. `spans` is in address order.
fn drop_overlapping(spans: &mut Vec<Span>, on_drop: &mut dyn FnMut(&Span)) {
    let mut previous_end = 0;
    let next_starts: Vec<u64> = spans.iter().skip(1).map(|span| span.start).collect();
    let mut next_starts = next_starts.into_iter();
    spans.retain(|span| {
        let next_start = next_starts.next();
        let is_apart = previous_end <= span.start && next_start.is_none_or(|next| span.end <= next);
        previous_end = previous_end.max(span.end);
        if !is_apart {
            on_drop(span);
        }
        is_apart
    });
}

/// A worker, and the spans that it read.
struct SpanWorker<'a> {
    pages: PageCache<'a>,
    spans: Spans,
}

/// What the workers need to read spans.
struct SpanReader<'a> {
    heap: &'a Heap,
    context: &'a Context<'a>,
    layout: &'a Layout,
    may_be_swapped: bool,
    /// Number of further spans that the heap may have.
    remaining_spans: AtomicU64,
}

/// What a span structure states.
enum ParsedSpan {
    /// The span is not in use.
    Unused,
    InUse {
        span: Span,
        /// Address of its bitmap of marked objects.
        mark_bits: u64,
    },
    /// The fields contradict each other or the heap.
    Invalid,
}

impl SpanReader<'_> {
    /// Reads the span structure at `at` and adds it to `spans` if the span is in use.
    fn read_span(&self, pages: &mut PageCache<'_>, at: u64, spans: &mut Spans) {
        let Some(bytes) = pages.array::<SPAN_BYTES>(at) else {
            // The runtime allocates span structures in batches and writes to each on its first use:
            // the span of one that was never written is not in use.
            if self.may_be_swapped || !words::is_process_memory(self.context.space, at, at.saturating_add(1))
            {
                spans.note_damage(at);
            }
            return;
        };
        spans.add_structure(at);
        match self.parse(&bytes) {
            ParsedSpan::Unused => {}
            ParsedSpan::Invalid => spans.note_damage(at),
            ParsedSpan::InUse { span, mark_bits } => {
                spans.add_structure(span.bitmap_address);
                spans.add_structure(mark_bits);
                let take_one = |remaining_spans: u64| remaining_spans.checked_sub(1);
                match self.remaining_spans.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take_one) {
                    Ok(_) => spans.by_address.push(span),
                    Err(_) => spans.note_damage(at),
                }
            }
        }
    }

    /// Checks the fields of a span structure.
    fn parse(&self, bytes: &[u8; SPAN_BYTES]) -> ParsedSpan {
        let layout = self.layout;
        // All offsets are within the structure.
        let word = |offset: usize| word_at(bytes, offset).unwrap_or(0);
        let short = |offset: usize| u64::from(half_word_at(bytes, offset).unwrap_or(0) as u16);
        let count = |offset: usize| if layout.nelems_bytes == 2 { short(offset) } else { word(offset) };
        let kind = match bytes.get(layout.state) {
            Some(&SPAN_IN_USE) => SpanKind::Objects,
            Some(&SPAN_MANUAL) => SpanKind::Manual,
            Some(&SPAN_DEAD) => return ParsedSpan::Unused,
            _ => return ParsedSpan::Invalid,
        };
        let start = word(SPAN_START);
        let end = start.saturating_add(word(SPAN_PAGES).saturating_mul(RUNTIME_PAGE_BYTES));
        let is_in_heap = start.is_multiple_of(RUNTIME_PAGE_BYTES)
            && start < end
            && self.heap.contains(start, end)
            && claims::is_claimable(start, end);
        let span = Span {
            start,
            end,
            kind,
            object_bytes: word(layout.object_bytes),
            object_capacity: if kind == SpanKind::Manual { 0 } else { count(layout.nelems) },
            used_objects: short(layout.alloc_count),
            free_index: count(layout.free_index),
            bitmap_address: word(layout.alloc_bits),
        };
        let has_valid_objects = || {
            let bytes = span.object_capacity.checked_mul(span.object_bytes);
            bytes.is_some_and(|bytes| bytes <= end - start)
                && (1..=MAX_OBJECTS).contains(&span.object_capacity)
                && span.used_objects <= span.object_capacity
                && span.object_bytes > 0
        };
        if is_in_heap && (kind == SpanKind::Manual || has_valid_objects()) {
            ParsedSpan::InUse { span, mark_bits: word(layout.alloc_bits + 8) }
        } else {
            ParsedSpan::Invalid
        }
    }
}

impl Spans {
    fn note_damage(&mut self, at: u64) {
        self.doubts.note_damage(at, 0);
    }

    /// Adds the page with the structure at `at`; 0 for none. Beyond the limit the pages with the
    /// highest addresses are left out, which is noted.
    fn add_structure(&mut self, at: u64) {
        let page = strandline_claims::range::page_of(at);
        if at == 0 || self.structure_pages.last() == Some(&page) {
            return;
        }
        if self.structure_pages.len() >= 2 * MAX_STRUCTURE_PAGES {
            self.structure_pages.sort_unstable();
            self.structure_pages.dedup();
            self.has_left_out_structures |= self.structure_pages.len() > MAX_STRUCTURE_PAGES;
            self.structure_pages.truncate(MAX_STRUCTURE_PAGES);
        }
        self.structure_pages.push(page);
    }

    /// Bytes of the spans of one kind.
    pub fn bytes(&self, kind: SpanKind) -> u64 {
        self.by_address.iter().filter(|span| span.kind == kind).map(|span| span.end - span.start).sum()
    }

    /// Bytes of objects in use, by the runtime's counts.
    pub fn object_bytes(&self) -> u64 {
        let objects = self.by_address.iter().filter(|span| span.kind == SpanKind::Objects);
        objects.map(|span| span.used_objects * span.object_bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_structures_beyond_the_limit_are_noted() {
        let page = |number: usize| number as u64 * strandline_claims::range::PAGE_BYTES;
        for (pages, is_left_out) in [(MAX_STRUCTURE_PAGES, false), (MAX_STRUCTURE_PAGES + 1, true)] {
            // Each page is there several times.
            let structure_pages = (0..2 * MAX_STRUCTURE_PAGES).map(|number| page(number % pages)).collect();
            let mut spans = Spans { structure_pages, ..Spans::default() };
            spans.add_structure(page(pages - 2));
            assert_eq!(spans.has_left_out_structures, is_left_out);
        }
    }

    #[test]
    fn spans_that_overlap_are_dropped_and_no_others() {
        let span = |start, end| Span {
            start,
            end,
            kind: SpanKind::Manual,
            object_bytes: 0,
            object_capacity: 0,
            used_objects: 0,
            free_index: 0,
            bitmap_address: 0,
        };
        let mut spans = vec![span(0, 3), span(2, 4), span(4, 6), span(6, 8)];
        let mut dropped = Vec::new();
        drop_overlapping(&mut spans, &mut |span| dropped.push(span.start));
        assert_eq!(spans.iter().map(|span| span.start).collect::<Vec<_>>(), [4, 6]);
        assert_eq!(dropped, [0, 2]);
    }
}
