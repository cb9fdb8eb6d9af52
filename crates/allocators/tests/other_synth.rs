//! The readers of the other allocators on fabricated heaps: they report what was built; and if
//! words of structures are overwritten, claims do not overlap and stay within mappings, and reading
//! ends.

use std::sync::atomic::{AtomicU64, Ordering};

use strandline_allocators::{google_tcmalloc, jemalloc, mimalloc, musl, tcmalloc};
use strandline_claims::allocator::{Context, HazardCause, Reader, Reading, Readings};
use strandline_claims::remedy::Action;
use strandline_process::map::AddressSpace;
use strandline_process::memory::Memory;
use strandline_process::procfs::Process;
use strandline_process::range::AddressRange;
use strandline_synth::{
    GOOGLE_LAYOUTS, HeapImage, Image, JEMALLOC_LAYOUTS, MIMALLOC_LAYOUTS, Rng, clipped,
    fabricate_google_tcmalloc, fabricate_jemalloc, fabricate_jemalloc_with_cache, fabricate_mimalloc,
    fabricate_musl, fabricate_old_musl, fabricate_tcmalloc,
};

struct Target<'a> {
    image: &'a Image,
    bytes_read: AtomicU64,
}

impl Memory for Target<'_> {
    fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
        let read_length = self.image.read_some(address, buffer);
        self.bytes_read.fetch_add(read_length as u64, Ordering::Relaxed);
        read_length
    }
}

fn read(reader: &Reader, image: &Image, maps: &str) -> (Readings, u64) {
    read_part(reader, image, maps, None, &[])
}

/// Reads an image of which one page may be swapped out, with threads of these FS bases.
fn read_part(
    reader: &Reader,
    image: &Image,
    maps: &str,
    swapped_page: Option<u64>,
    fs_bases: &[u64],
) -> (Readings, u64) {
    let (space, invalid_lines) = AddressSpace::parse(maps.as_bytes());
    assert_eq!(invalid_lines, 0, "{maps}");
    let runs = image.pages_without(|page| Some(page) == swapped_page);
    let resident = image.within(&runs);
    let memory = Target { image: &resident, bytes_read: AtomicU64::new(0) };
    let resident_runs = |range: AddressRange| {
        clipped(&runs, range.start, range.end).into_iter().map(AddressRange::from).collect()
    };
    let swapped_mapping = swapped_page.and_then(|page| space.find(page));
    let swapped_mappings: Vec<AddressRange> = swapped_mapping.iter().map(|mapping| mapping.range()).collect();
    let context = Context {
        fs_bases,
        swapped_mappings: &swapped_mappings,
        ..Context::of_image(&memory, &space, &resident_runs)
    };
    let own_pid = std::process::id().cast_signed();
    let Ok(process) = Process::open(own_pid) else { panic!("no process {own_pid}") };
    let Some(allocator) = (reader.find)(&process, &space) else { panic!("it may be there") };
    let Ok(readings) = allocator.read(&context) else { panic!("a byte is claimed twice") };
    let abouts =
        [&google_tcmalloc::ABOUT, &jemalloc::ABOUT, &mimalloc::ABOUT, &musl::ABOUT, &tcmalloc::ABOUT];
    for plan in readings.0.iter().filter_map(|reading| reading.call.as_ref()) {
        let mut specs = abouts.iter().flat_map(|about| about.remedies);
        let is_known = specs.any(|spec| spec.id == plan.spec.id && matches!(spec.action, Action::Call));
        assert!(is_known, "{} is no remedy of the table", plan.spec.id);
    }
    (readings, memory.bytes_read.load(Ordering::Relaxed))
}

/// Checks that the reading keeps the blocks that it counts: their sizes are rounded up to 8 bytes.
fn check_kept_blocks(reading: &Reading, what: &str) {
    let blocks = reading.refined.blocks.clone().and_then(|blocks| blocks.finish().ok());
    let Some(blocks) = blocks else { panic!("{what}: no blocks are kept") };
    assert_eq!((blocks.dropped().overlapping, blocks.dropped().misplaced), (0, 0), "{what}");
    assert_eq!(Some(u64::from(blocks.len())), reading.allocator.live_blocks, "{what}");
    let Some(live_bytes) = reading.allocator.live_bytes else { panic!("{what}: the heap is not whole") };
    let excess_bytes = blocks.total_bytes().checked_sub(live_bytes);
    let max_excess_bytes = 8 * u64::from(blocks.len()).max(1);
    assert!(
        excess_bytes.is_some_and(|bytes| bytes < max_excess_bytes),
        "{what}: {excess_bytes:?} bytes too many"
    );
}

