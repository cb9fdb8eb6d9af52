//! Fabricated CPythons: static data with `_PyRuntime`, types and the pointer to an array of arenas,
//! and arenas whose pools are free, never used, or hold objects, dead objects and other blocks. All
//! of it is known by construction.
//!
//! Written from CPython's `Objects/obmalloc.c` and `Include/object.h` (3.9 and 3.10), independently
//! of the reader that it tests.

use std::collections::BTreeMap;

use crate::{Image, Rng, map_lines};

const PAGE: u64 = 4096;
const CODE: u64 = 0x40_0000;
const DATA: u64 = 0x60_0000;
const DATA_BYTES: u64 = 16 * PAGE;
const HEAP: u64 = 0x7f10_0000_0000;
const HEAP_BYTES: u64 = 16 * PAGE;
const ARENAS: u64 = 0x7f20_0000_0000;
/// Addresses in static data.
const RUNTIME: u64 = DATA + 0x100;
const ARRAY_POINTER: u64 = DATA + 0x2040;
const TYPES: u64 = DATA + 0x3000;
const TYPE_BYTES: u64 = 0x200;
const NAMES: u64 = DATA + 0x8000;
const ARRAY: u64 = HEAP + 0x1000;
const INTERPRETER: u64 = HEAP + 0x8000;
const ARENA_OBJECT: u64 = 48;
const HEADER: u64 = 48;
const MAX_ARENAS: u64 = 16;

const READY: u64 = 1 << 12;
const HAVE_GC: u64 = 1 << 14;
const IS_TYPE: u64 = 1 << 31;
/// Types: name, flags, `tp_basicsize`, `tp_itemsize`.
const KINDS: [(&str, u64, u64, u64); 4] = [
    ("type", READY | HAVE_GC | IS_TYPE, 400, 40),
    ("plain", READY, 32, 0),
    ("collected", READY | HAVE_GC, 40, 0),
    ("sized", READY, 24, 8),
];

/// Expected figures of a fabricated CPython.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CPythonExpected {
    /// By the names that `sys._debugmallocstats` prints.
    pub debug_stats: BTreeMap<&'static str, u64>,
    /// Instances by the name of their type.
    pub instances: BTreeMap<&'static str, u64>,
    /// Objects without references.
    pub dead: u64,
}

/// A fabricated CPython.
#[derive(Clone, Debug)]
pub struct CPythonImage {
    /// Its memory, all of it resident.
    pub image: Image,
    /// Its /proc/PID/maps.
    pub maps: String,
    /// Its minor version.
    pub minor: u8,
    /// Address of `_PyRuntime`.
    pub runtime: u64,
    /// Its static data.
    pub data: (u64, u64),
    /// Its expected figures.
    pub expected: CPythonExpected,
}

/// Fabricates a CPython from `seed`: 3.9 with arenas of 256 KiB, or 3.10 with arenas of 1 MiB.
pub fn fabricate_cpython(seed: u64) -> CPythonImage {
    let mut dice = Rng::new(seed ^ 0x7079);
    let is_new = dice.below(2) == 1;
    let (minor, arena, pool) = if is_new { (10, 1 << 20, 16 << 10) } else { (9, 256 << 10, 4 << 10) };
    let count = 1 + dice.below(4);
    // An arena may start anywhere in a pool.
    let start = ARENAS + PAGE * dice.below(pool / PAGE);
    let mut image = Image::of(&[(DATA, DATA_BYTES), (HEAP, HEAP_BYTES), (start, count * arena)]);
    let maps = map_lines(&[
        (CODE, PAGE, &format!("r-xp 00000000 08:01 7 /usr/bin/python3.{minor}")),
        (DATA, DATA_BYTES, &format!("rw-p 00200000 08:01 7 /usr/bin/python3.{minor}")),
        (HEAP, HEAP_BYTES, "rw-p 00000000 00:00 0 "),
        (start, count * arena, "rw-p 00000000 00:00 0 "),
    ]);
    image.put_word(RUNTIME + 32, INTERPRETER);
    image.put_word(ARRAY_POINTER, ARRAY);
    for (number, (name, flags, basic, item)) in KINDS.into_iter().enumerate() {
        let (at, name_at) = (TYPES + TYPE_BYTES * number as u64, NAMES + 32 * number as u64);
        image.put(name_at, name.as_bytes());
        image.put_words(at, [(0, 1), (8, TYPES), (24, name_at), (32, basic), (40, item), (168, flags)]);
    }
    let expected = CPythonExpected::default();
    let mut writer = Writer { image, dice, expected, arena, pool };
    for name in [
        "arenas_allocated_current",
        "bytes_in_allocated_blocks",
        "bytes_in_available_blocks",
        "unused_pools",
        "bytes_lost_to_pool_headers",
        "bytes_lost_to_quantization",
        "bytes_lost_to_arena_alignment",
    ] {
        writer.add(name, 0);
    }
    // Unused entries are between the others, and are linked with each other.
    let mut taken: Vec<u64> = (0..MAX_ARENAS).collect();
    while taken.len() as u64 > count {
        let gone = writer.dice.below(taken.len() as u64);
        taken.remove(gone as usize);
    }
    let (mut unused, mut at) = (0, start);
    for index in 0..MAX_ARENAS {
        let entry = ARRAY + ARENA_OBJECT * index;
        if taken.contains(&index) {
            writer.arena(entry, index, at);
            at += arena;
        } else {
            writer.image.put_word(entry + 32, unused);
            unused = entry;
        }
    }
    // The word behind the array is not an entry.
    writer.image.put_word(ARRAY + ARENA_OBJECT * MAX_ARENAS, 1);
    let Writer { image, expected, .. } = writer;
    CPythonImage { image, maps, minor, runtime: RUNTIME, data: (DATA, DATA + DATA_BYTES), expected }
}

