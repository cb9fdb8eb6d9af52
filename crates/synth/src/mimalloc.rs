//! Fabricated mimallocs, with segments as in 2.0.9, 2.2 and 1.9, and with the page map of 3.1:
//! pages of blocks, whose free blocks are known by construction.
//!
//! Written from mimalloc's headers of each release, independently of the reader that it tests.

use crate::{HeapExpected, HeapImage, Image, Rng, map_lines};

const MIB: u64 = 1 << 20;
const KIB: u64 = 1 << 10;
const SLICE: u64 = 64 * KIB;
/// The library's static data.
const DATA: u64 = 0x7f51_4000_0000;
const DATA_BYTES: u64 = 64 * KIB;
/// Address of mimalloc's mapping hints.
const HEAP: u64 = 10 << 40;
/// Structures of 3.x that are not in arenas.
const MAP: u64 = 0x7f51_8000_0000;
const SUBMAP: u64 = MAP + 4 * MIB;
const KEY: u64 = 0x1357_9bdf_0246_8ace;
/// Sizes of blocks.
const SIZES: [u64; 8] = [16, 48, 64, 320, 1024, 1280, 5120, 8192];

/// Number of layouts.
pub const MIMALLOC_LAYOUTS: usize = 6;

/// Offsets of the fields of a page in a release.
struct Fields {
    capacity: u64,
    reserved: u64,
    free: u64,
    local_free: u64,
    thread_free: u64,
    used: (u64, u32),
    size: (u64, u32),
    start: Option<u64>,
}

const OF_2_0_9: Fields = Fields {
    capacity: 10,
    reserved: 12,
    free: 16,
    local_free: 32,
    thread_free: 40,
    used: (24, 32),
    size: (28, 32),
    start: None,
};
const OF_2_2: Fields = Fields {
    capacity: 10,
    reserved: 12,
    free: 16,
    local_free: 24,
    thread_free: 56,
    used: (32, 16),
    size: (40, 64),
    start: Some(48),
};
const OF_1_9: Fields = Fields {
    capacity: 2,
    reserved: 4,
    free: 8,
    local_free: 16,
    thread_free: 48,
    used: (24, 16),
    size: (32, 64),
    start: Some(40),
};
const OF_3_1: Fields = Fields {
    capacity: 18,
    reserved: 20,
    free: 8,
    local_free: 24,
    thread_free: 32,
    used: (16, 16),
    size: (40, 64),
    start: Some(48),
};

struct Writer {
    image: Image,
    expected: HeapExpected,
    structures: Vec<(u64, u64)>,
}

/// Fabricates a mimalloc of `layout` (0 for 2.0.9, 1 for 2.2, 2 for 1.9, 3 for that of CPython
/// 3.13, 4 for that of CPython 3.14.10, 5 for 3.1) from `seed`.
pub fn fabricate_mimalloc(layout: usize, seed: u64) -> HeapImage {
    let mut dice = Rng::new(seed ^ 0x6d69);
    let image = Image::of(&[(DATA, DATA_BYTES)]);
    let mut writer = Writer { image, expected: HeapExpected::default(), structures: Vec::new() };
    let mut maps = Vec::new();
    let bytes = match layout % MIMALLOC_LAYOUTS {
        0 => writer.slices(&OF_2_0_9, 80, [216, 224, 232, 240, 248, 264], &mut dice),
        1 => writer.slices(&OF_2_2, 96, [224, 248, 256, 264, 272, 288], &mut dice),
        2 => writer.pages(&mut dice),
        // A page structure is larger, with the same fields.
        3 => writer.slices(&OF_2_0_9, 96, [216, 224, 232, 240, 248, 264], &mut dice),
        4 => writer.slices(&OF_2_2, 112, [224, 248, 256, 264, 272, 288], &mut dice),
        _ => {
            maps.push((MAP, 4 * MIB + SLICE, "rw-p 00000000 00:00 0"));
            writer.arena(&mut dice)
        }
    };
    maps.push((HEAP, bytes, "rw-p 00000000 00:00 0"));
    maps.push((DATA, DATA_BYTES, "rw-p 00080000 08:01 79 /usr/lib/libmimalloc.so.2"));
    maps.sort_unstable();
    HeapImage {
        image: writer.image,
        maps: map_lines(&maps),
        expected: writer.expected,
        structures: writer.structures,
    }
}

impl Writer {
    /// Writes a page whose blocks begin at `first` and may extend to `end`; its structure is at
    /// `at`.
    fn page(&mut self, fields: &Fields, at: u64, first: u64, end: u64, size: u64, dice: &mut Rng) {
        let room = (end - first) / size;
        let capacity = if dice.chance(50) { room } else { 1 + dice.below(room) };
        let keep = dice.below(101);
        let mut lists = [0; 3];
        let mut used = 0;
        for index in 0..capacity {
            let block = first + index * size;
            if dice.chance(keep) {
                used += 1;
                self.expected.live_bytes += size;
                self.expected.live_blocks += 1;
                continue;
            }
            let list = dice.below(3) as usize;
            if list == 2 {
                used += 1;
                self.expected.cached_bytes += size;
            } else {
                self.expected.free_bytes += size;
            }
            self.image.put_word(block, lists[list]);
            lists[list] = block;
        }
        self.expected.free_bytes += end - first - capacity * size;
        self.image.put_bits(at + fields.capacity, capacity, 16);
        self.image.put_bits(at + fields.reserved, room, 16);
        self.image.put_bits(at + fields.used.0, used, fields.used.1);
        self.image.put_bits(at + fields.size.0, size, fields.size.1);
        self.image.put_word(at + fields.free, lists[0]);
        self.image.put_word(at + fields.local_free, lists[1]);
        self.image.put_word(at + fields.thread_free, if lists[2] == 0 { 0 } else { lists[2] | 1 });
        if let Some(start) = fields.start {
            self.image.put_word(at + start, first);
        }
        self.structures.push((at & !7, (at & !7) + 72));
        self.structures.push((first & !7, end & !7));
    }