#[test]
fn a_jemalloc_has_the_built_figures() {
    for layout in 0..JEMALLOC_LAYOUTS {
        for seed in 0..20 {
            let built = fabricate_jemalloc(layout, seed);
            let ((readings, caveats), _) = read(&jemalloc::READER, &built.image, &built.maps);
            assert!(caveats.is_empty(), "{caveats:?}");
            let [reading] = readings.as_slice() else { panic!("{} of them", readings.len()) };
            assert!(reading.caveats.is_empty(), "{:?}", reading.caveats);
            let (reported, expected) = (&reading.allocator, &built.expected);
            assert_eq!(reported.live_bytes, Some(expected.live_bytes), "layout {layout}, seed {seed}");
            assert_eq!(reported.live_blocks, Some(expected.live_blocks));
            check_kept_blocks(reading, &format!("layout {layout}, seed {seed}"));
            assert_eq!(reported.free_bytes, Some(expected.free_bytes));
            assert_eq!(reported.own["stats.active"], expected.active_bytes);
            assert_eq!(reading.call.as_ref().unwrap().predicted_bytes, expected.releasable_bytes);
        }
    }
}

#[test]
fn a_swapped_out_thread_cache_is_a_caveat() {
    let HeapImage { mut image, mut maps, .. } = fabricate_jemalloc(0, 1);
    // The storage of a thread.
    let (start, end) = (0x7fff_0000_0000, 0x7fff_0000_2000);
    assert!(image.map(start, 0x2000));
    maps += &format!("{start:x}-{end:x} rw-p 00000000 00:00 0\n");
    let codes = |swapped_page: Option<u64>| {
        let ((readings, caveats), _) = read_part(&jemalloc::READER, &image, &maps, swapped_page, &[end]);
        let of_readings = readings.into_iter().flat_map(|reading| reading.caveats);
        caveats.into_iter().chain(of_readings).map(|caveat| caveat.code).collect::<Vec<_>>()
    };
    assert_eq!(codes(None), ["jemalloc_cache_not_found"]);
    assert_eq!(codes(Some(end - 0x1000)), ["jemalloc_cache_swapped"]);
}

/// A library that was loaded later may have its variables in a block of each thread.
#[test]
fn a_thread_cache_in_a_block_of_its_own_is_found() {
    for seed in 0..20 {
        let (built, fs_base) = fabricate_jemalloc_with_cache(seed);
        let HeapImage { image, maps, expected, .. } = &built;
        let ((readings, caveats), _) = read_part(&jemalloc::READER, image, maps, None, &[fs_base]);
        let [reading] = readings.as_slice() else { panic!("{} of them", readings.len()) };
        assert!(caveats.is_empty() && reading.caveats.is_empty(), "{:?}", reading.caveats);
        let reported = &reading.allocator;
        assert!(expected.cached_bytes > 0);
        assert_eq!(reported.cached_bytes, Some(expected.cached_bytes), "seed {seed}");
        assert_eq!(reported.live_bytes, Some(expected.live_bytes), "seed {seed}");
        assert_eq!(reading.call.as_ref().map(|call| call.fs_bases.as_slice()), Some(&[fs_base][..]));
    }
}

#[test]
fn a_hostile_vector_of_blocks_is_read_within_bounds() {
    for (offset, word) in [(0, u64::MAX), (8, u64::MAX), (8, 8), (8, 0x7f33_0000_2ff8)] {
        let (mut built, fs_base) = fabricate_jemalloc_with_cache(1);
        // The number of slots, or the vector's address.
        let at = if offset == 0 { fs_base + 0x300 - 0x10 } else { fs_base + offset };
        built.image.put_word(at, word);
        let ((readings, _), _) = read_part(&jemalloc::READER, &built.image, &built.maps, None, &[fs_base]);
        let [reading] = readings.as_slice() else { panic!("{} of them", readings.len()) };
        let is_found = reading.allocator.cached_bytes == Some(built.expected.cached_bytes);
        assert_eq!(is_found, offset == 0, "{word:#x}: {:?}", reading.caveats);
    }
}

