//! Layouts of mimalloc's structures by version, as data: standard 64-bit builds, without padding
//! and encoded lists (`MI_SECURE`, `MI_DEBUG`).

use super::parts::{ArenaPurge, Collect, SpanPurge};
use strandline_process::memory::{half_word_at, word_at};
use strandline_process::pages::USER_ADDRESS_END;
use strandline_process::range::AddressRange;

/// Offsets in a page (`types.h`, `struct mi_page_s`): a run of blocks of one size.
#[derive(Debug, PartialEq, Eq)]
pub struct PageLayout {
    /// Bytes of the structure.
    pub bytes: usize,
    /// `capacity`: blocks that were initialised, 16 bits.
    capacity: usize,
    /// `reserved`: blocks that fit, 16 bits.
    reserved: usize,
    /// `free`.
    free: usize,
    /// `local_free`.
    local_free: usize,
    /// `xthread_free`, with a state in its low bits.
    thread_free: usize,
    /// `used`.
    used: SizedField,
    /// `block_size` or `xblock_size`.
    block_bytes: SizedField,
    /// `xheap`; from 3.2 on `theap`, and `heap`.
    heaps: [usize; 2],
    /// Where the first block begins.
    pub start: FirstBlock,
    /// Whether the first word is `xthread_id`, with flags in its low bits.
    has_thread: bool,
    /// `flags`, whose first bit is `in_full`, followed by a byte whose upper seven bits are
    /// `retire_expire`; and `next`, followed by `prev`. `None` for releases where the order of
    /// pages does not matter.
    queue: Option<(usize, usize)>,
    /// `memid.mem.arena` of 3.x: the arena, then in 32 bits each the first slice in it and the
    /// number of slices.
    arena: Option<usize>,
}

/// A field whose width differs between releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SizedField {
    offset: usize,
    /// 16, 32 or 64.
    bits: u32,
}

const fn field(offset: usize, bits: u32) -> SizedField {
    SizedField { offset, bits }
}

/// Where the first block of a page begins.
#[derive(Debug, PartialEq, Eq)]
pub enum FirstBlock {
    /// At the address in this field (`page_start`).
    Field(usize),
    /// As many words after the page's structure as this field holds (`page_woffset`, 32 bits).
    Words(usize),
    /// At a multiple of the block size, in the first page of a segment (`_mi_segment_page_start`,
    /// 1.x).
    FirstAligned,
    /// At an offset that depends on the block size, by one of [`OFFSETS`]
    /// (`_mi_segment_page_start_from_slice`, 2.0 to 2.1.2).
    Offset,
}

/// 1.6 to 1.8.2.
const PAGE_1: PageLayout = PageLayout {
    bytes: 64,
    capacity: 2,
    reserved: 4,
    free: 8,
    local_free: 24,
    thread_free: 32,
    used: field(16, 32),
    block_bytes: field(20, 32),
    heaps: [40, 40],
    start: FirstBlock::FirstAligned,
    has_thread: false,
    queue: None,
    arena: None,
};
/// 1.8.4 to 1.9.
const PAGE_1_8_4: PageLayout = PageLayout {
    bytes: 80,
    capacity: 2,
    reserved: 4,
    free: 8,
    local_free: 16,
    thread_free: 48,
    used: field(24, 16),
    block_bytes: field(32, 64),
    heaps: [56, 56],
    start: FirstBlock::Field(40),
    has_thread: false,
    queue: None,
    arena: None,
};
/// 2.0 to 2.1.2.
const PAGE_2: PageLayout = PageLayout {
    bytes: 80,
    capacity: 10,
    reserved: 12,
    free: 16,
    local_free: 32,
    thread_free: 40,
    used: field(24, 32),
    block_bytes: field(28, 32),
    heaps: [48, 48],
    start: FirstBlock::Offset,
    has_thread: false,
    queue: Some((14, 56)),
    arena: None,
};
/// CPython's own without a global lock (3.13t and later, `Include/internal/mimalloc`): 2.1.2 with
/// more fields at the end.
const PAGE_CPYTHON: PageLayout = PageLayout { bytes: 96, ..PAGE_2 };
/// 2.1.4 to 2.4.
const PAGE_2_1_4: PageLayout = PageLayout {
    bytes: 96,
    capacity: 10,
    reserved: 12,
    free: 16,
    local_free: 24,
    thread_free: 56,
    used: field(32, 16),
    block_bytes: field(40, 64),
    heaps: [64, 64],
    start: FirstBlock::Field(48),
    has_thread: false,
    queue: Some((14, 72)),
    arena: None,
};
/// CPython's own of later 3.14t: 2.5.2 with more fields at the end.
const PAGE_CPYTHON_2_5: PageLayout = PageLayout { bytes: 112, ..PAGE_2_1_4 };
/// 3.0 to 3.3.
pub const PAGE_3: PageLayout = PageLayout {
    bytes: 120,
    capacity: 18,
    reserved: 20,
    free: 8,
    local_free: 24,
    thread_free: 32,
    used: field(16, 16),
    block_bytes: field(40, 64),
    heaps: [56, 64],
    start: FirstBlock::Field(48),
    has_thread: true,
    queue: None,
    arena: Some(96),
};
/// 3.4.
pub const PAGE_3_4: PageLayout =
    PageLayout { bytes: 112, start: FirstBlock::Words(48), arena: Some(88), ..PAGE_3 };

