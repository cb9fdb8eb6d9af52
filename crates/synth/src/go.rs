//! Fabricated Go runtimes: static data with `mheap_`, spans of objects, of stacks and dead ones,
//! their allocation bits, bitmaps of chunks. All of it is known by construction.
//!
//! Written from Go 1.23's `runtime/mheap.go` and `mpagealloc.go`, independently of the reader that
//! it tests.

use std::collections::BTreeMap;

use crate::{Image, Rng, map_lines};

const PAGE: u64 = 4096;
const CODE: u64 = 0x40_0000;
const DATA: u64 = 0x60_0000;
const DATA_BYTES: u64 = 40 * PAGE;
const OWN: u64 = 0x7f30_0000_0000;
const OWN_BYTES: u64 = 96 * PAGE;
const CHUNK_TABLE: u64 = 0x7f31_0000_0000;
const CHUNK_TABLE_BYTES: u64 = 1 << 20;
const HEAP: u64 = 0xc0_0000_0000;
const CHUNK: u64 = 4 << 20;
const SPAN_PAGE: u64 = 8 << 10;
/// Addresses in `OWN`: ranges, pointers to spans, spans, bits.
const RANGES: u64 = OWN;
const SPANS: u64 = OWN + PAGE;
const STRUCTURES: u64 = OWN + 16 * PAGE;
const BITS: u64 = OWN + 64 * PAGE;
const SIZES: [u64; 6] = [8, 48, 144, 1024, 3072, 8192];

/// Expected figures of a fabricated Go runtime, by the names of `runtime.MemStats`.
pub type GoExpected = BTreeMap<&'static str, u64>;

/// A fabricated Go runtime.
#[derive(Clone, Debug)]
pub struct GoImage {
    /// Its memory, all of it resident.
    pub image: Image,
    /// Its /proc/PID/maps.
    pub maps: String,
    /// Address of `mheap_`.
    pub mheap: u64,
    /// Its static data.
    pub data: (u64, u64),
    /// Its expected figures.
    pub expected: GoExpected,
}

/// Fabricates a Go runtime from `seed`.
pub fn fabricate_go(seed: u64) -> GoImage {
    let mut dice = Rng::new(seed ^ 0x676f);
    let chunks = 1 + dice.below(2);
    let end = HEAP + chunks * CHUNK;
    let mappings = [
        (CODE, PAGE, "r-xp 00000000 08:01 7 /srv/server"),
        (DATA, DATA_BYTES, "rw-p 00200000 08:01 7 /srv/server"),
        (HEAP, end - HEAP, "rw-p 00000000 00:00 0 "),
        (OWN, OWN_BYTES, "rw-p 00000000 00:00 0 "),
        (CHUNK_TABLE, CHUNK_TABLE_BYTES, "rw-p 00000000 00:00 0 "),
    ];
    let maps = map_lines(&mappings);
    // All but the code.
    let image = Image::of(&mappings.map(|(start, bytes, _)| (start, bytes))[1..]);
    let mheap = DATA + 8 * dice.below(512);
    let mut writer = Writer { image, dice, expected: GoExpected::new(), spans: 0, bits: BITS };
    for name in ["HeapAlloc", "HeapSys", "HeapIdle", "HeapInuse", "HeapReleased"] {
        writer.expected.insert(name, 0);
    }
    for chunk in 0..chunks {
        writer.chunk(HEAP + chunk * CHUNK);
    }
    let Writer { mut image, expected, spans, .. } = writer;
    image.put_row(RANGES, [HEAP, end]);
    // mheap_: pages at 8, with chunks at 0x78 and inUse at 0x10090; allspans at 0x10148.
    let number = HEAP.wrapping_sub(0xffff_8000_0000_0000) / CHUNK;
    let words = [
        (8 + 0x78 + 8 * (number >> 13), CHUNK_TABLE),
        (8 + 0x1_0090, RANGES),
        (8 + 0x1_0098, 1),
        (8 + 0x1_00a0, 16),
        (0x1_0148, SPANS),
        (0x1_0150, spans),
        (0x1_0158, 15 * PAGE / 8),
    ];
    image.put_words(mheap, words);
    GoImage { image, maps, mheap, data: (DATA, DATA + DATA_BYTES), expected }
}

