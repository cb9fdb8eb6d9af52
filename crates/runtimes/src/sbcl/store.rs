//! The copy of SBCL's memory, which is examined once the target runs again.
//!
//! It holds the pages of the collector with objects, and the used parts of the other spaces; of a
//! large object without pointers only the first page. It consists of units of 16 bytes. Each unit
//! has two bits: whether an object starts there, and whether that object is marked.

use std::sync::atomic::{AtomicU64, Ordering};

use super::reserved_memory::ReservedMemory;
use crate::sbcl::layout::GC_PAGE_BYTES;
use strandline_process::buffer::ReadBuffer;
use strandline_process::memory::{word_at, words_in};

/// Stands for a page that was not copied.
const NOT_COPIED: u32 = u32::MAX;
/// [`GC_PAGE_BYTES`], to index bytes of the copy.
const PAGE_LENGTH: usize = GC_PAGE_BYTES as usize;
/// Objects start on multiples of this.
pub const UNIT_BYTES: u64 = 16;
/// Units of a page of the collector.
const UNITS_PER_PAGE: usize = PAGE_LENGTH / UNIT_BYTES as usize;

/// A range of addresses with copied pages.
#[derive(Clone, Debug)]
struct Area {
    start: u64,
    end: u64,
    /// By page of the range: index of the copied page, or `NOT_COPIED`.
    pages: Vec<u32>,
}

/// The copy. Its first area is dynamic space.
#[derive(Default)]
pub struct HeapCopy {
    areas: Vec<Area>,
    bytes: ReadBuffer,
    /// Address of each copied page.
    addresses: Vec<u64>,
    /// The bits of units: for each 64 units a word for each [`BitKind`], so that both bits of a
    /// unit are on one cache line.
    bits: Vec<AtomicU64>,
    /// By copied page: the last unit before it where an object starts, if there is one.
    starts_before_pages: Vec<Option<UnitIndex>>,
}

/// Consecutive pages of the copy.
pub struct CopiedSpan<'a> {
    /// Address of the first in the target.
    pub address: u64,
    /// Their bytes in the copy.
    pub bytes: &'a mut [u8],
}

/// Index of a unit of the copy.
pub type UnitIndex = u32;

/// What a bit of a unit states.
#[derive(Clone, Copy)]
enum BitKind {
    /// An object starts there.
    Start,
    /// The object there is marked.
    Mark,
}

/// A bit of a unit.
#[derive(Clone, Copy)]
struct Bit<'a> {
    /// The word that contains it.
    word: &'a AtomicU64,
    mask: u64,
}

impl Bit<'_> {
    #[inline]
    fn is_set(self) -> bool {
        self.word.load(Ordering::Relaxed) & self.mask != 0
    }
}

impl HeapCopy {
    /// Makes a store for `pages` pages; `None` if there are more units than can be numbered, or
    /// too little memory.
    pub fn with_pages(pages: usize, reserved: &ReservedMemory) -> Option<Self> {
        pages.checked_mul(UNITS_PER_PAGE).filter(|&units| units < NOT_COPIED as usize)?;
        Some(Self {
            areas: Vec::new(),
            bytes: reserved.take(pages * PAGE_LENGTH)?,
            addresses: Vec::with_capacity(pages),
            bits: Vec::new(),
            starts_before_pages: Vec::new(),
        })
    }

    /// Adds the range `start..end` (page-aligned start). Its pages with the ascending indexes
    /// `copied_pages` are to be copied.
    pub fn add_area(&mut self, start: u64, end: u64, copied_pages: &[usize]) {
        let count = copied_pages.last().map_or(0, |&last| last + 1);
        let mut pages = vec![NOT_COPIED; count];
        for &page in copied_pages {
            if let Some(copied_index) = pages.get_mut(page)
                && self.addresses.len() * PAGE_LENGTH < self.bytes.len()
            {
                // `with_pages` admits fewer.
                *copied_index = self.addresses.len() as u32;
                self.addresses.push(start + page as u64 * GC_PAGE_BYTES);
            }
        }
        self.areas.push(Area { start, end, pages });
    }

