//! Fabricated jemallocs: a library's static data with the root of the map, a block of jemalloc's
//! own structures, and a heap of slabs, large allocations and free extents. All contents are known
//! by construction.
//!
//! Written from jemalloc's headers of each release, independently of the reader that it tests.

use crate::{HeapExpected, HeapImage, Image, Rng, map_lines};

const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;
/// The library's file-backed data, and its bss behind it.
const DATA: u64 = 0x7f31_4000_0000;
const DATA_BYTES: u64 = 16 * PAGE;
const BSS_BYTES: u64 = 3 * MIB;
/// The block of jemalloc's own structures: header, extents, the leaf of the map.
const BASE: u64 = 0x7f31_8000_0000;
const BASE_BYTES: u64 = 8 * MIB;
const EXTENTS: u64 = BASE + 64 * 1024;
const LEAF: u64 = BASE + 4 * MIB;
/// The heap.
const HEAP: u64 = 0x7f32_c000_0000;
const HEAP_BYTES: u64 = 16 * MIB;

/// Positions of the flags of an extent (`e_bits`) by layout: state, size class, free regions.
const FLAGS: [(u32, u32, u32); 3] = [(17, 20, 28), (16, 18, 26), (15, 17, 25)];
/// Number of layouts.
pub const JEMALLOC_LAYOUTS: usize = FLAGS.len();
/// Small size classes: number, bytes of a region, pages of a slab.
const SLABS: [(u64, u64, u64); 5] = [(0, 8, 1), (4, 64, 1), (9, 160, 5), (13, 320, 5), (35, 14336, 7)];
/// A large size class: number, and bytes. Its extents have one page more.
const LARGE: (u64, u64) = (40, 32 << 10);

/// Fabricates a jemalloc of `layout` (0 for 5.3, 1 for 5.1 and 5.2, 2 for 5.0) from `seed`.
pub fn fabricate_jemalloc(layout: usize, seed: u64) -> HeapImage {
    let flags = FLAGS[layout % FLAGS.len()];
    let mut image = Image::of(&[(DATA, DATA_BYTES + BSS_BYTES), (BASE, BASE_BYTES), (HEAP, HEAP_BYTES)]);
    let mut dice = Rng::new(seed ^ 0x6a65);
    // The root is at a random place in the bss.
    let root = DATA + DATA_BYTES + 64 * dice.below(1000);
    image.put_word(root + HEAP / (1 << 30) * 8, LEAF);
    let mut writer = Writer {
        image,
        flags,
        is_new: layout.is_multiple_of(FLAGS.len()),
        next: EXTENTS,
        at: HEAP,
        expected: HeapExpected::default(),
    };
    while writer.at + 64 * PAGE < HEAP + HEAP_BYTES && writer.next + 128 < LEAF {
        writer.extent(&mut dice);
    }
    let (used, mut image) = (writer.next, writer.image);
    // base_block_t: size, next, and an extent for the unused rest.
    image.put_row(BASE, [BASE_BYTES, 0, 0, LEAF + 2 * MIB, BASE + BASE_BYTES - LEAF - 2 * MIB]);
    let maps = map_lines(&[
        (DATA, DATA_BYTES, "rw-p 00080000 08:01 77 /usr/lib/libjemalloc.so.2"),
        (DATA + DATA_BYTES, BSS_BYTES, "rw-p 00000000 00:00 0"),
        (BASE, BASE_BYTES, "rw-p 00000000 00:00 0"),
        (HEAP, HEAP_BYTES, "rw-p 00000000 00:00 0"),
    ]);
    let leaf = LEAF + (HEAP >> 12) % (1 << 18) * 8;
    let structures = vec![
        (root + HEAP / (1 << 30) * 8, root + HEAP / (1 << 30) * 8 + 8),
        (BASE, BASE + 40),
        (EXTENTS, used),
        (leaf, leaf + HEAP_BYTES / PAGE * 8),
    ];
    HeapImage { image, maps, expected: writer.expected, structures }
}

struct Writer {
    image: Image,
    flags: (u32, u32, u32),
    is_new: bool,
    next: u64,
    at: u64,
    expected: HeapExpected,
}

impl Writer {
    fn extent(&mut self, dice: &mut Rng) {
        let (start, structure) = (self.at, self.next);
        let (state, class, pages, slab) = match dice.below(10) {
            0 => (1, 232, 1 + dice.below(40), None),
            1 => (2, 232, 1 + dice.below(10), None),
            2 => (3, 232, 1 + dice.below(40), None),
            3 => (0, LARGE.0, LARGE.1 / PAGE + 1, None),
            _ => {
                let (class, bytes, pages) = SLABS[dice.below(SLABS.len() as u64) as usize];
                (0, class, pages, Some(bytes))
            }
        };
        let end = start + pages * PAGE;
        let mut free = 0;
        let mut bitmap = [0_u64; 8];
        match slab {
            Some(bytes) => {
                let regions = pages * PAGE / bytes;
                let keep = dice.below(101);
                for region in 0..regions {
                    if !dice.chance(keep) {
                        bitmap[(region / 64) as usize] |= 1 << (region % 64);
                        free += 1;
                    }
                }
                // Bits behind the last region may be set, as bitmap_init leaves them.
                for region in regions..512 {
                    bitmap[(region / 64) as usize] |= u64::from(dice.chance(50)) << (region % 64);
                }
                self.expected.live_bytes += (regions - free) * bytes;
                self.expected.live_blocks += regions - free;
                self.expected.free_bytes += free * bytes;
            }
            None if state == 0 => {
                self.expected.live_bytes += LARGE.1;
                self.expected.live_blocks += 1;
            }
            None => {}
        }
        match state {
            0 => self.expected.active_bytes += end - start,
            1 | 2 => self.expected.releasable_bytes += end - start,
            _ => {}
        }
        let offset = if slab.is_none() && state == 0 { 64 * dice.below(64) } else { 0 };
        let (state_shift, class_shift, free_shift) = self.flags;
        let bits = u64::from(slab.is_some()) << 12
            | state << state_shift
            | class << class_shift
            | free << free_shift;
        // The low bits of the third word are a serial number.
        self.image.put_row(structure, [bits, start + offset, (end - start) | dice.below(PAGE)]);
        self.image.put_row(structure + 64, bitmap);
        let of_state = if self.is_new { state << 2 } else { 0 };
        let entry = class << 48 | structure | of_state | u64::from(slab.is_some());
        let leaf = |page: u64| LEAF + (page >> 12) % (1 << 18) * 8;
        for page in (start..end).step_by(PAGE as usize) {
            if slab.is_some() || page == start || page + PAGE == end {
                self.image.put_word(leaf(page), entry);
            }
        }
        self.at = end + if dice.chance(10) { PAGE } else { 0 };
        self.next += 128;
    }
}
