//! Where tcmalloc's structures stand, as data: gperftools 2.8 to 2.18, 64 bits, with any of its page sizes.
//!
//! Between these releases none of them moved. Their own sizes are read from the process: size classes differ by build.

use strandline_process::memory::{half_word_at, word_at};

use crate::radix::Shape;

/// The page map (`pagemap.h`, `TCMalloc_PageMap2` of 48 bits less the page shift), for each page size that can be configured,
/// the default first (`common.h`, `kPageShift`). Leaves are aligned as the system allocator aligns.
pub static MAPS: [Shape; 6] = [map(13), map(12), map(15), map(16), map(14), map(18)];

const fn map(page_shift: u32) -> Shape {
    let bits = 48 - page_shift;
    let leaf_bits = bits.div_ceil(2);
    // The upper half is of the kernel's addresses.
    Shape {
        page_shift,
        leaf_bits,
        used_root_bytes: 8 << (bits - leaf_bits) >> 1,
        leaf_alignment: LEAF_ALIGNMENT,
        pointer: u64::MAX,
    }
}

/// What leaves are aligned to (`common.cc`, `MetaDataAlloc`).
pub const LEAF_ALIGNMENT: u64 = 16;

/// The smallest root.
pub const MIN_ROOT_BYTES: u64 = MAPS[5].used_root_bytes;

/// Bytes of a span (`span.h`, `struct Span`).
pub const SPAN_BYTES: usize = 48;

/// A span: a run of pages, free, in use as one block, or cut into objects of one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Words {
    /// `start`, in pages.
    pub page: u64,
    /// `length`, in pages.
    pub pages: u64,
    /// `prev`, in its list.
    pub previous: u64,
    /// `objects`: the first free one, while it is cut into objects.
    pub objects: u64,
    /// `refcount`: objects that are not in its list.
    pub taken: u16,
    /// `sizeclass`, 0 for none.
    pub class: u8,
    /// `location`.
    pub location: Location,
}

/// Where a span is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// `IN_USE`.
    InUse,
    /// `ON_NORMAL_FREELIST`: free, as it was left.
    Normal,
    /// `ON_RETURNED_FREELIST`: free, given back to the kernel; only the addresses are kept.
    Returned,
}

impl Words {
    /// What a structure says, if it is one.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let bits = half_word_at(bytes, 40)?;
        let location = match bits >> 24 & 3 {
            0 => Location::InUse,
            1 => Location::Normal,
            2 => Location::Returned,
            _ => return None,
        };
        Some(Self {
            page: word_at(bytes, 0)?,
            pages: word_at(bytes, 8)?,
            previous: word_at(bytes, 24)?,
            objects: word_at(bytes, 32)?,
            taken: bits as u16,
            class: (bits >> 16) as u8,
            location,
        })
    }

    /// The bytes that it stands for.
    pub fn range(&self, page_shift: u32) -> Option<(u64, u64)> {
        let is_one = self.pages > 0 && self.page > 0 && self.pages < MAX_PAGES && self.page < MAX_PAGES;
        is_one.then(|| (self.page << page_shift, (self.page + self.pages) << page_shift))
    }
}

/// User addresses have 47 bits, and pages 12 of them at least.
const MAX_PAGES: u64 = 1 << 35;

/// Size classes that there can be (`common.h`, `kClassSizesMax`).
pub const MAX_CLASSES: usize = 128;
/// The largest (`kMaxSize`).
const LARGEST_BYTES: u32 = 256 << 10;
/// Fewer are not the table of them.
const MIN_CLASSES: usize = 20;
/// Bytes of a table of half words.
const HALF_WORDS: usize = 4 * MAX_CLASSES;
/// Bytes of what is read of a `SizeMap`: `num_objects_to_move_`, `class_to_size_`, `class_to_pages_`, `num_size_classes`; the
/// latter two are of words, and four bytes farther where the others end within one.
pub const SIZES_BYTES: usize = 2 * HALF_WORDS + 4 + 8 * MAX_CLASSES + 16;
/// How much of it is before `class_to_size_`.
pub const BEFORE_SIZES_BYTES: u64 = HALF_WORDS as u64;