    /// The copied pages, to be filled.
    pub fn pages_mut(&mut self) -> impl Iterator<Item = CopiedSpan<'_>> {
        let pages = self.addresses.iter().zip(self.bytes.chunks_exact_mut(PAGE_LENGTH));
        pages.map(|(&address, bytes)| CopiedSpan { address, bytes })
    }

    /// Like [`Self::pages_mut`], in spans of up to `max_pages` pages that are consecutive in the
    /// target, too.
    pub fn spans_mut(&mut self, max_pages: usize) -> Vec<CopiedSpan<'_>> {
        let mut spans = Vec::new();
        let mut remaining = &mut self.bytes[..];
        let mut first = 0;
        while let Some(&start) = self.addresses.get(first) {
            let addresses = self.addresses.iter().skip(first).take(max_pages.max(1));
            let consecutive = (0..).map(|index: u64| start.wrapping_add(index.wrapping_mul(GC_PAGE_BYTES)));
            let count = addresses
                .zip(consecutive)
                .take_while(|(address, consecutive)| *address == consecutive)
                .count();
            let Some((span, next)) = remaining.split_at_mut_checked(count * PAGE_LENGTH) else { break };
            spans.push(CopiedSpan { address: start, bytes: span });
            remaining = next;
            first += count;
        }
        spans
    }

    /// Allocates the bits, once all areas were added.
    pub fn make_bits(&mut self) {
        self.bits = (0..self.addresses.len() * UNITS_PER_PAGE / 32).map(|_| AtomicU64::new(0)).collect();
    }

    /// The unit of `address`; `None` if it was not copied.
    #[inline]
    pub fn unit(&self, address: u64) -> Option<UnitIndex> {
        for area in &self.areas {
            if area.start <= address && address < area.end {
                let offset = address - area.start;
                let page = *area.pages.get((offset / GC_PAGE_BYTES) as usize)?;
                return (page != NOT_COPIED)
                    .then(|| page * UNITS_PER_PAGE as u32 + (offset % GC_PAGE_BYTES / UNIT_BYTES) as u32);
            }
        }
        None
    }

    /// The target's address of a unit of the copy.
    #[inline]
    pub fn address(&self, unit: UnitIndex) -> u64 {
        let page = self.addresses.get(unit as usize / UNITS_PER_PAGE).copied().unwrap_or(0);
        page + (unit as usize % UNITS_PER_PAGE) as u64 * UNIT_BYTES
    }

    /// Word `index` of the object at `unit`. The word must be on the same page of the copy, as the
    /// first two always are.
    #[inline]
    pub fn word_on_page(&self, unit: UnitIndex, index: usize) -> u64 {
        word_at(&self.bytes, unit as usize * UNIT_BYTES as usize + index * 8).unwrap_or(0)
    }

    /// The word at an address; `None` if it was not copied.
    pub fn word(&self, address: u64) -> Option<u64> {
        let unit = self.unit(address)?;
        word_at(&self.bytes, unit as usize * UNIT_BYTES as usize + (address & 8) as usize)
    }

    /// Calls `visit` with index and value of the words `from..to` of the object at `address`, up to
    /// the first that was not copied.
    #[inline]
    pub fn each_word(&self, address: u64, from: u64, to: u64, mut visit: impl FnMut(u64, u64)) {
        let mut at = address.wrapping_add(from.wrapping_mul(8));
        let end = address.saturating_add(to.saturating_mul(8));
        let mut index = from;
        while at < end {
            let page_end = ((at | (GC_PAGE_BYTES - 1)).wrapping_add(1)).min(end);
            let Some(unit) = self.unit(at) else { return };
            let first = unit as usize * UNIT_BYTES as usize + (at & 8) as usize;
            let length = (page_end - at) as usize;
            let Some(bytes) = self.bytes.get(first..first + length) else { return };
            for word in words_in(bytes) {
                visit(index, word);
                index += 1;
            }
            at = page_end;
        }
    }

    /// The bytes at `address`, up to the first that was not copied; `length` is at most a page's.
    pub fn bytes_at(&self, address: u64, length: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        // They may continue on the next page.
        for _ in 0..2 {
            let at = address.saturating_add(bytes.len() as u64);
            let Some(unit) = self.unit(at) else { break };
            let first = unit as usize * UNIT_BYTES as usize + (at % UNIT_BYTES) as usize;
            let page_end = (first / PAGE_LENGTH + 1) * PAGE_LENGTH;
            let end = page_end.min(first + length.saturating_sub(bytes.len()));
            bytes.extend_from_slice(self.bytes.get(first..end).unwrap_or_default());
        }
        bytes
    }

    /// A bit of a unit.
    #[inline]
    fn bit(&self, unit: UnitIndex, kind: BitKind) -> Option<Bit<'_>> {
        let word = self.bits.get(unit as usize / 64 * 2 + kind as usize)?;
        Some(Bit { word, mask: 1 << (unit % 64) })
    }

    /// Records that an object starts here.
    #[inline]
    pub fn set_start(&self, unit: UnitIndex) {
        if let Some(Bit { word, mask }) = self.bit(unit, BitKind::Start) {
            word.store(word.load(Ordering::Relaxed) | mask, Ordering::Relaxed);
        }
    }

    /// Whether an object starts here.
    #[inline]
    pub fn is_start(&self, unit: UnitIndex) -> bool {
        self.bit(unit, BitKind::Start).is_some_and(Bit::is_set)
    }

    /// Whether the object here is marked.
    #[inline]
    pub fn is_marked(&self, unit: UnitIndex) -> bool {
        self.bit(unit, BitKind::Mark).is_some_and(Bit::is_set)
    }

    /// Marks the object that starts here; false if none does, or it was marked before.
    #[inline]
    pub fn mark(&self, unit: UnitIndex) -> bool {
        let Some(mark) = self.bit(unit, BitKind::Mark) else { return false };
        if !self.is_start(unit) || mark.is_set() {
            return false;
        }
        mark.word.fetch_or(mark.mask, Ordering::Relaxed) & mark.mask == 0
    }

    /// Removes all marks.
    pub fn clear_marks(&self) {
        for pair in self.bits.chunks_exact(2) {
            if let [_, marks] = pair {
                marks.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Notes for each page the last start before it, once all starts are recorded: a search would
    /// otherwise go back over pages without any, for each word that points there.
    pub fn index_starts(&mut self) {
        let mut starts_before_pages = Vec::with_capacity(self.addresses.len());
        let mut last_start = None;
        for page in 0..self.addresses.len() {
            starts_before_pages.push(last_start);
            let first = page * UNITS_PER_PAGE;
            last_start = self.last_start(first, first + UNITS_PER_PAGE - 1).or(last_start);
        }
        self.starts_before_pages = starts_before_pages;
    }

    /// The last unit of `first..=last` where an object starts; `first` is that of a page.
    fn last_start(&self, first: usize, last: usize) -> Option<UnitIndex> {
        let mut at = last;
        loop {
            let word = self.bits.get(at / 64 * 2)?.load(Ordering::Relaxed);
            let starts = word & (u64::MAX >> (63 - at % 64));
            if starts != 0 {
                return Some((at / 64 * 64 + 63 - starts.leading_zeros() as usize) as UnitIndex);
            }
            at = (at / 64 * 64).checked_sub(1).filter(|&at| at >= first)?;
        }
    }

    /// The last unit at or before `unit` where an object starts, at most `max_distance` units
    /// before it.
    pub fn start_before(&self, unit: UnitIndex, max_distance: u32) -> Option<UnitIndex> {
        let page = unit as usize / UNITS_PER_PAGE;
        let start = self.last_start(page * UNITS_PER_PAGE, unit as usize);
        let start = start.or_else(|| self.starts_before_pages.get(page).copied().flatten());
        start.filter(|&start| unit - start <= max_distance)
    }

    /// Number of units.
    pub fn unit_count(&self) -> usize {
        self.addresses.len() * UNITS_PER_PAGE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_words_and_bits_agree() {
        let mut store = HeapCopy::with_pages(3, &ReservedMemory::default()).unwrap();
        store.add_area(0x10_0000, 0x20_0000, &[1, 3]);
        store.add_area(0x5000_0000, 0x5000_8000, &[0]);
        store.make_bits();
        for CopiedSpan { address, bytes } in store.pages_mut() {
            bytes[..8].copy_from_slice(&address.to_le_bytes());
            bytes[PAGE_LENGTH - 8..].copy_from_slice(&(address + 7).to_le_bytes());
        }
        let spans = |store: &mut HeapCopy, max_pages| -> Vec<_> {
            store.spans_mut(max_pages).into_iter().map(|span| (span.address, span.bytes.len())).collect()
        };
        let apart = [(0x10_8000, PAGE_LENGTH), (0x11_8000, PAGE_LENGTH), (0x5000_0000, PAGE_LENGTH)];
        assert_eq!(spans(&mut store, 8), apart);
        let mut dense = HeapCopy::with_pages(3, &ReservedMemory::default()).unwrap();
        dense.add_area(0x10_0000, 0x20_0000, &[4, 5, 6]);
        assert_eq!(spans(&mut dense, 2), [(0x12_0000, 2 * PAGE_LENGTH), (0x13_0000, PAGE_LENGTH)]);
        assert_eq!(store.unit(0x10_0000), None, "this page is not copied");
        assert_eq!(store.word(0x10_8000), Some(0x10_8000));
        assert_eq!(store.word(0x5000_7ff8), Some(0x5000_0007));
        assert_eq!(store.word(0x20_0000), None);
        let unit = store.unit(0x11_8010).unwrap();
        assert_eq!(store.address(unit), 0x11_8010);
        assert!(!store.mark(unit), "no object starts there");
        store.set_start(unit);
        assert!(store.mark(unit) && !store.mark(unit) && store.is_marked(unit));
        let far = store.unit(0x11_9000).unwrap();
        assert_eq!(store.start_before(far, 10_000), Some(unit));
        assert_eq!(store.start_before(far, 2), None);
        store.index_starts();
        let next_page = store.unit(0x5000_0000).unwrap();
        assert_eq!(store.start_before(next_page, next_page - unit), Some(unit));
        assert_eq!(store.start_before(next_page, next_page - unit - 1), None);
        assert_eq!(store.start_before(unit - 1, 10_000), None);
        store.clear_marks();
        assert!(store.is_start(unit) && !store.is_marked(unit));
        assert_eq!(store.bytes_at(0x11_fff8, 9), 0x11_8007u64.to_le_bytes());
        let mut words = Vec::new();
        store.each_word(0x11_fff0, 0, 4, |index, word| words.push((index, word)));
        assert_eq!(words, [(0, 0), (1, 0x11_8007)], "up to where it was copied");
    }

    #[test]
    fn too_many_pages_are_refused() {
        assert!(HeapCopy::with_pages(usize::MAX / 2, &ReservedMemory::default()).is_none());
    }
}
