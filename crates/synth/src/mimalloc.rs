//! Fabricated mimallocs, with segments as in 2.0.9, 2.2 and 1.9, and with the page map of 3.1:
//! pages of blocks, whose free blocks are known by construction.
//!
//! Written from mimalloc's headers of each release, independently of the reader that it tests.

use crate::image::Field;
use crate::{HeapExpected, HeapImage, Image, Rng, map_line, map_lines};

const MIB: u64 = 1 << 20;
const KIB: u64 = 1 << 10;
pub const SLICE: u64 = 64 * KIB;
/// The library's static data, with what readers find in it at [`VARIABLE`]: in 1.x and 2.x the key
/// (`_mi_heap_main.cookie`), in 3.x the addresses of the page map and of the first arena.
const DATA: u64 = 0x7f51_4000_0000;
const DATA_BYTES: u64 = 64 * KIB;
const VARIABLE: u64 = DATA + 0x100;
/// The key, which the cookies of segments contain.
pub const KEY: u64 = 0x1357_9bdf_0246_8ace;
/// In 3.x, `mi_subproc_t`.
const SUBPROCESS: u64 = DATA + 0x200;
/// Address of mimalloc's mapping hints.
const HEAP: u64 = 10 << 40;
/// The owner of segments: any thread pointer.
const THREAD: u64 = 0x7f00_0000_1000;
/// The page map of 3.x, which is not in arenas: the root, and a part of it.
const MAP: u64 = 0x7f51_8000_0000;
const MAP_ROOT_BYTES: u64 = 4 * MIB;
const SUBMAP: u64 = MAP + MAP_ROOT_BYTES;
/// Entries of a part: one for each slice (`MI_PAGE_MAP_SUB_COUNT`).
const SUBMAP_ENTRIES: u64 = 8192;
/// Sizes of blocks.
const BLOCK_SIZES: [u64; 8] = [16, 48, 64, 320, 1024, 1280, 5120, 8192];

/// Number of layouts.
pub const MIMALLOC_LAYOUTS: usize = 6;

/// Offsets in a page's structure (`mi_page_t`) of a release.
pub struct PageLayout {
    capacity: u64,
    reserved: u64,
    free: u64,
    local_free: u64,
    thread_free: u64,
    used: Field,
    pub block_bytes: Field,
    /// The address of the first block, where it is a field.
    pub blocks_start: Option<u64>,
}

/// Figures of a page.
pub struct PageFields {
    /// Number of blocks that fit.
    pub reserved: u64,
    /// Number of blocks that were ever used.
    pub capacity: u64,
    /// Number of blocks that are not in the first two lists.
    pub used: u64,
    pub block_bytes: u64,
    /// Address of the first block.
    pub first_block: u64,
    /// Heads of the lists of free blocks: `free`, `local_free`, `xthread_free`.
    pub lists: [u64; 3],
}

impl PageLayout {
    /// Writes the structure of a page.
    pub fn write(&self, image: &mut Image, structure: u64, fields: &PageFields) {
        let [free, local_free, thread_free] = fields.lists;
        image.put_bits(structure + self.capacity, fields.capacity, 16);
        image.put_bits(structure + self.reserved, fields.reserved, 16);
        image.put_field(structure, self.used, fields.used);
        image.put_field(structure, self.block_bytes, fields.block_bytes);
        image.put_word(structure + self.free, free);
        image.put_word(structure + self.local_free, local_free);
        // The low bits are a `mi_delayed_t`.
        let thread_free = if thread_free == 0 { 0 } else { thread_free | 1 };
        image.put_word(structure + self.thread_free, thread_free);
        if let Some(offset) = self.blocks_start {
            image.put_word(structure + offset, fields.first_block);
        }
    }
}

