//! Detects the layout of a heap. Layouts differ in few bits, and most of these are 0 in most spans:
//! a span is often valid under several. So each layout is tried on part of the page map, and the
//! one with the most valid structures is chosen.

use super::layout::{
    HUGE_BYTES, LARGEST_SMALL_PAGES, LAYOUTS, Layout, LeafParts, MAX_TRACKER_BYTES, SPAN_BITS, SpanBytes,
    SpanFields, Tracker,
};
use super::locate::{Heap, read_bytes, read_span};
use crate::radix::Leaf;
use crate::scan::{each_word, may_be_swapped_out};
use strandline_claims::allocator::Context;
use strandline_process::memory::word_at;
use strandline_process::page_cache::PageCache;
use strandline_process::pages::USER_ADDRESS_END;

/// Entries of the page map on which layouts are tried.
const MAX_ENTRIES: usize = 1 << 16;
/// Bytes read of a sample.
const SAMPLE_BYTES: usize = 80;

/// Returns the layout of `heap`, whose field `layout` is ignored; of several with equally many
/// valid structures, the first of [`LAYOUTS`]. `None` if no structure is valid in any; if the
/// deadline passes before one is found, the first, and nothing is read in it.
pub fn layout(context: &Context<'_>, heap: &Heap) -> Option<&'static Layout> {
    let mut valid_counts = [0_usize; LAYOUTS.len()];
    let mut cache = PageCache::new(context.memory);
    let mut remaining_entries = MAX_ENTRIES;
    for &Leaf { covered_start, address: leaf } in &heap.leaves {
        if remaining_entries == 0 || context.deadline_passed() {
            break;
        }
        let LeafParts { spans, trackers, end } = heap.parts_of_leaf(leaf);
        each_word(context, (spans, trackers), &mut |at, entry| {
            remaining_entries -= 1;
            let index = (at - spans) / 8;
            let class_at = heap.class_address(leaf, index);
            // Without the class of its page, a span is valid under no layout or all.
            if !may_be_swapped_out(context, class_at) {
                let page = (covered_start >> heap.page_shift) + index;
                let class = read_class(&mut cache, heap, class_at);
                for (count, layout) in valid_counts.iter_mut().zip(&LAYOUTS) {
                    let span = read_span(&mut cache, layout, entry & SPAN_BITS);
                    let is_valid =
                        span.is_some_and(|bytes| is_valid(&mut cache, heap, layout, &bytes, page, class));
                    *count += usize::from(is_valid);
                }
            }
            remaining_entries > 0
        });
        each_word(context, (trackers, end), &mut |at, entry| {
            let start = covered_start + (at - trackers) / 8 * HUGE_BYTES;
            for (count, layout) in valid_counts.iter_mut().zip(&LAYOUTS) {
                let tracker = read_tracker(&mut cache, layout, heap.page_shift, entry);
                *count += usize::from(tracker.is_some_and(|tracker| tracker.start == start));
            }
            true
        });
    }
    let (layout, max_count) =
        LAYOUTS.iter().zip(valid_counts).rev().max_by_key(|&(_, valid_count)| valid_count)?;
    (max_count > 0 || context.deadline_passed()).then_some(layout)
}

/// Reads the tracker of a huge page; `None` if none is at `at`.
pub fn read_tracker(cache: &mut PageCache<'_>, layout: &Layout, page_shift: u32, at: u64) -> Option<Tracker> {
    let mut bytes = [0; MAX_TRACKER_BYTES];
    read_bytes(cache, at, &mut bytes[..layout.tracker_bytes(page_shift)])?;
    layout.tracker(&bytes, page_shift)
}

/// Reads the size class of a page, whose place in its leaf is `at`; `None` if the page has none.
/// What cannot be read of a leaf was never written, so its pages have none.
fn read_class(cache: &mut PageCache<'_>, heap: &Heap, at: u64) -> Option<u16> {
    let mut classes = heap.classes.in_word(cache.word(at & !7)?);
    classes.nth((at % 8 / heap.classes.compact_bytes()) as usize).flatten()
}

/// Whether a span in use that begins at `page` is valid in this layout.
fn is_valid(
    cache: &mut PageCache<'_>,
    heap: &Heap,
    layout: &Layout,
    bytes: &SpanBytes,
    page: u64,
    class: Option<u16>,
) -> bool {
    let Some(span) = layout.span(bytes, heap.page_shift).filter(|span| span.first_page == page) else {
        return false;
    };
    if !layout.has_clear_reserved_bits(bytes, heap.page_shift) {
        return false;
    }
    if let Some(class) = class {
        return heap.classes.span_pages.get(usize::from(class)) == Some(&span.pages)
            && has_consistent_free_count(heap, layout, bytes, &span, class);
    }
    match span.sample {
        Some(at) => {
            read_sample(cache, layout, at).is_some_and(|sample| sample.bytes <= span.pages << heap.page_shift)
        }
        // A span with the flag for large ones is large. Up to 2026-07 the word with the number of
        // pages of a small span holds nothing else.
        None if layout.is_large(bytes, heap.page_shift) => span.pages > LARGEST_SMALL_PAGES,
        None => layout.has_valid_pages_word(bytes),
    }
}

/// Whether the objects marked free in the bitmap and the allocated ones are all objects of the
/// span. True if there is no bitmap to check.
fn has_consistent_free_count(
    heap: &Heap,
    layout: &Layout,
    bytes: &SpanBytes,
    span: &SpanFields,
    class: u16,
) -> bool {
    let (Some(object_bytes), Some(objects)) =
        (heap.class_bytes(class), heap.classes.objects(class, heap.page_shift))
    else {
        return false;
    };
    // A single object is not tracked.
    if objects == 1 || !layout.has_bitmap(object_bytes, heap.page_shift) {
        return true;
    }
    let free_count =
        (0..objects as usize).filter(|&object| layout.is_free(bytes, object) == Some(true)).count();
    free_count as u64 + u64::from(span.allocated_objects) == objects
}

/// An allocation that tcmalloc sampled.
pub struct Sample {
    /// Address of its proxy, if it has one: the object allocated in its place, in a span of its
    /// size (`allocation_sampling.h`, `SampleifyAllocation`).
    pub proxy: Option<u64>,
    /// Its size.
    pub bytes: u64,
}

/// Reads a sample; `None` if none is at `at`: its size is impossible.
pub fn read_sample(cache: &mut PageCache<'_>, layout: &Layout, at: u64) -> Option<Sample> {
    let mut bytes = [0; SAMPLE_BYTES];
    read_bytes(cache, at, &mut bytes)?;
    let proxy = layout.sample_proxy.and_then(|offset| word_at(&bytes, offset)).filter(|&proxy| proxy != 0);
    let size = word_at(&bytes, layout.sample_size).filter(|&size| size > 0 && size < USER_ADDRESS_END)?;
    Some(Sample { proxy, bytes: size })
}
