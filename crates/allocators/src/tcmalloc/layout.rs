//! Layout of tcmalloc's structures, as data: gperftools 2.8 to 2.18, 64 bits, with any of its page
//! sizes.
//!
//! It is the same in all these releases. Size classes differ by build, and are read from the
//! process.

use strandline_process::memory::{half_word_at, word_at};
use strandline_process::pages::{PAGE_BYTES, USER_ADDRESS_END};
use strandline_process::range::AddressRange;

use crate::radix::MapLayout;

/// The page map (`pagemap.h`, `TCMalloc_PageMap2` of 48 bits less the page shift) for each page
/// size that can be configured (`configure.ac`, `--with-tcmalloc-pagesize`), the default first
/// (`common.h`, `kPageShift`). Leaves are aligned as by the system allocator.
pub static MAPS: [MapLayout; 7] = [map(13), map(12), map(15), map(16), map(14), map(18), map(17)];

const fn map(page_shift: u32) -> MapLayout {
    let bits = 48 - page_shift;
    let leaf_bits = bits.div_ceil(2);
    // The upper half covers kernel addresses.
    MapLayout {
        page_shift,
        leaf_bits,
        used_root_bytes: 8 << (bits - leaf_bits) >> 1,
        leaf_alignment: LEAF_ALIGNMENT,
        pointer_mask: u64::MAX,
    }
}

/// Alignment of leaves (`common.cc`, `MetaDataAlloc`).
pub const LEAF_ALIGNMENT: u64 = 16;

/// Bytes of the smallest root, with the largest pages.
pub const MIN_ROOT_BYTES: u64 = map(18).used_root_bytes;

/// Bytes of a span (`span.h`, `struct Span`), which begins with `start`.
pub const SPAN_BYTES: usize = 48;
/// Offset in a span of `length`.
const SPAN_LENGTH_OFFSET: usize = 8;
/// Offset in a span of `prev`.
const SPAN_PREVIOUS_OFFSET: usize = 24;
/// Offset in a span of `objects`.
const SPAN_OBJECTS_OFFSET: usize = 32;
/// Offset in a span of the bit fields `refcount`, `sizeclass` and `location`.
const SPAN_BITS_OFFSET: usize = 40;

/// The fields of a span: a run of pages, free, in use as one block, or divided into objects of one
/// class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanFields {
    /// `start`, in pages.
    pub first_page: u64,
    /// `length`, in pages.
    pub pages: u64,
    /// `prev`: address of the previous span in its list.
    pub previous_span: u64,
    /// `objects`: the first free object, if it is divided into objects.
    pub first_free_object: u64,
    /// `refcount`: objects that are not in its free list.
    pub allocated_objects: u16,
    /// `sizeclass`; `None` for 0, of a span that is not divided into objects.
    pub class: Option<u8>,
    /// `location`.
    pub state: SpanState,
}

/// State of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanState {
    /// `IN_USE`.
    InUse,
    /// `ON_NORMAL_FREELIST`: free, still backed.
    Normal,
    /// `ON_RETURNED_FREELIST`: free, returned to the kernel; only the addresses are kept.
    Returned,
}

/// Upper bound on page numbers, for the smallest page size.
const MAX_PAGES: u64 = USER_ADDRESS_END / PAGE_BYTES;

impl SpanFields {
    /// Parses a span structure; `None` if it is not one.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        // `refcount` has 16 bits, `sizeclass` 8, `location` 2.
        let bits = half_word_at(bytes, SPAN_BITS_OFFSET)?;
        let state = match bits >> 24 & 3 {
            0 => SpanState::InUse,
            1 => SpanState::Normal,
            2 => SpanState::Returned,
            _ => return None,
        };
        Some(Self {
            first_page: word_at(bytes, 0)?,
            pages: word_at(bytes, SPAN_LENGTH_OFFSET)?,
            previous_span: word_at(bytes, SPAN_PREVIOUS_OFFSET)?,
            first_free_object: word_at(bytes, SPAN_OBJECTS_OFFSET)?,
            allocated_objects: bits as u16,
            class: Some((bits >> 16) as u8).filter(|&class| class != 0),
            state,
        })
    }

    /// Returns its range in bytes; `None` if that is impossible.
    pub fn range(&self, page_shift: u32) -> Option<AddressRange> {
        let is_possible =
            self.pages > 0 && self.first_page > 0 && self.pages < MAX_PAGES && self.first_page < MAX_PAGES;
        is_possible.then(|| {
            AddressRange::new(self.first_page << page_shift, (self.first_page + self.pages) << page_shift)
        })
    }
}

/// Maximum number of size classes (`common.h`, `kClassSizesMax`).
pub const MAX_CLASSES: usize = 128;
/// The largest size (`kMaxSize`).
const LARGEST_BYTES: u64 = 256 << 10;
/// Maximum pages of a span of objects, with a margin; a larger number shows that it is not a table.
const MAX_SPAN_PAGES: u64 = 1 << 16;
/// Maximum objects of a batch, with a margin.
const MAX_BATCH_LENGTH: u64 = 1 << 16;
/// Minimum number of size classes in a table.
const MIN_CLASSES: usize = 20;
/// Bytes of a table of 32-bit values.
const U32_TABLE_BYTES: usize = 4 * MAX_CLASSES;
/// Bytes read of a `SizeMap`: `num_objects_to_move_`, `class_to_size_`, `class_to_pages_`,
/// `num_size_classes`. The last two are 64-bit words, so four bytes of padding may precede them.
pub const SIZES_BYTES: usize = 2 * U32_TABLE_BYTES + 4 + 8 * MAX_CLASSES + 16;
/// Bytes read before `class_to_size_`.
pub const BEFORE_SIZES_BYTES: u64 = U32_TABLE_BYTES as u64;

