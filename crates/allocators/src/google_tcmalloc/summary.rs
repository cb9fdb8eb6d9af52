//! tcmalloc's statistics, computed from what was found.

use super::caches::CacheContents;
use super::claims::Counts;
use super::locate::Heap;
use strandline_claims::facts::{Allocator, SizeClass, figures};
use strandline_process::range::AddressRange;

/// Describes one heap; `is_whole` if all of it was read. `structures` are the ranges of
/// its own structures, `not_resident_bytes` the released part of them, if known.
pub fn facts(
    heap: &Heap,
    counts: &Counts,
    caches: &CacheContents,
    structures: &[AddressRange],
    not_resident_bytes: Option<u64>,
    is_whole: bool,
) -> Allocator {
    let mut allocator = Allocator {
        name: "google_tcmalloc".to_owned(),
        found_by: format!(
            "page map in {} (pages of {} KiB, laid out as from {} on)",
            heap.name,
            heap.page_bytes() >> 10,
            heap.layout.since
        ),
        read: true,
        ..Allocator::default()
    };
    if is_whole {
        let sum = |figure: fn(&SizeClass) -> u64| -> u64 { counts.classes.values().map(figure).sum() };
        allocator.live_bytes = Some(sum(|class| class.live_blocks * class.bytes) + counts.large_bytes);
        allocator.live_blocks = Some(sum(|class| class.live_blocks) + counts.large_blocks);
        allocator.cached_bytes = Some(sum(|class| class.cached_blocks * class.bytes));
        allocator.free_bytes = Some(sum(|class| class.free_blocks * class.bytes));
        allocator.metadata_bytes = Some(structures.iter().map(|range| range.len()).sum());
        // Named and counted as by `MallocExtension::GetNumericProperty`: unused ends of spans are
        // part of the central lists, proxies and all pages of samples are allocated.
        let span_bytes = sum(|class| class.span_bytes);
        let object_bytes =
            sum(|class| (class.live_blocks + class.cached_blocks) * class.bytes) + counts.proxy_bytes;
        let bytes_in_caches =
            caches.transfer_bytes + caches.sharded_bytes + caches.processor_bytes + caches.thread_bytes;
        let allocated_bytes = (object_bytes + counts.large_span_bytes).saturating_sub(bytes_in_caches);
        allocator.own = figures(&[
            ("generic.current_allocated_bytes", allocated_bytes),
            ("generic.heap_size", span_bytes + counts.large_span_bytes + counts.backed_bytes),
            ("tcmalloc.central_cache_free", span_bytes - object_bytes),
            ("tcmalloc.cpu_free", caches.processor_bytes),
            ("tcmalloc.pageheap_free_bytes", counts.backed_bytes),
            ("tcmalloc.sharded_transfer_cache_free", caches.sharded_bytes),
            ("tcmalloc.thread_cache_free", caches.thread_bytes),
            ("tcmalloc.transfer_cache_free", caches.transfer_bytes),
        ]);
        if let Some(not_resident_bytes) = not_resident_bytes {
            let unmapped = ("tcmalloc.pageheap_unmapped_bytes", counts.unbacked_bytes + not_resident_bytes);
            allocator.own.extend(figures(&[unmapped]));
        }
        allocator.size_classes = sizes(counts);
    }
    allocator
}

/// Sums by object size: partitions have separate classes of the same size.
fn sizes(counts: &Counts) -> Vec<SizeClass> {
    let mut sizes: std::collections::BTreeMap<u64, SizeClass> = std::collections::BTreeMap::new();
    for class in counts.classes.values() {
        sizes.entry(class.bytes).or_default().add(class);
    }
    sizes.into_values().collect()
}
