//! jemalloc's huge pages (`opt.hpa`, 5.3): 2 MiB regions from which extents are cut. Free parts
//! have no extent; two bitmaps of the region's structure describe them. That structure is in
//! jemalloc's base blocks and is recognised by its consistency.

use super::base::Block;
use super::extents::Extent;
use super::layout::Layout;
use crate::radix::UnclaimedMemory;
use crate::scan::{DeadlineCheck, each_word};
use strandline_claims::allocator::Context;
use strandline_claims::bits;
use strandline_claims::doubts::ReadProblems;
use strandline_process::memory::word_at;
use strandline_process::pages::{PAGE_BYTES, USER_ADDRESS_END};
use strandline_process::range::{AddressRange, RangeSet};

/// Size and alignment of a region (`HUGEPAGE`).
const REGION_BYTES: u64 = 2 << 20;
/// Bytes read of an `hpdata_t` (5.3.0, 5.3.1: `hpdata.h`), the structure of a region; it begins
/// with the region's address.
const STRUCTURE_BYTES: usize = 248;
/// Alignment of an `hpdata_t`.
const ALIGNMENT: u64 = 64;
/// Offsets of `h_huge` and nine more flags that are 0 or 1.
const FLAGS: [usize; 10] = [16, 17, 18, 19, 20, 32, 33, 34, 35, 36];
/// Offset of `h_longest_free_range`, in pages.
const LONGEST_FREE: usize = 96;
/// Offset of `h_nactive`, the number of pages in use; their bitmap follows.
const ACTIVE: usize = 104;
/// Offset of `h_ntouched`, the number of pages ever used; their bitmap follows.
const TOUCHED: usize = 176;
/// Words of a bitmap, with one bit per page.
const BITMAP_WORDS: usize = 8;
/// Maximum regions kept: 2 TiB. With more, the free pages of the others count as damage.
const MAX_REGIONS: usize = 1 << 20;

/// Free memory in huge pages.
#[derive(Default)]
pub struct FreePages {
    /// Runs of free pages, in address order.
    pub runs: Vec<AddressRange>,
    /// Resident bytes of these runs.
    pub resident_bytes: u64,
    /// Regions that contradict extents or each other, and where the deadline passed.
    pub doubts: ReadProblems,
    /// Bytes read from the target.
    pub bytes_read: u64,
}

impl FreePages {
    /// Returns the runs as extents.
    pub fn extents(&self) -> impl Iterator<Item = Extent> {
        self.runs.iter().map(|&AddressRange { start, end }| Extent {
            start,
            end,
            structure: None,
            pointer: start,
            bits: 0,
        })
    }
}

/// Finds the free pages outside `extents` (in address order), `taken` and `blocks`, which hold the
/// structures.
pub fn find(
    context: &Context<'_>,
    layout: &Layout,
    extents: &[Extent],
    blocks: &[Block],
    taken: &RangeSet,
) -> FreePages {
    let mut free_pages = FreePages::default();
    if !extents.iter().any(|extent| layout.is_of_huge_page(extent.bits)) {
        return free_pages;
    }
    let mut regions = find_regions(context, blocks, &mut free_pages);
    regions.sort_unstable_by_key(|region| region.start);
    let mut taken = taken.clone();
    taken.add(blocks.iter().map(|block| block.range));
    let mut unclaimed = UnclaimedMemory::new(context, &taken);
    for duplicates in regions.chunk_by(|region, next| region.start == next.start) {
        let Some(region) = duplicates.first() else { continue };
        if context.deadline_passed() {
            free_pages.doubts.note_timeout(region.start);
            break;
        }
        let runs = region.free_runs();
        // A region with two structures, or with memory in other use, is rejected.
        let is_valid = duplicates.len() == 1
            && unclaimed.contains(AddressRange::sized(region.start, REGION_BYTES))
            && runs.iter().all(|run| is_outside(extents, *run));
        if !is_valid {
            free_pages.doubts.note_damage(region.start, 0);
            continue;
        }
        free_pages.resident_bytes += runs.iter().map(|run| context.resident_bytes(*run)).sum::<u64>();
        free_pages.runs.extend(runs);
    }
    free_pages
}

fn is_outside(extents: &[Extent], run: AddressRange) -> bool {
    let next = extents.partition_point(|extent| extent.end <= run.start);
    extents.get(next).is_none_or(|extent| extent.start >= run.end)
}

/// A region, as its structure describes it.
struct Region {
    start: u64,
    /// One bit per page, set if it is in use.
    used_pages: [u64; BITMAP_WORDS],
}

