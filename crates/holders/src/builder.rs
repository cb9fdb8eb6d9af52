//! Sorts blocks, which several readers and workers supply in any order.

use crate::arrays::{NONE, Refused, reserved};
use crate::blocks::{self, Blocks, GRANULE_BYTES, IS_LARGE, LargeBlock, START_BITS};

/// Number of low bits of a packed block, which hold its size in granules.
const SIZE_BITS: u32 = 19;
/// First address that does not fit into the other bits of a packed block: 2^48. User memory ends
/// there or lower, unless a program asks for the higher addresses of five-level page tables.
const END_ADDRESS: u64 = GRANULE_BYTES << (u64::BITS - SIZE_BITS);
/// Size value of blocks whose size is in [`Builder::large`].
const IN_LARGE: u64 = (1 << SIZE_BITS) - 1;
/// Number of blocks in one unsorted piece.
const PIECE_BLOCKS: usize = 1 << 16;

/// Blocks that were pushed but dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Blocks that begin within an earlier block, or at the same address as a smaller one.
    pub overlapping: u64,
    /// Blocks that are empty, not aligned to [`GRANULE_BYTES`], or not below 2^48.
    pub misplaced: u64,
}

/// The size of a block that is too large to be packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct LargeSize {
    first_granule: u64,
    granules: u64,
}

/// Takes blocks in any order, at 8 bytes each. Each worker can have its own builder;
/// [`Builder::append`] joins them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Builder {
    /// Packed blocks: the first granule, and the size in granules in the low bits.
    pieces: Vec<Vec<u64>>,
    /// Sizes of blocks that are too large for that.
    large: Vec<LargeSize>,
    misplaced: u64,
}

impl Builder {
    /// Adds a block. Its size is rounded up to whole granules. [`Dropped::misplaced`] counts those
    /// that cannot be added.
    pub fn push(&mut self, start: u64, bytes: u64) {
        let granules = bytes.div_ceil(GRANULE_BYTES);
        let is_inside = start.checked_add(bytes).is_some_and(|end| end <= END_ADDRESS);
        if bytes == 0 || !start.is_multiple_of(GRANULE_BYTES) || !is_inside {
            self.misplaced += 1;
            return;
        }
        let first_granule = start / GRANULE_BYTES;
        if granules >= IN_LARGE {
            self.large.push(LargeSize { first_granule, granules });
        }
        let word = first_granule << SIZE_BITS | granules.min(IN_LARGE);
        match self.pieces.last_mut().filter(|piece| piece.len() < PIECE_BLOCKS) {
            Some(piece) => piece.push(word),
            None => {
                let mut piece = Vec::with_capacity(if self.pieces.is_empty() { 0 } else { PIECE_BLOCKS });
                piece.push(word);
                self.pieces.push(piece);
            }
        }
    }

    /// Whether it has no block.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Adds all blocks of another builder.
    pub fn append(&mut self, other: Self) {
        // This builder's last piece stays last, so that it is filled further.
        let last_piece = self.pieces.pop();
        self.pieces.extend(other.pieces);
        self.pieces.extend(last_piece);
        self.large.extend(other.large);
        self.misplaced += other.misplaced;
    }

    /// Sorts the blocks. If blocks overlap, the one that begins first stays.
    ///
    /// # Errors
    /// [`Refused::TooMany`] or [`Refused::NoMemory`].
    pub fn finish(self) -> Result<Blocks, Refused> {
        self.finish_with(NONE - 1)
    }

    /// Like [`Builder::finish`], for at most `max_count` blocks.
    fn finish_with(self, max_count: u32) -> Result<Blocks, Refused> {
        let count: usize = self.pieces.iter().map(Vec::len).sum();
        if count as u64 > u64::from(max_count) {
            return Err(Refused::TooMany { count: count as u64, max_count: max_count.into() });
        }
        let mut words = reserved(count)?;
        // Frees each piece once it is copied, so that there are never two full copies. Most pieces
        // are sorted and follow one another, so that the sort finds few runs.
        let mut pieces = self.pieces;
        pieces.sort_unstable_by_key(|piece| piece.first().copied());
        for piece in pieces {
            words.extend_from_slice(&piece);
        }
        words.sort();
        let mut large = self.large;
        large.sort_unstable();
        let mut kept_count = 0;
        let mut kept_large = Vec::new();
        let (mut end, mut next_large) = (0, 0);
        for index in 0..words.len() {
            let word = words[index];
            let (first, mut granules) = (word >> SIZE_BITS, word & IN_LARGE);
            if granules == IN_LARGE {
                while large.get(next_large).is_some_and(|large| large.first_granule < first) {
                    next_large += 1;
                }
                granules = large.get(next_large).map_or(IN_LARGE, |large| large.granules);
            }
            if first < end {
                continue;
            }
            end = first + granules;
            words[kept_count] = first;
            if granules >= u64::from(blocks::LARGE) {
                kept_large.push(LargeBlock { block: kept_count as u32, granules });
                words[kept_count] |= IS_LARGE;
            } else {
                words[kept_count] |= granules << START_BITS;
            }
            kept_count += 1;
        }
        let dropped = Dropped { overlapping: (words.len() - kept_count) as u64, misplaced: self.misplaced };
        words.truncate(kept_count);
        Blocks::new(words, kept_large, dropped)
    }
}

#[cfg(test)]
mod tests {
    use strandline_process::range::AddressRange;

    use super::*;

    #[test]
    fn blocks_beyond_the_last_number_are_refused() {
        let mut builder = Builder::default();
        (0..5).for_each(|block| builder.push(block * 16, 16));
        assert_eq!(builder.finish_with(4).err(), Some(Refused::TooMany { count: 5, max_count: 4 }));
    }

    #[test]
    fn pieces_of_workers_come_together() {
        let mut builders: Vec<Builder> = (0..3).map(|_| Builder::default()).collect();
        let count = 3 * PIECE_BLOCKS as u64 + 5;
        for block in (0..count).rev() {
            builders[(block * 7 % 3) as usize].push(0x10000 + block * 16, 16);
        }
        let mut all = Builder::default();
        builders.into_iter().for_each(|builder| all.append(builder));
        let blocks = all.finish().unwrap();
        assert_eq!(u64::from(blocks.len()), count);
        assert_eq!(blocks.dropped(), Dropped::default());
        assert!(
            blocks.iter(0).zip(0..).all(|(block, at)| block == AddressRange::sized(0x10000 + at * 16, 16))
        );
    }
}
