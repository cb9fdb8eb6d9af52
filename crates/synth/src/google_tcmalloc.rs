//! Fabricated processes with the tcmalloc of github.com/google/tcmalloc: a library's static data
//! with size classes, transfer caches, the root of the page map and maps of free huge pages;
//! tcmalloc's own structures; and a heap of huge pages. All contents are known by construction.
//!
//! Written from the headers of that repository, independently of the reader that it tests.

use crate::{HeapExpected, HeapImage, Image, Rng, map_lines};

const MIB: u64 = 1 << 20;
const HUGE: u64 = 2 * MIB;
const PAGE: u64 = 8192;
/// Pages of a huge page.
const PAGES: u64 = HUGE / PAGE;
/// The library's file-backed data, and its bss behind it.
const DATA: u64 = 0x7f31_4000_0000;
const DATA_BYTES: u64 = 64 * 1024;
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
/// `transfer_cache_`.
const TRANSFER: u64 = DATA + DATA_BYTES;
const TRANSFER_STRIDE: u64 = 576;
/// The root of the page map: the half of it that user addresses can use, here at the end.
const ROOT: u64 = TRANSFER + 256 * 1024;
const ROOT_BYTES: u64 = 4 * MIB;
const BSS_BYTES: u64 = 256 * 1024 + ROOT_BYTES;
/// tcmalloc's own structures.
const OWN: u64 = 0x0d00_3fc0_0000;
const OWN_BYTES: u64 = 4 * MIB;
const SPANS: u64 = OWN;
const TRACKERS: u64 = OWN + MIB;
const NODES: u64 = OWN + MIB + 256 * 1024;
const SAMPLES: u64 = OWN + MIB + 320 * 1024;
const THREAD: u64 = OWN + MIB + 384 * 1024;
const SLOTS: u64 = OWN + MIB + 448 * 1024;
const BEGINS: u64 = OWN + MIB + 704 * 1024;
const SLABS: u64 = OWN + 2 * MIB;
const SLAB_SHIFT: u64 = 18;
const LEAF: u64 = OWN + 3 * MIB;
const NODE: u64 = OWN + 3 * MIB + 512 * 1024;
/// The heap.
const HEAP: u64 = 0x1080_0000_0000;
const HUGE_PAGES: u64 = 6;
/// Size classes in use: bytes of an object, pages of a span.
const CLASSES: [(u64, u64); 24] = [
    (0, 0),
    (8, 1),
    (16, 1),
    (24, 1),
    (32, 1),
    (64, 1),
    (80, 1),
    (128, 1),
    (256, 1),
    (512, 1),
    (768, 1),
    (1024, 1),
    (1536, 3),
    (2048, 2),
    (3072, 3),
    (4096, 1),
    (6144, 3),
    (8192, 1),
    (16384, 2),
    (32768, 4),
    (65536, 8),
    (98304, 12),
    (131_072, 16),
    (262_144, 32),
];
/// Classes of a partition (`kNumBaseClasses`).
const BASE: u64 = 86;

/// Layout of a commit.
struct Commit {
    /// Number of partitions: normal ones, and a cold one.
    partitions: u64,
    /// Bit of `is_large_span_` in the word at 24; `sampled_` follows it.
    large_bit: u64,
    /// Offset of the word that holds a small span's number of pages, and the lowest bit of the
    /// number.
    small_pages: (u64, u64),
    /// Offset of `large_or_sampled_state_`.
    large: u64,
    /// Free objects that a span's structure itself can list.
    cached: u64,
    /// Offsets in `PageTracker` of the bits for pages in use, and for pages released.
    tracker: (u64, u64),
    /// `StackTrace`: whether a sample has a proxy.
    has_proxy: bool,
    /// Bytes of a lock before the arena's words.
    arena_lock: u64,
    /// Binary logarithm of the pages of a leaf of the page map; with 12, nodes of as many leaves
    /// are between root and leaves (`PageMap3`).
    leaf_bits: u64,
    /// `TcmallocSlab`: offset of `begins_`.
    begins: u64,
}

const COMMITS: [Commit; 3] = [
    // 24b3f29b of 2025-06-16
    Commit {
        partitions: 2,
        large_bit: 61,
        small_pages: (32, 0),
        large: 32,
        cached: 8,
        tracker: (48, 88),
        has_proxy: true,
        arena_lock: 8,
        leaf_bits: 15,
        begins: 16,
    },
    // of 2025-12
    Commit {
        partitions: 2,
        large_bit: 60,
        small_pages: (32, 0),
        large: 32,
        cached: 8,
        tracker: (56, 168),
        has_proxy: true,
        arena_lock: 8,
        leaf_bits: 15,
        begins: 16,
    },
    // fce3f55d of 2026-08-21
    Commit {
        partitions: 3,
        large_bit: 35,
        small_pages: (24, 38),
        large: 40,
        cached: 12,
        tracker: (56, 168),
        has_proxy: false,
        arena_lock: 0,
        leaf_bits: 12,
        begins: 24,
    },
];

