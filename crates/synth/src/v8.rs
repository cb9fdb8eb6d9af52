//! Fabricated V8 heaps: an isolate with its heap, spaces and pages, pooled pages, pages of an
//! isolate that has ended, the read-only space, and blocks of Abseil's. All figures are known by
//! construction.
//!
//! `v8_layouts` has the offsets, `v8_objects` the objects on the pages.

use std::collections::BTreeMap;

use crate::v8_layouts::{AreaPointer, LAYOUTS, Layout, PooledFlags};
use crate::v8_objects::Objects;
use crate::{Image, PAGE, Rng, Tally, Usage, map_line, map_lines};

/// Bytes of a page of V8.
const V8_PAGE_BYTES: u64 = 256 << 10;
/// Flags that each page has.
const PAGE_FLAGS: u64 = 4;
/// The program's code.
const NODE: u64 = 0x40_0000;
/// The program's malloc heap, with all structures that are not pages.
const OWN: u64 = 0x1000_0000;
const OWN_BYTES: u64 = 96 * PAGE;
const ISOLATE: u64 = OWN + 0x100;
const HEAP: u64 = OWN + 0xc000;
/// The heap of the isolate that has ended.
const ENDED: u64 = OWN + 0x1_0000;
const SPACES: u64 = OWN + 0x1_4000;
const LOCAL_HEAP: u64 = OWN + 0x1_8000;
const AREAS: u64 = OWN + 0x1_a000;
const RECORDS: u64 = OWN + 0x2_0000;
/// Pages of data, pages of code, and the page of the read-only space.
const DATA: u64 = 0x3f00_0000_0000;
const CODE: u64 = 0x7f10_0000_0000;
const CODE_BYTES: u64 = 2 * V8_PAGE_BYTES;
const READ_ONLY: u64 = 0x3e00_0000_0000;
/// Blocks of Abseil's.
const ABSEIL: u64 = 0x7f20_0000_0000;
const ABSEIL_BYTES: u64 = 16 * PAGE;
/// Of a block in use (`kMagicAllocated` of `absl/base/internal/low_level_alloc.cc`); a free one has
/// its complement.
const ALLOCATED_MAGIC: u64 = 0x4c83_3e95;
/// The lists of ArrayBuffers, their entries, stores, and the vector of strings.
const SWEEPER: u64 = OWN + 0x4_0000;
const ENTRIES: u64 = OWN + 0x4_1000;
const STORES: u64 = OWN + 0x4_8000;
const STRINGS: u64 = OWN + 0x5_0000;
/// Offset in the sweeper of the list of old ArrayBuffers, from 13 on: their entries have a bit set.
const OLD_LIST: u64 = 48;
/// The addresses of blocks, whose contents no reader reads.
const BLOCKS: u64 = 0x2000_0000;
/// A memory that V8 maps.
const MEMORY: u64 = 0x7f30_0000_0000;
const MEMORY_BYTES: u64 = 16 * PAGE;

/// Expected figures of a fabricated V8.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct V8Expected {
    /// Each space except the read-only one, by its name.
    pub spaces: BTreeMap<String, Usage>,
    /// Bytes of pooled pages, those of the isolate that has ended included.
    pub pool_bytes: u64,
    /// Bytes of the new space without objects.
    pub young_idle_bytes: u64,
    /// Bytes of the read-only space.
    pub read_only_bytes: u64,
    /// Bytes of Abseil's blocks.
    pub abseil_bytes: u64,
    /// ArrayBuffers with a store in a block.
    pub buffers: Tally,
    /// Bytes of the pages of ArrayBuffers that V8 maps.
    pub mapped_bytes: u64,
    /// External strings.
    pub strings: Tally,
    /// Objects by type.
    pub types: BTreeMap<String, Tally>,
    /// Address of the first entry of the lists of ArrayBuffers; 0 if all are empty.
    pub first_entry: u64,
}

/// A fabricated V8.
#[derive(Clone, Debug)]
pub struct V8Image {
    /// Its memory, all of it resident.
    pub image: Image,
    /// Its /proc/PID/maps.
    pub maps: String,
    /// Its version.
    pub version: [u32; 4],
    /// Address of its heap's state (0: no collection).
    pub state: u64,
    /// Its expected figures.
    pub expected: V8Expected,
}

