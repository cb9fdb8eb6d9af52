//! Layouts of mimalloc's segments by version (1.6 to 2.4), as data: standard 64-bit builds, without
//! padding and encoded lists (`MI_SECURE`, `MI_DEBUG`).

use super::layout::{PAGE_1, PAGE_1_8_4, PAGE_2, PAGE_2_1_4, PAGE_CPYTHON, PAGE_CPYTHON_2_5, PageLayout};
use super::parts::{ArenaPurge, CollectRules, SpanPurge, ThreadDataBytes};

/// Offsets in a segment (`types.h`, `struct mi_segment_s`), which contains pages.
#[derive(Debug, PartialEq, Eq)]
pub struct SegmentLayout {
    /// Releases with this layout.
    pub releases: &'static str,
    /// Alignment of a segment, and its size unless it holds a single block.
    pub bytes: u64,
    /// `cookie`: the segment's address XOR a key of the process (`internal.h`, `_mi_ptr_cookie`).
    pub cookie: usize,
    /// `thread_id`: 0 if the segment's thread ended, or if the segment was freed.
    pub thread_id: usize,
    /// `used`: pages in use.
    pub used: usize,
    /// How a segment is divided.
    pub division: SegmentDivision,
    /// Layout of its pages.
    pub page: &'static PageLayout,
    /// Offset in a heap of `thread_delayed_free`, a list of blocks that other threads freed.
    pub delayed_free: u64,
    /// What a collection releases; `None` if that cannot be predicted (up to 1.8.2 freed memory
    /// stays for an unknown time).
    pub collect_rules: Option<CollectRules>,
    /// Minimum bytes of `mi_thread_data_t`, which begins with a thread's heap (`init.c`); `None` if
    /// CPython keeps it in its thread states.
    pub thread_data: Option<ThreadDataBytes>,
    /// `segment_size`, if only that distinguishes the layout from another one.
    pub size: Option<usize>,
    /// Offsets of the masks of free slices.
    pub masks: Option<Masks>,
}

/// Offsets of the fields of a segment of 2.x that describe its free slices.
#[derive(Debug, PartialEq, Eq)]
pub struct Masks {
    /// `allow_decommit`, `allow_purge`: a byte.
    pub allow: usize,
    /// `decommit_expire`, `purge_expire`: milliseconds of the monotonic clock.
    pub expire: usize,
    /// `decommit_mask`, `purge_mask`: a bit per slice. `commit_mask` follows.
    pub slices: usize,
    /// Words of each mask.
    pub words: usize,
}

/// 2.0.3 to 2.0.7.
const MASKS_2_0_3: Masks = Masks { allow: 11, expire: 16, slices: 24, words: 16 };
/// 2.0.9.
const MASKS_2_0_9: Masks = Masks { allow: 32, expire: 40, slices: 48, words: 8 };
/// 2.1.0 to 2.1.7.
const MASKS_2_1: Masks = Masks { allow: 25, expire: 40, slices: 48, words: 8 };
/// 2.1.9 to 2.4.
const MASKS_2_1_9: Masks = Masks { allow: 25, expire: 48, slices: 56, words: 8 };

/// Division of a segment, with offsets in the segment.
#[derive(Debug, PartialEq, Eq)]
pub enum SegmentDivision {
    /// Into pages of one size (1.x).
    Pages {
        /// `capacity`: number of pages.
        capacity: usize,
        /// `page_shift`: one of [`PAGE_SHIFTS`].
        page_shift: usize,
        /// `page_kind`; [`HUGE_PAGE_KIND`] for a single block.
        page_kind: usize,
        /// `segment_size`: bytes of the segment.
        segment_bytes: usize,
        /// `segment_info_size`: bytes of the segment's own structures.
        info_bytes: usize,
        /// `pages`: the structures of the pages.
        pages: usize,
    },
    /// Into slices of 64 KiB (2.x).
    Slices {
        /// `segment_slices`: number of slices.
        slices: usize,
        /// `segment_info_slices`: number of slices for the segment's own structures.
        info_slices: usize,
        /// `kind`; [`HUGE_SEGMENT_KIND`] for a single block.
        kind: usize,
        /// `slice_entries`: number of slice structures.
        entries: usize,
        /// `slices`: the structures of the slices.
        structures: usize,
    },
}