/// Two words below a thread's FS base that point to each other are no cache.
#[test]
fn words_of_a_stack_are_no_thread_cache() {
    let HeapImage { mut image, mut maps, .. } = fabricate_jemalloc(0, 1);
    let (start, end) = (0x7fff_0000_0000, 0x7fff_0000_2000);
    assert!(image.map(start, 0x2000));
    maps += &format!("{start:x}-{end:x} rw-p 00000000 00:00 0\n");
    let (cache, slow) = (start + 0x100, start + 0x800);
    image.put_words(cache, [(0, slow), (8, start + 0x10), (32, start + 0x18)]);
    image.put_words(slow, [(32, cache + 8), (40, start + 0x40), (48, cache)]);
    let ((readings, _), _) = read_part(&jemalloc::READER, &image, &maps, None, &[end]);
    let [reading] = readings.as_slice() else { panic!("{} of them", readings.len()) };
    let codes: Vec<&str> = reading.caveats.iter().map(|caveat| caveat.code.as_str()).collect();
    assert_eq!(codes, ["jemalloc_cache_not_found"]);
}

/// A page of a leaf has the entries of 2 MiB, here of a full part of the heap.
#[test]
fn a_swapped_out_page_of_a_page_map_is_a_caveat() {
    const COVERED_BYTES: u64 = 2 << 20;
    for layout in 0..JEMALLOC_LAYOUTS {
        let HeapImage { image, maps, structure_ranges, .. } = fabricate_jemalloc(layout, 3);
        let (Some(&(leaf, _)), Some((heap, _))) = (structure_ranges.last(), image.ranges().last()) else {
            panic!("no leaf, or no heap")
        };
        let ((readings, _), _) = read_part(&jemalloc::READER, &image, &maps, Some(leaf + 4096), &[]);
        let [reading] = readings.as_slice() else { panic!("{} of them", readings.len()) };
        let lost = AddressRange::sized(heap + COVERED_BYTES, COVERED_BYTES);
        let claimed = reading.ranges().filter(|range| range.start >= heap);
        let claimed: u64 = claimed.map(|range| range.intersection(lost).len()).sum();
        let [caveat] = reading.caveats.as_slice() else { panic!("{:?}", reading.caveats) };
        assert_eq!(caveat.code, "heap_swapped", "layout {layout}");
        assert_eq!(caveat.bytes, Some(lost.len() - claimed), "layout {layout}");
        assert_eq!(caveat.place, format!("{:#x}", lost.start + claimed), "layout {layout}");
        assert!(!reading.is_inconsistent && reading.allocator.live_bytes.is_none());
        let hazard = reading.call.as_ref().and_then(|call| call.doubt.as_ref());
        assert!(hazard.is_some_and(|hazard| hazard.cause == HazardCause::Swapped), "{hazard:?}");
    }
}

#[test]
fn a_malloc_of_musl_has_the_built_figures() {
    for (seed, built) in
        (0..40).flat_map(|seed| [(seed, fabricate_musl(seed)), (seed, fabricate_old_musl(seed))])
    {
        let ((readings, caveats), _) = read(&musl::READER, &built.image, &built.maps);
        let [reading] = readings.as_slice() else { panic!("{} of them", readings.len()) };
        assert!(caveats.is_empty() && reading.caveats.is_empty(), "seed {seed}: {:?}", reading.caveats);
        let (reported, expected) = (&reading.allocator, &built.expected);
        assert_eq!(reported.live_bytes, Some(expected.live_bytes), "seed {seed}");
        assert_eq!(reported.live_blocks, Some(expected.live_blocks));
        check_kept_blocks(reading, &format!("seed {seed}"));
        assert_eq!(reported.free_bytes, Some(expected.free_bytes));
    }
}

