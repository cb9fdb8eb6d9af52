//! Layouts of Google's tcmalloc, as data. It has no releases: a layout is named by the month of the
//! first examined commit of github.com/google/tcmalloc that has it. Offsets are those of the
//! compiler (x86-64, 48-bit addresses), in builds with pages of 8, 32 and 256 KiB.
//!
//! Here are spans and their free objects, trackers, size classes, the page map, and maps and
//! regions of huge pages; `cache_layout` has the caches. The layout of a process is the one under
//! which its spans agree with the page map.

use strandline_process::memory::{half_word_at, word_at};

/// Binary logarithms of the page sizes that are read (`common.h`, `kPageShift`), the default first.
/// The small build with pages of 4 KiB (`TCMALLOC_INTERNAL_SMALL_BUT_SLOW`) has a page map of three
/// levels.
pub const PAGE_SHIFTS: [u32; 3] = [13, 15, 18];
/// Bits of an address (`internal/config.h`, `kAddressBits`).
const ADDRESS_BITS: u32 = 48;
/// Binary logarithm of the kernel's huge page size (`internal/config.h`, `kHugePageShift`).
pub const HUGE_SHIFT: u32 = 21;
/// Bytes of a huge page.
pub const HUGE_BYTES: u64 = 1 << HUGE_SHIFT;
/// Size and alignment of a mapping (`common.h`, `kMinMmapAlloc`; its address contains its purpose:
/// `internal/memory_tag.h`).
pub const REGION_BYTES: u64 = 1 << 30;

/// Layout of spans and trackers.
#[derive(Debug)]
pub struct Layout {
    /// Month of the first commit with it.
    pub since: &'static str,
    /// Bytes of a span (`span.h`, `class Span`).
    span_bytes: usize,
    /// `kReservedBits`: bits between the first page and the flags.
    reserved_bits: u32,
    /// Whether the number of pages of a small span follows the flags; otherwise it is at
    /// [`SPAN_SMALL_PAGES`].
    has_pages_after_flags: bool,
    /// Whether the word with the number of pages of a small span holds other fields too.
    shares_pages_word: bool,
    /// Offset of the number of pages of a large span or a sample; the pointer to the sample
    /// follows.
    large_pages: usize,
    /// Offset of the free objects: a bitmap, or the first ones of a list.
    free_objects: usize,
    /// Capacity of that list (`kCacheSize`); it has 16 bits per object and the size of the bitmap.
    pub list_capacity: usize,
    /// Offset in a sample (`sampled_allocation.h`, `StackTrace` in `logging.h`) of its proxy, in
    /// layouts that have it.
    pub sample_proxy: Option<usize>,
    /// Offset in a sample of its size (`allocated_size`).
    pub sample_size: usize,
    /// Offset in the tracker of a huge page (`huge_page_filler.h`, later `huge_page_tracker.h`,
    /// `class PageTracker`) of the bits of pages in use (`free_`).
    tracker_used: usize,
    /// Bytes from the end of these bits and their counts to the bits of released pages
    /// (`released_by_page_`).
    tracker_gap_bytes: usize,
}

/// Offset in a span (`span.h`, `class Span`) of `embed_count_` and, in the upper 16 bits,
/// `freelist_`.
const SPAN_LIST: usize = 16;
/// Offset in a span of `allocated_`, of 16 bits, and `cache_size_`, of 4 or 8, of which 4 are used.
const SPAN_COUNTS: usize = 20;
/// Offset in a span of the word with `first_page_`, the reserved bits and the flags.
const SPAN_FIRST_PAGE: usize = 24;
/// Offset in a span of the word with the number of pages of a small span, in most layouts.
const SPAN_SMALL_PAGES: usize = 32;
/// Number of flags (`is_large_span_`, `sampled_`, `is_donated_`) before the number of pages, in
/// layouts that have it after them.
const FLAG_COUNT: u32 = 3;
/// Maximum pages of a span without the flag for large spans (`span.h`, `kLargeSpanLength`), and the
/// mask of their number.
pub const LARGEST_SMALL_PAGES: u64 = 63;