struct Writer {
    image: Image,
    dice: Rng,
    expected: GoExpected,
    spans: u64,
    bits: u64,
}

/// A span as its structure describes it.
#[derive(Default)]
struct Span {
    start: u64,
    pages: u64,
    free_index: u64,
    objects: u64,
    /// Number of objects in use.
    used: u64,
    state: u64,
    object_bytes: u64,
}

impl Writer {
    fn add(&mut self, name: &'static str, bytes: u64) {
        *self.expected.entry(name).or_default() += bytes;
    }

    /// Writes a span's structure.
    fn span(&mut self, span: &Span) {
        let at = STRUCTURES + 160 * self.spans;
        self.image.put_word(SPANS + 8 * self.spans, at);
        self.spans += 1;
        self.image.put_word(at + 0x18, span.start);
        self.image.put_word(at + 0x20, span.pages);
        self.image.put_word(at + 0x30, span.free_index | span.objects << 16);
        self.image.put_word(at + 0x40, self.bits);
        self.image.put_word(at + 0x60, span.used | span.state << 24);
        self.image.put_word(at + 0x68, span.object_bytes);
    }

    fn chunk(&mut self, chunk: u64) {
        let (mut used, mut given) = ([0_u64; 8], [0_u64; 8]);
        let mut page = 0;
        while page < CHUNK / SPAN_PAGE {
            let pages = (1 + self.dice.below(6)).min(CHUNK / SPAN_PAGE - page);
            let (start, bytes) = (chunk + page * SPAN_PAGE, pages * SPAN_PAGE);
            let what = self.dice.below(5);
            if what < 3 {
                (page..page + pages).for_each(|page| used[(page / 64) as usize] |= 1 << (page % 64));
            }
            match what {
                0 => self.span(&Span { start, pages, state: 2, ..Span::default() }),
                1 | 2 => self.objects(start, pages),
                _ => {
                    self.add("HeapIdle", bytes);
                    self.add("HeapSys", bytes);
                    if what == 4 {
                        (page..page + pages).for_each(|page| given[(page / 64) as usize] |= 1 << (page % 64));
                        self.add("HeapReleased", bytes);
                    }
                    // Some of these pages were spans once.
                    if self.dice.below(2) == 0 {
                        let free = Span { objects: 9, used: 3, object_bytes: 64, ..Span::default() };
                        self.span(&Span { start, pages, ..free });
                    }
                }
            }
            page += pages;
        }
        let number = chunk.wrapping_sub(0xffff_8000_0000_0000) / CHUNK;
        self.image.put_row(CHUNK_TABLE + 128 * (number % (1 << 13)), used.into_iter().chain(given));
    }

    fn objects(&mut self, start: u64, pages: u64) {
        let bytes = pages * SPAN_PAGE;
        let size = match self.dice.below(7) {
            6 => bytes,
            small => SIZES[small as usize],
        };
        let objects = (bytes / size).min(1024);
        let free_index = self.dice.below(objects + 1);
        let mut used = free_index;
        for index in free_index..objects {
            if self.dice.below(3) == 0 {
                used += 1;
                let at = self.bits + index / 64 * 8;
                let word = self.image.word(at).unwrap_or(0);
                self.image.put_word(at, word | 1 << (index % 64));
            }
        }
        self.span(&Span { start, pages, free_index, objects, used, state: 1, object_bytes: size });
        self.bits = (self.bits + 128).min(BITS + 31 * PAGE);
        self.add("HeapAlloc", used * size);
        self.add("HeapInuse", bytes);
        self.add("HeapSys", bytes);
    }
}
