//! Scans a target's memory word by word for structures of an allocator, only where allocator memory
//! can be.

use strandline_claims::allocator::Context;
use strandline_claims::words;
use strandline_process::range::{AddressRange, RangeSet, overlapping};

pub use words::is_mapped_memory;

/// Steps between two checks of the deadline.
const STEPS_PER_CHECK: u64 = 256;

/// The check of the deadline in a loop of many short steps: to read the clock takes longer than a
/// step.
pub struct DeadlineCheck<'a> {
    context: &'a Context<'a>,
    /// Number of steps so far.
    steps: u64,
}

impl<'a> DeadlineCheck<'a> {
    /// A check before the first step.
    pub fn new(context: &'a Context<'a>) -> Self {
        Self { context, steps: 0 }
    }

    /// A check that lets the first steps pass even after the deadline: they suffice where nothing
    /// is damaged.
    pub fn after_first_steps(context: &'a Context<'a>) -> Self {
        Self { context, steps: 1 }
    }

    /// Counts a step. Returns whether the deadline has passed; false at the steps that do not read
    /// the clock.
    pub fn passed(&mut self) -> bool {
        let is_due = self.steps.is_multiple_of(STEPS_PER_CHECK);
        self.steps += 1;
        is_due && self.context.deadline_passed()
    }
}

/// Reads the resident parts of a range and calls `take` with the address and value of each non-zero
/// word, until `take` returns false.
pub fn each_word(
    context: &Context<'_>,
    range: impl Into<AddressRange>,
    take: &mut dyn FnMut(u64, u64) -> bool,
) {
    each_word_in_steps(context, range, words::READ_BYTES, take);
}

/// Like [`each_word`], but reads `bytes_per_read` at a time (few if the first words mostly suffice)
/// and returns the number of bytes read.
pub fn each_word_in_steps(
    context: &Context<'_>,
    range: impl Into<AddressRange>,
    bytes_per_read: usize,
    take: &mut dyn FnMut(u64, u64) -> bool,
) -> u64 {
    words::each_word_in(context.memory, context.resident_runs(range), bytes_per_read, take)
}

/// Returns the items whose address is in a range; `items` are in order of their addresses.
pub fn within<T>(items: &[T], range: AddressRange, address: impl Fn(&T) -> u64) -> &[T] {
    let from = items.partition_point(|item| address(item) < range.start);
    let to = items.partition_point(|item| address(item) < range.end).max(from);
    items.get(from..to).unwrap_or_default()
}

/// Whether the page of `address` is resident. The kernel would bring in any other page that is
/// read.
pub fn is_resident(context: &Context<'_>, address: u64) -> bool {
    !context.resident_runs(AddressRange::sized(address, 1)).is_empty()
}

/// Whether the page of `address` is missing from memory but may have contents: its mapping has
/// pages that were swapped out. Other missing pages were never written, and hold zeros.
pub fn may_be_swapped_out(context: &Context<'_>, address: u64) -> bool {
    !overlapping(context.swapped_mappings, AddressRange::sized(address, 1)).is_empty()
        && !is_resident(context, address)
}

/// Whether all of a range is private anonymous memory that an allocator could have mapped.
pub fn is_private_memory(context: &Context<'_>, range: impl Into<AddressRange>) -> bool {
    let range = range.into();
    words::is_process_memory(context.space, range.start, range.end)
}

/// Whether all of a range is memory of [`is_private_memory`], and neither in `taken` nor a stack.
pub fn is_unclaimed(context: &Context<'_>, taken: &RangeSet, range: impl Into<AddressRange>) -> bool {
    let range = range.into();
    is_private_memory(context, range)
        && !taken.overlaps(range)
        && overlapping(context.stacks, range).is_empty()
}

/// Reads consecutive words; `None` if not all of them can be read.
pub fn read_words<const WORDS: usize>(context: &Context<'_>, address: u64) -> Option<[u64; WORDS]> {
    let mut words = [[0; 8]; WORDS];
    context.memory.read(address, words.as_flattened_mut()).ok()?;
    Some(words.map(u64::from_le_bytes))
}

/// Memory that cannot be read.
#[cfg(test)]
pub(crate) struct Unreadable;

#[cfg(test)]
impl strandline_process::memory::Memory for Unreadable {
    fn read_some(&self, _: u64, _: &mut [u8]) -> usize {
        0
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use strandline_process::map::AddressSpace;

    #[test]
    fn a_late_check_notices_at_once_or_after_the_first_steps() {
        let (space, _) = AddressSpace::parse(b"");
        let no_runs = |_: AddressRange| Vec::new();
        let context =
            Context { deadline: Instant::now(), ..Context::of_image(&Unreadable, &space, &no_runs) };
        assert!(DeadlineCheck::new(&context).passed());
        let mut check = DeadlineCheck::after_first_steps(&context);
        assert_eq!((0..).find(|_| check.passed()), Some(255));
    }
}
