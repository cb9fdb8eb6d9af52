//! Scans a target's memory word by word for structures of an allocator, only where allocator memory
//! can be.

use strandline_claims::allocator::Context;
use strandline_claims::words;

pub use words::is_mapped_memory;

/// Reads the resident parts of a range and calls `take` with the address and value of each non-zero
/// word, until `take` returns false.
pub fn each_word(context: &Context<'_>, start: u64, end: u64, take: &mut dyn FnMut(u64, u64) -> bool) {
    each_word_by(context, (start, end), words::READ_BYTES, take);
}

/// Like [`each_word`], but reads `at_once` bytes at a time (few if the first words mostly suffice)
/// and returns the number of bytes read.
pub fn each_word_by(
    context: &Context<'_>,
    range: (u64, u64),
    at_once: usize,
    take: &mut dyn FnMut(u64, u64) -> bool,
) -> u64 {
    words::each_word((context.memory, context.resident), range, at_once, take)
}

/// Whether all of a range is private anonymous memory that an allocator could have mapped.
pub fn is_private_memory(context: &Context<'_>, start: u64, end: u64) -> bool {
    words::is_process_memory(context.space, start, end)
}