/// What most layouts have in common.
const COMMON: Layout = Layout {
    since: "2025-06",
    span_bytes: 64,
    reserved_bits: 26,
    has_pages_after_flags: false,
    shares_pages_word: false,
    large_pages: 32,
    free_objects: 40,
    list_capacity: 8,
    sample_proxy: Some(32),
    sample_size: 56,
    tracker_used: 48,
    tracker_gap_bytes: 0,
};
/// What the layouts since 2025-09 have in common: trackers with features between the two bitmaps.
const WITH_FEATURES: Layout =
    Layout { since: "2025-09", reserved_bits: 25, tracker_used: 56, tracker_gap_bytes: 72, ..COMMON };
/// What the layouts since 2026-08 have in common.
const LATEST: Layout = Layout {
    since: "2026-08",
    shares_pages_word: true,
    large_pages: 40,
    list_capacity: 12,
    sample_proxy: None,
    ..WITH_FEATURES
};

/// All known layouts.
pub static LAYOUTS: [Layout; 9] = [
    COMMON,
    Layout { since: "2024-12", span_bytes: 48, list_capacity: 4, sample_size: 64, ..COMMON },
    WITH_FEATURES,
    Layout { since: "2025-12", reserved_bits: 23, ..WITH_FEATURES },
    Layout { since: "2026-01", reserved_bits: 23, sample_size: 64, ..WITH_FEATURES },
    Layout { since: "2026-03", reserved_bits: 24, sample_size: 64, ..WITH_FEATURES },
    Layout {
        since: "2026-07",
        reserved_bits: 24,
        shares_pages_word: true,
        sample_size: 64,
        list_capacity: 12,
        ..WITH_FEATURES
    },
    Layout { reserved_bits: 0, has_pages_after_flags: true, ..LATEST },
    // Builds of the same commits with the old locks (`TCMALLOC_INTERNAL_LEGACY_LOCKING`).
    Layout { shares_pages_word: false, large_pages: 48, free_objects: 48, list_capacity: 8, ..LATEST },
];

/// Maximum bytes of a span structure.
const MAX_SPAN_BYTES: usize = 64;

/// The bytes of a span structure, padded with 0.
pub type SpanBytes = [u8; MAX_SPAN_BYTES];

/// A list of free objects of a span.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FreeList {
    /// `embed_count_`: number of objects whose places are in the first host.
    pub objects_in_first_host: u16,
    /// `freelist_`: place of the first host, a free object that holds the places of others.
    pub first_host: u16,
    /// `cache_size_`: number of objects whose places are in the span's structure.
    pub objects_in_span: usize,
}

/// Fields of a span: a run of pages in use, cut into objects of one class, or one block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpanFields {
    /// `first_page_`: number of its first page.
    pub first_page: u64,
    /// Number of pages.
    pub pages: u64,
    /// `allocated_`: objects that are not in its list or bitmap.
    pub allocated_objects: u16,
    /// Its list of free objects.
    pub list: FreeList,
    /// Address of the sample's structure, if the span is of a sample.
    pub sample: Option<u64>,
}

impl Layout {
    /// Parses a span structure; `None` if it is not one.
    pub fn span(&self, bytes: &[u8], page_shift: u32) -> Option<SpanFields> {
        let word = word_at(bytes, SPAN_FIRST_PAGE)?;
        let large_flag = self.large_flag_position(page_shift);
        let (is_large, is_sample) = (word >> large_flag & 1 == 1, word >> (large_flag + 1) & 1 == 1);
        let pages = if is_large || is_sample {
            word_at(bytes, self.large_pages)?
        } else if self.has_pages_after_flags {
            word >> (large_flag + FLAG_COUNT) & LARGEST_SMALL_PAGES
        } else {
            word_at(bytes, SPAN_SMALL_PAGES)? & LARGEST_SMALL_PAGES
        };
        let first_page = word & ((1 << (ADDRESS_BITS - page_shift)) - 1);
        let (list, counts) = (half_word_at(bytes, SPAN_LIST)?, half_word_at(bytes, SPAN_COUNTS)?);
        let is_span = first_page > 0 && pages > 0 && pages < 1 << (ADDRESS_BITS - 1 - page_shift);
        is_span.then_some(SpanFields {
            first_page,
            pages,
            allocated_objects: counts as u16,
            list: FreeList {
                objects_in_first_host: list as u16,
                first_host: (list >> 16) as u16,
                objects_in_span: (counts >> 16 & 15) as usize,
            },
            sample: word_at(bytes, self.large_pages + 8).filter(|_| is_sample),
        })
    }

