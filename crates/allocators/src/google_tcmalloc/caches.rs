//! Free objects that look in use in their spans: those in transfer caches, per-CPU caches and
//! thread caches. A process has per-CPU caches if tcmalloc could register for the kernel's
//! restartable sequences, otherwise thread caches: glibc registers for itself since 2.35, unless
//! `glibc.pthread.rseq=0`.

use std::collections::{BTreeSet, HashSet};
use std::ops::Range;
use std::time::Instant;

use super::cache_layout::{self as layout, SlabHeader, SlotInfo, THREAD_LIST_BYTES, ThreadList};
use super::locate::{Heap, read_bytes};
use crate::blocks::CachedBlock;
use crate::radix::StaticWord;
use crate::scan::is_mapped_memory;
use strandline_claims::allocator::Context;
use strandline_claims::range::{PAGE_BYTES, page_of};
use strandline_process::memory::word_at;
use strandline_process::page_cache::PageCache;
use strandline_process::pages::USER_ADDRESS_END;

/// Maximum objects of all caches: damaged caches could list more.
const MAX_OBJECTS: usize = 1 << 22;
/// Maximum thread caches followed.
const MAX_THREAD_CACHES: usize = 1 << 16;
/// Maximum `max_length_` of a list of a thread cache; a larger one is no list.
const MAX_LIST_LENGTH: u64 = 1 << 20;
/// Objects between two checks of the deadline.
const DEADLINE_CHECK_INTERVAL: u64 = 1024;
/// Maximum groups of processors with their own transfer caches.
const MAX_SHARDS: usize = 256;
/// Maximum consecutive shards without caches.
const MAX_UNUSED_SHARDS: usize = 32;
/// Maximum addresses where an array of transfer caches may begin; each is tried with each stride.
const MAX_CANDIDATES: usize = 4096;
/// A slab is valid if at most this fraction of its headers is invalid: 1/8. A thread was stopped
/// during a change of one header; in other memory most are invalid.
const MIN_CLASSES_PER_INVALID_HEADER: usize = 8;
/// Maximum invalid slabs since the last valid one; with more, the array has ended.
const MAX_INVALID_SLABS: u64 = 32;

/// The kind of cache that holds an object.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum CacheKind {
    /// A transfer cache, which serves all processors.
    Transfer,
    /// A sharded transfer cache, which serves a group of processors.
    Sharded,
    /// A per-CPU cache.
    Processor,
    /// A thread cache.
    Thread,
}

/// An object that a cache lists.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct CachedObject {
    address: u64,
    class: u16,
    kind: CacheKind,
}

/// Contents of all caches.
#[derive(Default)]
pub struct CacheContents {
    /// Free objects, in address order.
    pub blocks: Vec<CachedBlock>,
    /// Bytes of objects in transfer caches.
    pub transfer_bytes: u64,
    /// Bytes of objects in sharded transfer caches, which serve a group of processors each.
    pub sharded_bytes: u64,
    /// Bytes of objects in per-CPU caches.
    pub processor_bytes: u64,
    /// Bytes of objects in thread caches.
    pub thread_bytes: u64,
    /// Number of lists and objects that were not read: invalid, listed twice, or over a limit.
    pub unread_count: u64,
    /// Pages that hold structures.
    pub structure_pages: BTreeSet<u64>,
    /// Bytes read from the target.
    pub bytes_read: u64,
}

/// Reads all caches.
pub fn find(context: &Context<'_>, heap: &Heap) -> CacheContents {
    let pages = PageCache::new(context.memory);
    let mut reader =
        CacheReader { context, heap, pages, caches: CacheContents::default(), objects: Vec::new() };
    reader.read_transfer_caches();
    reader.read_sharded_caches();
    reader.read_processor_caches();
    reader.read_thread_caches();
    let CacheReader { pages, mut caches, objects, .. } = reader;
    caches.bytes_read += pages.bytes_read;
    caches.set_objects(objects, |class| heap.class_bytes(class));
    caches
}

impl CacheContents {
    /// Takes the objects of all caches. Each counts once, even if damaged caches list it twice.
    fn set_objects(&mut self, mut objects: Vec<CachedObject>, class_bytes: impl Fn(usize) -> u64) {
        objects.sort_unstable();
        let listed_count = objects.len();
        objects.dedup_by_key(|object| object.address);
        self.unread_count += (listed_count - objects.len()) as u64;
        for object in &objects {
            *(match object.kind {
                CacheKind::Transfer => &mut self.transfer_bytes,
                CacheKind::Sharded => &mut self.sharded_bytes,
                CacheKind::Processor => &mut self.processor_bytes,
                CacheKind::Thread => &mut self.thread_bytes,
            }) += class_bytes(object.class.into());
        }
        let block = |object: CachedObject| CachedBlock { address: object.address, class: object.class };
        self.blocks = objects.into_iter().map(block).collect();
    }
}

