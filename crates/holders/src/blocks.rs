//! The live blocks of a heap in address order, at 4 bytes each, with lookup by address.
//!
//! The number of a block is its index in address order. Stored are 16 bits of the start, which
//! identify a granule within 512 KiB, and 16 bits of the size; larger sizes are in a list. A lookup
//! goes through the [`Directory`] to a page, and then searches the blocks that begin there, in one
//! or two cache lines.

use strandline_process::range::AddressRange;
use strandline_sys::own_memory::prefetch;

use crate::arrays::{Refused, reserved};
use crate::builder::Dropped;
use crate::directory::{Candidates, Directory};

/// Starts and sizes of blocks are multiples of this.
pub const GRANULE_BYTES: u64 = 8;
/// Marks a size of at least this number of granules.
pub const LARGE: u16 = u16::MAX;
/// Number of bits of an address within a region; the bits above are stored once per region.
const REGION_SHIFT: u32 = 19;
/// Number of addresses that are looked up together.
const BATCH: usize = 64;
/// Up to this many blocks of a page are searched linearly.
const MAX_LINEAR: usize = 32;
/// Number of bits of an address within a granule.
const GRANULE_SHIFT: u32 = GRANULE_BYTES.trailing_zeros();
/// Number of low bits of a packed block, which hold its first granule: enough for addresses below
/// 2^48. The 16 bits above hold its size.
pub(crate) const START_BITS: u32 = 48 - GRANULE_SHIFT;
/// Flag of a packed block whose size is in the list of large ones.
pub(crate) const IS_LARGE: u64 = 1 << 63;

/// Start and size of a block.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Start within its region, in granules.
    start: u16,
    /// Size in granules, or [`LARGE`].
    granules: u16,
}

/// A block of at least [`LARGE`] granules.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LargeBlock {
    pub block: u32,
    /// Size in granules.
    pub granules: u64,
}

/// A region with blocks.
#[derive(Clone, Copy, Debug)]
struct Region {
    first_block: u32,
    /// The bits of its addresses above [`REGION_SHIFT`].
    number: u32,
}

/// The live blocks of a heap.
#[derive(Debug)]
pub struct Blocks {
    /// Start and size side by side: a lookup needs both.
    entries: Vec<Entry>,
    /// In address order.
    large: Vec<LargeBlock>,
    /// The regions with blocks, in order.
    regions: Vec<Region>,
    directory: Directory,
    /// Start of the first block.
    first_start: u64,
    /// Bytes from there to the end of the last block.
    span_bytes: u64,
    /// Bytes of all blocks.
    total_bytes: u64,
    dropped: Dropped,
}

impl Blocks {
    /// Takes packed blocks in address order: the first granule in [`START_BITS`], above it the size
    /// in granules, and the flag [`IS_LARGE`] for blocks in `large`.
    pub(crate) fn new(words: Vec<u64>, large: Vec<LargeBlock>, dropped: Dropped) -> Result<Self, Refused> {
        let count = words.len();
        let (mut entries, mut regions) = (reserved(count)?, Vec::new());
        let ranges = || {
            let mut large = large.iter();
            words.iter().map(move |word| {
                let start = word & ((1 << START_BITS) - 1);
                let granules = match word & IS_LARGE {
                    0 => word >> START_BITS & u64::from(LARGE),
                    _ => large.next().map_or(1, |large| large.granules),
                };
                AddressRange::new(start << GRANULE_SHIFT, (start + granules) << GRANULE_SHIFT)
            })
        };
        let (mut total_bytes, mut end) = (0, 0);
        for (index, block) in ranges().enumerate() {
            let number = (block.start >> REGION_SHIFT) as u32;
            if regions.last().is_none_or(|last: &Region| last.number != number) {
                regions.push(Region { first_block: index as u32, number });
            }
            let granules = (block.len() >> GRANULE_SHIFT).min(u64::from(LARGE)) as u16;
            entries.push(Entry { start: (block.start >> GRANULE_SHIFT) as u16, granules });
            total_bytes += block.len();
            end = block.end;
        }
        let first_start = ranges().next().map_or(0, |first| first.start);
        let directory = Directory::new(ranges(), count as u32)?;
        drop(words);
        let span_bytes = end - first_start;
        Ok(Self { entries, large, regions, directory, first_start, span_bytes, total_bytes, dropped })
    }

