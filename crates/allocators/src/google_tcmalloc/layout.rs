//! Where Google's tcmalloc has its structures, as data. It has no releases: a layout is named by the month of the first commit
//! that was looked at and has it, of github.com/google/tcmalloc. Offsets are those that the compiler gives (x86-64, addresses
//! of 48 bits), of builds with pages of 8, 32 and 256 KiB.
//!
//! Which of them a process has is told by whether its spans say what the page map says.

use strandline_process::memory::{half_word_at, word_at};

/// Binary logarithms of the page sizes that are read (`common.h`, `kPageShift`), the default first. The small one, with pages of
/// 4 KiB (`TCMALLOC_INTERNAL_SMALL_BUT_SLOW`), has a page map of three levels.
pub const PAGE_SHIFTS: [u32; 3] = [13, 15, 18];
/// Bits of an address (`config.h`, `kAddressBits`).
const ADDRESS_BITS: u32 = 48;
/// Binary logarithm of what the kernel calls a huge page (`huge_pages.h`, `kHugePageSize`).
pub const HUGE_SHIFT: u32 = 21;
/// A huge page.
pub const HUGE_BYTES: u64 = 1 << HUGE_SHIFT;
/// What is mapped at once (`common.h`, `kMinMmapAlloc`), to whose multiples it is aligned.
pub const REGION_BYTES: u64 = 1 << 30;

/// How spans and trackers are laid out.
#[derive(Debug)]
pub struct Layout {
    /// The month of the first commit with it.
    pub since: &'static str,
    /// Bytes of a span (`span.h`, `class Span`).
    span_bytes: usize,
    /// `kReservedBits`: between its first page and its flags.
    reserved_bits: u32,
    /// Whether the number of pages of one that is small stands behind the flags, or in the word at 32.
    pages_behind_flags: bool,
    /// The number of pages of one that is large or a sample; the sample behind it.
    large: usize,
    /// The free objects, in a bitmap, or the first of them in a list.
    free: usize,
    /// How many such a list has (`kCacheSize`): of 16 bits each, so many as the bitmap has.
    pub cached: usize,
    /// Within a sample (`sampled_allocation.h`, `StackTrace` in `logging.h`): the object that stands in for it in a span of its
    /// size, and how large it is.
    pub proxy: Option<usize>,
    /// See above.
    pub allocated_size: usize,
    /// A huge page's tracker (`huge_page_filler.h`, later `huge_page_tracker.h`, `class PageTracker`): the bits of its pages
    /// in use (`free_`).
    tracker_used: usize,
    /// From behind these and their counts to the bits of pages that were given back (`released_by_page_`).
    tracker_gap: usize,
}

/// What most of them have in common.
const COMMON: Layout = Layout {
    since: "2025-06",
    span_bytes: 64,
    reserved_bits: 26,
    pages_behind_flags: false,
    large: 32,
    free: 40,
    cached: 8,
    proxy: Some(32),
    allocated_size: 56,
    tracker_used: 48,
    tracker_gap: 0,
};
/// Since 2025-09 trackers have features of theirs between the two bitmaps.
const WITH_FEATURES: Layout =
    Layout { since: "2025-09", reserved_bits: 25, tracker_used: 56, tracker_gap: 72, ..COMMON };
/// The last with locks as they were (`TCMALLOC_INTERNAL_LEGACY_LOCKING`) are builds of the same commits.
const LATEST: Layout =
    Layout { since: "2026-08", large: 40, cached: 12, proxy: None, allocated_size: 56, ..WITH_FEATURES };

/// All that are known.
pub static LAYOUTS: [Layout; 7] = [
    COMMON,
    Layout { since: "2024-12", span_bytes: 48, cached: 4, allocated_size: 64, ..COMMON },
    WITH_FEATURES,
    Layout { since: "2026-04", reserved_bits: 24, allocated_size: 64, ..WITH_FEATURES },
    Layout { since: "2026-07", reserved_bits: 24, allocated_size: 64, cached: 12, ..WITH_FEATURES },
    Layout { reserved_bits: 0, pages_behind_flags: true, ..LATEST },
    Layout { large: 48, free: 48, cached: 8, ..LATEST },
];

/// The most bytes that a span has.
const MAX_SPAN_BYTES: usize = 64;