    /// Writes a segment of 2.x. `places` are the offsets of cookie, slices, own slices, kind,
    /// entries, and the structures of slices.
    fn slices(&mut self, fields: &Fields, bytes: u64, places: [u64; 6], dice: &mut Rng) -> u64 {
        let count = 40 + dice.below(20);
        self.image.map(HEAP, (32 * MIB) as usize);
        self.image.put_word(DATA + 0x100, KEY);
        let [cookie, slices, own, kind, entries, structures] = places;
        self.image
            .put_words(HEAP, [(cookie, HEAP ^ KEY), (slices, 512), (own, 1), (kind, 0), (entries, 512)]);
        // The segment's own slice, and its thread.
        let structures = HEAP + structures;
        self.image.put_bits(structures, 1, 32);
        self.image.put_bits(structures + fields.size.0, SLICE, fields.size.1);
        let thread = if cookie == 216 { 256 } else { 280 };
        self.image.put_word(HEAP + thread, 0x7f00_0000_1000);
        let (mut index, mut used) = (1, 0);
        for number in 0..count {
            // One block, or nothing: the structures of the slices behind its first are never
            // written.
            let is_large = number == 0;
            let here = if is_large { 110 + dice.below(40) } else { 1 + dice.below(4) };
            let at = structures + index * bytes;
            self.image.put_bits(at, here, 32);
            let (start, end) = (HEAP + index * SLICE, HEAP + (index + here) * SLICE);
            if dice.chance(85) {
                used += 1;
                let size =
                    if is_large { here * SLICE } else { SIZES[dice.below(SIZES.len() as u64) as usize] };
                // 2.0.9: 3 * MI_MAX_ALIGN_GUARANTEE.
                let first = start + if fields.start.is_some() || size > 1024 { 0 } else { 384 };
                self.page(fields, at, first, end, size, dice);
            }
            index += here;
        }
        self.image.put_bits(structures + index * bytes, 512 - index, 32);
        self.image.put_word(HEAP + cookie - 8, used);
        self.structures.push((HEAP, HEAP + 320));
        32 * MIB
    }

    /// Writes a segment of 1.9 with small pages.
    fn pages(&mut self, dice: &mut Rng) -> u64 {
        self.image.map(HEAP, (4 * MIB) as usize);
        self.image.put_word(DATA + 0x100, KEY);
        let own = 8 * KIB;
        let words = [(112, HEAP ^ KEY), (96, 64), (144, 16), (152, 0), (32, 4 * MIB), (104, own)];
        self.image.put_words(HEAP, words);
        self.image.put_word(HEAP + 136, 0x7f00_0000_1000);
        let mut used = 0;
        for index in 0..64 {
            let at = HEAP + 160 + 80 * index;
            if dice.chance(80) {
                used += 1;
                self.image.put_bits(at, index | 1 << 8, 16);
                let start = HEAP + if index == 0 { own } else { index * SLICE };
                let size = SIZES[dice.below(SIZES.len() as u64) as usize];
                self.page(&OF_1_9, at, start, HEAP + (index + 1) * SLICE, size, dice);
            }
        }
        self.image.put_word(HEAP + 88, used);
        self.structures.push((HEAP, HEAP + 160));
        4 * MIB
    }

    /// Writes an arena of 3.1 with its page map.
    fn arena(&mut self, dice: &mut Rng) -> u64 {
        const SLICES: u64 = 256;
        self.image.map(HEAP, (SLICES * SLICE) as usize);
        self.image.map(MAP, (4 * MIB + SLICE) as usize);
        self.image.put_row(DATA + 0x100, [MAP, HEAP]);
        let of_submap = MAP + HEAP / (8192 * SLICE) * 8;
        self.image.put_word(of_submap, SUBMAP);
        let own = 4;
        self.image.put_words(HEAP, [(24, DATA + 0x200), (32, SLICES), (40, own)]);
        let mut index = own;
        while index + 8 < SLICES {
            let here = 1 + dice.below(4);
            let page = HEAP + index * SLICE;
            if dice.chance(85) {
                let size = SIZES[dice.below(SIZES.len() as u64) as usize];
                // As many blocks as there is room for, so that the last slice belongs to the page.
                let first = page + 128;
                self.page(&OF_3_1, page, first, page + here * SLICE, size, dice);
                for slice in 0..here {
                    let entry = SUBMAP + (page / SLICE + slice) % 8192 * 8;
                    self.image.put_word(entry, page);
                }
            }
            index += here;
        }
        self.structures.extend([
            (HEAP, HEAP + 192),
            (of_submap, of_submap + 8),
            (DATA + 0x100, DATA + 0x110),
        ]);
        let first = SUBMAP + HEAP / SLICE % 8192 * 8;
        self.structures.push((first, first + 8 * SLICES));
        SLICES * SLICE
    }
}
