//! Finds malloc's settings and counters, `mp_`, in a libc without symbols: only there a dozen words
//! are consistent with each other.

use super::layout;
use super::locate::scan;
use strandline_claims::allocator::Context;
use strandline_process::memory::{half_word_at, word_at};
use strandline_process::pages::PAGE_BYTES;
use strandline_process::range::AddressRange;

/// Distance between `mp_` and `main_arena` from which on all are equally unlikely.
const MAX_DISTANCE_BYTES: u64 = 1 << 30;
/// Default of `n_mmaps_max` (`DEFAULT_MMAP_MAX`).
const DEFAULT_N_MMAPS_MAX: u32 = 65_536;
/// Defaults of `tcache_count` (`TCACHE_FILL_COUNT`): up to 2.42, and in 2.43.
const DEFAULT_TCACHE_COUNTS: [u64; 2] = [7, 16];
/// Default of `arena_test` (`NARENAS_FROM_NCORES (1)`).
const DEFAULT_ARENA_TEST: u64 = 8;

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
    /// The first byte that the main arena got from the kernel; `None` before that.
    pub sbrk_base: Option<u64>,
    /// Maximum chunks of one size in a thread cache.
    pub tcache_count: u64,
}

impl Parameters {
    /// Alignment and maximum size of the heaps of secondary arenas (arena.c, heap_max_size).
    pub fn heap_max_bytes(&self) -> u64 {
        if self.layout.heaps_scale_with_hp_pagesize && self.huge_page_bytes != 0 {
            self.huge_page_bytes.saturating_mul(layout::HUGE_PAGES_PER_HEAP)
        } else {
            layout::HEAP_MAX_BYTES
        }
    }
}

/// Finds `mp_` in the data of one libc, whose `main_arena` is at `main`. `is_brk` decides whether
/// sbrk may have returned an address.
pub fn find(
    context: &Context<'_>,
    data: &[AddressRange],
    main: u64,
    is_brk: impl Fn(u64) -> bool,
) -> Option<Parameters> {
    let mut best_match: Option<Match> = None;
    scan(context, data, |base, bytes| -> Option<()> {
        for offset in (0..bytes.len()).step_by(8) {
            for parameters_layout in &layout::PARAMETERS {
                let Some(parameters) = parameters_at(base, bytes, offset, parameters_layout, &is_brk) else {
                    continue;
                };
                let n_mmaps_max = half_word_at(bytes, offset + parameters_layout.n_mmaps as usize + 4);
                let likelihood = Likelihood::new(&parameters, n_mmaps_max, main);
                if best_match.as_ref().is_none_or(|best| likelihood > best.likelihood) {
                    best_match = Some(Match { likelihood, parameters });
                }
            }
        }
        None
    });
    best_match.map(|best| best.parameters)
}

/// A place that may be `mp_`.
struct Match {
    likelihood: Likelihood,
    parameters: Parameters,
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
    let sbrk_base = Some(word(parameters_layout.mmapped_mem + 16)?).filter(|&base| base != 0);
    let thp_page_bytes = parameters_layout.thp_pagesize.map_or(Some(0), word)?;
    let huge_page_bytes = parameters_layout.hp_pagesize.map_or(Some(0), word)?;
    let is_page_size = |size: u64| {
        size == 0 || (size.is_power_of_two() && (PAGE_BYTES..=MAX_PAGE_SIZE_BYTES).contains(&size))
    };
    if !is_page_size(thp_page_bytes)
        || !is_page_size(huge_page_bytes)
        || sbrk_base.is_some_and(|base| !is_brk(base))
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

/// Maximum of `tcache_max_bytes` with 64 bins up to 2.41 (malloc.c, MAX_TCACHE_SIZE), and its
/// default in 2.42 as first released (MAX_TCACHE_SMALL_SIZE).
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
    // Up to 2.41 it is the largest request of the last bin (1032 with 64 bins); from 2.42 on one
    // more than the largest chunk (1041), or up to 4 MiB with large bins.
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
