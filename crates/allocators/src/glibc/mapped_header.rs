//! The header of a chunk with its own mapping.

use strandline_claims::allocator::MappedBlock;
use strandline_claims::range::PAGE_BYTES;
use strandline_process::memory::WordPair;
use strandline_process::range::{AddressRange, overlapping};

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

/// Distances from the start of a mapping to the header of a chunk aligned to 32, 64, … 2,048 bytes
/// (malloc.c, _int_memalign): the block begins at the first multiple behind a header. Up to 2.42
/// the distance is at least 32: an alignment of 32 gives 48.
const LEADS_IN_PAGE: [u64; 7] = [16, 48, 112, 240, 496, 1008, 2032];
/// The alignments of a page and more, as powers of two, that fit into an address space.
const PAGE_ALIGNMENTS: std::ops::Range<u32> = PAGE_BYTES.trailing_zeros()..47;

/// Returns the length of the mapping when malloc made it, if one of a chunk may start with
/// `header`. mremap_chunk changes the length, but only the header next to the block (malloc.c).
pub fn first_bytes(header: HeaderWords) -> Option<u64> {
    let HeaderWords { prev_size, size: head } = header;
    let may_start = prev_size <= 1
        && head & layout::SIZE_BITS == layout::IS_MMAPPED
        && head >= PAGE_BYTES - layout::FENCEPOST_BYTES;
    (head & !layout::SIZE_BITS).checked_next_multiple_of(PAGE_BYTES).filter(|_| may_start)
}

/// Returns the distances from `page` at which memalign may have put the chunk of a mapping of
/// `first_bytes`, in increasing order: for each alignment one, since memalign takes the first
/// multiple of it after the mapping's start (malloc.c, _int_memalign, 2.31 to 2.43).
pub fn aligned_leads(page: u64, first_bytes: u64) -> impl Iterator<Item = u64> {
    let of_pages = PAGE_ALIGNMENTS.map(move |power| {
        let distance = (1u64 << power) - (page & ((1u64 << power) - 1));
        distance - layout::CHUNK_HEADER_BYTES
    });
    let mut last = 0;
    let is_new = move |lead: &u64| std::mem::replace(&mut last, *lead) != *lead;
    LEADS_IN_PAGE
        .into_iter()
        .chain(of_pages)
        .take_while(move |lead| has_room(*lead, first_bytes))
        .filter(is_new)
}

/// Returns all distances from `page` at which the chunk may be if mremap has moved its mapping
/// since: at the end of any page, so that the block's address is no longer a multiple of its
/// alignment. A header was written, so that its page is in one of the resident `runs`.
pub fn moved_leads(page: u64, first_bytes: u64, runs: &[AddressRange]) -> impl Iterator<Item = u64> {
    let mapping = AddressRange::sized(page, first_bytes);
    let resident = overlapping(runs, mapping).iter().map(move |run| run.intersection(mapping));
    let of_pages = resident
        .flat_map(AddressRange::pages)
        .map(move |start| start + PAGE_BYTES - layout::CHUNK_HEADER_BYTES - page);
    LEADS_IN_PAGE.into_iter().chain(of_pages).take_while(move |lead| has_room(*lead, first_bytes))
}

/// Whether a chunk fits into a mapping behind `lead`.
fn has_room(lead: u64, mapped_bytes: u64) -> bool {
    lead + layout::MIN_CHUNK_BYTES <= mapped_bytes
}

/// Returns the block whose mapping starts at `page`, if `header` is the one that memalign wrote
/// `lead` bytes after it: its first word is that distance, also after mremap_chunk.
pub fn aligned_block(lead: u64, header: HeaderWords, page: u64, limit: u64) -> Option<MappedBlock> {
    let HeaderWords { prev_size: distance, size: head } = header;
    if distance & !1 != lead
        || head & layout::SIZE_BITS != layout::IS_MMAPPED
        || head < layout::FENCEPOST_BYTES
    {
        return None;
    }
    let bytes = lead.checked_add(head & !layout::SIZE_BITS)?;
    let mapped_bytes = bytes.checked_next_multiple_of(PAGE_BYTES)?;
    let missing_bytes = mapped_bytes - bytes;
    if (missing_bytes != 0 && missing_bytes != layout::FENCEPOST_BYTES)
        || mapped_bytes > limit.checked_sub(page)?
    {
        return None;
    }
    let usable_end = page + mapped_bytes - tail_bytes(mapped_bytes, lead, head);
    Some(MappedBlock {
        start: page,
        pointer: page + lead + layout::CHUNK_HEADER_BYTES,
        usable_end,
        end: page + mapped_bytes,
    })
}