#[test]
fn a_malloc_of_musl_has_no_more_groups_than_the_process_has_memory() {
    let (data, areas, page, metas, area_count) = (0x40_8000, 0x7f11_0000_0000, 4096, 101, 5);
    let mut image = Image::of(&[(data, page), (areas, area_count * page)]);
    // struct malloc_context: secret, init_done, meta_area_head.
    image.put_words(data, [(0, 7), (8, 1), (56, areas)]);
    for area in (0..area_count).map(|area| areas + area * page) {
        // struct meta_area: check, next, nslots; then metas with `mem`, all of one slot.
        image.put_words(area, [(0, 7), (8, area + page), (16, metas)]);
        let metas = (0..metas).map(|meta| area + 24 + 40 * meta);
        metas.for_each(|meta| image.put_word(meta + 16, areas + (meta - areas) / 40 * 32));
    }
    // 256 groups of 64 bytes fit into four mapped pages: after the third area there are more. All
    // 505 fit into eight. Each group is damaged, and the list of areas too.
    for (mapped_pages, groups) in [(4, 3 * metas), (8, 5 * metas)] {
        let maps = format!(
            "{data:x}-{:x} rw-p 00008000 08:01 77 /usr/bin/program\n{areas:x}-{:x} rw-p 00000000 00:00 0\n",
            data + page,
            areas + mapped_pages * page,
        );
        let ((readings, _), _) = read(&musl::READER, &image, &maps);
        let [reading] = readings.as_slice() else { panic!("{} of them", readings.len()) };
        let [caveat] = reading.caveats.as_slice() else { panic!("{:?}", reading.caveats) };
        assert!(caveat.text.starts_with(&format!("{} of the groups and slots", groups + 1)), "{caveat:?}");
    }
}

/// Checks the reading of a fabricated heap; returns the prediction of its call.
fn check_reading(reader: &Reader, built: &HeapImage, what: &str) -> Option<u64> {
    let ((readings, caveats), _) = read(reader, &built.image, &built.maps);
    let [reading] = readings.as_slice() else { panic!("{what}: {} of them", readings.len()) };
    assert!(caveats.is_empty() && reading.caveats.is_empty(), "{what}: {caveats:?} {:?}", reading.caveats);
    let (reported, expected) = (&reading.allocator, &built.expected);
    assert_eq!(reported.live_bytes, Some(expected.live_bytes), "{what}");
    assert_eq!(reported.live_blocks, Some(expected.live_blocks), "{what}");
    check_kept_blocks(reading, what);
    assert_eq!(reported.cached_bytes, Some(expected.cached_bytes), "{what}");
    assert_eq!(reported.free_bytes, Some(expected.free_bytes), "{what}");
    reading.call.as_ref().map(|call| call.predicted_bytes)
}

#[test]
fn a_tcmalloc_has_the_built_figures() {
    for seed in 0..40 {
        let built = fabricate_tcmalloc(seed);
        let predicted_bytes = check_reading(&tcmalloc::READER, &built, &format!("seed {seed}"));
        assert_eq!(predicted_bytes, Some(built.expected.releasable_bytes), "seed {seed}");
    }
}

/// Bytes of mimalloc's own structures at the start of its heap, by layout.
const OWN_BYTES: [u64; MIMALLOC_LAYOUTS] = [64 << 10, 64 << 10, 8 << 10, 64 << 10, 64 << 10, 256 << 10];

/// Whether a page contains only zeros.
fn is_zero(image: &Image, page: u64) -> bool {
    let mut bytes = [0; 4096];
    image.read_some(page, &mut bytes);
    bytes.iter().all(|byte| *byte == 0)
}

#[test]
fn a_google_tcmalloc_has_the_built_figures() {
    for layout in 0..GOOGLE_LAYOUTS {
        for seed in 0..20 {
            let built = fabricate_google_tcmalloc(layout, seed);
            let what = format!("layout {layout}, seed {seed}");
            check_reading(&google_tcmalloc::READER, &built, &what);
            let ((readings, _), _) = read(&google_tcmalloc::READER, &built.image, &built.maps);
            assert_eq!(readings[0].releasable_bytes(), built.expected.releasable_bytes, "{what}");
            let own = &readings[0].allocator.own;
            assert_eq!(own["tcmalloc.pageheap_unmapped_bytes"], built.expected.unmapped_bytes, "{what}");
        }
    }
}

