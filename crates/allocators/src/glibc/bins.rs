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

/// An inconsistent place in the bins.
pub struct Fault {
    /// The chunk.
    pub at: u64,
    /// Whether it is outside the known heap.
    pub is_outside: bool,
}

/// Returns the first inconsistent place in the bins of `arena`. `pages` are the ranges of all
/// arenas, in address order.
pub fn first_fault(
    cache: &mut PageCache<'_>,
    arena: &Arena,
    pages: &[RangePages],
    max_chunks: u64,
) -> Option<Fault> {
    let is_followed = |bin: &&Bin| bin.index == UNSORTED_BIN || bin.index >= FIRST_LARGE_BIN;
    let mut remaining_chunks = max_chunks;
    let mut bins = arena.bins.iter().filter(is_followed);
    bins.find_map(|bin| fault_in(cache, bin, pages, &mut remaining_chunks))
}

fn fault_in(
    cache: &mut PageCache<'_>,
    bin: &Bin,
    pages: &[RangePages],
    remaining_chunks: &mut u64,
) -> Option<Fault> {
    let mut following = bin.address;
    let mut chunk = bin.last;
    while chunk != bin.address {
        let is_outside = !holds(pages, chunk);
        if *remaining_chunks == 0 || is_outside {
            return Some(Fault { at: chunk, is_outside });
        }
        *remaining_chunks -= 1;
        let Some(previous) = sound_chunk(cache, chunk, following, pages) else {
            return Some(Fault { at: chunk, is_outside: false });
        };
        following = chunk;
        chunk = previous;
    }
    (following != bin.first).then_some(Fault { at: following, is_outside: false })
}

fn holds(pages: &[RangePages], address: u64) -> bool {
    let index = pages.partition_point(|range| range.end() <= address);
    address.is_multiple_of(layout::ALIGNMENT)
        && pages.get(index).is_some_and(|range| range.is_resident(address))
}

/// Returns the chunk before `chunk` in its bin; `None` unless `chunk` points to `following` and the
/// next chunk in memory confirms that it is free, and its size.
fn sound_chunk(cache: &mut PageCache<'_>, chunk: u64, following: u64, pages: &[RangePages]) -> Option<u64> {
    let head = cache.word(chunk + 8)?;
    let (forward, backward) = (cache.word(chunk + 16)?, cache.word(chunk + 24)?);
    let bytes = head & !layout::SIZE_BITS;
    let next = chunk.checked_add(bytes).filter(|&next| holds(pages, next))?;
    let is_sound = forward == following
        && bytes >= layout::MIN_CHUNK_BYTES
        && cache.word(next)? == bytes
        && cache.word(next + 8)? & layout::PREV_INUSE == 0;
    is_sound.then_some(backward)
}
