//! Memory that is not part of a heap although it looks like it: stacks and runtimes' own memory,
//! which the kernel may list in one mapping with a heap, or next to it.

use super::layout;
use strandline_claims::allocator::Context;
use strandline_process::memory::word_at;
use strandline_process::pages::PAGE_BYTES;
use strandline_process::range::{AddressRange, RangeSet};

/// Bytes before a stack that are searched for the header of a block around it: memalign puts the
/// header directly before the stack, a program that aligns by itself within a page.
const SEARCHED_BYTES: u64 = PAGE_BYTES;

/// Returns the ranges that are certainly not a heap. A stack inside a malloc block
/// (pthread_attr_setstack) belongs to that block, and so does memory of another allocator in one.
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
        (0..read_length).step_by(layout::ALIGNMENT as usize).any(|offset| {
            let head = word_at(&bytes, offset + layout::CHUNK_SIZE as usize).unwrap_or(0);
            let chunk_bytes = head & !layout::SIZE_BITS;
            let end = (run.start + offset as u64).checked_add(chunk_bytes);
            // The block is not much longer than the stack either: other words rarely satisfy both.
            chunk_bytes.is_multiple_of(layout::ALIGNMENT)
                && end.is_some_and(|end| end >= range.end && end - range.end <= SEARCHED_BYTES + range.len())
        })
    })
}