struct CacheReader<'a> {
    context: &'a Context<'a>,
    heap: &'a Heap,
    /// Pages of the target read last.
    pages: PageCache<'a>,
    caches: CacheContents,
    /// Objects of the caches read so far.
    objects: Vec<CachedObject>,
}

impl CacheReader<'_> {
    fn deadline_passed(&self) -> bool {
        Instant::now() >= self.context.deadline
    }

    fn add_object(&mut self, address: u64, class: usize, kind: CacheKind) {
        if self.objects.len() >= MAX_OBJECTS || !address.is_multiple_of(8) || address == 0 {
            self.caches.unread_count += 1;
            return;
        }
        self.objects.push(CachedObject { address, class: class as u16, kind });
    }

    /// Returns the words of static data that point outside it, to memory that may be tcmalloc's
    /// own.
    fn outgoing_pointers(&self) -> Vec<u64> {
        let is_outside = |word: &u64| !self.heap.data.contains(*word);
        let words = self.heap.statics.words().map(|word| word.value).filter(is_outside);
        let is_memory = |word: &u64| self.context.space.find(*word).is_some_and(is_mapped_memory);
        let pointers: BTreeSet<u64> = words.filter(|word| word.is_multiple_of(8)).filter(is_memory).collect();
        pointers.into_iter().collect()
    }

    // --- transfer caches ---

    /// Reads the array of transfer caches in static data, one per class. Each contains the central
    /// list of its class, which holds the class and the size of its objects.
    fn read_transfer_caches(&mut self) {
        let heap = self.heap;
        let is_list_of_class = |at: u64, class: usize| {
            heap.statics.word(at) == class as u64
                && heap.statics.word(at + layout::OBJECT_SIZE_AFTER_CLASS) == heap.class_bytes(class)
        };
        let used_classes: Vec<usize> =
            (1..heap.classes.number()).filter(|&class| heap.class_bytes(class) > 0).collect();
        let candidates =
            heap.statics.words().filter(|word| word.value == 1 && is_list_of_class(word.address, 1));
        let candidates = candidates.take(MAX_CANDIDATES).take_while(|_| !self.deadline_passed());
        let strides = (layout::LINE_BYTES..=layout::MAX_TRANSFER_BYTES).step_by(layout::LINE_BYTES as usize);
        let is_array = |array: &TransferArray| {
            used_classes.iter().all(|&class| is_list_of_class(array.list_of(class), class))
        };
        let array = candidates
            .flat_map(|word| {
                strides.clone().map(move |stride| TransferArray { first_class_at: word.address, stride })
            })
            .find(is_array);
        let Some(array) = array else {
            self.caches.unread_count += 1;
            return;
        };
        for class in used_classes {
            let at = array.list_of(class);
            let [info, slots] = [layout::TRANSFER_INFO_BEFORE_CLASS, layout::TRANSFER_SLOTS_BEFORE_CLASS]
                .map(|before| heap.statics.word(at.wrapping_sub(before)));
            self.read_slots(SlotInfo::new(info), slots, class, CacheKind::Transfer);
        }
    }

    /// Reads the objects in the slots at `slots_address`.
    fn read_slots(&mut self, info: SlotInfo, slots_address: u64, class: usize, kind: CacheKind) {
        let SlotInfo { used, capacity } = info;
        if used > capacity || used > layout::MAX_TRANSFER_SLOTS.max(self.max_sharded_slots(kind, class)) {
            self.caches.unread_count += 1;
            return;
        }
        if slots_address != 0 {
            self.caches.structure_pages.insert(page_of(slots_address));
        }
        for slot in 0..used {
            if self.must_end(slot) {
                self.caches.unread_count += 1;
                return;
            }
            match self.pages.word(slots_address.wrapping_add(8 * slot) & !7) {
                Some(object) => self.add_object(object, class, kind),
                None => self.caches.unread_count += 1,
            }
        }
    }

    /// Whether reading must end; called for each object of a cache, with its index.
    fn must_end(&self, index: u64) -> bool {
        let is_due = index.is_multiple_of(DEADLINE_CHECK_INTERVAL);
        self.objects.len() >= MAX_OBJECTS || is_due && self.deadline_passed()
    }

    /// Maximum slots of a sharded transfer cache; 0 for other kinds.
    fn max_sharded_slots(&self, kind: CacheKind, class: usize) -> u64 {
        match kind {
            CacheKind::Sharded => layout::MAX_SHARDED_BYTES / self.heap.class_bytes(class).max(1),
            CacheKind::Transfer | CacheKind::Processor | CacheKind::Thread => 0,
        }
    }

    /// Reads the sharded transfer caches: similar arrays outside static data, with the class
    /// instead of a central list.
    fn read_sharded_caches(&mut self) {
        let mut seen_arrays = HashSet::new();
        for pointer in self.outgoing_pointers() {
            if self.deadline_passed() {
                return;
            }
            self.read_shards(pointer, &mut seen_arrays);
        }
    }

    /// Reads consecutive shards from the address `first_shard` on, up to one that is invalid or was
    /// read before.
    fn read_shards(&mut self, first_shard: u64, seen_arrays: &mut HashSet<u64>) {
        let mut unused_shards = 0;
        for number in 0..MAX_SHARDS as u64 {
            let shard = first_shard.saturating_add(layout::SHARD_BYTES * number);
            // A shard has no caches before its first use (`InitShard`,
            // `tcmalloc/transfer_cache.h`).
            if unused_shards < MAX_UNUSED_SHARDS && self.pages.pair(shard) == Some((0, 0)) {
                unused_shards += 1;
                continue;
            }
            unused_shards = 0;
            let Some(array) = self.pages.word(shard) else { return };
            if seen_arrays.contains(&array) || seen_arrays.len() >= MAX_SHARDS {
                return;
            }
            let Some(first_class_at) = self.first_class_address(array) else { return };
            seen_arrays.insert(array);
            self.read_shard(array, first_class_at);
        }
    }

    /// Reads the array of one shard, which has a cache for each class; the class of its element 0
    /// is at `first_class_at`.
    fn read_shard(&mut self, array: u64, first_class_at: u64) {
        for class in 1..self.heap.classes.number() {
            let at = first_class_at + layout::SHARDED_CACHE_BYTES * class as u64;
            self.caches.structure_pages.insert(page_of(at));
            // An unused class has no size, and so no limit of its slots.
            if self.heap.class_bytes(class) > 0 {
                let [info, slots] = [layout::SHARDED_INFO_BEFORE_CLASS, layout::SHARDED_SLOTS_BEFORE_CLASS]
                    .map(|before| self.pages.word(at - before));
                match info.zip(slots) {
                    Some((info, slots)) => {
                        self.read_slots(SlotInfo::new(info), slots, class, CacheKind::Sharded);
                    }
                    None => self.caches.unread_count += 1,
                }
            }
        }
        self.caches.structure_pages.insert(page_of(array));
    }

    /// Returns the address of the class of element 0 in the array of one shard; each element has
    /// its class at the same offset.
    fn first_class_address(&mut self, array: u64) -> Option<u64> {
        if array == 0 || !array.is_multiple_of(layout::LINE_BYTES) || array >= USER_ADDRESS_END {
            return None;
        }
        let class_count = self.heap.classes.number();
        let is_class = |pages: &mut PageCache<'_>, at: u64, class: u64| {
            pages.word(at).is_some_and(|word| word & 0xffff_ffff == class)
        };
        layout::SHARDED_CLASS_OFFSETS.map(|offset| array + offset).into_iter().find(|first| {
            let class_at = |class: u64| first + layout::SHARDED_CACHE_BYTES * class;
            (1..class_count as u64).all(|class| is_class(&mut self.pages, class_at(class), class))
        })
    }

    // --- per-CPU caches ---

    /// Reads the per-CPU caches, each in a slab of one array.
    fn read_processor_caches(&mut self) {
        let heap = self.heap;
        let array = heap.statics.words().find_map(|word| self.slab_array(word));
        if let Some(array) = array {
            self.read_slabs(&array);
        }
    }

    /// Returns the array of slabs that a word of static data and those after it describe; `None` if
    /// they describe none.
    fn slab_array(&mut self, word: StaticWord) -> Option<SlabArray> {
        let (shift, start) = (word.value & layout::SLAB_SHIFT_MASK, word.value & !layout::SLAB_SHIFT_MASK);
        let is_possible = layout::SLAB_SHIFTS.contains(&shift)
            && start.is_multiple_of(PAGE_BYTES)
            && start < USER_ADDRESS_END;
        if !is_possible {
            return None;
        }
        let (context, heap) = (self.context, self.heap);
        let word_after = |offset: u64| heap.statics.word(word.address + offset);
        let is_mapped = |address: &u64| context.space.find(*address).is_some_and(is_mapped_memory);
        let stopped = word_after(layout::STOPPED_AFTER_SLABS);
        if !is_mapped(&start) || !is_mapped(&stopped) || self.deadline_passed() {
            return None;
        }
        let mut tables = layout::BEGINS_AFTER_SLABS.map(word_after).into_iter().filter(is_mapped);
        let begins = tables.find_map(|table| self.slot_begins(table, shift))?;
        self.caches.structure_pages.extend([page_of(start), page_of(stopped)]);
        Some(SlabArray { start, shift, begins })
    }

    /// Reads where the slots of each class begin in a slab, in words: after the headers, in order.
    fn slot_begins(&mut self, table: u64, shift: u64) -> Option<Vec<u64>> {
        let class_count = self.heap.classes.number();
        let mut bytes = vec![0; 2 * class_count];
        self.pages.read(table, &mut bytes).ok()?;
        let begins: Vec<u64> =
            bytes.chunks_exact(2).map(|pair| u64::from(u16::from_le_bytes([pair[0], pair[1]]))).collect();
        let is_table = begins.get(1) == Some(&layout::first_slot(class_count))
            && begins[1..].is_sorted()
            && begins.last().is_some_and(|&last| last <= layout::slab_words(shift));
        is_table.then_some(begins)
    }

    /// Reads all slabs of an array. Their number is not known: an invalid slab is one of the array
    /// if a valid one follows, otherwise the array ended before.
    fn read_slabs(&mut self, array: &SlabArray) {
        let mut invalid_slabs = 0;
        for processor in 0..layout::MAX_PROCESSORS {
            let Some(slab) = array.start.checked_add(processor << array.shift) else { return };
            if self.deadline_passed() {
                return;
            }
            match self.read_slab(slab, array) {
                SlabState::Unused => {}
                SlabState::Read => self.caches.unread_count += std::mem::take(&mut invalid_slabs),
                SlabState::Invalid if invalid_slabs < MAX_INVALID_SLABS => invalid_slabs += 1,
                SlabState::Invalid | SlabState::Unmapped => return,
            }
        }
    }

    /// Reads the objects in the slab of one processor. A class with an invalid header, of a thread
    /// that was stopped while it changed it, counts as not read.
    fn read_slab(&mut self, slab: u64, array: &SlabArray) -> SlabState {
        if self.context.resident_runs((slab, slab + 1)).is_empty() {
            // It was never used; others may follow.
            let last_byte = slab + (1 << array.shift) - 1;
            let is_mapped = self.context.space.find(last_byte).is_some();
            return if is_mapped { SlabState::Unused } else { SlabState::Unmapped };
        }
        let mut headers = vec![0; layout::SLAB_HEADER_BYTES * array.begins.len()];
        if self.pages.read(slab, &mut headers).is_err() {
            return SlabState::Invalid;
        }
        // There is no class 0.
        if headers[layout::SLAB_HEADER_BYTES..].iter().all(|&byte| byte == 0) {
            return SlabState::Unused;
        }
        let classes = 1..array.begins.len();
        let is_invalid = |class: &usize| array.used_slots(&headers, *class).is_none();
        let invalid_headers = classes.clone().filter(is_invalid).count();
        if invalid_headers > classes.len() / MIN_CLASSES_PER_INVALID_HEADER {
            return SlabState::Invalid;
        }
        self.caches.structure_pages.insert(slab);
        self.caches.unread_count += invalid_headers as u64;
        for class in classes {
            let slots = array.used_slots(&headers, class).unwrap_or_default();
            for (index, slot) in (0..).zip(slots) {
                if self.must_end(index) {
                    self.caches.unread_count += 1;
                    return SlabState::Read;
                }
                match self.pages.word(slab + 8 * slot) {
                    Some(object) => self.add_object(object, class, CacheKind::Processor),
                    None => self.caches.unread_count += 1,
                }
            }
        }
        SlabState::Read
    }

    // --- thread caches ---

    /// Reads all thread caches: they are linked to each other, and static data points to one of
    /// them.
    fn read_thread_caches(&mut self) {
        let mut pending = self.outgoing_pointers();
        let (mut seen_addresses, mut cache_count) = (HashSet::new(), 0);
        while let Some(at) = pending.pop() {
            if cache_count >= MAX_THREAD_CACHES || self.deadline_passed() {
                self.caches.unread_count += 1;
                return;
            }
            if seen_addresses.insert(at)
                && let Some(bytes) = self.thread_cache(at)
            {
                cache_count += 1;
                self.caches
                    .structure_pages
                    .extend((page_of(at)..at + bytes.len() as u64).step_by(PAGE_BYTES as usize));
                let after_lists = THREAD_LIST_BYTES * self.heap.classes.number();
                let links = layout::THREAD_LINKS.map(|link| word_at(&bytes, after_lists + link).unwrap_or(0));
                pending.extend(links.into_iter().filter(|link| *link != 0 && link.is_multiple_of(8)));
                self.read_lists(&bytes);
            }
        }
    }

    /// Returns the thread cache at `at`; `None` unless its size is the sum of its lists.
    fn thread_cache(&mut self, at: u64) -> Option<Vec<u8>> {
        let class_count = self.heap.classes.number();
        // The maximum length of a list is at least 1. It is checked first, as most words point
        // elsewhere.
        let max_length = self.pages.word(at.checked_add(layout::LIST_MAX_LENGTH as u64)?)? & 0xffff_ffff;
        if !(1..=MAX_LIST_LENGTH).contains(&max_length) {
            return None;
        }
        let after_lists = THREAD_LIST_BYTES * class_count;
        let mut bytes = vec![0; after_lists + layout::AFTER_THREAD_LISTS_BYTES];
        read_bytes(&mut self.pages, at, &mut bytes)?;
        let mut held_bytes = 0_u64;
        for class in 0..class_count {
            let ThreadList { first_object, length, max_length } = ThreadList::of_class(&bytes, class)?;
            let is_list = (first_object == 0) == (length == 0)
                && max_length > 0
                && (length == 0 || self.heap.class_bytes(class) > 0);
            if !is_list {
                return None;
            }
            held_bytes = held_bytes.checked_add(length * self.heap.class_bytes(class))?;
        }
        let [size, max_size] = layout::THREAD_SIZES.map(|offset| word_at(&bytes, after_lists + offset));
        (size == Some(held_bytes) && max_size.is_some_and(|max_size| max_size > 0)).then_some(bytes)
    }

    /// Follows the lists of a thread cache, which begin `bytes`.
    fn read_lists(&mut self, bytes: &[u8]) {
        for class in 1..self.heap.classes.number() {
            let Some(ThreadList { first_object: mut at, length, .. }) = ThreadList::of_class(bytes, class)
            else {
                return;
            };
            for step in 0..length {
                let must_end = self.must_end(step) || !at.is_multiple_of(8);
                let next = if must_end { None } else { self.pages.word(at) };
                let Some(next) = next else {
                    self.caches.unread_count += 1;
                    break;
                };
                self.add_object(at, class, CacheKind::Thread);
                at = next;
            }
        }
    }
}

