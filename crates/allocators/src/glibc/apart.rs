//! Memory that is not part of a heap although it looks like it: stacks and runtimes' own memory,
//! which the kernel may list in one mapping with a heap, or next to it.

use super::layout;
use strandline_claims::allocator::Context;
use strandline_claims::range::{PAGE_BYTES, merge};
use strandline_process::memory::word_at;

/// How far before a stack the header of a block around it is searched: memalign puts it right
/// there, a program that aligns by itself within a page.
const BEFORE_BYTES: u64 = PAGE_BYTES;

/// Returns the ranges that are certainly not a heap, in address order and without overlap. A stack
/// in a malloc block (pthread_attr_setstack) belongs to that block, and so does memory of another
/// allocator in one.
pub fn apart(context: &Context<'_>) -> Vec<(u64, u64)> {
    let all = context.stacks.iter().chain(context.claimed);
    let mut all: Vec<(u64, u64)> =
        all.filter(|&&(low, high)| !is_in_block(context, low, high)).copied().collect();
    merge(&mut all);
    all
}

/// Whether a chunk begins shortly before `low` and reaches to `high`.
fn is_in_block(context: &Context<'_>, low: u64, high: u64) -> bool {
    let from = low.saturating_sub(BEFORE_BYTES).next_multiple_of(layout::ALIGNMENT);
    // Reading a missing page would make the kernel map one in the target.
    (context.resident)(from, low).into_iter().any(|(from, to)| {
        let mut bytes = vec![0; usize::try_from(to - from).unwrap_or(0)];
        let got = context.whole_memory.read_some(from, &mut bytes);
        (0..got).step_by(layout::ALIGNMENT as usize).any(|at| {
            let head = word_at(&bytes, at + 8).unwrap_or(0);
            let bytes = head & !layout::SIZE_BITS;
            // Not much longer than the stack either: other words rarely satisfy both.
            bytes.is_multiple_of(layout::ALIGNMENT)
                && (from + at as u64)
                    .checked_add(bytes)
                    .is_some_and(|end| end >= high && end - high <= BEFORE_BYTES + (high - low))
        })
    })
}