    /// Position, in the word at [`SPAN_FIRST_PAGE`], of the flag for large spans; the flag for
    /// samples is next. Reserved bits are a 32-bit field, which does not cross a 32-bit boundary.
    fn large_flag_position(&self, page_shift: u32) -> u32 {
        let page_bits = ADDRESS_BITS - page_shift;
        let crosses = page_bits < 32 && page_bits + self.reserved_bits > 32;
        if crosses { 32 + self.reserved_bits } else { page_bits + self.reserved_bits }
    }

    /// Whether the reserved bits of a span are 0, as its constructor sets them (`reserved_`): flags
    /// of layouts with fewer ones are not.
    pub fn has_clear_reserved_bits(&self, bytes: &[u8], page_shift: u32) -> bool {
        let start = self.large_flag_position(page_shift) - self.reserved_bits;
        word_at(bytes, SPAN_FIRST_PAGE)
            .is_some_and(|word| (word >> start).trailing_zeros() >= self.reserved_bits)
    }

    /// Reads a span structure with `read`, and nothing after it, as the last one may end where its
    /// mapping ends.
    pub fn span_bytes(&self, read: impl FnOnce(&mut [u8]) -> Option<()>) -> Option<SpanBytes> {
        let mut bytes = [0; MAX_SPAN_BYTES];
        read(&mut bytes[..self.span_bytes]).map(|()| bytes)
    }

    /// Whether a span has the flag for large spans.
    pub fn is_large(&self, bytes: &[u8], page_shift: u32) -> bool {
        word_at(bytes, SPAN_FIRST_PAGE)
            .is_some_and(|word| word >> self.large_flag_position(page_shift) & 1 == 1)
    }

    /// Whether a small span's word with its number of pages is valid: it holds nothing else. In
    /// layouts that have other fields there, any is.
    pub fn has_valid_pages_word(&self, bytes: &[u8]) -> bool {
        self.shares_pages_word
            || word_at(bytes, SPAN_SMALL_PAGES).is_some_and(|pages| pages <= LARGEST_SMALL_PAGES)
    }

    /// Whether free objects of `object_bytes` are in a bitmap instead of a list
    /// (`UseBitmapForSize`).
    pub fn has_bitmap(&self, object_bytes: u64, page_shift: u32) -> bool {
        object_bytes >= (1 << page_shift) / self.bitmap_bits() as u64
    }

    /// Bits of a span's bitmap (`kBitmapSize`).
    fn bitmap_bits(&self) -> usize {
        16 * self.list_capacity
    }

    /// Whether the bitmap of a span marks this object as free.
    pub fn is_free(&self, bytes: &[u8], object: usize) -> Option<bool> {
        let word =
            word_at(bytes, self.free_objects + object / 64 * 8).filter(|_| object < self.bitmap_bits())?;
        Some(word >> (object % 64) & 1 == 1)
    }

    /// Returns an entry of the free list within the span structure, in units of [`UNIT_BYTES`].
    pub fn list_entry(&self, bytes: &[u8], number: usize) -> Option<u16> {
        let word =
            word_at(bytes, self.free_objects + number / 4 * 8).filter(|_| number < self.list_capacity)?;
        Some((word >> (number % 4 * 16)) as u16)
    }
}

/// Unit of the entries of free lists (`common.h`, `kAlignment`).
pub const UNIT_BYTES: u64 = 8;
/// End of a free list (`kListEnd`).
pub const LIST_END: u16 = u16::MAX;

/// Maximum pages of a huge page: of 8 KiB.
const MAX_PAGES_PER_HUGE_PAGE: usize = 256;

/// A set of pages of a huge page, one bit each.
pub type PageSet = [u64; MAX_PAGES_PER_HUGE_PAGE / 64];

/// Contents of the tracker of a huge page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tracker {
    /// First byte of the huge page.
    pub start: u64,
    /// Pages in use.
    pub used_pages: PageSet,
    /// Pages released to the kernel.
    pub released_pages: PageSet,
}

/// Offset in a tracker of the number of its huge page (`location_`).
const TRACKER_LOCATION: usize = 16;
/// Offset in a tracker of the number of its released pages (`released_count_`), of 16 bits.
const TRACKER_RELEASED_COUNT: usize = 24;
/// Maximum bytes read of a tracker.
pub const MAX_TRACKER_BYTES: usize = 200;

