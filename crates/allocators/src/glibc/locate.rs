//! Finds malloc's own structures in a libc without symbols: `main_arena`, the ring of arenas, their
//! heaps, and `mp_`.
//!
//! An empty bin points to itself, so 127 pairs of words that are either their own address less 16
//! or two aligned pointers are `main_arena.bins`, if the ring of `next` after them returns to its
//! start. `mp_` is the only place where a dozen settings and counters are consistent.

use super::layout;
use strandline_process::memory::{Memory, half_word_at, pair_at, word_at};
use strandline_process::pages::{PAGE_BYTES, USER_ADDRESS_END};
use strandline_process::range::AddressRange;

/// Maximum arenas followed; the default limit is eight per core.
const MAX_ARENAS: usize = 16_384;
/// Maximum bytes of an arena, the user address space: more is damage, and must not be added up.
const MAX_SYSTEM_BYTES: u64 = USER_ADDRESS_END;
/// Maximum steps along rings in the whole search for `main_arena`, however many false rings the
/// data contains.
const MAX_RING_STEPS: usize = 4 * MAX_ARENAS;
/// Maximum heaps followed per arena: 64 GiB.
const MAX_HEAPS: usize = 1024;
/// Maximum heaps of all arenas: 8 TiB. Damaged lists could name more than fit in our memory.
const MAX_TOTAL_HEAPS: usize = 1 << 17;
/// Bytes read at once in the search.
const BLOCK_BYTES: u64 = 1 << 20;
/// Blocks overlap by more than the longest structure.
const OVERLAP_BYTES: u64 = 8 << 10;
/// Maximum bytes of pairs before an empty bin that may be bins; all bins take half of it.
const MAX_RUN_BYTES: usize = 4096;
/// Maximum pairs that may be in front of the bins in a run.
const MAX_PAIRS_BEFORE_BINS: usize = 64;
/// Distance between `mp_` and `main_arena` from which on all are equally unlikely.
const MAX_DISTANCE_BYTES: u64 = 1 << 30;
/// Default of `n_mmaps_max` (`DEFAULT_MMAP_MAX`).
const DEFAULT_N_MMAPS_MAX: u32 = 65_536;
/// Defaults of `tcache_count` (`TCACHE_FILL_COUNT`).
const DEFAULT_TCACHE_COUNTS: [u64; 2] = [7, 16];
/// Default of `arena_test`.
const DEFAULT_ARENA_TEST: u64 = 8;

/// The address and layout of `main_arena`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MainArena {
    /// Its address.
    pub address: u64,
    /// Its layout.
    pub layout: layout::ArenaLayout,
}

/// The settings and counters of malloc, `mp_`. Bytes unless stated otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// Its address.
    pub address: u64,
    /// Its layout.
    pub layout: layout::ParametersLayout,
    /// Free memory at the top above which free() lowers the break.
    pub trim_threshold_bytes: u64,
    /// Bytes requested from the kernel beyond what is needed, each time.
    pub top_pad_bytes: u64,
    /// Requests of at least this size get their own mapping.
    pub mmap_threshold_bytes: u64,
    /// Whether both thresholds grow with the largest mapped chunk that is freed (`no_dyn_threshold`
    /// is 0): neither was set.
    pub has_dynamic_thresholds: bool,
    /// Number of arenas up to which malloc does not query the number of processors.
    pub arena_test: u64,
    /// Maximum number of arenas; 0 for the default.
    pub arena_max: u64,
    /// Huge page size under `glibc.malloc.hugetlb=1`, else 0.
    pub thp_page_bytes: u64,
    /// Huge page size under `glibc.malloc.hugetlb=2` and above, else 0.
    pub huge_page_bytes: u64,
    /// Number of mmapped chunks.
    pub n_mmaps: u64,
    /// Bytes in mmapped chunks.
    pub mmapped_bytes: u64,
    /// The first byte that the main arena got from the kernel; 0 before that.
    pub sbrk_base: u64,
    /// Maximum chunks of one size in a thread cache.
    pub tcache_count: u64,
}

