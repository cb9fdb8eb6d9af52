//! Fabricated jemallocs: a library's static data with the root of the map, a block of jemalloc's
//! own structures, and a heap of slabs, large allocations and free extents. All contents are known
//! by construction.
//!
//! Written from jemalloc's headers of each release, independently of the reader that it tests.

use crate::{HeapExpected, HeapImage, Image, PAGE, Rng, map_line, map_lines};

const MIB: u64 = 1 << 20;
/// The library's file-backed data, and its bss after it.
const DATA: u64 = 0x7f31_4000_0000;
const DATA_BYTES: u64 = 16 * PAGE;
const BSS_BYTES: u64 = 3 * MIB;
/// The block of jemalloc's own structures: header, extents, the leaf of the map.
const BASE: u64 = 0x7f31_8000_0000;
const BASE_BYTES: u64 = 8 * MIB;
const EXTENTS: u64 = BASE + 64 * 1024;
const LEAF: u64 = BASE + 4 * MIB;
/// The heap.
const HEAP: u64 = 0x7f32_c000_0000;
const HEAP_BYTES: u64 = 16 * MIB;

/// The map of pages to extents is a tree of two levels (`rtree.h`): the root has an entry for each
/// GiB, and a leaf one for each page in it.
const ROOT_ENTRY_SHIFT: u32 = 30;
const LEAF_ENTRIES: u64 = 1 << 18;
/// In an entry of a leaf: the number of the size class, the extent's address, the state (from 5.3
/// on), and whether it is a slab.
const ENTRY_CLASS_SHIFT: u32 = 48;
const ENTRY_STATE_SHIFT: u32 = 2;

/// Distance between two extents' structures, and the offset of a slab's bitmap in one.
const EXTENT_BYTES: u64 = 128;
const EXTENT_BITMAP: u64 = 64;
/// Bits of a slab's bitmap.
const BITMAP_BITS: u64 = 512;

/// `extent_state_t`.
const STATE_ACTIVE: u64 = 0;
const STATE_DIRTY: u64 = 1;
const STATE_MUZZY: u64 = 2;
const STATE_RETAINED: u64 = 3;

/// The bit of the first word of an extent (`e_bits`) that is set for slabs.
const SLAB_SHIFT: u32 = 12;

/// The lowest bits of other fields in the first word of an extent.
#[derive(Clone, Copy)]
struct ExtentBits {
    state_shift: u32,
    class_shift: u32,
    free_shift: u32,
}

/// Of 5.3 (`edata.h`), of 5.1 and 5.2, and of 5.0 (`extent_structs.h`).
const EXTENT_BITS: [ExtentBits; 3] = [
    ExtentBits { state_shift: 17, class_shift: 20, free_shift: 28 },
    ExtentBits { state_shift: 16, class_shift: 18, free_shift: 26 },
    ExtentBits { state_shift: 15, class_shift: 17, free_shift: 25 },
];
/// Number of layouts: each number of extent bits with each quantum.
pub const JEMALLOC_LAYOUTS: usize = EXTENT_BITS.len() * QUANTA.len();

/// A small size class.
#[derive(Clone, Copy)]
struct SlabClass {
    number: u64,
    region_bytes: u64,
    slab_pages: u64,
}

/// What depends on the quantum (`LG_QUANTUM`).
struct Quantum {
    slab_classes: [SlabClass; 5],
    /// A class of [`LARGE_BYTES`].
    large_class: u64,
    /// The size class of extents that are not allocated (`SC_NSIZES`).
    no_class: u64,
}

