//! Fabricated CPythons without a global lock: static data with `_PyRuntime`, types and the key of
//! heaps, and a segment whose pages belong to heaps by kind and hold objects, dead objects, other
//! blocks and free ones. All of it is known by construction.
//!
//! Written from CPython's `Include/object.h` and `Include/internal/mimalloc` (3.13.5 and 3.14.10),
//! independently of the reader that it tests.

use crate::cpython::{
    CODE, DATA, DATA_BYTES, HAVE_GC, IS_TYPE, READY, RUNTIME, TYPE_BYTES, TYPES, TypeOffsets, TypeSpec,
    put_types,
};
use crate::mimalloc::{
    KEY, PAGE_2_0_9, PAGE_2_2, PageFields, PageLayout, SEGMENT_2_0_9, SEGMENT_2_2, SEGMENT_BYTES,
    SEGMENT_SLICES, SLICE, SegmentLayout,
};
use crate::{CPythonExpected, CPythonImage, Image, PAGE, Rng, map_line, map_lines};

/// Mappings besides code and static data: the state of the interpreter, and a segment of mimalloc.
const STATE: u64 = 0x7f10_0000_0000;
const STATE_BYTES: u64 = 16 * PAGE;
const SEGMENT: u64 = 0x7f20_0000_0000;
/// The part of the segment that was ever written to.
const USED_BYTES: u64 = 24 * SLICE;
/// Address of the key of heaps (`_mi_heap_main.cookie`), in static data.
const KEY_ADDRESS: u64 = DATA + 0x2000;
/// In `_PyRuntime`, chosen here: the pointer to the first interpreter. In an interpreter: the
/// pointer to the next one, and the collector.
const FIRST_INTERPRETER: u64 = 0x800;
const NEXT_INTERPRETER: u64 = 8;
const COLLECTOR: u64 = 0x100;

/// Offsets in `_Py_DebugOffsets`.
mod debug_offsets {
    pub const FREE_THREADED: u64 = 16;
    pub const FIRST_INTERPRETER: u64 = 40;
    pub const NEXT_INTERPRETER: u64 = 64;
}

const TYPE_OFFSETS: TypeOffsets =
    TypeOffsets { type_pointer: 24, name: 40, basic_size: 48, item_size: 56, flags: 184 };

/// Offsets in `PyObject`.
mod py_object {
    pub const LOCAL_REFERENCES: u64 = 12;
    pub const SHARED_REFERENCES: u64 = 16;
    pub const TYPE: u64 = 24;
}
/// `_Py_REF_SHARED_SHIFT`; the bits below are flags.
const SHARED_SHIFT: u32 = 2;

/// `Py_TPFLAGS_MANAGED_DICT`.
const MANAGED_DICT: u64 = 1 << 4;

/// `_Py_mimalloc_heap_id`.
const HEAP_MEMORY: u64 = 0;
const HEAP_OBJECT: u64 = 1;
const HEAP_GC: u64 = 2;
const HEAP_GC_PRE: u64 = 3;
const HEAPS: u64 = 4;
/// Bytes before an object of the heap `HEAP_GC_PRE`: its dictionary and its weak references.
const PRE_HEADER_BYTES: u64 = 16;

/// The types; the first one is the type of the others.
const TYPE_SPECS: [TypeSpec; 4] = [
    TypeSpec { name: "type", flags: READY | HAVE_GC | IS_TYPE, basic_bytes: 416, item_bytes: 40 },
    TypeSpec { name: "plain", flags: READY, basic_bytes: 48, item_bytes: 0 },
    TypeSpec { name: "collected", flags: READY | HAVE_GC, basic_bytes: 56, item_bytes: 0 },
    TypeSpec { name: "with_dict", flags: READY | HAVE_GC | MANAGED_DICT, basic_bytes: 40, item_bytes: 0 },
];
/// Indexes in [`TYPE_SPECS`] of the types that have instances.
const PLAIN: usize = 1;
const COLLECTED: usize = 2;
const WITH_DICT: usize = 3;

