//! Fabricated CPythons without a global lock: static data with `_PyRuntime`, types and the key of
//! heaps, and a segment whose pages belong to heaps by kind and hold objects, dead objects, other
//! blocks and free ones. All of it is known by construction.
//!
//! Written from CPython's `Include/object.h` and `Include/internal/mimalloc` (3.13.5 and 3.14.10),
//! independently of the reader that it tests.

use crate::{CPythonExpected, CPythonImage, Image, Rng, map_lines};

const PAGE: u64 = 4096;
const CODE: u64 = 0x40_0000;
const DATA: u64 = 0x60_0000;
const DATA_BYTES: u64 = 16 * PAGE;
const STATE: u64 = 0x7f10_0000_0000;
const STATE_BYTES: u64 = 16 * PAGE;
const SEGMENT: u64 = 0x7f20_0000_0000;
const SEGMENT_BYTES: u64 = 32 << 20;
const SLICE: u64 = 64 << 10;
/// The part of the segment that was ever written to.
const USED_BYTES: u64 = 24 * SLICE;
const RUNTIME: u64 = DATA + 0x100;
const KEY: u64 = 0x1357_9bdf_0246_8ace;
const TYPES: u64 = DATA + 0x3000;
const TYPE_BYTES: u64 = 0x200;
const NAMES: u64 = DATA + 0x8000;

const READY: u64 = 1 << 12;
const HAVE_GC: u64 = 1 << 14;
const MANAGED_DICT: u64 = 1 << 4;
const IS_TYPE: u64 = 1 << 31;
/// Types: name, flags, `tp_basicsize`, `tp_itemsize`, the heap of instances.
const KINDS: [(&str, u64, u64, u64, u64); 4] = [
    ("type", READY | HAVE_GC | IS_TYPE, 416, 40, 2),
    ("plain", READY, 48, 0, 1),
    ("collected", READY | HAVE_GC, 56, 0, 2),
    ("with_dict", READY | HAVE_GC | MANAGED_DICT, 40, 0, 3),
];
const SIZES: [u64; 6] = [48, 64, 96, 320, 1024, 8192];

/// Offsets of a release: in a segment those of cookie, slices, own slices, kind, entries, thread
/// and page structures; then those in a page structure.
struct Fields {
    segment: [u64; 7],
    page_bytes: u64,
    used: (u64, u32),
    block_bytes: (u64, u32),
    local_free: u64,
    thread_free: u64,
    tag: (u64, u32),
    start: Option<u64>,
}

const OF_3_13: Fields = Fields {
    segment: [216, 224, 232, 240, 248, 256, 264],
    page_bytes: 96,
    used: (24, 32),
    block_bytes: (28, 32),
    local_free: 32,
    thread_free: 40,
    tag: (8, 3),
    start: None,
};
const OF_3_14: Fields = Fields {
    segment: [224, 248, 256, 264, 272, 280, 288],
    page_bytes: 112,
    used: (32, 16),
    block_bytes: (40, 64),
    local_free: 24,
    thread_free: 56,
    tag: (35, 0),
    start: Some(48),
};

/// Fabricates a CPython from `seed`: 3.13 or 3.14.
pub fn fabricate_free_threaded_cpython(seed: u64) -> CPythonImage {
    let mut dice = Rng::new(seed ^ 0x7079_7468);
    let (minor, fields, gc) = if dice.below(2) == 1 { (14, &OF_3_14, 88) } else { (13, &OF_3_13, 80) };
    let mut image = Image::of(&[(DATA, DATA_BYTES), (STATE, STATE_BYTES), (SEGMENT, USED_BYTES)]);
    let maps = map_lines(&[
        (CODE, PAGE, &format!("r-xp 00000000 08:01 7 /usr/bin/python3.{minor}t")),
        (DATA, DATA_BYTES, &format!("rw-p 00200000 08:01 7 /usr/bin/python3.{minor}t")),
        (STATE, STATE_BYTES, "rw-p 00000000 00:00 0 "),
        (SEGMENT, SEGMENT_BYTES, "rw-p 00000000 00:00 0 "),
    ]);
    image.put(RUNTIME, b"xdebugpy");
    // No global lock; the offsets of the first interpreter, of its link to the next one, and of its
    // collector.
    image.put_words(RUNTIME, [(16, 1), (40, 0x800), (64, 8), (gc, 0x100)]);
    image.put_word(RUNTIME + 0x800, STATE);
    image.put_word(DATA + 0x2000, KEY);
    for (number, (name, flags, basic, item, _)) in KINDS.into_iter().enumerate() {
        let (at, name_at) = (TYPES + TYPE_BYTES * number as u64, NAMES + 32 * number as u64);
        image.put(name_at, name.as_bytes());
        image.put_words(at, [(24, TYPES), (40, name_at), (48, basic), (56, item), (184, flags)]);
    }
    let mut writer = Writer { image, dice, expected: CPythonExpected::default(), fields };
    writer.segment();
    let Writer { image, expected, .. } = writer;
    CPythonImage { image, maps, minor, runtime: RUNTIME, data: (DATA, DATA + DATA_BYTES), expected }
}