/// State of one arena.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arena {
    /// Its address, which is also that of its mutex.
    pub address: u64,
    /// Whether it is the main arena.
    pub is_main: bool,
    /// The top chunk's address.
    pub top: u64,
    /// Bytes taken from the kernel.
    pub system_bytes: u64,
    /// Whether its ranges are not contiguous.
    pub is_noncontiguous: bool,
    /// The first chunk of each fastbin.
    pub fastbins: Vec<u64>,
    /// The non-empty bins.
    pub bins: Vec<Bin>,
    /// Its heaps, newest first; none for the main arena.
    pub heaps: Vec<Heap>,
}

/// A heap of a secondary arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heap {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    /// Address of its first chunk.
    pub first_chunk: u64,
}

/// A non-empty bin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bin {
    /// Its index: 1 is the unsorted bin, 64 and above are the large ones.
    pub index: usize,
    /// The address that represents it in its list (`bin_at`).
    pub address: u64,
    /// Its first chunk (`fd`).
    pub first_chunk: u64,
    /// Its last chunk (`bk`).
    pub last_chunk: u64,
}

/// Reads `ranges` in overlapping blocks and calls `visit` with the address of each and the bytes
/// that can be read, until it returns a value.
fn scan<T>(
    memory: &dyn Memory,
    ranges: &[AddressRange],
    mut visit: impl FnMut(u64, &[u8]) -> Option<T>,
) -> Option<T> {
    let mut buffer = Vec::new();
    for &AddressRange { start, end } in ranges {
        let mut at = start;
        while at < end {
            let length = (end - at).min(BLOCK_BYTES + OVERLAP_BYTES);
            buffer.resize(length as usize, 0);
            let read_length = memory.read_some(at, &mut buffer);
            if let Some(result) = visit(at, &buffer[..read_length]) {
                return Some(result);
            }
            at += BLOCK_BYTES;
        }
    }
    None
}

/// Bytes of a pair of links in `malloc_state.bins`.
const PAIR_BYTES: usize = 16;

/// Finds `main_arena` in the data of one libc (resident, writable ranges).
pub fn main_arena(memory: &dyn Memory, data: &[AddressRange]) -> Option<MainArena> {
    let mut steps = MAX_RING_STEPS;
    scan(memory, data, |base, bytes| {
        let mut offset = 0;
        while offset + layout::BIN_PAIRS as usize * PAIR_BYTES <= bytes.len() {
            if !is_empty_bin(base, bytes, offset) {
                offset += 8;
                continue;
            }
            let run = run_of_pairs(base, bytes, offset);
            let arena = arena_of_run(memory, base + run.offset as u64, run.pairs, &mut steps);
            if arena.is_some() {
                return arena;
            }
            offset = run.offset + run.pairs * PAIR_BYTES + 8;
        }
        None
    })
}

/// Finds the `main_arena` whose bins are in the run of `pairs` at the address `run`: other pairs of
/// pointers may precede them.
fn arena_of_run(memory: &dyn Memory, run: u64, pairs: usize, steps: &mut usize) -> Option<MainArena> {
    let surplus_pairs = pairs.checked_sub(layout::BIN_PAIRS as usize)?;
    (0..=surplus_pairs.min(MAX_PAIRS_BEFORE_BINS)).find_map(|pairs_before| {
        let bins = run + (PAIR_BYTES * pairs_before) as u64;
        layout::ARENAS.iter().find_map(|arena_layout| {
            let address = bins.checked_sub(arena_layout.bins)?;
            ring(memory, address, arena_layout, steps)?;
            Some(MainArena { address, layout: *arena_layout })
        })
    })
}

/// Whether an empty bin is at `offset`: both of its links are its own address in its list.
fn is_empty_bin(base: u64, bytes: &[u8], offset: usize) -> bool {
    let bin = (base + offset as u64).wrapping_sub(layout::CHUNK_FORWARD);
    pair_at(bytes, offset) == Some((bin, bin))
}

