//! Checks the lists that `malloc_trim` will follow, before it is called.
//!
//! The ledger needs no bins: the walk meets every free chunk. But a trim inside the target follows
//! the unsorted and the large bins, from each chunk to the one before it; over a damaged list it
//! would run forever, abort the process, or release pages in use. So before a call, and only
//! then, the links of these bins are checked against their neighbours. Those of small bins, of
//! which consolidation uses a few, are not: a bin can have millions of chunks.

use super::layout;
use super::locate::{Arena, Bin};
use crate::scan::DeadlineCheck;
use strandline_claims::allocator::{CallHazard, HazardCause};
use strandline_claims::range::RangePages;
use strandline_process::page_cache::PageCache;

/// The first bin for chunks of 1 KiB and more (`NSMALLBINS`); smaller chunks contain no whole page.
const FIRST_LARGE_BIN: usize = 64;
/// The unsorted bin.
const UNSORTED_BIN: usize = 1;

/// A check of the bins of all arenas.
pub struct Check<'a> {
    /// Checked at each chunk.
    pub deadline: DeadlineCheck<'a>,
    /// The target's memory.
    pub cache: PageCache<'a>,
    /// The ranges of all arenas, in address order.
    pub pages: &'a [RangePages],
    /// Maximum number of chunks in one arena.
    pub max_chunks: u64,
}

impl Check<'_> {
    /// Returns the first inconsistent place in the bins of `arena`, or where the deadline passed.
    pub fn first_hazard(&mut self, arena: &Arena) -> Option<CallHazard> {
        let is_followed = |bin: &&Bin| bin.index == UNSORTED_BIN || bin.index >= FIRST_LARGE_BIN;
        let mut remaining_chunks = self.max_chunks;
        let mut bins = arena.bins.iter().filter(is_followed);
        bins.find_map(|bin| self.hazard_in(bin, &mut remaining_chunks))
    }

    /// Like [`Check::first_hazard`], for one bin; counts its chunks down.
    fn hazard_in(&mut self, bin: &Bin, remaining_chunks: &mut u64) -> Option<CallHazard> {
        let hazard = |at, cause| Some(CallHazard { at, cause });
        let mut following = bin.address;
        let mut chunk = bin.last_chunk;
        while chunk != bin.address {
            if !holds(self.pages, chunk) {
                return hazard(chunk, HazardCause::Outside);
            }
            if self.deadline.passed() {
                return hazard(chunk, HazardCause::TooSlow);
            }
            let previous = previous_in_bin(&mut self.cache, chunk, following, self.pages);
            let (Some(previous), Some(remaining_after)) = (previous, remaining_chunks.checked_sub(1)) else {
                return hazard(chunk, HazardCause::Broken);
            };
            *remaining_chunks = remaining_after;
            following = chunk;
            chunk = previous;
        }
        if following == bin.first_chunk { None } else { hazard(following, HazardCause::Broken) }
    }
}

/// Whether a chunk may be at `address`: aligned, resident, in an arena.
fn holds(pages: &[RangePages], address: u64) -> bool {
    let index = pages.partition_point(|range| range.end() <= address);
    address.is_multiple_of(layout::ALIGNMENT)
        && pages.get(index).is_some_and(|range| range.is_resident(address))
}

/// Returns the chunk before `chunk` in its bin; `None` unless `chunk` points to `following` and the
/// next chunk in memory confirms that it is free, and its size.
fn previous_in_bin(
    cache: &mut PageCache<'_>,
    chunk: u64,
    following: u64,
    pages: &[RangePages],
) -> Option<u64> {
    let head = cache.word(chunk + layout::CHUNK_SIZE)?;
    let (forward, backward) =
        (cache.word(chunk + layout::CHUNK_FORWARD)?, cache.word(chunk + layout::CHUNK_BACKWARD)?);
    let bytes = head & !layout::SIZE_BITS;
    let next = chunk.checked_add(bytes).filter(|&next| holds(pages, next))?;
    let is_sound = forward == following
        && bytes >= layout::MIN_CHUNK_BYTES
        && cache.word(next)? == bytes
        && cache.word(next + layout::CHUNK_SIZE)? & layout::PREV_INUSE == 0;
    is_sound.then_some(backward)
}
