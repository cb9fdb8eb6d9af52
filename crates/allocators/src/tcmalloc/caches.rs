//! Free objects in transfer caches and in thread caches, which their spans count as in use.
//!
//! Both keep objects in lists linked through their first words. The heads of the spans' lists lie
//! in the central free lists, which include the transfer caches. A thread cache is recognised by
//! the sizes of its lists, which are the size classes.

use std::collections::{BTreeSet, HashSet};

use super::layout::{
    ALL_FREE_LISTS_BYTES, CACHE_LINKS_BYTES, CENTRAL_BYTES, CENTRAL_CLASS_OFFSET, CENTRAL_LIST_OFFSETS,
    CENTRAL_SPANS_OFFSET, Classes, FREE_LIST_BYTES, FREE_LIST_LENGTH_OFFSET, FREE_LIST_SIZE_OFFSET,
    MAX_CLASSES, MAX_TRANSFER_SLOTS, ObjectClass, TRANSFER_SLOT_BYTES, TRANSFER_SLOTS_OFFSET,
    TRANSFER_USED_OFFSET,
};
use super::locate::Heap;
use super::spans::{SpanList, Spans};
use crate::blocks::{CachedBlock, SwappedCaches};
use crate::scan::{DeadlineCheck, may_be_swapped_out};
use strandline_claims::allocator::Context;
use strandline_process::memory::{half_word_at, word_at};
use strandline_process::page_cache::PageCache;
use strandline_process::range::AddressRange;
use strandline_process::work::in_order;

/// Maximum number of objects of all caches together, in case some are damaged: a list that exceeds
/// it counts as broken.
const MAX_OBJECTS: u64 = 1 << 22;
/// Maximum number of thread caches that are read; with more, a list counts as broken.
const MAX_CACHES: usize = 1 << 16;
/// Pages that are cached while a list is read: few, as there are many lists.
const PAGES_PER_LIST: usize = 32;
/// Number of size classes that are compared first, to reject other memory after a few bytes.
const CLASSES_COMPARED_FIRST: usize = 3;

/// Contents of all caches of one heap.
#[derive(Default)]
pub struct CacheContents {
    /// Free objects, in address order.
    pub blocks: Vec<CachedBlock>,
    /// Bytes of objects in thread caches, by the recorded lengths of their lists.
    pub thread_bytes: u64,
    /// Bytes of objects in transfer caches, by the batch sizes of their classes.
    pub transfer_bytes: u64,
    /// Addresses of thread caches.
    pub thread_caches: Vec<u64>,
    /// Number of invalid lists.
    pub broken_lists: u64,
    /// Caches that were not read.
    pub swapped: SwappedCaches,
    /// The first address that was not read because the deadline had passed.
    pub first_late_address: Option<u64>,
    /// Bytes read from the target.
    pub bytes_read: u64,
}

/// A list of free objects.
#[derive(Clone, Copy)]
struct List {
    /// Size class.
    class: u8,
    /// Bytes of an object.
    object_bytes: u64,
    /// Address of the first object.
    first_object: u64,
    /// Number of objects.
    length: u64,
    /// The kind of cache that it is in.
    cache: CacheKind,
}

/// A kind of cache.
#[derive(Clone, Copy)]
enum CacheKind {
    Thread,
    Transfer,
}

/// Reads all caches.
pub fn find(context: &Context<'_>, heap: &Heap, spans: &Spans) -> CacheContents {
    let mut caches = CacheContents::default();
    let mut lists = transfer_lists(context, heap, spans, &mut caches);
    lists.extend(thread_lists(context, heap, spans, &mut caches));
    let mut remaining_objects = MAX_OBJECTS;
    lists.retain(|list| {
        let fits = list.length <= remaining_objects;
        remaining_objects -= if fits { list.length } else { 0 };
        caches.broken_lists += u64::from(!fits);
        fits
    });
    for list in &lists {
        let bytes = match list.cache {
            CacheKind::Thread => &mut caches.thread_bytes,
            CacheKind::Transfer => &mut caches.transfer_bytes,
        };
        *bytes += list.length * list.object_bytes;
    }
    let results = in_order(lists.len(), context.workers, |index| read_list(context, lists[index]));
    for ListObjects { objects, is_broken, late_address, bytes_read } in results {
        caches.blocks.extend(objects);
        caches.broken_lists += u64::from(is_broken);
        caches.first_late_address = caches.first_late_address.or(late_address);
        caches.bytes_read += bytes_read;
    }
    caches.blocks.sort_unstable();
    caches.blocks.dedup_by_key(|block| block.address);
    caches
}