/// Fabricates a V8 from `seed`; consecutive seeds give different versions.
pub fn fabricate_v8(seed: u64) -> V8Image {
    let layout = LAYOUTS[(seed % LAYOUTS.len() as u64) as usize];
    let mut image = Image::of(&[(READ_ONLY, V8_PAGE_BYTES), (OWN, OWN_BYTES), (CODE, CODE_BYTES)]);
    let objects = Objects::new(&mut image, READ_ONLY + 0x4000, layout.objects);
    let mut writer = Writer {
        image,
        rng: Rng::new(seed ^ 0x7638),
        layout,
        next_page: DATA,
        next_code: CODE,
        next_record: RECORDS,
        objects,
        expected: V8Expected::default(),
    };
    writer.put(HEAP + layout.heap.isolate, ISOLATE);
    writer.write_spaces();
    writer.write_pool();
    writer.write_read_only();
    writer.write_abseil();
    writer.write_buffers();
    writer.write_strings();
    let Writer { image, next_page, mut expected, objects, .. } = writer;
    expected.types = objects.types;
    let maps = map_lines(&[
        map_line(NODE, PAGE, "r-xp 00000000 08:01 7 /usr/bin/node"),
        map_line(OWN, OWN_BYTES, "rw-p 00000000 00:00 0 "),
        map_line(READ_ONLY, V8_PAGE_BYTES, "r--p 00000000 00:00 0 "),
        map_line(DATA, next_page - DATA, "rw-p 00000000 00:00 0 "),
        map_line(CODE, CODE_BYTES, "rwxp 00000000 00:00 0 "),
        map_line(ABSEIL, ABSEIL_BYTES, "rw-p 00000000 00:00 0 "),
        map_line(MEMORY, MEMORY_BYTES, "rw-p 00000000 00:00 0 "),
    ]);
    V8Image { image, maps, version: layout.version, state: HEAP + layout.heap.state, expected }
}

struct Writer {
    image: Image,
    rng: Rng,
    layout: Layout,
    next_page: u64,
    next_code: u64,
    next_record: u64,
    objects: Objects,
    expected: V8Expected,
}

/// The fields of a page's record.
#[derive(Default)]
struct Record {
    start: u64,
    bytes: u64,
    heap: u64,
    owner: u64,
    allocated_bytes: u64,
    wasted_bytes: u64,
    is_pooled: bool,
}

/// What the pages of a space hold.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PageContent {
    Data,
    Code,
}

/// The part of a page in which the main thread allocates.
struct AllocationArea {
    start: u64,
    /// End of the objects.
    top: u64,
    limit: u64,
}

impl Writer {
    /// Writes a word.
    fn put(&mut self, at: u64, word: u64) {
        self.image.put_word(at, word);
    }

    /// Fills memory with objects.
    fn fill(&mut self, start: u64, end: u64) {
        self.objects.fill(&mut self.image, &mut self.rng, start, end);
    }

    /// Whether records are apart from their pages (13 on).
    fn has_separate_records(&self) -> bool {
        self.layout.header == 0x10
    }

    /// Maps a new page of data and returns its address.
    fn map_page(&mut self, bytes: u64) -> u64 {
        let start = self.next_page;
        let mapped_bytes = bytes.next_multiple_of(V8_PAGE_BYTES);
        self.image.map(start, mapped_bytes as usize);
        self.next_page += mapped_bytes;
        start
    }

    /// Writes the record of a page and returns its address.
    fn write_record(&mut self, fields: &Record) -> u64 {
        let Layout { record, pooled, header, .. } = self.layout;
        let (page_flags, record_flags) = match pooled {
            PooledFlags::OfPage(flags) if fields.is_pooled => (PAGE_FLAGS | flags, 0),
            PooledFlags::OfRecord { flags, .. } if fields.is_pooled => (PAGE_FLAGS, flags),
            _ => (PAGE_FLAGS, 0),
        };
        let at = if self.has_separate_records() {
            let at = self.next_record;
            self.next_record += 0x200;
            self.put(fields.start, page_flags);
            self.put(fields.start + 8, at);
            if let PooledFlags::OfRecord { offset, .. } = pooled {
                self.put(at + offset, record_flags);
            }
            at
        } else {
            // The flags are beside the size.
            self.put(fields.start + if record.size == 0 { 8 } else { 0 }, page_flags);
            fields.start
        };
        let words = [
            (record.size, fields.bytes),
            (record.heap, fields.heap),
            (record.start, fields.start + header),
            (record.end, fields.start + fields.bytes),
            (record.allocated, fields.allocated_bytes),
            (record.wasted, fields.wasted_bytes),
            (record.owner, fields.owner),
        ];
        self.image.put_words(at, words);
        at
    }