/// The bytes of a span's structure, the rest 0.
pub type SpanBytes = [u8; MAX_SPAN_BYTES];

/// A span: a run of pages in use, cut into objects of one class, or one block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Words {
    /// `first_page_`.
    pub page: u64,
    /// Pages.
    pub pages: u64,
    /// `allocated_`: objects that are not in its list or bitmap.
    pub allocated: u16,
    /// `embed_count_`, `freelist_`, `cache_size_`: of a list.
    pub list: (u16, u16, usize),
    /// Whether it is a sample: where what is known of it stands.
    pub sample: Option<u64>,
}

impl Layout {
    /// What a structure says, if it is one.
    pub fn span(&self, bytes: &[u8], page_shift: u32) -> Option<Words> {
        let (flags, word) = (self.flags(page_shift), word_at(bytes, 24)?);
        let (is_large, is_sample) = (word >> flags & 1 == 1, word >> (flags + 1) & 1 == 1);
        let small = if self.pages_behind_flags { word >> (flags + 3) } else { word_at(bytes, 32)? };
        let pages = if is_large || is_sample { word_at(bytes, self.large)? } else { small & 63 };
        let page = word & ((1 << (ADDRESS_BITS - page_shift)) - 1);
        let (lists, counts) = (half_word_at(bytes, 16)?, half_word_at(bytes, 20)?);
        let is_one = page > 0 && pages > 0 && pages < 1 << (ADDRESS_BITS - 1 - page_shift);
        is_one.then_some(Words {
            page,
            pages,
            allocated: counts as u16,
            list: (lists as u16, (lists >> 16) as u16, (counts >> 16 & 15) as usize),
            sample: word_at(bytes, self.large + 8).filter(|_| is_sample),
        })
    }

    /// The bit of the word at 24 that says whether a span is large; the next whether it is a sample. Reserved bits are of 32,
    /// and do not cross such a border.
    fn flags(&self, page_shift: u32) -> u32 {
        let page_bits = ADDRESS_BITS - page_shift;
        let crosses = page_bits < 32 && page_bits + self.reserved_bits > 32;
        if crosses { 32 + self.reserved_bits } else { page_bits + self.reserved_bits }
    }

    /// The bytes of a span's structure, read by `read`: not those behind it, as the last may stand at the very end of a mapping.
    pub fn span_bytes(&self, read: impl FnOnce(&mut [u8]) -> Option<()>) -> Option<SpanBytes> {
        let mut bytes = [0; MAX_SPAN_BYTES];
        read(&mut bytes[..self.span_bytes]).map(|()| bytes)
    }

    /// Whether a span says that it is large.
    pub fn is_large(&self, bytes: &[u8], page_shift: u32) -> bool {
        word_at(bytes, 24).is_some_and(|word| word >> self.flags(page_shift) & 1 == 1)
    }

    /// Whether the word with the number of pages of a small one has nothing else; where more may stand there that is not looked at.
    pub fn has_only_pages(&self, bytes: &[u8]) -> bool {
        self.pages_behind_flags || self.cached == 12 || word_at(bytes, 32).is_some_and(|word| word < 64)
    }

    /// Whether objects of this size are marked in a bitmap, and not listed (`UseBitmapForSize`).
    pub fn has_bitmap(&self, bytes: u64, page_shift: u32) -> bool {
        bytes >= (1 << page_shift) / self.bits() as u64
    }

    /// Bits of a span's bitmap (`kBitmapSize`).
    fn bits(&self) -> usize {
        16 * self.cached
    }

    /// Whether the bitmap of a span says that its object of this number is free.
    pub fn is_free(&self, bytes: &[u8], object: usize) -> Option<bool> {
        let word = word_at(bytes, self.free + object / 64 * 8).filter(|_| object < self.bits())?;
        Some(word >> (object % 64) & 1 == 1)
    }

    /// The free object of this number that the list of a span has in the span itself, in units of [`UNIT_BYTES`].
    pub fn listed(&self, bytes: &[u8], number: usize) -> Option<u16> {
        let word = word_at(bytes, self.free + number / 4 * 8).filter(|_| number < self.cached)?;
        Some((word >> (number % 4 * 16)) as u16)
    }
}