impl Layout {
    /// Bytes read of a tracker, the first ones, as the last tracker may end where its mapping ends.
    pub fn tracker_bytes(&self, page_shift: u32) -> usize {
        let words = (1_usize << (HUGE_SHIFT - page_shift)).div_ceil(64);
        (self.tracker_used + 8 * (2 * words + 1) + self.tracker_gap_bytes).min(MAX_TRACKER_BYTES)
    }

    /// Parses a tracker; `None` if its counts and bits disagree.
    pub fn tracker(&self, bytes: &[u8], page_shift: u32) -> Option<Tracker> {
        let pages = 1_usize << (HUGE_SHIFT - page_shift);
        let words = pages.div_ceil(64);
        // A word with counts follows the bits of pages in use.
        let counts_offset = self.tracker_used + 8 * words;
        let released_offset = counts_offset + 8 + self.tracker_gap_bytes;
        let counts = word_at(bytes, counts_offset)?;
        // The second count is that of pages in use; counts have the smallest sufficient width.
        let used_count = if pages < 256 { counts >> 8 & 0xff } else { counts >> 16 & 0xffff };
        let released_count = word_at(bytes, TRACKER_RELEASED_COUNT)? & 0xffff;
        let start = word_at(bytes, TRACKER_LOCATION)?.checked_mul(HUGE_BYTES)?;
        let mut tracker = Tracker { start, ..Tracker::default() };
        for index in 0..words {
            tracker.used_pages[index] = word_at(bytes, self.tracker_used + 8 * index)?;
            tracker.released_pages[index] = word_at(bytes, released_offset + 8 * index)?;
        }
        let is_consistent = count_pages(&tracker.used_pages) == used_count
            && count_pages(&tracker.released_pages) == released_count
            && tracker
                .used_pages
                .iter()
                .zip(tracker.released_pages)
                .all(|(used, released)| used & released == 0);
        // With fewer than 64 pages the upper bits of the word are unused.
        let is_within = pages >= 64 || (tracker.used_pages[0] | tracker.released_pages[0]) >> pages == 0;
        (is_consistent && is_within).then_some(tracker)
    }
}

/// Returns the number of pages in a set.
pub fn count_pages(pages: &PageSet) -> u64 {
    pages.iter().map(|word| u64::from(word.count_ones())).sum()
}

/// Size classes per partition (`common.h`, `kNumBaseClasses`) of builds with pages of 8, 32, 256
/// and 4 KiB. There are one to four partitions: normal ones, by node or by type of the allocation,
/// and cold ones after them.
const BASE_CLASSES: [usize; 4] = [86, 78, 89, 46];
/// The largest of them.
const MAX_BASE_CLASSES: usize = 89;
/// Maximum number of partitions.
const MAX_PARTITIONS: usize = 4;
/// Maximum number of classes.
const MAX_CLASSES: usize = MAX_BASE_CLASSES * MAX_PARTITIONS;
/// Minimum number of sizes in a table.
const MIN_SIZES: usize = 20;
/// Possible largest sizes (`kMaxSize`).
const LARGEST_BYTES: [u64; 2] = [256 << 10, 8 << 10];
/// Maximum bytes between `class_to_pages_` and `class_to_size_`, whose elements have 4 bytes.
const MAX_PADDING_BYTES: usize = 3;
/// Bytes read before `class_to_size_`.
pub const BEFORE_SIZES_BYTES: usize = MAX_CLASSES + 4;
/// Bytes read of the whole table.
pub const SIZES_BYTES: usize = BEFORE_SIZES_BYTES + 4 * MAX_CLASSES;

/// The size classes (`sizemap.h`, `SizeMap`) by index; 0 for unused ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Classes {
    /// Bytes of an object.
    pub object_bytes: Vec<u64>,
    /// Pages of a span.
    pub span_pages: Vec<u64>,
}

