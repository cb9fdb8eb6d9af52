//! Fabricated Go runtimes: static data with `mheap_`, spans of objects, of stacks and dead ones,
//! their allocation bits, bitmaps of chunks. All figures are known by construction.
//!
//! Written from Go 1.23's `runtime/mheap.go` and `mpagealloc.go`, independently of the reader that
//! it tests.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::{Image, PAGE, Rng, map_line, map_lines};

/// Mapping of the program's code.
const CODE: u64 = 0x40_0000;
/// Mapping of the program's static data.
const DATA: u64 = 0x60_0000;
const DATA_BYTES: u64 = 40 * PAGE;
/// Mapping of the runtime's own structures.
const OWN: u64 = 0x7f30_0000_0000;
const OWN_BYTES: u64 = 96 * PAGE;
/// Mapping of the second level of the table of chunks.
const CHUNK_TABLE: u64 = 0x7f31_0000_0000;
const CHUNK_TABLE_BYTES: u64 = 1 << 20;
/// Mapping of the heap.
const HEAP: u64 = 0xc0_0000_0000;

/// Ranges of the heap (`pageAlloc.inUse.ranges`).
const RANGES: u64 = OWN;
/// Pointers to spans (`mheap.allspans`).
const SPANS: u64 = OWN + PAGE;
/// Structures of spans, and the distance between two.
const STRUCTURES: u64 = OWN + 16 * PAGE;
const STRUCTURE_BYTES: u64 = 160;
/// Allocation bits of spans, 128 bytes each at most; the last ones may be shared.
const BITS: u64 = OWN + 64 * PAGE;
const LAST_BITS: u64 = BITS + 31 * PAGE;
const BITS_BYTES: u64 = 128;

/// Bytes of a chunk (`pallocChunkBytes`).
const CHUNK: u64 = 4 << 20;
/// Address of the first chunk (`arenaBaseOffset` on amd64).
const FIRST_CHUNK: u64 = 0xffff_8000_0000_0000;
/// Entries of the second level of the table of chunks (`pallocChunksL2Bits`).
const CHUNK_TABLE_ENTRIES: u64 = 1 << 13;
/// Bytes of an entry (`pallocData`): a bit per page in use, then one per page released.
const CHUNK_ENTRY_BYTES: u64 = 128;
/// Bytes of a page of a span (`pageSize`).
const SPAN_PAGE: u64 = 8 << 10;
/// Sizes of objects.
const SIZES: [u64; 6] = [8, 48, 144, 1024, 3072, 8192];

/// Offsets in `mheap`: in `pages` (a `pageAlloc` at 8) of the first level of the table of chunks
/// (`chunks`) and of the slice `inUse.ranges`; then of the slice `allspans`.
mod mheap {
    pub const CHUNKS: u64 = 8 + 0x78;
    pub const RANGES: u64 = 8 + 0x1_0090;
    pub const ALL_SPANS: u64 = 0x1_0148;
}

/// Offsets in `mspan`.
mod mspan {
    pub const START: u64 = 0x18;
    pub const PAGES: u64 = 0x20;
    /// `freeindex` and `nelems`, 16 bits each.
    pub const FREE_INDEX: u64 = 0x30;
    pub const ALLOCATION_BITS: u64 = 0x40;
    /// `allocCount`, 16 bits; `state` follows at 0x63.
    pub const USED_COUNT: u64 = 0x60;
    pub const OBJECT_BYTES: u64 = 0x68;
}

/// `mSpanInUse`.
const STATE_IN_USE: u64 = 1;
/// `mSpanManual`, the state of spans of stacks.
const STATE_MANUAL: u64 = 2;

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
    /// Its static data: the first address, and the first one past the end.
    pub data: (u64, u64),
    /// Its expected figures.
    pub expected: GoExpected,
}

/// Fabricates a Go runtime from `seed`.
pub fn fabricate_go(seed: u64) -> GoImage {
    let mut rng = Rng::new(seed ^ 0x676f);
    let chunks = 1 + rng.below(2);
    let end = HEAP + chunks * CHUNK;
    let mappings = [
        map_line(CODE, PAGE, "r-xp 00000000 08:01 7 /srv/server"),
        map_line(DATA, DATA_BYTES, "rw-p 00200000 08:01 7 /srv/server"),
        map_line(HEAP, end - HEAP, "rw-p 00000000 00:00 0 "),
        map_line(OWN, OWN_BYTES, "rw-p 00000000 00:00 0 "),
        map_line(CHUNK_TABLE, CHUNK_TABLE_BYTES, "rw-p 00000000 00:00 0 "),
    ];
    let maps = map_lines(&mappings);
    // All but the code.
    let image = Image::of(&mappings.map(|line| (line.start, line.bytes))[1..]);
    let mheap = DATA + 8 * rng.below(512);
    let mut writer = Writer { image, rng, expected: GoExpected::new(), span_count: 0, next_bits: BITS };
    for name in ["HeapAlloc", "HeapSys", "HeapIdle", "HeapInuse", "HeapReleased"] {
        writer.expected.insert(name, 0);
    }
    for chunk in 0..chunks {
        writer.write_chunk(HEAP + chunk * CHUNK);
    }
    let Writer { mut image, expected, span_count, .. } = writer;
    image.put_row(RANGES, [HEAP, end]);
    let table_entry = 8 * (chunk_index(HEAP) / CHUNK_TABLE_ENTRIES);
    image.put_word(mheap + mheap::CHUNKS + table_entry, CHUNK_TABLE);
    // Slices: address, length, capacity.
    image.put_row(mheap + mheap::RANGES, [RANGES, 1, 16]);
    image.put_row(mheap + mheap::ALL_SPANS, [SPANS, span_count, 15 * PAGE / 8]);
    GoImage { image, maps, mheap, data: (DATA, DATA + DATA_BYTES), expected }
}