/// The fields of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageWords {
    /// Blocks that were initialised.
    pub capacity: u64,
    /// Blocks that fit.
    pub reserved: u64,
    /// Blocks that are not in its own lists.
    pub used: u64,
    /// Bytes of a block; 0 if there is no page.
    pub block_bytes: u64,
    /// Lists of free blocks: two of its thread, and one of blocks that other threads freed.
    pub lists: [u64; 3],
    /// The heaps that it belongs to, its thread's and another; 0 if none.
    pub heaps: [u64; 2],
    /// Where its first block begins, if a field holds that.
    pub start: Option<u64>,
    /// The thread that it belongs to, if a field holds that (3.x).
    pub thread: u64,
    /// Start and size of its memory according to its arena.
    pub slices: Option<AddressRange>,
    /// Address of its structure.
    pub structure: u64,
    /// The next and the previous structure in its heap's queue; 0 if none.
    pub links: [u64; 2],
    /// Whether it is in the queue of full pages.
    pub is_full: bool,
    /// Whether it is kept for a time although it is empty.
    pub is_retired: bool,
}

/// `xblock_size` of blocks of 2 GiB and more (`MI_HUGE_BLOCK_SIZE`).
const HUGE_BLOCK: u64 = 2 << 30;

impl PageLayout {
    /// Whether the segment uses the page of this structure: `segment_in_use`, the first bit of the
    /// second byte (1.x).
    pub fn is_in_use(structure: &[u8]) -> bool {
        structure.get(1).is_some_and(|flags| flags & 1 != 0)
    }

    /// Parses the structure of a page at `address`; `None` if bytes are missing.
    pub fn read(&self, bytes: &[u8], address: u64) -> Option<PageWords> {
        let half = |at: usize| half_word_at(bytes, at).map(u64::from);
        let sized = |field: SizedField| match field.bits {
            16 => half(field.offset).map(|word| word & 0xffff),
            32 => half(field.offset),
            _ => word_at(bytes, field.offset),
        };
        let start = match self.start {
            FirstBlock::Field(at) => Some(word_at(bytes, at)?),
            FirstBlock::Words(at) => Some(address.checked_add(8 * half(at)?)?),
            FirstBlock::FirstAligned | FirstBlock::Offset => None,
        };
        let block_bytes = sized(self.block_bytes)?;
        let (flags, links) = match self.queue {
            Some((flags, next)) => (half(flags)?, [word_at(bytes, next)?, word_at(bytes, next + 8)?]),
            None => (0, [0; 2]),
        };
        let slices = |at: usize| {
            let (first, count) = (half(at + 8)?, half(at + 12)?);
            Some(AddressRange::sized(
                word_at(bytes, at)?.checked_add(first * SLICE_BYTES)?,
                count * SLICE_BYTES,
            ))
        };
        Some(PageWords {
            slices: self.arena.and_then(slices),
            structure: address,
            links,
            is_full: flags & 1 != 0,
            is_retired: flags >> 9 & 0x7f != 0,
            capacity: half(self.capacity)? & 0xffff,
            reserved: half(self.reserved)? & 0xffff,
            used: sized(self.used)?,
            // The size is then taken from the area.
            block_bytes: if self.block_bytes.bits == 32 && block_bytes >= HUGE_BLOCK {
                u64::MAX
            } else {
                block_bytes
            },
            lists: [
                word_at(bytes, self.free)?,
                word_at(bytes, self.local_free)?,
                word_at(bytes, self.thread_free)? & !7,
            ],
            heaps: [word_at(bytes, self.heaps[0])?, word_at(bytes, self.heaps[1])?],
            start,
            thread: if self.has_thread { word_at(bytes, 0)? & !7 } else { 0 },
        })
    }
}

