//! Fabricated processes with the tcmalloc of github.com/google/tcmalloc: a library's static data
//! with size classes, transfer caches, the root of the page map and maps of free huge pages;
//! tcmalloc's own structures; and a heap of huge pages. All contents are known by construction.
//!
//! Written from the headers of that repository, independently of the reader that it tests.

use crate::google_tcmalloc_layouts::{BASE_CLASSES, CLASSES, COMMITS, Commit, GOOGLE_LAYOUTS};
use crate::tcmalloc::{SizeClass, size_class};
use crate::{HeapExpected, HeapImage, Image, Rng, map_line, map_lines};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Bytes of a huge page.
const HUGE: u64 = 2 * MIB;
/// Bytes of a page of tcmalloc (`kPageSize`).
const PAGE: u64 = 8192;
/// Pages of a huge page.
const HUGE_PAGE_PAGES: u64 = HUGE / PAGE;
/// Spans of more pages have their number in `large_or_sampled_state_`.
const MAX_SMALL_PAGES: u64 = 63;
/// The library's file-backed data, and its bss after it.
const DATA: u64 = 0x7f31_4000_0000;
const DATA_BYTES: u64 = 64 * KIB;
/// `class_to_size_`.
const SIZES: u64 = DATA + 0x2004;
/// `HugeAllocator` and `HugeCache`, which begin with a `HugeAddressMap`.
const ALLOCATOR: u64 = DATA + 0x4000;
const CACHE: u64 = DATA + 0x4400;
/// `thread_heaps_`, and `cpu_cache_`.
const THREADS: u64 = DATA + 0x5000;
const SLABS_AND_SHIFT: u64 = DATA + 0x5100;
/// `arena_`, and two allocators of single structures that point to it.
const ARENA: u64 = DATA + 0x5200;
const ARENA_USERS: [u64; 2] = [DATA + 0x5300, DATA + 0x5340];
/// `bytes_nonresident_` of the arena.
const NOT_RESIDENT_BYTES: u64 = 20 * KIB;
/// `transfer_cache_`.
const TRANSFER: u64 = DATA + DATA_BYTES;
const TRANSFER_STRIDE: u64 = 576;
/// The root of the page map: the half of it that user addresses can use, here at the end.
const ROOT: u64 = TRANSFER + TRANSFER_BYTES;
const TRANSFER_BYTES: u64 = 256 * KIB;
const ROOT_BYTES: u64 = 4 * MIB;
const BSS_BYTES: u64 = TRANSFER_BYTES + ROOT_BYTES;
/// The start of the address space that tcmalloc reserves for its own structures.
const RESERVED: u64 = 0x0d00_0000_0000;
/// The part of it in use: `Span`s, `PageTracker`s, nodes of maps of huge pages, samples, a thread's
/// cache, slots of transfer caches, `begins_`, caches of processors, and the page map.
const OWN: u64 = RESERVED + 0x3fc0_0000;
const OWN_BYTES: u64 = 4 * MIB;
const SPANS: u64 = OWN;
const TRACKERS: u64 = OWN + MIB;
const NODES: u64 = OWN + MIB + 256 * KIB;
const SAMPLES: u64 = OWN + MIB + 320 * KIB;
const THREAD: u64 = OWN + MIB + 384 * KIB;
const SLOTS: u64 = OWN + MIB + 448 * KIB;
const BEGINS: u64 = OWN + MIB + 704 * KIB;
const SLABS: u64 = OWN + 2 * MIB;
const SLAB_SHIFT: u64 = 18;
const LEAF: u64 = OWN + 3 * MIB;
const NODE: u64 = OWN + 3 * MIB + 512 * KIB;
/// Entries of the node between the root and its leaves.
const NODE_ENTRIES: u64 = 1 << 12;
/// Distances between two structures of a kind.
const SPAN_BYTES: u64 = 64;
const TRACKER_BYTES: u64 = 256;
const NODE_BYTES: u64 = 64;
const SAMPLE_BYTES: u64 = 640;
/// Bytes of a list of a thread's cache.
const THREAD_LIST_BYTES: u64 = 24;
/// The heap.
const HEAP: u64 = 0x1080_0000_0000;
const HUGE_PAGES: u64 = 6;