/// The entries of a freed span point to its structure, which stays readable.
#[test]
fn an_unreadable_structure_of_a_free_page_is_damage() {
    const UNREADABLE: u64 = 8;
    for seed in 0..20 {
        let HeapImage { mut image, maps, structure_ranges, .. } = fabricate_google_tcmalloc(0, seed);
        let &[.., (entries, entries_end), _] = structure_ranges.as_slice() else { panic!("no page map") };
        for entry in (entries..entries_end).step_by(8) {
            if image.word(entry) == Some(0) {
                image.put_word(entry, UNREADABLE);
            }
        }
        let ((readings, _), _) = read(&google_tcmalloc::READER, &image, &maps);
        let [reading] = readings.as_slice() else { panic!("seed {seed}: {} of them", readings.len()) };
        let mut codes = reading.caveats.iter().map(|caveat| caveat.code.as_str());
        assert!(codes.any(|code| code == "google_tcmalloc_damaged"), "seed {seed}: {:?}", reading.caveats);
    }
}

#[test]
fn a_page_map_without_a_valid_structure_is_not_read() {
    // Of the structures of a fabricated heap.
    const SPANS: usize = 7;
    const TRACKERS: usize = 8;
    for seed in 0..20 {
        let HeapImage { mut image, maps, structure_ranges, .. } = fabricate_google_tcmalloc(0, seed);
        // The layout is that in which most spans and trackers are valid.
        let of_spans_and_trackers = &structure_ranges[SPANS..=TRACKERS];
        for &(start, end) in of_spans_and_trackers {
            (start..end).step_by(8).for_each(|at| image.put_word(at, 0));
        }
        let ((readings, caveats), _) = read(&google_tcmalloc::READER, &image, &maps);
        assert!(readings.is_empty(), "seed {seed}: {} of them", readings.len());
        let codes: Vec<&str> = caveats.iter().map(|caveat| caveat.code.as_str()).collect();
        assert_eq!(codes, ["google_tcmalloc_unknown_layout"], "seed {seed}");
    }
}

/// The per-CPU cache of a fabricated tcmalloc of Google's.
struct ProcessorCache {
    /// Address of the first slab, which was never used; its second has the cache.
    slabs: u64,
    /// Address of the header of the class of 8 bytes in the second slab: the second of its headers,
    /// of 4 bytes each.
    header: u64,
    /// Bytes of the objects of that class in the cache.
    class_bytes: u64,
}

/// Finds the per-CPU cache of a fabricated tcmalloc; `None` if it has thread caches instead.
fn processor_cache(built: &HeapImage) -> Option<ProcessorCache> {
    // Slabs with their shift, and `begins_` in one of the two words after the next.
    let &(at, _) = built.structure_ranges.iter().find(|(start, end)| end - start == 24)?;
    let word = |at: u64| built.image.word(at).unwrap_or(0);
    let half_words = |at: u64| (word(at) >> 16 & 0xffff, word(at) >> 32 & 0xffff);
    let (slabs, shift) = (word(at) & !0xff, word(at) & 0xff);
    let begins = if word(at + 16) == 0 { word(at + 24) } else { word(at + 16) };
    let slab = slabs + (1 << shift);
    let (begin, current) = (half_words(begins).0, half_words(slab).1);
    (slabs != 0).then_some(ProcessorCache { slabs, header: slab + 4, class_bytes: 8 * (current - begin) })
}

/// Checks that a caveat says that one list of a cache was not read, and how much is still cached.
fn check_unread_list(image: &Image, maps: &str, cached_bytes: u64, what: &str) {
    let ((readings, _), _) = read(&google_tcmalloc::READER, image, maps);
    let [reading] = readings.as_slice() else { panic!("{what}: {} of them", readings.len()) };
    let [caveat] = reading.caveats.as_slice() else { panic!("{what}: {:?}", reading.caveats) };
    assert_eq!(caveat.code, "google_tcmalloc_cache_broken", "{what}");
    assert_eq!(reading.allocator.cached_bytes, Some(cached_bytes), "{what}");
}

#[test]
fn an_invalid_header_of_a_per_cpu_cache_hides_no_other() {
    for layout in 0..GOOGLE_LAYOUTS {
        for seed in 0..20 {
            let built = fabricate_google_tcmalloc(layout, seed);
            let Some(cache) = processor_cache(&built) else { continue };
            let what = format!("layout {layout}, seed {seed}");
            let mut image = built.image.clone();
            image.put_bits(cache.header, 0xffff, 16);
            let other_bytes = built.expected.cached_bytes - cache.class_bytes;
            check_unread_list(&image, &built.maps, other_bytes, &format!("{what}, a header"));
            let mut image = built.image.clone();
            image.put_word(cache.slabs, u64::MAX);
            check_unread_list(&image, &built.maps, built.expected.cached_bytes, &format!("{what}, a slab"));
        }
    }
}