    /// Number of blocks.
    pub fn len(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Whether there are no blocks.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes of all blocks.
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Blocks that were pushed but dropped.
    pub fn dropped(&self) -> Dropped {
        self.dropped
    }

    /// The addresses from the start of the first block to the end of the last.
    #[inline]
    pub fn span(&self) -> AddressRange {
        AddressRange::sized(self.first_start, self.span_bytes)
    }

    /// Size of a block in bytes; 0 if there is no such block.
    #[inline]
    pub fn bytes(&self, block: u32) -> u64 {
        self.granules(block) << GRANULE_SHIFT
    }

    /// Prefetches the start and size of a block.
    #[inline]
    pub(crate) fn prefetch(&self, block: u32) {
        prefetch(&self.entries, block as usize);
    }

    /// Size of a block in granules; 0 if there is no such block.
    #[inline]
    fn granules(&self, block: u32) -> u64 {
        let granules = self.entries.get(block as usize).map_or(0, |entry| entry.granules);
        if granules == LARGE { self.large_granules(block) } else { u64::from(granules) }
    }

    /// Size in granules of a block that is in the list of large ones.
    #[cold]
    fn large_granules(&self, block: u32) -> u64 {
        let index = self.large.binary_search_by_key(&block, |large| large.block);
        index.ok().and_then(|index| self.large.get(index)).map_or(0, |large| large.granules)
    }

    /// Start of a block; the highest address if there is no such block.
    pub fn start(&self, block: u32) -> u64 {
        let region = self.regions.partition_point(|region| region.first_block <= block).wrapping_sub(1);
        match (self.regions.get(region), self.entries.get(block as usize)) {
            (Some(region), Some(entry)) => address(region.number, entry.start),
            _ => u64::MAX,
        }
    }

    /// The block that contains an address; its end is not part of it.
    #[inline]
    pub fn find(&self, address: u64) -> Option<u32> {
        if address.wrapping_sub(self.first_start) >= self.span_bytes {
            return None;
        }
        self.find_among(self.directory.candidates(address), address)
    }

    /// Like [`Blocks::find`] for several addresses at once, so that their cache misses overlap.
    /// Calls `visit` with the index of each address that is in a block, and the block.
    pub fn find_each(&self, addresses: &[u64], mut visit: impl FnMut(usize, u32)) {
        let mut candidates = [Candidates::Nothing; BATCH];
        for (group, addresses) in addresses.chunks(BATCH).enumerate() {
            for (candidate, &address) in candidates.iter_mut().zip(addresses) {
                let is_inside = address.wrapping_sub(self.first_start) < self.span_bytes;
                *candidate = if is_inside { self.directory.candidates(address) } else { Candidates::Nothing };
            }
            for (index, (&candidate, &address)) in candidates.iter().zip(addresses).enumerate() {
                if let Some(block) = self.find_among(candidate, address) {
                    visit(group * BATCH + index, block);
                }
            }
        }
    }

    /// The block that contains an address, given its candidates.
    #[inline]
    fn find_among(&self, candidates: Candidates, address: u64) -> Option<u32> {
        match candidates {
            Candidates::Nothing => None,
            Candidates::Page { first, end } => {
                let granule = (address >> GRANULE_SHIFT) as u16;
                let entries = self.entries.get(first as usize..end as usize)?;
                // A linear count over few blocks needs no branches.
                let begun_count = if entries.len() <= MAX_LINEAR {
                    entries.iter().map(|entry| u32::from(entry.start <= granule)).sum()
                } else {
                    entries.partition_point(|entry| entry.start <= granule) as u32
                };
                if begun_count == 0 {
                    return self.containing(first.checked_sub(1)?, address);
                }
                let block = first + begun_count - 1;
                let entry = entries.get(begun_count as usize - 1)?;
                let distance = granule - entry.start;
                let is_inside = distance < entry.granules
                    || entry.granules == LARGE && u64::from(distance) < self.large_granules(block);
                is_inside.then_some(block)
            }
            Candidates::Covering(number) => {
                self.containing(*self.directory.covering.get(number as usize)?, address)
            }
        }
    }

    /// A block that begins in an earlier page, if it extends to the address.
    #[inline(never)]
    fn containing(&self, block: u32, address: u64) -> Option<u32> {
        (address - self.start(block) < self.bytes(block)).then_some(block)
    }

    /// The addresses of each block in order, from block `from` on.
    pub fn iter(&self, from: u32) -> impl Iterator<Item = AddressRange> + '_ {
        let mut region = self.regions.partition_point(|region| region.first_block <= from).saturating_sub(1);
        (from..self.len()).map(move |block| {
            if self.regions.get(region + 1).is_some_and(|next| next.first_block <= block) {
                region += 1;
            }
            let start = self.entries.get(block as usize).map_or(0, |entry| entry.start);
            let region = self.regions.get(region).map_or(0, |region| region.number);
            AddressRange::sized(address(region, start), self.bytes(block))
        })
    }
}

