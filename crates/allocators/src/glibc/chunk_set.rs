//! A sparse set of chunk addresses: one bit for each 16 bytes, in leaves allocated on first use.
//!
//! Free chunks that look in use to their neighbours (fastbins, thread caches) are collected by
//! address before the walk. With a bitmap they cost one bit per 16 bytes of heap that they span,
//! instead of one word per chunk, and need no sorting.

const LEAF_BYTES: u64 = 64 << 10;
const WORDS: usize = (LEAF_BYTES / 16 / 64) as usize;

/// A set of 16-byte aligned addresses within one range.
pub struct ChunkSet {
    start: u64,
    leaves: Vec<Option<Box<[u64; WORDS]>>>,
}

impl ChunkSet {
    /// An empty set over `start..end`.
    pub fn new(start: u64, end: u64) -> Self {
        let leaves = usize::try_from(end.saturating_sub(start).div_ceil(LEAF_BYTES)).unwrap_or(0);
        Self { start, leaves: (0..leaves).map(|_| None).collect() }
    }

    fn place(&self, address: u64) -> Option<(usize, usize, u64)> {
        let offset = address.checked_sub(self.start)?;
        if !offset.is_multiple_of(16) {
            return None;
        }
        let leaf = usize::try_from(offset / LEAF_BYTES).ok()?;
        let bit = (offset % LEAF_BYTES) / 16;
        (leaf < self.leaves.len()).then_some((leaf, (bit / 64) as usize, 1 << (bit % 64)))
    }

    /// Adds `address`; false if it is already in the set or outside the range.
    pub fn insert(&mut self, address: u64) -> bool {
        let Some((leaf, word, bit)) = self.place(address) else { return false };
        let words = self.leaves[leaf].get_or_insert_with(|| Box::new([0; WORDS]));
        let new = words[word] & bit == 0;
        words[word] |= bit;
        new
    }

    /// Whether `address` is in the set.
    #[inline]
    pub fn contains(&self, address: u64) -> bool {
        let Some((leaf, word, bit)) = self.place(address) else { return false };
        self.leaves[leaf].as_ref().is_some_and(|words| words[word] & bit != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_what_was_put_in_and_nothing_else() {
        let mut marks = ChunkSet::new(0x1000, 0x1000 + 3 * LEAF_BYTES + 5);
        assert!(marks.insert(0x1000));
        assert!(!marks.insert(0x1000), "twice");
        assert!(marks.insert(0x1000 + 3 * LEAF_BYTES));
        assert!(!marks.insert(0x1008), "not aligned");
        assert!(!marks.insert(0xff0), "below");
        assert!(!marks.insert(0x1000 + 4 * LEAF_BYTES), "above");
        assert!(marks.contains(0x1000) && !marks.contains(0x1010));
    }
}
