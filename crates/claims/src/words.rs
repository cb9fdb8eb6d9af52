//! Looks through a target's memory word by word, for structures that no symbol leads to.

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
