//! Fabricated tcmallocs: a library's static data with size classes, central lists and the root of
//! the page map, tcmalloc's own structures, and a heap of spans. All contents are known by
//! construction.
//!
//! Written from gperftools' headers, independently of the reader that it tests.

use crate::{Image, Rng, map_line, map_lines};

const MIB: u64 = 1 << 20;
/// Bytes of a page of tcmalloc (`kPageSize`).
const PAGE: u64 = 8192;
/// The library's file-backed data, and its bss after it.
const DATA: u64 = 0x7f41_4000_0000;
const DATA_BYTES: u64 = 64 * 1024;
const BSS_BYTES: u64 = 2 * MIB;
/// `SizeMap::num_objects_to_move_`; sizes and pages follow it.
const SIZES: u64 = DATA + 0x1004;
/// Entries of the tables of `SizeMap` (`kClassSizesMax`), and their offsets from `SIZES`. From 2.11
/// on there is a word between the last table and `num_size_classes`.
const MAX_CLASSES: u64 = 128;
const CLASS_SIZES: u64 = 4 * MAX_CLASSES;
const CLASS_PAGES: u64 = 1028;
/// Central lists, padded to 64 bytes each.
const CENTRAL: u64 = DATA + DATA_BYTES;
const CENTRAL_BYTES: u64 = 1216;
/// Distance of the root of the page map from the central lists, before a random part.
const ROOT_DISTANCE: u64 = 256 * 1024;
/// `thread_heaps_`.
const THREADS: u64 = DATA + 0x800;
/// tcmalloc's own chunk: spans, a thread's cache, the leaf of the page map.
const OWN: u64 = 0x7f41_8000_0000;
const OWN_BYTES: u64 = 8 * MIB;
const SPANS: u64 = OWN + 96;
const CACHE: u64 = OWN + 2 * MIB;
const LEAF: u64 = OWN + 4 * MIB;
/// The heap.
const HEAP: u64 = 0x7f42_4000_0000;
const HEAP_BYTES: u64 = 16 * MIB;

/// An entry of the page map's root is for 2 GiB, and one of a leaf for a page (`PageMap2`).
const ROOT_ENTRY_SHIFT: u32 = 31;
const LEAF_ENTRIES: u64 = 1 << 18;

/// Offsets in `CentralFreeList`.
mod central {
    pub const CLASS: u64 = 8;
    /// Heads of the lists of spans without and with free objects.
    pub const EMPTY: u64 = 16;
    pub const NON_EMPTY: u64 = 64;
    pub const SPAN_COUNT: u64 = 112;
    pub const SLOTS: u64 = 128;
    pub const SLOT_BYTES: u64 = 16;
    pub const USED_SLOTS: u64 = 1152;
}

/// Offsets in `Span`.
mod span {
    pub const START: u64 = 0;
    pub const NEXT: u64 = 16;
    pub const PREVIOUS: u64 = 24;
    pub const OBJECTS: u64 = 32;
    pub const BYTES: u64 = 48;
}
/// In the word after `OBJECTS`, above the number of objects that are not in the list.
const SPAN_CLASS_SHIFT: u32 = 16;
const SPAN_LOCATION_SHIFT: u32 = 24;
/// `Span::location`.
const IN_USE: u64 = 0;
const ON_NORMAL_FREELIST: u64 = 1;
const ON_RETURNED_FREELIST: u64 = 2;

/// A list of a thread's cache (`ThreadCache::FreeList`): head, length, bytes of an object.
const CACHE_LIST_BYTES: u64 = 32;

/// A size class.
#[derive(Clone, Copy)]
pub struct SizeClass {
    pub object_bytes: u64,
    pub span_pages: u64,
}

/// A size class with objects of `object_bytes` in spans of `span_pages`.
pub const fn size_class(object_bytes: u64, span_pages: u64) -> SizeClass {
    SizeClass { object_bytes, span_pages }
}

/// Size classes; number 0 is for spans that are one block.
const CLASSES: [SizeClass; 24] = [
    size_class(0, 0),
    size_class(16, 1),
    size_class(32, 1),
    size_class(48, 1),
    size_class(64, 1),
    size_class(96, 1),
    size_class(128, 1),
    size_class(192, 1),
    size_class(256, 1),
    size_class(320, 1),
    size_class(512, 1),
    size_class(768, 1),
    size_class(1024, 1),
    size_class(1536, 3),
    size_class(2048, 2),
    size_class(3072, 3),
    size_class(4096, 4),
    size_class(6144, 3),
    size_class(8192, 2),
    size_class(16384, 4),
    size_class(32768, 8),
    size_class(65536, 16),
    size_class(131_072, 32),
    size_class(262_144, 64),
];
/// Objects that move between caches at a time (`num_objects_to_move_`).
const BATCH: u64 = 4;
/// Slots of a transfer cache (`kMaxNumTransferEntries`).
const MAX_SLOTS: u64 = 64;

