//! Free objects that look in use in their spans: those in transfer caches, per-CPU caches and
//! thread caches. A process has per-CPU caches if tcmalloc could register for the kernel's
//! restartable sequences, otherwise thread caches: glibc registers for itself since 2.35, unless
//! `glibc.pthread.rseq=0`.

use std::collections::{BTreeSet, HashSet};
use std::time::Instant;

use super::layout::{
    CACHE_LINKS, CACHE_LIST_BYTES, CACHE_REST_BYTES, MAX_PROCESSORS, MAX_SLOTS, MAX_TRANSFER_BYTES,
    SHARD_BYTES, SHARD_CLASS, SLAB_BEGINS, SLAB_SHIFT_BITS, SLAB_SHIFTS, TRANSFER_INFO, TRANSFER_SLOTS,
};
use super::locate::{Heap, read_bytes};
use crate::blocks::CachedBlock;
use crate::scan::is_mapped_memory;
use strandline_claims::allocator::Context;
use strandline_claims::range::{PAGE_BYTES, page_of};
use strandline_process::memory::{half_word_at, word_at};
use strandline_process::page_cache::PageCache;
use strandline_process::pages::USER_ADDRESS_END;

/// Maximum objects of all caches together, in case some are damaged.
const MAX_ITEMS: usize = 1 << 22;
/// Maximum thread caches followed.
const MAX_CACHES: usize = 1 << 16;
/// Objects between two checks of the deadline.
const DEADLINE_CHECK_INTERVAL: u64 = 1024;
/// Maximum groups of processors with their own transfer caches.
const MAX_SHARDS: usize = 256;

/// Maximum addresses where an array of transfer caches may begin; each is tried with each stride.
const MAX_CANDIDATES: usize = 4096;

/// The kind of cache that holds an object.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CacheKind {
    Transfer,
    Sharded,
    Processor,
    Thread,
}

/// Contents of all caches.
#[derive(Default)]
pub struct Cached {
    /// Free objects, in address order.
    pub items: Vec<CachedBlock>,
    /// Bytes of objects in transfer caches.
    pub transfer_bytes: u64,
    /// Bytes of objects in sharded transfer caches, which serve a group of processors each.
    pub sharded_bytes: u64,
    /// Bytes of objects in per-CPU caches.
    pub processor_bytes: u64,
    /// Bytes of objects in thread caches.
    pub thread_bytes: u64,
    /// Invalid lists and objects.
    pub broken: u64,
    /// Pages that hold structures.
    pub structures: BTreeSet<u64>,
    /// Bytes read from the target.
    pub bytes_read: u64,
}

/// Reads all caches.
pub fn find(context: &Context<'_>, heap: &Heap) -> Cached {
    let mut reader =
        Reader { context, heap, cache: PageCache::new(context.memory), cached: Cached::default() };
    reader.read_transfer_caches();
    reader.read_processor_caches();
    reader.read_thread_caches();
    let mut cached = reader.cached;
    cached.bytes_read += reader.cache.bytes_read;
    cached.items.sort_unstable();
    let count = cached.items.len();
    cached.items.dedup_by_key(|item| item.address);
    cached.broken += (count - cached.items.len()) as u64;
    cached
}

struct Reader<'a> {
    context: &'a Context<'a>,
    heap: &'a Heap,
    cache: PageCache<'a>,
    cached: Cached,
}

