//! Chunks of glibc's malloc (malloc.c) that hold Perl's buffers.

use super::roots::Buffer;
use crate::batch::PageCache;
use strandline_process::pages::{PAGE_BYTES, page_of, page_up};
use strandline_process::range::AddressRange;

/// Bytes of the size word before a block.
pub const SIZE_WORD_BYTES: u64 = 8;
/// Bytes before a block: the previous chunk's size and its own.
const HEADER_BYTES: u64 = 16;
/// Bytes that malloc uses in a free chunk: its header and its links (`struct malloc_chunk`).
const FREE_CHUNK_BYTES: u64 = 48;
/// Alignment of chunks (`MALLOC_ALIGNMENT`).
const CHUNK_ALIGNMENT: u64 = 16;
/// Bytes of the smallest chunk (`MINSIZE`).
const MIN_CHUNK_BYTES: u64 = 32;
/// Flags in the lowest bits of a size word (`SIZE_BITS`).
const SIZE_BITS: u64 = 7;
/// The flag of a chunk with its own mapping (`IS_MMAPPED`).
const IS_MMAPPED: u64 = 2;
/// Upper bound on the bytes that a chunk has more than its buffer needs.
const MAX_EXCESS_BYTES: u64 = 64 << 10;

/// Bytes of the chunk for a buffer of `bytes`: size word and rounding included.
pub fn chunk_bytes(bytes: u64) -> u64 {
    let with_size_word = bytes.saturating_add(SIZE_WORD_BYTES + CHUNK_ALIGNMENT - 1);
    (with_size_word & !(CHUNK_ALIGNMENT - 1)).max(MIN_CHUNK_BYTES)
}

/// What the size word before a buffer states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Size of the chunk in bytes.
    pub bytes: u64,
    /// Whether it has its own mapping.
    pub is_mapped: bool,
}

impl Chunk {
    /// Reads the size word before `buffer`. A word that cannot be read or does not fit the buffer,
    /// as that of another allocator, is replaced by the size that malloc computes.
    pub fn of(pages: &mut PageCache<'_>, buffer: Buffer) -> Self {
        let computed_bytes = chunk_bytes(buffer.bytes);
        let stated = pages
            .word(buffer.pointer.wrapping_sub(SIZE_WORD_BYTES))
            .map(|word| Self { bytes: word & !SIZE_BITS, is_mapped: word & IS_MMAPPED != 0 });
        let fitting = computed_bytes..=computed_bytes.saturating_add(MAX_EXCESS_BYTES);
        stated
            .filter(|chunk| fitting.contains(&chunk.bytes))
            .unwrap_or(Self { bytes: computed_bytes, is_mapped: false })
    }

    /// The pages that freeing the block at `pointer` releases: those wholly within this chunk,
    /// which holds the block, as malloc_trim counts them, or all of a chunk with its own mapping.
    pub fn releasable_pages(self, pointer: u64) -> AddressRange {
        let start = pointer.wrapping_sub(HEADER_BYTES);
        let end = page_of(start.saturating_add(self.bytes));
        let is_mapped = self.is_mapped && start.is_multiple_of(PAGE_BYTES);
        let first = if is_mapped { start } else { page_up(start.saturating_add(FREE_CHUNK_BYTES)) };
        AddressRange::new(first.min(end), end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_mallocs() {
        let all: Vec<u64> = [0, 10, 24, 25, 40, 41].into_iter().map(chunk_bytes).collect();
        assert_eq!(all, [32, 32, 32, 48, 48, 64]);
    }
}
