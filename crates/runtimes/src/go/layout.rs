//! Offsets in the Go runtime's structures on linux/amd64, by version.
//!
//! Printed from the debugging information of programs made by 1.18.10, 1.19.8, 1.20.14, 1.21.13,
//! 1.22.12, 1.23.8, 1.24.7, 1.25.3, 1.26.8 and 1.27.0 (`runtime/mheap.go`, `mpagealloc.go`,
//! `mgcpacer.go`, `mstats.go`); all of these versions were run. A structure is trusted only if all
//! fields read from it agree.

/// Bytes read of the section `.go.buildinfo`: a header and the version that follows it.
pub const BUILD_INFORMATION_BYTES: u64 = 256;

/// Bytes of a runtime page (`_PageSize`).
pub const RUNTIME_PAGE_BYTES: u64 = 8 << 10;
/// Smallest step in which the heap grows (`pallocChunkBytes`).
pub const CHUNK_BYTES: u64 = 4 << 20;
/// Entries of each level of `pageAlloc.chunks` (`pallocChunksL1Bits`, `pallocChunksL2Bits`).
pub const CHUNK_ENTRIES: u64 = 1 << 13;
/// Bytes of `pallocData`: two bitmaps of 64 bytes each, pages in use and pages released.
pub const CHUNK_DATA_BYTES: u64 = 128;
/// Lowest address in the runtime's numbering of arenas and chunks (`arenaBaseOffset`).
pub const ARENA_BASE: u64 = 0xffff_8000_0000_0000;
/// Bytes of address space that one entry of the table `mheap.arenas` covers; the entry points to a
/// `heapArena`.
pub const ARENA_ENTRY_BYTES: u64 = 64 << 20;
/// Bytes of the table that `mheap.arenas` points to.
pub const ARENA_TABLE_BYTES: u64 = 32 << 20;
/// Levels of `pageAlloc.summary`: one slice each, at the start of `pageAlloc`.
pub const SUMMARY_LEVELS: u64 = 5;
/// `chunks` in `pageAlloc`.
pub const PAGE_ALLOC_CHUNKS: u64 = 0x78;
/// `inUse.ranges` in `pageAlloc`.
pub const PAGE_ALLOC_RANGES: u64 = 0x1_0090;
/// Bytes of `mheap` searched for pointers: the size of the smallest known version.
pub const MHEAP_BYTES: u64 = 92_672;

/// State of a span that is not in use (`mSpanDead`).
pub const SPAN_DEAD: u8 = 0;
/// State of a span of objects (`mSpanInUse`).
pub const SPAN_IN_USE: u8 = 1;
/// State of a span for stacks and other manual memory (`mSpanManual`).
pub const SPAN_MANUAL: u8 = 2;
/// `startAddr` in a span.
pub const SPAN_START: usize = 0x18;
/// `npages` in a span.
pub const SPAN_PAGES: usize = 0x20;
/// Bytes read of a span.
pub const SPAN_BYTES: usize = 0x78;
/// Maximum number of objects of a span.
pub const MAX_OBJECTS: u64 = RUNTIME_PAGE_BYTES / 8;

/// Offsets for a range of versions.
#[derive(Debug, PartialEq, Eq)]
pub struct Layout {
    /// First minor version with this layout.
    pub first_minor: u8,
    /// Last minor version with this layout.
    pub last_minor: u8,
    /// `pages` in `mheap`.
    pub page_alloc: u64,
    /// `allspans` in `mheap`.
    pub all_spans: u64,
    /// `arenas` in `mheap`.
    pub arenas: u64,
    /// Bytes of a `heapArena`.
    pub arena_bytes: u64,
    /// `freeindex` in a span; [`Layout::nelems_bytes`] long.
    pub free_index: usize,
    /// `nelems` in a span; [`Layout::nelems_bytes`] long.
    pub nelems: usize,
    /// Bytes of `freeindex` and of `nelems`.
    pub nelems_bytes: usize,
    /// `allocBits` in a span; `gcmarkBits` follows.
    pub alloc_bits: usize,
    /// `allocCount` in a span (16 bits).
    pub alloc_count: usize,
    /// `state` in a span.
    pub state: usize,
    /// `elemsize` in a span.
    pub object_bytes: usize,
    /// `heapInUse` in `gcController`, followed by `heapReleased` and `heapFree`; from 1.19 on.
    pub heap_in_use: Option<u64>,
    /// `heapStats` in `memstats`, which begins with three `heapStatsDelta`.
    pub deltas: u64,
    /// `heap_inuse` in `memstats`, followed by `heap_released`; up to 1.18.
    pub memstats_in_use: Option<u64>,
    /// `heapMarked` in `gcController`.
    pub heap_marked: u64,
    /// `memoryLimit` in `gcController`; from 1.19 on.
    pub memory_limit: Option<u64>,
    /// `gcPercentHeapGoal` in `gcController`; up to 1.18 `heapGoal`.
    pub heap_goal: u64,
    /// Bytes of a `heapStatsDelta`.
    pub delta_bytes: u64,
    /// Number of figures after `inHeap` that count spans without objects.
    pub manual_figure_count: u64,
}