/// The objects of a list.
#[derive(Default)]
struct ListObjects {
    objects: Vec<CachedBlock>,
    /// Whether it ended too early.
    is_broken: bool,
    /// The object at which the deadline passed.
    late_address: Option<u64>,
    bytes_read: u64,
}

/// Reads a list until its end, an invalid link, or the deadline.
fn read_list(context: &Context<'_>, list: List) -> ListObjects {
    let mut cache = PageCache::with_capacity(context.memory, PAGES_PER_LIST);
    let mut objects = Vec::new();
    let (mut at, mut late_address) = (list.first_object, None);
    let mut deadline = DeadlineCheck::new(context);
    for _ in 0..list.length {
        if deadline.passed() {
            late_address = Some(at);
            break;
        }
        let next = if at.is_multiple_of(8) { cache.word(at) } else { None };
        let Some(next) = next else { break };
        objects.push(CachedBlock { address: at, class: list.class.into() });
        at = next;
    }
    let is_broken = late_address.is_none() && objects.len() as u64 != list.length;
    ListObjects { objects, is_broken, late_address, bytes_read: cache.bytes_read }
}

/// Returns the lists of all transfer caches: each slot of a cache has a list of one batch.
fn transfer_lists(
    context: &Context<'_>,
    heap: &Heap,
    spans: &Spans,
    caches: &mut CacheContents,
) -> Vec<List> {
    let mut lists = Vec::new();
    let mut seen_central_lists = HashSet::new();
    for &SpanList { class, head } in &spans.lists {
        if seen_central_lists.len() >= MAX_CLASSES {
            break;
        }
        if context.deadline_passed() {
            caches.first_late_address.get_or_insert(head);
            break;
        }
        let mut bytes = [0; CENTRAL_BYTES];
        let central =
            CENTRAL_LIST_OFFSETS.iter().filter_map(|offset| head.checked_sub(*offset)).find(|&at| {
                context.memory.read(at, &mut bytes).is_ok()
                    && word_at(&bytes, CENTRAL_CLASS_OFFSET) == Some(class.into())
            });
        let (Some(central), Some(ObjectClass { object_bytes, batch_length, .. })) =
            (central, heap.classes.get(class))
        else {
            caches.broken_lists += 1;
            continue;
        };
        if !seen_central_lists.insert(central) {
            continue;
        }
        caches.bytes_read += CENTRAL_BYTES as u64;
        let used_slots = half_word_at(&bytes, TRANSFER_USED_OFFSET).map_or(0, |slots| slots as usize);
        let span_count = word_at(&bytes, CENTRAL_SPANS_OFFSET);
        if used_slots > MAX_TRANSFER_SLOTS || span_count != spans.spans_per_class.get(&class).copied() {
            caches.broken_lists += 1;
        }
        let slots = (TRANSFER_SLOTS_OFFSET..).step_by(TRANSFER_SLOT_BYTES);
        let first_objects =
            slots.take(used_slots.min(MAX_TRANSFER_SLOTS)).filter_map(|at| word_at(&bytes, at));
        lists.extend(first_objects.map(|first_object| List {
            class,
            object_bytes,
            first_object,
            length: batch_length,
            cache: CacheKind::Transfer,
        }));
    }
    lists
}

