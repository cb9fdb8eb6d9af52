//! Looks through a target's memory for structures of an allocator: word by word, and only where an allocator's own could be.

use strandline_claims::allocator::Context;
use strandline_claims::words;

pub use words::is_mapped_memory;

/// Reads the resident parts of a range and hands over each word that is not zero, with its address, until `take` says that it
/// is enough.
pub fn each_word(context: &Context<'_>, start: u64, end: u64, take: &mut dyn FnMut(u64, u64) -> bool) {
    each_word_by(context, (start, end), words::AT_ONCE, take);
}

/// As [`each_word`], reading so many bytes at once, and says how many it read: few where the first words mostly are enough.
pub fn each_word_by(
    context: &Context<'_>,
    range: (u64, u64),
    at_once: usize,
    take: &mut dyn FnMut(u64, u64) -> bool,
) -> u64 {
    words::each_word((context.memory, context.resident), range, at_once, take)
}

/// Whether all of a range is memory of the process's own, that an allocator could have taken from the kernel.
pub fn is_own(context: &Context<'_>, start: u64, end: u64) -> bool {
    words::is_own(context.space, start, end)
}
