//! Free objects that look in use in their spans: those in transfer caches, per-CPU caches and
//! thread caches. A process has per-CPU caches if tcmalloc could register for the kernel's
//! restartable sequences, and otherwise thread caches. A thread can register only once, and glibc
//! registers it first since 2.35, unless `glibc.pthread.rseq=0`.

mod processor;
mod thread;
mod transfer;

use std::collections::BTreeSet;

use super::locate::Heap;
use crate::blocks::{CachedBlock, SwappedCaches};
use crate::scan::{DeadlineCheck, is_mapped_memory};
use strandline_claims::allocator::Context;
use strandline_process::page_cache::PageCache;

/// Maximum objects of all caches: damaged caches could list more.
const MAX_OBJECTS: usize = 1 << 22;

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
    /// Number of caches, lists and objects that were not read: invalid, listed twice, or over a
    /// limit.
    pub unread_count: u64,
    /// Caches that were not read.
    pub swapped: SwappedCaches,
    /// Pages that hold structures.
    pub structure_pages: BTreeSet<u64>,
    /// Bytes read from the target.
    pub bytes_read: u64,
}

/// Reads all caches.
pub fn read(context: &Context<'_>, heap: &Heap) -> CacheContents {
    let mut reader = CacheReader {
        context,
        heap,
        pages: PageCache::new(context.memory),
        caches: CacheContents::default(),
        objects: Vec::new(),
        deadline: DeadlineCheck::new(context),
    };
    reader.read_transfer_caches();
    let outgoing_pointers = reader.outgoing_pointers();
    reader.read_sharded_caches(&outgoing_pointers);
    reader.read_processor_caches();
    reader.read_thread_caches(outgoing_pointers);
    let CacheReader { pages, mut caches, objects, .. } = reader;
    caches.bytes_read += pages.bytes_read;
    // An object of a class without a size is in no span, so it matches no block in use.
    caches.set_objects(objects, |class| heap.class_bytes(class).unwrap_or(0));
    caches
}

impl CacheContents {
    /// Takes the objects of all caches. Each counts once, even if damaged caches list it twice.
    fn set_objects(&mut self, mut objects: Vec<CachedObject>, class_bytes: impl Fn(u16) -> u64) {
        objects.sort_unstable();
        let listed_count = objects.len();
        objects.dedup_by_key(|object| object.address);
        self.unread_count += (listed_count - objects.len()) as u64;
        for object in &objects {
            let bytes = match object.kind {
                CacheKind::Transfer => &mut self.transfer_bytes,
                CacheKind::Sharded => &mut self.sharded_bytes,
                CacheKind::Processor => &mut self.processor_bytes,
                CacheKind::Thread => &mut self.thread_bytes,
            };
            *bytes += class_bytes(object.class);
        }
        let block = |object: CachedObject| CachedBlock { address: object.address, class: object.class };
        self.blocks = objects.into_iter().map(block).collect();
    }
}

/// Reads caches of all kinds, until the deadline. The claims are made later, and note that it has
/// passed.
struct CacheReader<'a> {
    context: &'a Context<'a>,
    heap: &'a Heap,
    /// Pages of the target read last.
    pages: PageCache<'a>,
    caches: CacheContents,
    /// Objects of the caches read so far.
    objects: Vec<CachedObject>,
    /// Checked at each object.
    deadline: DeadlineCheck<'a>,
}

impl CacheReader<'_> {
    /// Adds an object; called only unless [`Self::must_end`].
    fn add_object(&mut self, address: u64, class: u16, kind: CacheKind) {
        if !address.is_multiple_of(8) || address == 0 {
            self.caches.unread_count += 1;
            return;
        }
        self.objects.push(CachedObject { address, class, kind });
    }

    /// Whether reading must end; called for each object of a cache.
    fn must_end(&mut self) -> bool {
        self.objects.len() >= MAX_OBJECTS || self.deadline.passed()
    }

    /// The numbers of the size classes, from 1 on: tcmalloc uses 0 for memory without a class.
    fn classes(&self) -> std::ops::Range<u16> {
        // There are at most 356 classes.
        1..self.heap.classes.number() as u16
    }

    /// Returns the words of static data that point outside it, to memory that may be tcmalloc's
    /// own.
    fn outgoing_pointers(&self) -> BTreeSet<u64> {
        let words = self.heap.statics.words().map(|word| word.value);
        let may_be_own = |&word: &u64| {
            !self.heap.data.contains(word)
                && word.is_multiple_of(8)
                && self.context.space.find(word).is_some_and(is_mapped_memory)
        };
        words.filter(may_be_own).collect()
    }
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
        caches.set_objects(objects, |class| 100 * u64::from(class));
        let block = |address, class| CachedBlock { address, class };
        assert_eq!(caches.blocks, [block(0x1000, 1), block(0x2000, 2)]);
        assert_eq!((caches.transfer_bytes, caches.processor_bytes, caches.thread_bytes), (200, 100, 0));
        assert_eq!(caches.unread_count, 1);
    }
}
