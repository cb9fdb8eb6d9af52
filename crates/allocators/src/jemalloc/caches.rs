//! Thread caches (tcaches). The free regions in them look in use in their slabs.
//!
//! A thread's cache is in its static thread-local storage, below its FS base, and is recognised by
//! its structure. In 5.3 a list links all caches of an arena, including explicit ones
//! (`mallctl("tcache.create")`) and those of threads whose registers are unknown.

use std::collections::HashSet;
use std::time::Instant;

use super::layout::CacheLayout as Shape;
use crate::blocks::CachedBlock;
use strandline_claims::allocator::Context;
use strandline_process::memory::{half_word_at, word_at};
use strandline_process::pages::{PAGE_BYTES, USER_ADDRESS_END};

/// Bytes searched below a thread's FS base.
const MAX_STORAGE_BYTES: u64 = 64 << 10;
/// Offsets in a `tcache_slow_t` of 5.3: of the bins (in the descriptor after the first link) and of
/// the arena; then the maximum words from there to the pointer to its `tcache_t` (between them are
/// three arrays of one or two bytes per small class).
const SLOW_BINS: u64 = 32;
const SLOW_ARENA: usize = 40;
const MAX_WORDS_TO_CACHE: usize = 64;
/// Bytes of a bin (`struct cache_bin_s` of builds with statistics).
const BIN_BYTES: usize = 24;
/// Maximum bins of a cache: `TCACHE_NBINS_MAX` of 5.3.
const MAX_BINS: usize = 73;
/// Maximum items of a bin: its stack has at most 2^16 bytes.
const MAX_ITEMS: usize = 1 << 13;
/// Maximum items of all caches together, in case some are damaged.
const MAX_TOTAL_ITEMS: usize = 1 << 22;
/// Maximum caches followed.
const MAX_CACHES: usize = 1 << 16;
/// 5.0 to 5.2: minimum number of consecutive bins with adjacent stacks that are the small bins of a
/// cache.
const MIN_SMALL_BINS: usize = 30;
/// Maximum bytes of a stack in 5.0 to 5.2.
const MAX_COUNTED_BYTES: u64 = 8 << 9;
/// Maximum words between the small bins and the large ones.
const MAX_WORDS_BETWEEN: usize = 40;
/// Maximum words between a thread's arena and its small bins, with some slack.
const MAX_WORDS_BEFORE: usize = 16;

/// Contents of all caches.
#[derive(Default)]
pub struct Cached {
    /// Free regions, in address order.
    pub items: Vec<CachedBlock>,
    /// Addresses within jemalloc's internal allocations: stacks of items, `arenas_tdata`.
    pub own: Vec<u64>,
    /// FS bases of the threads with a cache.
    pub threads: Vec<u64>,
    /// Invalid bins.
    pub broken: u64,
    /// Bytes read from the target.
    pub bytes_read: u64,
}

/// Reads all caches.
pub fn find(context: &Context<'_>, shape: Shape) -> Cached {
    let mut reader = Reader { context, cached: Cached::default(), seen: HashSet::new(), last_below: None };
    for &fs_base in context.fs_bases {
        if Instant::now() >= context.deadline {
            break;
        }
        match shape {
            Shape::Stacked => reader.read_stacked(fs_base),
            Shape::Counted => reader.read_counted(fs_base),
        }
    }
    let mut cached = reader.cached;
    cached.items.sort_unstable();
    cached.items.dedup_by_key(|item| item.address);
    cached.own.sort_unstable();
    cached
}

struct Reader<'a> {
    context: &'a Context<'a>,
    cached: Cached,
    /// Addresses of the bins of caches already read.
    seen: HashSet<u64>,
    /// Offset of the last thread's cache below its FS base; it is the same in all threads.
    last_below: Option<u64>,
}

