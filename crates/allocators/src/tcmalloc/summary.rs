//! tcmalloc's statistics, computed from what was found.

use super::caches::Cached;
use super::claims::Counts;
use super::locate::Heap;
use strandline_claims::facts::{Allocator, SizeClass, figures};
use strandline_process::range::AddressRange;

/// Describes one heap; `is_whole` if all of it was read.
pub fn facts(
    heap: &Heap,
    counts: &Counts,
    cached: &Cached,
    own: &[AddressRange],
    is_whole: bool,
) -> Allocator {
    let mut allocator = Allocator {
        name: "tcmalloc".to_owned(),
        found_by: format!("page map in {} (pages of {} KiB)", heap.name, 1 << heap.shape.page_shift >> 10),
        read: true,
        ..Allocator::default()
    };
    if is_whole {
        let sum = |figure: fn(&SizeClass) -> u64| -> u64 { counts.classes.values().map(figure).sum() };
        let live_bytes = sum(|class| class.live_blocks * class.bytes) + counts.large_bytes;
        allocator.live_bytes = Some(live_bytes);
        allocator.live_blocks = Some(sum(|class| class.live_blocks) + counts.large);
        allocator.cached_bytes = Some(sum(|class| class.cached_blocks * class.bytes));
        allocator.free_bytes = Some(sum(|class| class.free_blocks * class.bytes));
        allocator.metadata_bytes = Some(own.iter().map(|range| range.len()).sum());
        // Named and counted as by `MallocExtension::GetNumericProperty`; unused ends of spans count
        // as free.
        let spans = sum(|class| class.span_bytes);
        let page_heap = counts.normal_bytes + counts.returned_bytes;
        let central = sum(|class| class.span_bytes - (class.live_blocks + class.cached_blocks) * class.bytes);
        allocator.own = figures(&[
            ("generic.current_allocated_bytes", live_bytes),
            ("generic.heap_size", spans + counts.large_bytes + page_heap),
            ("tcmalloc.pageheap_free_bytes", counts.normal_bytes),
            ("tcmalloc.pageheap_unmapped_bytes", counts.returned_bytes),
            ("tcmalloc.thread_cache_free_bytes", cached.thread_bytes),
            ("tcmalloc.central_cache_free_bytes", central),
            ("tcmalloc.transfer_cache_free_bytes", cached.transfer_bytes),
        ]);
        allocator.size_classes = counts.classes.values().cloned().collect();
    }
    allocator
}