/// Offset of the first block in the area of a page of 2.0 to 2.1.2, in the order of releases: 2.0.0
/// to 2.0.2; to 2.0.6; to 2.1.0; 2.1.1 and 2.1.2.
pub static OFFSETS: [fn(u64) -> u64; 4] = [
    |_| 0,
    |bytes| if (8..=1024).contains(&bytes) { 128 } else { 0 },
    |bytes| if (8..=1024).contains(&bytes) { 384 } else { 0 },
    |bytes| match bytes {
        8..=64 => 3 * bytes,
        65..=512 => bytes,
        _ => 0,
    },
];

/// Offsets in a segment (`types.h`, `struct mi_segment_s`), which contains pages, up to 2.4.
#[derive(Debug, PartialEq, Eq)]
pub struct SegmentLayout {
    /// Releases with this layout.
    pub releases: &'static str,
    /// Its alignment, and its size unless it holds a single block.
    pub bytes: u64,
    /// `cookie`: its address XOR a key of the process (`internal.h`, `_mi_ptr_cookie`).
    pub cookie: usize,
    /// `thread_id`: 0 if its thread ended, or it was freed.
    pub thread_id: usize,
    /// `used`: pages in use.
    pub used: usize,
    /// Its division.
    pub parts: SegmentDivision,
    /// Layout of its pages.
    pub page: &'static PageLayout,
    /// Offset in a heap of `thread_delayed_free`, a list of blocks that other threads freed.
    pub delayed_free: u64,
    /// What a collection releases; `None` if that cannot be predicted (up to 1.8.2 freed memory
    /// stays for an unknown time).
    pub collect: Option<Collect>,
    /// Whether threads' own data, including their heaps, is taken from the kernel; CPython's is in
    /// its thread states.
    pub has_thread_data: bool,
    /// `segment_size`, if only that distinguishes it from another layout.
    pub size: Option<usize>,
    /// Offsets of the masks of its free slices.
    pub masks: Option<Masks>,
}

/// Offsets of what a segment of 2.x holds about its free slices.
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

/// 2.0.3 to 2.0.7, 2.0.9, 2.1.0 to 2.1.7, 2.1.9 to 2.4.
const MASKS_2_0_3: Masks = Masks { allow: 11, expire: 16, slices: 24, words: 16 };
const MASKS_2_0_9: Masks = Masks { allow: 32, expire: 40, slices: 48, words: 8 };
const MASKS_2_1: Masks = Masks { allow: 25, expire: 40, slices: 48, words: 8 };
const MASKS_2_1_9: Masks = Masks { allow: 25, expire: 48, slices: 56, words: 8 };

/// Division of a segment.
#[derive(Debug, PartialEq, Eq)]
pub enum SegmentDivision {
    /// Into pages of one size (1.x): offsets of their number, size and kind, of the size of the
    /// segment and of its own structures, and of the page structures.
    Pages {
        /// `capacity`.
        capacity: usize,
        /// `page_shift`.
        page_shift: usize,
        /// `page_kind`; [`HUGE_PAGE_KIND`] for a single block.
        page_kind: usize,
        /// `segment_size`.
        segment_bytes: usize,
        /// `segment_info_size`.
        info_bytes: usize,
        /// `pages`.
        pages: usize,
    },
    /// Into slices of 64 KiB (2.x): offsets of their number, of the number for its own structures,
    /// of its kind, of the number of slice structures, and of these.
    Slices {
        /// `segment_slices`.
        slices: usize,
        /// `segment_info_slices`.
        info_slices: usize,
        /// `kind`; [`HUGE_SEGMENT_KIND`] for a single block.
        kind: usize,
        /// `slice_entries`.
        entries: usize,
        /// `slices`.
        structures: usize,
    },
}