    /// Links the records of a space's pages.
    fn link_pages(&mut self, space: u64, records: &[u64]) {
        let mut link = space + self.layout.space.first_page;
        for &record in records {
            self.put(link, record);
            link = record + self.layout.record.next;
        }
        self.put(link, 0);
    }

    /// Writes the common fields of a space.
    fn write_space(&mut self, at: u64, number: u64, committed_bytes: u64) {
        self.image.put_row(at + 8, [HEAP, number, committed_bytes]);
    }

    /// Writes the allocation area of a space.
    fn write_area(&mut self, number: u64, space: u64, area: &AllocationArea) {
        let at = AREAS + 32 * number;
        self.image.put_row(at, [area.start, area.top, area.limit]);
        match self.layout.area {
            AreaPointer::InSpace(offset) => self.put(space + offset, at),
            AreaPointer::InLocalHeap(offset) => {
                self.put(HEAP + offset, LOCAL_HEAP);
                // An allocator: its heap, its space, and its area 0x90 bytes after the latter.
                let allocator = LOCAL_HEAP + 0x20 + 0xb0 * number;
                self.image.put_row(allocator, [HEAP, space]);
                self.put(allocator + 8 + 0x90, at);
            }
        }
    }

    /// Writes the spaces of the heap, except the read-only one.
    fn write_spaces(&mut self) {
        for (number, name) in (0..).zip(self.layout.spaces.split(' ')) {
            let at = SPACES + 0x400 * number;
            if name == "read_only" {
                continue;
            }
            self.put(HEAP + self.layout.heap.spaces + 8 * number, at);
            let usage = match name {
                "new" => self.write_young(number, at),
                "old" | "map" | "trusted" => self.write_paged(number, at, PageContent::Data),
                "code" => self.write_paged(number, at, PageContent::Code),
                "large_object" => self.write_large(number, at),
                _ => {
                    self.write_space(at, number, 0);
                    Usage::default()
                }
            };
            self.expected.spaces.insert(format!("{name}_space"), usage);
        }
    }

    /// Writes the new space: two halves with equally many pages. Objects fill the first half up to
    /// a place on its current page.
    fn write_young(&mut self, number: u64, space: u64) -> Usage {
        self.write_space(space, number, 0);
        let pages = 1 + self.rng.below(3);
        let current = self.rng.below(pages);
        let header = self.layout.header;
        let page_area_bytes = V8_PAGE_BYTES - header;
        let top = 8 * self.rng.below(page_area_bytes / 8);
        for half in [0x100, 0x200] {
            let owner = space + half;
            self.write_space(owner, number, pages * V8_PAGE_BYTES);
            let mut records = Vec::new();
            for page in 0..pages {
                let start = self.map_page(V8_PAGE_BYTES);
                let record = Record { start, bytes: V8_PAGE_BYTES, heap: HEAP, owner, ..Record::default() };
                records.push(self.write_record(&record));
                let begin = start + header;
                if half == 0x100 && page == current {
                    let (objects_end, limit) = (begin + top, start + V8_PAGE_BYTES);
                    self.write_area(number, space, &AllocationArea { start: begin, top: objects_end, limit });
                    self.fill(begin, objects_end);
                } else if half == 0x100 && page < current {
                    self.fill(begin, start + V8_PAGE_BYTES);
                }
            }
            self.link_pages(owner, &records);
        }
        let used_bytes = current * page_area_bytes + top;
        self.expected.young_idle_bytes = 2 * pages * page_area_bytes - used_bytes;
        Usage::of(used_bytes, 2 * pages * V8_PAGE_BYTES)
    }