/// Returns all regions whose structure is in `blocks`.
fn find_regions(context: &Context<'_>, blocks: &[Block], free_pages: &mut FreePages) -> Vec<Region> {
    let mut regions = Vec::new();
    let mut deadline = DeadlineCheck::new(context);
    for block in blocks {
        let mut is_late = context.deadline_passed();
        let mut is_full = false;
        each_word(context, AddressRange::sized(block.range.start, block.used_bytes), &mut |at, word| {
            if at % ALIGNMENT == 0 && word % REGION_BYTES == 0 && word < USER_ADDRESS_END {
                is_late |= deadline.passed();
                let mut bytes = [0; STRUCTURE_BYTES];
                if context.memory.read(at, &mut bytes).is_ok() {
                    regions.extend(Region::new(&bytes));
                }
                is_full = regions.len() >= MAX_REGIONS;
            }
            !is_full && !is_late
        });
        free_pages.bytes_read += block.used_bytes;
        if is_late {
            free_pages.doubts.note_timeout(block.range.start);
            break;
        }
        if is_full {
            free_pages.doubts.note_damage(block.range.start, 0);
            break;
        }
    }
    regions
}

impl Region {
    /// Parses a structure; `None` if it is inconsistent (`hpdata_consistent`).
    fn new(bytes: &[u8; STRUCTURE_BYTES]) -> Option<Self> {
        let bitmap_after_count = |count_offset: usize| -> Option<[u64; BITMAP_WORDS]> {
            let mut bitmap = [0; BITMAP_WORDS];
            for (index, word) in bitmap.iter_mut().enumerate() {
                *word = word_at(bytes, count_offset + 8 + 8 * index)?;
            }
            let count: u64 = bitmap.iter().map(|word| u64::from(word.count_ones())).sum();
            (word_at(bytes, count_offset)? == count).then_some(bitmap)
        };
        let (used_pages, touched_pages) = (bitmap_after_count(ACTIVE)?, bitmap_after_count(TOUCHED)?);
        let is_within = used_pages.iter().zip(&touched_pages).all(|(used, touched)| used & !touched == 0);
        let has_valid_flags = FLAGS.iter().all(|&flag| bytes[flag] <= 1);
        // The structure of a region that was never used cannot be distinguished from zeros.
        let is_used = touched_pages.iter().any(|word| *word != 0);
        let start = word_at(bytes, 0).filter(|&start| start < USER_ADDRESS_END)?;
        let region = Self { start, used_pages };
        let longest_pages = region.free_runs().iter().map(|run| run.len() / PAGE_BYTES).max().unwrap_or(0);
        let is_consistent =
            is_within && has_valid_flags && is_used && word_at(bytes, LONGEST_FREE) == Some(longest_pages);
        is_consistent.then_some(region)
    }

    /// Returns the runs of free pages.
    fn free_runs(&self) -> RangeSet {
        let is_free = |page: &usize| !bits::has(&self.used_pages, *page);
        let pages = (0..64 * BITMAP_WORDS).filter(is_free);
        pages.map(|page| AddressRange::sized(self.start + page as u64 * PAGE_BYTES, PAGE_BYTES)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The structure of the region at `start`: three pages are in use, the fourth was.
    fn structure(start: u64) -> [u8; STRUCTURE_BYTES] {
        let mut bytes = [0; STRUCTURE_BYTES];
        let words =
            [(0, start), (LONGEST_FREE, 509), (ACTIVE, 3), (ACTIVE + 8, 7), (TOUCHED, 4), (TOUCHED + 8, 15)];
        for (at, word) in words {
            bytes[at..at + 8].copy_from_slice(&u64::to_le_bytes(word));
        }
        bytes
    }

    #[test]
    fn free_pages_are_those_that_are_not_in_use() {
        let region = Region::new(&structure(0x7f00_0020_0000)).unwrap();
        assert_eq!(*region.free_runs(), [AddressRange::new(0x7f00_0020_3000, 0x7f00_0040_0000)]);
    }

    #[test]
    fn inconsistent_structures_are_rejected() {
        for (at, byte) in [(ACTIVE, 4), (ACTIVE + 8, 8), (TOUCHED, 3), (LONGEST_FREE, 1), (16, 2), (36, 9)] {
            let mut bytes = structure(0x7f00_0020_0000);
            bytes[at] = byte;
            assert!(Region::new(&bytes).is_none(), "{at}");
        }
        assert!(Region::new(&[0; STRUCTURE_BYTES]).is_none());
    }
}