/// Consecutive pairs of pointers in static data.
struct PairRun {
    offset: usize,
    /// Number of pairs.
    pairs: usize,
}

/// Returns the run of pairs around the empty bin at `offset` that may be bins.
fn run_of_pairs(base: u64, bytes: &[u8], offset: usize) -> PairRun {
    let is_pointer = |word: u64| word != 0 && word.is_multiple_of(layout::ALIGNMENT);
    let is_bin = |at: usize| {
        is_empty_bin(base, bytes, at)
            || pair_at(bytes, at).is_some_and(|(fd, bk)| is_pointer(fd) && is_pointer(bk))
    };
    let mut start = offset;
    while start >= PAIR_BYTES && is_bin(start - PAIR_BYTES) && offset - start < MAX_RUN_BYTES {
        start -= PAIR_BYTES;
    }
    let mut end = offset + PAIR_BYTES;
    while end + PAIR_BYTES <= bytes.len() && is_bin(end) && end - start < 2 * MAX_RUN_BYTES {
        end += PAIR_BYTES;
    }
    PairRun { offset: start, pairs: (end - start) / PAIR_BYTES }
}

/// Every alignment of heaps, also with `glibc.malloc.hugetlb`, is a multiple of this.
const MIN_HEAP_ALIGNMENT: u64 = 1 << 20;

/// Returns the arenas of the ring that starts and must end at `main`, main first. Decrements
/// `steps` at each one, and gives up at 0.
fn ring(
    memory: &dyn Memory,
    main: u64,
    arena_layout: &layout::ArenaLayout,
    steps: &mut usize,
) -> Option<Vec<u64>> {
    let mut arenas = vec![main];
    let mut at = main;
    // Brent's algorithm detects a cycle without `main`: an arena is remembered at step 2, 4, 8, ….
    let (mut remembered_arena, mut remembered_step) = (0, 1);
    loop {
        *steps = steps.checked_sub(1)?;
        at = memory.read_word(at.checked_add(arena_layout.next_offset())?).ok()?;
        if at == main {
            return Some(arenas);
        }
        // A secondary arena follows the heap_info of its first heap.
        let offset = at % MIN_HEAP_ALIGNMENT;
        if arenas.len() >= MAX_ARENAS || at == remembered_arena || !layout::HEAP_INFO_BYTES.contains(&offset)
        {
            return None;
        }
        arenas.push(at);
        if arenas.len() == 2 * remembered_step {
            (remembered_arena, remembered_step) = (at, arenas.len());
        }
    }
}

/// Reads the state of all arenas that can be read. `heap_max_bytes` is the alignment of secondary
/// heaps.
pub fn arenas(memory: &dyn Memory, main: &MainArena, heap_max_bytes: u64) -> Vec<Arena> {
    let mut steps = MAX_ARENAS;
    let addresses = ring(memory, main.address, &main.layout, &mut steps).unwrap_or_default();
    let mut remaining_heaps = MAX_TOTAL_HEAPS;
    let read_with_heaps = |address: u64| {
        let mut arena = read_arena(memory, address, address == main.address, &main.layout)?;
        if !arena.is_main {
            let max_heaps = remaining_heaps.min(MAX_HEAPS);
            arena.heaps = heaps(memory, &arena, &main.layout, heap_max_bytes, max_heaps);
            remaining_heaps -= arena.heaps.len();
        }
        Some(arena)
    };
    addresses.into_iter().filter_map(read_with_heaps).collect()
}

