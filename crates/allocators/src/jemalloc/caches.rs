//! Thread caches (tcaches). The free regions in them look in use in their slabs.
//!
//! A thread's cache is in its static thread-local storage, below its FS base, or in a block of its
//! own (`dynamic.rs`), and is recognised by its structure. In 5.3 a list links all caches of an
//! arena, including explicit ones (`mallctl("tcache.create")`) and those of threads whose registers
//! are unknown.
//!
//! Beside it is the thread's cache of page map lookups (`rtree_tsd.h`, `rtree_ctx_t`): pairs of the
//! first address that a leaf covers and the leaf.

use std::collections::HashSet;

use super::dynamic;
use super::layout::CacheLayout;
use crate::blocks::{CachedBlock, SwappedCaches};
use crate::radix::Leaf;
use crate::scan::read_words;
use strandline_claims::allocator::Context;
use strandline_process::memory::{half_word_at, word_at, words_in};
use strandline_process::pages::{PAGE_BYTES, USER_ADDRESS_END};
use strandline_process::range::AddressRange;

/// Bytes searched below a thread's FS base.
pub const MAX_STORAGE_BYTES: u64 = 64 << 10;
/// Offset in a `tcache_slow_t` of 5.3 of its descriptor (`cache_bin_array_descriptor`).
const SLOW_DESCRIPTOR: u64 = 16;
/// Offset in a descriptor of the address of the bins; the next and the previous descriptor precede.
const DESCRIPTOR_BINS: u64 = 16;
/// Offset in a `tcache_slow_t` of the arena.
const SLOW_ARENA: usize = 40;
/// Maximum words from the arena to the pointer to the `tcache_t`: between them are three arrays of
/// one or two bytes per small class.
const MAX_WORDS_TO_CACHE: usize = 64;
/// Bytes of a bin (`struct cache_bin_s` of builds with statistics).
const BIN_BYTES: usize = 24;
/// Bins of 5.3 that are checked before a cache is accepted; all builds have more.
const CHECKED_BINS: usize = 8;
/// Alignment of arenas (`CACHELINE`).
const ARENA_ALIGNMENT: u64 = 64;
/// Offset in a bin of 5.3 of `low_bits_low_water`, `low_bits_full` and `low_bits_empty`, of 16 bits
/// each; the pointer to the first item is at 0.
const BIN_LOW_BITS: usize = 16;
/// Maximum bins of a cache: `TCACHE_NBINS_MAX` of 5.3.0 with a quantum of 8; 73 with one of 16.
const MAX_BINS: usize = 76;
/// Maximum items of all caches together, in case some are damaged.
const MAX_TOTAL_ITEMS: usize = 1 << 22;
/// Maximum caches followed.
const MAX_CACHES: usize = 1 << 16;
/// 5.0 to 5.2: minimum number of consecutive bins with adjacent stacks that are the small bins of a
/// cache.
const MIN_SMALL_BINS: usize = 30;
/// Maximum bytes of a stack of 5.0 to 5.2 that is accepted: real ones have at most 200 pointers
/// (`TCACHE_NSLOTS_SMALL_MAX`).
const MAX_COUNTED_BYTES: u64 = 8 * 512;
/// Offset in a bin of 5.0 to 5.2 of `ncached`, which follows `low_water`; both have 32 bits.
const BIN_COUNT: usize = 4;
/// Offset in such a bin of `avail`, the address past its items.
const BIN_AVAIL: usize = 16;
/// Maximum words between the small bins and the large ones.
const MAX_WORDS_BETWEEN: usize = 40;
/// Minimum words from a thread's arena to its small bins: `arena`, `arenas_tdata`, and at least one
/// word of the cache.
const MIN_WORDS_BEFORE: usize = 3;
/// Maximum words from a thread's arena to its small bins, with some slack.
const MAX_WORDS_BEFORE: usize = 16;
/// 5.0 to 5.2: bytes of `rtree_ctx_t`, which is before the arena: 16 pairs and 8 of a second level.
/// In 5.3 it is after `tcache_slow_t`.
const LOOKUPS_BYTES: u64 = 16 * (16 + 8);

/// Contents of all caches.
#[derive(Default)]
pub struct CacheContents {
    /// Free regions, in address order.
    pub blocks: Vec<CachedBlock>,
    /// Addresses within jemalloc's internal allocations: stacks of items, `arenas_tdata`.
    pub own_addresses: Vec<u64>,
    /// FS bases of the threads with a cache.
    pub fs_bases: Vec<u64>,
    /// Addresses of the keys in threads' caches of lookups.
    pub key_addresses: Vec<u64>,
    /// Number of invalid bins, and of lists that were not followed to their end.
    pub broken_lists: u64,
    /// Caches that were not read.
    pub swapped: SwappedCaches,
    /// The first address that was not read because the deadline had passed.
    pub first_late_address: Option<u64>,
    /// Bytes read from the target.
    pub bytes_read: u64,
}