/// Number of commits that can be fabricated.
pub const GOOGLE_LAYOUTS: usize = COMMITS.len();

struct Writer {
    image: Image,
    commit: &'static Commit,
    spans: u64,
    trackers: u64,
    nodes: u64,
    samples: u64,
    /// Free objects of each class that are in no cache yet.
    loose: Vec<Vec<u64>>,
    expected: HeapExpected,
}

/// Fabricates a tcmalloc from `seed`, with the layout of the commit of this number (modulo their
/// number).
pub fn fabricate_google_tcmalloc(layout: usize, seed: u64) -> HeapImage {
    let heap_bytes = HUGE_PAGES * HUGE;
    let image = Image::of(&[(DATA, DATA_BYTES + BSS_BYTES), (OWN, OWN_BYTES), (HEAP, heap_bytes)]);
    let mut dice = Rng::new(seed ^ 0x676f_6f67);
    let mut writer = Writer {
        image,
        commit: &COMMITS[layout % GOOGLE_LAYOUTS],
        spans: SPANS,
        trackers: TRACKERS,
        nodes: NODES,
        samples: SAMPLES,
        loose: vec![Vec::new(); CLASSES.len()],
        expected: HeapExpected::default(),
    };
    let slot = writer.root();
    writer.sizes();
    writer.heap(&mut dice);
    writer.caches(&mut dice);
    writer.arena();
    let entries = writer.entries();
    let structures = vec![
        (slot, slot + 8),
        (SIZES & !7, (SIZES & !7) + 1024),
        (ALLOCATOR, ALLOCATOR + 88),
        (CACHE, CACHE + 88),
        (THREADS, THREADS + 8),
        (SLABS_AND_SHIFT, SLABS_AND_SHIFT + 24),
        (TRANSFER, TRANSFER + CLASSES.len() as u64 * TRANSFER_STRIDE),
        (SPANS, writer.spans),
        (TRACKERS, writer.trackers.max(TRACKERS + 8)),
        (NODES, writer.nodes.max(NODES + 8)),
        (SAMPLES, writer.samples.max(SAMPLES + 8)),
        (THREAD, THREAD + 6272),
        (BEGINS, BEGINS + 512),
        (SLABS, SLABS + 4096),
        (LEAF, LEAF + 8192),
        (entries, entries + heap_bytes / PAGE * 8),
        (HEAP, HEAP + heap_bytes),
    ];
    HeapImage { image: writer.image, maps: maps(), expected: writer.expected, structures }
}

fn maps() -> String {
    // madvise was called on the root, which therefore is its own mapping.
    map_lines(&[
        (0x0d00_0000_0000, OWN - 0x0d00_0000_0000, "---p 00000000 00:00 0"),
        (OWN, OWN_BYTES, "rw-p 00000000 00:00 0"),
        (HEAP, HUGE_PAGES * HUGE, "rw-p 00000000 00:00 0"),
        (DATA, DATA_BYTES, "rw-p 00080000 08:01 79 /usr/bin/served"),
        (DATA + DATA_BYTES, 256 * 1024, "rw-p 00000000 00:00 0"),
        (ROOT, ROOT_BYTES, "rw-p 00000000 00:00 0"),
    ])
}

impl Writer {
    fn class_count(&self) -> u64 {
        BASE * self.commit.partitions
    }

    /// Bytes of a size class's number in the page map.
    fn width(&self) -> u64 {
        if self.class_count() > 256 { 2 } else { 1 }
    }

    /// Address of the first pointer to a span in the leaf.
    fn entries(&self) -> u64 {
        LEAF + self.width() * (1 << self.commit.leaf_bits)
    }

    /// Writes the root, and the node behind it if there is one; returns the address of the root's
    /// entry. The heap begins with its leaf.
    fn root(&mut self) -> u64 {
        let leaf = (HEAP >> 13) >> self.commit.leaf_bits;
        if self.commit.leaf_bits == 15 {
            self.image.put_word(ROOT + leaf * 8, LEAF);
            return ROOT + leaf * 8;
        }
        self.image.put_word(NODE + leaf % 4096 * 8, LEAF);
        self.image.put_word(ROOT + leaf / 4096 * 8, NODE);
        ROOT + leaf / 4096 * 8
    }

