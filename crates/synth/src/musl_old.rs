//! Fabricated heaps of the malloc that musl had before mallocng: the data of a static program with
//! its lists of free chunks, a region grown by brk and a mapped one, and blocks with mappings of
//! their own, one of them aligned.
//!
//! Written from musl's `src/malloc/oldmalloc`, independently of the reader that it tests.

use crate::{HeapExpected, HeapImage, Image, PAGE, Rng, map_line, map_lines};

/// Address of the program's data.
const DATA: u64 = 0x40_8000;
const DATA_BYTES: u64 = 4 * PAGE;
/// Address of the region grown by brk.
const HEAP: u64 = 0x60_0000;
/// Address of the mapped region, which the blocks with mappings of their own follow.
const MAPPED: u64 = 0x7f11_0000_0000;
/// Pages of each region.
const REGION_PAGES: u64 = 24;
/// Pages of each block that has its own mapping.
const BLOCK_PAGES: [u64; 3] = [60, 57, 75];
/// Chunks are multiples of this (`SIZE_ALIGN`); a block begins after two words (`OVERHEAD`).
const ALIGNMENT: u64 = 32;
const OVERHEAD: u64 = 16;
/// The flag of a chunk in use (`C_INUSE`).
const IN_USE: u64 = 1;
/// `struct mal`: the map of lists, then the lists.
const LISTS: u64 = 64;
const FIRST_LIST: u64 = 8;
/// `struct bin`: a lock, then head and tail.
const LIST_BYTES: u64 = 24;
const LIST_HEAD: u64 = 8;

/// Number of the list of a free chunk of `bytes` bytes (`bin_index`): one list for each of the
/// smallest sizes, then four for each power of two.
fn list_number(bytes: u64) -> u64 {
    let units = bytes / ALIGNMENT - 1;
    if units <= 32 {
        return units;
    }
    let power = u64::from(units.ilog2());
    (32 + 4 * (power - 5) + (units >> (power - 2) & 3)).min(LISTS - 1)
}

/// Fabricates a heap from `seed`.
pub fn fabricate_old_musl(seed: u64) -> HeapImage {
    let mut rng = Rng::new(seed ^ 0x6f6c);
    let block_pages: u64 = BLOCK_PAGES.iter().sum();
    let mappings = [
        map_line(DATA, DATA_BYTES, "rw-p 00008000 08:01 77 /usr/bin/program"),
        map_line(HEAP, REGION_PAGES * PAGE, "rw-p 00000000 00:00 0 [heap]"),
        map_line(MAPPED, (REGION_PAGES + block_pages) * PAGE, "rw-p 00000000 00:00 0"),
    ];
    let image = Image::of(&mappings.map(|line| (line.start, line.bytes)));
    let state = DATA + 8 * rng.below(1000);
    let mut writer = Writer { image, free_chunks: Vec::new(), expected: HeapExpected::default() };
    for start in [HEAP, MAPPED] {
        writer.write_region(start, &mut rng);
    }
    let mut mapping = MAPPED + REGION_PAGES * PAGE;
    for (index, pages) in BLOCK_PAGES.into_iter().enumerate() {
        writer.write_mmapped_block(mapping, pages * PAGE, if index == 1 { 512 } else { ALIGNMENT });
        mapping += pages * PAGE;
    }
    writer.write_lists(state);
    let structure_ranges = vec![
        (state, state + FIRST_LIST + LISTS * LIST_BYTES),
        (HEAP, HEAP + REGION_PAGES * PAGE),
        (MAPPED, MAPPED + REGION_PAGES * PAGE),
    ];
    HeapImage { image: writer.image, maps: map_lines(&mappings), expected: writer.expected, structure_ranges }
}

/// A free chunk.
struct FreeChunk {
    address: u64,
    bytes: u64,
}

struct Writer {
    image: Image,
    free_chunks: Vec<FreeChunk>,
    expected: HeapExpected,
}

impl Writer {
    /// Fills a region with chunks; no two free ones are adjacent.
    fn write_region(&mut self, start: u64, rng: &mut Rng) {
        let (mut chunk, last) = (start + OVERHEAD, start + REGION_PAGES * PAGE - OVERHEAD);
        // A chunk begins with the size of the previous one, and its own.
        let (mut previous_size, mut was_free) = (IN_USE, true);
        while chunk < last {
            let max_units = if rng.chance(10) { 600 } else { 40 };
            let bytes = ALIGNMENT * (1 + rng.below(max_units.min((last - chunk) / ALIGNMENT)));
            let is_free = !was_free && rng.chance(40);
            let size = if is_free { bytes } else { bytes | IN_USE };
            self.image.put_row(chunk, [previous_size, size]);
            if is_free {
                self.free_chunks.push(FreeChunk { address: chunk, bytes });
                self.expected.free_bytes += bytes;
            } else {
                self.expected.live_blocks += 1;
                self.expected.live_bytes += bytes - OVERHEAD;
            }
            (previous_size, was_free) = (size, is_free);
            chunk += bytes;
        }
        self.image.put_row(last, [previous_size, IN_USE]);
    }

    /// Writes a block with its own mapping, aligned to `alignment` bytes. Aligning moves the
    /// chunk; its old header stays.
    fn write_mmapped_block(&mut self, start: u64, bytes: u64, alignment: u64) {
        self.image.put_row(start + OVERHEAD, [OVERHEAD, bytes - OVERHEAD]);
        let block = (start + 2 * OVERHEAD).next_multiple_of(alignment);
        let chunk = block - OVERHEAD;
        self.image.put_row(chunk, [chunk - start, start + bytes - chunk]);
        self.expected.live_blocks += 1;
        self.expected.live_bytes += start + bytes - block;
    }

    /// Writes the lists, which link free chunks in rings; lists that were never used are zero.
    fn write_lists(&mut self, state: u64) {
        let mut used_lists = 0;
        for number in 0..LISTS {
            let list = state + FIRST_LIST + LIST_BYTES * number;
            // The list is a member of its ring: a chunk whose links are its head and tail.
            let own_chunk = list + LIST_HEAD - OVERHEAD;
            let in_list = self.free_chunks.iter().filter(|chunk| list_number(chunk.bytes) == number);
            let chunks: Vec<u64> = in_list.map(|chunk| chunk.address).collect();
            let ring: Vec<u64> = [own_chunk].into_iter().chain(chunks.iter().copied()).collect();
            for (index, &chunk) in chunks.iter().enumerate() {
                // `next` and `prev`; the chunk is at `index` + 1 of the ring.
                self.image.put_row(chunk + OVERHEAD, [ring[(index + 2) % ring.len()], ring[index]]);
            }
            if let (Some(first), Some(last)) = (chunks.first(), chunks.last()) {
                used_lists |= 1 << number;
                self.image.put_row(list + LIST_HEAD, [*first, *last]);
            } else if number % 3 == 0 {
                // This list was used and is empty again: it links to itself.
                self.image.put_row(list + LIST_HEAD, [own_chunk; 2]);
            }
        }
        self.image.put_word(state, used_lists);
    }
}
