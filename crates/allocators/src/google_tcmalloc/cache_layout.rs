//! Layouts of the caches of Google's tcmalloc, for the same versions as in `layout`: thread caches,
//! transfer caches, sharded transfer caches and per-CPU caches.

use std::ops::RangeInclusive;

use strandline_process::memory::{half_word_at, word_at};

/// Bytes of a list in a thread cache (`thread_cache.h`, `ThreadCache::FreeList`).
pub const THREAD_LIST_BYTES: usize = 24;
/// Bytes after the lists of all classes: `size_`, `max_size_`, `tid_`, `in_setspecific_`, `next_`,
/// `prev_`.
pub const AFTER_THREAD_LISTS_BYTES: usize = 48;
/// Offsets, from the end of the lists, of `size_` and `max_size_`.
pub const THREAD_SIZES: [usize; 2] = [0, 8];
/// Offsets, from the end of the lists, of `next_` and `prev_`.
pub const THREAD_LINKS: [usize; 2] = [32, 40];
/// Offset of `length_` in a list (`linked_list.h`, `LinkedList`), of 32 bits.
const LIST_LENGTH: usize = 8;
/// Offset of `max_length_` in a list, of 32 bits, at least 1.
pub const LIST_MAX_LENGTH: usize = 16;

/// The list of a class in a thread cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadList {
    /// `list_`: its first object.
    pub first_object: u64,
    /// `length_`: number of its objects.
    pub length: u64,
    /// `max_length_`.
    pub max_length: u64,
}

impl ThreadList {
    /// Parses the list of a class among the lists of a thread cache; `None` past their end.
    pub fn of_class(lists: &[u8], class: u16) -> Option<Self> {
        let at = THREAD_LIST_BYTES * usize::from(class);
        let half = |offset: usize| half_word_at(lists, at + offset).map(u64::from);
        Some(Self {
            first_object: word_at(lists, at)?,
            length: half(LIST_LENGTH)?,
            max_length: half(LIST_MAX_LENGTH)?,
        })
    }
}

/// Size of a cache line (`ABSL_CACHELINE_SIZE`), to which transfer caches and arrays of them are
/// aligned.
pub const LINE_BYTES: u64 = 64;
/// A transfer cache (`transfer_cache_internals.h`) contains the central list of its class
/// (`central_freelist.h`), which has its class, `size_class_`, 8 bytes after its start. This far
/// after the class is `object_size_`.
pub const OBJECT_SIZE_AFTER_CLASS: u64 = 8;
/// This far before the class is `slot_info_`.
pub const TRANSFER_INFO_BEFORE_CLASS: u64 = 24;
/// This far before the class is `slots_`.
pub const TRANSFER_SLOTS_BEFORE_CLASS: u64 = 16;
/// Maximum bytes of a transfer cache.
pub const MAX_TRANSFER_BYTES: u64 = 4096;
/// Maximum slots of a transfer cache: 64 batches of 128.
pub const MAX_TRANSFER_SLOTS: u64 = 64 * 128;

/// `slot_info_` of a transfer cache (`transfer_cache_internals.h`, `SizeInfo`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotInfo {
    /// `used`: number of slots with an object.
    pub used: u64,
    /// `capacity`.
    pub capacity: u64,
}

impl SlotInfo {
    /// Parses the word, which holds two numbers of 32 bits.
    pub fn new(word: u64) -> Self {
        Self { used: word & 0xffff_ffff, capacity: word >> 32 }
    }
}

/// Bytes of a shard of the sharded transfer caches (`transfer_cache.h`, `Shard`): a pointer to its
/// transfer caches, and flags for its initialisation.
pub const SHARD_BYTES: u64 = 16;
/// Bytes of a sharded transfer cache (`transfer_cache.h`, `ShardedTransferCacheManagerBase`).
pub const SHARDED_CACHE_BYTES: u64 = 128;
/// Offsets of its class (`BackingTransferCache`), right after `slots_`: up to 2025-06, and later.
pub const SHARDED_CLASS_OFFSETS: [u64; 2] = [40, 48];
/// This far before the class is `slot_info_`.
pub const SHARDED_INFO_BEFORE_CLASS: u64 = 16;
/// This far before the class is `slots_`.
pub const SHARDED_SLOTS_BEFORE_CLASS: u64 = 8;
/// Maximum bytes of the objects in a sharded transfer cache (`LargeCacheCapacity`).
pub const MAX_SHARDED_BYTES: u64 = 12 << 20;

/// The array of per-CPU caches (`percpu_tcmalloc.h`, `TcmallocSlab`) is described by a word with
/// its address and, in these low bits, the binary logarithm of the size of each cache, called a
/// slab; `stopped_` (later `state_`, with a length) and `begins_` follow.
pub const SLAB_SHIFT_MASK: u64 = 0xff;
/// Offset of `stopped_` or `state_` from that word.
pub const STOPPED_AFTER_SLABS: u64 = 8;
/// Offset of `begins_` from that word, without and with a length before it: where the slots of each
/// class begin in each slab, in words from its start, 16 bits each.
pub const BEGINS_AFTER_SLABS: [u64; 2] = [16, 24];
/// Possible shifts (`cpu_cache.h`, `kInitialBasePerCpuShift`, `kMaxBasePerCpuShift` and what
/// partitions add).
pub const SLAB_SHIFTS: RangeInclusive<u64> = 12..=20;
/// Bytes of the header of a class; a slab begins with one for each class.
pub const SLAB_HEADER_BYTES: usize = 4;
/// Maximum processors read.
pub const MAX_PROCESSORS: u64 = 4096;

/// Returns where the slots of the first class in use begin in a slab, in words: after the headers
/// of all classes and one word that marks the beginning (`InitSlabs`).
pub fn first_slot(classes: usize) -> u64 {
    (SLAB_HEADER_BYTES * classes).div_ceil(8) as u64 + 1
}

/// Words of a slab.
pub fn slab_words(shift: u64) -> u64 {
    (1_u64 << shift) / 8
}

/// The header of a class in a slab (`percpu_tcmalloc.h`, `Header`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlabHeader {
    /// `current`: the end of the slots with an object, in words from the start of the slab.
    pub current: u64,
    /// `end`: the end of all slots.
    pub end: u64,
}

impl SlabHeader {
    /// Parses the header of a class; `None` past the end of `headers`.
    pub fn of_class(headers: &[u8], class: usize) -> Option<Self> {
        let word = half_word_at(headers, SLAB_HEADER_BYTES * class)?;
        Some(Self { current: u64::from(word & 0xffff), end: u64::from(word >> 16) })
    }
}