/// Reads the state of one arena, without its heaps.
fn read_arena(
    memory: &dyn Memory,
    address: u64,
    is_main: bool,
    arena_layout: &layout::ArenaLayout,
) -> Option<Arena> {
    let mut bytes = vec![0; arena_layout.struct_bytes() as usize];
    memory.read(address, &mut bytes).ok()?;
    let word = |offset: u64| word_at(&bytes, offset as usize);
    let layout::Fastbins { offset, count } = arena_layout.fastbins.unwrap_or_default();
    let fastbins = (0..count as u64).filter_map(|index| word(offset + 8 * index)).collect();
    let bins = (0..layout::BIN_PAIRS)
        .filter_map(|pair| {
            let at = arena_layout.bins + PAIR_BYTES as u64 * pair;
            let (first_chunk, last_chunk) = (word(at)?, word(at + 8)?);
            // A bin has the address of a chunk whose links are this pair; bin 0 does not exist.
            let bin_address = address + at - layout::CHUNK_FORWARD;
            let bin = Bin { index: pair as usize + 1, address: bin_address, first_chunk, last_chunk };
            (first_chunk != bin.address).then_some(bin)
        })
        .collect();
    Some(Arena {
        address,
        is_main,
        top: word(arena_layout.top)?,
        system_bytes: word(arena_layout.system_mem_offset())?.min(MAX_SYSTEM_BYTES),
        is_noncontiguous: half_word_at(&bytes, layout::FLAGS_OFFSET as usize)? & layout::NONCONTIGUOUS != 0,
        fastbins,
        bins,
        heaps: Vec::new(),
    })
}

/// Returns the heaps of a secondary arena, from the one with its top back to its first, at most
/// `max_heaps`. All are aligned to `heap_max_bytes`.
fn heaps(
    memory: &dyn Memory,
    arena: &Arena,
    arena_layout: &layout::ArenaLayout,
    heap_max_bytes: u64,
    max_heaps: usize,
) -> Vec<Heap> {
    let mut heaps: Vec<Heap> = Vec::new();
    let info_bytes = arena.address % heap_max_bytes;
    let mut start = arena.top - arena.top % heap_max_bytes;
    while start != 0
        && start.is_multiple_of(heap_max_bytes)
        && heaps.len() < max_heaps
        && heaps.iter().all(|heap| heap.start != start)
    {
        let Some(HeapInfo { owner, previous, bytes }) = heap_info(memory, start) else { break };
        if owner != arena.address
            || bytes < info_bytes
            || bytes > heap_max_bytes
            || !bytes.is_multiple_of(PAGE_BYTES)
        {
            break;
        }
        let holds_arena = arena.address - arena.address % heap_max_bytes == start;
        let used_bytes = if holds_arena { info_bytes + arena_layout.struct_bytes() } else { info_bytes };
        let first_chunk = start + used_bytes.next_multiple_of(layout::ALIGNMENT);
        heaps.push(Heap { start, end: start + bytes, first_chunk });
        start = previous;
    }
    heaps
}

/// Fields of the `heap_info` at the start of a heap.
struct HeapInfo {
    /// Address of the arena.
    owner: u64,
    /// Address of the heap before it; 0 if none.
    previous: u64,
    /// Bytes of the heap.
    bytes: u64,
}

fn heap_info(memory: &dyn Memory, heap: u64) -> Option<HeapInfo> {
    let mut bytes = [0; 24];
    memory.read(heap, &mut bytes).ok()?;
    let word = |offset: u64| word_at(&bytes, offset as usize);
    Some(HeapInfo {
        owner: word(layout::HEAP_ARENA)?,
        previous: word(layout::HEAP_PREVIOUS)?,
        bytes: word(layout::HEAP_SIZE)?,
    })
}

/// Finds `mp_` in the data of one libc, whose `main_arena` is at `main`. `is_brk` decides whether
/// sbrk may have returned an address.
pub fn parameters(
    memory: &dyn Memory,
    data: &[AddressRange],
    main: u64,
    is_brk: impl Fn(u64) -> bool,
) -> Option<Parameters> {
    let mut best_match: Option<(Likelihood, Parameters)> = None;
    scan(memory, data, |base, bytes| -> Option<()> {
        for offset in (0..bytes.len()).step_by(8) {
            for parameters_layout in &layout::PARAMETERS {
                let Some(parameters) = parameters_at(base, bytes, offset, parameters_layout, &is_brk) else {
                    continue;
                };
                let n_mmaps_max = half_word_at(bytes, offset + parameters_layout.n_mmaps as usize + 4);
                let likelihood = Likelihood::new(&parameters, n_mmaps_max, main);
                if best_match.as_ref().is_none_or(|(best_likelihood, _)| likelihood > *best_likelihood) {
                    best_match = Some((likelihood, parameters));
                }
            }
        }
        None
    });
    best_match.map(|(_, parameters)| parameters)
}