/// The default of 16 bytes, and 8: the lines of `size_classes.h` (5.1) for `LG_QUANTUM` 4 and 3.
const QUANTA: [Quantum; 2] = [
    Quantum {
        slab_classes: [
            SlabClass { number: 0, region_bytes: 8, slab_pages: 1 },
            SlabClass { number: 4, region_bytes: 64, slab_pages: 1 },
            SlabClass { number: 9, region_bytes: 160, slab_pages: 5 },
            SlabClass { number: 13, region_bytes: 320, slab_pages: 5 },
            SlabClass { number: 35, region_bytes: 14336, slab_pages: 7 },
        ],
        large_class: 40,
        no_class: 232,
    },
    Quantum {
        slab_classes: [
            SlabClass { number: 2, region_bytes: 24, slab_pages: 3 },
            SlabClass { number: 4, region_bytes: 40, slab_pages: 5 },
            SlabClass { number: 12, region_bytes: 160, slab_pages: 5 },
            SlabClass { number: 16, region_bytes: 320, slab_pages: 5 },
            SlabClass { number: 38, region_bytes: 14336, slab_pages: 7 },
        ],
        large_class: 43,
        no_class: 235,
    },
];
/// Bytes of a large allocation. Its extent has one page more.
const LARGE_BYTES: u64 = 32 << 10;

/// Address of the root's entry for the heap, which is within one GiB.
fn root_entry(root: u64) -> u64 {
    root + (HEAP >> ROOT_ENTRY_SHIFT) * 8
}

/// Address of the leaf's entry for a page.
fn leaf_entry(page: u64) -> u64 {
    LEAF + page / PAGE % LEAF_ENTRIES * 8
}

/// Pages of a thread whose library has its variables in blocks: where its FS base points to, with
/// the vector of its blocks; its block; and the stacks of its cache's bins.
const THREAD: u64 = 0x7f33_0000_0000;
const THREAD_BYTES: u64 = 3 * PAGE;
const FS_BASE: u64 = THREAD + 0x100;
const VECTOR: u64 = THREAD + 0x400;
const STORAGE: u64 = THREAD + PAGE;
const STACKS: u64 = THREAD + 2 * PAGE;
/// Bins of a cache of 5.3.0 (`tcache_max` is 32 KiB), their bytes, and items of a stack.
const BINS: u64 = 41;
const BIN_BYTES: u64 = 24;
const STACK_ITEMS: u64 = 8;

/// Fabricates a jemalloc of 5.3 from `seed`, and a thread of which glibc's `dtv` (`dl-dtv.h`) leads
/// to a cache (`tcache_structs.h`, `cache_bin.h`); returns its FS base too.
pub fn fabricate_jemalloc_with_cache(seed: u64) -> (HeapImage, u64) {
    let (mut built, used_regions) = fabricate(0, seed);
    let image = &mut built.image;
    image.map(THREAD, THREAD_BYTES as usize);
    // tcbhead_t: tcb, dtv. A slot is two words; the number of slots is before the first one. The
    // first block was not used yet, the second one is another library's.
    image.put_row(FS_BASE, [FS_BASE, VECTOR, FS_BASE]);
    image.put_row(VECTOR - 16, [3, 0, 1, 0, u64::MAX, 0, THREAD + 0x800, 0, STORAGE, STORAGE]);
    let (slow, cache) = (STORAGE + 0x40, STORAGE + 0x440);
    // tcache_slow_t: link, descriptor (link, bins), arena; its last word is the tcache_t.
    image.put_row(slow, [slow, slow, slow + 16, slow + 16, cache + 8, BASE + PAGE]);
    image.put_word(slow + 168, cache);
    image.put_word(cache, slow);
    for bin in 0..BINS {
        let of_class = used_regions.iter().filter(|region| region.class == bin);
        let items: Vec<UsedRegion> = of_class.take(STACK_ITEMS as usize - 1).copied().collect();
        let full = STACKS + 8 * STACK_ITEMS * bin;
        let empty = full + 8 * STACK_ITEMS;
        let head = empty - 8 * items.len() as u64;
        image.put_row(head, items.iter().map(|item| item.address));
        // stack_head, tstats, then 16 bits each: low_bits_low_water, low_bits_full, low_bits_empty.
        let low_bits = empty & 0xffff | (full & 0xffff) << 16 | (empty & 0xffff) << 32;
        image.put_row(cache + 8 + BIN_BYTES * bin, [head, 0, low_bits]);
        let bytes: u64 = items.iter().map(|item| item.bytes).sum();
        built.expected.cached_bytes += bytes;
        built.expected.live_bytes -= bytes;
        built.expected.live_blocks -= items.len() as u64;
    }
    built.maps += &map_lines(&[map_line(THREAD, THREAD_BYTES, "rw-p 00000000 00:00 0")]);
    (built, FS_BASE)
}