/// Bytes of the thread cache in the fabricated tcmalloc.
const THREAD_CACHE_BYTES: u64 = 6272;
/// Its `max_size_`.
const THREAD_CACHE_MAX_SIZE: u64 = 1 << 16;
/// Distance from `max_size_` to `next_`.
const NEXT_FROM_MAX_SIZE: u64 = 24;

#[test]
fn a_linked_thread_cache_that_was_being_changed_is_noted() {
    let mut tried = 0;
    for seed in 0..20 {
        let built = fabricate_google_tcmalloc(0, seed);
        if processor_cache(&built).is_some() {
            continue;
        }
        let is_cache = |(start, end): &&(u64, u64)| end - start == THREAD_CACHE_BYTES;
        let &(cache, end) = built.structure_ranges.iter().find(is_cache).unwrap();
        let mut words = (cache..end).step_by(8);
        let max_size_at = words.find(|&at| built.image.word(at) == Some(THREAD_CACHE_MAX_SIZE)).unwrap();
        let mut image = built.image.clone();
        image.put_word(max_size_at + NEXT_FROM_MAX_SIZE, cache + 8);
        check_unread_list(&image, &built.maps, built.expected.cached_bytes, &format!("seed {seed}"));
        tried += 1;
    }
    assert!(tried > 0, "no heap has a thread cache");
}

#[test]
fn a_mimalloc_has_the_built_figures() {
    for (layout, own_bytes) in OWN_BYTES.into_iter().enumerate() {
        for seed in 0..20 {
            let built = fabricate_mimalloc(layout, seed);
            check_reading(&mimalloc::READER, &built, &format!("layout {layout}, seed {seed}"));
            // Pages that were never written are missing, also among its own structures.
            let Some((heap, _)) = built.image.ranges().next() else { panic!("no heap") };
            let own_range = heap..heap + own_bytes;
            let is_unwritten = |page: u64| own_range.contains(&page) && is_zero(&built.image, page);
            let image = built.image.within(&built.image.pages_without(is_unwritten));
            let what = format!("layout {layout}, seed {seed}, as far as it was written");
            check_reading(&mimalloc::READER, &HeapImage { image, ..built }, &what);
        }
    }
}

/// Bytes of a segment of a fabricated mimalloc.
const SEGMENT_BYTES: u64 = 32 << 20;
/// Static data of another library with a mimalloc.
const OTHER_DATA: u64 = 0x7f52_0000_0000;
/// The key of that mimalloc. It is larger than the fabricated one's: heaps are in the order of
/// their keys.
const OTHER_KEY: u64 = 0x7531_9bdf_0246_8ace;

/// Maps `bytes` of a segment of the mimalloc with this key, which was freed: no thread and no page
/// in use.
fn put_freed_segment(image: &mut Image, start: u64, bytes: usize, key: u64) {
    image.map(start, bytes);
    // Its cookie, slices, own slices, and structures of slices, at their offsets in layout 1 of the
    // fabricator (`SEGMENT_2_2`).
    image.put_words(start, [(224, start ^ key), (248, 512), (256, 1), (272, 512)]);
    image.put_bits(start + 288, 1, 32);
    image.put_bits(start + 288 + 96, 511, 32);
}

