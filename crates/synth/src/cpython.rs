//! Fabricated CPythons: static data with `_PyRuntime`, types and the pointer to an array of arenas,
//! and arenas whose pools are free, never used, or hold objects, dead objects and other blocks. All
//! of it is known by construction.
//!
//! Written from CPython's `Objects/obmalloc.c` and `Include/object.h` (3.9 and 3.10), independently
//! of the reader that it tests.

use std::collections::BTreeMap;

use crate::{Image, PAGE, Rng, map_line, map_lines};

/// Mappings: code, static data, the heap of libc with the array of arenas, and the arenas.
pub const CODE: u64 = 0x40_0000;
pub const DATA: u64 = 0x60_0000;
pub const DATA_BYTES: u64 = 16 * PAGE;
const HEAP: u64 = 0x7f10_0000_0000;
const HEAP_BYTES: u64 = 16 * PAGE;
const ARENAS: u64 = 0x7f20_0000_0000;
/// Addresses in static data: `_PyRuntime`, the variable `arenas`, types and their names.
pub const RUNTIME: u64 = DATA + 0x100;
const ARRAY_POINTER: u64 = DATA + 0x2040;
pub const TYPES: u64 = DATA + 0x3000;
pub const TYPE_BYTES: u64 = 0x200;
const NAMES: u64 = DATA + 0x8000;
const NAME_BYTES: u64 = 32;
/// Addresses in the heap.
const ARRAY: u64 = HEAP + 0x1000;
const INTERPRETER: u64 = HEAP + 0x8000;
/// Entries of the array of arenas.
const MAX_ARENAS: u64 = 16;
/// Sizes of blocks are multiples of this (`ALIGNMENT`), up to 32 times it.
const ALIGNMENT: u64 = 16;
const SIZE_CLASSES: u64 = 32;

/// `_PyRuntimeState.interpreters.head`.
const INTERPRETERS_HEAD: u64 = 32;

/// Offsets in `struct arena_object`.
mod arena_object {
    pub const ADDRESS: u64 = 0;
    pub const FREE_POOLS: u64 = 16;
    pub const TOTAL_POOLS: u64 = 20;
    pub const FREE_LIST: u64 = 24;
    pub const NEXT: u64 = 32;
    pub const BYTES: u64 = 48;
}

/// Offsets in `struct pool_header`.
mod pool_header {
    pub const USED: u64 = 0;
    pub const FREE_BLOCK: u64 = 8;
    pub const NEXT: u64 = 16;
    pub const ARENA_INDEX: u64 = 32;
    pub const SIZE_CLASS: u64 = 36;
    pub const NEXT_OFFSET: u64 = 40;
    pub const MAX_NEXT_OFFSET: u64 = 44;
    pub const BYTES: u64 = 48;
}

/// Offsets in `PyTypeObject`.
pub struct TypeOffsets {
    pub type_pointer: u64,
    pub name: u64,
    pub basic_size: u64,
    pub item_size: u64,
    pub flags: u64,
}

const TYPE_OFFSETS: TypeOffsets =
    TypeOffsets { type_pointer: 8, name: 24, basic_size: 32, item_size: 40, flags: 168 };

/// Bytes of `PyGC_Head`, which precedes objects of types with [`HAVE_GC`].
const GC_HEAD_BYTES: u64 = 16;

/// `Py_TPFLAGS_READY`, `Py_TPFLAGS_HAVE_GC`, `Py_TPFLAGS_TYPE_SUBCLASS`.
pub const READY: u64 = 1 << 12;
pub const HAVE_GC: u64 = 1 << 14;
pub const IS_TYPE: u64 = 1 << 31;

/// A type.
pub struct TypeSpec {
    pub name: &'static str,
    pub flags: u64,
    /// `tp_basicsize`.
    pub basic_bytes: u64,
    /// `tp_itemsize`.
    pub item_bytes: u64,
}

/// The types; the first one is the type of the others.
const TYPE_SPECS: [TypeSpec; 4] = [
    TypeSpec { name: "type", flags: READY | HAVE_GC | IS_TYPE, basic_bytes: 400, item_bytes: 40 },
    TypeSpec { name: "plain", flags: READY, basic_bytes: 32, item_bytes: 0 },
    TypeSpec { name: "collected", flags: READY | HAVE_GC, basic_bytes: 40, item_bytes: 0 },
    TypeSpec { name: "sized", flags: READY, basic_bytes: 24, item_bytes: 8 },
];

