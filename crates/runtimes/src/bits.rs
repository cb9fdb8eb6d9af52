//! Bitmaps with a bit for each place in the heap where an object may begin.

use std::sync::atomic::{AtomicU64, Ordering};

use strandline_process::range::AddressRange;

/// Numbering of the places in the parts of a heap in use: one place for each multiple of the
/// objects' alignment.
#[derive(Clone, Debug)]
pub struct HeapIndex {
    /// In address order.
    parts: Vec<IndexedPart>,
    /// Binary logarithm of the bytes per place.
    granule_shift: u32,
    /// Number of places.
    place_count: u64,
}

/// A part of the heap in use.
#[derive(Clone, Copy, Debug)]
struct IndexedPart {
    range: AddressRange,
    first_place: u64,
}

impl HeapIndex {
    /// Numbers the places of `parts`, which are in address order. `alignment` is that of objects, a
    /// power of two.
    pub fn new(parts: impl Iterator<Item = AddressRange>, alignment: u64) -> Self {
        let granule_shift = alignment.trailing_zeros();
        let mut heap = Self { parts: Vec::new(), granule_shift, place_count: 0 };
        for part in parts.filter(|part| part.start < part.end) {
            match heap.parts.last_mut() {
                Some(last) if last.range.end == part.start => last.range.end = part.end,
                _ => heap.parts.push(IndexedPart { range: part, first_place: heap.place_count }),
            }
            heap.place_count += part.len().div_ceil(alignment);
        }
        heap
    }

    /// Bytes from one place to the next.
    pub fn granule_bytes(&self) -> u64 {
        1 << self.granule_shift
    }

    /// Number of places.
    pub fn count(&self) -> u64 {
        self.place_count
    }

    /// Returns the number of the place at an address; `None` if no object can begin there.
    #[inline]
    pub fn place_at(&self, address: u64) -> Option<u64> {
        let index = self.parts.partition_point(|part| part.range.end <= address);
        let part = self.parts.get(index).filter(|part| part.range.start <= address)?;
        let offset = address - part.range.start;
        offset
            .is_multiple_of(1 << self.granule_shift)
            .then_some(part.first_place + (offset >> self.granule_shift))
    }

    /// Returns the addresses from a place to the end of its part; `None` if there is no such place.
    pub fn range_to_part_end(&self, place: u64) -> Option<AddressRange> {
        let index = self.parts.partition_point(|part| part.first_place <= place).checked_sub(1)?;
        let part = self.parts.get(index)?;
        let address = part.range.start + ((place - part.first_place) << self.granule_shift);
        (address < part.range.end).then_some(AddressRange::new(address, part.range.end))
    }

    /// Returns the addresses of `count` places from one on, or of fewer if its part ends before;
    /// `None` if there is no such place.
    pub fn range_of(&self, place: u64, count: u64) -> Option<AddressRange> {
        let part_rest = self.range_to_part_end(place)?;
        let end = part_rest.start.saturating_add(count.saturating_mul(1 << self.granule_shift));
        Some(AddressRange::new(part_rest.start, end.min(part_rest.end)))
    }
}

/// A bitmap of places, set by several threads at once. Places outside it count as clear.
#[derive(Debug)]
pub struct Bitmap(Vec<AtomicU64>);

impl Bitmap {
    /// A bitmap for `count` places with no bit set; `None` if there is not enough memory.
    pub fn new(count: u64) -> Option<Self> {
        let word_count = usize::try_from(count.div_ceil(64)).ok()?;
        let mut bits = Vec::new();
        bits.try_reserve_exact(word_count).ok()?;
        bits.resize_with(word_count, AtomicU64::default);
        Some(Self(bits))
    }

    /// A bitmap with the same bits; `None` if there is not enough memory.
    pub fn try_clone(&self) -> Option<Self> {
        let mut bits = Vec::new();
        bits.try_reserve_exact(self.0.len()).ok()?;
        bits.extend(self.0.iter().map(|word| AtomicU64::new(word.load(Ordering::Relaxed))));
        Some(Self(bits))
    }

    /// Sets a bit. Returns whether it was clear before; false for a place outside the bitmap.
    #[inline]
    pub fn set(&self, place: u64) -> bool {
        let bit = 1 << (place % 64);
        let word = self.0.get((place / 64) as usize);
        word.is_some_and(|word| word.fetch_or(bit, Ordering::Relaxed) & bit == 0)
    }

    /// Clears a bit.
    #[inline]
    pub fn clear(&self, place: u64) {
        if let Some(word) = self.0.get((place / 64) as usize) {
            word.fetch_and(!(1 << (place % 64)), Ordering::Relaxed);
        }
    }

    /// Whether a bit is set.
    #[inline]
    pub fn has(&self, place: u64) -> bool {
        self.word(place / 64) >> (place % 64) & 1 != 0
    }

    /// Returns the bits of 64 places; `index` is the number of the first divided by 64.
    #[inline]
    pub fn word(&self, index: u64) -> u64 {
        self.0.get(index as usize).map_or(0, |word| word.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_and_addresses_are_each_others() {
        let parts = [(0x1000, 0x1100), (0x2000, 0x3000), (0x3000, 0x3010)].map(AddressRange::from);
        let places = HeapIndex::new(parts.into_iter(), 8);
        assert_eq!(places.count(), 32 + 512 + 2);
        for (address, place) in [(0x1000, 0), (0x10f8, 31), (0x2000, 32), (0x3008, 32 + 513)] {
            assert_eq!(places.place_at(address), Some(place));
            assert_eq!(places.range_to_part_end(place).unwrap().start, address);
        }
        assert_eq!(
            (places.place_at(0x1100), places.place_at(0x1004), places.place_at(0x3010)),
            (None, None, None)
        );
        assert_eq!(places.range_to_part_end(places.count()), None);
        let bits = Bitmap::new(places.count()).unwrap();
        assert!(bits.set(31) && !bits.set(31) && bits.has(31) && !bits.has(32) && !bits.set(1 << 40));
        assert_eq!(bits.word(0), 1 << 31);
        bits.clear(31);
        assert!(!bits.has(31));
    }
}