/// What `SizeMap` says of size classes, by number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Classes {
    /// Bytes of an object.
    pub bytes: Vec<u64>,
    /// Pages of a span.
    pub pages: Vec<u64>,
    /// Objects that go to and from the transfer cache together.
    pub batch: Vec<u64>,
}

impl Classes {
    /// The table whose `class_to_size_` stands at `address`, if it is one; `bytes` begin before it, by [`BEFORE_SIZES_BYTES`].
    pub fn new(bytes: &[u8], address: u64) -> Option<Self> {
        let half = |at: usize, class: usize| half_word_at(bytes, at + 4 * class);
        let behind = 2 * HALF_WORDS + (address % 8) as usize;
        let pages = |class: usize| word_at(bytes, behind + 8 * class);
        // From 2.11 on `min_span_size_in_pages_` stands between, which is below any number of classes.
        let numbers = [0, 1].into_iter().filter_map(|word| word_at(bytes, behind + 8 * (MAX_CLASSES + word)));
        let is_number = |number: &usize| (MIN_CLASSES..=MAX_CLASSES).contains(number);
        let number = numbers.filter_map(|number| usize::try_from(number).ok()).find(is_number)?;
        if half(HALF_WORDS, 0)? != 0 {
            return None;
        }
        let mut classes = Self::default();
        for class in 0..number {
            let (size, before) = (half(HALF_WORDS, class)?, classes.bytes.last().copied());
            let rises = before.is_none_or(|before| u64::from(size) > before && size.is_multiple_of(8));
            let (pages, batch) = (pages(class)?, half(0, class)?);
            if !rises || pages > 1 << 16 || batch > 1 << 16 || (class > 0 && (pages == 0 || batch == 0)) {
                return None;
            }
            classes.bytes.push(size.into());
            classes.pages.push(pages);
            classes.batch.push(batch.into());
        }
        (classes.bytes.last() == Some(&LARGEST_BYTES.into())).then_some(classes)
    }
}

/// A class's central free list (`central_freelist.h`, `CentralFreeList`), from its lock on: what its spans' lists lead to,
/// `empty_` and `nonempty_`, stand here.
pub const CENTRAL_LISTS: [u64; 2] = [16, 64];
/// `size_class_`.
pub const CENTRAL_CLASS: usize = 8;
/// `num_spans_`.
pub const CENTRAL_SPANS: usize = 112;
/// `tc_slots_`: the head and the tail of a list each (`kMaxNumTransferEntries` of them).
pub const TRANSFER_SLOTS: usize = 128;
/// Slots.
pub const MAX_TRANSFER_SLOTS: usize = 64;
/// `used_slots_`.
pub const TRANSFER_USED: usize = TRANSFER_SLOTS + 16 * MAX_TRANSFER_SLOTS;
/// Bytes that are read of it.
pub const CENTRAL_BYTES: usize = TRANSFER_USED + 4;

/// A list of a thread's cache (`thread_cache.h`, `ThreadCache::FreeList`): `list_`, `length_`, and `size_`.
pub const CACHE_LIST_BYTES: usize = 32;
/// `length_`.
pub const CACHE_LENGTH: usize = 8;
/// `size_`.
pub const CACHE_SIZE: usize = 24;
/// Bytes of `list_`, the first field of a `ThreadCache`; `size_` of all stands behind it.
pub const CACHE_LISTS_BYTES: usize = CACHE_LIST_BYTES * MAX_CLASSES;
/// Within so much behind it are `next_` and `prev_`.
pub const CACHE_LINKS_BYTES: usize = 128;

/// What tcmalloc's own structures are allocated in (`page_heap_allocator.h`, `kAllocIncrement`).
pub const METADATA_STEP_BYTES: u64 = 128 << 10;
/// What it takes from the kernel at once for them (`common.cc`, `kMetadataAllocChunkSize`).
pub const METADATA_CHUNK_BYTES: u64 = 8 << 20;
