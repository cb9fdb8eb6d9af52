//! Layouts of the arenas and the page map of mimalloc 3.x, as data.

use super::layout::SLICE_BYTES;
use super::parts::{ArenaPurge, CollectRules, SpanPurge};
use strandline_process::pages::USER_ADDRESS_END;

/// What `mi_heap_collect_ex` of 3.x releases; the pages of ended threads stay.
pub const COLLECT_3: CollectRules = CollectRules {
    frees_pages: true,
    frees_ended: false,
    arena_purge: ArenaPurge::AnyThread,
    span_purge: SpanPurge::None,
};

/// Minimum bytes of a thread's heap of 3.x (`types.h`, `struct mi_heap_s`, from 3.2 on
/// `struct mi_theap_s`): 3672 to 3688 up to 3.1, 8040 and more from 3.2 on.
pub const MIN_THREAD_HEAP_BYTES: u64 = 3672;

/// Entries of a submap in the two-level page map of 3.x (`page-map.c`), one per slice.
pub const SUBMAP_ENTRIES: u64 = 1 << 13;
/// Bytes of a submap.
pub const SUBMAP_BYTES: u64 = 8 * SUBMAP_ENTRIES;
/// Addresses that a submap covers.
pub const SUBMAP_SPAN: u64 = SUBMAP_ENTRIES * SLICE_BYTES;
/// Bytes of the upper level, for 47-bit addresses.
pub const PAGE_MAP_BYTES: u64 = 8 * (USER_ADDRESS_END / SUBMAP_SPAN);
/// Offset of the bits in a bitmap of an arena (`bitmap.h`, `struct mi_bitmap_s`): they follow the
/// number of chunks and a map of the chunks, 64 bytes each. A chunk has 512 bits.
pub const BITMAP_BITS_OFFSET: u64 = 128;
/// Bits of a chunk.
pub const CHUNK_BITS: u64 = 512;
/// Index of `slices_purge` in the consecutive bitmaps that an arena points to (`slices_free`,
/// `slices_committed`, `slices_dirty`, `slices_purge`).
pub const PURGE_BITMAP: usize = 3;
/// Index of the first of these pointers, in words of an arena, in releases that purge only whole
/// huge pages of 2 MiB if the kernel has them (3.1.6, and 3.2; `_mi_os_minimal_purge_size`). The
/// first is also that of releases up to 3.1.5, which do not. 3.3.0 and 3.3.1 do, but cannot be
/// told from later releases, which do not.
pub const FIRST_BITMAPS_OF_RUN_PURGING: [usize; 2] = [10, 11];
/// Sizes of blocks that share pages from 3.1.6 on and have one page each in 3.1.4 and 3.1.5
/// (`MI_ENABLE_LARGE_PAGES`).
pub const LARGE_BLOCK_BYTES: std::ops::RangeInclusive<u64> = (64 << 10) + 1..=512 << 10;
/// Bytes of a run that is purged as a whole.
pub const PURGE_RUN_BYTES: u64 = 2 << 20;
/// Words of an arena (`struct mi_arena_s`) that are read: its owner, its numbers of slices and its
/// bitmaps are among them.
pub const ARENA_WORDS: usize = 24;
