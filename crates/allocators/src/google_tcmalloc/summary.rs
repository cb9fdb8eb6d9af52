//! tcmalloc's statistics, computed from what was found.

use super::caches::Cached;
use super::claims::Counts;
use super::locate::Heap;
use strandline_claims::facts::{Allocator, SizeClass, figures};
use strandline_process::range::AddressRange;

/// Describes one heap; `is_whole` if all of it was read. `own` are the ranges of its own
/// structures, `not_resident` the bytes of them that were released, if known.
pub fn facts(
    heap: &Heap,
    counts: &Counts,
    cached: &Cached,
    own: &[AddressRange],
    not_resident: Option<u64>,
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
        allocator.live_blocks = Some(sum(|class| class.live_blocks) + counts.large);
        allocator.cached_bytes = Some(sum(|class| class.cached_blocks * class.bytes));
        allocator.free_bytes = Some(sum(|class| class.free_blocks * class.bytes));
        allocator.metadata_bytes = Some(own.iter().map(|range| range.len()).sum());
        // Named and counted as by `MallocExtension::GetNumericProperty`: unused ends of spans are
        // part of the central lists, proxies and all pages of samples are allocated.
        let spans = sum(|class| class.span_bytes);
        let taken = sum(|class| (class.live_blocks + class.cached_blocks) * class.bytes) + counts.proxy_bytes;
        let in_caches =
            cached.transfer_bytes + cached.sharded_bytes + cached.processor_bytes + cached.thread_bytes;
        let allocated = (taken + counts.large_span_bytes).saturating_sub(in_caches);
        allocator.own = figures(&[
            ("generic.current_allocated_bytes", allocated),
            ("generic.heap_size", spans + counts.large_span_bytes + counts.backed_bytes),
            ("tcmalloc.central_cache_free", spans - taken),
            ("tcmalloc.cpu_free", cached.processor_bytes),
            ("tcmalloc.pageheap_free_bytes", counts.backed_bytes),
            ("tcmalloc.sharded_transfer_cache_free", cached.sharded_bytes),
            ("tcmalloc.thread_cache_free", cached.thread_bytes),
            ("tcmalloc.transfer_cache_free", cached.transfer_bytes),
        ]);
        if let Some(not_resident) = not_resident {
            let unmapped = ("tcmalloc.pageheap_unmapped_bytes", counts.unbacked_bytes + not_resident);
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