const fn pages(
    [capacity, page_shift, page_kind, segment_bytes, info_bytes, pages]: [usize; 6],
) -> SegmentDivision {
    SegmentDivision::Pages { capacity, page_shift, page_kind, segment_bytes, info_bytes, pages }
}

const fn slices([slices, info_slices, kind, entries, structures]: [usize; 5]) -> SegmentDivision {
    SegmentDivision::Slices { slices, info_slices, kind, entries, structures }
}

const fn segment(
    releases: &'static str,
    bytes: u64,
    [cookie, thread_id, used]: [usize; 3],
    parts: SegmentDivision,
    page: &'static PageLayout,
    delayed_free: u64,
    collect: Option<Collect>,
) -> SegmentLayout {
    SegmentLayout {
        releases,
        bytes,
        cookie,
        thread_id,
        used,
        parts,
        page,
        delayed_free,
        collect,
        has_thread_data: true,
        size: None,
        masks: None,
    }
}

/// `mi_heap_collect_ex` of 1.8.4 to 1.9, 2.0.3 to 2.0.7, 2.0.9, 2.1.0 to 2.1.2 (as in 2.1.2:
/// before, nothing waits for the main thread either), 2.1.4 to 2.4, 3.x.
const COLLECT_1: Collect =
    Collect { pages: true, ended: true, arenas: ArenaPurge::AnyThread, spans: SpanPurge::None };
const COLLECT_2_0_3: Collect =
    Collect { pages: false, ended: true, arenas: ArenaPurge::AnyThread, spans: SpanPurge::Kept };
const COLLECT_2_0_9: Collect = Collect { spans: SpanPurge::WhenDue, ..COLLECT_2_0_3 };
const COLLECT_2_1: Collect = Collect { arenas: ArenaPurge::MainThread, ..COLLECT_2_0_9 };
const COLLECT_2_1_4: Collect = Collect { spans: SpanPurge::AtVisits, ..COLLECT_2_0_3 };
/// What ended threads left stays.
pub const COLLECT_3: Collect =
    Collect { pages: true, ended: false, arenas: ArenaPurge::AnyThread, spans: SpanPurge::None };

const MIB: u64 = 1 << 20;

/// All known layouts.
pub static SEGMENTS: [SegmentLayout; 12] = [
    SegmentLayout {
        masks: Some(MASKS_2_1_9),
        ..segment(
            "2.1.9 to 2.4",
            32 * MIB,
            [224, 280, 216],
            slices([248, 256, 264, 272, 288]),
            &PAGE_2_1_4,
            8,
            Some(COLLECT_2_1_4),
        )
    },
    SegmentLayout {
        masks: Some(MASKS_2_1),
        ..segment(
            "2.1.4 to 2.1.7",
            32 * MIB,
            [216, 256, 208],
            slices([224, 232, 240, 248, 264]),
            &PAGE_2_1_4,
            8,
            Some(COLLECT_2_1_4),
        )
    },
    SegmentLayout {
        masks: Some(MASKS_2_1),
        size: Some(32),
        ..segment(
            "2.1.0 to 2.1.2",
            32 * MIB,
            [216, 256, 208],
            slices([224, 232, 240, 248, 264]),
            &PAGE_2,
            2840,
            Some(COLLECT_2_1),
        )
    },
    SegmentLayout {
        masks: Some(MASKS_2_0_9),
        ..segment(
            "2.0.9",
            32 * MIB,
            [216, 256, 208],
            slices([224, 232, 240, 248, 264]),
            &PAGE_2,
            2840,
            Some(COLLECT_2_0_9),
        )
    },
    SegmentLayout {
        has_thread_data: false,
        ..segment(
            "CPython 3.13 and 3.14",
            32 * MIB,
            [216, 256, 208],
            slices([224, 232, 240, 248, 264]),
            // Its threads have several heaps each, whose pages are freed only when no other thread
            // can look at them: no call is made.
            &PAGE_CPYTHON,
            2840,
            None,
        )
    },
    SegmentLayout {
        has_thread_data: false,
        ..segment(
            // With a global lock its layout is that of 2.1.9 to 2.4.
            "CPython 3.14.10",
            32 * MIB,
            [224, 280, 216],
            slices([248, 256, 264, 272, 288]),
            &PAGE_CPYTHON_2_5,
            8,
            None,
        )
    },
    SegmentLayout {
        masks: Some(MASKS_2_0_3),
        ..segment(
            "2.0.3 to 2.0.7",
            64 * MIB,
            [320, 352, 312],
            slices([328, 336, 344, 360, 368]),
            &PAGE_2,
            2840,
            Some(COLLECT_2_0_3),
        )
    },
    segment(
        "1.8.9 to 1.9",
        4 * MIB,
        [112, 136, 88],
        pages([96, 144, 152, 32, 104, 160]),
        &PAGE_1_8_4,
        8,
        Some(COLLECT_1),
    ),
    segment(
        "1.8.4 to 1.8.7",
        4 * MIB,
        [104, 112, 80],
        pages([88, 120, 128, 32, 96, 136]),
        &PAGE_1_8_4,
        8,
        Some(COLLECT_1),
    ),
    segment("1.8.2", 4 * MIB, [104, 120, 80], pages([88, 112, 128, 32, 96, 136]), &PAGE_1, 2840, None),
    segment(
        "1.7.9 and 1.8.0",
        4 * MIB,
        [104, 120, 72],
        pages([80, 112, 128, 88, 96, 136]),
        &PAGE_1,
        2840,
        None,
    ),
    segment("1.6 to 1.7.7", 4 * MIB, [88, 104, 56], pages([64, 96, 112, 72, 80, 120]), &PAGE_1, 2840, None),
];