/// Offsets in `Span`. The word `FIRST_PAGE` also has flags.
mod span {
    pub const EMBEDDED_COUNT: u64 = 16;
    pub const FIRST_HOLDER: u64 = 18;
    pub const USED_COUNT: u64 = 20;
    pub const INLINE_COUNT: u64 = 22;
    pub const FIRST_PAGE: u64 = 24;
    /// The list of free objects in the structure, or the bitmap of free objects.
    pub const FREE_OBJECTS: u64 = 40;
}

/// Offsets in `PageTracker`.
mod tracker {
    pub const HUGE_PAGE: u64 = 16;
    pub const RELEASED_COUNT: u64 = 24;
    /// The number of used pages, from the start of their bits.
    pub const USED_COUNT_FROM_BITS: u64 = 34;
}

/// Offsets in a sample, and in `HugeAddressMap` and its nodes.
const SAMPLE_PROXY: u64 = 32;
const SAMPLE_BLOCK_BYTES: u64 = 56;
const MAP_COUNTS: u64 = 8;
const MAP_END: u64 = 64;
const NODE_RIGHT: u64 = 32;
const NODE_PARENT: u64 = 40;
/// Offsets in a transfer cache: its sizes and slots, and its class with the size of the objects.
const TRANSFER_SLOTS: u64 = 24;
const TRANSFER_CLASS: u64 = 48;

/// Consecutive huge pages.
#[derive(Clone, Copy)]
struct HugeRange {
    start: u64,
    huge_pages: u64,
}

/// A bit for each page of a huge page.
#[derive(Default)]
struct PageBits([u64; 4]);

impl PageBits {
    fn set(&mut self, first: u64, pages: u64) {
        (first..first + pages).for_each(|page| self.0[page as usize / 64] |= 1 << (page % 64));
    }

    fn count(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }
}

struct Writer {
    image: Image,
    commit: &'static Commit,
    /// Addresses of the next structures of each kind.
    next_span: u64,
    next_tracker: u64,
    next_node: u64,
    next_sample: u64,
    /// Free objects of each class that are in no cache yet.
    uncached_objects: Vec<Vec<u64>>,
    expected: HeapExpected,
}

/// Fabricates a tcmalloc from `seed`, with the layout of the commit of this number (modulo their
/// number).
pub fn fabricate_google_tcmalloc(layout: usize, seed: u64) -> HeapImage {
    let heap_bytes = HUGE_PAGES * HUGE;
    let image = Image::of(&[(DATA, DATA_BYTES + BSS_BYTES), (OWN, OWN_BYTES), (HEAP, heap_bytes)]);
    let mut rng = Rng::new(seed ^ 0x676f_6f67);
    let mut writer = Writer {
        image,
        commit: &COMMITS[layout % GOOGLE_LAYOUTS],
        next_span: SPANS,
        next_tracker: TRACKERS,
        next_node: NODES,
        next_sample: SAMPLES,
        uncached_objects: vec![Vec::new(); CLASSES.len()],
        expected: HeapExpected::default(),
    };
    let root_entry = writer.write_root();
    writer.write_sizes();
    writer.write_heap(&mut rng);
    writer.write_caches(&mut rng);
    writer.write_arena();
    let span_entries = writer.span_entries();
    let structure_ranges = vec![
        (root_entry, root_entry + 8),
        (SIZES & !7, (SIZES & !7) + 1024),
        (ALLOCATOR, ALLOCATOR + 88),
        (CACHE, CACHE + 88),
        (THREADS, THREADS + 8),
        (SLABS_AND_SHIFT, SLABS_AND_SHIFT + 24),
        (TRANSFER, TRANSFER + CLASSES.len() as u64 * TRANSFER_STRIDE),
        (SPANS, writer.next_span),
        (TRACKERS, writer.next_tracker.max(TRACKERS + 8)),
        (NODES, writer.next_node.max(NODES + 8)),
        (SAMPLES, writer.next_sample.max(SAMPLES + 8)),
        (THREAD, THREAD + 6272),
        (BEGINS, BEGINS + 512),
        (SLABS, SLABS + 4096),
        (LEAF, LEAF + 8192),
        (span_entries, span_entries + heap_bytes / PAGE * 8),
        (HEAP, HEAP + heap_bytes),
    ];
    HeapImage { image: writer.image, maps: maps(), expected: writer.expected, structure_ranges }
}

