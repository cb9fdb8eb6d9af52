//! jemalloc's huge pages (`opt.hpa`, 5.3): regions of 2 MiB of which extents in use are cut. What is free in one has no extent,
//! and stands in two bitmaps of the region's structure; that is in jemalloc's own memory, and found there by what it says of
//! itself.

use std::time::Instant;

use super::base::Block;
use super::extents::Extent;
use super::layout::Layout;
use crate::radix::Free;
use crate::scan::each_word;
use strandline_claims::allocator::Context;
use strandline_claims::range::PAGE_BYTES;
use strandline_process::memory::word_at;

/// Bytes of such a region, and what it is aligned to (`HUGEPAGE`).
const REGION_BYTES: u64 = 2 << 20;
/// Bytes of a `hpdata_t` that are read (5.3.0, 5.3.1: `hpdata.h`), and what it is aligned to.
const STRUCTURE_BYTES: usize = 248;
const ALIGNMENT: u64 = 64;
/// `h_huge` and four more that are 0 or 1; `h_nactive` with its bitmap; `h_ntouched` with its own.
const FLAGS: std::ops::Range<usize> = 16..21;
const ACTIVE: usize = 104;
const TOUCHED: usize = 176;
const GROUPS: usize = 8;
/// Regions that are kept: two TiB of them.
const MOST_REGIONS: usize = 1 << 20;

/// What is free in huge pages, in address order, beside `extents` and what is `taken`, both in address order.
pub fn find(
    context: &Context<'_>,
    layout: &Layout,
    (extents, blocks): (&[Extent], &[Block]),
    taken: &[(u64, u64)],
) -> Vec<(u64, u64)> {
    if !extents.iter().any(|extent| layout.is_of_huge_page(extent.bits)) {
        return Vec::new();
    }
    let mut regions = regions(context, blocks);
    // Of two that say that the same region is theirs none is believed.
    regions.sort_unstable_by_key(|region| region.start);
    let mut free = Free::new(context, taken);
    let mut runs = Vec::new();
    for same in regions.chunk_by(|one, next| one.start == next.start) {
        if let [region] = same
            && free.contains(region.start, region.start + REGION_BYTES)
        {
            runs.extend(region.runs().filter(|run| is_beside(extents, *run)));
        }
    }
    runs
}

fn is_beside(extents: &[Extent], run: (u64, u64)) -> bool {
    let next = extents.partition_point(|extent| extent.end <= run.0);
    extents.get(next).is_none_or(|extent| extent.start >= run.1)
}

/// A region, as its structure has it.
struct Region {
    start: u64,
    /// A bit for each page in use.
    active: [u64; GROUPS],
}

/// All of which a structure stands in jemalloc's own memory.
fn regions(context: &Context<'_>, blocks: &[Block]) -> Vec<Region> {
    let mut regions = Vec::new();
    for block in blocks {
        each_word(context, block.start, block.start + block.used_bytes, &mut |at, word| {
            if at % ALIGNMENT == 0 && word % REGION_BYTES == 0 && word != 0 {
                let mut bytes = [0; STRUCTURE_BYTES];
                let is_read = context.memory.read(at, &mut bytes).is_ok();
                regions.extend(Region::new(&bytes).filter(|_| is_read));
            }
            regions.len() < MOST_REGIONS && Instant::now() < context.deadline
        });
    }
    regions
}

impl Region {
    /// What the structure says, if it agrees with itself (`hpdata_consistent`).
    fn new(bytes: &[u8; STRUCTURE_BYTES]) -> Option<Self> {
        let groups = |at: usize| -> Option<[u64; GROUPS]> {
            let mut groups = [0; GROUPS];
            for (index, group) in groups.iter_mut().enumerate() {
                *group = word_at(bytes, at + 8 + 8 * index)?;
            }
            let count: u64 = groups.iter().map(|group| u64::from(group.count_ones())).sum();
            (word_at(bytes, at)? == count).then_some(groups)
        };
        let (active, touched) = (groups(ACTIVE)?, groups(TOUCHED)?);
        let is_within = active.iter().zip(&touched).all(|(active, touched)| active & !touched == 0);
        let are_flags = bytes[FLAGS].iter().all(|flag| *flag <= 1);
        // Of one that was never used nothing could be told from zeros.
        let is_used = touched.iter().any(|group| *group != 0);
        (is_within && are_flags && is_used).then_some(Self { start: word_at(bytes, 0)?, active })
    }

    /// Runs of free pages.
    fn runs(&self) -> impl Iterator<Item = (u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for page in (0..64 * GROUPS).filter(|page| self.active[page / 64] >> (page % 64) & 1 == 0) {
            let start = self.start + page as u64 * PAGE_BYTES;
            match runs.last_mut().filter(|run| run.1 == start) {
                Some(run) => run.1 += PAGE_BYTES,
                None => runs.push((start, start + PAGE_BYTES)),
            }
        }
        runs.into_iter()
    }
}