pub const PAGE_2_0_9: PageLayout = PageLayout {
    capacity: 10,
    reserved: 12,
    free: 16,
    local_free: 32,
    thread_free: 40,
    used: Field { offset: 24, bits: 32 },
    block_bytes: Field { offset: 28, bits: 32 },
    blocks_start: None,
};
pub const PAGE_2_2: PageLayout = PageLayout {
    capacity: 10,
    reserved: 12,
    free: 16,
    local_free: 24,
    thread_free: 56,
    used: Field { offset: 32, bits: 16 },
    block_bytes: Field { offset: 40, bits: 64 },
    blocks_start: Some(48),
};
const PAGE_1_9: PageLayout = PageLayout {
    capacity: 2,
    reserved: 4,
    free: 8,
    local_free: 16,
    thread_free: 48,
    used: Field { offset: 24, bits: 16 },
    block_bytes: Field { offset: 32, bits: 64 },
    blocks_start: Some(40),
};
const PAGE_3_1: PageLayout = PageLayout {
    capacity: 18,
    reserved: 20,
    free: 8,
    local_free: 24,
    thread_free: 32,
    used: Field { offset: 16, bits: 16 },
    block_bytes: Field { offset: 40, bits: 64 },
    blocks_start: Some(48),
};

/// Offsets in a segment of 2.x (`mi_segment_t`).
pub struct SegmentLayout {
    /// Number of pages in use.
    pub used: u64,
    cookie: u64,
    slices: u64,
    /// Number of slices of the segment's own structure.
    own_slices: u64,
    kind: u64,
    entries: u64,
    thread: u64,
    /// The structures of pages, one for each slice.
    pub pages: u64,
}

impl SegmentLayout {
    /// Writes the structure of a segment whose first slice is its own.
    pub fn write(&self, image: &mut Image, segment: u64, thread: u64) {
        let words = [
            (self.cookie, segment ^ KEY),
            (self.slices, SEGMENT_SLICES),
            (self.own_slices, 1),
            (self.kind, 0),
            (self.entries, SEGMENT_SLICES),
            (self.thread, thread),
        ];
        image.put_words(segment, words);
    }
}

pub const SEGMENT_2_0_9: SegmentLayout = SegmentLayout {
    used: 208,
    cookie: 216,
    slices: 224,
    own_slices: 232,
    kind: 240,
    entries: 248,
    thread: 256,
    pages: 264,
};
pub const SEGMENT_2_2: SegmentLayout = SegmentLayout {
    used: 216,
    cookie: 224,
    slices: 248,
    own_slices: 256,
    kind: 264,
    entries: 272,
    thread: 280,
    pages: 288,
};
pub const SEGMENT_BYTES: u64 = 32 * MIB;
pub const SEGMENT_SLICES: u64 = SEGMENT_BYTES / SLICE;

/// Offsets in a segment of 1.9 with small pages, and the number of these.
mod segment_1_9 {
    pub const SEGMENT_BYTES: u64 = 32;
    pub const USED: u64 = 88;
    pub const CAPACITY: u64 = 96;
    pub const OWN_BYTES: u64 = 104;
    pub const COOKIE: u64 = 112;
    pub const THREAD: u64 = 136;
    pub const PAGE_SHIFT: u64 = 144;
    pub const PAGE_KIND: u64 = 152;
    pub const PAGES: u64 = 160;
    pub const PAGE_BYTES: u64 = 80;
    pub const PAGE_COUNT: u64 = 64;
}

/// Offsets in an arena of 3.1 (`mi_arena_t`).
mod arena_3_1 {
    pub const SUBPROCESS: u64 = 24;
    pub const SLICES: u64 = 32;
    pub const OWN_SLICES: u64 = 40;
}

struct Writer {
    image: Image,
    expected: HeapExpected,
    structure_ranges: Vec<(u64, u64)>,
}