fn maps() -> String {
    // madvise was called on the root, which therefore is its own mapping.
    map_lines(&[
        map_line(RESERVED, OWN - RESERVED, "---p 00000000 00:00 0"),
        map_line(OWN, OWN_BYTES, "rw-p 00000000 00:00 0"),
        map_line(HEAP, HUGE_PAGES * HUGE, "rw-p 00000000 00:00 0"),
        map_line(DATA, DATA_BYTES, "rw-p 00080000 08:01 79 /usr/bin/served"),
        map_line(TRANSFER, TRANSFER_BYTES, "rw-p 00000000 00:00 0"),
        map_line(ROOT, ROOT_BYTES, "rw-p 00000000 00:00 0"),
    ])
}

impl Writer {
    fn class_count(&self) -> u64 {
        BASE_CLASSES * self.commit.partitions
    }

    /// Bytes of a size class's number in the page map.
    fn class_number_bytes(&self) -> u64 {
        if self.class_count() > 256 { 2 } else { 1 }
    }

    /// Address of the first pointer to a span in the leaf, after the numbers of classes.
    fn span_entries(&self) -> u64 {
        LEAF + self.class_number_bytes() * (1 << self.commit.leaf_bits)
    }

    /// Address of the first pointer to a tracker in the leaf.
    fn tracker_entries(&self) -> u64 {
        self.span_entries() + 8 * (1 << self.commit.leaf_bits)
    }

    /// Sets bits of a word.
    fn set_bits(&mut self, address: u64, bits: u64) {
        self.image.put_word(address, self.image.word(address).unwrap_or(0) | bits);
    }

    /// Writes the root, and the node below it if there is one; returns the address of the root's
    /// entry. The heap begins with its leaf.
    fn write_root(&mut self) -> u64 {
        let leaf = (HEAP / PAGE) >> self.commit.leaf_bits;
        let (root_entry, target) = if self.commit.has_node {
            self.image.put_word(NODE + leaf % NODE_ENTRIES * 8, LEAF);
            (ROOT + leaf / NODE_ENTRIES * 8, NODE)
        } else {
            (ROOT + leaf * 8, LEAF)
        };
        self.image.put_word(root_entry, target);
        root_entry
    }

    /// Writes `class_to_pages_` and `class_to_size_`, which are the same for each partition.
    fn write_sizes(&mut self) {
        let count = self.class_count();
        let class_to_pages = SIZES - (count + 2).next_multiple_of(2);
        for class in 0..count {
            let spec = CLASSES.get((class % BASE_CLASSES) as usize).copied();
            let SizeClass { object_bytes, span_pages } = spec.unwrap_or(size_class(0, 0));
            self.image.put_bits(SIZES + 4 * class, object_bytes, 32);
            self.image.put_bits(class_to_pages + class, span_pages, 8);
        }
    }