/// Expected figures of a fabricated CPython.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CPythonExpected {
    /// By the names that `sys._debugmallocstats` prints.
    pub debug_stats: BTreeMap<&'static str, u64>,
    /// Instances by the name of their type.
    pub instances: BTreeMap<&'static str, u64>,
    /// Objects without references.
    pub dead_objects: u64,
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
    /// Its static data: the first address, and the first one past the end.
    pub data: (u64, u64),
    /// Its expected figures.
    pub expected: CPythonExpected,
}

/// Fabricates a CPython from `seed`: 3.9 with arenas of 256 KiB, or 3.10 with arenas of 1 MiB.
pub fn fabricate_cpython(seed: u64) -> CPythonImage {
    let mut rng = Rng::new(seed ^ 0x7079);
    let is_3_10 = rng.below(2) == 1;
    let minor = if is_3_10 { 10 } else { 9 };
    let (arena_bytes, pool_bytes) = if is_3_10 { (1 << 20, 16 << 10) } else { (256 << 10, 4 << 10) };
    let arena_count = 1 + rng.below(4);
    // An arena may start anywhere in a pool.
    let first_arena = ARENAS + PAGE * rng.below(pool_bytes / PAGE);
    let arenas_bytes = arena_count * arena_bytes;
    let mut image = Image::of(&[(DATA, DATA_BYTES), (HEAP, HEAP_BYTES), (first_arena, arenas_bytes)]);
    let maps = map_lines(&[
        map_line(CODE, PAGE, &format!("r-xp 00000000 08:01 7 /usr/bin/python3.{minor}")),
        map_line(DATA, DATA_BYTES, &format!("rw-p 00200000 08:01 7 /usr/bin/python3.{minor}")),
        map_line(HEAP, HEAP_BYTES, "rw-p 00000000 00:00 0 "),
        map_line(first_arena, arenas_bytes, "rw-p 00000000 00:00 0 "),
    ]);
    image.put_word(RUNTIME + INTERPRETERS_HEAD, INTERPRETER);
    image.put_word(ARRAY_POINTER, ARRAY);
    put_types(&mut image, &TYPE_SPECS, &TYPE_OFFSETS);
    // Each type has one reference: `ob_refcnt`, at its start.
    image.put_words(TYPES, (0..TYPE_SPECS.len() as u64).map(|index| (TYPE_BYTES * index, 1)));
    let expected = CPythonExpected::default();
    let mut writer = Writer { image, rng, expected, arena_bytes, pool_bytes };
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
    writer.write_array(arena_count, first_arena);
    let Writer { image, expected, .. } = writer;
    CPythonImage { image, maps, minor, runtime: RUNTIME, data: (DATA, DATA + DATA_BYTES), expected }
}

/// Writes types and their names; the first one is the type of all.
pub fn put_types(image: &mut Image, specs: &[TypeSpec], offsets: &TypeOffsets) {
    for (index, spec) in (0..).zip(specs) {
        let name = NAMES + NAME_BYTES * index;
        image.put(name, spec.name.as_bytes());
        let words = [
            (offsets.type_pointer, TYPES),
            (offsets.name, name),
            (offsets.basic_size, spec.basic_bytes),
            (offsets.item_size, spec.item_bytes),
            (offsets.flags, spec.flags),
        ];
        image.put_words(TYPES + TYPE_BYTES * index, words);
    }
}

struct Writer {
    image: Image,
    rng: Rng,
    expected: CPythonExpected,
    arena_bytes: u64,
    pool_bytes: u64,
}

impl Writer {
    /// Adds to an expected figure.
    fn add(&mut self, name: &'static str, figure: u64) {
        *self.expected.debug_stats.entry(name).or_default() += figure;
    }

    /// Writes the array of arenas and `count` arenas, the first one at `start`. Unused entries are
    /// between the others, and are linked with each other.
    fn write_array(&mut self, count: u64, start: u64) {
        let mut used_entries: Vec<u64> = (0..MAX_ARENAS).collect();
        while used_entries.len() as u64 > count {
            let unused = self.rng.below(used_entries.len() as u64);
            used_entries.remove(unused as usize);
        }
        let (mut unused_list, mut next_arena) = (0, start);
        for index in 0..MAX_ARENAS {
            let entry = ARRAY + arena_object::BYTES * index;
            if used_entries.contains(&index) {
                self.write_arena(entry, index, next_arena);
                next_arena += self.arena_bytes;
            } else {
                self.image.put_word(entry + arena_object::NEXT, unused_list);
                unused_list = entry;
            }
        }
        // The word after the array is not an entry.
        self.image.put_word(ARRAY + arena_object::BYTES * MAX_ARENAS, 1);
    }

