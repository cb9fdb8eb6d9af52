//! Finds the few blocks that begin near an address, with three levels of tables: 1 GiB, 4 MiB, a
//! page.
//!
//! The first two levels reject most words that only look like addresses. A page is 4 KiB if the
//! tables then take at most one byte per block plus 64 MiB; if blocks are sparse, it is larger. The
//! third level takes at most 36 bytes per block, or one byte per block plus 64 MiB if that is more;
//! the levels above at most 257 MiB.

use strandline_process::range::AddressRange;

use crate::arrays::{NONE, Refused, array, push, reserved};

/// Number of bits of an address below the first level.
const TOP_SHIFT: u32 = 30;
/// Number of bits of an address below the second level: within a range.
const RANGE_SHIFT: u32 = 22;
/// Number of ranges in one entry of the first level, and entries in a second-level table.
const RANGES_PER_TABLE: usize = 1 << (TOP_SHIFT - RANGE_SHIFT);
/// Minimum number of bits of an address within a page.
const MIN_PAGE_SHIFT: u32 = 12;
/// Maximum number of bits of an address within a page: 16 bits distinguish the granules of such a
/// page.
const MAX_PAGE_SHIFT: u32 = 19;
/// Bytes of third-level tables that are always allowed.
const MIN_TABLE_BYTES: u64 = 64 << 20;
/// Flag for a range in which no block begins; the other bits are an index into
/// [`Directory::covering`].
const COVERED: u32 = 1 << 31;

/// Where to find the block that contains an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Candidates {
    /// There is no such block.
    Nothing,
    /// The blocks from `first` to before `end`, which begin in the same page, or the block before
    /// them.
    Page {
        /// The first block.
        first: u32,
        /// One past the last block.
        end: u32,
    },
    /// A block that begins in an earlier range, as an index into [`Directory::covering`].
    Covering(u32),
}

/// The three levels of tables.
#[derive(Debug, Default)]
pub struct Directory {
    /// The address bits above [`TOP_SHIFT`] of the first entry of `level1`.
    first_top: u64,
    /// First level: index of a second-level table.
    level1: Vec<u32>,
    /// Second level, [`RANGES_PER_TABLE`] entries per table: index of a third-level table, or
    /// [`COVERED`].
    level2: Vec<u32>,
    /// Third level: number of blocks that begin before each page of a range, and before its end.
    level3: Vec<u32>,
    /// Number of bits of an address within a page.
    page_shift: u32,
    /// Blocks that extend beyond the range that they begin in.
    pub covering: Vec<u32>,
}

impl Directory {
    /// Builds the tables from the addresses of blocks, which are not empty, disjoint and in address
    /// order; `count` is their number.
    ///
    /// # Errors
    /// [`Refused::NoMemory`].
    pub fn new(blocks: impl Iterator<Item = AddressRange> + Clone, count: u32) -> Result<Self, Refused> {
        let mut directory = Self { page_shift: MIN_PAGE_SHIFT, ..Self::default() };
        let (mut low, mut high, mut last_range, mut range_count) = (None, 0, None, 0_u64);
        for AddressRange { start, end } in blocks.clone() {
            low = low.or(Some(start));
            high = end - 1;
            let range = start >> RANGE_SHIFT;
            range_count += u64::from(last_range.replace(range) != Some(range));
        }
        let Some(low) = low else { return Ok(directory) };
        let max_bytes = u64::from(count) + MIN_TABLE_BYTES;
        while directory.page_shift < MAX_PAGE_SHIFT && range_count * directory.table_bytes() > max_bytes {
            directory.page_shift += 1;
        }
        directory.first_top = low >> TOP_SHIFT;
        directory.level1 = array(((high >> TOP_SHIFT) - directory.first_top) as usize + 1, NONE)?;
        directory.level3 = reserved(range_count as usize * directory.stride())?;
        directory.fill(blocks)?;
        Ok(directory)
    }