    /// Writes consecutive huge pages: divided, of a large block, or free.
    fn write_heap(&mut self, rng: &mut Rng) {
        let (mut backed_ranges, mut unbacked_ranges) = (Vec::new(), Vec::new());
        let mut index = 0;
        while index < HUGE_PAGES {
            let start = HEAP + index * HUGE;
            let huge_pages = (1 + rng.below(3)).min(HUGE_PAGES - index);
            // A divided page follows each free range: adjacent ones would be one. The first page is
            // divided, because readers find the page map by spans of objects, which every process
            // has.
            let kind = if index == 0 { 3 } else { rng.below(6) };
            match kind {
                0 => backed_ranges.push(HugeRange { start, huge_pages }),
                1 => unbacked_ranges.push(HugeRange { start, huge_pages }),
                2 => {
                    self.write_large_block(start, huge_pages, rng);
                    index += huge_pages;
                    continue;
                }
                _ => {
                    self.write_divided(start, 0, rng);
                    index += 1;
                    continue;
                }
            }
            index += huge_pages;
            if index < HUGE_PAGES {
                self.write_divided(HEAP + index * HUGE, 0, rng);
                index += 1;
            }
        }
        let sum = |ranges: &[HugeRange]| ranges.iter().map(|range| range.huge_pages).sum::<u64>();
        self.expected.releasable_bytes += sum(&backed_ranges) * HUGE;
        self.expected.unmapped_bytes += sum(&unbacked_ranges) * HUGE;
        let used_huge_pages = HUGE_PAGES - sum(&unbacked_ranges);
        self.write_huge_map(ALLOCATOR, &unbacked_ranges, [HUGE_PAGES, used_huge_pages]);
        self.write_huge_map(CACHE, &backed_ranges, [sum(&backed_ranges), 10]);
    }

    /// Writes a `HugeAddressMap`, a tree in which each node is the right child of the one before,
    /// and the words after it.
    fn write_huge_map(&mut self, map: u64, ranges: &[HugeRange], words_after: [u64; 2]) {
        let mut parent = 0;
        for (index, range) in ranges.iter().enumerate() {
            let node = self.next_node;
            self.next_node += NODE_BYTES;
            self.image.put_row(node, [range.start / HUGE, range.huge_pages]);
            self.image.put_word(node + NODE_PARENT, parent);
            self.image.put_word(if index == 0 { map } else { parent + NODE_RIGHT }, node);
            parent = node;
        }
        let total: u64 = ranges.iter().map(|range| range.huge_pages).sum();
        self.image.put_row(map + MAP_COUNTS, [ranges.len() as u64, total]);
        self.image.put_row(map + MAP_END, words_after);
    }

    /// Writes a block of huge pages; the rest of its last page is used for other spans.
    fn write_large_block(&mut self, start: u64, huge_pages: u64, rng: &mut Rng) {
        let slack_pages = if rng.chance(50) { 1 + rng.below(HUGE_PAGE_PAGES - 1) } else { 0 };
        self.write_block(start, huge_pages * HUGE_PAGE_PAGES - slack_pages);
        if slack_pages > 0 {
            let last_page = start + (huge_pages - 1) * HUGE;
            self.write_divided(last_page, HUGE_PAGE_PAGES - slack_pages, rng);
        }
    }

    /// Writes a span that is one block.
    fn write_block(&mut self, start: u64, pages: u64) {
        let span = self.write_span(start, pages, 0);
        if pages > MAX_SMALL_PAGES {
            self.set_bits(span + span::FIRST_PAGE, 1 << self.commit.large_bit);
            self.image.put_word(span + self.commit.large_state, pages);
        }
        self.expected.live_bytes += pages * PAGE;
        self.expected.live_blocks += 1;
    }