/// Expected figures of a fabricated allocator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeapExpected {
    /// Bytes of blocks in use; of mallocng, those that were requested.
    pub live_bytes: u64,
    /// Number of blocks in use.
    pub live_blocks: u64,
    /// Bytes of blocks in caches.
    pub cached_bytes: u64,
    /// Bytes of free blocks in pages in use.
    pub free_bytes: u64,
    /// Bytes that the allocator's own call releases.
    pub releasable_bytes: u64,
    /// Bytes of extents in use (`stats.active`) of jemalloc; 0 of other allocators.
    pub active_bytes: u64,
    /// Bytes that were released or never used, of Google's tcmalloc alone.
    pub unmapped_bytes: u64,
}

/// A fabricated allocator.
#[derive(Clone, Debug)]
pub struct HeapImage {
    /// Its memory, all of it resident.
    pub image: Image,
    /// Its /proc/PID/maps.
    pub maps: String,
    /// Its expected figures.
    pub expected: HeapExpected,
    /// Ranges of its own structures, for damage: the first address, and the first one past the end.
    pub structure_ranges: Vec<(u64, u64)>,
}

struct Writer {
    image: Image,
    /// Address of the next span's structure.
    next_structure: u64,
    /// Address of the next span.
    next_span: u64,
    /// By class, the structures of its spans.
    spans: Vec<Vec<u64>>,
    /// By class, free objects that are in no list yet.
    unlisted_objects: Vec<Vec<u64>>,
    expected: HeapExpected,
}

/// Fabricates a tcmalloc from `seed`.
pub fn fabricate_tcmalloc(seed: u64) -> HeapImage {
    let mut image = Image::of(&[(DATA, DATA_BYTES + BSS_BYTES), (OWN, OWN_BYTES), (HEAP, HEAP_BYTES)]);
    let mut rng = Rng::new(seed ^ 0x7463);
    let root = CENTRAL + ROOT_DISTANCE + 8 * rng.below(1000);
    let root_entry = root + (HEAP >> ROOT_ENTRY_SHIFT) * 8;
    image.put_word(root_entry, LEAF);
    let mut writer = Writer {
        image,
        next_structure: SPANS,
        next_span: HEAP,
        spans: vec![Vec::new(); CLASSES.len()],
        unlisted_objects: vec![Vec::new(); CLASSES.len()],
        expected: HeapExpected::default(),
    };
    while writer.next_span + 64 * PAGE < HEAP + HEAP_BYTES {
        writer.write_span(&mut rng);
    }
    let is_2_11 = rng.chance(50);
    writer.write_sizes(is_2_11);
    writer.write_lists(&mut rng);
    let maps = map_lines(&[
        map_line(DATA, DATA_BYTES, "rw-p 00080000 08:01 78 /usr/lib/libtcmalloc_minimal.so.4"),
        map_line(DATA + DATA_BYTES, BSS_BYTES, "rw-p 00000000 00:00 0"),
        map_line(OWN, OWN_BYTES, "rw-p 00000000 00:00 0"),
        map_line(HEAP, HEAP_BYTES, "rw-p 00000000 00:00 0"),
    ]);
    let structure_ranges = vec![
        (root_entry, root_entry + 8),
        (SIZES & !7, (SIZES & !7) + 2064),
        (CENTRAL, CENTRAL + CLASSES.len() as u64 * CENTRAL_BYTES),
        (SPANS & !7, writer.next_structure),
        (CACHE, CACHE + 4096 + 64),
        (leaf_entry(HEAP), leaf_entry(HEAP) + HEAP_BYTES / PAGE * 8),
        (HEAP, HEAP + HEAP_BYTES),
    ];
    HeapImage { image: writer.image, maps, expected: writer.expected, structure_ranges }
}

/// Address of the leaf's entry for a page.
fn leaf_entry(page: u64) -> u64 {
    LEAF + page / PAGE % LEAF_ENTRIES * 8
}

/// The objects of a span.
#[derive(Default)]
struct SpanObjects {
    /// Number of objects that are not in the span's list.
    taken_objects: u64,
    /// Head of the list.
    head: u64,
}