/// Fabricates a jemalloc of `layout` (0 for 5.3, 1 for 5.1 and 5.2, 2 for 5.0; the same with a
/// quantum of 8 from 3 on) from `seed`.
pub fn fabricate_jemalloc(layout: usize, seed: u64) -> HeapImage {
    fabricate(layout, seed).0
}

/// Fabricates one; returns the regions of its slabs that are in use too.
fn fabricate(layout: usize, seed: u64) -> (HeapImage, Vec<UsedRegion>) {
    let (layout, quantum) = (layout % EXTENT_BITS.len(), layout / EXTENT_BITS.len() % QUANTA.len());
    let mut image = Image::of(&[(DATA, DATA_BYTES + BSS_BYTES), (BASE, BASE_BYTES), (HEAP, HEAP_BYTES)]);
    let mut rng = Rng::new(seed ^ 0x6a65);
    // The root is at a random place in the bss.
    let root = DATA + DATA_BYTES + 64 * rng.below(1000);
    image.put_word(root_entry(root), LEAF);
    let mut writer = Writer {
        image,
        bits: EXTENT_BITS[layout],
        quantum: &QUANTA[quantum],
        has_state_in_map: layout == 0,
        next_structure: EXTENTS,
        next_extent: HEAP,
        expected: HeapExpected::default(),
        used_regions: Vec::new(),
    };
    while writer.next_extent + 64 * PAGE < HEAP + HEAP_BYTES && writer.next_structure + EXTENT_BYTES < LEAF {
        writer.write_extent(&mut rng);
    }
    let Writer { mut image, next_structure, expected, used_regions, .. } = writer;
    // base_block_t: size, next, and an extent for the unused rest.
    let unused_start = LEAF + 2 * MIB;
    image.put_row(BASE, [BASE_BYTES, 0, 0, unused_start, BASE + BASE_BYTES - unused_start]);
    let maps = map_lines(&[
        map_line(DATA, DATA_BYTES, "rw-p 00080000 08:01 77 /usr/lib/libjemalloc.so.2"),
        map_line(DATA + DATA_BYTES, BSS_BYTES, "rw-p 00000000 00:00 0"),
        map_line(BASE, BASE_BYTES, "rw-p 00000000 00:00 0"),
        map_line(HEAP, HEAP_BYTES, "rw-p 00000000 00:00 0"),
    ]);
    let structure_ranges = vec![
        (root_entry(root), root_entry(root) + 8),
        (BASE, BASE + 40),
        (EXTENTS, next_structure),
        (leaf_entry(HEAP), leaf_entry(HEAP) + HEAP_BYTES / PAGE * 8),
    ];
    (HeapImage { image, maps, expected, structure_ranges }, used_regions)
}

/// A region of a slab in use.
#[derive(Clone, Copy)]
struct UsedRegion {
    class: u64,
    address: u64,
    bytes: u64,
}

struct Writer {
    image: Image,
    bits: ExtentBits,
    quantum: &'static Quantum,
    /// Whether entries of the map have the state (5.3).
    has_state_in_map: bool,
    /// Address of the next extent's structure.
    next_structure: u64,
    /// Address of the next extent.
    next_extent: u64,
    expected: HeapExpected,
    used_regions: Vec<UsedRegion>,
}

/// What an extent holds.
struct ExtentSpec {
    state: u64,
    class: u64,
    pages: u64,
    /// Bytes of a region of a slab; `None` for other extents.
    region_bytes: Option<u64>,
}

/// The regions of a slab.
#[derive(Default)]
struct Regions {
    free_count: u64,
    /// By region, a set bit for a free one.
    bitmap: [u64; 8],
}