    /// Writes the structure of a span, and its entries in the page map; returns the structure's
    /// address.
    fn write_span(&mut self, start: u64, pages: u64, class: u64) -> u64 {
        let span = self.next_span;
        self.next_span += SPAN_BYTES;
        self.image.put_word(span + span::FIRST_PAGE, start / PAGE);
        if pages <= MAX_SMALL_PAGES {
            self.set_bits(span + self.commit.small_pages_word, pages << self.commit.small_pages_bit);
        }
        for page in 0..if class > 0 { pages } else { 1 } {
            let index = (start - HEAP) / PAGE + page;
            let number_bytes = self.class_number_bytes();
            self.image.put_bits(LEAF + index * number_bytes, class, 8 * number_bytes as u32);
            self.image.put_word(self.span_entries() + 8 * index, span | class << 48);
        }
        span
    }

    /// Writes a divided huge page, whose first `taken_pages` pages belong to a large block.
    fn write_divided(&mut self, start: u64, taken_pages: u64, rng: &mut Rng) {
        let (mut used_pages, mut released_pages) = (PageBits::default(), PageBits::default());
        used_pages.set(0, taken_pages);
        let mut page = taken_pages;
        while page < HUGE_PAGE_PAGES {
            let room_pages = HUGE_PAGE_PAGES - page;
            let span_start = start + page * PAGE;
            let class = 1 + rng.below(CLASSES.len() as u64 - 1);
            let (kind, pages) = (rng.below(12), 1 + rng.below(10).min(room_pages - 1));
            let span_pages = CLASSES[class as usize].span_pages;
            match kind {
                0 => self.expected.releasable_bytes += pages * PAGE,
                1 => {
                    released_pages.set(page, pages);
                    self.expected.unmapped_bytes += pages * PAGE;
                }
                2 => {
                    used_pages.set(page, pages);
                    self.write_block(span_start, pages);
                }
                3 => {
                    used_pages.set(page, pages);
                    self.write_sample(span_start, pages, rng);
                }
                _ if span_pages <= room_pages => {
                    used_pages.set(page, span_pages);
                    self.write_objects(span_start, class, rng);
                    page += span_pages;
                    continue;
                }
                _ => self.expected.releasable_bytes += pages * PAGE,
            }
            page += pages;
        }
        self.write_tracker(start, &used_pages, &released_pages);
    }

    /// Writes the `PageTracker` of a divided huge page.
    fn write_tracker(&mut self, start: u64, used_pages: &PageBits, released_pages: &PageBits) {
        let Commit { tracker_used, tracker_released, .. } = *self.commit;
        // The first tracker is at the very end of its mapping.
        let is_first = self.next_tracker == TRACKERS;
        let tracker = if is_first { OWN + OWN_BYTES - (tracker_released + 32) } else { self.next_tracker };
        self.next_tracker += TRACKER_BYTES;
        self.image.put_word(tracker + tracker::HUGE_PAGE, start / HUGE);
        self.image.put_bits(tracker + tracker::RELEASED_COUNT, released_pages.count(), 16);
        self.image.put_row(tracker + tracker_used, used_pages.0);
        self.image.put_row(tracker + tracker_released, released_pages.0);
        let used_count = tracker + tracker_used + tracker::USED_COUNT_FROM_BITS;
        self.image.put_bits(used_count, used_pages.count(), 16);
        self.image.put_word(self.tracker_entries() + (start - HEAP) / HUGE * 8, tracker);
    }

    /// Writes a sampled block, which represents others of its size, in its own span.
    fn write_sample(&mut self, start: u64, pages: u64, rng: &mut Rng) {
        let span = self.write_span(start, pages, 0);
        let bytes = (pages - 1) * PAGE + 8 * (1 + rng.below(PAGE / 8));
        let (sample, commit) = (self.next_sample, self.commit);
        self.next_sample += SAMPLE_BYTES;
        self.image.put_word(span + span::FIRST_PAGE, (start / PAGE) | (2 << commit.large_bit));
        self.image.put_row(span + commit.large_state, [pages, sample]);
        self.image.put_word(sample + SAMPLE_BLOCK_BYTES, bytes);
        if commit.has_proxy && rng.chance(30) {
            // A proxy that is in no span of objects.
            self.image.put_word(sample + SAMPLE_PROXY, start);
        }
        self.expected.live_bytes += bytes;
        self.expected.live_blocks += 1;
    }