/// The array of transfer caches.
#[derive(Clone, Copy)]
struct TransferArray {
    /// Address of the class in the central list of class 1, which is the first.
    first_class_at: u64,
    /// Bytes from one transfer cache to the next.
    stride: u64,
}

impl TransferArray {
    /// Address of the class in the central list of a class.
    fn list_of(&self, class: usize) -> u64 {
        self.first_class_at + (class as u64 - 1) * self.stride
    }
}

/// The array of slabs: each processor has one, with its cache.
struct SlabArray {
    /// Address of the first slab.
    start: u64,
    /// Binary logarithm of the size of a slab.
    shift: u64,
    /// Where the slots of each class begin in each slab, in words.
    begins: Vec<u64>,
}

impl SlabArray {
    /// Returns the slots of a class that hold an object, in words from the start of a slab; `None`
    /// if the class's header is invalid.
    fn used_slots(&self, headers: &[u8], class: usize) -> Option<Range<u64>> {
        let &begin = self.begins.get(class)?;
        let SlabHeader { current, end } = SlabHeader::of_class(headers, class)?;
        let is_valid = begin <= current && current <= end && end <= layout::slab_words(self.shift);
        is_valid.then_some(begin..current)
    }
}

/// What was found where a slab may be.
enum SlabState {
    /// A slab, whose objects were read.
    Read,
    /// Memory that was never written, as a slab is before its first use.
    Unused,
    /// Other contents, or it could not be read.
    Invalid,
    /// No memory.
    Unmapped,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_in_two_caches_counts_once() {
        let object = |address, class, kind| CachedObject { address, class, kind };
        let objects = vec![
            object(0x2000, 2, CacheKind::Thread),
            object(0x1000, 1, CacheKind::Processor),
            object(0x2000, 2, CacheKind::Transfer),
        ];
        let mut caches = CacheContents::default();
        caches.set_objects(objects, |class| 100 * class as u64);
        let block = |address, class| CachedBlock { address, class };
        assert_eq!(caches.blocks, [block(0x1000, 1), block(0x2000, 2)]);
        assert_eq!((caches.transfer_bytes, caches.processor_bytes, caches.thread_bytes), (200, 100, 0));
        assert_eq!(caches.unread_count, 1);
    }
}