impl ExtentSpec {
    /// Draws an extent: free in one of three ways, large, or a slab.
    fn draw(quantum: &Quantum, rng: &mut Rng) -> Self {
        let free = |state, pages| Self { state, class: quantum.no_class, pages, region_bytes: None };
        match rng.below(10) {
            0 => free(STATE_DIRTY, 1 + rng.below(40)),
            1 => free(STATE_MUZZY, 1 + rng.below(10)),
            2 => free(STATE_RETAINED, 1 + rng.below(40)),
            3 => Self {
                state: STATE_ACTIVE,
                class: quantum.large_class,
                pages: LARGE_BYTES / PAGE + 1,
                region_bytes: None,
            },
            _ => {
                let SlabClass { number, region_bytes, slab_pages } = rng.one_of(&quantum.slab_classes);
                Self {
                    state: STATE_ACTIVE,
                    class: number,
                    pages: slab_pages,
                    region_bytes: Some(region_bytes),
                }
            }
        }
    }
}

impl Writer {
    /// Writes the next extent and its structure.
    fn write_extent(&mut self, rng: &mut Rng) {
        let (start, structure) = (self.next_extent, self.next_structure);
        let extent = ExtentSpec::draw(self.quantum, rng);
        let bytes = extent.pages * PAGE;
        let is_active = extent.state == STATE_ACTIVE;
        let is_slab = extent.region_bytes.is_some();
        let regions = match extent.region_bytes {
            Some(region_bytes) => self.draw_regions(extent.class, bytes, region_bytes, rng),
            None => Regions::default(),
        };
        if is_active && !is_slab {
            self.expected.live_bytes += LARGE_BYTES;
            self.expected.live_blocks += 1;
        }
        match extent.state {
            STATE_ACTIVE => self.expected.active_bytes += bytes,
            STATE_DIRTY | STATE_MUZZY => self.expected.releasable_bytes += bytes,
            _ => {}
        }
        // A large allocation may begin anywhere in its first page.
        let offset = if is_active && !is_slab { 64 * rng.below(64) } else { 0 };
        let word = u64::from(is_slab) << SLAB_SHIFT
            | extent.state << self.bits.state_shift
            | extent.class << self.bits.class_shift
            | regions.free_count << self.bits.free_shift;
        // The low bits of the third word are a serial number.
        self.image.put_row(structure, [word, start + offset, bytes | rng.below(PAGE)]);
        self.image.put_row(structure + EXTENT_BITMAP, regions.bitmap);
        let state = if self.has_state_in_map { extent.state << ENTRY_STATE_SHIFT } else { 0 };
        let entry = extent.class << ENTRY_CLASS_SHIFT | structure | state | u64::from(is_slab);
        // A slab has an entry for each of its pages, another extent for its first and last one.
        for page in (start..start + bytes).step_by(PAGE as usize) {
            if is_slab || page == start || page + PAGE == start + bytes {
                self.image.put_word(leaf_entry(page), entry);
            }
        }
        self.next_extent = start + bytes + if rng.chance(10) { PAGE } else { 0 };
        self.next_structure += EXTENT_BYTES;
    }

    /// Draws which regions of a slab are free.
    fn draw_regions(&mut self, class: u64, slab_bytes: u64, region_bytes: u64, rng: &mut Rng) -> Regions {
        let count = slab_bytes / region_bytes;
        let used_percent = rng.below(101);
        let mut regions = Regions::default();
        for region in 0..count {
            if !rng.chance(used_percent) {
                regions.bitmap[(region / 64) as usize] |= 1 << (region % 64);
                regions.free_count += 1;
            } else {
                let address = self.next_extent + region * region_bytes;
                self.used_regions.push(UsedRegion { class, address, bytes: region_bytes });
            }
        }
        // Bits after the last region may be set, as bitmap_init leaves them.
        for region in count..BITMAP_BITS {
            regions.bitmap[(region / 64) as usize] |= u64::from(rng.chance(50)) << (region % 64);
        }
        self.expected.live_bytes += (count - regions.free_count) * region_bytes;
        self.expected.live_blocks += count - regions.free_count;
        self.expected.free_bytes += regions.free_count * region_bytes;
        regions
    }
}