/// Sizes of blocks.
const BLOCK_SIZES: [u64; 6] = [48, 64, 96, 320, 1024, 8192];

/// Layout of a release of CPython, whose mimalloc is of 2.x with larger structures of pages.
struct Layout {
    segment: SegmentLayout,
    page: PageLayout,
    /// Bytes of the structure of a page.
    page_bytes: u64,
    /// Offset in a page's structure of the byte with the number of its heap, and the lowest bit of
    /// the number.
    heap: u64,
    heap_shift: u32,
    /// In `_Py_DebugOffsets`: the offset of `interpreter_state.gc`.
    collector: u64,
}

const LAYOUT_3_13: Layout = Layout {
    segment: SEGMENT_2_0_9,
    page: PAGE_2_0_9,
    page_bytes: 96,
    heap: 8,
    heap_shift: 3,
    collector: 80,
};
const LAYOUT_3_14: Layout =
    Layout { segment: SEGMENT_2_2, page: PAGE_2_2, page_bytes: 112, heap: 35, heap_shift: 0, collector: 88 };

/// Fabricates a CPython from `seed`: 3.13 or 3.14.
pub fn fabricate_free_threaded_cpython(seed: u64) -> CPythonImage {
    let mut rng = Rng::new(seed ^ 0x7079_7468);
    let (minor, layout) = if rng.below(2) == 1 { (14, &LAYOUT_3_14) } else { (13, &LAYOUT_3_13) };
    let mut image = Image::of(&[(DATA, DATA_BYTES), (STATE, STATE_BYTES), (SEGMENT, USED_BYTES)]);
    let maps = map_lines(&[
        map_line(CODE, PAGE, &format!("r-xp 00000000 08:01 7 /usr/bin/python3.{minor}t")),
        map_line(DATA, DATA_BYTES, &format!("rw-p 00200000 08:01 7 /usr/bin/python3.{minor}t")),
        map_line(STATE, STATE_BYTES, "rw-p 00000000 00:00 0 "),
        map_line(SEGMENT, SEGMENT_BYTES, "rw-p 00000000 00:00 0 "),
    ]);
    image.put(RUNTIME, b"xdebugpy");
    let offsets = [
        (debug_offsets::FREE_THREADED, 1),
        (debug_offsets::FIRST_INTERPRETER, FIRST_INTERPRETER),
        (debug_offsets::NEXT_INTERPRETER, NEXT_INTERPRETER),
        (layout.collector, COLLECTOR),
    ];
    image.put_words(RUNTIME, offsets);
    image.put_word(RUNTIME + FIRST_INTERPRETER, STATE);
    image.put_word(KEY_ADDRESS, KEY);
    put_types(&mut image, &TYPE_SPECS, &TYPE_OFFSETS);
    let mut writer = Writer { image, rng, expected: CPythonExpected::default(), layout };
    writer.write_segment();
    let Writer { image, expected, .. } = writer;
    CPythonImage { image, maps, minor, runtime: RUNTIME, data: (DATA, DATA + DATA_BYTES), expected }
}

struct Writer {
    image: Image,
    rng: Rng,
    expected: CPythonExpected,
    layout: &'static Layout,
}

impl Writer {
    /// Adds to an expected figure.
    fn add(&mut self, name: &'static str, figure: u64) {
        *self.expected.debug_stats.entry(name).or_default() += figure;
    }