/// Reads all caches. `leaves` are those of the page map.
pub fn find(context: &Context<'_>, layout: CacheLayout, leaves: &[Leaf]) -> CacheContents {
    let mut reader = CacheReader {
        context,
        leaves,
        caches: CacheContents::default(),
        seen_bins: HashSet::new(),
        last_distance: None,
    };
    for &fs_base in context.fs_bases {
        if context.deadline_passed() {
            reader.caches.first_late_address.get_or_insert(fs_base);
            break;
        }
        reader.read_static(fs_base, layout);
    }
    reader.read_dynamic(layout);
    if reader.caches.first_late_address.is_none() {
        reader.note_swapped();
    }
    let mut caches = reader.caches;
    caches.blocks.sort_unstable();
    caches.blocks.dedup_by_key(|block| block.address);
    caches.own_addresses.sort_unstable();
    caches
}

struct CacheReader<'a> {
    context: &'a Context<'a>,
    /// The leaves of the page map, in address order.
    leaves: &'a [Leaf],
    caches: CacheContents,
    /// Addresses of the bins of caches already read.
    seen_bins: HashSet<u64>,
    /// Distance of the last thread's cache below its FS base, in bytes; it is the same in all
    /// threads.
    last_distance: Option<u64>,
}

impl CacheReader<'_> {
    /// Notes the caches of threads without one whose storage may be swapped out, until the
    /// deadline.
    fn note_swapped(&mut self) {
        let with_cache: HashSet<u64> = self.caches.fs_bases.iter().copied().collect();
        for &fs_base in self.context.fs_bases.iter().filter(|fs_base| !with_cache.contains(fs_base)) {
            if self.context.deadline_passed() {
                self.caches.first_late_address.get_or_insert(fs_base);
                return;
            }
            if let Some(range) = self.storage_range(fs_base) {
                self.caches.swapped.count_if_swapped(self.context, range);
            }
        }
    }

    /// Returns the part of a thread's storage that may hold its cache; `None` if its FS base is no
    /// address in a mapping.
    fn storage_range(&self, fs_base: u64) -> Option<AddressRange> {
        let distance = self.last_distance.unwrap_or(MAX_STORAGE_BYTES);
        let bytes = MAX_STORAGE_BYTES.min(distance);
        let mapping = self.context.space.find(fs_base.checked_sub(8)?)?;
        let start = fs_base.checked_sub(distance)?.max(mapping.start) & !7;
        let end = start.checked_add(bytes)?.min(fs_base).min(mapping.end);
        Some(AddressRange::new(start, end))
    }

    /// Reads the cache of a thread in its static thread-local storage.
    fn read_static(&mut self, fs_base: u64, layout: CacheLayout) {
        let Some(storage) = self.storage_range(fs_base).map(|range| self.storage(range)) else { return };
        self.find_keys(&storage);
        if let Some(start) = self.read_thread(fs_base, &storage, layout) {
            self.last_distance = self.last_distance.max(Some(fs_base - start));
        }
    }

    /// Reads the caches of the threads without one in static storage that have it in a block of
    /// their own. It is at the same place in all threads.
    fn read_dynamic(&mut self, layout: CacheLayout) {
        let with_cache: HashSet<u64> = self.caches.fs_bases.iter().copied().collect();
        let context = self.context;
        let without = context.fs_bases.iter().copied().filter(|fs_base| !with_cache.contains(fs_base));
        let without: Vec<u64> = without.collect();
        let mut offset_in = |block: AddressRange| {
            let storage = self.storage(block);
            cache_offset(&storage, layout).map(|offset| offset as u64)
        };
        let Some(place) = dynamic::find_place(context, &without, &mut offset_in) else { return };
        for fs_base in without {
            if context.deadline_passed() {
                self.caches.first_late_address.get_or_insert(fs_base);
                return;
            }
            let Some(block) = place.block(context, fs_base) else { continue };
            let storage = self.storage(block);
            // Past its end the block may be followed by that of another thread.
            if cache_offset(&storage, layout) == Some(place.offset as usize) {
                self.find_keys(&storage);
                self.read_thread(fs_base, &storage, layout);
            }
        }
    }

    /// Reads the cache in a thread's storage; returns its first address.
    fn read_thread(&mut self, fs_base: u64, storage: &Storage, layout: CacheLayout) -> Option<u64> {
        match layout {
            CacheLayout::Stacked => self.read_stacked(fs_base, storage),
            CacheLayout::Counted => self.read_counted(fs_base, storage),
        }
    }

    /// Reads a part of a thread's storage that may hold its cache.
    fn storage(&mut self, AddressRange { start, end }: AddressRange) -> Storage {
        let mut storage = Storage { start, bytes: vec![0; end.saturating_sub(start) as usize] };
        for run in self.context.resident_runs((start, end)) {
            let part = (run.start - start) as usize..(run.end - start) as usize;
            if let Some(part) = storage.bytes.get_mut(part) {
                self.caches.bytes_read += self.context.memory.read_some(run.start, part) as u64;
            }
        }
        storage
    }

    /// Finds the keys of lookups: words that a pointer to the leaf with that key follows.
    fn find_keys(&mut self, storage: &Storage) {
        let pairs = storage.bytes.windows(16).step_by(8).zip((storage.start..).step_by(8));
        let keys = pairs.filter(|(pair, _)| {
            let (Some(key), Some(leaf)) = (word_at(pair, 0), word_at(pair, 8)) else { return false };
            let index = self.leaves.binary_search_by_key(&key, |leaf| leaf.covered_start);
            index.is_ok_and(|index| self.leaves.get(index).is_some_and(|found| found.address == leaf))
        });
        self.caches.key_addresses.extend(keys.map(|(_, address)| address));
    }

    /// Reads the cache of a thread of 5.3.
    fn read_stacked(&mut self, fs_base: u64, storage: &Storage) -> Option<u64> {
        let StackedCache { slow, cache } = StackedCache::find(storage)?;
        self.caches.fs_bases.push(fs_base);
        self.read_stacked_list(slow, cache);
        Some(slow.min(cache))
    }

    /// Reads a cache of 5.3 and those that are linked to it. In builds with statistics, the
    /// descriptor in `tcache_slow_t` points to the bins, which follow the first pointer of
    /// `tcache_t`.
    fn read_stacked_list(&mut self, slow: u64, cache: u64) {
        let (mut descriptor, own_bins) = (slow + SLOW_DESCRIPTOR, cache + 8);
        if self.context.memory.read_word(descriptor + DESCRIPTOR_BINS) != Ok(own_bins) {
            // A build without statistics has no list of caches.
            if self.seen_bins.insert(own_bins) {
                self.read_stacked_bins(own_bins, slow);
            }
            return;
        }
        loop {
            if self.context.deadline_passed() {
                self.caches.first_late_address.get_or_insert(descriptor);
                return;
            }
            let words = read_words(self.context, descriptor).filter(|_| self.seen_bins.len() < MAX_CACHES);
            let Some([next, _, bins]) = words else {
                self.caches.broken_lists += 1;
                return;
            };
            if bins == 0 || !self.seen_bins.insert(bins) {
                return;
            }
            self.read_stacked_bins(bins, descriptor.wrapping_sub(SLOW_DESCRIPTOR));
            descriptor = next;
        }
    }

    /// Reads the bins of a 5.3 cache, whose `tcache_slow_t` is at `slow`: right after the bins if
    /// the cache is explicit.
    fn read_stacked_bins(&mut self, bins: u64, slow: u64) {
        let mut bytes = [0; BIN_BYTES * MAX_BINS];
        let max_bytes = slow.checked_sub(bins).map_or(bytes.len(), |gap| bytes.len().min(gap as usize));
        let read_length = self.context.memory.read_some(bins, &mut bytes[..max_bytes]);
        for (class, bin) in bytes[..read_length].as_chunks::<BIN_BYTES>().0.iter().enumerate() {
            let (Some(head), Some(low_bits)) = (word_at(bin, 0), word_at(bin, BIN_LOW_BITS)) else { break };
            let low_bits_empty = low_bits >> 32;
            let stack_bytes = low_bits_empty.wrapping_sub(head) & 0xffff;
            if head == 0 || !head.is_multiple_of(8) || !stack_bytes.is_multiple_of(8) {
                // Past the last bin of this cache.
                break;
            }
            if class == 0 {
                self.caches.own_addresses.push(head.saturating_add(stack_bytes).saturating_sub(8));
            }
            self.add_items(class, head, (stack_bytes / 8) as usize);
        }
    }

    /// Reads the cache of a thread of 5.0 to 5.2: a bin has a count and a pointer past its items;
    /// the stacks of the bins are adjacent.
    fn read_counted(&mut self, fs_base: u64, storage: &Storage) -> Option<u64> {
        let Storage { start, bytes: storage } = storage;
        let SmallBins { offset, mut bins } = small_bins(storage)?;
        let first_bin = start + offset as u64;
        if !self.seen_bins.insert(first_bin) {
            return None;
        }
        self.caches.fs_bases.push(fs_base);
        let bins_end = offset + BIN_BYTES * bins.len();
        bins.extend(large_bins(storage, bins_end, bins.last().map_or(0, |bin| bin.items_end)));
        if let Some(first) = bins.first() {
            self.caches.own_addresses.push(first.items_end.saturating_sub(8));
        }
        self.caches.own_addresses.extend(arenas_data(storage, offset, bins_end));
        for (class, bin) in bins.iter().enumerate() {
            let count = bin.count as usize;
            self.add_items(class, bin.items_end.saturating_sub(8 * count as u64), count);
        }
        // The words before the bins belong to it.
        Some(first_bin.saturating_sub(8 * MAX_WORDS_BEFORE as u64 + LOOKUPS_BYTES))
    }

    /// Adds the `count` items of a stack, fewer than 2^13, whose first one is at `address`.
    fn add_items(&mut self, class: usize, address: u64, count: usize) {
        if self.caches.blocks.len() + count > MAX_TOTAL_ITEMS {
            self.caches.broken_lists += 1;
            return;
        }
        let mut bytes = vec![0; 8 * count];
        if self.context.memory.read(address, &mut bytes).is_err() {
            self.caches.broken_lists += u64::from(count > 0);
            return;
        }
        self.caches.bytes_read += bytes.len() as u64;
        // A cache has at most `MAX_BINS` bins, one for each class.
        let class = class as u16;
        self.caches.blocks.extend(words_in(&bytes).map(|address| CachedBlock { address, class }));
    }
}

