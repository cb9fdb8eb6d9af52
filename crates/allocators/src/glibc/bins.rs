//! Checks the lists that `malloc_trim` will follow, before it is called.
//!
//! The ledger needs no bins: the walk meets every free chunk. But a trim inside the target follows
//! the unsorted and the large bins, from each chunk to the one before it; over a damaged list it
//! would run forever, abort the process, or release pages in use. So before a call, and only
//! then, every link it will use is checked against its neighbours.

use super::layout;
use super::locate::{Arena, Bin};
use strandline_claims::range::RangePages;
use strandline_process::page_cache::PageCache;

/// The first bin for chunks of 1 KiB and more (`NSMALLBINS`); smaller chunks contain no whole page.
const FIRST_LARGE_BIN: usize = 64;
/// The unsorted bin.
const UNSORTED_BIN: usize = 1;

/// A place in the bins that is not as malloc leaves it.
pub struct Fault {
    /// The chunk.
    pub at: u64,
    /// Whether it is outside the known heap.
    pub is_outside: bool,
}

/// Returns the first place in the bins of `arena` that is not as malloc leaves it. `pages` are the
/// ranges of all arenas, in address order; `most` is the maximum number of free chunks.
pub fn first_fault(
    cache: &mut PageCache<'_>,
    arena: &Arena,
    pages: &[RangePages],
    most: u64,
) -> Option<Fault> {
    let followed = |bin: &&Bin| bin.index == UNSORTED_BIN || bin.index >= FIRST_LARGE_BIN;
    let mut rest = most;
    arena.bins.iter().filter(followed).find_map(|bin| fault_of(cache, bin, pages, &mut rest))
}

fn fault_of(cache: &mut PageCache<'_>, bin: &Bin, pages: &[RangePages], rest: &mut u64) -> Option<Fault> {
    let mut behind = bin.address;
    let mut chunk = bin.last;
    while chunk != bin.address {
        let is_outside = !holds(pages, chunk);
        if *rest == 0 || is_outside {
            return Some(Fault { at: chunk, is_outside });
        }
        *rest -= 1;
        let Some(before) = sound_chunk(cache, chunk, behind, pages) else {
            return Some(Fault { at: chunk, is_outside: false });
        };
        behind = chunk;
        chunk = before;
    }
    (behind != bin.first).then_some(Fault { at: behind, is_outside: false })
}

fn holds(pages: &[RangePages], address: u64) -> bool {
    let index = pages.partition_point(|range| range.end() <= address);
    address.is_multiple_of(layout::ALIGNMENT)
        && pages.get(index).is_some_and(|range| range.is_resident(address))
}

/// Returns the chunk before `chunk` in its bin; `None` unless `chunk` points to `behind` and the
/// next chunk in memory confirms that it is free, and its size.
fn sound_chunk(cache: &mut PageCache<'_>, chunk: u64, behind: u64, pages: &[RangePages]) -> Option<u64> {
    let head = cache.word(chunk + 8)?;
    let (forward, backward) = (cache.word(chunk + 16)?, cache.word(chunk + 24)?);
    let bytes = head & !layout::SIZE_BITS;
    let next = chunk.checked_add(bytes).filter(|&next| holds(pages, next))?;
    let sound = forward == behind
        && bytes >= layout::MIN_CHUNK_BYTES
        && cache.word(next)? == bytes
        && cache.word(next + 8)? & layout::PREV_INUSE == 0;
    sound.then_some(backward)
}