/// How likely a match is `mp_`, compared in the order of the fields. Any match is better than none.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Likelihood {
    /// Number of settings that have their default.
    defaults: u8,
    /// Bytes by which it is nearer to `main_arena` than [`MAX_DISTANCE_BYTES`].
    nearness: u64,
}

impl Likelihood {
    fn new(parameters: &Parameters, n_mmaps_max: Option<u32>, main: u64) -> Self {
        let defaults = [
            n_mmaps_max == Some(DEFAULT_N_MMAPS_MAX),
            DEFAULT_TCACHE_COUNTS.contains(&parameters.tcache_count),
            // Distinguishes 2.43 from 2.42 eight bytes later, where arena_max would be in place of
            // arena_test.
            parameters.arena_test == DEFAULT_ARENA_TEST,
        ];
        Self {
            defaults: defaults.map(u8::from).iter().sum(),
            nearness: MAX_DISTANCE_BYTES.saturating_sub(parameters.address.abs_diff(main)),
        }
    }
}

/// Maximum plausible number of arenas in a setting.
const MAX_ARENA_SETTING: u64 = 1 << 16;
/// Maximum size of a huge page: 16 GiB.
const MAX_PAGE_SIZE_BYTES: u64 = 1 << 34;

/// Reads `malloc_par` in one layout at `offset`; `None` if its fields are inconsistent.
fn parameters_at(
    base: u64,
    bytes: &[u8],
    offset: usize,
    parameters_layout: &layout::ParametersLayout,
    is_brk: &impl Fn(u64) -> bool,
) -> Option<Parameters> {
    let word = |at: u64| word_at(bytes, offset + at as usize);
    let int = |at: u64| half_word_at(bytes, offset + at as usize);
    let (arena_test, arena_max) =
        (word(layout::parameter_offsets::ARENA_TEST)?, word(layout::parameter_offsets::ARENA_MAX)?);
    if arena_test == 0 || arena_test > MAX_ARENA_SETTING || arena_max > MAX_ARENA_SETTING {
        return None;
    }
    let n_mmaps = int(parameters_layout.n_mmaps)?;
    let (n_mmaps_max, max_n_mmaps, no_dyn_threshold) = (
        int(parameters_layout.n_mmaps + 4)?,
        int(parameters_layout.n_mmaps + 8)?,
        int(parameters_layout.n_mmaps + 12)?,
    );
    let (mmapped_bytes, max_mmapped) =
        (word(parameters_layout.mmapped_mem)?, word(parameters_layout.mmapped_mem + 8)?);
    let are_counters_consistent = n_mmaps <= max_n_mmaps
        && max_n_mmaps <= i32::MAX as u32
        && n_mmaps_max <= i32::MAX as u32
        && no_dyn_threshold <= 1
        && mmapped_bytes <= max_mmapped
        // Whole pages up to 2.42; in 2.43 each mremap of a chunk loses 16 bytes.
        && mmapped_bytes.is_multiple_of(layout::ALIGNMENT);
    if !are_counters_consistent || !are_cache_settings_consistent(&word, parameters_layout) {
        return None;
    }
    let sbrk_base = word(parameters_layout.mmapped_mem + 16)?;
    let thp_page_bytes = parameters_layout.thp_pagesize.map_or(Some(0), word)?;
    let huge_page_bytes = parameters_layout.hp_pagesize.map_or(Some(0), word)?;
    let is_page_size = |size: u64| {
        size == 0 || (size.is_power_of_two() && (PAGE_BYTES..=MAX_PAGE_SIZE_BYTES).contains(&size))
    };
    if !is_page_size(thp_page_bytes)
        || !is_page_size(huge_page_bytes)
        || (sbrk_base != 0 && !is_brk(sbrk_base))
    {
        return None;
    }
    Some(Parameters {
        address: base + offset as u64,
        layout: *parameters_layout,
        trim_threshold_bytes: word(layout::parameter_offsets::TRIM_THRESHOLD)?,
        top_pad_bytes: word(layout::parameter_offsets::TOP_PAD)?,
        mmap_threshold_bytes: word(layout::parameter_offsets::MMAP_THRESHOLD)?,
        has_dynamic_thresholds: no_dyn_threshold == 0,
        arena_test,
        arena_max,
        thp_page_bytes,
        huge_page_bytes,
        n_mmaps: n_mmaps.into(),
        mmapped_bytes,
        sbrk_base,
        tcache_count: word(parameters_layout.tcache_bins + 16)?,
    })
}

