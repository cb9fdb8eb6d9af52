//! Walks the page map in address order: spans in use, and the trackers of huge pages that spans
//! share.
//!
//! A span of one block has an entry for its first page only, which is cleared when the span is
//! freed. A span of objects has an entry for every page; all but the first stay when it is freed,
//! with class 0 (`huge_page_aware_allocator.h`, `Delete`; `pagemap.cc`, `UnregisterSizeClass`). So
//! a span is in use if the entry of its first page points to it.

use std::collections::BTreeSet;

use super::detect::{Sample, read_sample, read_tracker};
use super::layout::{HUGE_BYTES, LeafParts, SPAN_BITS, SpanFields, Tracker};
use super::locate::{Heap, read_span};
use crate::radix::{Leaf, UnclaimedMemory};
use crate::scan::{DeadlineCheck, each_word, may_be_swapped_out};
use strandline_claims::allocator::Context;
use strandline_claims::doubts::ReadProblems;
use strandline_claims::range::page_of;
use strandline_process::page_cache::PageCache;
use strandline_process::range::{AddressRange, RangeSet};

/// A span in use.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    /// Address of its structure.
    pub structure: u64,
    /// Its size class; `None` if it is a single block.
    pub class: Option<u16>,
    /// Bytes of the block, if it is a single one.
    pub block_bytes: u64,
    /// The proxy of the sample that the block is, if it is one and has a proxy.
    pub proxy: Option<u64>,
}

impl Span {
    /// Its addresses.
    pub fn range(&self) -> AddressRange {
        AddressRange::new(self.start, self.end)
    }
}

/// Contents of the page map.
#[derive(Default)]
pub struct Spans {
    /// Spans in use, in address order, without overlap.
    pub all: Vec<Span>,
    /// Trackers of divided huge pages, in address order.
    pub trackers: Vec<Tracker>,
    /// Proxies of samples.
    pub proxies: Vec<u64>,
    /// Pages that hold structures.
    pub structure_pages: BTreeSet<u64>,
    /// Invalid structures, and where the deadline passed.
    pub doubts: ReadProblems,
    /// Bytes read from the target.
    pub bytes_read: u64,
}

/// Walks the page map of `heap` outside `taken` (claimed by others).
pub fn walk(context: &Context<'_>, heap: &Heap, taken: &RangeSet) -> Spans {
    let mut walk = Walk {
        context,
        heap,
        cache: PageCache::new(context.memory),
        unclaimed: UnclaimedMemory::new(context, taken),
        spans: Spans::default(),
        cursor: 0,
        last_structure_page: None,
        deadline: DeadlineCheck::new(context),
    };
    for &Leaf { covered_start, address: leaf } in &heap.leaves {
        if context.deadline_passed() {
            walk.spans.doubts.note_timeout(covered_start);
            break;
        }
        walk.walk_leaf(covered_start, leaf);
    }
    let mut spans = walk.spans;
    spans.bytes_read += walk.cache.bytes_read;
    spans.proxies.sort_unstable();
    spans
}

struct Walk<'a> {
    context: &'a Context<'a>,
    heap: &'a Heap,
    cache: PageCache<'a>,
    unclaimed: UnclaimedMemory<'a>,
    spans: Spans,
    /// End of the last span.
    cursor: u64,
    /// Page of the last structure.
    last_structure_page: Option<u64>,
    /// Checked at each entry.
    deadline: DeadlineCheck<'a>,
}

