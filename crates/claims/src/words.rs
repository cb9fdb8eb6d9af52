//! Looks through a target's memory word by word, for structures that no symbol leads to.

use std::time::Instant;

use strandline_process::buffer::ReadBuffer;
use strandline_process::map::{AddressSpace, Mapping};
use strandline_process::memory::Memory;
use strandline_process::range::AddressRange;

/// Bytes to read at once if most of them are wanted.
pub const READ_BYTES: usize = 64 << 10;

/// What [`each_word_until`] has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WordsRead {
    /// Number of bytes read.
    pub bytes: u64,
    /// Whether the deadline passed before the end.
    pub is_late: bool,
}

/// Finds the runs of resident pages of one sort (anonymous, or of files) in a range, cut to it.
pub type FindPageRuns<'a> = &'a (dyn Fn(AddressRange) -> Vec<AddressRange> + Sync);

/// Like [`each_word_in`], for the resident parts of a range.
pub fn each_word(
    memory: &dyn Memory,
    resident: FindPageRuns<'_>,
    range: impl Into<AddressRange>,
    bytes_per_read: usize,
    take: &mut dyn FnMut(u64, u64) -> bool,
) -> u64 {
    each_word_in(memory, resident(range.into()), bytes_per_read, take)
}

/// Reads resident runs, `bytes_per_read` at a time, and passes the address and value of each
/// nonzero word to `take` until that returns false. Where memory cannot be read, it continues with
/// the next read. Returns the number of bytes read.
pub fn each_word_in(
    memory: &dyn Memory,
    runs: impl IntoIterator<Item = impl Into<AddressRange>>,
    bytes_per_read: usize,
    take: &mut dyn FnMut(u64, u64) -> bool,
) -> u64 {
    let mut buffer = ReadBuffer::new(bytes_per_read);
    let mut bytes_read = 0;
    for run in runs {
        let run = run.into();
        let mut at = run.start;
        while at < run.end {
            let bytes = &mut buffer[..((run.end - at) as usize).min(bytes_per_read)];
            let read_length = memory.read_some(at, bytes);
            bytes_read += read_length as u64;
            for (index, word) in bytes[..read_length].as_chunks::<8>().0.iter().enumerate() {
                let word = u64::from_le_bytes(*word);
                if word != 0 && !take(at + 8 * index as u64, word) {
                    return bytes_read;
                }
            }
            at += bytes.len() as u64;
        }
    }
    bytes_read
}

/// Like [`each_word_in`], until `deadline`.
pub fn each_word_until(
    memory: &dyn Memory,
    runs: impl IntoIterator<Item = AddressRange>,
    deadline: Instant,
    take: &mut dyn FnMut(u64, u64) -> bool,
) -> WordsRead {
    let mut is_late = false;
    let parts = runs.into_iter().flat_map(|run| {
        let starts = (run.start..run.end).step_by(READ_BYTES);
        starts.map(move |start| AddressRange::sized(start, READ_BYTES as u64).intersection(run))
    });
    // `take` could not check the deadline: it is not called in memory without nonzero words.
    let in_time = parts.take_while(|_| {
        is_late = Instant::now() >= deadline;
        !is_late
    });
    let bytes = each_word_in(memory, in_time, READ_BYTES, take);
    WordsRead { bytes, is_late }
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
        let read_bytes = READ_BYTES as u64;
        let far = 1 << 40;
        let runs = [AddressRange::sized(0, 2 * read_bytes + 8), AddressRange::sized(far, 16)];
        let mut passed = Vec::new();
        let mut take = |at, word| {
            passed.push((at, word));
            true
        };
        let later = Instant::now() + Duration::from_secs(3600);
        let read = each_word_until(&Sparse, runs, later, &mut take);
        assert_eq!(read, WordsRead { bytes: 2 * read_bytes + 24, is_late: false });
        let read = each_word_until(&Sparse, runs, Instant::now(), &mut take);
        assert_eq!(read, WordsRead { bytes: 0, is_late: true });
        assert_eq!(passed, [(0, 1), (read_bytes, 1), (2 * read_bytes, 1), (far, 1)]);
    }
}
