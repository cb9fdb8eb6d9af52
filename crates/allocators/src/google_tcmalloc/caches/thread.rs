//! Thread caches.

use std::collections::{BTreeSet, HashSet};

use super::super::cache_layout::{self as layout, THREAD_LIST_BYTES, ThreadList};
use super::super::locate::read_bytes;
use super::{CacheKind, CacheReader};
use strandline_claims::range::{PAGE_BYTES, page_of};
use strandline_process::memory::word_at;
use strandline_process::range::AddressRange;

/// Maximum thread caches followed.
const MAX_THREAD_CACHES: usize = 1 << 16;
/// Maximum `max_length_` of a list of a thread cache; memory with a larger one is no list.
const MAX_LIST_LENGTH: u64 = 1 << 20;

/// Where a thread cache may be.
struct Candidate {
    address: u64,
    /// Whether a thread cache links to it; otherwise only a word of static data points there.
    is_linked: bool,
}

impl CacheReader<'_> {
    /// Reads all thread caches: they are linked to each other, and one of `outgoing_pointers`, from
    /// static data, leads to one of them.
    pub(super) fn read_thread_caches(&mut self, outgoing_pointers: BTreeSet<u64>) {
        let candidate = |address: u64| Candidate { address, is_linked: false };
        let mut pending: Vec<Candidate> = outgoing_pointers.into_iter().map(candidate).collect();
        let mut seen_addresses = HashSet::new();
        let mut cache_count = 0;
        while let Some(Candidate { address: at, is_linked }) = pending.pop() {
            if cache_count >= MAX_THREAD_CACHES || self.context.deadline_passed() {
                self.caches.unread_count += 1;
                return;
            }
            if seen_addresses.contains(&at) {
                continue;
            }
            let cache = self.thread_cache(at);
            if cache.is_none() && !is_linked {
                // A cache may still link to it.
                continue;
            }
            seen_addresses.insert(at);
            let Some(bytes) = cache else {
                let range = AddressRange::sized(at, self.thread_lists_bytes() as u64);
                // Otherwise, mostly, the thread was stopped while it changed its cache.
                let is_swapped = self.caches.swapped.count_if_swapped(self.context, range);
                self.caches.unread_count += u64::from(!is_swapped);
                continue;
            };
            cache_count += 1;
            let pages = (page_of(at)..at + bytes.len() as u64).step_by(PAGE_BYTES as usize);
            self.caches.structure_pages.extend(pages);
            let after_lists = self.thread_lists_bytes();
            let links =
                layout::THREAD_LINKS.into_iter().filter_map(|link| word_at(&bytes, after_lists + link));
            let links = links.filter(|&link| link != 0 && link.is_multiple_of(8));
            pending.extend(links.map(|address| Candidate { address, is_linked: true }));
            self.read_lists(&bytes);
        }
    }

    /// Bytes of the lists of all classes, which a thread cache begins with.
    fn thread_lists_bytes(&self) -> usize {
        THREAD_LIST_BYTES * self.heap.classes.number()
    }

    /// Returns the thread cache at `at`; `None` unless its size is the sum of its lists.
    fn thread_cache(&mut self, at: u64) -> Option<Vec<u8>> {
        // The maximum length of a list is at least 1. It is checked first, as most words point
        // elsewhere.
        let max_length = self.pages.word32(at.checked_add(layout::LIST_MAX_LENGTH as u64)?)?;
        if !(1..=MAX_LIST_LENGTH).contains(&u64::from(max_length)) {
            return None;
        }
        let after_lists = self.thread_lists_bytes();
        let mut bytes = vec![0; after_lists + layout::AFTER_THREAD_LISTS_BYTES];
        read_bytes(&mut self.pages, at, &mut bytes)?;
        let mut held_bytes = 0_u64;
        for class in 0..self.classes().end {
            let ThreadList { first_object, length, max_length } = ThreadList::of_class(&bytes, class)?;
            if (first_object == 0) != (length == 0) || max_length == 0 {
                return None;
            }
            if length > 0 {
                held_bytes = held_bytes.checked_add(length.checked_mul(self.heap.class_bytes(class)?)?)?;
            }
        }
        let [size, max_size] = layout::THREAD_SIZES.map(|offset| word_at(&bytes, after_lists + offset));
        (size == Some(held_bytes) && max_size.is_some_and(|max_size| max_size > 0)).then_some(bytes)
    }

    /// Reads the objects of all lists of a thread cache, with which `bytes` begin.
    fn read_lists(&mut self, bytes: &[u8]) {
        for class in self.classes() {
            let Some(ThreadList { first_object: mut at, length, .. }) = ThreadList::of_class(bytes, class)
            else {
                return;
            };
            for _ in 0..length {
                let must_end = self.must_end() || !at.is_multiple_of(8);
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