impl Reader<'_> {
    /// Returns the part of a thread's storage that may hold its cache.
    fn storage(&mut self, fs_base: u64) -> Option<Storage> {
        let below = self.last_below.unwrap_or(MAX_STORAGE_BYTES);
        let bytes = MAX_STORAGE_BYTES.min(below);
        let mapping = self.context.space.find(fs_base.checked_sub(8)?)?;
        let start = fs_base.checked_sub(below)?.max(mapping.start) & !7;
        let end = start.checked_add(bytes)?.min(fs_base).min(mapping.end);
        let mut storage = Storage { start, bytes: vec![0; end.checked_sub(start)? as usize] };
        for run in self.context.resident_runs((start, end)) {
            let part = storage.bytes.get_mut((run.start - start) as usize..(run.end - start) as usize)?;
            self.cached.bytes_read += self.context.memory.read_some(run.start, part) as u64;
        }
        Some(storage)
    }

    /// Reads the cache of a thread of 5.3. In builds with statistics, the descriptor in
    /// `tcache_slow_t` points to the bins, which follow the first pointer of `tcache_t`.
    fn read_stacked(&mut self, fs_base: u64) {
        let Some(storage) = self.storage(fs_base) else { return };
        let mut offsets = (0..storage.bytes.len()).step_by(8);
        let found = offsets.find_map(|offset| StackedCache::find_at(&storage, offset));
        let Some(StackedCache { slow, cache }) = found else { return };
        self.cached.threads.push(fs_base);
        self.last_below = Some((fs_base - slow.min(cache)).max(self.last_below.unwrap_or(0)));
        if self.context.memory.read_word(slow + SLOW_BINS) != Ok(cache + 8) {
            // A build without statistics has no list of caches.
            if self.seen.insert(cache + 8) {
                self.read_stacked_bins(cache + 8);
            }
            return;
        }
        let mut descriptor = slow + 16;
        while self.seen.len() < MAX_CACHES && Instant::now() < self.context.deadline {
            let mut words = [0; 24];
            if self.context.memory.read(descriptor, &mut words).is_err() {
                return;
            }
            let (next, bins) = (word_at(&words, 0).unwrap_or(0), word_at(&words, 16).unwrap_or(0));
            if bins == 0 || !self.seen.insert(bins) {
                return;
            }
            self.read_stacked_bins(bins);
            descriptor = next;
        }
    }

    /// Reads the bins of a 5.3 cache.
    fn read_stacked_bins(&mut self, bins: u64) {
        let mut bytes = [0; BIN_BYTES * MAX_BINS];
        let got = self.context.memory.read_some(bins, &mut bytes);
        for (class, bin) in bytes[..got].as_chunks::<BIN_BYTES>().0.iter().enumerate() {
            let (head, marks) = (word_at(bin, 0).unwrap_or(0), word_at(bin, 16).unwrap_or(0));
            if head == 0 {
                break;
            }
            // low_bits_low_water, low_bits_full, low_bits_empty.
            let empty = marks >> 32 & 0xffff;
            let length = empty.wrapping_sub(head) & 0xffff;
            if !head.is_multiple_of(8) || !length.is_multiple_of(8) {
                // Past the last bin of this cache.
                break;
            }
            if class == 0 {
                self.cached.own.push(head.saturating_add(length).saturating_sub(8));
            }
            self.add_items(class, head, (length / 8) as usize);
        }
    }

    /// 5.0 to 5.2: a bin has a count and a pointer past its items; the stacks of the bins are
    /// adjacent.
    fn read_counted(&mut self, fs_base: u64) {
        let Some(Storage { start, bytes: storage }) = self.storage(fs_base) else { return };
        let Some((offset, small)) = small_bins(&storage) else { return };
        if !self.seen.insert(start + offset as u64) {
            return;
        }
        // Includes the words before the bins.
        let below = fs_base - start - offset as u64 + 8 * MAX_WORDS_BEFORE as u64;
        self.last_below = Some(below.max(self.last_below.unwrap_or(0)));
        self.cached.threads.push(fs_base);
        let mut bins = small;
        let bins_end = offset + BIN_BYTES * bins.len();
        bins.extend(large_bins(&storage, bins_end, bins.last().map_or(0, |bin| bin.items_end)));
        if let Some(first) = bins.first() {
            self.cached.own.push(first.items_end.saturating_sub(8));
        }
        self.cached.own.extend(arenas_data(&storage, offset, bins_end));
        for (class, bin) in bins.iter().enumerate() {
            let count = bin.count as usize;
            self.add_items(class, bin.items_end.saturating_sub(8 * count as u64), count);
        }
    }

    fn add_items(&mut self, class: usize, address: u64, count: usize) {
        let count = count.min(MAX_ITEMS);
        if self.cached.items.len() + count > MAX_TOTAL_ITEMS {
            self.cached.broken += 1;
            return;
        }
        let mut bytes = vec![0; 8 * count];
        if self.context.memory.read(address, &mut bytes).is_err() {
            self.cached.broken += u64::from(count > 0);
            return;
        }
        self.cached.bytes_read += bytes.len() as u64;
        let pointers = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        self.cached.items.extend(pointers.map(|address| CachedBlock { address, class: class as u16 }));
    }
}