/// What free objects in lists are counted in (`common.h`, `kAlignment`).
pub const UNIT_BYTES: u64 = 8;
/// The end of such a list (`kListEnd`).
pub const LIST_END: u16 = u16::MAX;

/// The most pages of a huge page that are read: of 8 KiB.
pub const MAX_PAGES: usize = 256;

/// A set of a huge page's pages.
pub type Pages = [u64; MAX_PAGES / 64];

/// What a huge page's tracker says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tracker {
    /// First byte of the huge page.
    pub start: u64,
    /// Pages in use.
    pub used: Pages,
    /// Pages that were given back.
    pub released: Pages,
}

/// The most bytes of a tracker that are read.
pub const MAX_TRACKER_BYTES: usize = 200;

impl Layout {
    /// Bytes of a tracker that are read, of its first ones: the last of all may stand at the very end of a mapping.
    pub fn tracker_bytes(&self, page_shift: u32) -> usize {
        let words = (1_usize << (HUGE_SHIFT - page_shift)).div_ceil(64);
        (self.tracker_used + 8 * (2 * words + 1) + self.tracker_gap).min(MAX_TRACKER_BYTES)
    }

    /// What a structure says, if it is one, and its counts and bits agree.
    pub fn tracker(&self, bytes: &[u8], page_shift: u32) -> Option<Tracker> {
        let pages = 1_usize << (HUGE_SHIFT - page_shift);
        let (words, first) = (pages.div_ceil(64), self.tracker_used);
        let counts = word_at(bytes, first + 8 * words)?;
        // Counts are as small as they can be.
        let count = |number: u32| {
            if pages < 256 { counts >> (8 * number) & 0xff } else { counts >> (16 * number) & 0xffff }
        };
        let released_count = word_at(bytes, 24)? & 0xffff;
        let mut tracker =
            Tracker { start: word_at(bytes, 16)?.checked_mul(HUGE_BYTES)?, ..Tracker::default() };
        for index in 0..words {
            tracker.used[index] = word_at(bytes, first + 8 * index)?;
            tracker.released[index] = word_at(bytes, first + 8 * (words + 1) + self.tracker_gap + 8 * index)?;
        }
        let agree = members(&tracker.used) == count(1)
            && members(&tracker.released) == released_count
            && tracker.used.iter().zip(tracker.released).all(|(used, released)| used & released == 0);
        // Of fewer than 64 pages the rest of the word is not used.
        let is_within = pages >= 64 || (tracker.used[0] | tracker.released[0]) >> pages == 0;
        (agree && is_within).then_some(tracker)
    }
}

/// How many pages a set has.
pub fn members(pages: &Pages) -> u64 {
    pages.iter().map(|word| u64::from(word.count_ones())).sum()
}

/// Size classes of a partition, by build (`common.h`, `kNumBaseClasses`): with pages of 8, 32, 256 and 4 KiB. There are one to
/// four partitions: normal ones, by node or by type of what is allocated, and cold ones behind them.
const BASE_CLASSES: [usize; 4] = [86, 78, 89, 46];
/// The most partitions.
const MAX_PARTITIONS: usize = 4;
/// The most classes.
const MAX_CLASSES: usize = 89 * MAX_PARTITIONS;
/// Fewer sizes are not the table of them.
const MIN_SIZES: usize = 20;
/// The largest (`kMaxSize`).
const LARGEST_BYTES: [u64; 2] = [256 << 10, 8 << 10];
/// Bytes of what is read before `class_to_size_`, and of all.
pub const BEFORE_SIZES_BYTES: usize = MAX_CLASSES + 4;
/// See above.
pub const SIZES_BYTES: usize = BEFORE_SIZES_BYTES + 4 * MAX_CLASSES;

/// What `SizeMap` says of size classes (`sizemap.h`), by number; of those that are not used, 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Classes {
    /// Bytes of an object.
    pub bytes: Vec<u64>,
    /// Pages of a span.
    pub pages: Vec<u64>,
}