    /// Writes an arena and its entry: pools in use, freed pools, and pools that were never used.
    fn write_arena(&mut self, entry: u64, index: u64, start: u64) {
        let first_pool = start.next_multiple_of(self.pool_bytes);
        let total_pools = (start + self.arena_bytes - first_pool) / self.pool_bytes;
        self.add("arenas_allocated_current", 1);
        self.add("bytes_lost_to_arena_alignment", self.arena_bytes - total_pools * self.pool_bytes);
        let carved_pools = 1 + self.rng.below(total_pools);
        let (mut free_pools, mut free_list) = (total_pools - carved_pools, 0);
        for number in 0..carved_pools {
            let pool = first_pool + number * self.pool_bytes;
            self.image.put_bits(pool + pool_header::ARENA_INDEX, index, 32);
            // The first pool stays in use, or the arena would have been freed.
            if number > 0 && self.rng.below(4) == 0 {
                self.image.put_word(pool + pool_header::NEXT, free_list);
                free_list = pool;
                free_pools += 1;
            } else {
                self.write_pool(pool);
            }
        }
        self.add("unused_pools", free_pools);
        // `address` and `pool_address`.
        let unused_end = first_pool + carved_pools * self.pool_bytes;
        self.image.put_row(entry + arena_object::ADDRESS, [start, unused_end]);
        self.image.put_bits(entry + arena_object::FREE_POOLS, free_pools, 32);
        self.image.put_bits(entry + arena_object::TOTAL_POOLS, total_pools, 32);
        self.image.put_word(entry + arena_object::FREE_LIST, free_list);
    }

    /// Writes a pool of blocks of one size.
    fn write_pool(&mut self, pool: u64) {
        let class = self.rng.below(SIZE_CLASSES);
        let block_bytes = ALIGNMENT * (class + 1);
        let total_blocks = (self.pool_bytes - pool_header::BYTES) / block_bytes;
        let carved_blocks = 1 + self.rng.below(total_blocks);
        let (mut used_blocks, mut free_list) = (0, 0);
        for number in 0..carved_blocks {
            let block = pool + pool_header::BYTES + number * block_bytes;
            if number > 0 && self.rng.below(3) == 0 {
                self.image.put_word(block, free_list);
                free_list = block;
            } else {
                used_blocks += 1;
                self.write_block(block, block_bytes);
            }
        }
        let next_offset = pool_header::BYTES + carved_blocks * block_bytes;
        self.image.put_bits(pool + pool_header::USED, used_blocks, 32);
        self.image.put_word(pool + pool_header::FREE_BLOCK, free_list);
        self.image.put_bits(pool + pool_header::SIZE_CLASS, class, 32);
        self.image.put_bits(pool + pool_header::NEXT_OFFSET, next_offset, 32);
        self.image.put_bits(pool + pool_header::MAX_NEXT_OFFSET, self.pool_bytes - block_bytes, 32);
        self.add("bytes_in_allocated_blocks", used_blocks * block_bytes);
        self.add("bytes_in_available_blocks", (total_blocks - used_blocks) * block_bytes);
        self.add("bytes_lost_to_pool_headers", pool_header::BYTES);
        let lost_bytes = self.pool_bytes - pool_header::BYTES - total_blocks * block_bytes;
        self.add("bytes_lost_to_quantization", lost_bytes);
    }

    /// Writes an object of a random type if it fits, or else memory of C code, which begins with a
    /// pointer.
    fn write_block(&mut self, block: u64, block_bytes: u64) {
        // Type 0 has no instances in blocks, and there is no type 4.
        let index = self.rng.below(5) as usize;
        let Some(spec) = TYPE_SPECS.get(index).filter(|_| index > 0) else {
            self.image.put_word(block, block);
            return;
        };
        let head_bytes = if spec.flags & HAVE_GC != 0 { GC_HEAD_BYTES } else { 0 };
        if head_bytes + spec.basic_bytes > block_bytes {
            self.image.put_word(block, block);
            return;
        }
        let references = self.rng.below(5);
        if head_bytes > 0 {
            self.image.put_row(block, [block | 1 << 46; 2]);
        }
        self.image.put_row(block + head_bytes, [references, TYPES + TYPE_BYTES * index as u64]);
        if references == 0 {
            self.expected.dead_objects += 1;
        } else {
            *self.expected.instances.entry(spec.name).or_default() += 1;
        }
    }
}