/// A size class of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectClass {
    /// Bytes of an object.
    pub object_bytes: u64,
    /// Pages of a span.
    pub span_pages: u64,
    /// Objects that move to or from the transfer cache together.
    pub batch_length: u64,
}

/// The size classes (`SizeMap`), by index. Class 0 has no objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Classes(Vec<ObjectClass>);

impl Classes {
    /// Parses the table whose `class_to_size_` is at `address`; `None` if it is not one. `bytes`
    /// begin [`BEFORE_SIZES_BYTES`] before it.
    pub fn new(bytes: &[u8], address: u64) -> Option<Self> {
        let batch_length_of = |class: usize| half_word_at(bytes, 4 * class);
        let object_bytes_of = |class: usize| half_word_at(bytes, U32_TABLE_BYTES + 4 * class);
        let after_sizes = 2 * U32_TABLE_BYTES + (address % 8) as usize;
        let pages_of = |class: usize| word_at(bytes, after_sizes + 8 * class);
        // From 2.11 on `min_span_size_in_pages_` precedes the number of classes, and is below any
        // such number: so both words are tried.
        let class_count = [0, 1]
            .into_iter()
            .filter_map(|word| word_at(bytes, after_sizes + 8 * (MAX_CLASSES + word)))
            .filter_map(|count| usize::try_from(count).ok())
            .find(|count| (MIN_CLASSES..=MAX_CLASSES).contains(count))?;
        let class_at = |class: usize| {
            Some(ObjectClass {
                object_bytes: object_bytes_of(class)?.into(),
                span_pages: pages_of(class)?,
                batch_length: batch_length_of(class)?.into(),
            })
        };
        let mut classes = Self::default();
        for class in 0..class_count {
            classes.add(class_at(class)?)?;
        }
        classes.0.last().is_some_and(|last| last.object_bytes == LARGEST_BYTES).then_some(classes)
    }

    /// Adds the next class; `None` if no table has such a class there.
    fn add(&mut self, class: ObjectClass) -> Option<()> {
        let is_in_order = match self.0.last() {
            Some(previous) => {
                class.object_bytes > previous.object_bytes && class.span_pages > 0 && class.batch_length > 0
            }
            None => class.object_bytes == 0,
        };
        let is_bounded = class.span_pages <= MAX_SPAN_PAGES && class.batch_length <= MAX_BATCH_LENGTH;
        (is_in_order && is_bounded && class.object_bytes.is_multiple_of(8)).then(|| self.0.push(class))
    }

    /// Returns a class; `None` for 0, and for a number that no class has.
    pub fn get(&self, class: u8) -> Option<ObjectClass> {
        self.0.get(usize::from(class)).copied().filter(|class| class.object_bytes > 0)
    }

    /// All classes, by index.
    pub fn all(&self) -> &[ObjectClass] {
        &self.0
    }
}

/// The central free list of a class (`central_freelist.h`, `CentralFreeList`) begins with its lock.
/// Offsets of `empty_` and `nonempty_`, to which the lists of its spans point.
pub const CENTRAL_LIST_OFFSETS: [u64; 2] = [16, 64];
/// Offset of `size_class_`.
pub const CENTRAL_CLASS_OFFSET: usize = 8;
/// Offset of `num_spans_`.
pub const CENTRAL_SPANS_OFFSET: usize = 112;
/// Offset of `tc_slots_` (`kMaxNumTransferEntries` of them).
pub const TRANSFER_SLOTS_OFFSET: usize = 128;
/// Bytes of a slot: head and tail of a list.
pub const TRANSFER_SLOT_BYTES: usize = 16;
/// Maximum slots.
pub const MAX_TRANSFER_SLOTS: usize = 64;
/// Offset of `used_slots_`.
pub const TRANSFER_USED_OFFSET: usize = TRANSFER_SLOTS_OFFSET + TRANSFER_SLOT_BYTES * MAX_TRANSFER_SLOTS;
/// Bytes read of a central free list.
pub const CENTRAL_BYTES: usize = TRANSFER_USED_OFFSET + 4;

/// Bytes of a free list in a thread cache (`thread_cache.h`, `ThreadCache::FreeList`), which begins
/// with `list_`, its first object.
pub const FREE_LIST_BYTES: usize = 32;
/// Offset of `length_`.
pub const FREE_LIST_LENGTH_OFFSET: usize = 8;
/// Offset of `size_`.
pub const FREE_LIST_SIZE_OFFSET: usize = 24;
/// Bytes of `list_`, the first field of a `ThreadCache`; the cache's own `size_` follows.
pub const ALL_FREE_LISTS_BYTES: usize = FREE_LIST_BYTES * MAX_CLASSES;
/// `next_` and `prev_` are within this many bytes after it.
pub const CACHE_LINKS_BYTES: usize = 128;

/// Step in which tcmalloc's own structures are allocated (`page_heap_allocator.h`,
/// `kAllocIncrement`).
pub const METADATA_STEP_BYTES: u64 = 128 << 10;
/// Bytes taken from the kernel at once for them (`common.cc`, `kMetadataAllocChunkSize`).
pub const METADATA_CHUNK_BYTES: u64 = 8 << 20;