/// `heapMinimum`, the smallest heap goal, in `gcController` of 1.18.
pub const HEAP_MINIMUM: u64 = 8;
/// Value of `heapMinimum` with `GOGC=100`.
pub const HEAP_MINIMUM_AT_100: u64 = 4 << 20;

/// `inHeap` in a `heapStatsDelta`, followed by `inStacks`, `inWorkBufs`, and up to 1.24
/// `inPtrScalarBits`.
pub const DELTA_IN_HEAP: u64 = 0x10;

/// Layout of 1.19.
const LAYOUT_1_19: Layout = Layout {
    first_minor: 19,
    last_minor: 19,
    page_alloc: 0x10,
    all_spans: 0x1_0140,
    arenas: 0x1_0190,
    arena_bytes: 2_165_776,
    free_index: 0x30,
    nelems: 0x38,
    nelems_bytes: 8,
    alloc_bits: 0x48,
    alloc_count: 0x60,
    state: 0x63,
    object_bytes: 0x68,
    heap_in_use: Some(0x130),
    deltas: 0,
    memstats_in_use: None,
    heap_marked: 0xb8,
    memory_limit: Some(8),
    heap_goal: 0x68,
    delta_bytes: 1176,
    manual_figure_count: 3,
};

/// Layout of 1.22 to 1.24.
const LAYOUT_1_22: Layout = Layout {
    first_minor: 22,
    last_minor: 24,
    page_alloc: 8,
    all_spans: 0x1_0148,
    arenas: 0x1_01d8,
    arena_bytes: 68_624,
    free_index: 0x30,
    nelems: 0x32,
    nelems_bytes: 2,
    alloc_bits: 0x40,
    alloc_count: 0x60,
    state: 0x63,
    object_bytes: 0x68,
    heap_in_use: Some(0x110),
    deltas: 0,
    memstats_in_use: None,
    heap_marked: 0x98,
    memory_limit: Some(8),
    heap_goal: 0x48,
    delta_bytes: 1176,
    manual_figure_count: 3,
};

/// The layouts of all known versions.
pub static LAYOUTS: [Layout; 6] = [
    Layout {
        first_minor: 18,
        last_minor: 18,
        page_alloc: 8,
        all_spans: 0x1_0138,
        heap_in_use: None,
        deltas: 0x1748,
        memstats_in_use: Some(0x38),
        heap_marked: 0xa8,
        memory_limit: None,
        ..LAYOUT_1_19
    },
    LAYOUT_1_19,
    Layout {
        first_minor: 20,
        last_minor: 20,
        page_alloc: 8,
        all_spans: 0x1_0120,
        arenas: 0x1_0170,
        arena_bytes: 1_133_584,
        heap_in_use: Some(0xf8),
        heap_marked: 0x80,
        heap_goal: 0x30,
        ..LAYOUT_1_19
    },
    Layout {
        first_minor: 21,
        last_minor: 21,
        arenas: 0x1_0198,
        arena_bytes: 1_133_584,
        nelems: 0x38,
        nelems_bytes: 8,
        alloc_bits: 0x48,
        alloc_count: 0x68,
        state: 0x6b,
        object_bytes: 0x70,
        ..LAYOUT_1_22
    },
    LAYOUT_1_22,
    Layout {
        first_minor: 25,
        last_minor: 27,
        arena_bytes: 69_648,
        delta_bytes: 1168,
        manual_figure_count: 2,
        ..LAYOUT_1_22
    },
];