    /// Writes `class_to_pages_` and `class_to_size_`, which are the same for each partition.
    fn sizes(&mut self) {
        let number = self.class_count();
        let pages_at = SIZES - (number + 2).next_multiple_of(2);
        for class in 0..number {
            let (bytes, pages) = CLASSES.get((class % BASE) as usize).copied().unwrap_or_default();
            self.image.put_bits(SIZES + 4 * class, bytes, 32);
            self.image.put_bits(pages_at + class, pages, 8);
        }
    }

    /// Writes consecutive huge pages: divided, of a large block, or free.
    fn heap(&mut self, dice: &mut Rng) {
        let (mut backed, mut unbacked) = (Vec::new(), Vec::new());
        let mut at = 0;
        while at < HUGE_PAGES {
            let start = HEAP + at * HUGE;
            let most = (1 + dice.below(3)).min(HUGE_PAGES - at);
            // A divided page follows each free range: adjacent ones would be one. The first page is
            // divided, because readers find the page map by spans of objects, which every process
            // has.
            match if at == 0 { 3 } else { dice.below(6) } {
                0 => backed.push((start, most)),
                1 => unbacked.push((start, most)),
                2 => {
                    self.large(start, most, dice);
                    at += most;
                    continue;
                }
                _ => {
                    self.divided(start, 0, dice);
                    at += 1;
                    continue;
                }
            }
            at += most;
            if at < HUGE_PAGES {
                self.divided(HEAP + at * HUGE, 0, dice);
                at += 1;
            }
        }
        let sum = |all: &[(u64, u64)]| all.iter().map(|range| range.1).sum::<u64>();
        self.expected.releasable_bytes += sum(&backed) * HUGE;
        let in_use = HUGE_PAGES - sum(&unbacked);
        self.huge_address_map(ALLOCATOR, &unbacked, [HUGE_PAGES, in_use]);
        self.huge_address_map(CACHE, &backed, [sum(&backed), 10]);
    }

    /// Writes a `HugeAddressMap`, which is a tree that leans to the right, and the words behind it.
    fn huge_address_map(&mut self, at: u64, ranges: &[(u64, u64)], behind: [u64; 2]) {
        let mut parent = 0;
        for (index, &(start, huge_pages)) in ranges.iter().enumerate() {
            let node = self.nodes;
            self.nodes += 64;
            self.image.put_row(node, [start / HUGE, huge_pages]);
            self.image.put_word(node + 40, parent);
            self.image.put_word(if index == 0 { at } else { parent + 32 }, node);
            parent = node;
        }
        self.image.put_row(at + 8, [ranges.len() as u64, ranges.iter().map(|range| range.1).sum::<u64>()]);
        self.image.put_row(at + 64, behind);
    }

    /// Writes a block of huge pages; the rest of its last page is used for other spans.
    fn large(&mut self, start: u64, huge_pages: u64, dice: &mut Rng) {
        let slack = if dice.chance(50) { 1 + dice.below(PAGES - 1) } else { 0 };
        let pages = huge_pages * PAGES - slack;
        self.block(start, pages);
        if slack > 0 {
            self.divided(start + (huge_pages - 1) * HUGE, PAGES - slack, dice);
        }
    }

    fn block(&mut self, start: u64, pages: u64) {
        let span = self.span(start, pages, 0);
        if pages > 63 {
            self.image
                .put_word(span + 24, self.image.word(span + 24).unwrap_or(0) | 1 << self.commit.large_bit);
            self.image.put_word(span + self.commit.large, pages);
        }
        self.expected.live_bytes += pages * PAGE;
        self.expected.live_blocks += 1;
    }

    /// Writes the structure of a span, and its entries in the page map.
    fn span(&mut self, start: u64, pages: u64, class: u64) -> u64 {
        let span = self.spans;
        self.spans += 64;
        self.image.put_word(span + 24, start / PAGE);
        if pages <= 63 {
            let (offset, bit) = self.commit.small_pages;
            self.image.put_word(span + offset, self.image.word(span + offset).unwrap_or(0) | pages << bit);
        }
        for page in 0..if class > 0 { pages } else { 1 } {
            let index = ((start - HEAP) >> 13) + page;
            let width = self.width();
            self.image.put_bits(LEAF + index * width, class, 8 * width as u32);
            self.image.put_word(self.entries() + 8 * index, span | class << 48);
        }
        span
    }