/// Part of a thread's thread-local storage.
struct Storage {
    /// Its first address.
    start: u64,
    /// Its bytes; 0 where it is not resident.
    bytes: Vec<u8>,
}

/// Addresses of the two structures of a cache of 5.3.
struct StackedCache {
    /// `tcache_slow_t`.
    slow: u64,
    /// `tcache_t`.
    cache: u64,
}

/// Returns the offset of the cache in a thread's storage.
fn cache_offset(storage: &Storage, layout: CacheLayout) -> Option<usize> {
    match layout {
        CacheLayout::Stacked => {
            StackedCache::find(storage).map(|found| (found.cache - storage.start) as usize)
        }
        CacheLayout::Counted => small_bins(&storage.bytes).map(|bins| bins.offset),
    }
}

impl StackedCache {
    fn find(storage: &Storage) -> Option<Self> {
        (0..storage.bytes.len()).step_by(8).find_map(|offset| Self::find_at(storage, offset))
    }

    /// Returns the cache whose `tcache_t` is at `offset`: it begins with a pointer to its
    /// `tcache_slow_t`, which points back.
    fn find_at(storage: &Storage, offset: usize) -> Option<Self> {
        let Storage { start, bytes } = storage;
        let (slow, cache) = (word_at(bytes, offset)?, start + offset as u64);
        let at = usize::try_from(slow.checked_sub(*start)?).ok()?;
        let arena = word_at(bytes, at.checked_add(SLOW_ARENA)?)?;
        let has_arena = arena != 0 && arena.is_multiple_of(ARENA_ALIGNMENT);
        let mut words = (1..MAX_WORDS_TO_CACHE).map(|word| at + SLOW_ARENA + 8 * word);
        let points_back = words.any(|at| word_at(bytes, at) == Some(cache));
        let is_cache = slow.is_multiple_of(8) && slow != cache && has_arena && points_back;
        (is_cache && has_stacked_bins(bytes, offset + 8)).then_some(Self { slow, cache })
    }
}