    /// Writes a span of objects of one size: in use, for a cache, or in the span's list.
    fn write_objects(&mut self, start: u64, class: u64, rng: &mut Rng) {
        let SizeClass { object_bytes, span_pages } = CLASSES[class as usize];
        let span = self.write_span(start, span_pages, class);
        let count = span_pages * PAGE / object_bytes;
        let used_percent = rng.below(101);
        let mut free_indexes = Vec::new();
        for index in 0..count {
            if rng.chance(used_percent) {
                self.expected.live_bytes += object_bytes;
                self.expected.live_blocks += 1;
            } else if rng.chance(30) || count == 1 {
                self.expected.cached_bytes += object_bytes;
                self.uncached_objects[class as usize].push(start + index * object_bytes);
            } else {
                self.expected.free_bytes += object_bytes;
                free_indexes.push(index);
            }
        }
        self.image.put_bits(span + span::USED_COUNT, count - free_indexes.len() as u64, 16);
        // A span of one object has no list of free objects, and one of few objects has a bitmap.
        if count == 1 {
            return;
        }
        let bitmap = span + span::FREE_OBJECTS;
        if object_bytes >= PAGE / (16 * self.commit.inline_objects) {
            for index in free_indexes {
                self.set_bits(bitmap + index / 64 * 8, 1 << (index % 64));
            }
        } else {
            self.write_free_list(span, start, object_bytes, &free_indexes);
        }
    }

    /// Writes the list of free objects: some are in the structure, the others in free objects.
    /// Each of these is full except the first. The list holds distances from the span's start in
    /// units of 8 bytes.
    fn write_free_list(&mut self, span: u64, start: u64, object_bytes: u64, free_indexes: &[u64]) {
        let distance = |index: u64| index * object_bytes / 8;
        let inline_count = free_indexes.len().min(self.commit.inline_objects as usize);
        let (inline_indexes, embedded_indexes) = free_indexes.split_at(inline_count);
        for (position, &index) in (0..).zip(inline_indexes) {
            self.image.put_bits(span + span::FREE_OBJECTS + 2 * position, distance(index), 16);
        }
        self.image.put_bits(span + span::INLINE_COUNT, inline_count as u64, 8);
        let (mut first, mut embedded_count) = (0xffff, 0);
        // The first object of each part holds the distances of the others, and of the next holder.
        for part in embedded_indexes.chunks((object_bytes / 2) as usize) {
            let holder = start + part[0] * object_bytes;
            self.image.put_bits(holder, first, 16);
            for (position, &index) in (1..).zip(&part[1..]) {
                self.image.put_bits(holder + 2 * position, distance(index), 16);
            }
            (first, embedded_count) = (distance(part[0]), part.len() as u64 - 1);
        }
        self.image.put_bits(span + span::EMBEDDED_COUNT, embedded_count, 16);
        self.image.put_bits(span + span::FIRST_HOLDER, first, 16);
    }

