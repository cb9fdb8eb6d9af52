//! Fabricated heaps of the malloc that musl had before mallocng: the data of a static program with
//! its lists of free chunks, a region grown by brk and a mapped one, and blocks with mappings of
//! their own, one of them aligned.
//!
//! Written from musl's `src/malloc/oldmalloc`, independently of the reader that it tests.

use crate::{HeapExpected, HeapImage, Image, Rng, map_lines};

const PAGE: u64 = 4096;
const DATA: u64 = 0x40_8000;
const DATA_BYTES: u64 = 4 * PAGE;
const HEAP: u64 = 0x60_0000;
const MAPPED: u64 = 0x7f11_0000_0000;
const REGION_PAGES: u64 = 24;
/// Pages of blocks with their own mappings.
const BLOCKS: [u64; 3] = [60, 57, 75];

/// Number of the list of a free chunk of `bytes` bytes (`bin_index`): one list for each of the
/// smallest sizes, then four for each power of two.
fn bin(bytes: u64) -> u64 {
    let units = bytes / 32 - 1;
    if units <= 32 {
        return units;
    }
    let power = u64::from(units.ilog2());
    (32 + 4 * (power - 5) + (units >> (power - 2) & 3)).min(63)
}

/// Fabricates a heap from `seed`.
pub fn fabricate_old_musl(seed: u64) -> HeapImage {
    let mut dice = Rng::new(seed ^ 0x6f6c);
    let blocks: u64 = BLOCKS.iter().sum();
    let mappings = [
        (DATA, DATA_BYTES, "rw-p 00008000 08:01 77 /usr/bin/program"),
        (HEAP, REGION_PAGES * PAGE, "rw-p 00000000 00:00 0 [heap]"),
        (MAPPED, (REGION_PAGES + blocks) * PAGE, "rw-p 00000000 00:00 0"),
    ];
    let image = Image::of(&mappings.map(|(start, bytes, _)| (start, bytes)));
    let state = DATA + 8 * dice.below(1000);
    let mut writer = Writer { image, free: Vec::new(), expected: HeapExpected::default() };
    for start in [HEAP, MAPPED] {
        writer.region(start, &mut dice);
    }
    let mut at = MAPPED + REGION_PAGES * PAGE;
    for (index, pages) in BLOCKS.into_iter().enumerate() {
        writer.mmapped_block(at, pages * PAGE, if index == 1 { 512 } else { 32 });
        at += pages * PAGE;
    }
    writer.lists(state);
    let structures = vec![
        (state, state + 8 + 64 * 24),
        (HEAP, HEAP + REGION_PAGES * PAGE),
        (MAPPED, MAPPED + REGION_PAGES * PAGE),
    ];
    HeapImage { image: writer.image, maps: map_lines(&mappings), expected: writer.expected, structures }
}

struct Writer {
    image: Image,
    /// Free chunks: address and bytes.
    free: Vec<(u64, u64)>,
    expected: HeapExpected,
}

impl Writer {
    /// Fills a region with chunks; no two free ones are adjacent.
    fn region(&mut self, start: u64, dice: &mut Rng) {
        let (mut at, last) = (start + 16, start + REGION_PAGES * PAGE - 16);
        let (mut before, mut was_free) = (1, true);
        while at < last {
            let most = if dice.chance(10) { 600 } else { 40 };
            let units = 1 + dice.below(most.min((last - at) / 32));
            let is_free = !was_free && dice.chance(40);
            let size = (units * 32) | u64::from(!is_free);
            self.image.put_row(at, [before, size]);
            if is_free {
                self.free.push((at, units * 32));
                self.expected.free_bytes += units * 32;
            } else {
                self.expected.live_blocks += 1;
                self.expected.live_bytes += units * 32 - 16;
            }
            (before, was_free) = (size, is_free);
            at += units * 32;
        }
        self.image.put_row(last, [before, 1]);
    }

    /// Writes a block with its own mapping, aligned to `alignment` bytes. Aligning moves the
    /// chunk; its old header stays.
    fn mmapped_block(&mut self, start: u64, bytes: u64, alignment: u64) {
        self.image.put_row(start + 16, [16, bytes - 16]);
        let block = (start + 32).next_multiple_of(alignment);
        self.image.put_row(block - 16, [block - 16 - start, start + bytes - (block - 16)]);
        self.expected.live_blocks += 1;
        self.expected.live_bytes += start + bytes - block;
    }

    /// Writes the lists, which link free chunks in rings; lists that were never used are zero.
    fn lists(&mut self, state: u64) {
        let mut map = 0;
        for number in 0..64 {
            let place = state + 8 + 24 * number;
            let own = place - 8;
            let chunks: Vec<u64> = self
                .free
                .iter()
                .filter(|(_, bytes)| bin(*bytes) == number)
                .map(|(chunk, _)| *chunk)
                .collect();
            let ring: Vec<u64> = [own].into_iter().chain(chunks.iter().copied()).collect();
            for (index, &chunk) in chunks.iter().enumerate() {
                self.image.put_row(chunk + 16, [ring[(index + 2) % ring.len()], ring[index]]);
            }
            if let (Some(first), Some(last)) = (chunks.first(), chunks.last()) {
                map |= 1 << number;
                self.image.put_row(place + 8, [*first, *last]);
            } else if number % 3 == 0 {
                self.image.put_row(place + 8, [own; 2]);
            }
        }
        self.image.put_word(state, map);
    }
}