/// Whether bins of 5.3 are at `offset`: a part of a stack may hold two words that point to each
/// other, but not these.
fn has_stacked_bins(bytes: &[u8], offset: usize) -> bool {
    let mut stacks = 0;
    for bin in (0..CHECKED_BINS).map(|bin| offset + BIN_BYTES * bin) {
        let (Some(head), Some(low_bits)) = (word_at(bytes, bin), word_at(bytes, bin + BIN_LOW_BITS)) else {
            return false;
        };
        let (full, empty) = (low_bits >> 16 & 0xffff, low_bits >> 32 & 0xffff);
        let (item_bytes, stack_bytes) =
            (empty.wrapping_sub(head) & 0xffff, empty.wrapping_sub(full) & 0xffff);
        let is_stack = head.is_multiple_of(8)
            && (PAGE_BYTES..USER_ADDRESS_END).contains(&head)
            && stack_bytes.is_multiple_of(8)
            && item_bytes <= stack_bytes
            && stack_bytes > 0;
        // From 5.3.1 on a bin may be off (`cache_bin_init_disabled`), before it is all zeros.
        if !(is_stack || item_bytes == 0 && stack_bytes == 0) {
            return false;
        }
        stacks += usize::from(is_stack);
    }
    stacks > 0
}

/// Returns the per-arena data that a thread of 5.0 to 5.2 has allocated (`tsd.h`, `arenas_tdata`).
/// Its field follows the thread's arena pointer, before the cache; the cache holds the same arena
/// pointer after its small bins.
fn arenas_data(storage: &[u8], small_bins: usize, bins_end: usize) -> Option<u64> {
    // After `link` in 5.0; from 5.1 on also after `cache_bin_array_descriptor`.
    let words = (0..MAX_WORDS_BETWEEN).filter_map(|word| word_at(storage, bins_end + 8 * word));
    words.filter(|&arena| arena != 0 && arena.is_multiple_of(64)).find_map(|arena| {
        let mut field_offsets =
            (MIN_WORDS_BEFORE..MAX_WORDS_BEFORE).filter_map(|words| small_bins.checked_sub(8 * words));
        let field = field_offsets.find(|&offset| word_at(storage, offset) == Some(arena))?;
        word_at(storage, field + 8).filter(|&data| data != 0)
    })
}

