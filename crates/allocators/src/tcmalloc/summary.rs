//! tcmalloc's statistics, computed from what was found.

use super::caches::CacheContents;
use super::claims::Counts;
use super::locate::Heap;
use strandline_claims::facts::{Allocator, SizeClass, figures};
use strandline_process::range::AddressRange;

/// Describes one heap, whose own structures are in `structures`; `is_whole` if all of it was read.
pub fn facts(
    heap: &Heap,
    counts: &Counts,
    caches: &CacheContents,
    structures: &[AddressRange],
    is_whole: bool,
) -> Allocator {
    let mut allocator = Allocator {
        name: "tcmalloc".to_owned(),
        found_by: format!(
            "page map in {} (pages of {} KiB)",
            heap.name,
            1 << heap.map_layout.page_shift >> 10
        ),
        read: true,
        ..Allocator::default()
    };
    if is_whole {
        let sum = |figure: fn(&SizeClass) -> u64| -> u64 { counts.classes.values().map(figure).sum() };
        let live_bytes = sum(|class| class.live_blocks * class.bytes) + counts.large_bytes;
        allocator.live_bytes = Some(live_bytes);
        allocator.live_blocks = Some(sum(|class| class.live_blocks) + counts.large_blocks);
        allocator.cached_bytes = Some(sum(|class| class.cached_blocks * class.bytes));
        allocator.free_bytes = Some(sum(|class| class.free_blocks * class.bytes));
        allocator.metadata_bytes = Some(structures.iter().map(|range| range.len()).sum());
        // Named and counted as by `MallocExtension::GetNumericProperty`; unused ends of spans count
        // as free.
        let span_bytes = sum(|class| class.span_bytes);
        let page_heap_bytes = counts.backed_bytes + counts.returned_bytes;
        let central_bytes =
            sum(|class| class.span_bytes - (class.live_blocks + class.cached_blocks) * class.bytes);
        allocator.own = figures(&[
            ("generic.current_allocated_bytes", live_bytes),
            ("generic.heap_size", span_bytes + counts.large_bytes + page_heap_bytes),
            ("tcmalloc.pageheap_free_bytes", counts.backed_bytes),
            ("tcmalloc.pageheap_unmapped_bytes", counts.returned_bytes),
            ("tcmalloc.thread_cache_free_bytes", caches.thread_bytes),
            ("tcmalloc.central_cache_free_bytes", central_bytes),
            ("tcmalloc.transfer_cache_free_bytes", caches.transfer_bytes),
        ]);
        allocator.size_classes = counts.classes.values().cloned().collect();
    }
    allocator
}