impl Classes {
    /// Parses the table whose `class_to_size_` is at [`BEFORE_SIZES_BYTES`] of `bytes`; `None` if
    /// it is not one. `class_to_pages_`, a byte per class, and padding precede it.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let used_count = used_classes(bytes)?;
        // The largest number first: partitions are equal, so a smaller number would match too.
        for partitions in (1..=MAX_PARTITIONS).rev() {
            for base in BASE_CLASSES.into_iter().filter(|&base| used_count <= base) {
                let table = (0..=MAX_PADDING_BYTES)
                    .find_map(|padding| Self::with_number(bytes, base * partitions, padding, used_count));
                if table.is_some() {
                    return table;
                }
            }
        }
        None
    }

    /// Like [`Self::new`], for a table of `number` classes with `padding` bytes between its parts,
    /// whose first `used_count` sizes increase.
    fn with_number(bytes: &[u8], number: usize, padding: usize, used_count: usize) -> Option<Self> {
        let start = BEFORE_SIZES_BYTES.checked_sub(number + padding)?;
        let span_pages: Vec<u64> =
            bytes.get(start..start + number)?.iter().map(|&pages| pages.into()).collect();
        let object_bytes: Vec<u64> =
            (0..number).map(|class| size_of_class(bytes, class)).collect::<Option<_>>()?;
        let is_consistent = |class: usize| {
            (object_bytes[class] == 0) == (span_pages[class] == 0)
                && object_bytes[class] <= object_bytes[used_count - 1]
                && span_pages[class] <= LARGEST_SMALL_PAGES
        };
        (0..number).all(is_consistent).then_some(Self { object_bytes, span_pages })
    }

    /// Number of classes.
    pub fn number(&self) -> usize {
        self.object_bytes.len()
    }

    /// Bytes of an entry for a class in the page map (`CompactSizeClass`).
    pub fn compact_bytes(&self) -> u64 {
        if self.number() <= 256 { 1 } else { 2 }
    }

    /// Returns the classes that a word of the page map holds; `None` for a page without one.
    pub fn in_word(&self, word: u64) -> impl Iterator<Item = Option<u16>> + use<> {
        let bits = 8 * self.compact_bytes();
        let mask = (1 << bits) - 1;
        (0..64 / bits)
            .map(move |part| Some((word >> (bits * part) & mask) as u16).filter(|&class| class != 0))
    }

    /// Objects per span; `None` for an unused class.
    pub fn objects(&self, class: u16, page_shift: u32) -> Option<u64> {
        let class = usize::from(class);
        (self.span_pages.get(class)? << page_shift).checked_div(*self.object_bytes.get(class)?)
    }
}

/// Returns `class_to_size_` of a class, of the table at [`BEFORE_SIZES_BYTES`] of `bytes`.
fn size_of_class(bytes: &[u8], class: usize) -> Option<u64> {
    half_word_at(bytes, BEFORE_SIZES_BYTES + 4 * class).map(u64::from)
}

/// Returns the number of classes that a partition uses, whose sizes increase from 0 to the largest;
/// `None` if this is no table of size classes.
fn used_classes(bytes: &[u8]) -> Option<usize> {
    let size = |class| size_of_class(bytes, class);
    let mut count = 1;
    while size(count)? > size(count - 1)? && size(count)?.is_multiple_of(8) && count < MAX_BASE_CLASSES {
        count += 1;
    }
    let is_table = size(0)? == 0 && count >= MIN_SIZES && LARGEST_BYTES.contains(&size(count - 1)?);
    is_table.then_some(count)
}

/// Division of the page map (`pagemap.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PageMapLayout {
    /// Binary logarithm of the page size.
    pub page_shift: u32,
    /// False for `PageMap2`, with leaves of 2^15 pages; true for `PageMap3`, whose leaves and
    /// intermediate nodes have a third of the bits of a page number each, rounded up, and which all
    /// builds have since 77fbeb5b of 2026-08-12.
    pub has_nodes: bool,
}

impl PageMapLayout {
    /// All divisions.
    pub fn all() -> impl Iterator<Item = Self> {
        PAGE_SHIFTS
            .into_iter()
            .flat_map(|page_shift| [false, true].map(|has_nodes| Self { page_shift, has_nodes }))
    }

    const fn leaf_bits(self) -> u32 {
        if self.has_nodes { (ADDRESS_BITS - self.page_shift).div_ceil(3) } else { 15 }
    }

    /// Entries of a leaf. It holds a class per page, then a word per page with the span and, in the
    /// upper 16 bits, the class again; then a word per huge page with its tracker.
    pub const fn leaf_entries(self) -> u64 {
        1 << self.leaf_bits()
    }

