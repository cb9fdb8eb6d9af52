//! Where the Go runtime's structures stand, by version, on 64 bits.
//!
//! Offsets were printed from the debugging information of programs made by 1.18.10, 1.19.8, 1.20.14, 1.21.13, 1.22.12, 1.23.8, 1.24.7,
//! 1.25.3, 1.26.8 and 1.27.0 (`runtime/mheap.go`, `mpagealloc.go`, `mgcpacer.go`, `mstats.go`), and all of these were run. What is
//! read of one is believed only where all of it agrees.

/// Bytes of a page of the runtime's (`_PageSize`).
pub const PAGE_BYTES: u64 = 8 << 10;
/// What the heap grows by, at least (`pallocChunkBytes`).
pub const CHUNK_BYTES: u64 = 4 << 20;
/// Entries of each level of `pageAlloc.chunks` (`pallocChunksL1Bits`, `pallocChunksL2Bits`).
pub const CHUNK_ENTRIES: u64 = 1 << 13;
/// Bytes of `pallocData`: which pages of a chunk are in use, and which were given back, 64 bytes each.
pub const CHUNK_DATA_BYTES: u64 = 128;
/// The least address, as the runtime counts them (`arenaBaseOffset`).
pub const BASE: u64 = 0xffff_8000_0000_0000;
/// Bytes of what `mheap.arenas` leads to: an entry, to a `heapArena`, for each so many bytes of the address space.
pub const ARENA_SPAN: u64 = 64 << 20;
/// See [`ARENA_SPAN`].
pub const ARENAS_BYTES: u64 = 32 << 20;
/// Levels of `pageAlloc.summary`: a slice each, at the begin of `pageAlloc`.
pub const SUMMARY_LEVELS: u64 = 5;
/// In `pageAlloc`: `chunks`, `inUse.ranges`.
pub const CHUNKS: u64 = 0x78;
/// See [`CHUNKS`].
pub const RANGES: u64 = 0x1_0090;
/// In `mheap`: so many bytes are searched for what it leads to: those of the smallest that is known.
pub const HEAP_BYTES: u64 = 92_672;

/// `mSpanInUse`, `mSpanManual` (`state`).
pub const IN_USE: u8 = 1;
/// See [`IN_USE`].
pub const MANUAL: u8 = 2;
/// In a span: `startAddr`, `npages`.
pub const SPAN_START: usize = 0x18;
/// See [`SPAN_START`].
pub const SPAN_PAGES: usize = 0x20;
/// So many bytes of a span are read.
pub const SPAN_BYTES: usize = 0x78;
/// A span has no more objects than this.
pub const MAX_OBJECTS: u64 = PAGE_BYTES / 8;

/// Of some versions.
#[derive(Debug, PartialEq, Eq)]
pub struct Layout {
    /// The first and the last minor version.
    pub minors: (u8, u8),
    /// In `mheap`: `pages`, `allspans`, `arenas`.
    pub pages: u64,
    /// See [`Layout::pages`].
    pub all_spans: u64,
    /// See [`Layout::pages`].
    pub arenas: u64,
    /// Bytes of a `heapArena`.
    pub arena_bytes: u64,
    /// In a span: `freeindex` and `nelems`, of so many bytes each.
    pub free_index: usize,
    /// See [`Layout::free_index`].
    pub objects: usize,
    /// See [`Layout::free_index`].
    pub count_bytes: usize,
    /// In a span: `allocBits`, `gcmarkBits` behind it.
    pub bits: usize,
    /// In a span: `allocCount` (16 bits).
    pub used: usize,
    /// In a span: `state`.
    pub state: usize,
    /// In a span: `elemsize`.
    pub object_bytes: usize,
    /// In `gcController`: `heapInUse`, behind it `heapReleased` and `heapFree`; from 1.19 on.
    pub in_use: Option<u64>,
    /// In `memstats`: the deltas.
    pub stats: u64,
    /// In `memstats`: `heap_inuse`, behind it `heap_released`; up to 1.18.
    pub stats_in_use: Option<u64>,
    /// In `gcController`: `heapMarked`.
    pub marked: u64,
    /// In `gcController`: `memoryLimit`; from 1.19 on.
    pub memory_limit: Option<u64>,
    /// In `gcController`: `gcPercentHeapGoal`; up to 1.18 `heapGoal`.
    pub goal: u64,
    /// Bytes of each of the three `heapStatsDelta` at the begin of `memstats`.
    pub stats_bytes: u64,
    /// How many figures behind `inHeap` in one are of spans that hold no objects.
    pub stats_manual: u64,
}

/// In `gcController` of 1.18: `heapMinimum`, the goal of a heap without anything: so much with `GOGC=100`.
pub const MINIMUM: u64 = 8;
/// See [`MINIMUM`].
pub const MINIMUM_BYTES: u64 = 4 << 20;

/// In a `heapStatsDelta`: `inHeap`, behind it `inStacks`, `inWorkBufs`, and up to 1.24 `inPtrScalarBits`.
pub const STATS_IN_HEAP: u64 = 0x10;

const OLD: Layout = Layout {
    minors: (18, 19),
    pages: 0x10,
    all_spans: 0x1_0140,
    arenas: 0x1_0190,
    arena_bytes: 2_165_776,
    free_index: 0x30,
    objects: 0x38,
    count_bytes: 8,
    bits: 0x48,
    used: 0x60,
    state: 0x63,
    object_bytes: 0x68,
    in_use: Some(0x130),
    stats: 0,
    stats_in_use: None,
    marked: 0xb8,
    memory_limit: Some(8),
    goal: 0x68,
    stats_bytes: 1176,
    stats_manual: 3,
};

const NEW: Layout = Layout {
    minors: (22, 24),
    pages: 8,
    all_spans: 0x1_0148,
    arenas: 0x1_01d8,
    arena_bytes: 68_624,
    free_index: 0x30,
    objects: 0x32,
    count_bytes: 2,
    bits: 0x40,
    used: 0x60,
    state: 0x63,
    object_bytes: 0x68,
    in_use: Some(0x110),
    stats: 0,
    stats_in_use: None,
    marked: 0x98,
    memory_limit: Some(8),
    goal: 0x48,
    stats_bytes: 1176,
    stats_manual: 3,
};

/// All of them.
pub static LAYOUTS: [Layout; 6] = [
    Layout {
        minors: (18, 18),
        pages: 8,
        all_spans: 0x1_0138,
        in_use: None,
        stats: 0x1748,
        stats_in_use: Some(0x38),
        marked: 0xa8,
        memory_limit: None,
        ..OLD
    },
    Layout { minors: (19, 19), ..OLD },
    Layout {
        minors: (20, 20),
        pages: 8,
        all_spans: 0x1_0120,
        arenas: 0x1_0170,
        arena_bytes: 1_133_584,
        in_use: Some(0xf8),
        marked: 0x80,
        goal: 0x30,
        ..OLD
    },
    Layout {
        minors: (21, 21),
        arenas: 0x1_0198,
        arena_bytes: 1_133_584,
        objects: 0x38,
        count_bytes: 8,
        bits: 0x48,
        used: 0x68,
        state: 0x6b,
        object_bytes: 0x70,
        ..NEW
    },
    NEW,
    Layout { minors: (25, 27), stats_bytes: 1168, stats_manual: 2, ..NEW },
];