    /// Writes a space of pages of equal size; pages of code are mapped already.
    fn write_paged(&mut self, number: u64, space: u64, content: PageContent) -> Usage {
        let is_data = content == PageContent::Data;
        let pages = if is_data { 1 + self.rng.below(4) } else { 1 };
        self.write_space(space, number, pages * V8_PAGE_BYTES);
        let page_area_bytes = V8_PAGE_BYTES - self.layout.header;
        let (mut records, mut allocated_sum) = (Vec::new(), 0);
        // The last page has an area of 8 KiB in which the main thread allocates.
        let (area_bytes, filled_bytes) = (8 << 10, 8 * self.rng.below(1 << 10));
        for page in 0..pages {
            let start = if is_data { self.map_page(V8_PAGE_BYTES) } else { self.next_code };
            if !is_data {
                self.next_code += V8_PAGE_BYTES;
            }
            let allocated_bytes = (8 * self.rng.below(page_area_bytes / 8)).max(area_bytes);
            let wasted_bytes = 8 * self.rng.below((page_area_bytes - allocated_bytes) / 8 + 1);
            allocated_sum += allocated_bytes;
            let (bytes, heap, owner) = (V8_PAGE_BYTES, HEAP, space);
            let record =
                Record { start, bytes, heap, owner, allocated_bytes, wasted_bytes, is_pooled: false };
            records.push(self.write_record(&record));
            let begin = start + self.layout.header;
            let has_area = page + 1 == pages && self.rng.below(4) > 0;
            if is_data {
                self.fill(begin, begin + if has_area { filled_bytes } else { 0 });
                self.fill(begin + if has_area { area_bytes } else { 0 }, start + V8_PAGE_BYTES);
            }
            self.put(space + self.layout.space.allocated, allocated_sum);
            if has_area {
                let (top, limit) = (begin + filled_bytes, begin + area_bytes);
                self.write_area(number, space, &AllocationArea { start: begin, top, limit });
                // Versions that find it in the local heap do not count the rest of it as used.
                if matches!(self.layout.area, AreaPointer::InLocalHeap(_)) {
                    allocated_sum -= area_bytes - filled_bytes;
                }
            }
        }
        self.link_pages(space, &records);
        Usage::of(allocated_sum, pages * V8_PAGE_BYTES)
    }

    /// Writes the space of large objects, each on a page of its own.
    fn write_large(&mut self, number: u64, space: u64) -> Usage {
        let objects = self.rng.below(4);
        let mut records = Vec::new();
        let mut usage = Usage::default();
        for _ in 0..objects {
            let bytes = PAGE * (33 + self.rng.below(100));
            let start = self.map_page(bytes);
            let area_bytes = bytes - self.layout.header;
            // One in three was trimmed: its page still counts the bytes of the larger object.
            let is_trimmed = self.rng.below(3) == 0;
            let allocated_bytes =
                if is_trimmed { area_bytes + PAGE * 50 } else { area_bytes - 8 * self.rng.below(64) };
            let (heap, owner) = (HEAP, space);
            let record = Record { start, bytes, heap, owner, allocated_bytes, ..Record::default() };
            records.push(self.write_record(&record));
            let array_bytes = allocated_bytes.min(area_bytes);
            self.objects.write_array(&mut self.image, start + self.layout.header, array_bytes);
            usage.committed_bytes += bytes;
            usage.used_bytes += array_bytes;
        }
        self.write_space(space, number, usage.committed_bytes);
        self.put(space + self.layout.space.large, usage.used_bytes);
        self.link_pages(space, &records);
        usage
    }

    /// Writes pooled pages of the isolate and of one that has ended.
    fn write_pool(&mut self) {
        for heap in [HEAP, ENDED] {
            for _ in 0..self.rng.below(4) {
                let start = self.map_page(V8_PAGE_BYTES);
                let (bytes, owner) = (V8_PAGE_BYTES, SPACES + 0x400);
                let allocated_bytes = 8 * self.rng.below(1 << 14);
                let record =
                    Record { start, bytes, heap, owner, allocated_bytes, wasted_bytes: 0, is_pooled: true };
                self.write_record(&record);
                self.expected.pool_bytes += V8_PAGE_BYTES;
            }
        }
    }

    /// Writes the read-only space: one page that a root of the isolate refers to.
    fn write_read_only(&mut self) {
        let (start, bytes) = (READ_ONLY, V8_PAGE_BYTES);
        self.write_record(&Record { start, bytes, allocated_bytes: 4096, ..Record::default() });
        self.put(ISOLATE + 0x800, READ_ONLY + self.layout.header + 0x101);
        self.expected.read_only_bytes = V8_PAGE_BYTES;
    }

    /// Writes blocks of Abseil's: each begins with its size, and a constant XOR its address.
    fn write_abseil(&mut self) {
        self.image.map(ABSEIL, ABSEIL_BYTES as usize);
        if !self.has_separate_records() {
            return;
        }
        let first_bytes = 32 * (1 + self.rng.below(ABSEIL_BYTES / 32 - 2));
        for [at, bytes, magic] in [
            [ABSEIL, first_bytes, ALLOCATED_MAGIC],
            [ABSEIL + first_bytes, ABSEIL_BYTES - first_bytes, !ALLOCATED_MAGIC],
        ] {
            self.image.put_row(at, [bytes, magic ^ at]);
        }
        self.expected.abseil_bytes = ABSEIL_BYTES;
    }

