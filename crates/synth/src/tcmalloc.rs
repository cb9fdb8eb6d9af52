//! Fabricated tcmallocs: a library's static data with size classes, central lists and the root of
//! the page map, tcmalloc's own structures, and a heap of spans. All contents are known by
//! construction.
//!
//! Written from gperftools' headers, independently of the reader that it tests.

use crate::{Image, Rng, map_lines};

const MIB: u64 = 1 << 20;
const PAGE: u64 = 8192;
/// The library's file-backed data, and its bss behind it.
const DATA: u64 = 0x7f41_4000_0000;
const DATA_BYTES: u64 = 64 * 1024;
const BSS_BYTES: u64 = 2 * MIB;
/// `SizeMap::num_objects_to_move_`; sizes and pages follow it.
const SIZES: u64 = DATA + 0x1004;
/// Central lists, padded to 64 bytes each.
const CENTRAL: u64 = DATA + DATA_BYTES;
const CENTRAL_BYTES: u64 = 1216;
/// `thread_heaps_`.
const THREADS: u64 = DATA + 0x800;
/// tcmalloc's own chunk: spans, a thread's cache, the leaf.
const OWN: u64 = 0x7f41_8000_0000;
const OWN_BYTES: u64 = 8 * MIB;
const SPANS: u64 = OWN + 96;
const CACHE: u64 = OWN + 2 * MIB;
const LEAF: u64 = OWN + 4 * MIB;
/// The heap.
const HEAP: u64 = 0x7f42_4000_0000;
const HEAP_BYTES: u64 = 16 * MIB;
/// Size classes: bytes of an object, pages of a span.
const CLASSES: [(u64, u64); 24] = [
    (0, 0),
    (16, 1),
    (32, 1),
    (48, 1),
    (64, 1),
    (96, 1),
    (128, 1),
    (192, 1),
    (256, 1),
    (320, 1),
    (512, 1),
    (768, 1),
    (1024, 1),
    (1536, 3),
    (2048, 2),
    (3072, 3),
    (4096, 4),
    (6144, 3),
    (8192, 2),
    (16384, 4),
    (32768, 8),
    (65536, 16),
    (131_072, 32),
    (262_144, 64),
];
const BATCH: u64 = 4;

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
    /// Bytes of extents in use, of jemalloc alone.
    pub active_bytes: u64,
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
    /// Ranges of its own structures, for damage: first byte and first byte behind.
    pub structures: Vec<(u64, u64)>,
}

struct Writer {
    image: Image,
    /// Addresses of the next span's structure, and of the next span.
    next: u64,
    at: u64,
    /// By class: spans, and free objects that are in no list yet.
    spans: Vec<Vec<u64>>,
    unlisted: Vec<Vec<u64>>,
    expected: HeapExpected,
}

/// Fabricates a tcmalloc from `seed`.
pub fn fabricate_tcmalloc(seed: u64) -> HeapImage {
    let mut image = Image::of(&[(DATA, DATA_BYTES + BSS_BYTES), (OWN, OWN_BYTES), (HEAP, HEAP_BYTES)]);
    let mut dice = Rng::new(seed ^ 0x7463);
    let root = CENTRAL + 256 * 1024 + 8 * dice.below(1000);
    image.put_word(root + (HEAP >> 31) * 8, LEAF);
    let mut writer = Writer {
        image,
        next: SPANS,
        at: HEAP,
        spans: vec![Vec::new(); CLASSES.len()],
        unlisted: vec![Vec::new(); CLASSES.len()],
        expected: HeapExpected::default(),
    };
    while writer.at + 64 * PAGE < HEAP + HEAP_BYTES {
        writer.span(&mut dice);
    }
    writer.sizes(dice.chance(50));
    writer.lists(&mut dice);
    let used = writer.next;
    let maps = map_lines(&[
        (DATA, DATA_BYTES, "rw-p 00080000 08:01 78 /usr/lib/libtcmalloc_minimal.so.4"),
        (DATA + DATA_BYTES, BSS_BYTES, "rw-p 00000000 00:00 0"),
        (OWN, OWN_BYTES, "rw-p 00000000 00:00 0"),
        (HEAP, HEAP_BYTES, "rw-p 00000000 00:00 0"),
    ]);
    let leaf = LEAF + (HEAP >> 13) % (1 << 18) * 8;
    let structures = vec![
        (root + (HEAP >> 31) * 8, root + (HEAP >> 31) * 8 + 8),
        (SIZES & !7, (SIZES & !7) + 2064),
        (CENTRAL, CENTRAL + CLASSES.len() as u64 * CENTRAL_BYTES),
        (SPANS & !7, used),
        (CACHE, CACHE + 4096 + 64),
        (leaf, leaf + HEAP_BYTES / PAGE * 8),
        (HEAP, HEAP + HEAP_BYTES),
    ];
    HeapImage { image: writer.image, maps, expected: writer.expected, structures }
}