    /// Entries of a third-level table.
    #[inline]
    fn stride(&self) -> usize {
        (1 << (RANGE_SHIFT - self.page_shift)) + 1
    }

    /// Bytes of a third-level table.
    fn table_bytes(&self) -> u64 {
        (self.stride() * size_of::<u32>()) as u64
    }

    /// Index of the page of an address in its third-level table.
    #[inline]
    fn page_index(&self, address: u64) -> usize {
        // A table has one entry more than there are pages, whose number is a power of two.
        (address >> self.page_shift) as usize & (self.stride() - 2)
    }

    /// Fills in the second and third level.
    fn fill(&mut self, blocks: impl Iterator<Item = AddressRange>) -> Result<(), Refused> {
        let stride = self.stride();
        let mut last_range = None;
        let mut block = 0;
        for AddressRange { start, end } in blocks {
            let range = start >> RANGE_SHIFT;
            if last_range != Some(range) {
                self.close_table(block);
                let table = (self.level3.len() / stride) as u32;
                *self.range_entry(range)? = table;
                last_range = Some(range);
            }
            let table_start = self.level3.len() / stride * stride;
            let page = table_start + self.page_index(start);
            self.level3.resize((page + 1).max(self.level3.len()), block);
            let mut is_covering = false;
            for covered in range + 1..=(end - 1) >> RANGE_SHIFT {
                // Below COVERED: each of these blocks is the last one that begins in its range, and
                // the addresses below 2^48 are 2^26 ranges.
                let number = self.covering.len() as u32;
                *self.range_entry(covered)? = COVERED | number;
                is_covering = true;
            }
            if is_covering {
                push(&mut self.covering, block, RANGES_PER_TABLE)?;
            }
            block += 1;
        }
        self.close_table(block);
        Ok(())
    }

    /// Completes a third-level table: `count` blocks begin before its end.
    fn close_table(&mut self, count: u32) {
        let stride = self.stride();
        self.level3.resize(self.level3.len().next_multiple_of(stride), count);
    }

    /// The second-level entry of a range; creates its table if needed.
    fn range_entry(&mut self, range: u64) -> Result<&mut u32, Refused> {
        let refused = Refused::NoMemory(((self.level2.len() + RANGES_PER_TABLE) * size_of::<u32>()) as u64);
        let index = (range >> (TOP_SHIFT - RANGE_SHIFT)).wrapping_sub(self.first_top);
        // Only blocks out of address order, a misuse, are outside of the first level.
        let table = self.level1.get_mut(index as usize).ok_or(refused)?;
        if *table == NONE {
            self.level2.try_reserve(RANGES_PER_TABLE).map_err(|_| refused)?;
            *table = (self.level2.len() / RANGES_PER_TABLE) as u32;
            self.level2.resize(self.level2.len() + RANGES_PER_TABLE, NONE);
        }
        let range_index = *table as usize * RANGES_PER_TABLE + range as usize % RANGES_PER_TABLE;
        self.level2.get_mut(range_index).ok_or(refused)
    }

    /// Where to find the block that contains an address.
    #[inline]
    pub fn candidates(&self, address: u64) -> Candidates {
        let index = (address >> TOP_SHIFT).wrapping_sub(self.first_top);
        let Some(&table) = self.level1.get(index as usize) else { return Candidates::Nothing };
        // NONE is an index past all tables.
        let range_index =
            table as usize * RANGES_PER_TABLE + (address >> RANGE_SHIFT) as usize % RANGES_PER_TABLE;
        let entry = self.level2.get(range_index).copied().unwrap_or(NONE);
        if entry >= COVERED {
            return if entry == NONE { Candidates::Nothing } else { Candidates::Covering(entry & !COVERED) };
        }
        let page = entry as usize * self.stride() + self.page_index(address);
        match self.level3.get(page..page + 2) {
            Some(&[first, end]) => Candidates::Page { first, end },
            _ => Candidates::Nothing,
        }
    }
}