/// Two libraries may contain a mimalloc each, whose segments are in one mapping: it is unknown to
/// which of them a gap belongs.
#[test]
fn gaps_between_segments_of_two_mimallocs_are_not_claimed() {
    for seed in 0..20 {
        let HeapImage { mut image, maps, .. } = fabricate_mimalloc(1, seed);
        let Some((heap, _)) = image.ranges().next() else { panic!("no heap") };
        let (end, other_segment) = (heap + SEGMENT_BYTES, heap + 2 * SEGMENT_BYTES);
        put_freed_segment(&mut image, other_segment, 64 << 10, OTHER_KEY);
        image.map(OTHER_DATA, 4096);
        image.put_word(OTHER_DATA, OTHER_KEY);
        let mut maps = maps.replace(&format!("-{end:x} "), &format!("-{:x} ", other_segment + SEGMENT_BYTES));
        maps +=
            &format!("{OTHER_DATA:x}-{:x} rw-p 00080000 08:01 80 /usr/lib/libother.so\n", OTHER_DATA + 4096);
        let ((readings, _), _) = read(&mimalloc::READER, &image, &maps);
        let [first_reading, second_reading] = readings.as_slice() else {
            panic!("seed {seed}: {} of them", readings.len())
        };
        assert!(first_reading.claims.iter().all(|claim| claim.end <= end), "seed {seed}");
        let is_claimed = second_reading
            .claims
            .iter()
            .any(|claim| claim.start <= other_segment && other_segment < claim.end);
        assert!(is_claimed, "seed {seed}: the second one's segment is not claimed");
    }
}

/// A process has one mimalloc, or a few; of a hostile one only the first are read.
#[test]
fn mimallocs_that_are_not_read_are_counted_with_their_bytes() {
    const RESIDENT_BYTES: u64 = 64 << 10;
    let HeapImage { mut image, maps, .. } = fabricate_mimalloc(1, 7);
    let Some((heap, _)) = image.ranges().next() else { panic!("no heap") };
    image.map(OTHER_DATA, 4096);
    let other_heaps = 20;
    for number in 0..other_heaps {
        let (start, key) = (heap + (number + 1) * SEGMENT_BYTES, OTHER_KEY + number);
        put_freed_segment(&mut image, start, RESIDENT_BYTES as usize, key);
        image.put_word(OTHER_DATA + 8 * number, key);
    }
    let (end, last_end) = (heap + SEGMENT_BYTES, heap + (other_heaps + 1) * SEGMENT_BYTES);
    let mut maps = maps.replace(&format!("-{end:x} "), &format!("-{last_end:x} "));
    maps += &format!("{OTHER_DATA:x}-{:x} rw-p 00080000 08:01 80 /usr/lib/libother.so\n", OTHER_DATA + 4096);
    let ((readings, _), _) = read(&mimalloc::READER, &image, &maps);
    assert_eq!(readings.len(), 16);
    let caveats = readings.iter().flat_map(|reading| &reading.caveats);
    let caveats: Vec<_> = caveats.filter(|caveat| caveat.code == "mimalloc_left_out").collect();
    let [left_out] = caveats.as_slice() else { panic!("{} caveats", caveats.len()) };
    // The first heap is the fabricated one.
    let unread_heaps = other_heaps + 1 - 16;
    assert_eq!(left_out.bytes, Some(unread_heaps * RESIDENT_BYTES));
    assert_eq!(left_out.place, format!("{:#x}", last_end - unread_heaps * SEGMENT_BYTES));
    assert!(left_out.text.contains("has 5 more mimallocs"), "{}", left_out.text);
}

/// From 1.9.2 and 2.2.2 on the data of a thread takes a page more than in earlier releases with the
/// same layouts. Its heap is larger too, which the first word shows: the other data follows it.
#[test]
fn the_data_of_a_thread_are_claimed_to_their_end() {
    const THREAD_DATA: u64 = 0x7f60_0000_0000;
    const MAPPED_BYTES: u64 = 16 << 10;
    // Of layouts 1 and 2 of the fabricator: the first structure of a page, the number and size of
    // these, and the offset of `xheap`.
    let layouts = [(1, 288, 512, 96, 64), (2, 160, 64, 80, 56)];
    let pages_by_heap_bytes = [(3064, [2, 1]), (3080, [3, 2]), (3088, [3, 2]), (9999, [2, 1])];
    for (heap_bytes, pages_of_layouts) in pages_by_heap_bytes {
        for ((layout, structures, count, bytes, heap_offset), pages) in
            layouts.into_iter().zip(pages_of_layouts)
        {
            let HeapImage { mut image, maps, .. } = fabricate_mimalloc(layout, 7);
            let Some((heap, _)) = image.ranges().next() else { panic!("no heap") };
            for number in 0..count {
                image.put_word(heap + structures + number * bytes + heap_offset, THREAD_DATA);
            }
            image.map(THREAD_DATA, MAPPED_BYTES as usize);
            image.put_word(THREAD_DATA, THREAD_DATA + heap_bytes);
            let end = THREAD_DATA + MAPPED_BYTES;
            let maps = maps + &format!("{THREAD_DATA:x}-{end:x} rw-p 00000000 00:00 0\n");
            let ((readings, _), _) = read(&mimalloc::READER, &image, &maps);
            let claims = readings.iter().flat_map(|reading| &reading.claims);
            let of_thread = claims.filter(|claim| (THREAD_DATA..end).contains(&claim.start));
            let claimed: u64 = of_thread.map(|claim| claim.end - claim.start).sum();
            assert_eq!(claimed, pages << 12, "layout {layout}, a heap of {heap_bytes} bytes");
        }
    }
}

