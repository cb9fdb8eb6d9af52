//! A sparse set of chunk addresses: one bit for each 16 bytes, in leaves allocated on first use.
//!
//! Free chunks that look in use to their neighbours (fastbins, thread caches) are collected by
//! address before the walk. With a bitmap they cost one bit per 16 bytes of heap that they span,
//! instead of one word per chunk, and need no sorting.

use super::layout::ALIGNMENT;

/// Addresses under one leaf.
const LEAF_BYTES: u64 = 64 << 10;
/// Number of words of 64 bits in a leaf.
const WORDS_PER_LEAF: usize = (LEAF_BYTES / ALIGNMENT / 64) as usize;

/// A set of aligned addresses within one range.
pub struct ChunkSet {
    /// First address of the range.
    start: u64,
    /// In address order; `None` for a leaf without an address in the set.
    leaves: Vec<Option<Box<[u64; WORDS_PER_LEAF]>>>,
}

/// Where the bit of an address is.
struct Position {
    /// Index of the leaf.
    leaf: usize,
    /// Index of the word in it.
    word: usize,
    /// Mask of the bit in the word.
    bit: u64,
}

impl ChunkSet {
    /// An empty set over `start..end`.
    pub fn new(start: u64, end: u64) -> Self {
        // Regions have at most 1 TiB, so their leaves can be counted.
        let leaves = usize::try_from(end.saturating_sub(start).div_ceil(LEAF_BYTES)).unwrap_or(0);
        Self { start, leaves: (0..leaves).map(|_| None).collect() }
    }

    /// Returns the position of an address; `None` if it is not aligned or outside the range.
    fn position(&self, address: u64) -> Option<Position> {
        let offset = address.checked_sub(self.start)?;
        if !offset.is_multiple_of(ALIGNMENT) {
            return None;
        }
        let leaf = usize::try_from(offset / LEAF_BYTES).ok()?;
        let number = (offset % LEAF_BYTES) / ALIGNMENT;
        let is_within = leaf < self.leaves.len();
        is_within.then_some(Position { leaf, word: (number / 64) as usize, bit: 1 << (number % 64) })
    }

    /// Adds `address`; false if it is already in the set or outside the range.
    pub fn insert(&mut self, address: u64) -> bool {
        let Some(Position { leaf, word, bit }) = self.position(address) else { return false };
        let words = self.leaves[leaf].get_or_insert_with(|| Box::new([0; WORDS_PER_LEAF]));
        let is_new = words[word] & bit == 0;
        words[word] |= bit;
        is_new
    }

    /// Whether `address` is in the set.
    #[inline]
    pub fn contains(&self, address: u64) -> bool {
        let Some(Position { leaf, word, bit }) = self.position(address) else { return false };
        self.leaves[leaf].as_ref().is_some_and(|words| words[word] & bit != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_added_addresses_are_in_the_set() {
        let mut chunks = ChunkSet::new(0x1000, 0x1000 + 3 * LEAF_BYTES + 5);
        assert!(chunks.insert(0x1000));
        assert!(!chunks.insert(0x1000), "twice");
        assert!(chunks.insert(0x1000 + 3 * LEAF_BYTES));
        assert!(!chunks.insert(0x1008), "not aligned");
        assert!(!chunks.insert(0xff0), "below");
        assert!(!chunks.insert(0x1000 + 4 * LEAF_BYTES), "above");
        assert!(chunks.contains(0x1000) && !chunks.contains(0x1010));
    }
}