/// Fabricates a mimalloc of `layout` (0 for 2.0.9, 1 for 2.2, 2 for 1.9, 3 for that of CPython
/// 3.13, 4 for that of CPython 3.14.10, 5 for 3.1) from `seed`.
pub fn fabricate_mimalloc(layout: usize, seed: u64) -> HeapImage {
    let mut rng = Rng::new(seed ^ 0x6d69);
    let image = Image::of(&[(DATA, DATA_BYTES)]);
    let mut writer = Writer { image, expected: HeapExpected::default(), structure_ranges: Vec::new() };
    let mut maps = Vec::new();
    let heap_bytes = match layout % MIMALLOC_LAYOUTS {
        0 => writer.write_segment(&SEGMENT_2_0_9, &PAGE_2_0_9, 80, &mut rng),
        1 => writer.write_segment(&SEGMENT_2_2, &PAGE_2_2, 96, &mut rng),
        2 => writer.write_segment_1_9(&mut rng),
        // CPython's page structures are larger, with the same fields.
        3 => writer.write_segment(&SEGMENT_2_0_9, &PAGE_2_0_9, 96, &mut rng),
        4 => writer.write_segment(&SEGMENT_2_2, &PAGE_2_2, 112, &mut rng),
        _ => {
            maps.push(map_line(MAP, MAP_ROOT_BYTES + SLICE, "rw-p 00000000 00:00 0"));
            writer.write_arena(&mut rng)
        }
    };
    maps.push(map_line(HEAP, heap_bytes, "rw-p 00000000 00:00 0"));
    maps.push(map_line(DATA, DATA_BYTES, "rw-p 00080000 08:01 79 /usr/lib/libmimalloc.so.2"));
    maps.sort_unstable_by_key(|line| line.start);
    HeapImage {
        image: writer.image,
        maps: map_lines(&maps),
        expected: writer.expected,
        structure_ranges: writer.structure_ranges,
    }
}

/// The blocks of a page.
struct Blocks {
    /// First block, and end of the memory for blocks.
    start: u64,
    end: u64,
    block_bytes: u64,
}

impl Writer {
    /// Writes a page whose structure is at `structure`; each free block is in one of its three
    /// lists.
    fn write_page(&mut self, layout: &PageLayout, structure: u64, blocks: &Blocks, rng: &mut Rng) {
        let Blocks { start, end, block_bytes } = *blocks;
        let reserved = (end - start) / block_bytes;
        let capacity = if rng.chance(50) { reserved } else { 1 + rng.below(reserved) };
        let used_percent = rng.below(101);
        // `free`, `local_free`, `xthread_free`; blocks in the last one count as used.
        let mut lists = [0; 3];
        let mut used = 0;
        for index in 0..capacity {
            let block = start + index * block_bytes;
            if rng.chance(used_percent) {
                used += 1;
                self.expected.live_bytes += block_bytes;
                self.expected.live_blocks += 1;
                continue;
            }
            let list = rng.below(3) as usize;
            if list == 2 {
                used += 1;
                self.expected.cached_bytes += block_bytes;
            } else {
                self.expected.free_bytes += block_bytes;
            }
            self.image.put_word(block, lists[list]);
            lists[list] = block;
        }
        self.expected.free_bytes += end - start - capacity * block_bytes;
        let fields = PageFields { reserved, capacity, used, block_bytes, first_block: start, lists };
        layout.write(&mut self.image, structure, &fields);
        self.structure_ranges.push((structure & !7, (structure & !7) + 72));
        self.structure_ranges.push((start & !7, end & !7));
    }

    /// Writes a segment of 2.x, whose page structures have `structure_bytes`; returns its bytes.
    fn write_segment(
        &mut self,
        segment: &SegmentLayout,
        page: &PageLayout,
        structure_bytes: u64,
        rng: &mut Rng,
    ) -> u64 {
        let page_count = 40 + rng.below(20);
        self.image.map(HEAP, SEGMENT_BYTES as usize);
        self.image.put_word(VARIABLE, KEY);
        segment.write(&mut self.image, HEAP, THREAD);
        // The segment's own slice.
        let structures = HEAP + segment.pages;
        self.image.put_bits(structures, 1, 32);
        self.image.put_field(structures, page.block_bytes, SLICE);
        let (mut index, mut used_pages) = (1, 0);
        for number in 0..page_count {
            // One block, or nothing: only the structure of its first slice is ever written.
            let is_large = number == 0;
            let slices = if is_large { 110 + rng.below(40) } else { 1 + rng.below(4) };
            let structure = structures + index * structure_bytes;
            self.image.put_bits(structure, slices, 32);
            let (start, end) = (HEAP + index * SLICE, HEAP + (index + slices) * SLICE);
            if rng.chance(85) {
                used_pages += 1;
                let block_bytes = if is_large { slices * SLICE } else { rng.one_of(&BLOCK_SIZES) };
                // 2.0.9: 3 * MI_MAX_ALIGN_GUARANTEE.
                let offset = if page.blocks_start.is_some() || block_bytes > 1024 { 0 } else { 384 };
                self.write_page(page, structure, &Blocks { start: start + offset, end, block_bytes }, rng);
            }
            index += slices;
        }
        self.image.put_bits(structures + index * structure_bytes, SEGMENT_SLICES - index, 32);
        self.image.put_word(HEAP + segment.used, used_pages);
        self.structure_ranges.push((HEAP, HEAP + 320));
        SEGMENT_BYTES
    }

