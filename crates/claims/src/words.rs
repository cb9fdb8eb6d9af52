//! Looks through a target's memory word by word, for structures that no symbol leads to.

use std::time::Instant;

use strandline_process::buffer::ReadBuffer;
use strandline_process::map::{AddressSpace, Mapping};
use strandline_process::memory::{Memory, word_at};
use strandline_process::range::AddressRange;

/// Bytes to read at once if most of them are wanted.
pub const READ_BYTES: usize = 64 << 10;

/// Finds the runs of resident pages of one sort (anonymous, or of files) in a range, cut to it.
pub type FindPageRuns<'a> = &'a (dyn Fn(AddressRange) -> Vec<AddressRange> + Sync);

/// [`each_word_in`] the resident parts of a range.
pub fn each_word(
    memory: &dyn Memory,
    resident: FindPageRuns<'_>,
    range: impl Into<AddressRange>,
    at_once: usize,
    take: &mut dyn FnMut(u64, u64) -> bool,
) -> u64 {
    each_word_in(memory, resident(range.into()), at_once, take)
}

/// Reads resident runs, `at_once` bytes at a time, and passes the address and value of each nonzero
/// word to `take` until it returns false. Returns the number of bytes read.
pub fn each_word_in(
    memory: &dyn Memory,
    runs: impl IntoIterator<Item = impl Into<AddressRange>>,
    at_once: usize,
    take: &mut dyn FnMut(u64, u64) -> bool,
) -> u64 {
    let mut buffer = ReadBuffer::new(at_once);
    let mut bytes_read = 0;
    for run in runs {
        let run = run.into();
        let mut at = run.start;
        while at < run.end {
            let bytes = &mut buffer[..((run.end - at) as usize).min(at_once)];
            let got = memory.read_some(at, bytes);
            bytes_read += got as u64;
            for offset in (0..got & !7).step_by(8) {
                let word = word_at(bytes, offset).unwrap_or(0);
                if word != 0 && !take(at + offset as u64, word) {
                    return bytes_read;
                }
            }
            at += bytes.len() as u64;
        }
    }
    bytes_read
}

/// Like [`each_word_in`], until `deadline`; also returns whether that passed before the end.
pub fn each_word_until(
    memory: &dyn Memory,
    runs: impl IntoIterator<Item = AddressRange>,
    deadline: Instant,
    take: &mut dyn FnMut(u64, u64) -> bool,
) -> (u64, bool) {
    let mut is_late = false;
    let parts = runs.into_iter().flat_map(|run| {
        let starts = (run.start..run.end).step_by(READ_BYTES);
        starts
            .map(move |start| AddressRange::new(start, start.saturating_add(READ_BYTES as u64).min(run.end)))
    });
    // Before each read: of memory without nonzero words nothing is passed.
    let in_time = parts.take_while(|_| {
        is_late = Instant::now() >= deadline;
        !is_late
    });
    let bytes_read = each_word_in(memory, in_time, READ_BYTES, take);
    (bytes_read, is_late)
}

/// Whether the whole range is memory that an allocator could have taken from the kernel.
pub fn is_process_memory(space: &AddressSpace, start: u64, end: u64) -> bool {
    let mut at = start;
    while at < end {
        let Some(mapping) = space.find(at).filter(|mapping| is_mapped_memory(mapping)) else {
            return false;
        };
        at = mapping.end;
    }
    start < end
}

/// Whether an allocator could have mapped it: private anonymous memory that is not a stack.
pub fn is_mapped_memory(mapping: &Mapping) -> bool {
    mapping.is_private_anonymous() && !mapping.name.starts_with("[stack")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Memory in which only the first word of each read is not zero.
    struct Sparse;

    impl Memory for Sparse {
        fn read_some(&self, _: u64, buffer: &mut [u8]) -> usize {
            buffer.fill(0);
            buffer[0] = 1;
            buffer.len()
        }
    }

    #[test]
    fn words_are_passed_until_the_deadline() {
        let read = READ_BYTES as u64;
        let runs = [AddressRange::new(0, 2 * read + 8), AddressRange::new(1 << 40, (1 << 40) + 16)];
        let mut passed = Vec::new();
        let mut take = |at, word| {
            passed.push((at, word));
            true
        };
        let later = Instant::now() + Duration::from_secs(3600);
        assert_eq!(each_word_until(&Sparse, runs, later, &mut take), (2 * read + 24, false));
        assert_eq!(each_word_until(&Sparse, runs, Instant::now(), &mut take), (0, true));
        assert_eq!(passed, [(0, 1), (read, 1), (2 * read, 1), (1 << 40, 1)]);
    }
}
