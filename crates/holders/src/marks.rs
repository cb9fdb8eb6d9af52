//! Bit sets of blocks.

use crate::arrays::{Refused, array};

/// Number of blocks in a word of a set.
const WORD_BITS: u32 = u64::BITS;

/// A set of blocks, at one bit each.
#[derive(Clone, Debug, Default)]
pub struct BlockSet(Vec<u64>);

impl BlockSet {
    /// An empty set for `blocks` blocks.
    ///
    /// # Errors
    /// [`Refused::NoMemory`].
    pub fn new(blocks: u32) -> Result<Self, Refused> {
        array(blocks.div_ceil(WORD_BITS) as usize, 0).map(Self)
    }

    /// Adds a block and returns whether it is new; false for a number past the words of the set,
    /// which is not added.
    #[inline]
    pub fn set(&mut self, block: u32) -> bool {
        let bit = 1 << (block % WORD_BITS);
        let Some(word) = self.0.get_mut((block / WORD_BITS) as usize) else { return false };
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }

    /// Removes a block.
    #[inline]
    pub fn clear(&mut self, block: u32) {
        if let Some(word) = self.0.get_mut((block / WORD_BITS) as usize) {
            *word &= !(1 << (block % WORD_BITS));
        }
    }

    /// Removes all blocks.
    pub fn clear_all(&mut self) {
        self.0.fill(0);
    }

    /// Whether a block is in the set.
    #[inline]
    pub fn has(&self, block: u32) -> bool {
        let word = self.0.get((block / WORD_BITS) as usize);
        word.is_some_and(|word| word >> (block % WORD_BITS) & 1 != 0)
    }

    /// The blocks in the set, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = u32> + '_ {
        let words = self.0.iter().enumerate().filter(|(_, word)| **word != 0);
        words.flat_map(|(index, word)| {
            let bits = (0..WORD_BITS).filter(move |bit| word >> bit & 1 != 0);
            bits.map(move |bit| index as u32 * WORD_BITS + bit)
        })
    }
}

/// A set to which nothing is added any more, in which each number has a rank: how many lower
/// numbers are in it.
#[derive(Clone, Debug, Default)]
pub struct RankedSet {
    set: BlockSet,
    /// Count of numbers in the words before each word.
    counts_before: Vec<u32>,
    count: u32,
}

impl RankedSet {
    /// Takes half a bit per possible number in addition to the set.
    pub fn new(set: BlockSet) -> Result<Self, Refused> {
        let (mut counts_before, mut count) = (array(set.0.len(), 0)?, 0);
        for (word, count_before) in set.0.iter().zip(&mut counts_before) {
            *count_before = count;
            count += word.count_ones();
        }
        Ok(Self { set, counts_before, count })
    }

    /// Number of numbers in the set.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Whether a number is in the set.
    #[inline]
    pub fn has(&self, number: u32) -> bool {
        self.set.has(number)
    }

    /// The rank of a number; `None` if it is not in the set.
    #[inline]
    pub fn rank(&self, number: u32) -> Option<u32> {
        let index = (number / WORD_BITS) as usize;
        let (word, before) = (*self.set.0.get(index)?, *self.counts_before.get(index)?);
        let bit = 1_u64 << (number % WORD_BITS);
        (word & bit != 0).then(|| before + (word & (bit - 1)).count_ones())
    }

    /// The lowest number in the set; `None` if it is empty.
    pub fn first(&self) -> Option<u32> {
        self.lowest_from(0, u64::MAX)
    }

    /// The next higher number in the set; `None` after the last.
    pub fn after(&self, number: u32) -> Option<u32> {
        // Two shifts: a shift by 64 would overflow.
        self.lowest_from((number / WORD_BITS) as usize, u64::MAX << (number % WORD_BITS) << 1)
    }

    /// The lowest number from word `index` on, of whose bits only those of `mask` count.
    fn lowest_from(&self, index: usize, mask: u64) -> Option<u32> {
        let words = self.set.0.iter().enumerate().skip(index);
        let mut masked = words.map(|(at, word)| (at, if at == index { word & mask } else { *word }));
        masked.find(|(_, word)| *word != 0).map(|(at, word)| at as u32 * WORD_BITS + word.trailing_zeros())
    }

    /// The highest number in the set; `None` if it is empty.
    pub fn last(&self) -> Option<u32> {
        self.highest_up_to(self.set.0.len().saturating_sub(1), u64::MAX)
    }

    /// The next lower number in the set; `None` before the first.
    pub fn before(&self, number: u32) -> Option<u32> {
        self.highest_up_to((number / WORD_BITS) as usize, (1 << (number % WORD_BITS)) - 1)
    }

    /// The highest number up to word `index`, of whose bits only those of `mask` count.
    fn highest_up_to(&self, index: usize, mask: u64) -> Option<u32> {
        let words = self.set.0.get(..=index)?.iter().enumerate().rev();
        let mut masked = words.map(|(at, word)| (at, if at == index { word & mask } else { *word }));
        let highest = masked.find(|(_, word)| *word != 0);
        highest.map(|(at, word)| at as u32 * WORD_BITS + WORD_BITS - 1 - word.leading_zeros())
    }

    /// The numbers in the set, in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.set.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_member_of_a_complete_set_has_a_rank() {
        let mut marks = BlockSet::new(300).unwrap();
        let all = [0, 1, 63, 64, 127, 255, 299];
        all.iter().for_each(|&number| assert!(marks.set(number)));
        let ranked = RankedSet::new(marks).unwrap();
        assert_eq!(ranked.iter().collect::<Vec<_>>(), all);
        let back: Vec<u32> = std::iter::successors(ranked.last(), |&number| ranked.before(number)).collect();
        assert!(back.iter().rev().eq(&all));
        assert_eq!(ranked.count(), 7);
        (0..).zip(all).for_each(|(rank, number)| assert_eq!(ranked.rank(number), Some(rank)));
        assert_eq!((ranked.rank(2), ranked.rank(u32::MAX), ranked.has(128)), (None, None, false));
        let empty = RankedSet::default();
        assert_eq!((empty.first(), empty.last(), empty.before(9)), (None, None, None));
    }

    #[test]
    fn bits_are_a_set() {
        let mut marks = BlockSet::new(130).unwrap();
        assert!(marks.set(129) && marks.set(0) && marks.set(64) && !marks.set(64) && !marks.set(1 << 20));
        assert_eq!(marks.iter().rev().collect::<Vec<_>>(), [129, 64, 0]);
        marks.clear(64);
        assert!(marks.has(129) && !marks.has(64) && !marks.has(1 << 20));
        marks.clear_all();
        assert_eq!(marks.iter().count(), 0);
    }
}