impl Writer {
    /// Writes a span: free, given back to the kernel, one block, or objects of one size.
    fn write_span(&mut self, rng: &mut Rng) {
        let (start, structure) = (self.next_span, self.next_structure);
        let [pages, class, location] = match rng.below(10) {
            0 => [1 + rng.below(20), 0, ON_NORMAL_FREELIST],
            1 => [1 + rng.below(20), 0, ON_RETURNED_FREELIST],
            2 => [1 + rng.below(50), 0, IN_USE],
            _ => {
                let class = 1 + rng.below(CLASSES.len() as u64 - 1);
                [CLASSES[class as usize].span_pages, class, IN_USE]
            }
        };
        let bytes = pages * PAGE;
        let mut objects = SpanObjects::default();
        match (location, class) {
            (ON_NORMAL_FREELIST, _) => self.expected.releasable_bytes += bytes,
            (ON_RETURNED_FREELIST, _) => {}
            (_, 0) => {
                self.expected.live_bytes += bytes;
                self.expected.live_blocks += 1;
            }
            _ => objects = self.write_objects(start, class as usize, rng),
        }
        let fields = objects.taken_objects | class << SPAN_CLASS_SHIFT | location << SPAN_LOCATION_SHIFT;
        self.image.put_row(structure + span::START, [start / PAGE, pages]);
        self.image.put_row(structure + span::OBJECTS, [objects.head, fields]);
        // A span of objects has an entry for each of its pages, another span for its first and last
        // one.
        for page in (start..start + bytes).step_by(PAGE as usize) {
            if class > 0 || page == start || page + PAGE == start + bytes {
                self.image.put_word(leaf_entry(page), structure);
            }
        }
        if class > 0 {
            self.spans[class as usize].push(structure);
        }
        self.next_span = start + bytes;
        self.next_structure += span::BYTES;
    }

    /// Writes the objects of a span: in use, for a cache, or in the span's list.
    fn write_objects(&mut self, start: u64, class: usize, rng: &mut Rng) -> SpanObjects {
        let SizeClass { object_bytes, span_pages } = CLASSES[class];
        let used_percent = rng.below(101);
        let mut objects = SpanObjects::default();
        for index in 0..span_pages * PAGE / object_bytes {
            let object = start + index * object_bytes;
            if rng.chance(used_percent) {
                objects.taken_objects += 1;
                self.expected.live_bytes += object_bytes;
                self.expected.live_blocks += 1;
            } else if rng.chance(30) {
                objects.taken_objects += 1;
                self.expected.cached_bytes += object_bytes;
                self.unlisted_objects[class].push(object);
            } else {
                self.expected.free_bytes += object_bytes;
                self.image.put_word(object, objects.head);
                objects.head = object;
            }
        }
        objects
    }

    /// Writes `SizeMap`, with or without the word that it has from 2.11 on.
    fn write_sizes(&mut self, is_2_11: bool) {
        for (index, class) in (0..).zip(&CLASSES) {
            let batch = if class.object_bytes > 0 { BATCH } else { 0 };
            self.image.put_bits(SIZES + 4 * index, batch, 32);
            self.image.put_bits(SIZES + CLASS_SIZES + 4 * index, class.object_bytes, 32);
            self.image.put_word(SIZES + CLASS_PAGES + 8 * index, class.span_pages);
        }
        let count = CLASSES.len() as u64;
        let words = if is_2_11 { [1, count] } else { [count, 0] };
        self.image.put_row(SIZES + CLASS_PAGES + 8 * MAX_CLASSES, words);
    }

    /// Writes central lists with transfer caches, and a thread's cache, from the unlisted objects.
    fn write_lists(&mut self, rng: &mut Rng) {
        self.image.put_word(THREADS, CACHE);
        for (class, &SizeClass { object_bytes, .. }) in CLASSES.iter().enumerate() {
            let list = CENTRAL + class as u64 * CENTRAL_BYTES;
            self.image.put_word(list + central::CLASS, class as u64);
            self.image.put_word(list + central::SPAN_COUNT, self.spans[class].len() as u64);
            let head = list + if rng.chance(50) { central::EMPTY } else { central::NON_EMPTY };
            let mut previous = head;
            for structure in std::mem::take(&mut self.spans[class]) {
                self.image.put_word(structure + span::PREVIOUS, previous);
                self.image.put_word(previous + span::NEXT, structure);
                previous = structure;
            }
            let mut objects = std::mem::take(&mut self.unlisted_objects[class]);
            let slots = (objects.len() as u64 / BATCH).min(MAX_SLOTS) * rng.below(2);
            for slot in 0..slots {
                let batch = objects.split_off(objects.len() - BATCH as usize);
                let first = self.link_objects(&batch);
                self.image.put_word(list + central::SLOTS + central::SLOT_BYTES * slot, first);
            }
            self.image.put_bits(list + central::USED_SLOTS, slots, 32);
            let cache_list = CACHE + CACHE_LIST_BYTES * class as u64;
            let first = self.link_objects(&objects);
            self.image.put_word(cache_list, first);
            self.image.put_bits(cache_list + 8, objects.len() as u64, 32);
            self.image.put_bits(cache_list + 24, object_bytes, 32);
        }
    }

    /// Links objects through their first words; returns the head of the list.
    fn link_objects(&mut self, objects: &[u64]) -> u64 {
        let mut first = 0;
        for &object in objects {
            self.image.put_word(object, first);
            first = object;
        }
        first
    }
}