    /// Writes a segment of 1.9 with small pages; returns its bytes.
    fn write_segment_1_9(&mut self, rng: &mut Rng) -> u64 {
        use segment_1_9 as layout;
        const BYTES: u64 = layout::PAGE_COUNT * SLICE;
        const OWN_BYTES: u64 = 8 * KIB;
        self.image.map(HEAP, BYTES as usize);
        self.image.put_word(VARIABLE, KEY);
        let words = [
            (layout::COOKIE, HEAP ^ KEY),
            (layout::CAPACITY, layout::PAGE_COUNT),
            (layout::PAGE_SHIFT, 16),
            (layout::PAGE_KIND, 0),
            (layout::SEGMENT_BYTES, BYTES),
            (layout::OWN_BYTES, OWN_BYTES),
            (layout::THREAD, THREAD),
        ];
        self.image.put_words(HEAP, words);
        let mut used_pages = 0;
        for index in 0..layout::PAGE_COUNT {
            let structure = HEAP + layout::PAGES + layout::PAGE_BYTES * index;
            if rng.chance(80) {
                used_pages += 1;
                // `segment_idx`, and the flag `segment_in_use`.
                self.image.put_bits(structure, index | 1 << 8, 16);
                let start = HEAP + if index == 0 { OWN_BYTES } else { index * SLICE };
                let end = HEAP + (index + 1) * SLICE;
                let block_bytes = rng.one_of(&BLOCK_SIZES);
                self.write_page(&PAGE_1_9, structure, &Blocks { start, end, block_bytes }, rng);
            }
        }
        self.image.put_word(HEAP + layout::USED, used_pages);
        self.structure_ranges.push((HEAP, HEAP + layout::PAGES));
        BYTES
    }

    /// Writes an arena of 3.1 with its page map; returns its bytes.
    fn write_arena(&mut self, rng: &mut Rng) -> u64 {
        const SLICES: u64 = 256;
        const OWN_SLICES: u64 = 4;
        /// Bytes of a page's structure, which is at the start of the page.
        const STRUCTURE_BYTES: u64 = 128;
        self.image.map(HEAP, (SLICES * SLICE) as usize);
        self.image.map(MAP, (MAP_ROOT_BYTES + SLICE) as usize);
        self.image.put_row(VARIABLE, [MAP, HEAP]);
        let root_entry = MAP + HEAP / (SUBMAP_ENTRIES * SLICE) * 8;
        self.image.put_word(root_entry, SUBMAP);
        let words = [
            (arena_3_1::SUBPROCESS, SUBPROCESS),
            (arena_3_1::SLICES, SLICES),
            (arena_3_1::OWN_SLICES, OWN_SLICES),
        ];
        self.image.put_words(HEAP, words);
        let submap_entry = |address: u64| SUBMAP + address / SLICE % SUBMAP_ENTRIES * 8;
        let mut index = OWN_SLICES;
        while index + 8 < SLICES {
            let slices = 1 + rng.below(4);
            let page = HEAP + index * SLICE;
            if rng.chance(85) {
                let block_bytes = rng.one_of(&BLOCK_SIZES);
                // Blocks may extend to the end, so that the last slice belongs to the page.
                let blocks =
                    Blocks { start: page + STRUCTURE_BYTES, end: page + slices * SLICE, block_bytes };
                self.write_page(&PAGE_3_1, page, &blocks, rng);
                for slice in 0..slices {
                    self.image.put_word(submap_entry(page + slice * SLICE), page);
                }
            }
            index += slices;
        }
        self.structure_ranges.extend([
            (HEAP, HEAP + 192),
            (root_entry, root_entry + 8),
            (VARIABLE, VARIABLE + 16),
            (submap_entry(HEAP), submap_entry(HEAP) + 8 * SLICES),
        ]);
        SLICES * SLICE
    }
}