    /// Writes lists of ArrayBuffers: two, and two more if a collection is freeing the dead ones.
    fn write_buffers(&mut self) {
        self.image.map(MEMORY, MEMORY_BYTES as usize);
        self.put(HEAP + self.layout.heap.sweeper, SWEEPER);
        self.put(SWEEPER, HEAP);
        let is_new = self.has_separate_records();
        let mut lists = if is_new { vec![16, OLD_LIST] } else { vec![104, 128] };
        if self.rng.below(2) == 0 {
            let job = SWEEPER + 0x200;
            self.put(SWEEPER + 8, job);
            lists.extend(if is_new { [0x208, 0x228] } else { [0x210, 0x228] });
        }
        let number = lists.into_iter().fold(0, |number, list| self.write_buffer_list(list, number));
        self.expected.first_entry = if number > 0 { ENTRIES } else { 0 };
    }

    /// Writes the list of ArrayBuffers at `list` in the sweeper. Its entries have numbers from
    /// `number` on; returns the number after the last. The stores are blocks, except one that V8
    /// maps.
    fn write_buffer_list(&mut self, list: u64, mut number: u64) -> u64 {
        let is_new = self.has_separate_records();
        // Offsets in an entry, and by how much its bytes are shifted.
        let [store_at, next_at, bytes_at, shift] = if is_new { [0, 16, 24, 1] } else { [8, 24, 32, 0] };
        let age = u64::from(is_new && list == OLD_LIST);
        let (mut link, mut last_entry) = (SWEEPER + list, 0);
        let mut total_bytes = 0;
        for _ in 0..self.rng.below(20) {
            let (entry, store) = (ENTRIES + 64 * number, STORES + 128 * number);
            let is_mapped = number == 3;
            let bytes = if is_mapped { 5 * PAGE + 100 } else { 16 * (1 + self.rng.below(4096)) };
            self.put(link, entry);
            // Its store was transferred while others were freed: its bytes are in the sum only.
            let is_transferred = number == 5;
            if is_transferred {
                self.put(entry + bytes_at, age);
            } else {
                self.put(entry + store_at, store);
                self.put(entry + bytes_at, bytes << shift | age);
                self.write_buffer_store(store, number, bytes, is_mapped);
            }
            (link, last_entry) = (entry + next_at, entry);
            (total_bytes, number) = (total_bytes + bytes, number + 1);
        }
        self.image.put_row(SWEEPER + list + 8, [last_entry, total_bytes]);
        number
    }

    /// Writes the store of an ArrayBuffer and counts its bytes.
    fn write_buffer_store(&mut self, store: u64, number: u64, bytes: u64, is_mapped: bool) {
        let flags_at = if self.layout.version[0] == 13 { 64 } else { 56 };
        let wasm_memory_flag = if self.layout.version[0] == 14 { 8 } else { 4 };
        self.put(store, if is_mapped { MEMORY } else { BLOCKS + (number << 16) });
        self.put(store + 8, bytes);
        self.put(store + flags_at, if is_mapped { wasm_memory_flag } else { 0 });
        if is_mapped {
            self.expected.mapped_bytes += 6 * PAGE;
        } else {
            self.expected.buffers.count += 1;
            self.expected.buffers.bytes += bytes;
        }
    }

    /// Writes external strings of one or two bytes for each character; one in four does not cache
    /// the address of its characters.
    fn write_strings(&mut self) {
        let map = |kind: u64| READ_ONLY + 0x2000 + 64 * kind;
        for kind in [0x2a, 0x22, 0x3a] {
            self.put(map(kind) + 8, kind << 32);
        }
        let count = self.rng.below(12);
        for number in 0..count {
            let (kind, bytes) = self.rng.one_of(&[(0x2a, 1), (0x22, 2), (0x2a, 1), (0x3a, 0)]);
            let (object, characters) = (READ_ONLY + 0x8000 + 32 * number, 1 + self.rng.below(5000));
            self.put(object, map(kind) + 1);
            self.put(object + 8, characters << 32 | 3);
            self.put(object + 24, BLOCKS + 0x1000_0000 + (number << 16));
            self.put(STRINGS + 8 * number, object + 1);
            self.expected.strings.count += u64::from(bytes > 0);
            self.expected.strings.bytes += bytes * characters;
        }
        let table = HEAP + self.layout.heap.strings;
        self.put(table, HEAP);
        // 14.6 has one vector, and a sum before it; the others have one of young strings first.
        let old = if self.layout.version[0] == 14 { table + 16 } else { table + 32 };
        self.image.put_row(old, [STRINGS, STRINGS + 8 * count, STRINGS + 8 * 16]);
    }
}
