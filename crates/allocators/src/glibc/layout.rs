//! glibc's malloc: `malloc/malloc.c` and `malloc/arena.c`, x86-64, glibc 2.31 to 2.43.
//!
//! The layout in force is determined from the structures, never from a version string: a static,
//! stripped program has none.

/// Distance of the pointers that malloc returns from their chunks (malloc.c, CHUNK_HDR_SZ).
pub const CHUNK_HEADER_BYTES: u64 = 16;

/// Bytes of the size word of a chunk (malloc.c, `SIZE_SZ`). The last word of a block in use is in
/// the next chunk, before that chunk's size word.
pub const SIZE_WORD_BYTES: u64 = 8;
/// Offset of `mchunk_size` in a chunk.
pub const CHUNK_SIZE: u64 = 8;
/// Offset of `fd` in a free chunk.
pub const CHUNK_FORWARD: u64 = 16;
/// Offset of `bk` in a free chunk.
pub const CHUNK_BACKWARD: u64 = 24;
/// Offset of `fd_nextsize` in a free chunk.
pub const CHUNK_NEXT_SIZE: u64 = 32;

/// Alignment of chunks and of their sizes (`MALLOC_ALIGNMENT`).
pub const ALIGNMENT: u64 = 16;
/// Minimum size of chunks in large bins (malloc.c, `MIN_LARGE_SIZE`).
pub const MIN_LARGE_BIN_BYTES: u64 = 1024;
/// The smallest real chunk (`MINSIZE`).
pub const MIN_CHUNK_BYTES: u64 = 32;
/// `sizeof (struct malloc_chunk)`: prev_size, size, fd, bk, fd_nextsize, bk_nextsize.
pub const CHUNK_STRUCT_BYTES: u64 = 48;
/// Size of a fencepost (`CHUNK_HDR_SZ`), too small for a real chunk.
pub const FENCEPOST_BYTES: u64 = 16;

/// Flag in the size word: the previous chunk is in use.
pub const PREV_INUSE: u64 = 1;
/// Flag in the size word: the chunk has its own mapping.
pub const IS_MMAPPED: u64 = 2;
/// Flag in the size word: the chunk belongs to a secondary arena.
pub const NON_MAIN_ARENA: u64 = 4;
/// All flags (`SIZE_BITS`).
pub const SIZE_BITS: u64 = 7;

/// `NBINS - 1`: pairs of words in `malloc_state.bins`.
pub const BIN_PAIRS: u64 = 127;

/// A secondary arena's heaps start on multiples of this (`HEAP_MAX_SIZE`, twice
/// `DEFAULT_MMAP_THRESHOLD_MAX`) unless `glibc.malloc.hugetlb` sets another page size.
pub const HEAP_MAX_BYTES: u64 = 64 << 20;
/// Number of huge pages in a heap, if heaps grow with `hp_pagesize` (arena.c, heap_max_size).
pub const HUGE_PAGES_PER_HEAP: u64 = 4;

/// `sizeof (heap_info)`: four words up to 2.34, five words and padding from 2.35 on (arena.c).
pub const HEAP_INFO_BYTES: [u64; 2] = [0x20, 0x30];
/// `heap_info.ar_ptr`.
pub const HEAP_ARENA: u64 = 0;
/// `heap_info.prev`.
pub const HEAP_PREVIOUS: u64 = 8;
/// `heap_info.size`.
pub const HEAP_SIZE: u64 = 16;

/// `struct malloc_state`, in its two layouts since 2.27.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaLayout {
    /// Offset of `bins`, which differs between the layouts.
    pub bins: u64,
    /// The fastbins; `None` where there are none (2.43).
    pub fastbins: Option<Fastbins>,
    /// Offset of `top`.
    pub top: u64,
}

/// The fastbins in a `struct malloc_state`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fastbins {
    /// Offset of `fastbinsY`.
    pub offset: u64,
    /// Number of its lists (`NFASTBINS`).
    pub count: usize,
}

/// Offset of `flags` in a `struct malloc_state`.
pub const FLAGS_OFFSET: u64 = 4;
/// The flag `NONCONTIGUOUS_BIT`.
pub const NONCONTIGUOUS: u32 = 2;

impl ArenaLayout {
    /// Offset of `next`: after the bins and the 16 bytes of `binmap`.
    pub const fn next_offset(&self) -> u64 {
        self.bins + BIN_PAIRS * 16 + 16
    }
    /// Offset of `system_mem`: after `next`, `next_free` and `attached_threads`.
    pub const fn system_mem_offset(&self) -> u64 {
        self.next_offset() + 24
    }
    /// `sizeof (struct malloc_state)`.
    pub const fn struct_bytes(&self) -> u64 {
        self.system_mem_offset() + 16
    }
}

/// glibc 2.27 to 2.42: mutex, flags, have_fastchunks, ten fastbins, top, last_remainder, bins. 2.26
/// has no have_fastchunks, and all that follows is 8 bytes earlier.
pub const ARENA_WITH_FASTBINS: ArenaLayout =
    ArenaLayout { bins: 0x70, fastbins: Some(Fastbins { offset: 0x10, count: 10 }), top: 0x60 };
/// glibc 2.43: mutex, flags, top, last_remainder, bins.
pub const ARENA_WITHOUT_FASTBINS: ArenaLayout = ArenaLayout { bins: 0x18, fastbins: None, top: 0x08 };
/// All layouts.
pub const ARENAS: [ArenaLayout; 2] = [ARENA_WITH_FASTBINS, ARENA_WITHOUT_FASTBINS];