    /// Writes a divided huge page, whose first `first` pages belong to a large block.
    fn divided(&mut self, start: u64, first: u64, dice: &mut Rng) {
        let (mut used, mut released) = ([0_u64; 4], [0_u64; 4]);
        let mark = |set: &mut [u64; 4], from: u64, pages: u64| {
            (from..from + pages).for_each(|page| set[page as usize / 64] |= 1 << (page % 64));
        };
        mark(&mut used, 0, first);
        let mut page = first;
        while page < PAGES {
            let left = PAGES - page;
            let class = 1 + dice.below(CLASSES.len() as u64 - 1);
            let (kind, pages) = (dice.below(12), 1 + dice.below(10).min(left - 1));
            match kind {
                0 => self.expected.releasable_bytes += pages * PAGE,
                1 => mark(&mut released, page, pages),
                2 | 3 => {
                    mark(&mut used, page, pages);
                    if kind == 2 {
                        self.block(start + page * PAGE, pages);
                    } else {
                        self.sample(start + page * PAGE, pages, dice);
                    }
                }
                _ if CLASSES[class as usize].1 <= left => {
                    let pages = CLASSES[class as usize].1;
                    mark(&mut used, page, pages);
                    self.objects(start + page * PAGE, class, dice);
                    page += pages;
                    continue;
                }
                _ => self.expected.releasable_bytes += pages * PAGE,
            }
            page += pages;
        }
        let count = |set: &[u64; 4]| set.iter().map(|word| u64::from(word.count_ones())).sum::<u64>();
        let (used_at, released_at) = self.commit.tracker;
        // The first tracker is at the very end of its mapping.
        let is_first = self.trackers == TRACKERS;
        let tracker = if is_first { OWN + OWN_BYTES - (released_at + 32) } else { self.trackers };
        self.trackers += 256;
        self.image.put_word(tracker + 16, start / HUGE);
        self.image.put_bits(tracker + 24, count(&released), 16);
        self.image.put_row(tracker + used_at, used);
        self.image.put_row(tracker + released_at, released);
        self.image.put_bits(tracker + used_at + 34, count(&used), 16);
        let slot = self.entries() + 8 * (1 << self.commit.leaf_bits) + ((start - HEAP) >> 21) * 8;
        self.image.put_word(slot, tracker);
    }

    /// Writes a sampled block, which represents others of its size, in its own span.
    fn sample(&mut self, start: u64, pages: u64, dice: &mut Rng) {
        let span = self.span(start, pages, 0);
        let bytes = (pages - 1) * PAGE + 8 * (1 + dice.below(PAGE / 8));
        let (sample, commit) = (self.samples, self.commit);
        self.samples += 640;
        self.image.put_word(span + 24, (start / PAGE) | (2 << commit.large_bit));
        self.image.put_row(span + commit.large, [pages, sample]);
        self.image.put_word(sample + 56, bytes);
        if commit.has_proxy && dice.chance(30) {
            // A proxy that is in no span of objects.
            self.image.put_word(sample + 32, start);
        }
        self.expected.live_bytes += bytes;
        self.expected.live_blocks += 1;
    }

    /// Writes a span that is cut into objects.
    fn objects(&mut self, start: u64, class: u64, dice: &mut Rng) {
        let (bytes, pages) = CLASSES[class as usize];
        let span = self.span(start, pages, class);
        let number = pages * PAGE / bytes;
        let keep = dice.below(101);
        let mut free = Vec::new();
        for index in 0..number {
            let object = start + index * bytes;
            if dice.chance(keep) {
                self.expected.live_bytes += bytes;
                self.expected.live_blocks += 1;
            } else if dice.chance(30) || number == 1 {
                self.expected.cached_bytes += bytes;
                self.loose[class as usize].push(object);
            } else {
                self.expected.free_bytes += bytes;
                free.push(index);
            }
        }
        self.image.put_bits(span + 20, number - free.len() as u64, 16);
        // A span of one object has no list of free objects.
        if number == 1 {
            return;
        }
        let bitmap = span + 40;
        if bytes >= PAGE / (16 * self.commit.cached) {
            for index in free {
                let at = bitmap + index / 64 * 8;
                self.image.put_word(at, self.image.word(at).unwrap_or(0) | 1 << (index % 64));
            }
        } else {
            self.list(span, start, bytes, &free);
        }
    }