/// Bytes read of a segment to recognise it, up to its first two pages.
pub const HEADER_BYTES: usize = 640;
/// Alignment of all segments.
pub const ALIGNMENT: u64 = 4 * MIB;
/// Bytes of a slice (`MI_SEGMENT_SLICE_SIZE`, `MI_ARENA_SLICE_SIZE`), and of the smallest page.
pub const SLICE_BYTES: u64 = 64 << 10;
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

/// Entries of a submap in the two-level page map of 3.x (`page-map.c`), one per slice.
pub const SUBMAP_ENTRIES: u64 = 1 << 13;
/// Bytes of a submap.
pub const SUBMAP_BYTES: u64 = 8 * SUBMAP_ENTRIES;
/// Addresses that a submap covers.
pub const SUBMAP_SPAN: u64 = SUBMAP_ENTRIES * SLICE_BYTES;
/// Bytes of the upper level, for 47-bit addresses.
pub const MAP_BYTES: u64 = 8 * (USER_ADDRESS_END / SUBMAP_SPAN);
/// Offset of the bits in a bitmap of an arena (`bitmap.h`, `struct mi_bitmap_s`): they follow the
/// number of chunks and a map of the chunks, 64 bytes each. A chunk has 512 bits.
pub const BITMAP_BITS: u64 = 128;
/// Bits of a chunk.
pub const CHUNK_BITS: u64 = 512;
/// Index of `slices_purge` in the consecutive bitmaps that an arena points to (`slices_free`,
/// `slices_committed`, `slices_dirty`, `slices_purge`).
pub const PURGE_BITMAP: usize = 3;
/// Position of the first of these, in words of an arena, in releases that purge only whole huge
/// pages of 2 MiB if the kernel has them (3.1, 3.2; `_mi_os_minimal_purge_size`).
pub const PURGED_IN_RUNS: [usize; 2] = [10, 11];
/// Sizes of blocks in large pages, above those in medium pages. 3.1.4 and 3.1.5 have no large pages
/// (`MI_ENABLE_LARGE_PAGES`, `MI_MEDIUM_MAX_OBJ_SIZE`, `MI_LARGE_MAX_OBJ_SIZE`).
pub const LARGE_BYTES: std::ops::RangeInclusive<u64> = (64 << 10) + 1..=512 << 10;
/// Bytes of a run that is purged as a whole.
pub const RUN_BYTES: u64 = 2 << 20;
/// Words of an arena (`struct mi_arena_s`) that hold its number of slices and how many of them are
/// its own.
pub const ARENA_WORDS: usize = 24;
