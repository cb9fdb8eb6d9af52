//! Memory that is not part of a heap although it looks like it: stacks and runtimes' own memory,
//! which the kernel may list in one mapping with a heap, or next to it.

use super::layout;
use strandline_claims::allocator::Context;
use strandline_process::memory::word_at;
use strandline_process::pages::PAGE_BYTES;
use strandline_process::range::{AddressRange, RangeSet};

/// Bytes before a stack that are searched for the header of the block around it. posix_memalign
/// leaves the header directly before the stack (malloc.c, `_int_memalign`); a program that aligns
/// it itself leaves it within a page.
const SEARCHED_BYTES: u64 = PAGE_BYTES;

/// Returns the ranges that are certainly not a heap. A stack inside a malloc block
/// (pthread_attr_setstack) belongs to that block, and so does memory that another allocator placed
/// in a block.
pub fn ranges(context: &Context<'_>) -> RangeSet {
    let candidates = context.stacks.iter().chain(context.claimed_ranges);
    candidates.filter(|range| !is_in_block(context, **range)).copied().collect()
}

/// Whether a chunk begins shortly before `range` and reaches to its end.
fn is_in_block(context: &Context<'_>, range: AddressRange) -> bool {
    let search_start = range.start.saturating_sub(SEARCHED_BYTES).next_multiple_of(layout::ALIGNMENT);
    // Reading a missing page would make the kernel map one in the target.
    context.resident_runs((search_start, range.start)).into_iter().any(|run| {
        let mut bytes = vec![0; run.len() as usize];
        let read_length = context.whole_memory.read_some(run.start, &mut bytes);
        let bytes = bytes.get(..read_length).unwrap_or_default();
        (0..read_length).step_by(layout::ALIGNMENT as usize).any(|offset| {
            let Some(size_word) = word_at(bytes, offset + layout::CHUNK_SIZE as usize) else { return false };
            let chunk_bytes = size_word & !layout::SIZE_BITS;
            let end = (run.start + offset as u64).checked_add(chunk_bytes);
            // The block may exceed the stack by its own length and a page: a random word rarely
            // satisfies this and the alignment.
            chunk_bytes.is_multiple_of(layout::ALIGNMENT)
                && end.is_some_and(|end| end >= range.end && end - range.end <= SEARCHED_BYTES + range.len())
        })
    })
}