/// 1.6 to 1.7.7.
const PAGES_1_6: SegmentDivision = SegmentDivision::Pages {
    capacity: 64,
    page_shift: 96,
    page_kind: 112,
    segment_bytes: 72,
    info_bytes: 80,
    pages: 120,
};
/// 1.7.9 and 1.8.0.
const PAGES_1_7_9: SegmentDivision = SegmentDivision::Pages {
    capacity: 80,
    page_shift: 112,
    page_kind: 128,
    segment_bytes: 88,
    info_bytes: 96,
    pages: 136,
};
/// 1.8.2.
const PAGES_1_8_2: SegmentDivision = SegmentDivision::Pages {
    capacity: 88,
    page_shift: 112,
    page_kind: 128,
    segment_bytes: 32,
    info_bytes: 96,
    pages: 136,
};
/// 1.8.4 to 1.8.7.
const PAGES_1_8_4: SegmentDivision = SegmentDivision::Pages {
    capacity: 88,
    page_shift: 120,
    page_kind: 128,
    segment_bytes: 32,
    info_bytes: 96,
    pages: 136,
};
/// 1.8.9 to 1.9.
const PAGES_1_8_9: SegmentDivision = SegmentDivision::Pages {
    capacity: 96,
    page_shift: 144,
    page_kind: 152,
    segment_bytes: 32,
    info_bytes: 104,
    pages: 160,
};
/// 2.0.3 to 2.0.7.
const SLICES_2_0_3: SegmentDivision =
    SegmentDivision::Slices { slices: 328, info_slices: 336, kind: 344, entries: 360, structures: 368 };
/// 2.0.9 to 2.1.7.
const SLICES_2_0_9: SegmentDivision =
    SegmentDivision::Slices { slices: 224, info_slices: 232, kind: 240, entries: 248, structures: 264 };
/// 2.1.9 to 2.4.
const SLICES_2_1_9: SegmentDivision =
    SegmentDivision::Slices { slices: 248, info_slices: 256, kind: 264, entries: 272, structures: 288 };

/// What `mi_heap_collect_ex` releases, from 1.8.4 on.
const COLLECT_1_8_4: CollectRules = CollectRules {
    frees_pages: true,
    frees_ended: true,
    arena_purge: ArenaPurge::AnyThread,
    span_purge: SpanPurge::None,
};
/// From 2.0.3 on.
const COLLECT_2_0_3: CollectRules = CollectRules {
    frees_pages: false,
    frees_ended: true,
    arena_purge: ArenaPurge::AnyThread,
    span_purge: SpanPurge::Kept,
};
/// From 2.0.9 on.
const COLLECT_2_0_9: CollectRules = CollectRules { span_purge: SpanPurge::WhenDue, ..COLLECT_2_0_3 };
/// From 2.1.0 on. The arenas of 2.1.0 and 2.1.1 release freed memory at once or never: their rule
/// matters from 2.1.2 on.
const COLLECT_2_1: CollectRules = CollectRules { arena_purge: ArenaPurge::MainThread, ..COLLECT_2_0_9 };
/// From 2.1.4 on.
const COLLECT_2_1_4: CollectRules = CollectRules { span_purge: SpanPurge::AtVisits, ..COLLECT_2_0_3 };

const MIB: u64 = 1 << 20;

const SEGMENT_1_6: SegmentLayout = SegmentLayout {
    releases: "1.6 to 1.7.7",
    bytes: 4 * MIB,
    cookie: 88,
    thread_id: 104,
    used: 56,
    division: PAGES_1_6,
    page: &PAGE_1,
    delayed_free: 2840,
    collect_rules: None,
    // 3728 to 3920 bytes up to 1.8.9.
    thread_data: Some(ThreadDataBytes { earlier: 3728, later: None }),
    size: None,
    masks: None,
};
const SEGMENT_1_7_9: SegmentLayout = SegmentLayout {
    releases: "1.7.9 and 1.8.0",
    cookie: 104,
    thread_id: 120,
    used: 72,
    division: PAGES_1_7_9,
    ..SEGMENT_1_6
};
const SEGMENT_1_8_2: SegmentLayout =
    SegmentLayout { releases: "1.8.2", used: 80, division: PAGES_1_8_2, ..SEGMENT_1_7_9 };