/// The address of a granule of a region.
fn address(region: u32, start: u16) -> u64 {
    u64::from(region) << REGION_SHIFT | u64::from(start) << GRANULE_SHIFT
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::Builder;
    use proptest::prelude::*;

    /// Start and size of each block.
    fn listed(blocks: &Blocks) -> Vec<(u64, u64)> {
        blocks.iter(0).map(|block| (block.start, block.len())).collect()
    }

    fn blocks(pushed: &[(u64, u64)]) -> Blocks {
        let mut builder = Builder::default();
        pushed.iter().for_each(|&(start, bytes)| builder.push(start, bytes));
        builder.finish().unwrap()
    }

    #[test]
    fn an_address_is_in_a_block_up_to_its_end() {
        let blocks = blocks(&[(0x7000_0000_1000, 24), (0x1000, 16), (0x1010, 8)]);
        let find = |address| blocks.find(address);
        assert_eq!(
            (find(0xfff), find(0x1000), find(0x100f), find(0x1010)),
            (None, Some(0), Some(0), Some(1))
        );
        assert_eq!((find(0x1017), find(0x1018), find(0x7000_0000_1017)), (Some(1), None, Some(2)));
        assert_eq!((find(0x7000_0000_1018), find(u64::MAX), find(0)), (None, None, None));
        assert_eq!((blocks.start(2), blocks.bytes(2)), (0x7000_0000_1000, 24));
        assert_eq!((blocks.start(3), blocks.bytes(3)), (u64::MAX, 0));
    }

    #[test]
    fn large_blocks_are_found_in_ranges_without_a_block_start() {
        let tib = 1 << 40;
        let pushed =
            [(0x10, 16), (0x20, tib), (tib + 0x20, 16), (3 * tib, 600 << 10), (4 * tib, (512 << 10) - 8)];
        let blocks = blocks(&pushed);
        assert_eq!(listed(&blocks), pushed);
        for (block, (start, bytes)) in pushed.into_iter().enumerate() {
            for address in [start, start + bytes / 2, start + bytes - 1] {
                assert_eq!(blocks.find(address), Some(block as u32), "{address:#x}");
            }
        }
        assert_eq!((blocks.find(2 * tib), blocks.find(4 * tib - 1)), (None, None));
    }

    #[test]
    fn overlapping_and_misplaced_blocks_are_dropped() {
        let pushed =
            [(0x100, 32), (0x110, 32), (0x100, 48), (0x120, 8), (4, 8), (8, 0), (1 << 48, 8), (!7, 8)];
        let blocks = blocks(&pushed);
        assert_eq!(listed(&blocks), [(0x100, 32), (0x120, 8)]);
        assert_eq!(blocks.dropped(), Dropped { overlapping: 2, misplaced: 4 });
        assert!(Builder::default().finish().unwrap().find(0).is_none());
    }

    #[test]
    fn a_sparse_address_space_takes_little_memory() {
        // 200000 blocks, 4 MiB apart: tables with pages of 4 KiB would take 800 MiB.
        let pushed: Vec<_> = (0..200_000).map(|block| (block << 22, 64)).collect();
        let blocks = blocks(&pushed);
        assert_eq!(blocks.find((1234 << 22) + 63), Some(1234));
        assert_eq!(blocks.find((1234 << 22) + 64), None);
    }

    proptest! {
        #[test]
        fn find_equals_a_linear_search(
            pushed in prop::collection::vec((0..4_u64, 0..200_u64, 1..90_u64, 0..20_u32), 0..60),
            asked in prop::collection::vec((0..4_u64, 0..1700_u64), 60),
        ) {
            let base = [0x1000, 0x7_fe00, 0x3f_ff00, 0x7fff_ffff_f000 & !0xfff_ffff];
            let pushed: Vec<(u64, u64)> = pushed
                .iter()
                .map(|&(area, at, granules, shift)| (base[area as usize] + at * 8, granules << shift << 3))
                .collect();
            let mut sorted = pushed.clone();
            sorted.sort_unstable();
            let mut expected: Vec<(u64, u64)> = Vec::new();
            for (start, bytes) in sorted {
                if expected.last().is_none_or(|last| last.0 + last.1 <= start) {
                    expected.push((start, bytes));
                }
            }
            let blocks = blocks(&pushed);
            prop_assert_eq!(listed(&blocks), expected.clone());
            let edges = expected.iter().flat_map(|&(start, bytes)| [start, start + bytes - 1, start + bytes, start + bytes / 3]);
            for address in asked.iter().map(|&(area, at)| base[area as usize] + at).chain(edges) {
                let found = expected.iter().position(|&(start, bytes)| (start..start + bytes).contains(&address));
                prop_assert_eq!(blocks.find(address), found.map(|found| found as u32));
            }
            for (block, &(start, bytes)) in expected.iter().enumerate() {
                prop_assert_eq!((blocks.start(block as u32), blocks.bytes(block as u32)), (start, bytes));
            }
        }
    }
}