/// `tcache_max_bytes` with 64 bins, up to 2.41 (malloc.c, MAX_TCACHE_SIZE).
const MAX_SMALL_CACHED_BYTES: u64 = 1032;
/// Maximum of `tcache_max_bytes` with large bins, from 2.42 on.
const MAX_LARGE_CACHED_BYTES: u64 = (4 << 20) + 1;

/// Whether bins, largest cached size and count of the thread cache are consistent.
fn are_cache_settings_consistent(
    word: &impl Fn(u64) -> Option<u64>,
    parameters_layout: &layout::ParametersLayout,
) -> bool {
    let fields = (
        word(parameters_layout.tcache_bins),
        word(parameters_layout.tcache_bins + 8),
        word(parameters_layout.tcache_bins + 16),
    );
    let (Some(bins), Some(max_bytes), Some(count)) = fields else { return false };
    // Up to 2.41 the largest request is that of the last bin (1032 with 64 bins); from 2.42 on it
    // is one more than the largest chunk (1041), or up to 4 MiB with large bins.
    let is_size_valid = if parameters_layout.has_large_tcache_bins {
        (1..=MAX_LARGE_CACHED_BYTES).contains(&max_bytes) && max_bytes != MAX_SMALL_CACHED_BYTES
    } else {
        let chunk_bytes = max_bytes.saturating_add(layout::SIZE_WORD_BYTES).max(layout::MIN_CHUNK_BYTES);
        max_bytes <= MAX_SMALL_CACHED_BYTES && bins == chunk_bytes.div_ceil(layout::ALIGNMENT) - 1
    };
    is_size_valid
        && bins <= layout::SMALL_THREAD_CACHE_BINS as u64
        && bins > 0
        && count <= layout::MAX_THREAD_CACHE_ENTRIES as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A heap_info at each address, which leads to another one `step` bytes further.
    struct HeapInfos {
        arena: u64,
        step: u64,
    }

    impl Memory for HeapInfos {
        fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
            let words = [self.arena, address + self.step, PAGE_BYTES];
            for (bytes, word) in buffer.chunks_exact_mut(8).zip(words) {
                bytes.copy_from_slice(&word.to_le_bytes());
            }
            buffer.len()
        }
    }

    #[test]
    fn heaps_are_aligned_and_limited() {
        let arena = Arena {
            address: 0x7f00_0400_0030,
            is_main: false,
            top: 0x7f00_0400_1000,
            system_bytes: 0,
            is_noncontiguous: true,
            fastbins: Vec::new(),
            bins: Vec::new(),
            heaps: Vec::new(),
        };
        let count = |step: u64| {
            let memory = HeapInfos { arena: arena.address, step };
            heaps(&memory, &arena, &layout::ARENA_WITH_FASTBINS, layout::HEAP_MAX_BYTES, 100).len()
        };
        assert_eq!(count(layout::HEAP_MAX_BYTES), 100);
        assert_eq!(count(0x1008), 1, "not aligned");
        assert_eq!(count(0), 1, "a cycle");
    }
}