const SEGMENT_1_8_4: SegmentLayout = SegmentLayout {
    releases: "1.8.4 to 1.8.7",
    thread_id: 112,
    division: PAGES_1_8_4,
    page: &PAGE_1_8_4,
    delayed_free: 8,
    collect_rules: Some(COLLECT_1_8_4),
    ..SEGMENT_1_8_2
};
const SEGMENT_1_8_9: SegmentLayout = SegmentLayout {
    releases: "1.8.9 to 1.9",
    cookie: 112,
    thread_id: 136,
    used: 88,
    division: PAGES_1_8_9,
    // 7408 to 7432 bytes from 1.9.2 on, with more statistics.
    thread_data: Some(ThreadDataBytes { earlier: 3728, later: Some(7408) }),
    ..SEGMENT_1_8_4
};
const SEGMENT_2_0_3: SegmentLayout = SegmentLayout {
    releases: "2.0.3 to 2.0.7",
    bytes: 64 * MIB,
    cookie: 320,
    thread_id: 352,
    used: 312,
    division: SLICES_2_0_3,
    page: &PAGE_2,
    delayed_free: 2840,
    collect_rules: Some(COLLECT_2_0_3),
    // 4592 to 4744 bytes up to 2.1.9.
    thread_data: Some(ThreadDataBytes { earlier: 4592, later: None }),
    size: None,
    masks: Some(MASKS_2_0_3),
};
const SEGMENT_2_0_9: SegmentLayout = SegmentLayout {
    releases: "2.0.9",
    bytes: 32 * MIB,
    cookie: 216,
    thread_id: 256,
    used: 208,
    division: SLICES_2_0_9,
    collect_rules: Some(COLLECT_2_0_9),
    masks: Some(MASKS_2_0_9),
    ..SEGMENT_2_0_3
};
const SEGMENT_2_1: SegmentLayout = SegmentLayout {
    releases: "2.1.0 to 2.1.2",
    collect_rules: Some(COLLECT_2_1),
    size: Some(32),
    masks: Some(MASKS_2_1),
    ..SEGMENT_2_0_9
};
/// No collection is predicted or called: its threads have several heaps each, whose pages are freed
/// only when no other thread can read them.
const SEGMENT_CPYTHON: SegmentLayout = SegmentLayout {
    releases: "CPython 3.13 and 3.14",
    page: &PAGE_CPYTHON,
    collect_rules: None,
    thread_data: None,
    masks: None,
    ..SEGMENT_2_0_9
};
const SEGMENT_2_1_4: SegmentLayout = SegmentLayout {
    releases: "2.1.4 to 2.1.7",
    page: &PAGE_2_1_4,
    delayed_free: 8,
    collect_rules: Some(COLLECT_2_1_4),
    masks: Some(MASKS_2_1),
    ..SEGMENT_2_0_9
};
const SEGMENT_2_1_9: SegmentLayout = SegmentLayout {
    releases: "2.1.9 to 2.4",
    cookie: 224,
    thread_id: 280,
    used: 216,
    division: SLICES_2_1_9,
    masks: Some(MASKS_2_1_9),
    // 8216 to 8240 bytes from 2.2.2 on, with more statistics.
    thread_data: Some(ThreadDataBytes { earlier: 4592, later: Some(8216) }),
    ..SEGMENT_2_1_4
};
/// CPython's own 2.5.2 without a global lock; with one it has the layout of 2.1.9 to 2.4.
const SEGMENT_CPYTHON_2_5: SegmentLayout = SegmentLayout {
    releases: "CPython 3.14.10",
    page: &PAGE_CPYTHON_2_5,
    collect_rules: None,
    thread_data: None,
    masks: None,
    ..SEGMENT_2_1_9
};

/// All known layouts.
pub static SEGMENTS: [SegmentLayout; 12] = [
    SEGMENT_2_1_9,
    SEGMENT_2_1_4,
    SEGMENT_2_1,
    SEGMENT_2_0_9,
    SEGMENT_CPYTHON,
    SEGMENT_CPYTHON_2_5,
    SEGMENT_2_0_3,
    SEGMENT_1_8_9,
    SEGMENT_1_8_4,
    SEGMENT_1_8_2,
    SEGMENT_1_7_9,
    SEGMENT_1_6,
];

/// Bytes of a thread's heap (`types.h`, `struct mi_heap_s`) from 1.9.2 and 2.2.2 on, and from 1.9.8
/// and 2.3.0 on; 3064 in earlier releases with these layouts. With `MI_GUARDED` it has 3120 (1.9.2
/// and 2.2.2), 3112 (1.9.4), 3120 (from 1.9.8 and 2.3.0 on) and 3104 bytes. The thread's other data
/// (`mi_tld_t`), to which its first word points, follows it.
pub const LATER_HEAP_BYTES: [u64; 4] = [3080, 3088, 3112, 3120];
/// Bytes read of a segment to recognise it, up to its first two pages.
pub const HEADER_BYTES: usize = 640;
/// Alignment of all segments.
pub const ALIGNMENT: u64 = 4 * MIB;
/// Binary logarithms of page sizes in segments of 1.x: 64 KiB, 512 KiB, 4 MiB.
pub const PAGE_SHIFTS: [u64; 3] = [16, 19, 22];
/// Maximum bytes of a page in which the first block is aligned (`MI_PAGE_MEDIUM`, 1.x).
pub const MAX_ALIGNED_PAGE_BYTES: u64 = 1 << PAGE_SHIFTS[1];
/// `page_kind` of a segment with a single block (`MI_PAGE_HUGE`, 1.x).
pub const HUGE_PAGE_KIND: u32 = 3;
/// `kind` of a segment that is divided into pages (`MI_SEGMENT_NORMAL`, 2.x).
pub const NORMAL_SEGMENT_KIND: u32 = 0;
/// `kind` of a segment with a single block (`MI_SEGMENT_HUGE`, 2.x).
pub const HUGE_SEGMENT_KIND: u32 = 1;
/// Offset of `slice_count` in the structure of a slice (2.x), of 32 bits: slices of its span.
pub const SLICE_COUNT: usize = 0;
/// Offset of `slice_offset`, of 32 bits: 0 in the first slice of a span.
pub const SLICE_OFFSET: usize = 4;
/// `xblock_size` of a slice inside a span (`mi_segment_span_allocate`, 2.x), and of a page that is
/// being freed (`mi_segment_page_clear`). It is 0 in a free span.
pub const NO_PAGE_BLOCK_BYTES: u64 = 1;