/// A bin of 5.0 to 5.2: `low_water` and `ncached` in the first word, then statistics, then `avail`.
struct CountedBin {
    /// Number of items.
    count: u32,
    /// The address past its items.
    items_end: u64,
}

/// Parses the bin at `offset`; `None` if its fields are not those of a bin.
fn counted_bin(bytes: &[u8], offset: usize) -> Option<CountedBin> {
    let low_water = half_word_at(bytes, offset)? as i32;
    let count = half_word_at(bytes, offset + BIN_COUNT)?;
    let items_end = word_at(bytes, offset + BIN_AVAIL)?;
    let is_bin = (-1..=count as i32).contains(&low_water)
        && u64::from(count) * 8 <= MAX_COUNTED_BYTES
        && items_end.is_multiple_of(8)
        && (PAGE_BYTES..USER_ADDRESS_END).contains(&items_end);
    is_bin.then_some(CountedBin { count, items_end })
}

/// Returns the consecutive bins from `offset` on whose stacks follow each other; the first stack
/// follows the one that ends at `stack_end`, if given.
fn run_of_bins(bytes: &[u8], offset: usize, stack_end: Option<u64>) -> Vec<CountedBin> {
    let mut bins: Vec<CountedBin> = Vec::new();
    while let Some(bin) = counted_bin(bytes, offset + BIN_BYTES * bins.len()) {
        let previous_end = bins.last().map(|bin| bin.items_end).or(stack_end);
        let follows = previous_end.is_none_or(|previous_end| {
            let stack_bytes = bin.items_end.wrapping_sub(previous_end);
            (8..=MAX_COUNTED_BYTES).contains(&stack_bytes) && u64::from(bin.count) * 8 <= stack_bytes
        });
        if !follows || bins.len() >= MAX_BINS {
            break;
        }
        bins.push(bin);
    }
    bins
}

/// The bins of the small classes of a cache of 5.0 to 5.2.
struct SmallBins {
    /// Offset of the first one.
    offset: usize,
    bins: Vec<CountedBin>,
}

/// Returns the bins of the small classes; `None` if `storage` has none.
fn small_bins(storage: &[u8]) -> Option<SmallBins> {
    let mut runs = (0..storage.len())
        .step_by(8)
        .map(|offset| SmallBins { offset, bins: run_of_bins(storage, offset, None) });
    runs.find(|run| run.bins.len() >= MIN_SMALL_BINS)
}

/// Returns the bins of the large classes, some words after the small bins that end at `small_end`
/// and whose stacks end at `stack_end`.
fn large_bins(storage: &[u8], small_end: usize, stack_end: u64) -> Vec<CountedBin> {
    let offsets = (0..MAX_WORDS_BETWEEN).map(|word| small_end + 8 * word);
    offsets
        .map(|offset| run_of_bins(storage, offset, Some(stack_end)))
        .find(|bins| !bins.is_empty())
        .unwrap_or_default()
}