    /// Writes the list of free objects: some are in the structure, the others in free objects.
    /// Each of these is full except the first.
    fn list(&mut self, span: u64, start: u64, bytes: u64, free: &[u64]) {
        let unit = |index: u64| index * bytes / 8;
        let (inside, rest) = free.split_at(free.len().min(self.commit.cached as usize));
        for (place, &index) in inside.iter().enumerate() {
            self.image.put_bits(span + 40 + 2 * place as u64, unit(index), 16);
        }
        self.image.put_bits(span + 22, inside.len() as u64, 8);
        let (mut first, mut embedded) = (0xffff, 0);
        for hosted in rest.chunks((bytes / 2) as usize) {
            let host = start + hosted[0] * bytes;
            self.image.put_bits(host, first, 16);
            for (place, &index) in hosted.iter().enumerate().skip(1) {
                self.image.put_bits(host + 2 * place as u64, unit(index), 16);
            }
            (first, embedded) = (unit(hosted[0]), hosted.len() as u64 - 1);
        }
        self.image.put_bits(span + 16, embedded, 16);
        self.image.put_bits(span + 18, first, 16);
    }

    /// Moves loose objects to transfer caches, and to the cache of a processor or a thread.
    fn caches(&mut self, dice: &mut Rng) {
        let has_processors = dice.chance(50);
        let mut slots = SLOTS;
        let mut rest = Vec::new();
        for (class, &(bytes, _)) in CLASSES.iter().enumerate() {
            let mut loose = std::mem::take(&mut self.loose[class]);
            let transferred = loose.split_off(loose.len() - (loose.len() / 2).min(100));
            rest.push(loose);
            let cache = TRANSFER + class as u64 * TRANSFER_STRIDE;
            self.image.put_row(cache + 24, [transferred.len() as u64 | 512 << 32, slots]);
            self.image.put_row(cache + 48, [class as u64, bytes]);
            self.image.put_row(slots, transferred.iter().copied());
            slots += 8 * transferred.len() as u64;
        }
        // Other partitions have a transfer cache for each class, too.
        for class in BASE..self.class_count() {
            let cache = TRANSFER + class * TRANSFER_STRIDE;
            let bytes = CLASSES.get((class % BASE) as usize).map_or(0, |of| of.0);
            self.image.put_row(cache + 48, [class, bytes]);
        }
        if has_processors { self.processors(&rest) } else { self.thread(&rest) }
    }

    /// Writes the cache of the second of two processors; the first was never used.
    fn processors(&mut self, loose: &[Vec<u64>]) {
        let slab = SLABS + (1 << SLAB_SHIFT);
        self.image.put_row(SLABS_AND_SHIFT, [SLABS | SLAB_SHIFT, BEGINS + 4096]);
        self.image.put_word(SLABS_AND_SHIFT + self.commit.begins, BEGINS);
        let mut place = (4 * self.class_count()).div_ceil(8);
        let mut was_empty = false;
        for class in 1..self.class_count() {
            let objects = loose.get(class as usize).map_or(&[][..], Vec::as_slice);
            let capacity = if objects.is_empty() { 0 } else { objects.len() as u64 + 3 };
            if !was_empty {
                self.image.put_word(slab + 8 * place, slab + 8 * place + 1);
                place += 1;
            }
            was_empty = capacity == 0;
            self.image.put_bits(BEGINS + 2 * class, place, 16);
            self.image.put_row(slab + 8 * place, objects.iter().copied());
            self.image.put_bits(slab + 4 * class, place + objects.len() as u64, 16);
            self.image.put_bits(slab + 4 * class + 2, place + objects.len() as u64, 16);
            place += capacity;
        }
    }

    fn thread(&mut self, loose: &[Vec<u64>]) {
        self.image.put_word(THREADS, THREAD);
        let mut held = 0;
        for class in 0..self.class_count() {
            let objects = loose.get(class as usize).map_or(&[][..], Vec::as_slice);
            let list = THREAD + 24 * class;
            let mut first = 0;
            for &object in objects {
                self.image.put_word(object, first);
                first = object;
                held += CLASSES[class as usize].0;
            }
            self.image.put_word(list, first);
            self.image.put_bits(list + 8, objects.len() as u64, 32);
            self.image.put_bits(list + 16, 1, 32);
        }
        let behind = THREAD + 24 * self.class_count();
        self.image.put_row(behind, [held, 1 << 16]);
    }

    fn arena(&mut self) {
        self.image.put_row(ARENA + self.commit.arena_lock, [OWN + OWN_BYTES - 4096, 4096]);
        self.image.put_word(DATA + 0x5300, ARENA);
        self.image.put_word(DATA + 0x5340, ARENA);
    }
}