/// Returns the lists of all thread caches, which are linked to each other; static data points to
/// one of them.
fn thread_lists(context: &Context<'_>, heap: &Heap, spans: &Spans, caches: &mut CacheContents) -> Vec<List> {
    let mut lists = Vec::new();
    // Thread caches are in no span; pointers in a program's own data are mostly to blocks.
    let static_pointers =
        spans.outside_pointers.targets.iter().copied().filter(|word| word.is_multiple_of(8));
    let mut pending: Vec<u64> = static_pointers.clone().collect();
    let mut cache = PageCache::new(context.memory);
    let (mut seen_addresses, mut linked_addresses) = (HashSet::new(), BTreeSet::new());
    let mut bytes = vec![0; ALL_FREE_LISTS_BYTES + CACHE_LINKS_BYTES];
    while let Some(at) = pending.pop() {
        if context.deadline_passed() {
            caches.first_late_address.get_or_insert(at);
            break;
        }
        if caches.thread_caches.len() >= MAX_CACHES {
            caches.broken_lists += 1;
            break;
        }
        if !seen_addresses.insert(at) || !may_be_cache(&mut cache, at, &heap.classes) {
            continue;
        }
        if cache.read(at, &mut bytes).is_err() || !is_cache(&bytes, &heap.classes) {
            continue;
        }
        caches.thread_caches.push(at);
        lists.extend((1..heap.classes.all().len()).filter_map(|class| {
            let offset = FREE_LIST_BYTES * class;
            let length = u64::from(half_word_at(&bytes, offset + FREE_LIST_LENGTH_OFFSET)?);
            (length > 0).then_some(List {
                // There are at most 128 classes.
                class: class as u8,
                object_bytes: heap.classes.all().get(class)?.object_bytes,
                first_object: word_at(&bytes, offset)?,
                length,
                cache: CacheKind::Thread,
            })
        }));
        let links =
            (ALL_FREE_LISTS_BYTES..bytes.len()).step_by(8).filter_map(|offset| word_at(&bytes, offset));
        for link in links.filter(|link| link.is_multiple_of(8) && *link != 0) {
            linked_addresses.insert(link);
            pending.push(link);
        }
    }
    if caches.first_late_address.is_none() {
        note_swapped(context, static_pointers, linked_addresses, bytes.len() as u64, caches);
    }
    caches.bytes_read += cache.bytes_read;
    lists
}

/// Notes the thread caches of `cache_bytes` that may be swapped out: of the addresses to which a
/// cache links, and if none was read, the first of `static_pointers`, one of which leads to them.
/// Stops at the deadline.
fn note_swapped(
    context: &Context<'_>,
    mut static_pointers: impl Iterator<Item = u64>,
    mut linked_addresses: BTreeSet<u64>,
    cache_bytes: u64,
    caches: &mut CacheContents,
) {
    for at in &caches.thread_caches {
        linked_addresses.remove(at);
    }
    if caches.thread_caches.is_empty() {
        let swapped = static_pointers.find(|&at| may_be_swapped_out(context, at));
        linked_addresses.extend(swapped);
    }
    for at in linked_addresses {
        if context.deadline_passed() {
            caches.first_late_address.get_or_insert(at);
            return;
        }
        caches.swapped.count_if_swapped(context, AddressRange::sized(at, cache_bytes));
    }
}

/// Whether the first size classes are where a thread cache at `at` has them: reads few bytes.
fn may_be_cache(cache: &mut PageCache<'_>, at: u64, classes: &Classes) -> bool {
    (1..=CLASSES_COMPARED_FIRST).all(|class| {
        let mut bytes = [0; 4];
        let offset = (FREE_LIST_BYTES * class + FREE_LIST_SIZE_OFFSET) as u64;
        let is_read = at.checked_add(offset).is_some_and(|size_at| cache.read(size_at, &mut bytes).is_ok());
        let size = u64::from(u32::from_le_bytes(bytes));
        is_read && classes.all().get(class).is_some_and(|class| class.object_bytes == size)
    })
}

/// Whether all size classes are where a thread cache has them.
fn is_cache(bytes: &[u8], classes: &Classes) -> bool {
    let size = |class: usize| half_word_at(bytes, FREE_LIST_BYTES * class + FREE_LIST_SIZE_OFFSET);
    let has_size =
        |(number, class): (usize, &ObjectClass)| size(number).map(u64::from) == Some(class.object_bytes);
    classes.all().iter().enumerate().all(has_size)
}