impl Classes {
    /// The table whose `class_to_size_` stands behind [`BEFORE_SIZES_BYTES`] of `bytes`, if it is one. Before it stands
    /// `class_to_pages_`, a byte for each, and up to three that align it.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let size = |class: usize| half_word_at(bytes, BEFORE_SIZES_BYTES + 4 * class).map(u64::from);
        let mut sizes = 1;
        while size(sizes)? > size(sizes - 1)? && size(sizes)?.is_multiple_of(8) && sizes < BASE_CLASSES[2] {
            sizes += 1;
        }
        if size(0)? != 0 || sizes < MIN_SIZES || !LARGEST_BYTES.contains(&size(sizes - 1)?) {
            return None;
        }
        // Most first: partitions are like each other, and of fewer all of this is true too.
        let bases = || BASE_CLASSES.into_iter().filter(|&base| sizes <= base);
        let numbers =
            (1..=MAX_PARTITIONS).rev().flat_map(|partitions| bases().map(move |base| base * partitions));
        numbers.flat_map(|number| (0..4).map(move |padding| (number, padding))).find_map(
            |(number, padding)| {
                let start = BEFORE_SIZES_BYTES.checked_sub(number + padding)?;
                let pages: Vec<u64> =
                    bytes.get(start..start + number)?.iter().map(|&pages| pages.into()).collect();
                let bytes: Vec<u64> = (0..number).map(size).collect::<Option<_>>()?;
                let agree = |class: usize| {
                    (bytes[class] == 0) == (pages[class] == 0)
                        && bytes[class] <= bytes[sizes - 1]
                        && pages[class] < 64
                };
                (0..number).all(agree).then_some(Self { bytes, pages })
            },
        )
    }

    /// How many there are.
    pub fn number(&self) -> usize {
        self.bytes.len()
    }

    /// Bytes of a number of a class in the page map (`CompactSizeClass`).
    pub fn compact_bytes(&self) -> u64 {
        if self.number() <= 256 { 1 } else { 2 }
    }

    /// Objects of a span.
    pub fn objects(&self, class: usize, page_shift: u32) -> Option<u64> {
        (self.pages.get(class)? << page_shift).checked_div(*self.bytes.get(class)?)
    }
}

/// How the page map is divided (`pagemap.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shape {
    /// Binary logarithm of the page size.
    pub page_shift: u32,
    /// `PageMap2`, with leaves of 2^15 pages, or `PageMap3`, whose leaves and nodes between have a third of a page number's bits,
    /// rounded up, each: for all builds since 77fbeb5b of 2026-08-12.
    pub has_nodes: bool,
}

impl Shape {
    /// All that there are.
    pub fn all() -> impl Iterator<Item = Self> {
        PAGE_SHIFTS
            .into_iter()
            .flat_map(|page_shift| [false, true].map(|has_nodes| Self { page_shift, has_nodes }))
    }

    const fn leaf_bits(self) -> u32 {
        if self.has_nodes { (ADDRESS_BITS - self.page_shift).div_ceil(3) } else { 15 }
    }

    /// Entries of a leaf: for each page a class, and behind these a word with the span, and the class again in its upper 16
    /// bits; then a word with the tracker of each huge page.
    pub const fn leaf_entries(self) -> u64 {
        1 << self.leaf_bits()
    }

    /// Addresses that a leaf stands for.
    pub const fn leaf_span(self) -> u64 {
        self.leaf_entries() << self.page_shift
    }

    /// Entries of a node between the root and leaves; 1 where there is none.
    pub const fn node_entries(self) -> u64 {
        if self.has_nodes { self.leaf_entries() } else { 1 }
    }

    /// Bytes of the root that user addresses can use: half of it.
    pub const fn root_bytes(self) -> u64 {
        8 * (((1 << (ADDRESS_BITS - 1)) / self.leaf_span()) / self.node_entries())
    }

    /// Where the spans of a leaf stand, where its trackers do, and where it ends; a class has so many bytes.
    pub fn parts_of_leaf(self, leaf: u64, compact_bytes: u64) -> [u64; 3] {
        let spans = leaf.saturating_add(self.leaf_entries() * compact_bytes);
        let trackers = spans.saturating_add(self.leaf_entries() * 8);
        [
            spans,
            trackers,
            trackers.saturating_add(8 * (self.leaf_entries() >> (HUGE_SHIFT - self.page_shift))),
        ]
    }
}

/// The bits of such an entry that lead to a span.
pub const SPAN_BITS: u64 = (1 << 48) - 1;