/// Returns the index of the chunk at this address (`chunkIndex`).
fn chunk_index(chunk: u64) -> u64 {
    chunk.wrapping_sub(FIRST_CHUNK) / CHUNK
}

struct Writer {
    image: Image,
    rng: Rng,
    expected: GoExpected,
    /// Number of spans written.
    span_count: u64,
    /// Address of the allocation bits of the next span.
    next_bits: u64,
}

/// The fields of a span (`mspan`).
#[derive(Default)]
struct Span {
    start: u64,
    pages: u64,
    /// Index of the first object that may be free.
    free_index: u64,
    /// Number of objects.
    object_count: u64,
    /// Number of objects in use.
    used_count: u64,
    state: u64,
    object_bytes: u64,
}

/// The bits of the pages of a chunk.
#[derive(Default)]
struct PageBits([u64; 8]);

impl PageBits {
    fn set(&mut self, pages: Range<u64>) {
        for page in pages {
            self.0[(page / 64) as usize] |= 1 << (page % 64);
        }
    }
}

impl Writer {
    /// Adds to an expected figure.
    fn add(&mut self, name: &'static str, bytes: u64) {
        *self.expected.entry(name).or_default() += bytes;
    }

    /// Writes a span's structure.
    fn write_span(&mut self, span: &Span) {
        let structure = STRUCTURES + STRUCTURE_BYTES * self.span_count;
        self.image.put_word(SPANS + 8 * self.span_count, structure);
        self.span_count += 1;
        let words = [
            (mspan::START, span.start),
            (mspan::PAGES, span.pages),
            (mspan::FREE_INDEX, span.free_index | span.object_count << 16),
            (mspan::ALLOCATION_BITS, self.next_bits),
            (mspan::USED_COUNT, span.used_count | span.state << 24),
            (mspan::OBJECT_BYTES, span.object_bytes),
        ];
        self.image.put_words(structure, words);
    }

    /// Fills a chunk with spans of stacks, spans of objects, and idle pages, and writes its entry
    /// in the table of chunks.
    fn write_chunk(&mut self, chunk: u64) {
        let (mut used_pages, mut released_pages) = (PageBits::default(), PageBits::default());
        let mut page = 0;
        while page < CHUNK / SPAN_PAGE {
            let pages = (1 + self.rng.below(6)).min(CHUNK / SPAN_PAGE - page);
            let start = chunk + page * SPAN_PAGE;
            match self.rng.below(5) {
                0 => {
                    used_pages.set(page..page + pages);
                    self.write_span(&Span { start, pages, state: STATE_MANUAL, ..Span::default() });
                }
                1 | 2 => {
                    used_pages.set(page..page + pages);
                    self.write_objects(start, pages);
                }
                3 => self.add_idle(start, pages),
                _ => {
                    released_pages.set(page..page + pages);
                    self.add("HeapReleased", pages * SPAN_PAGE);
                    self.add_idle(start, pages);
                }
            }
            page += pages;
        }
        let entry = CHUNK_TABLE + CHUNK_ENTRY_BYTES * (chunk_index(chunk) % CHUNK_TABLE_ENTRIES);
        self.image.put_row(entry, used_pages.0.into_iter().chain(released_pages.0));
    }

    /// Adds idle pages, some of them with the structure of a dead span.
    fn add_idle(&mut self, start: u64, pages: u64) {
        let bytes = pages * SPAN_PAGE;
        self.add("HeapIdle", bytes);
        self.add("HeapSys", bytes);
        if self.rng.below(2) == 0 {
            let dead = Span { object_count: 9, used_count: 3, object_bytes: 64, ..Span::default() };
            self.write_span(&Span { start, pages, ..dead });
        }
    }

    /// Writes a span of objects of one size.
    fn write_objects(&mut self, start: u64, pages: u64) {
        let bytes = pages * SPAN_PAGE;
        let object_bytes = match self.rng.below(7) {
            6 => bytes,
            small => SIZES[small as usize],
        };
        let object_count = (bytes / object_bytes).min(8 * BITS_BYTES);
        let free_index = self.rng.below(object_count + 1);
        let mut used_count = free_index;
        for index in free_index..object_count {
            if self.rng.below(3) == 0 {
                used_count += 1;
                let address = self.next_bits + index / 64 * 8;
                let word = self.image.word(address).unwrap_or(0);
                self.image.put_word(address, word | 1 << (index % 64));
            }
        }
        let state = STATE_IN_USE;
        self.write_span(&Span { start, pages, free_index, object_count, used_count, state, object_bytes });
        self.next_bits = (self.next_bits + BITS_BYTES).min(LAST_BITS);
        self.add("HeapAlloc", used_count * object_bytes);
        self.add("HeapInuse", bytes);
        self.add("HeapSys", bytes);
    }
}