    /// Addresses that a leaf covers.
    pub const fn leaf_span(self) -> u64 {
        self.leaf_entries() << self.page_shift
    }

    /// Entries of a node between root and leaves; 1 if there are no nodes.
    pub const fn node_entries(self) -> u64 {
        if self.has_nodes { self.leaf_entries() } else { 1 }
    }

    /// Bytes of the root that cover user addresses: half of it.
    pub const fn root_bytes(self) -> u64 {
        8 * (((1 << (ADDRESS_BITS - 1)) / self.leaf_span()) / self.node_entries())
    }

    /// Returns where the parts of a leaf are; a class has `compact_bytes`.
    pub fn parts_of_leaf(self, leaf: u64, compact_bytes: u64) -> LeafParts {
        let spans = leaf.saturating_add(self.leaf_entries() * compact_bytes);
        let trackers = spans.saturating_add(self.leaf_entries() * 8);
        let huge_pages = self.leaf_entries() >> (HUGE_SHIFT - self.page_shift);
        LeafParts { spans, trackers, end: trackers.saturating_add(8 * huge_pages) }
    }
}

/// Addresses of the parts of a leaf, which begins with the classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafParts {
    /// The words with the spans.
    pub spans: u64,
    /// The words with the trackers.
    pub trackers: u64,
    /// One past its last byte.
    pub end: u64,
}

/// Mask of the span's address in the word of a page.
pub const SPAN_BITS: u64 = (1 << 48) - 1;

/// Static data with a root and transfer caches has more bytes.
pub const MIN_DATA_BYTES: u64 = 128 << 10;

/// Bytes of a node of a map of free huge pages (`huge_address_map.h`, `HugeAddressMap::Node`):
/// first huge page, number of huge pages, and from 24 on the links.
pub const NODE_BYTES: usize = 64;
/// Offsets of the links: left, right, parent.
pub const NODE_LINKS: [usize; 3] = [24, 32, 40];
/// Bytes of a `HugeAddressMap`, which begins with its root.
pub const MAP_BYTES: usize = 64;
/// Offset of its number of nodes.
pub const MAP_NODE_COUNT: usize = 8;
/// Offset of its total of huge pages.
pub const MAP_HUGE_PAGES: usize = 16;

/// Offset in a region of the bits of its pages in use.
pub const REGION_BITS: usize = 16;

/// Layout of a region of huge pages that large blocks share (`huge_region.h`, `HugeRegion`): from
/// [`REGION_BITS`] on a bit per page in use, then counts, the range, the pages in use of each huge
/// page, and whether each is backed.
pub struct RegionLayout {
    /// Bytes of the bits.
    pub bits_bytes: usize,
}

/// Huge pages of a region (`kNumHugePages`).
pub const REGION_HUGE_PAGES: usize = 512;

impl RegionLayout {
    /// The layout with pages of this size.
    pub fn new(page_shift: u32) -> Self {
        Self { bits_bytes: (REGION_BYTES >> page_shift) as usize / 8 }
    }

    /// Offset of `location_`: after the bits and three 32-bit counts.
    pub fn location_offset(&self) -> usize {
        REGION_BITS + self.bits_bytes + 16
    }

    /// Offset of `pages_used_`, a word per huge page.
    pub fn pages_used_offset(&self) -> usize {
        self.location_offset() + 16
    }

    /// Offset of `backed_`, a byte per huge page.
    pub fn backed_offset(&self) -> usize {
        self.pages_used_offset() + 8 * REGION_HUGE_PAGES
    }

    /// Bytes read.
    pub fn bytes(&self) -> usize {
        self.backed_offset() + REGION_HUGE_PAGES
    }
}

/// Bytes of the lock (`arena_lock_`) with which the allocator of tcmalloc's own structures
/// (`arena.h`, `Arena`) begins, from 2024-11-21 up to commit 01664be3 of 2026-08-13.
pub const ARENA_LOCK_BYTES: u64 = 8;
/// After that lock are the next free address and the bytes left; this far after the lock are the
/// bytes that were released (`bytes_nonresident_`).
pub const ARENA_NOT_RESIDENT_AFTER_LOCK: u64 = 32;
/// Offset of the same in an `Arena` since that commit: it begins with the next free address and the
/// bytes left, a list of free blocks (`freelist_`) follows, and the lock is after the counts.
pub const ARENA_NOT_RESIDENT: u64 = 40;
