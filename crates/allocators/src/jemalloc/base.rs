//! jemalloc's own structures: the blocks of its base allocator, which hold extents, leaves of the
//! map, arenas and others.
//!
//! Each block is a mapping of 2 MiB or a multiple, aligned to 2 MiB. It begins with its size, a
//! pointer to the next block, and an extent that covers its unused end (`struct base_block_s` in
//! `base_structs.h`, from 5.3 on in `base.h`).

use super::extents::Extent;
use crate::scan::{is_mapped_memory, is_unclaimed, read_words};
use strandline_claims::allocator::Context;
use strandline_claims::doubts::ReadProblems;
use strandline_process::range::{AddressRange, RangeSet};

/// Alignment of blocks (`HUGEPAGE`; from 5.3.1 on `BASE_BLOCK_MIN_ALIGN`).
const ALIGNMENT: u64 = 2 << 20;

/// A block of the base allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Its addresses.
    pub range: AddressRange,
    /// Bytes in use, from its start.
    pub used_bytes: u64,
}

/// Finds the blocks of a process outside `extents` (in address order) and `taken` (claimed by
/// others). If the deadline passes, notes that in `doubts`.
pub fn find(
    context: &Context<'_>,
    extents: &[Extent],
    taken: &RangeSet,
    doubts: &mut ReadProblems,
) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    for mapping in context.space.mappings().iter().filter(|mapping| is_mapped_memory(mapping)) {
        // Only resident memory, as merely reserved memory may be huge: a block's first page is
        // resident, because its header was written.
        for run in context.resident_runs(mapping.range()) {
            let mut at = run.start.next_multiple_of(ALIGNMENT);
            while at < run.end {
                if context.deadline_passed() {
                    doubts.note_timeout(at);
                    return blocks;
                }
                at = match unclaimed_block_at(context, at, extents, taken) {
                    Ok(block) => {
                        // A block may span several runs.
                        let is_new = blocks.last().is_none_or(|last| last.range.end <= at);
                        blocks.extend(Some(block).filter(|_| is_new));
                        block.range.end
                    }
                    Err(next_address) => next_address,
                };
            }
        }
    }
    blocks
}

/// Returns the block at `at` if it is outside `extents` and `taken`.
///
/// # Errors
/// The next address to try, if there is no such block.
fn unclaimed_block_at(
    context: &Context<'_>,
    at: u64,
    extents: &[Extent],
    taken: &RangeSet,
) -> Result<Block, u64> {
    let next_extent = extents.partition_point(|extent| extent.end <= at);
    let next_start = extents.get(next_extent).map_or(u64::MAX, |extent| extent.start);
    if let Some(extent) = extents.get(next_extent).filter(|extent| extent.start <= at) {
        return Err(extent.end.next_multiple_of(ALIGNMENT));
    }
    let is_outside =
        |block: &Block| block.range.end <= next_start && is_unclaimed(context, taken, block.range);
    let block = block_at(context, at).filter(is_outside);
    block.ok_or(at + ALIGNMENT)
}

/// Reads the block whose header is at `start`; `None` if the fields of the header do not agree.
fn block_at(context: &Context<'_>, start: u64) -> Option<Block> {
    // Then the flags, the address and the size of the extent.
    let [bytes, next_block, _, unused_start, unused_bytes] = read_words(context, start)?;
    let end = start.checked_add(bytes)?;
    let is_block = bytes > 0
        && bytes.is_multiple_of(ALIGNMENT)
        && next_block.is_multiple_of(ALIGNMENT)
        && unused_start > start
        && unused_start.checked_add(unused_bytes) == Some(end);
    is_block.then(|| Block { range: AddressRange { start, end }, used_bytes: unused_start - start })
}
