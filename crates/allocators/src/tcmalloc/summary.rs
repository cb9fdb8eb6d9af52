//! tcmalloc's own figures, computed from what was found.

use super::caches::Cached;
use super::claims::{Counts, OfClass};
use super::layout::Classes;
use super::locate::Heap;
use strandline_claims::facts::{Allocator, Figures, SizeClass};

/// What is said of one tcmalloc; `is_whole` where all of it was read.
pub fn facts(heap: &Heap, counts: &Counts, cached: &Cached, own: &[(u64, u64)], is_whole: bool) -> Allocator {
    let mut allocator = Allocator {
        name: "tcmalloc".to_owned(),
        found_by: format!("page map in {} (pages of {} KiB)", heap.name, 1 << heap.shape.page_shift >> 10),
        read: true,
        ..Allocator::default()
    };
    if is_whole {
        let sum = |of: fn(&OfClass) -> u64| -> u64 {
            let bytes = |class: usize| heap.classes.bytes.get(class).copied().unwrap_or(0);
            counts.classes.iter().map(|(&class, counts)| of(counts) * bytes(class)).sum()
        };
        let live_bytes = sum(|of| of.live) + counts.large_bytes;
        let free_bytes = sum(|of| of.free);
        allocator.live_bytes = Some(live_bytes);
        allocator.live_blocks = Some(counts.classes.values().map(|of| of.live).sum::<u64>() + counts.large);
        allocator.cached_bytes = Some(sum(|of| of.cached));
        allocator.free_bytes = Some(free_bytes);
        allocator.metadata_bytes = Some(own.iter().map(|range| range.1 - range.0).sum());
        allocator.own = figures(live_bytes, free_bytes, counts, cached);
        allocator.size_classes =
            counts.classes.iter().map(|(&class, of)| size_class(&heap.classes, class, of)).collect();
    }
    allocator
}

/// As `MallocExtension::GetNumericProperty` names and counts them.
fn figures(live_bytes: u64, free_bytes: u64, counts: &Counts, cached: &Cached) -> Figures {
    let spans: u64 = counts.classes.values().map(|of| of.span_bytes).sum();
    let rest: u64 = counts.classes.values().map(|of| of.rest_bytes).sum();
    let figures = [
        ("generic.current_allocated_bytes", live_bytes),
        ("generic.heap_size", spans + counts.large_bytes + counts.normal_bytes + counts.returned_bytes),
        ("tcmalloc.pageheap_free_bytes", counts.normal_bytes),
        ("tcmalloc.pageheap_unmapped_bytes", counts.returned_bytes),
        ("tcmalloc.thread_cache_free_bytes", cached.thread_bytes),
        ("tcmalloc.central_cache_free_bytes", free_bytes + rest),
        ("tcmalloc.transfer_cache_free_bytes", cached.transfer_bytes),
    ];
    figures.into_iter().map(|(name, figure)| (name.to_owned(), figure.into())).collect()
}

fn size_class(classes: &Classes, class: usize, of: &OfClass) -> SizeClass {
    SizeClass {
        bytes: classes.bytes.get(class).copied().unwrap_or(0),
        spans: of.spans,
        span_bytes: of.span_bytes,
        live_blocks: of.live,
        cached_blocks: of.cached,
        free_blocks: of.free,
    }
}

/// How many of the objects in caches were not where a span of that class has one in use.
pub fn unmatched(cached: &Cached, counts: &Counts) -> u64 {
    (cached.items.len() as u64).saturating_sub(counts.met)
}
