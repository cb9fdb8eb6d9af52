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
/// Slices whose bits are in one word of a bitmap (`MI_BFIELD_BITS`). From 3.2.7 on no run that is
/// purged as a whole reaches into the next word (`bitmap.c`, `_mi_bitmap_forall_setc_rangesn`). In
/// 3.1.6 and 3.2.6 the last run of a word does if the length of a run does not divide 64: such a
/// run is not predicted.
pub const WORD_SLICES: u64 = 64;
/// Words of an arena (`struct mi_arena_s`) that are read: its owner, its numbers of slices and its
/// bitmaps are among them.
pub const ARENA_WORDS: usize = 24;