impl Writer {
    fn span(&mut self, dice: &mut Rng) {
        let (start, structure) = (self.at, self.next);
        let (pages, class, location) = match dice.below(10) {
            0 => (1 + dice.below(20), 0, 1),
            1 => (1 + dice.below(20), 0, 2),
            2 => (1 + dice.below(50), 0, 0),
            _ => {
                let class = 1 + dice.below(CLASSES.len() as u64 - 1);
                (CLASSES[class as usize].1, class, 0)
            }
        };
        let bytes = pages * PAGE;
        let (mut taken, mut objects) = (0, 0);
        match (location, class) {
            (1, _) => self.expected.releasable_bytes += bytes,
            (2, _) => {}
            (_, 0) => {
                self.expected.live_bytes += bytes;
                self.expected.live_blocks += 1;
            }
            _ => (taken, objects) = self.objects(start, class as usize, dice),
        }
        self.image.put_row(structure, [start / PAGE, pages]);
        self.image.put_row(structure + 32, [objects, taken | class << 16 | location << 24]);
        let leaf = |page: u64| LEAF + (page >> 13) % (1 << 18) * 8;
        for page in (start..start + bytes).step_by(PAGE as usize) {
            if class > 0 || page == start || page + PAGE == start + bytes {
                self.image.put_word(leaf(page), structure);
            }
        }
        if class > 0 {
            self.spans[class as usize].push(structure);
        }
        self.at = start + bytes;
        self.next += 48;
    }

    /// Writes the objects of a span; returns how many are not in its list, and the head of the
    /// list.
    fn objects(&mut self, start: u64, class: usize, dice: &mut Rng) -> (u64, u64) {
        let (bytes, pages) = CLASSES[class];
        let keep = dice.below(101);
        let (mut taken, mut head) = (0, 0);
        for index in 0..pages * PAGE / bytes {
            let object = start + index * bytes;
            if dice.chance(keep) {
                taken += 1;
                self.expected.live_bytes += bytes;
                self.expected.live_blocks += 1;
            } else if dice.chance(30) {
                taken += 1;
                self.expected.cached_bytes += bytes;
                self.unlisted[class].push(object);
            } else {
                self.expected.free_bytes += bytes;
                self.image.put_word(object, head);
                head = object;
            }
        }
        (taken, head)
    }

    /// Writes `SizeMap`, with or without the word that it has from 2.11 on.
    fn sizes(&mut self, is_new: bool) {
        for (class, &(bytes, pages)) in CLASSES.iter().enumerate() {
            let at = 4 * class as u64;
            self.image.put_bits(SIZES + at, if bytes > 0 { BATCH } else { 0 }, 32);
            self.image.put_bits(SIZES + 512 + at, bytes, 32);
            self.image.put_word((SIZES + 1028) + 8 * class as u64, pages);
        }
        let behind = SIZES + 1028 + 8 * 128;
        self.image.put_word(behind, if is_new { 1 } else { CLASSES.len() as u64 });
        self.image.put_word(behind + 8, if is_new { CLASSES.len() as u64 } else { 0 });
    }

    /// Writes central lists with transfer caches, and a thread's cache, from the loose objects.
    fn lists(&mut self, dice: &mut Rng) {
        self.image.put_word(THREADS, CACHE);
        for (class, &(bytes, _)) in CLASSES.iter().enumerate() {
            let central = CENTRAL + class as u64 * CENTRAL_BYTES;
            self.image.put_word(central + 8, class as u64);
            self.image.put_word(central + 112, self.spans[class].len() as u64);
            let head = central + if dice.chance(50) { 16 } else { 64 };
            let mut before = head;
            for span in std::mem::take(&mut self.spans[class]) {
                self.image.put_word(span + 24, before);
                self.image.put_word(before + 16, span);
                before = span;
            }
            let mut loose = std::mem::take(&mut self.unlisted[class]);
            let slots = (loose.len() as u64 / BATCH).min(64) * dice.below(2);
            for slot in 0..slots {
                let batch = loose.split_off(loose.len() - BATCH as usize);
                let first = self.chain(&batch);
                self.image.put_word(central + 128 + 16 * slot, first);
            }
            self.image.put_bits(central + 1152, slots, 32);
            let list = CACHE + 32 * class as u64;
            let first = self.chain(&loose);
            self.image.put_word(list, first);
            self.image.put_bits(list + 8, loose.len() as u64, 32);
            self.image.put_bits(list + 24, bytes, 32);
        }
    }

    /// Links objects through their first words; returns the head of the list.
    fn chain(&mut self, objects: &[u64]) -> u64 {
        let mut first = 0;
        for &object in objects {
            self.image.put_word(object, first);
            first = object;
        }
        first
    }
}