/// Returns the chunk whose mapping starts at `page` with the words `header`, by the header that
/// memalign wrote after it if there is one. `read` reads a header, and nothing on a page that is
/// not resident.
pub fn chunk_at(
    header: HeaderWords,
    page: u64,
    limit: u64,
    mut read: impl FnMut(u64) -> Option<HeaderWords>,
) -> Option<MappedBlock> {
    let mut leads = first_bytes(header).into_iter().flat_map(|bytes| aligned_leads(page, bytes));
    let in_area = |lead: &u64| page.checked_add(*lead).is_some_and(|address| address < limit);
    leads
        .by_ref()
        .take_while(in_area)
        .find_map(|lead| aligned_block(lead, read(page + lead)?, page, limit))
        .or_else(|| block_at(header, page, limit))
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
    fn leads_are_those_of_memalign() {
        let mib = 1 << 20;
        // malloc.c, _int_memalign: the first multiple of the alignment after the mapping's start.
        for page in [0x7f00_0000_1000, 0x7f00_0010_0000, 0x7f00_0000_0000, 0x7f12_345f_f000u64] {
            let leads: Vec<u64> = aligned_leads(page, 64 * mib).collect();
            for power in 6..26 {
                let alignment = 1u64 << power;
                let lead = (page + 16).next_multiple_of(alignment) - 16 - page;
                assert!(leads.contains(&lead), "{page:x} to {alignment}");
            }
            assert!(leads.is_sorted_by(|a, b| a < b));
            assert!(leads.len() < 40 && leads.iter().all(|lead| lead + 32 <= 64 * mib), "{leads:?}");
        }
        assert_eq!(aligned_leads(0x7f00_0000_0000, PAGE_BYTES).last(), Some(2032));
        let page = 0x7f00_0000_0000;
        let all = |runs: &[AddressRange]| -> Vec<u64> { moved_leads(page, 3 * PAGE_BYTES, runs).collect() };
        let whole = AddressRange::sized(page - PAGE_BYTES, 9 * PAGE_BYTES);
        assert_eq!(all(&[whole])[7..], [4080, 8176], "the last header would end the mapping");
        assert_eq!(all(&[AddressRange::sized(page + PAGE_BYTES, PAGE_BYTES)])[7..], [8176], "resident");
    }

    #[test]
    fn headers_of_memalign_are_distinguished_from_data() {
        let (page, lead, limit) = (0x7f00_0010_0000, 0xf_fff0, 0x7f00_0100_0000);
        let block = |words: WordPair| aligned_block(lead, words.into(), page, limit);
        let range = |block: MappedBlock| (block.start, block.pointer, block.usable_end, block.end);
        let (start, end) = (page + 0x10_0000, page + 0x20_0000);
        assert_eq!(block((lead, 0x10_0012)).map(range), Some((page, start, end, end)));
        assert_eq!(block((lead | 1, 0x10_0002)).map(range), Some((page, start, end - 8, end)), "2.43");
        assert_eq!(block((lead, 2)), None, "no size");
        assert_eq!(block((lead, 0x10_0010)), None, "an array of its own offsets");
        assert_eq!(block((lead - 4096, 0x10_0012)), None, "another distance");
        assert_eq!(block((lead, 0x10_0022)), None, "not to the end of a page");
        assert_eq!(block((lead, 0x100_0012)), None, "longer than its mapping");
        assert_eq!(block((lead, !5)), None);
    }

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