impl Walk<'_> {
    /// Walks the leaf at `leaf`, which covers the addresses from `covered_start` on.
    fn walk_leaf(&mut self, covered_start: u64, leaf: u64) {
        let context = self.context;
        let LeafParts { spans: spans_start, trackers: trackers_start, end } = self.heap.parts_of_leaf(leaf);
        let classes = self.classes(leaf, spans_start);
        each_word(context, (spans_start, trackers_start), &mut |at, entry| {
            let index = (at - spans_start) / 8;
            let page = covered_start + (index << self.heap.page_shift);
            if self.is_too_late(page) {
                return false;
            }
            if page >= self.cursor && entry & SPAN_BITS != 0 {
                let class = classes.get(index as usize).copied().flatten();
                let class_at = self.heap.class_address(leaf, index);
                self.add_entry(page, entry & SPAN_BITS, class, class_at);
            }
            true
        });
        each_word(context, (trackers_start, end), &mut |at, entry| {
            let start = covered_start + (at - trackers_start) / 8 * HUGE_BYTES;
            let is_in_time = !self.is_too_late(start);
            if is_in_time {
                self.add_tracker(start, entry);
            }
            is_in_time
        });
        self.spans.bytes_read += context.resident_bytes((leaf, end));
    }

    /// Checks the deadline; notes `address` if it has passed.
    fn is_too_late(&mut self, address: u64) -> bool {
        let is_late = self.deadline.passed();
        if is_late {
            self.spans.doubts.note_timeout(address);
        }
        is_late
    }

    /// Returns the classes of the pages of a leaf, as far as they are resident.
    fn classes(&self, leaf: u64, end: u64) -> Vec<Option<u16>> {
        let class_bytes = self.heap.classes.compact_bytes();
        let mut classes = vec![None; self.heap.map_layout.leaf_entries() as usize];
        each_word(self.context, (leaf, end), &mut |at, word| {
            let places = classes.iter_mut().skip(((at - leaf) / class_bytes) as usize);
            places.zip(self.heap.classes.in_word(word)).for_each(|(place, class)| *place = class);
            true
        });
        classes
    }

    /// Adds the span to whose structure the entry of a page points; the class of that page is at
    /// `class_at`.
    fn add_entry(&mut self, page: u64, structure: u64, class: Option<u16>, class_at: u64) {
        let (layout, page_shift) = (self.heap.layout, self.heap.page_shift);
        let Some(bytes) = read_span(&mut self.cache, layout, structure) else {
            return self.note_invalid(page);
        };
        let fields = layout.span(&bytes, page_shift);
        let fields = fields.filter(|fields| fields.first_page << page_shift == page);
        // The remains of a freed span: its structure is free, or in use for another span.
        if class.is_none() && fields.is_none() {
            return;
        }
        let is_unknown = |fields: SpanFields| class.is_none() && self.may_have_class(&fields, class_at);
        if fields.is_some_and(is_unknown) {
            return self.note_invalid(page);
        }
        let checked = fields.and_then(|fields| Some((fields, self.checked_span(&fields, structure, class)?)));
        let Some((fields, span)) = checked else { return self.note_invalid(page) };
        self.cursor = span.end;
        self.record_structure(structure);
        if let Some(sample) = fields.sample.filter(|_| class.is_none()) {
            self.record_structure(sample);
            self.spans.proxies.extend(span.proxy);
        }
        (self.context.progress)(span.end - span.start);
        self.spans.all.push(span);
    }

    /// Whether a span without a class may be one of objects, whose class at `class_at` was swapped
    /// out. Most large blocks have more pages than any such span, and their place of a class was
    /// never written.
    fn may_have_class(&self, fields: &SpanFields, class_at: u64) -> bool {
        fields.sample.is_none()
            && self.heap.classes.span_pages.contains(&fields.pages)
            && may_be_swapped_out(self.context, class_at)
    }

    /// Returns the span in use with these fields; `None` if they contradict the page map.
    fn checked_span(&mut self, fields: &SpanFields, structure: u64, class: Option<u16>) -> Option<Span> {
        let start = fields.first_page << self.heap.page_shift;
        let end = start + (fields.pages << self.heap.page_shift);
        let has_pages_of_class = class
            .is_none_or(|class| self.heap.classes.span_pages.get(usize::from(class)) == Some(&fields.pages));
        if !has_pages_of_class || !self.unclaimed.contains((start, end)) {
            return None;
        }
        let mut span = Span { start, end, structure, class, block_bytes: end - start, proxy: None };
        if let Some(sample_address) = fields.sample.filter(|_| class.is_none()) {
            let Sample { proxy, bytes } = read_sample(&mut self.cache, self.heap.layout, sample_address)?;
            if bytes > end - start {
                return None;
            }
            (span.block_bytes, span.proxy) = (bytes, proxy);
        }
        Some(span)
    }

    /// Adds the tracker at `structure`, to which the entry of the huge page at `start` points.
    fn add_tracker(&mut self, start: u64, structure: u64) {
        let tracker = read_tracker(&mut self.cache, self.heap.layout, self.heap.page_shift, structure);
        let range = AddressRange::sized(start, HUGE_BYTES);
        match tracker.filter(|tracker| tracker.start == start && self.unclaimed.contains(range)) {
            Some(tracker) => {
                self.record_structure(structure);
                self.spans.trackers.push(tracker);
            }
            // The entry of a freed tracker is cleared, so this one is invalid.
            None => self.note_invalid(start),
        }
    }

    /// Notes that the entry for `address` leads to no valid structure: damage, or the deadline,
    /// after which reads fail.
    fn note_invalid(&mut self, address: u64) {
        if !self.context.deadline_passed() {
            self.spans.doubts.note_damage(address, 0);
        } else {
            self.spans.doubts.note_timeout(address);
        }
    }

    fn record_structure(&mut self, structure: u64) {
        let page = page_of(structure);
        if self.last_structure_page.replace(page) != Some(page) {
            self.spans.structure_pages.insert(page);
        }
    }
}
