//! Fabricated mallocngs: the data of a static program with the allocator's state, areas of
//! metadata, and groups of slots, some of them in a slot of another group. All contents are known
//! by construction.
//!
//! Written from musl's `src/malloc/mallocng`, independently of the reader that it tests.

use crate::{HeapExpected, HeapImage, Image, PAGE, Rng, map_line, map_lines};

/// Mappings: the program's data, areas of metadata, and groups.
const DATA: u64 = 0x40_8000;
const DATA_BYTES: u64 = 4 * PAGE;
const AREAS: u64 = 0x7f11_0000_0000;
const AREAS_BYTES: u64 = 4 * PAGE;
const HEAP: u64 = 0x7f12_0000_0000;
const HEAP_BYTES: u64 = 4 << 20;
/// Sizes and distances are multiples of this (`UNIT`).
const UNIT: u64 = 16;
/// Bytes of `struct group` before the first slot, and of the header before a block (`IB`).
const GROUP_HEADER: u64 = 16;
const BLOCK_HEADER: u64 = 4;
/// A header's second byte has the slot's number in its low bits, and above them the reserved bytes
/// (5 if they are in the last word of the slot), 6 for a nested group, or 7 for a moved block.
const SLOT_MASK: u8 = 31;
const RESERVED_SHIFT: u32 = 5;
const RESERVED_AT_END: u8 = 5;
const NESTED_GROUP: u8 = 6;
const MOVED_BLOCK: u8 = 7;
/// `struct meta_area`: bytes before its metas, bytes of a meta, and number of metas on a page.
const AREA_HEADER: u64 = 24;
const META_BYTES: u64 = 40;
const AREA_METAS: u64 = 101;
/// The class of blocks with their own mappings.
const MMAPPED_CLASS: u64 = 63;

/// A size class: its index in musl's `size_classes`, and its units.
#[derive(Clone, Copy)]
struct SizeClass {
    number: u64,
    units: u64,
}

const CLASSES: [SizeClass; 5] = [
    SizeClass { number: 0, units: 1 },
    SizeClass { number: 3, units: 4 },
    SizeClass { number: 12, units: 18 },
    SizeClass { number: 19, units: 63 },
    SizeClass { number: 27, units: 255 },
];
/// The class of the slots of a nested group, their number, and the bytes of the group.
const NESTED_CLASS: SizeClass = CLASSES[1];
const NESTED_SLOTS: u64 = 30;
const NESTED_BYTES: u64 = GROUP_HEADER + NESTED_SLOTS * NESTED_CLASS.units * UNIT;
/// Maximum number of groups.
const MAX_GROUPS: usize = 150;

/// Fabricates a mallocng from `seed`.
pub fn fabricate_musl(seed: u64) -> HeapImage {
    let mut image = Image::of(&[(DATA, DATA_BYTES), (AREAS, AREAS_BYTES), (HEAP, HEAP_BYTES)]);
    let mut rng = Rng::new(seed ^ 0x6d75);
    let secret = rng.below(u64::MAX - 1) + 1;
    // Its 64 bytes are on the first page.
    let context = DATA + 8 * rng.below(500);
    // struct malloc_context: secret, init_done and mmap_counter, …, meta_area_head.
    image.put_words(context, [(0, secret), (8, 1 | 7 << 32), (56, AREAS)]);
    let expected = HeapExpected::default();
    let mut writer = Writer { image, secret, group_count: 0, next_mapping: HEAP, expected };
    // A mapping has at most 1 << 18 bytes.
    while writer.group_count < MAX_GROUPS && writer.next_mapping + (1 << 18) < HEAP + HEAP_BYTES {
        writer.write_mapped_group(&mut rng);
    }
    let maps = map_lines(&[
        map_line(DATA, DATA_BYTES, "rw-p 00008000 08:01 77 /usr/bin/program"),
        map_line(AREAS, AREAS_BYTES, "rw-p 00000000 00:00 0"),
        map_line(HEAP, HEAP_BYTES, "rw-p 00000000 00:00 0"),
    ]);
    let structure_ranges =
        vec![(context, context + 64), (AREAS, AREAS + 2 * PAGE), (HEAP, writer.next_mapping)];
    HeapImage { image: writer.image, maps, expected: writer.expected, structure_ranges }
}

struct Writer {
    image: Image,
    secret: u64,
    /// Number of groups written, each with its meta.
    group_count: usize,
    /// Address of the next mapping.
    next_mapping: u64,
    expected: HeapExpected,
}

/// Address of the meta of the group with this number.
fn meta_address(group: usize) -> u64 {
    let (area, index) = (group as u64 / AREA_METAS, group as u64 % AREA_METAS);
    AREAS + PAGE * area + AREA_HEADER + META_BYTES * index
}