/// Static data with less has neither a root nor the transfer caches.
pub const MIN_DATA_BYTES: u64 = 128 << 10;

/// A node of a map of free huge pages (`huge_address_map.h`, `HugeAddressMap::Node`): first and number of huge pages, then at 24
/// its left and right, and what it hangs from.
pub const NODE_BYTES: usize = 64;
/// Its links: left, right, parent.
pub const NODE_LINKS: [usize; 3] = [24, 32, 40];
/// `HugeAddressMap`: its root, how many nodes, how many huge pages in all.
pub const MAP_BYTES: usize = 64;

/// A region of huge pages that large blocks share (`huge_region.h`, `HugeRegion`): from 16 on a bit a page in use, then counts,
/// at the end of these the range, pages in use of each huge page, and whether each is backed.
pub struct Region {
    /// Bytes of its bits.
    pub bits_bytes: usize,
}

/// Huge pages of a region (`kNumHugePages`).
pub const REGION_HUGE_PAGES: usize = 512;

impl Region {
    /// With pages of this size.
    pub fn new(page_shift: u32) -> Self {
        Self { bits_bytes: (REGION_BYTES >> page_shift) as usize / 8 }
    }

    /// Where `location_` stands: behind the bits and three counts of 32 bits.
    pub fn location(&self) -> usize {
        16 + self.bits_bytes + 16
    }

    /// `pages_used_`, a word for each huge page.
    pub fn pages_used(&self) -> usize {
        self.location() + 16
    }

    /// `backed_`, a byte for each.
    pub fn backed(&self) -> usize {
        self.pages_used() + 8 * REGION_HUGE_PAGES
    }

    /// All that is read.
    pub fn bytes(&self) -> usize {
        self.backed() + REGION_HUGE_PAGES
    }
}

/// A list of a thread's cache (`thread_cache.h`, `ThreadCache::FreeList`): the first object, how many, at 16 the most (`max_length_`,
/// 1 at least).
pub const CACHE_LIST_BYTES: usize = 24;
/// Behind the lists of all classes: `size_`, `max_size_`, `tid_`, `in_setspecific_`, `next_`, `prev_`.
pub const CACHE_REST_BYTES: usize = 48;
/// `next_` and `prev_` in it.
pub const CACHE_LINKS: [usize; 2] = [32, 40];

/// A class's central list (`central_freelist.h`): its class and size stand 8 bytes behind its begin. In a transfer cache
/// (`transfer_cache_internals.h`) there are before it, from the class on: how many of the slots are used and may be, and the slots.
pub const TRANSFER_INFO: u64 = 24;
/// `slots_`.
pub const TRANSFER_SLOTS: u64 = 16;
/// A transfer cache is not larger.
pub const MAX_TRANSFER_BYTES: u64 = 4096;
/// A transfer cache of a group of processors (`transfer_cache.h`, `ShardedTransferCacheManagerBase`): its bytes.
pub const SHARD_BYTES: u64 = 128;
/// The number of its class (`BackingTransferCache`), right behind `slots_` and the info before it: up to 2025-06, and later.
pub const SHARD_CLASS: [u64; 2] = [40, 48];
/// Slots that it can have: 64 batches of 128.
pub const MAX_SLOTS: u64 = 64 * 128;

/// Caches of processors (`percpu_tcmalloc.h`, `TcmallocSlab`): a word with where they stand and, in its low 8 bits, the logarithm of
/// the size of each; then `stopped_` (later `state_`, with a length) and `begins_`, where in each the objects of each class begin, in
/// words.
pub const SLAB_SHIFT_BITS: u64 = 0xff;
/// Where `begins_` stands, without a length before it and with one.
pub const SLAB_BEGINS: [u64; 2] = [16, 24];
/// The shifts there can be (`cpu_cache.h`, `kInitialBasePerCpuShift`, `kMaxBasePerCpuShift` and what partitions add).
pub const SLAB_SHIFTS: std::ops::RangeInclusive<u64> = 12..=20;
/// The most processors that are looked at.
pub const MAX_PROCESSORS: u64 = 4096;

/// What its own structures are allocated from (`arena.h`, `Arena`): where it goes on, how much is left; behind these at 24 how much was
/// given back again (`bytes_nonresident_`).
pub const ARENA_NOT_RESIDENT: u64 = 32;
