//! A bit for each block.

use crate::arrays::{Refused, array};

/// A set of blocks, a bit each.
#[derive(Clone, Debug)]
pub struct Marks(Vec<u64>);

impl Marks {
    /// None of so many blocks.
    pub fn new(blocks: u32) -> Result<Self, Refused> {
        array(blocks.div_ceil(64) as usize, 0).map(Self)
    }

    /// Puts one in; whether it was not in before. One that is none of the blocks is never in.
    #[inline]
    pub fn set(&mut self, block: u32) -> bool {
        let bit = 1 << (block % 64);
        let Some(word) = self.0.get_mut((block / 64) as usize) else { return false };
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }

    /// Takes one out.
    #[inline]
    pub fn clear(&mut self, block: u32) {
        if let Some(word) = self.0.get_mut((block / 64) as usize) {
            *word &= !(1 << (block % 64));
        }
    }

    /// Takes all out.
    pub fn clear_all(&mut self) {
        self.0.fill(0);
    }

    /// Whether one is in.
    #[inline]
    pub fn has(&self, block: u32) -> bool {
        self.0.get((block / 64) as usize).is_some_and(|word| word >> (block % 64) & 1 != 0)
    }

    /// All that are in, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = u32> + '_ {
        let words = self.0.iter().enumerate().filter(|(_, word)| **word != 0);
        words.flat_map(|(index, word)| {
            let bits = (0..64).filter(move |bit| word >> bit & 1 != 0);
            bits.map(move |bit| index as u32 * 64 + bit)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_a_set() {
        let mut marks = Marks::new(130).unwrap();
        assert!(marks.set(129) && marks.set(0) && marks.set(64) && !marks.set(64) && !marks.set(1 << 20));
        assert_eq!(marks.iter().rev().collect::<Vec<_>>(), [129, 64, 0]);
        marks.clear(64);
        assert!(marks.has(129) && !marks.has(64) && !marks.has(1 << 20));
        marks.clear_all();
        assert_eq!(marks.iter().count(), 0);
    }
}