/// A group of slots of one size.
struct Group {
    start: u64,
    class: u64,
    slot_bytes: u64,
    slots: u64,
    /// Pages of its own mapping; 0 for a nested group.
    pages: u64,
}

impl Writer {
    /// Writes a group in its own mapping; a slot may hold another group.
    fn write_mapped_group(&mut self, rng: &mut Rng) {
        let start = self.next_mapping;
        let group = if rng.chance(10) {
            // One block with its own mapping.
            let pages = 1 + rng.below(30);
            let slot_bytes = pages * PAGE - GROUP_HEADER;
            Group { start, class: MMAPPED_CLASS, slot_bytes, slots: 1, pages }
        } else {
            let SizeClass { number, units } = rng.one_of(&CLASSES);
            let (slot_bytes, slots) = (units * UNIT, 2 + rng.below(30));
            let pages = (GROUP_HEADER + slots * slot_bytes).div_ceil(PAGE);
            Group { start, class: number, slot_bytes, slots, pages }
        };
        self.next_mapping += group.pages * PAGE;
        self.write_group(&group, rng);
    }

    /// Writes a group, its meta, and the groups in its slots.
    fn write_group(&mut self, group: &Group, rng: &mut Rng) {
        let Group { start, class, slot_bytes, slots, pages } = *group;
        let meta = meta_address(self.group_count);
        self.group_count += 1;
        let area = meta & !(PAGE - 1);
        // struct meta_area: check, next, nslots.
        self.image.put_word(area, self.secret);
        if area > AREAS {
            self.image.put_word(area - PAGE + 8, area);
        }
        self.image.put_word(area + 16, AREA_METAS);
        let (mut available_mask, mut freed_mask) = (0_u64, 0_u64);
        for slot in 0..slots {
            let slot_start = start + GROUP_HEADER + slot * slot_bytes;
            match rng.below(6) {
                0 if class != MMAPPED_CLASS => {
                    available_mask |= 1 << slot;
                    self.expected.free_bytes += slot_bytes;
                }
                1 if class != MMAPPED_CLASS => {
                    freed_mask |= 1 << slot;
                    self.expected.free_bytes += slot_bytes;
                }
                2 if slot_bytes > NESTED_BYTES && slots > 1 && self.group_count + 1 < MAX_GROUPS => {
                    let byte = NESTED_GROUP << RESERVED_SHIFT | (slot as u8 & SLOT_MASK);
                    self.write_header(slot_start, byte, start);
                    let SizeClass { number: class, units } = NESTED_CLASS;
                    let (slot_bytes, slots) = (units * UNIT, NESTED_SLOTS);
                    let nested = Group { start: slot_start, class, slot_bytes, slots, pages: 0 };
                    self.write_group(&nested, rng);
                }
                _ => self.write_block(group, slot, rng),
            }
        }
        self.image.put_word(start, meta);
        // struct meta: prev, next, mem, the masks, and last_idx, freeable, sizeclass and maplen.
        // freeable stays 0: the reader has no use for it.
        let masks = available_mask | freed_mask << 32;
        self.image.put_row(meta, [0, 0, start, masks, (slots - 1) | class << 6 | pages << 12]);
    }

    /// Writes a block in a slot, as enframe and set_size leave it.
    fn write_block(&mut self, group: &Group, slot: u64, rng: &mut Rng) {
        let Group { start, slot_bytes, .. } = *group;
        let slot_start = start + GROUP_HEADER + slot * slot_bytes;
        let max_bytes = slot_bytes - BLOCK_HEADER;
        let bytes = max_bytes - rng.below(max_bytes.min(200));
        let slack_units = (max_bytes - bytes) / UNIT;
        let offset_units = if slack_units > 0 { rng.below(slack_units + 1) } else { 0 };
        let block = slot_start + UNIT * offset_units;
        if offset_units > 0 {
            let [low, high, ..] = offset_units.to_le_bytes();
            let header = [0, MOVED_BLOCK << RESERVED_SHIFT, low, high];
            self.image.put(slot_start - BLOCK_HEADER, &header);
        }
        let slot_end = slot_start + max_bytes;
        let reserved_bytes = slot_end - block - bytes;
        let reserved = reserved_bytes.min(RESERVED_AT_END.into()) as u8;
        if reserved == RESERVED_AT_END {
            self.image.put_half(slot_end - 4, reserved_bytes);
        }
        let byte = reserved << RESERVED_SHIFT | (slot as u8 & SLOT_MASK);
        self.write_header(block, byte, start);
        self.expected.live_blocks += 1;
        self.expected.live_bytes += bytes;
    }

    /// Writes the header before `block`: its second byte, and the units from the first slot on.
    fn write_header(&mut self, block: u64, byte: u8, group_start: u64) {
        let [low, high, ..] = ((block - group_start - GROUP_HEADER) / UNIT).to_le_bytes();
        self.image.put(block - BLOCK_HEADER, &[0, byte, low, high]);
    }
}
