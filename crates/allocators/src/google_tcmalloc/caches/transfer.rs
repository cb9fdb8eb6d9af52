//! Transfer caches: one array in static data, which serves all processors, and arrays outside it,
//! the sharded ones, which serve a group of processors each.

use std::collections::{BTreeSet, HashSet};

use super::super::cache_layout::{self as layout, SlotInfo};
use super::{CacheKind, CacheReader};
use strandline_claims::range::page_of;
use strandline_process::page_cache::PageCache;
use strandline_process::pages::USER_ADDRESS_END;

/// Maximum groups of processors with their own transfer caches.
const MAX_SHARDS: usize = 256;
/// Maximum consecutive shards without caches.
const MAX_UNUSED_SHARDS: usize = 32;
/// Maximum addresses where an array of transfer caches may begin; each is tried with each stride.
const MAX_CANDIDATES: usize = 4096;

impl CacheReader<'_> {
    /// Reads the array of transfer caches in static data, one per class. Each contains the central
    /// list of its class, which holds the class and the size of its objects.
    pub(super) fn read_transfer_caches(&mut self) {
        let heap = self.heap;
        let is_list_of_class = |at: u64, class: u16| {
            heap.statics.word(at) == Some(class.into())
                && heap.statics.word(at + layout::OBJECT_SIZE_AFTER_CLASS) == heap.class_bytes(class)
        };
        let used_classes: Vec<u16> =
            self.classes().filter(|&class| heap.class_bytes(class).is_some()).collect();
        let candidates =
            heap.statics.words().filter(|word| word.value == 1 && is_list_of_class(word.address, 1));
        let candidates = candidates.take(MAX_CANDIDATES).take_while(|_| !self.context.deadline_passed());
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
            self.read_slots(info, slots, class, CacheKind::Transfer);
        }
    }

    /// Reads the objects in the slots at `slots_address`, with the word `info` about them. Both are
    /// `None` if they could not be read.
    fn read_slots(&mut self, info: Option<u64>, slots_address: Option<u64>, class: u16, kind: CacheKind) {
        let (Some(info), Some(slots_address)) = (info, slots_address) else {
            self.caches.unread_count += 1;
            return;
        };
        let SlotInfo { used, capacity } = SlotInfo::new(info);
        if used > capacity || used > self.max_slots(kind, class) {
            self.caches.unread_count += 1;
            return;
        }
        if slots_address != 0 {
            self.caches.structure_pages.insert(page_of(slots_address));
        }
        for slot in 0..used {
            if self.must_end() {
                self.caches.unread_count += 1;
                return;
            }
            match self.pages.word(slots_address.wrapping_add(8 * slot) & !7) {
                Some(object) => self.add_object(object, class, kind),
                None => self.caches.unread_count += 1,
            }
        }
    }

    /// Maximum slots of a transfer cache of this kind and class.
    fn max_slots(&self, kind: CacheKind, class: u16) -> u64 {
        let sharded_bytes = if kind == CacheKind::Sharded { layout::MAX_SHARDED_BYTES } else { 0 };
        let max_sharded_slots = self.heap.class_bytes(class).map_or(0, |bytes| sharded_bytes / bytes);
        layout::MAX_TRANSFER_SLOTS.max(max_sharded_slots)
    }

    /// Reads the sharded transfer caches, given the pointers from static data: similar arrays
    /// outside it, with the class instead of a central list.
    pub(super) fn read_sharded_caches(&mut self, outgoing_pointers: &BTreeSet<u64>) {
        let mut seen_arrays = HashSet::new();
        for &pointer in outgoing_pointers {
            if self.context.deadline_passed() {
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
        for class in self.classes() {
            let at = first_class_at + layout::SHARDED_CACHE_BYTES * u64::from(class);
            self.caches.structure_pages.insert(page_of(at));
            // An unused class has no size, and so no limit of its slots.
            if self.heap.class_bytes(class).is_some() {
                let [info, slots] = [layout::SHARDED_INFO_BEFORE_CLASS, layout::SHARDED_SLOTS_BEFORE_CLASS]
                    .map(|before| self.pages.word(at - before));
                self.read_slots(info, slots, class, CacheKind::Sharded);
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
        let classes = self.classes();
        let is_class = |pages: &mut PageCache<'_>, at: u64, class: u16| {
            pages.word(at).is_some_and(|word| word & 0xffff_ffff == u64::from(class))
        };
        layout::SHARDED_CLASS_OFFSETS.map(|offset| array + offset).into_iter().find(|first| {
            let class_at = |class: u16| first + layout::SHARDED_CACHE_BYTES * u64::from(class);
            classes.clone().all(|class| is_class(&mut self.pages, class_at(class), class))
        })
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
    fn list_of(&self, class: u16) -> u64 {
        self.first_class_at + (u64::from(class) - 1) * self.stride
    }
}
