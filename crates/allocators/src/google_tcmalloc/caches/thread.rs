//! Thread caches.

use std::collections::HashSet;

use super::super::cache_layout::{self as layout, THREAD_LIST_BYTES, ThreadList};
use super::super::locate::read_bytes;
use super::{CacheKind, CacheReader};
use strandline_claims::range::{PAGE_BYTES, page_of};
use strandline_process::memory::word_at;

/// Maximum thread caches followed.
const MAX_THREAD_CACHES: usize = 1 << 16;
/// Maximum `max_length_` of a list of a thread cache; a larger one is no list.
const MAX_LIST_LENGTH: u64 = 1 << 20;

impl CacheReader<'_> {
    /// Reads all thread caches: they are linked to each other, and static data points to one of
    /// them.
    pub(super) fn read_thread_caches(&mut self) {
        let mut pending: Vec<u64> = self.outgoing_pointers().into_iter().collect();
        let (mut seen_addresses, mut cache_count) = (HashSet::new(), 0);
        while let Some(at) = pending.pop() {
            if cache_count >= MAX_THREAD_CACHES || self.context.deadline_passed() {
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
                let links =
                    layout::THREAD_LINKS.into_iter().filter_map(|link| word_at(&bytes, after_lists + link));
                pending.extend(links.filter(|&link| link != 0 && link.is_multiple_of(8)));
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

    /// Follows the lists of a thread cache, which begin `bytes`.
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