/// Part of a thread's static thread-local storage.
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

impl StackedCache {
    /// Returns the cache whose `tcache_t` is at `offset`: it begins with a pointer to its
    /// `tcache_slow_t`, which points back.
    fn find_at(storage: &Storage, offset: usize) -> Option<Self> {
        let Storage { start, bytes } = storage;
        let (slow, cache) = (word_at(bytes, offset)?, start + offset as u64);
        let at = usize::try_from(slow.checked_sub(*start)?).ok()?;
        let has_arena = word_at(bytes, at.checked_add(SLOW_ARENA)?)? != 0;
        let mut words = (1..MAX_WORDS_TO_CACHE).map(|word| at + SLOW_ARENA + 8 * word);
        let points_back = words.any(|at| word_at(bytes, at) == Some(cache));
        (slow.is_multiple_of(8) && slow != cache && has_arena && points_back).then_some(Self { slow, cache })
    }
}

/// Returns the per-arena data that a thread of 5.0 to 5.2 has allocated (`tsd.h`, `arenas_tdata`).
/// Its field follows the thread's arena pointer, before the cache; the cache holds the same arena
/// pointer after its small bins.
fn arenas_data(storage: &[u8], small: usize, bins_end: usize) -> Option<u64> {
    // After `link` in 5.0; from 5.1 on also after `cache_bin_array_descriptor`.
    let words = (0..MAX_WORDS_BETWEEN).filter_map(|word| word_at(storage, bins_end + 8 * word));
    words.filter(|&arena| arena != 0 && arena.is_multiple_of(64)).find_map(|arena| {
        let mut before = (3..MAX_WORDS_BEFORE).filter_map(|words| small.checked_sub(8 * words));
        let field = before.find(|&offset| word_at(storage, offset) == Some(arena))?;
        word_at(storage, field + 8).filter(|&data| data != 0)
    })
}

/// A bin of 5.0 to 5.2: `low_water` and `ncached` in the first word, then statistics, then `avail`.
struct CountedBin {
    count: u32,
    /// The address past its items.
    items_end: u64,
}

fn counted_bin(bytes: &[u8], offset: usize) -> Option<CountedBin> {
    let low_water = half_word_at(bytes, offset)? as i32;
    let count = half_word_at(bytes, offset + 4)?;
    let items_end = word_at(bytes, offset + 16)?;
    let is_bin = (-1..=count as i32).contains(&low_water)
        && u64::from(count) * 8 <= MAX_COUNTED_BYTES
        && items_end.is_multiple_of(8)
        && (PAGE_BYTES..USER_ADDRESS_END).contains(&items_end);
    is_bin.then_some(CountedBin { count, items_end })
}

/// Returns the consecutive bins from `offset` on whose stacks follow the stack that ends at
/// `after`.
fn run_of_bins(bytes: &[u8], offset: usize, after: Option<u64>) -> Vec<CountedBin> {
    let mut bins: Vec<CountedBin> = Vec::new();
    while let Some(bin) = counted_bin(bytes, offset + BIN_BYTES * bins.len()) {
        let before = bins.last().map(|bin| bin.items_end).or(after);
        let follows = before.is_none_or(|before| {
            let stack = bin.items_end.wrapping_sub(before);
            (8..=MAX_COUNTED_BYTES).contains(&stack) && u64::from(bin.count) * 8 <= stack
        });
        if !follows || bins.len() >= MAX_BINS {
            break;
        }
        bins.push(bin);
    }
    bins
}

fn small_bins(storage: &[u8]) -> Option<(usize, Vec<CountedBin>)> {
    let found = |offset| Some(run_of_bins(storage, offset, None)).filter(|bins| bins.len() >= MIN_SMALL_BINS);
    (0..storage.len()).step_by(8).find_map(|offset| Some((offset, found(offset)?)))
}

fn large_bins(storage: &[u8], small_end: usize, after: u64) -> Vec<CountedBin> {
    let offsets = (0..MAX_WORDS_BETWEEN).map(|word| small_end + 8 * word);
    offsets
        .map(|offset| run_of_bins(storage, offset, Some(after)))
        .find(|bins| !bins.is_empty())
        .unwrap_or_default()
}