struct Writer {
    image: Image,
    dice: Rng,
    expected: CPythonExpected,
    fields: &'static Fields,
}

impl Writer {
    fn add(&mut self, name: &'static str, figure: u64) {
        *self.expected.debug_stats.entry(name).or_default() += figure;
    }

    fn segment(&mut self) {
        let [cookie, slices, own, kind, entries, thread, structures] = self.fields.segment;
        let words =
            [(cookie, SEGMENT ^ KEY), (slices, 512), (own, 1), (kind, 0), (entries, 512), (thread, STATE)];
        self.image.put_words(SEGMENT, words);
        let structures = SEGMENT + structures;
        self.image.put_bits(structures, 1, 32);
        self.image.put_bits(structures + self.fields.block_bytes.0, 1, self.fields.block_bytes.1);
        let (mut index, mut used) = (1, 0);
        while index + 3 < USED_BYTES / SLICE {
            let here = 1 + self.dice.below(3);
            let at = structures + index * self.fields.page_bytes;
            self.image.put_bits(at, here, 32);
            if self.dice.chance(85) {
                used += 1;
                self.page(at, SEGMENT + index * SLICE, SEGMENT + (index + here) * SLICE);
            }
            index += here;
        }
        self.image.put_bits(structures + index * self.fields.page_bytes, 512 - index, 32);
        self.image.put_word(SEGMENT + cookie - 8, used);
    }

    fn page(&mut self, at: u64, start: u64, end: u64) {
        let heap = self.dice.below(4);
        let size = self.dice.one_of(&SIZES);
        // The first block is placed as in mimalloc 2.1.2.
        let first = match (self.fields.start, size) {
            (None, ..=64) => start + 3 * size,
            (None, ..=512) => start + size,
            _ => start,
        };
        let room = (end - first) / size;
        let capacity = 1 + self.dice.below(room);
        let mut lists = [0; 3];
        let (mut used, mut freed) = (0, 0);
        for index in 0..capacity {
            let block = first + index * size;
            if self.dice.chance(70) {
                used += 1;
                self.block(block, size, heap);
                continue;
            }
            let list = self.dice.below(3) as usize;
            freed += u64::from(list == 2);
            self.image.put_word(block, lists[list]);
            lists[list] = block;
        }
        self.add("used_bytes", used * size);
        self.add("committed_bytes", end - start);
        let fields = self.fields;
        self.image.put_bits(at + 10, capacity, 16);
        self.image.put_bits(at + 12, room, 16);
        self.image.put_bits(at + fields.used.0, used + freed, fields.used.1);
        self.image.put_bits(at + fields.block_bytes.0, size, fields.block_bytes.1);
        self.image.put_bits(at + fields.tag.0, heap << fields.tag.1, 8);
        self.image.put_word(at + 16, lists[0]);
        self.image.put_word(at + fields.local_free, lists[1]);
        self.image.put_word(at + fields.thread_free, if lists[2] == 0 { 0 } else { lists[2] | 1 });
        if let Some(place) = fields.start {
            self.image.put_word(at + place, first);
        }
    }

    fn block(&mut self, at: u64, bytes: u64, heap: u64) {
        let kind = KINDS.iter().position(|kind| kind.4 == heap).filter(|_| self.dice.chance(80));
        let before = if heap == 3 { 16 } else { 0 };
        let fits = |kind: &usize| before + KINDS[*kind].2 <= bytes;
        let Some(kind) = kind.filter(|&kind| heap > 0 && kind > 0 && fits(&kind)) else {
            // Memory of C code: a pointer first.
            self.image.put_word(at, at);
            return;
        };
        let (local, shared) = (self.dice.below(3), self.dice.below(3));
        let object = at + before;
        self.image.put_bits(object + 12, local, 32);
        self.image.put_word(object + 16, shared << 2 | self.dice.below(4));
        self.image.put_word(object + 24, TYPES + TYPE_BYTES * kind as u64);
        if local + shared == 0 {
            self.expected.dead += 1;
        } else {
            *self.expected.instances.entry(KINDS[kind].0).or_default() += 1;
        }
    }
}