    /// Writes the segment: a slice of its own, pages in use, and free slices.
    fn write_segment(&mut self) {
        let Layout { segment, page, page_bytes, .. } = self.layout;
        segment.write(&mut self.image, SEGMENT, STATE);
        let structures = SEGMENT + segment.pages;
        self.image.put_bits(structures, 1, 32);
        self.image.put_field(structures, page.block_bytes, 1);
        let (mut index, mut used_pages) = (1, 0);
        while index + 3 < USED_BYTES / SLICE {
            let slices = 1 + self.rng.below(3);
            let structure = structures + index * page_bytes;
            self.image.put_bits(structure, slices, 32);
            if self.rng.chance(85) {
                used_pages += 1;
                let start = SEGMENT + index * SLICE;
                self.write_page(structure, start, start + slices * SLICE);
            }
            index += slices;
        }
        self.image.put_bits(structures + index * page_bytes, SEGMENT_SLICES - index, 32);
        self.image.put_word(SEGMENT + segment.used, used_pages);
    }

    /// Writes a page of blocks of one size; each free block is in one of its three lists.
    fn write_page(&mut self, structure: u64, start: u64, end: u64) {
        let Layout { page, heap: heap_offset, heap_shift, .. } = self.layout;
        let heap = self.rng.below(HEAPS);
        let block_bytes = self.rng.one_of(&BLOCK_SIZES);
        // The first block is placed as in mimalloc 2.1.2.
        let first_block = match (page.blocks_start, block_bytes) {
            (None, ..=64) => start + 3 * block_bytes,
            (None, ..=512) => start + block_bytes,
            _ => start,
        };
        let reserved = (end - first_block) / block_bytes;
        let capacity = 1 + self.rng.below(reserved);
        // `free`, `local_free`, `xthread_free`; blocks in the last one count as used.
        let mut lists = [0; 3];
        let (mut used_blocks, mut thread_freed_blocks) = (0, 0);
        for index in 0..capacity {
            let block = first_block + index * block_bytes;
            if self.rng.chance(70) {
                used_blocks += 1;
                self.write_block(block, block_bytes, heap);
                continue;
            }
            let list = self.rng.below(3) as usize;
            thread_freed_blocks += u64::from(list == 2);
            self.image.put_word(block, lists[list]);
            lists[list] = block;
        }
        self.add("used_bytes", used_blocks * block_bytes);
        self.add("committed_bytes", end - start);
        let used = used_blocks + thread_freed_blocks;
        let fields = PageFields { reserved, capacity, used, block_bytes, first_block, lists };
        page.write(&mut self.image, structure, &fields);
        self.image.put_bits(structure + heap_offset, heap << heap_shift, 8);
    }

    /// Writes an object of a type of this heap if it fits, or else memory of C code, which begins
    /// with a pointer.
    fn write_block(&mut self, block: u64, block_bytes: u64, heap: u64) {
        let index = match heap {
            HEAP_OBJECT => Some(PLAIN),
            HEAP_GC => Some(COLLECTED),
            HEAP_GC_PRE => Some(WITH_DICT),
            _ => None,
        };
        let prefix_bytes = if heap == HEAP_GC_PRE { PRE_HEADER_BYTES } else { 0 };
        let fits = |index: &usize| prefix_bytes + TYPE_SPECS[*index].basic_bytes <= block_bytes;
        let is_of_c = heap == HEAP_MEMORY || !self.rng.chance(80);
        let Some(index) = index.filter(|index| !is_of_c && fits(index)) else {
            self.image.put_word(block, block);
            return;
        };
        let (local, shared) = (self.rng.below(3), self.rng.below(3));
        let object = block + prefix_bytes;
        self.image.put_bits(object + py_object::LOCAL_REFERENCES, local, 32);
        let shared_word = shared << SHARED_SHIFT | self.rng.below(1 << SHARED_SHIFT);
        self.image.put_word(object + py_object::SHARED_REFERENCES, shared_word);
        self.image.put_word(object + py_object::TYPE, TYPES + TYPE_BYTES * index as u64);
        if local + shared == 0 {
            self.expected.dead_objects += 1;
        } else {
            *self.expected.instances.entry(TYPE_SPECS[index].name).or_default() += 1;
        }
    }
}
