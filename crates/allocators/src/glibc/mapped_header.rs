//! The header of a chunk with its own mapping.

use strandline_claims::allocator::MappedBlock;
use strandline_claims::range::PAGE_BYTES;
use strandline_process::memory::WordPair;

use super::layout;

/// Bytes at the end of a mapping that are not the block's if the size is less than its length
/// (2.43): malloc.c counts the last word as the next chunk's (memsize).
const LAST_WORD_BYTES: u64 = 8;

/// The first two words of a chunk (malloc.c, `mchunk_prev_size` and `mchunk_size`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderWords {
    /// The distance from the start of the mapping, if the chunk has its own.
    pub prev_size: u64,
    /// The size of the chunk and its flags (`SIZE_BITS`).
    pub size: u64,
}

impl From<WordPair> for HeaderWords {
    fn from((prev_size, size): WordPair) -> Self {
        Self { prev_size, size }
    }
}

/// Returns how many bytes at the end of a mapping of `mapped_bytes` are not its chunk's. The size
/// word `head` counts from `header_offset` after the start of the mapping.
pub fn tail_bytes(mapped_bytes: u64, header_offset: u64, head: u64) -> u64 {
    if header_offset + (head & !layout::SIZE_BITS) == mapped_bytes { 0 } else { LAST_WORD_BYTES }
}

/// Returns the chunk whose mapping starts at `page` with the words `header`.
pub fn block_at(header: HeaderWords, page: u64, limit: u64) -> Option<MappedBlock> {
    let bytes = chunk_bytes(header, page, limit)?;
    let (pointer, tail) = (page + layout::CHUNK_HEADER_BYTES, tail_bytes(bytes, 0, header.size));
    Some(MappedBlock { start: page, pointer, usable_end: page + bytes - tail, end: page + bytes })
}

/// Returns the length of the mapping that starts at `page` with the words `header`; `None` unless
/// it is a chunk's and ends by `limit`.
pub fn chunk_bytes(header: HeaderWords, page: u64, limit: u64) -> Option<u64> {
    let HeaderWords { prev_size, size: head } = header;
    // Up to 2.42 the word before the size is 0 at the start of a mapping; in 2.43 its lowest bit
    // marks huge pages (malloc.c, MMAP_HP).
    if prev_size > 1 || head & layout::SIZE_BITS != layout::IS_MMAPPED {
        return None;
    }
    // The size is that of the whole mapping; in 2.43 it leaves out the last 16 bytes
    // (malloc.c, mmap_set_chunk).
    let bytes = (head & !layout::SIZE_BITS).checked_next_multiple_of(PAGE_BYTES)?;
    let missing = bytes - (head & !layout::SIZE_BITS);
    (bytes > 0 && (missing == 0 || missing == layout::FENCEPOST_BYTES) && bytes <= limit.checked_sub(page)?)
        .then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_distinguished_from_data() {
        let chunk_bytes = |words: WordPair, page, limit| chunk_bytes(words.into(), page, limit);
        assert_eq!(chunk_bytes((0, 0x21002), 0x1000, 0x100_0000), Some(0x21000));
        assert_eq!(chunk_bytes((0, 0x20ff2), 0x1000, 0x100_0000), Some(0x21000), "2.43");
        assert_eq!(chunk_bytes((0, 0x21001), 0x1000, 0x100_0000), None, "another flag");
        assert_eq!(chunk_bytes((7, 0x21002), 0x1000, 0x100_0000), None);
        assert_eq!(chunk_bytes((0, 0x21002), 0x1000, 0x1_0000), None, "longer than its mapping");
        assert_eq!(chunk_bytes((0, !5), 0x1000, u64::MAX), None);
        assert_eq!(chunk_bytes((0, 2), 0x1000, u64::MAX), None);
    }
}