/// A hardened build encodes its lists of free blocks: pages with invalid links are rejected.
#[test]
fn a_mimalloc_that_encodes_its_lists_is_not_read() {
    for seed in 0..20 {
        let built = fabricate_mimalloc(1, seed);
        let mut image = built.image.clone();
        // Areas of blocks; page structures are smaller.
        for &(start, end) in built.structure_ranges.iter().filter(|range| range.1 - range.0 > 4096) {
            for at in (start..end).step_by(8) {
                image.put_word(at, at.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
            }
        }
        let ((readings, _), _) = read(&mimalloc::READER, &image, &built.maps);
        let [reading] = readings.as_slice() else { panic!("{} of them", readings.len()) };
        let codes: Vec<&str> = reading.caveats.iter().map(|caveat| caveat.code.as_str()).collect();
        assert_eq!(codes, ["mimalloc_encoded"], "seed {seed}");
        assert!(
            reading.claims.is_empty() && reading.call.is_none() && !reading.allocator.read,
            "seed {seed}"
        );
    }
}

#[test]
fn damage_does_not_break_readers() {
    for seed in 0..strandline_synth::scaled(150, 2000) {
        check_damaged(&jemalloc::READER, fabricate_jemalloc(seed as usize, seed), seed);
        check_damaged(&musl::READER, fabricate_musl(seed), seed);
        check_damaged(&musl::READER, fabricate_old_musl(seed), seed);
        check_damaged(&tcmalloc::READER, fabricate_tcmalloc(seed), seed);
        check_damaged(&google_tcmalloc::READER, fabricate_google_tcmalloc(seed as usize, seed), seed);
        check_damaged(&mimalloc::READER, fabricate_mimalloc(seed as usize, seed), seed);
    }
}

/// Overwrites words of an allocator's structures and reads it.
fn check_damaged(reader: &Reader, built: HeapImage, seed: u64) {
    let HeapImage { mut image, maps, structure_ranges, .. } = built;
    let mut dice = Rng::new(seed);
    for _ in 0..1 + dice.below(20) {
        let (start, end) = structure_ranges[dice.below(structure_ranges.len() as u64) as usize];
        let at = start + dice.below((end - start) / 8) * 8;
        let (other_start, other_end) = structure_ranges[dice.below(structure_ranges.len() as u64) as usize];
        let word = match dice.below(5) {
            0 => 0,
            1 => u64::MAX,
            2 => image.word(at).unwrap_or(0) ^ (1 << dice.below(64)),
            3 => other_start + dice.below(other_end - other_start),
            _ => image.word(other_start).unwrap_or(0),
        };
        image.put_word(at, word);
    }
    let ((readings, _), bytes_read) = read(reader, &image, &maps);
    assert!(bytes_read < 1 << 30, "seed {seed}: {bytes_read} bytes were read");
    let claims = readings.iter().flat_map(|reading| &reading.claims);
    let mut ranges: Vec<(u64, u64)> = claims.map(|claim| (claim.start, claim.end)).collect();
    ranges.sort_unstable();
    assert!(
        ranges.is_sorted_by(|(_, end), (next_start, _)| end <= next_start),
        "seed {seed}: claims overlap"
    );
    let is_mapped = |range: &(u64, u64)| {
        image.ranges().any(|(start, bytes)| start <= range.0 && range.1 <= start + bytes.len() as u64)
    };
    assert!(ranges.iter().all(is_mapped), "seed {seed}: claims outside of its memory");
}
