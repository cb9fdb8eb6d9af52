//! Per-CPU caches, each in a slab of one array.

use std::ops::Range;

use super::super::cache_layout::{self as layout, SlabHeader};
use super::{CacheKind, CacheReader};
use crate::radix::StaticWord;
use crate::scan::{is_mapped_memory, is_resident};
use strandline_claims::range::{PAGE_BYTES, page_of};
use strandline_process::pages::USER_ADDRESS_END;
use strandline_process::range::AddressRange;

/// A slab is valid if at most this fraction of its headers is invalid: 1/8. A thread was stopped
/// during a change of one header; in other memory most are invalid.
const MIN_CLASSES_PER_INVALID_HEADER: usize = 8;
/// Maximum invalid slabs since the last valid one; with more, the array has ended.
const MAX_INVALID_SLABS: u64 = 32;

impl CacheReader<'_> {
    /// Reads the per-CPU caches, each in a slab of one array.
    pub(super) fn read_processor_caches(&mut self) {
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
        let stopped = word_after(layout::STOPPED_AFTER_SLABS)?;
        if !is_mapped(&start) || !is_mapped(&stopped) || context.deadline_passed() {
            return None;
        }
        let mut tables = layout::BEGINS_AFTER_SLABS.into_iter().filter_map(word_after).filter(is_mapped);
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
            if self.context.deadline_passed() {
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
        if !is_resident(self.context, slab) {
            // It was never used, or is swapped out; others may follow.
            let range = AddressRange::sized(slab, 1 << array.shift);
            if self.context.space.find(range.end - 1).is_none() {
                return SlabState::Unmapped;
            }
            self.caches.swapped.note_possible(self.context, range);
            return SlabState::Unused;
        }
        let mut headers = vec![0; layout::SLAB_HEADER_BYTES * array.begins.len()];
        if self.pages.read(slab, &mut headers).is_err() {
            return SlabState::Invalid;
        }
        // There is no class 0.
        if headers[layout::SLAB_HEADER_BYTES..].iter().all(|&byte| byte == 0) {
            return SlabState::Unused;
        }
        let classes = self.classes();
        let is_invalid = |&class: &u16| array.used_slots(&headers, class).is_none();
        let invalid_headers = classes.clone().filter(is_invalid).count();
        if invalid_headers > classes.len() / MIN_CLASSES_PER_INVALID_HEADER {
            return SlabState::Invalid;
        }
        self.caches.structure_pages.insert(slab);
        self.caches.unread_count += invalid_headers as u64;
        for class in classes {
            let Some(slots) = array.used_slots(&headers, class) else { continue };
            for slot in slots {
                if self.must_end() {
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
    fn used_slots(&self, headers: &[u8], class: u16) -> Option<Range<u64>> {
        let class = usize::from(class);
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
    /// Memory that was never written, as a slab is before its first use, or is swapped out.
    Unused,
    /// Other contents, or it could not be read.
    Invalid,
    /// No memory.
    Unmapped,
}