    /// Moves uncached objects to transfer caches, and to the cache of a processor or a thread.
    fn write_caches(&mut self, rng: &mut Rng) {
        let has_processors = rng.chance(50);
        let mut slots = SLOTS;
        let mut remaining_objects = Vec::new();
        for (class, &SizeClass { object_bytes, .. }) in CLASSES.iter().enumerate() {
            let mut objects = std::mem::take(&mut self.uncached_objects[class]);
            let transferred_objects = objects.split_off(objects.len() - (objects.len() / 2).min(100));
            remaining_objects.push(objects);
            let cache = TRANSFER + class as u64 * TRANSFER_STRIDE;
            self.image.put_row(cache + TRANSFER_SLOTS, [transferred_objects.len() as u64 | 512 << 32, slots]);
            self.image.put_row(cache + TRANSFER_CLASS, [class as u64, object_bytes]);
            self.image.put_row(slots, transferred_objects.iter().copied());
            slots += 8 * transferred_objects.len() as u64;
        }
        // Other partitions have a transfer cache for each class, too.
        for class in BASE_CLASSES..self.class_count() {
            let cache = TRANSFER + class * TRANSFER_STRIDE;
            let spec = CLASSES.get((class % BASE_CLASSES) as usize);
            self.image.put_row(cache + TRANSFER_CLASS, [class, spec.map_or(0, |spec| spec.object_bytes)]);
        }
        if has_processors {
            self.write_processor_caches(&remaining_objects);
        } else {
            self.write_thread_cache(&remaining_objects);
        }
    }

    /// Writes the cache of the second of two processors; the first was never used.
    fn write_processor_caches(&mut self, objects_by_class: &[Vec<u64>]) {
        let slab = SLABS + (1 << SLAB_SHIFT);
        self.image.put_row(SLABS_AND_SHIFT, [SLABS | SLAB_SHIFT, BEGINS + 4096]);
        self.image.put_word(SLABS_AND_SHIFT + self.commit.begins, BEGINS);
        // Slots of 8 bytes follow the headers of 4 bytes.
        let mut slot = (4 * self.class_count()).div_ceil(8);
        let mut was_class_empty = false;
        for class in 1..self.class_count() {
            let objects = objects_by_class.get(class as usize).map_or(&[][..], Vec::as_slice);
            let capacity = if objects.is_empty() { 0 } else { objects.len() as u64 + 3 };
            if !was_class_empty {
                self.image.put_word(slab + 8 * slot, slab + 8 * slot + 1);
                slot += 1;
            }
            was_class_empty = capacity == 0;
            let end = slot + objects.len() as u64;
            self.image.put_bits(BEGINS + 2 * class, slot, 16);
            self.image.put_row(slab + 8 * slot, objects.iter().copied());
            self.image.put_bits(slab + 4 * class, end, 16);
            self.image.put_bits(slab + 4 * class + 2, end, 16);
            slot += capacity;
        }
    }

    /// Writes the cache of the only thread.
    fn write_thread_cache(&mut self, objects_by_class: &[Vec<u64>]) {
        self.image.put_word(THREADS, THREAD);
        let mut cached_bytes = 0;
        for class in 0..self.class_count() {
            let objects = objects_by_class.get(class as usize).map_or(&[][..], Vec::as_slice);
            let list = THREAD + THREAD_LIST_BYTES * class;
            let mut first = 0;
            for &object in objects {
                self.image.put_word(object, first);
                first = object;
                cached_bytes += CLASSES[class as usize].object_bytes;
            }
            self.image.put_word(list, first);
            self.image.put_bits(list + 8, objects.len() as u64, 32);
            self.image.put_bits(list + 16, 1, 32);
        }
        let behind = THREAD + THREAD_LIST_BYTES * self.class_count();
        self.image.put_row(behind, [cached_bytes, 1 << 16]);
    }

    /// Writes the arena of tcmalloc's own structures, and two users of it.
    fn write_arena(&mut self) {
        let end = OWN + OWN_BYTES;
        let mut words = vec![end - 4096, 4096];
        if self.commit.has_arena_list {
            words.push(end - 8192);
        }
        // Bytes allocated, unavailable and not resident; then bytes in the list, or the number of
        // blocks.
        words.extend([3 * MIB, 4112, NOT_RESIDENT_BYTES, 1040]);
        self.expected.unmapped_bytes += NOT_RESIDENT_BYTES;
        for (address, word) in (ARENA + self.commit.arena_lock_bytes..).step_by(8).zip(words) {
            self.image.put_word(address, word);
        }
        for user in ARENA_USERS {
            self.image.put_word(user, ARENA);
        }
    }
}