struct Writer {
    image: Image,
    dice: Rng,
    expected: CPythonExpected,
    arena: u64,
    pool: u64,
}

impl Writer {
    fn add(&mut self, name: &'static str, figure: u64) {
        *self.expected.debug_stats.entry(name).or_default() += figure;
    }

    fn arena(&mut self, entry: u64, index: u64, start: u64) {
        let pools = start.next_multiple_of(self.pool);
        let total = (start + self.arena - pools) / self.pool;
        self.add("arenas_allocated_current", 1);
        self.add("bytes_lost_to_arena_alignment", self.arena - total * self.pool);
        let carved = 1 + self.dice.below(total);
        let (mut free, mut listed) = (total - carved, 0);
        for number in 0..carved {
            let at = pools + number * self.pool;
            self.image.put_bits(at + 32, index, 32);
            // The first pool stays in use, or the arena would have been freed.
            if number > 0 && self.dice.below(4) == 0 {
                self.image.put_word(at + 16, listed);
                listed = at;
                free += 1;
            } else {
                self.pool(at);
            }
        }
        self.add("unused_pools", free);
        self.image.put_row(entry, [start, pools + carved * self.pool]);
        self.image.put_bits(entry + 16, free, 32);
        self.image.put_bits(entry + 20, total, 32);
        self.image.put_word(entry + 24, listed);
    }

    fn pool(&mut self, at: u64) {
        let class = self.dice.below(32);
        let bytes = 16 * (class + 1);
        let total = (self.pool - HEADER) / bytes;
        let made = 1 + self.dice.below(total);
        let (mut used, mut list) = (0, 0);
        for number in 0..made {
            let block = at + HEADER + number * bytes;
            if number > 0 && self.dice.below(3) == 0 {
                self.image.put_word(block, list);
                list = block;
            } else {
                used += 1;
                self.block(block, bytes);
            }
        }
        self.image.put_bits(at, used, 32);
        self.image.put_word(at + 8, list);
        self.image.put_bits(at + 36, class, 32);
        self.image.put_bits(at + 40, HEADER + made * bytes, 32);
        self.image.put_bits(at + 44, self.pool - bytes, 32);
        self.add("bytes_in_allocated_blocks", used * bytes);
        self.add("bytes_in_available_blocks", (total - used) * bytes);
        self.add("bytes_lost_to_pool_headers", HEADER);
        self.add("bytes_lost_to_quantization", self.pool - HEADER - total * bytes);
    }

    fn block(&mut self, at: u64, bytes: u64) {
        let kind = self.dice.below(5) as usize;
        let Some((name, flags, basic, _)) = KINDS.get(kind).filter(|_| kind > 0) else {
            // Memory of C code: a pointer first.
            self.image.put_word(at, at);
            return;
        };
        let before = if flags & HAVE_GC != 0 { 16 } else { 0 };
        if before + basic > bytes {
            self.image.put_word(at, at);
            return;
        }
        let references = self.dice.below(5);
        if before > 0 {
            self.image.put_row(at, [at | 1 << 46; 2]);
        }
        self.image.put_row(at + before, [references, TYPES + TYPE_BYTES * kind as u64]);
        if references == 0 {
            self.expected.dead += 1;
        } else {
            *self.expected.instances.entry(name).or_default() += 1;
        }
    }
}