impl Reader<'_> {
    fn is_late(&self) -> bool {
        Instant::now() >= self.context.deadline
    }

    fn add_item(&mut self, address: u64, class: usize, kind: CacheKind) {
        let bytes = self.heap.class_bytes(class);
        if self.cached.items.len() >= MAX_ITEMS || !address.is_multiple_of(8) || address == 0 {
            self.cached.broken += 1;
            return;
        }
        self.cached.items.push(CachedBlock { address, class: class as u16 });
        *(match kind {
            CacheKind::Transfer => &mut self.cached.transfer_bytes,
            CacheKind::Sharded => &mut self.cached.sharded_bytes,
            CacheKind::Processor => &mut self.cached.processor_bytes,
            CacheKind::Thread => &mut self.cached.thread_bytes,
        }) += bytes;
    }

    /// Returns the words of static data that point outside it, to memory that may be tcmalloc's
    /// own.
    fn outgoing_pointers(&self) -> Vec<u64> {
        let is_outside = |word: &u64| !self.heap.data.contains(*word);
        let words = self.heap.statics.words().map(|(_, word)| word).filter(is_outside);
        let is_memory = |word: &u64| self.context.space.find(*word).is_some_and(is_mapped_memory);
        let all: BTreeSet<u64> = words.filter(|word| word.is_multiple_of(8)).filter(is_memory).collect();
        all.into_iter().collect()
    }

    // --- transfer caches ---

    /// Reads the array of transfer caches in static data, one per class. Each contains the central
    /// list of its class, which holds the class and the size of its objects.
    fn read_transfer_caches(&mut self) {
        let heap = self.heap;
        let has_class = |at: u64, class: usize| {
            heap.statics.word(at) == class as u64 && heap.statics.word(at + 8) == heap.class_bytes(class)
        };
        let used: Vec<usize> =
            (1..heap.classes.number()).filter(|&class| heap.class_bytes(class) > 0).collect();
        let firsts =
            heap.statics.words().filter(|&(at, word)| word == 1 && has_class(at, 1)).map(|(at, _)| at);
        let firsts = firsts.take(MAX_CANDIDATES);
        let array =
            firsts.flat_map(|at| (64..=MAX_TRANSFER_BYTES).step_by(64).map(move |stride| (at, stride))).find(
                |&(at, stride)| used.iter().all(|&class| has_class(at + (class as u64 - 1) * stride, class)),
            );
        let Some((first, stride)) = array else {
            self.cached.broken += 1;
            return;
        };
        for class in used {
            let at = first + (class as u64 - 1) * stride;
            let (info, slots) = (at.wrapping_sub(TRANSFER_INFO), at.wrapping_sub(TRANSFER_SLOTS));
            self.read_slots(heap.statics.word(info), heap.statics.word(slots), class, CacheKind::Transfer);
        }
        self.read_sharded_caches();
    }

    /// Reads the objects in `slots`; `info` holds the number of slots used and the capacity.
    fn read_slots(&mut self, info: u64, slots: u64, class: usize, kind: CacheKind) {
        let (used, capacity) = (info & 0xffff_ffff, info >> 32);
        if used > capacity || used > MAX_SLOTS.max(self.max_sharded_slots(kind, class)) {
            self.cached.broken += 1;
            return;
        }
        if slots != 0 {
            self.cached.structures.insert(page_of(slots));
        }
        for slot in 0..used {
            if self.must_end(slot) {
                self.cached.broken += 1;
                return;
            }
            match self.cache.word(slots.wrapping_add(8 * slot) & !7) {
                Some(object) => self.add_item(object, class, kind),
                None => self.cached.broken += 1,
            }
        }
    }

    /// Whether reading must end; called for each object of a cache, with its number.
    fn must_end(&self, number: u64) -> bool {
        let is_due = number.is_multiple_of(DEADLINE_CHECK_INTERVAL);
        self.cached.items.len() >= MAX_ITEMS || is_due && self.is_late()
    }

    /// A sharded transfer cache may hold 12 MiB of each class.
    fn max_sharded_slots(&self, kind: CacheKind, class: usize) -> u64 {
        if kind == CacheKind::Sharded { (12 << 20) / self.heap.class_bytes(class).max(1) } else { 0 }
    }

    /// Reads the sharded transfer caches: similar arrays outside static data, with the class
    /// instead of a central list.
    fn read_sharded_caches(&mut self) {
        let number = self.heap.classes.number();
        let mut seen = HashSet::new();
        for shards in self.outgoing_pointers() {
            if self.is_late() {
                return;
            }
            for shard in 0..MAX_SHARDS as u64 {
                // A pointer, and a flag for its initialisation.
                let place = shards.saturating_add(16 * shard);
                let array =
                    self.cache.word(place).filter(|array| !seen.contains(array) && seen.len() < MAX_SHARDS);
                let classes = array.and_then(|array| Some((array, self.classes_of_shard(array, number)?)));
                let Some((array, first)) = classes else { break };
                seen.insert(array);
                for class in 1..number {
                    let at = first + SHARD_BYTES * class as u64;
                    self.cached.structures.insert(page_of(at));
                    // An unused class has no size, and so no limit of its slots.
                    if self.heap.class_bytes(class) > 0 {
                        let [info, slots] = [16, 8].map(|before| self.cache.word(at - before).unwrap_or(0));
                        self.read_slots(info, slots, class, CacheKind::Sharded);
                    }
                }
                self.cached.structures.insert(page_of(array));
            }
        }
    }

    /// Returns the address of the first class in such an array; every element has its class at the
    /// same offset.
    fn classes_of_shard(&mut self, array: u64, number: usize) -> Option<u64> {
        if array == 0 || !array.is_multiple_of(64) || array >= USER_ADDRESS_END {
            return None;
        }
        let is_class = |cache: &mut PageCache<'_>, at: u64, class: u64| {
            cache.word(at).is_some_and(|word| word & 0xffff_ffff == class)
        };
        SHARD_CLASS.map(|offset| array + offset).into_iter().find(|first| {
            (1..number as u64).all(|class| is_class(&mut self.cache, first + SHARD_BYTES * class, class))
        })
    }

    // --- per-CPU caches ---

    fn read_processor_caches(&mut self) {
        let words: Vec<(u64, u64)> = self.heap.statics.words().collect();
        for (at, word) in words {
            let (shift, slabs) = (word & SLAB_SHIFT_BITS, word & !SLAB_SHIFT_BITS);
            if !SLAB_SHIFTS.contains(&shift) || !slabs.is_multiple_of(PAGE_BYTES) || slabs >= USER_ADDRESS_END
            {
                continue;
            }
            let word = |offset: u64| self.heap.statics.word(at + offset);
            let is_own = |at: u64| self.context.space.find(at).is_some_and(is_mapped_memory);
            let stopped = word(8);
            let places = SLAB_BEGINS.map(word).into_iter().filter(|&at| is_own(at));
            if !is_own(slabs) || !is_own(stopped) {
                continue;
            }
            if self.is_late() {
                return;
            }
            let Some(begins) =
                places.collect::<Vec<_>>().into_iter().find_map(|at| self.slot_starts(at, shift))
            else {
                continue;
            };
            self.cached.structures.extend([page_of(slabs), page_of(stopped)]);
            for processor in 0..MAX_PROCESSORS {
                let Some(slab) = slabs.checked_add(processor << shift) else { break };
                if self.is_late() || self.read_processor_cache(slab, shift, &begins).is_none() {
                    break;
                }
            }
            return;
        }
    }

    /// Reads where the objects of each class begin in a per-CPU cache, in words: after the headers,
    /// in order.
    fn slot_starts(&mut self, at: u64, shift: u64) -> Option<Vec<u64>> {
        let number = self.heap.classes.number();
        let mut bytes = vec![0; 2 * number];
        self.cache.read(at, &mut bytes).ok()?;
        let begins: Vec<u64> =
            bytes.chunks_exact(2).map(|pair| u64::from(u16::from_le_bytes([pair[0], pair[1]]))).collect();
        let first = (4 * number as u64).div_ceil(8) + 1;
        let is_table = begins.get(1) == Some(&first)
            && begins[1..].is_sorted()
            && begins.last().is_some_and(|&last| last <= 1 << (shift - 3));
        is_table.then_some(begins)
    }

    /// Reads the objects of a per-CPU cache; `None` if it is not one.
    fn read_processor_cache(&mut self, slab: u64, shift: u64, begins: &[u64]) -> Option<()> {
        let mut headers = vec![0; 4 * begins.len()];
        let is_resident = !self.context.resident_runs((slab, slab + 1)).is_empty();
        if !is_resident {
            // A cache that was never used; others may follow.
            return self.context.space.find(slab + (1 << shift) - 1).map(|_| ());
        }
        self.cache.read(slab, &mut headers).ok()?;
        if headers[4..].iter().all(|&byte| byte == 0) {
            return Some(());
        }
        let header = |class: usize| {
            half_word_at(&headers, 4 * class).map(|word| (u64::from(word & 0xffff), u64::from(word >> 16)))
        };
        let is_cache = (1..begins.len()).all(|class| {
            header(class).is_some_and(|(current, end)| {
                begins[class] <= current && current <= end && end <= 1 << (shift - 3)
            })
        });
        if !is_cache {
            return None;
        }
        self.cached.structures.insert(slab);
        for (class, &begin) in begins.iter().enumerate().skip(1) {
            let (current, _) = header(class)?;
            for place in begin..current {
                if self.must_end(place - begin) {
                    self.cached.broken += 1;
                    return Some(());
                }
                match self.cache.word(slab + 8 * place) {
                    Some(object) => self.add_item(object, class, CacheKind::Processor),
                    None => self.cached.broken += 1,
                }
            }
        }
        Some(())
    }

    // --- thread caches ---

    /// Reads all thread caches: they are linked to each other, and static data points to one of
    /// them.
    fn read_thread_caches(&mut self) {
        let mut pending = self.outgoing_pointers();
        let (mut seen, mut found) = (HashSet::new(), 0);
        while let Some(at) = pending.pop() {
            if found >= MAX_CACHES || self.is_late() {
                self.cached.broken += 1;
                return;
            }
            if seen.insert(at)
                && let Some(bytes) = self.thread_cache(at)
            {
                found += 1;
                self.cached
                    .structures
                    .extend((page_of(at)..at + bytes.len() as u64).step_by(PAGE_BYTES as usize));
                let after_lists = CACHE_LIST_BYTES * self.heap.classes.number();
                let links = CACHE_LINKS.map(|link| word_at(&bytes, after_lists + link).unwrap_or(0));
                pending.extend(links.into_iter().filter(|link| *link != 0 && link.is_multiple_of(8)));
                self.read_lists(&bytes);
            }
        }
    }

    /// Returns the thread cache at `at`; `None` unless its size is the sum of its lists.
    fn thread_cache(&mut self, at: u64) -> Option<Vec<u8>> {
        let number = self.heap.classes.number();
        // The maximum length of a list is at least 1. It is checked first, as most words point
        // elsewhere.
        self.cache.word(at.checked_add(16)?).filter(|word| (1..=1 << 20).contains(&(word & 0xffff_ffff)))?;
        let mut bytes = vec![0; CACHE_LIST_BYTES * number + CACHE_REST_BYTES];
        read_bytes(&mut self.cache, at, &mut bytes)?;
        let mut held = 0_u64;
        for class in 0..number {
            let CacheList { first, length, max_length } = cache_list(&bytes, class)?;
            let is_list = (first == 0) == (length == 0)
                && max_length > 0
                && (length == 0 || self.heap.class_bytes(class) > 0);
            if !is_list {
                return None;
            }
            held = held.checked_add(length * self.heap.class_bytes(class))?;
        }
        let [size, max_size] = [0, 8].map(|offset| word_at(&bytes, CACHE_LIST_BYTES * number + offset));
        (size == Some(held) && max_size.is_some_and(|max_size| max_size > 0)).then_some(bytes)
    }

    fn read_lists(&mut self, bytes: &[u8]) {
        for class in 1..self.heap.classes.number() {
            let Some(CacheList { first: mut at, length, .. }) = cache_list(bytes, class) else { return };
            for step in 0..length {
                let is_late = step.is_multiple_of(DEADLINE_CHECK_INTERVAL) && self.is_late();
                let next = if at.is_multiple_of(8) && !is_late { self.cache.word(at) } else { None };
                let Some(next) = next.filter(|_| self.cached.items.len() < MAX_ITEMS) else {
                    self.cached.broken += 1;
                    break;
                };
                self.add_item(at, class, CacheKind::Thread);
                at = next;
            }
        }
    }
}

/// A list of a thread cache.
struct CacheList {
    /// Its first object.
    first: u64,
    length: u64,
    max_length: u64,
}

fn cache_list(bytes: &[u8], class: usize) -> Option<CacheList> {
    let at = CACHE_LIST_BYTES * class;
    let half = |offset: usize| half_word_at(bytes, at + offset).map(u64::from);
    Some(CacheList { first: word_at(bytes, at)?, length: half(8)?, max_length: half(16)? })
}
