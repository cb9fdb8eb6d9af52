//! Fabricated mallocngs: the data of a static program with the allocator's state, areas of
//! metadata, and groups of slots, some of them in a slot of another group. All contents are known
//! by construction.
//!
//! Written from musl's `src/malloc/mallocng`, independently of the reader that it tests.

use crate::{HeapExpected, HeapImage, Image, Rng, map_lines};

const PAGE: u64 = 4096;
const DATA: u64 = 0x40_8000;
const DATA_BYTES: u64 = 4 * PAGE;
const AREAS: u64 = 0x7f11_0000_0000;
const AREAS_BYTES: u64 = 4 * PAGE;
const HEAP: u64 = 0x7f12_0000_0000;
const HEAP_BYTES: u64 = 4 << 20;
/// Size classes: number, and units of 16 bytes.
const CLASSES: [(u64, u64); 5] = [(0, 1), (3, 4), (12, 18), (19, 63), (27, 255)];
/// Maximum number of groups.
const GROUPS: usize = 150;

/// Fabricates a mallocng from `seed`.
pub fn fabricate_musl(seed: u64) -> HeapImage {
    let mut image = Image::of(&[(DATA, DATA_BYTES), (AREAS, AREAS_BYTES), (HEAP, HEAP_BYTES)]);
    let mut dice = Rng::new(seed ^ 0x6d75);
    let secret = dice.below(u64::MAX - 1) + 1;
    let context = DATA + 8 * dice.below(500);
    // struct malloc_context: secret, init_done and mmap_counter, …, meta_area_head.
    image.put_words(context, [(0, secret), (8, 1 | 7 << 32), (56, AREAS)]);
    let mut writer = Writer { image, secret, metas: 0, at: HEAP, expected: HeapExpected::default() };
    while writer.metas < GROUPS && writer.at + (1 << 18) < HEAP + HEAP_BYTES {
        writer.mapped_group(&mut dice);
    }
    let maps = map_lines(&[
        (DATA, DATA_BYTES, "rw-p 00008000 08:01 77 /usr/bin/program"),
        (AREAS, AREAS_BYTES, "rw-p 00000000 00:00 0"),
        (HEAP, HEAP_BYTES, "rw-p 00000000 00:00 0"),
    ]);
    let structures = vec![(context, context + 64), (AREAS, AREAS + 2 * PAGE), (HEAP, writer.at)];
    HeapImage { image: writer.image, maps, expected: writer.expected, structures }
}

struct Writer {
    image: Image,
    secret: u64,
    metas: usize,
    at: u64,
    expected: HeapExpected,
}

/// Address of a meta: an area has 101 of them, behind 24 bytes.
fn meta(index: usize) -> u64 {
    AREAS + PAGE * (index as u64 / 101) + 24 + 40 * (index as u64 % 101)
}

/// A group of slots of one size.
struct Group {
    start: u64,
    class: u64,
    slot_bytes: u64,
    slots: u64,
}

impl Writer {
    /// Writes a group in its own mapping; a slot may hold another group.
    fn mapped_group(&mut self, dice: &mut Rng) {
        if dice.chance(10) {
            // One block with its own mapping, of class 63.
            let pages = 1 + dice.below(30);
            let group = Group { start: self.at, class: 63, slot_bytes: pages * PAGE - 16, slots: 1 };
            self.group(group, pages, dice);
            self.at += pages * PAGE;
            return;
        }
        let (class, units) = CLASSES[dice.below(CLASSES.len() as u64) as usize];
        let slots = 2 + dice.below(30);
        let pages = (16 + slots * units * 16).div_ceil(PAGE);
        self.group(Group { start: self.at, class, slot_bytes: units * 16, slots }, pages, dice);
        self.at += pages * PAGE;
    }

    /// Writes a group, in a mapping of `pages`.
    fn group(&mut self, group: Group, pages: u64, dice: &mut Rng) {
        let Group { start, class, slot_bytes: stride, slots } = group;
        let index = self.metas;
        self.metas += 1;
        let area = meta(index) & !(PAGE - 1);
        // struct meta_area: check, next, nslots.
        self.image.put_word(area, self.secret);
        if area > AREAS {
            self.image.put_word(area - PAGE + 8, area);
        }
        self.image.put_word(area + 16, 101);
        let (mut avail, mut freed) = (0_u64, 0_u64);
        for slot in 0..slots {
            let at = start + 16 + slot * stride;
            match dice.below(6) {
                0 => {
                    avail |= 1 << slot;
                    self.expected.free_bytes += stride;
                }
                1 => {
                    freed |= 1 << slot;
                    self.expected.free_bytes += stride;
                }
                2 if stride >= 4080 && slots > 1 && self.metas + 1 < GROUPS => {
                    // A nested group: 30 slots of four units.
                    self.image.put(at - 4, &[0, 6 << 5 | (slot as u8 & 31), 0, 0]);
                    self.group(Group { start: at, class: 3, slot_bytes: 64, slots: 30 }, 0, dice);
                }
                _ => self.block(at, slot, stride, dice),
            }
        }
        self.image.put_word(start, meta(index));
        let words = [0, 0, start, avail | freed << 32, (slots - 1) | class << 6 | pages << 12];
        self.image.put_row(meta(index), words);
    }

    /// Writes a block in a slot, as enframe and set_size leave it.
    fn block(&mut self, slot_start: u64, slot: u64, stride: u64, dice: &mut Rng) {
        let most = stride - 4;
        let bytes = most - dice.below(most.min(200));
        let slack = (most - bytes) / 16;
        let offset = if slack > 0 { dice.below(slack + 1) } else { 0 };
        let mut pointer = slot_start;
        if offset > 0 {
            let marks = (offset as u16).to_le_bytes();
            self.image.put(slot_start - 4, &[0, 7 << 5, marks[0], marks[1]]);
            pointer += 16 * offset;
        }
        let reserved = slot_start + most - pointer - bytes;
        let few = reserved.min(5);
        if few == 5 {
            self.image.put(slot_start + most - 4, &(reserved as u32).to_le_bytes());
        }
        self.image.put(pointer - 4, &[0, (few << 5) as u8 | (slot as u8 & 31), 0, 0]);
        self.expected.live_blocks += 1;
        self.expected.live_bytes += bytes;
    }
}