/// `struct malloc_par` (`mp_`), offsets of its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParametersLayout {
    /// `thp_pagesize`, from 2.35 on.
    pub thp_pagesize: Option<u64>,
    /// `hp_pagesize`, from 2.35 on.
    pub hp_pagesize: Option<u64>,
    /// `n_mmaps`, a 32-bit int; `n_mmaps_max`, `max_n_mmaps` and `no_dyn_threshold` follow it.
    pub n_mmaps: u64,
    /// `mmapped_mem`; `max_mmapped_mem` and `sbrk_base` follow it.
    pub mmapped_mem: u64,
    /// `tcache_bins` (`tcache_small_bins` from 2.42 on); `tcache_max_bytes` and `tcache_count`
    /// follow it.
    pub tcache_bins: u64,
    /// Whether large bins follow the 64 small ones in a thread cache (2.42 on; `tcache::find` also
    /// recognises them by themselves).
    pub has_large_tcache_bins: bool,
    /// Whether heaps of secondary arenas grow with `hp_pagesize` (2.35 to 2.41, arena.c,
    /// heap_max_size).
    pub heaps_scale_with_hp_pagesize: bool,
    /// Whether `mmapped_mem` drifts with each mremap (2.43).
    pub mmapped_bytes_drift: bool,
}

/// Value of `trim_threshold`, `top_pad` and `mmap_threshold` until they are set or raised
/// (malloc.c, DEFAULT_TRIM_THRESHOLD and DEFAULT_MMAP_THRESHOLD_MIN; malloc-machine.h,
/// DEFAULT_TOP_PAD; 2.26 to 2.43).
pub const DEFAULT_THRESHOLD_BYTES: u64 = 128 << 10;

/// Offsets common to all layouts of `malloc_par`.
pub mod parameter_offsets {
    /// `trim_threshold`.
    pub const TRIM_THRESHOLD: u64 = 0;
    /// `top_pad`.
    pub const TOP_PAD: u64 = 8;
    /// `mmap_threshold`.
    pub const MMAP_THRESHOLD: u64 = 16;
    /// `arena_test`.
    pub const ARENA_TEST: u64 = 24;
    /// `arena_max`.
    pub const ARENA_MAX: u64 = 32;
}

/// All layouts of `malloc_par` since the thread cache (2.26).
pub const PARAMETERS: [ParametersLayout; 4] = [
    // 2.26 to 2.34.
    ParametersLayout {
        thp_pagesize: None,
        hp_pagesize: None,
        n_mmaps: 40,
        mmapped_mem: 56,
        tcache_bins: 80,
        has_large_tcache_bins: false,
        heaps_scale_with_hp_pagesize: false,
        mmapped_bytes_drift: false,
    },
    // 2.35 to 2.41, and 2.42 as first released (2025-07-28), whose values look the same, although
    // its heaps do not grow with `hp_pagesize`.
    ParametersLayout {
        thp_pagesize: Some(40),
        hp_pagesize: Some(48),
        n_mmaps: 60,
        mmapped_mem: 80,
        tcache_bins: 104,
        has_large_tcache_bins: false,
        heaps_scale_with_hp_pagesize: true,
        mmapped_bytes_drift: false,
    },
    // 2.42 since c491dabd of its branch (2025-08-11, "Fix MAX_TCACHE_SMALL_SIZE").
    ParametersLayout {
        thp_pagesize: Some(40),
        hp_pagesize: Some(48),
        n_mmaps: 60,
        mmapped_mem: 80,
        tcache_bins: 104,
        has_large_tcache_bins: true,
        heaps_scale_with_hp_pagesize: false,
        mmapped_bytes_drift: false,
    },
    // 2.43.
    ParametersLayout {
        thp_pagesize: Some(48),
        hp_pagesize: Some(56),
        n_mmaps: 68,
        mmapped_mem: 88,
        tcache_bins: 112,
        has_large_tcache_bins: true,
        heaps_scale_with_hp_pagesize: false,
        mmapped_bytes_drift: true,
    },
];

/// `struct tcache_perthread_struct` (malloc.c) since 2.30: an array of 16-bit counts, then as many
/// list heads. Before, the counts had 8 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadCacheLayout {
    /// `TCACHE_MAX_BINS`.
    pub bins: usize,
    /// Offset of `entries`.
    pub entries: u64,
    /// Size of the whole structure.
    pub bytes: u64,
    /// What the counts show of a bin.
    pub counts: BinCounts,
}

/// What the counts of a thread cache show of a bin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BinCounts {
    /// The number of its entries.
    Entries,
    /// The number of its free slots, as many in all empty bins.
    EqualSlots,
    /// Nothing.
    Unused,
}

/// 2.30 to 2.41: 64 bins.
pub const THREAD_CACHE: ThreadCacheLayout =
    ThreadCacheLayout { bins: 64, entries: 128, bytes: 640, counts: BinCounts::Entries };
/// 2.42 on: 64 small bins and 12 large ones; the counts are free slots, counting down.
pub const LARGE_THREAD_CACHE: ThreadCacheLayout =
    ThreadCacheLayout { bins: 76, entries: 152, bytes: 760, counts: BinCounts::Unused };
/// The same of 2.42, recognised without its parameters: few other structures have such counts
/// (malloc.c, tcache_init).
pub const LARGE_THREAD_CACHE_ALONE: ThreadCacheLayout =
    ThreadCacheLayout { counts: BinCounts::EqualSlots, ..LARGE_THREAD_CACHE };
/// Number of bins whose chunks all have one size: `MIN_CHUNK_BYTES + 16 * bin` bytes.
pub const SMALL_THREAD_CACHE_BINS: usize = 64;
/// Maximum entries of a bin (`MAX_TCACHE_COUNT`).
pub const MAX_THREAD_CACHE_ENTRIES: usize = 65535;
