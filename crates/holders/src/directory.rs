//! Finds the few blocks that begin near an address, with three levels of tables: 1 GiB, 4 MiB, a
//! page.
//!
//! The first two levels reject most words that only look like addresses. A page is 4 KiB if the
//! tables then take at most one byte per block plus 64 MiB; if blocks are sparse, it is larger.
//! Tables take at most 36 bytes per block, plus 257 MiB for the levels above.

use crate::arrays::{NONE, Refused, array, reserved};

/// Bits of an address below the first level.
const TOP_SHIFT: u32 = 30;
/// Bits of an address below the second level.
const RANGE_SHIFT: u32 = 22;
/// Number of ranges in one entry of the first level.
const RANGES: usize = 1 << (TOP_SHIFT - RANGE_SHIFT);
/// Minimum and maximum bits of a page. Granules of the largest page are distinguished by 16 bits.
const PAGE_SHIFTS: (u32, u32) = (12, 19);
/// Bytes of tables that are always allowed.
const FREE_BYTES: u64 = 64 << 20;
/// Flag for a range in which no block begins; the other bits are an index into
/// [`Directory::covering`].
const COVERED: u32 = 1 << 31;

/// Where to find the block that contains an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Near {
    /// There is no such block.
    Nothing,
    /// Blocks that begin in the same page, from one number to before another, or the block before
    /// them.
    Page(u32, u32),
    /// A block that begins in an earlier range, as an index into [`Directory::covering`].
    Covering(u32),
}

/// The three levels of tables.
#[derive(Debug, Default)]
pub struct Directory {
    /// The address bits above [`TOP_SHIFT`] of the first entry.
    low: u64,
    /// First level: index of a second-level table.
    tops: Vec<u32>,
    /// Second level, [`RANGES`] entries per table: index of a third-level table, or [`COVERED`].
    ranges: Vec<u32>,
    /// Third level: number of blocks that begin before each page of a range, and before its end.
    pages: Vec<u32>,
    page_shift: u32,
    /// Blocks that extend into ranges in which no block begins.
    pub covering: Vec<u32>,
}

impl Directory {
    /// Builds the tables from starts and ends of blocks in address order.
    pub fn new(blocks: impl Iterator<Item = (u64, u64)> + Clone, count: u32) -> Result<Self, Refused> {
        let mut directory = Self { page_shift: PAGE_SHIFTS.0, ..Self::default() };
        let (mut low, mut high, mut last, mut ranges) = (None, 0, None, 0_u64);
        for (start, end) in blocks.clone() {
            low = low.or(Some(start));
            high = end - 1;
            ranges += u64::from(last.replace(start >> RANGE_SHIFT) != Some(start >> RANGE_SHIFT));
        }
        let Some(low) = low else { return Ok(directory) };
        let most = u64::from(count) + FREE_BYTES;
        while directory.page_shift < PAGE_SHIFTS.1 && ranges * directory.stride() as u64 * 4 > most {
            directory.page_shift += 1;
        }
        directory.low = low >> TOP_SHIFT;
        directory.tops = array(((high >> TOP_SHIFT) - directory.low) as usize + 1, NONE)?;
        directory.pages = reserved(ranges as usize * directory.stride())?;
        directory.fill(blocks)?;
        Ok(directory)
    }

    /// Entries of a third-level table.
    fn stride(&self) -> usize {
        (1 << (RANGE_SHIFT - self.page_shift)) + 1
    }

    fn fill(&mut self, blocks: impl Iterator<Item = (u64, u64)>) -> Result<(), Refused> {
        let stride = self.stride();
        let mut last = None;
        let mut count = 0;
        for (start, end) in blocks {
            let range = start >> RANGE_SHIFT;
            if last != Some(range) {
                self.close(count);
                let table = (self.pages.len() / stride) as u32;
                *self.range(range)? = table;
                last = Some(range);
            }
            let table = self.pages.len() / stride * stride;
            let page = (start >> self.page_shift) as usize & (stride - 2);
            self.pages.resize((table + page + 1).max(self.pages.len()), count);
            let mut is_covering = false;
            for covered in range + 1..=(end - 1) >> RANGE_SHIFT {
                let number = self.covering.len() as u32;
                *self.range(covered)? = COVERED | number;
                is_covering = true;
            }
            if is_covering {
                self.covering.push(count);
            }
            count += 1;
        }
        self.close(count);
        Ok(())
    }

    /// Completes a third-level table: `count` blocks begin before its end.
    fn close(&mut self, count: u32) {
        let stride = self.stride();
        self.pages.resize(self.pages.len().next_multiple_of(stride), count);
    }

    /// The second-level entry of a range; creates its table if needed.
    fn range(&mut self, range: u64) -> Result<&mut u32, Refused> {
        let refused = Refused::NoMemory(RANGES as u64 * 4);
        let index = (range >> (TOP_SHIFT - RANGE_SHIFT)).wrapping_sub(self.low);
        let top = self.tops.get_mut(index as usize).ok_or(refused)?;
        if *top == NONE {
            *top = (self.ranges.len() / RANGES) as u32;
            self.ranges.try_reserve(RANGES).map_err(|_| refused)?;
            self.ranges.resize(self.ranges.len() + RANGES, NONE);
        }
        self.ranges.get_mut(*top as usize * RANGES + range as usize % RANGES).ok_or(refused)
    }

    /// Where to find the block that contains an address.
    #[inline]
    pub fn near(&self, address: u64) -> Near {
        let top = (address >> TOP_SHIFT).wrapping_sub(self.low);
        let Some(&top) = self.tops.get(top as usize) else { return Near::Nothing };
        // NONE is an index past all tables.
        let range = top as usize * RANGES + (address >> RANGE_SHIFT) as usize % RANGES;
        let entry = self.ranges.get(range).copied().unwrap_or(NONE);
        if entry >= COVERED {
            return if entry == NONE { Near::Nothing } else { Near::Covering(entry & !COVERED) };
        }
        let stride = self.stride();
        let page = entry as usize * stride + ((address >> self.page_shift) as usize & (stride - 2));
        match self.pages.get(page..page + 2) {
            Some(&[from, to]) => Near::Page(from, to),
            _ => Near::Nothing,
        }
    }
}
