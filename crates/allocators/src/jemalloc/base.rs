//! jemalloc's own structures: the blocks of its base allocator, in which extents, leaves of the map, arenas and the like stand.
//!
//! Each block is a mapping of 2 MiB or a multiple, aligned to that, and begins with its size, the next one of its chain, and
//! an extent that stands for what is yet unused of it, up to its end (`base.h`, `struct base_block_s`; 5.0 to 5.3).

use std::time::Instant;

use super::extents::Extent;
use crate::scan::{is_mapped_memory, is_own};
use strandline_claims::allocator::{Context, overlapping};
use strandline_process::memory::word_at;

/// What blocks are aligned to (`BASE_BLOCK_MIN_ALIGN`, before 5.3.1 `HUGEPAGE`).
const ALIGNMENT: u64 = 2 << 20;
/// The size, the chain, and of the extent its flags, address and size.
const HEADER_BYTES: usize = 40;

/// A block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// First byte.
    pub start: u64,
    /// First byte behind.
    pub end: u64,
    /// How much of it is in use.
    pub used_bytes: u64,
}

/// The blocks of a process that lie beside `extents` and what others have claimed, both in address order.
pub fn find(context: &Context<'_>, extents: &[Extent], taken: &[(u64, u64)]) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    for mapping in context.space.mappings().iter().filter(|mapping| is_mapped_memory(mapping)) {
        // A block's first page was written to; of what is only reserved there may be any amount.
        for (from, to) in (context.resident)(mapping.start, mapping.end) {
            let mut at = from.next_multiple_of(ALIGNMENT);
            while at < to && Instant::now() < context.deadline {
                at = match block_beside(context, at, (extents, taken)) {
                    Ok(block) => {
                        // One may reach over several runs.
                        let is_new = blocks.last().is_none_or(|last| last.end <= at);
                        blocks.extend(Some(block).filter(|_| is_new));
                        block.end
                    }
                    Err(next) => next,
                };
            }
        }
    }
    blocks
}

/// The block at `at`, if it lies beside `extents` and what is `taken`; or else where the next could be.
fn block_beside(
    context: &Context<'_>,
    at: u64,
    (extents, taken): (&[Extent], &[(u64, u64)]),
) -> Result<Block, u64> {
    let next = extents.partition_point(|extent| extent.end <= at);
    let before = extents.get(next).map_or(u64::MAX, |extent| extent.start);
    if let Some(extent) = extents.get(next).filter(|extent| extent.start <= at) {
        return Err(extent.end.next_multiple_of(ALIGNMENT));
    }
    let block = block_at(context, at).filter(|block| {
        block.end <= before
            && overlapping(taken, block.start, block.end).is_empty()
            && overlapping(context.stacks, block.start, block.end).is_empty()
    });
    block.ok_or(at + ALIGNMENT)
}

fn block_at(context: &Context<'_>, start: u64) -> Option<Block> {
    let mut header = [0; HEADER_BYTES];
    context.memory.read(start, &mut header).ok()?;
    let word = |index: usize| word_at(&header, 8 * index).unwrap_or(0);
    let (bytes, next, unused, unused_bytes) = (word(0), word(1), word(3), word(4));
    let end = start.checked_add(bytes)?;
    let is_one = bytes > 0
        && bytes.is_multiple_of(ALIGNMENT)
        && next.is_multiple_of(ALIGNMENT)
        && unused > start
        && unused.checked_add(unused_bytes) == Some(end)
        && is_own(context, start, end);
    is_one.then(|| Block { start, end, used_bytes: unused - start })
}
