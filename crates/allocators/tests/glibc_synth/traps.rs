//! Hostile heaps: cycles, sizes of 2^63, overlapping arenas, patterns everywhere.
//!
//! Offsets are those of glibc 2.36, the version of all traps.

use strandline_process::range::AddressRange;
use strandline_synth::{Heap, Image, Recipe, Version, fabricate};

use crate::adapter::{FrozenProcess, PAGE};
use crate::damaged;

const FASTBINS: u64 = 0x10;
const TOP: u64 = 0x60;
const BINS: u64 = 0x70;
const NEXT: u64 = 0x870;
const SYSTEM_MEM: u64 = 0x888;
const N_MMAPS: u64 = 60;
const MMAPPED_MEM: u64 = 80;
const SBRK_BASE: u64 = 96;
/// The first heap of fabricated secondary arenas.
const SECONDARY: u64 = 0x7f5a_2400_0000;
const HEAP_INFO: u64 = 0x30;
/// Where chunks with their own mapping are added: at a multiple of 8 MiB, below a heap's memory.
const MMAPPED: u64 = 0x7f59_f000_0000;

fn recipe() -> Recipe {
    Recipe {
        chunks: 300,
        threads: 2,
        secondary_heaps: 2,
        has_foreign_sbrk: false,
        is_break_moved: false,
        mmapped_pieces: 0,
        mmapped_chunks: 2,
        ..Recipe::from_seed(Version::V2_36, 11)
    }
}

fn word(heap: &Heap, address: u64) -> u64 {
    heap.image.word(address).unwrap()
}

/// Reads `heap` with three threads and with one; returns the codes of the caveats.
fn check_and_list_caveats(heap: &Heap) -> Vec<String> {
    check_subject_and_list_caveats(&FrozenProcess::of(heap))
}

fn check_subject_and_list_caveats(subject: &FrozenProcess) -> Vec<String> {
    damaged::check_subject(subject, 3);
    let readings = damaged::check_subject(subject, 1);
    readings.iter().flat_map(|reading| &reading.caveats).map(|caveat| caveat.code.clone()).collect()
}

#[test]
fn top_chunks_of_impossible_sizes() {
    for pieces in [0, 3] {
        let sound = fabricate(&Recipe { mmapped_pieces: pieces, ..recipe() });
        for arena in [sound.main_arena, SECONDARY + HEAP_INFO] {
            let top = word(&sound, arena + TOP);
            for size in [0, 1, 7, 8, 16, 24, 32, 40, 1 << 20, 1 << 63, u64::MAX, u64::MAX - top] {
                let mut heap = sound.clone();
                heap.image.put_word(top + 8, size);
                check_and_list_caveats(&heap);
            }
        }
    }
}

#[test]
fn top_pointers_to_anywhere() {
    let sound = fabricate(&recipe());
    for arena in [sound.main_arena, SECONDARY + HEAP_INFO] {
        let top = word(&sound, arena + TOP);
        let heap = sound.recipe.places.heap;
        for to in [0, 8, 1 << 63, u64::MAX, !15, heap, heap + 8, top - 8, top + 16, SECONDARY, arena] {
            let mut heap = sound.clone();
            heap.image.put_word(arena + TOP, to);
            assert!(!check_and_list_caveats(&heap).is_empty(), "top of {arena:#x} at {to:#x}");
        }
    }
}

#[test]
fn a_size_of_2_to_the_63_on_every_chunk() {
    for size in [1 << 63, 1 << 63 | 1, u64::MAX, !7, 0x21, 0x31, 0x40001, 0x10, 1, 0] {
        for pieces in [0, 3] {
            let mut heap = fabricate(&Recipe { mmapped_pieces: pieces, ..recipe() });
            for (start, end) in heaps(&heap) {
                for at in (start..end).step_by(16) {
                    heap.image.put_word(at + 8, size);
                }
            }
            check_and_list_caveats(&heap);
            for (start, end) in heaps(&heap) {
                for at in (start..end).step_by(8) {
                    heap.image.put_word(at, size);
                }
            }
            check_and_list_caveats(&heap);
        }
    }
}

/// The ranges of chunks, without the structures that locate them.
fn heaps(heap: &Heap) -> Vec<(u64, u64)> {
    let writable = heap.mappings.iter().filter(|mapping| mapping.permissions == "rw-p");
    writable
        .filter(|mapping| {
            mapping.name == "[heap]" || (mapping.name.is_empty() && mapping.end - mapping.start > 2 * PAGE)
        })
        .map(|mapping| (mapping.start + if mapping.name.is_empty() { 0x1000 } else { 0 }, mapping.end))
        .collect()
}

#[test]
fn sizes_that_lead_far_and_nowhere() {
    // Each place is a plausible chunk whose chain leaves the window at every step and ends in
    // nothing.
    let mut heap = fabricate(&Recipe { chunks: 3000, ..recipe() });
    for (start, end) in heaps(&heap) {
        for at in (start..end).step_by(16) {
            let far = 0x4_1000 + (at >> 4) % 97 * 16;
            heap.image.put_word(at + 8, if (end - at) < 4 * far { 0 } else { far | 1 });
        }
    }
    check_and_list_caveats(&heap);
}

#[test]
fn circles_in_lists() {
    let sound = fabricate(&recipe());
    let disguise = |place: u64, to: u64| to ^ (place >> 12);
    // A fastbin whose only chunk points to itself; then ten fastbins with that chunk.
    let mut heap = sound.clone();
    let head = (0..10).map(|bin| word(&heap, heap.main_arena + FASTBINS + 8 * bin)).find(|&head| head != 0);
    let head = head.expect("the heap has fastbins");
    heap.image.put_word(head + 16, disguise(head + 16, head));
    assert!(!check_and_list_caveats(&heap).is_empty(), "fastbin");
    for bin in 0..10 {
        heap.image.put_word(heap.main_arena + FASTBINS + 8 * bin, head);
    }
    assert!(!check_and_list_caveats(&heap).is_empty(), "ten fastbins with one chunk");

    let mut heap = sound.clone();
    let cache = heap.threads[0].tcache;
    let entry = (0..64).map(|bin| word(&heap, cache + 128 + 8 * bin)).find(|&head| head != 0);
    let entry = entry.expect("the cache is not empty");
    heap.image.put_word(entry, disguise(entry, entry));
    assert!(!check_and_list_caveats(&heap).is_empty(), "thread cache");
}

/// Returns the links of the members of a list, which have plain addresses, without the last.
fn links(heap: &Heap, head: u64, offset: u64) -> Vec<u64> {
    let next = |member: &u64| Some(word(heap, member + offset)).filter(|&next| next != 0);
    let members = std::iter::successors(Some(head).filter(|&head| head != 0), next);
    members.filter(|member| next(member).is_some()).map(|member| member + offset).collect()
}

/// Reads `heap` without the page of `link`, which is swapped out.
fn check_swapped_link(heap: &Heap, link: u64) {
    let page = link - link % PAGE;
    let mut subject = FrozenProcess::of(heap);
    subject.evict(&[page], 0, 100);
    subject.swapped_mappings = vec![AddressRange::sized(page, PAGE)];
    let readings = subject.read(1);
    assert_eq!(subject.absent_reads(), 0, "{link:#x}");
    let mut codes = readings[0].caveats.iter().map(|caveat| caveat.code.as_str());
    let is_caveat = codes.any(|code| code == "free_list_broken" || code == "glibc_cache_swapped");
    assert!(is_caveat, "{link:#x}: {:?}", readings[0].caveats);
}

/// A link may begin the page behind that of its chunk's header.
#[test]
fn a_list_with_a_link_that_is_swapped_out_is_a_caveat_and_not_read() {
    let mut found = [[0; 2]; 2];
    let mut seeds = 0..200;
    while found.as_flattened().contains(&0)
        && let Some(seed) = seeds.next()
    {
        let heap = fabricate(&Recipe { chunks: 3000, ..Recipe::from_seed(Version::V2_31, seed) });
        let cache = heap.threads.first().map(|thread| thread.tcache);
        let bins = (0..10).map(|bin| (0, heap.main_arena + FASTBINS + 8 * bin, 16));
        let of_cache =
            cache.into_iter().flat_map(|cache| (0..64).map(move |bin| (1, cache + 128 + 8 * bin, 0)));
        for (kind, list, offset) in bins.chain(of_cache) {
            let links = links(&heap, word(&heap, list), offset);
            let from_middle = links.get(1..).unwrap_or_default();
            // The first page of a heap has its structures, too.
            let other = |link: &&u64| *link % PAGE > 16 && *link % (64 << 20) > PAGE;
            let starts_page = |link: &&u64| link.is_multiple_of(PAGE);
            for (place, link) in
                [from_middle.iter().find(other), links.iter().find(starts_page)].iter().enumerate()
            {
                link.iter().for_each(|link| check_swapped_link(&heap, **link));
                found[kind][place] += usize::from(link.is_some());
            }
        }
    }
    assert!(!found.as_flattened().contains(&0), "{found:?}");
}

#[test]
fn circles_of_arenas_and_heaps() {
    let sound = fabricate(&recipe());
    let secondary_arena = SECONDARY + HEAP_INFO;
    let mut heap = sound.clone();
    heap.image.put_word(secondary_arena + NEXT, secondary_arena);
    check_and_list_caveats(&heap);
    heap.image.put_word(secondary_arena + NEXT, 0x7f5a_2800_0000 + HEAP_INFO);
    check_and_list_caveats(&heap);

    let mut heap = sound.clone();
    heap.image.put_word(SECONDARY + 8, 0x7f5a_2800_0000);
    check_and_list_caveats(&heap);
    heap.image.put_word(SECONDARY + 8, SECONDARY);
    check_and_list_caveats(&heap);
}

#[test]
fn heaps_that_claim_foreign_memory() {
    let sound = fabricate(&recipe());
    for size in [0x1000, 1 << 20, 64 << 20, 1 << 63, !4095] {
        let mut heap = sound.clone();
        heap.image.put_word(SECONDARY + 16, size);
        assert!(!check_and_list_caveats(&heap).is_empty(), "heap of {size:#x}");
    }
    // All 64 MiB, part of it pages of a file that were copied on write.
    let mut heap = sound.clone();
    heap.image.put_word(SECONDARY + 16, 64 << 20);
    let mut subject = FrozenProcess::of(&heap);
    let end = heap.mappings.iter().find(|mapping| mapping.start == SECONDARY).unwrap().end;
    let file = end + 0x10000;
    let reserved_line = format!("{end:x}-{:x} ---p", SECONDARY + (64 << 20));
    let three_lines = format!(
        "{end:x}-{file:x} ---p 00000000 00:00 0 \n{file:x}-{:x} rw-p 00000000 fe:01 9 /tmp/file\n{:x}-{:x} ---p",
        file + 0x4000,
        file + 0x4000,
        SECONDARY + (64 << 20)
    );
    assert!(subject.maps.contains(&reserved_line));
    subject.maps = subject.maps.replace(&reserved_line, &three_lines);
    assert!(subject.image.map(file, 0x4000));
    for at in (file..file + 0x4000).step_by(8) {
        subject.image.put_word(at, 0x31);
    }
    subject.runs = subject.image.pages_without(|_| false);
    check_subject_and_list_caveats(&subject);
}

#[test]
fn arenas_within_the_brk_heap() {
    // A secondary arena with ring and heap_info, on a 64 MiB boundary inside [heap].
    let base = 0x5555_5400_0000 - 0x8000;
    let mut recipe = Recipe { secondary_heaps: 0, mmapped_chunks: 0, ..recipe() };
    recipe.places.heap = base;
    let mut heap = fabricate(&recipe);
    let inner = 0x5555_5400_0000;
    assert!(word(&heap, heap.main_arena + TOP) > inner + 0x2000);
    let arena = inner + HEAP_INFO;
    for (at, to) in [(inner, arena), (inner + 8, 0), (inner + 16, 0x10000), (arena + TOP, inner + 0x1000)] {
        heap.image.put_word(at, to);
    }
    heap.image.put_word(arena + NEXT, heap.main_arena);
    heap.image.put_word(heap.main_arena + NEXT, arena);
    assert!(!check_and_list_caveats(&heap).is_empty());
}

#[test]
fn a_heap_that_starts_within_a_page() {
    // The break was moved before the first malloc, so sbrk_base is not a page boundary. The bytes
    // before it are not malloc's, and a page with zeros in malloc's part only is not a zero
    // page.
    let base = 0x5555_5400_0000;
    let mut recipe = Recipe { secondary_heaps: 0, mmapped_chunks: 0, threads: 1, ..recipe() };
    recipe.places.heap = base;
    let heaps = (0..100).map(|seed| fabricate(&Recipe { seed, ..recipe.clone() }));
    let mut heap = heaps.into_iter().find(|heap| heap.expected.mallinfo.keepcost > 16 * PAGE).unwrap();
    let start = base + 0x290;
    heap.image.put_word(heap.parameters + SBRK_BASE, start);
    let system = word(&heap, heap.main_arena + SYSTEM_MEM);
    heap.image.put_word(heap.main_arena + SYSTEM_MEM, system - 0x290);
    // Every other page is zero but for a word before 0x290: read from there on, it looks like
    // zeros.
    let top = word(&heap, heap.main_arena + TOP);
    let end = heap.mappings[0].end;
    for page in ((top + PAGE) / PAGE * PAGE..end).step_by(2 * PAGE as usize) {
        heap.image.put_word(page + 0x100, 0x5ca1_ab1e);
    }
    check_and_list_caveats(&heap);
}

#[test]
fn absurd_parameters() {
    let sound = fabricate(&recipe());
    for value in [1, 0x1000, 1 << 31, 1 << 47, 1 << 63, u64::MAX] {
        for offset in (0..136).step_by(8) {
            let mut heap = sound.clone();
            heap.image.put_word(heap.parameters + offset, value);
            check_and_list_caveats(&heap);
        }
    }
    let mut heap = sound.clone();
    heap.image.put_word(heap.parameters + SBRK_BASE - 16, u64::MAX);
    for reading in damaged::check_subject(&FrozenProcess::of(&heap), 1) {
        assert_eq!((reading.allocator.live_bytes, reading.allocator.mallinfo), (None, None), "mp_ is lost");
        assert!(reading.caveats.iter().any(|caveat| caveat.code == "mmapped_chunks_differ"));
    }
    let mut heap = sound.clone();
    // The maximum number of mmapped chunks, with as many bytes as possible.
    heap.image.put_word(heap.parameters + N_MMAPS, u64::from(i32::MAX as u32) << 32 | i32::MAX as u64);
    heap.image.put_word(heap.parameters + N_MMAPS + 8, i32::MAX as u64);
    heap.image.put_word(heap.parameters + MMAPPED_MEM, 1 << 46);
    heap.image.put_word(heap.parameters + MMAPPED_MEM + 8, 1 << 46);
    assert!(check_and_list_caveats(&heap).contains(&"mmapped_chunks_differ".to_owned()));
}

#[test]
fn an_arena_in_a_giant_mapping() {
    let tebibytes = 3u64;
    let recipe = Recipe { secondary_heaps: 0, mmapped_chunks: 0, mmapped_pieces: 2, ..recipe() };
    let heap = fabricate(&recipe);
    let mut subject = FrozenProcess::of(&heap);
    let pieces = heap
        .mappings
        .iter()
        .find(|mapping| mapping.start > 0x7f5a_5000_0000 && mapping.name.is_empty())
        .unwrap();
    let line = format!("{:x}-{:x} rw-p", pieces.start, pieces.end);
    let giant = pieces.start - (tebibytes << 40);
    subject.maps = subject.maps.replace(&line, &format!("{giant:x}-{:x} rw-p", pieces.end));
    // A few pages in its middle, which look like chunks.
    for page in 0..64u64 {
        let at = giant + (page << 33);
        assert!(subject.image.map(at, PAGE as usize));
        for word in (at..at + PAGE).step_by(8) {
            subject.image.put_word(word, 0x1001);
        }
    }
    subject.runs = subject.image.pages_without(|_| false);
    check_subject_and_list_caveats(&subject);
}

#[test]
fn mmapped_chunks_side_by_side_between_pieces() {
    // A thousand chunks of one page each, where the mapping of the pieces continues below them.
    let recipe = Recipe { secondary_heaps: 0, mmapped_chunks: 0, mmapped_pieces: 2, ..recipe() };
    let mut heap = fabricate(&recipe);
    let count = 1000;
    for (offset, word) in [(0, count | 65_536 << 32), (8, count)] {
        heap.image.put_word(heap.parameters + N_MMAPS + offset, word);
    }
    for offset in [0, 8] {
        heap.image.put_word(heap.parameters + MMAPPED_MEM + offset, count * PAGE);
    }
    let mut subject = FrozenProcess::of(&heap);
    let pieces = heap
        .mappings
        .iter()
        .find(|mapping| mapping.start > 0x7f5a_5000_0000 && mapping.name.is_empty())
        .unwrap();
    let low = pieces.start - count * PAGE;
    subject.maps = subject.maps.replace(&format!("{:x}-", pieces.start), &format!("{low:x}-"));
    assert!(subject.image.map(low, (count * PAGE) as usize));
    for page in (low..pieces.start).step_by(PAGE as usize) {
        subject.image.put_word(page + 8, PAGE | 2);
    }
    subject.runs = subject.image.pages_without(|_| false);
    assert_eq!(check_subject_and_list_caveats(&subject), Vec::<String>::new());
    let mallinfo = subject.read(1)[0].allocator.mallinfo.unwrap();
    assert_eq!((mallinfo.hblks, mallinfo.hblkhd), (count, count * PAGE));
    assert_eq!(mallinfo.fordblks, heap.expected.mallinfo.fordblks);
}

/// Adds chunks with their own mapping to a heap without any: `lengths` are those of their adjacent
/// mappings from `MMAPPED` on, `counted` the sum as malloc counts it.
fn with_mmapped(lengths: &[u64], counted: u64) -> FrozenProcess {
    let mut heap = fabricate(&Recipe { secondary_heaps: 0, mmapped_chunks: 0, ..recipe() });
    let count = lengths.len() as u64;
    for (offset, word) in [(0, count | 65_536 << 32), (8, count)] {
        heap.image.put_word(heap.parameters + N_MMAPS + offset, word);
    }
    for offset in [0, 8] {
        heap.image.put_word(heap.parameters + MMAPPED_MEM + offset, counted);
    }
    let mut subject = FrozenProcess::of(&heap);
    let bytes: u64 = lengths.iter().sum();
    assert!(subject.image.map(MMAPPED, bytes as usize));
    let line = format!("{MMAPPED:x}-{:x} rw-p 00000000 00:00 0 \n", MMAPPED + bytes);
    let at = subject.maps.find("7f5a").unwrap_or(subject.maps.len());
    subject.maps.insert_str(at, &line);
    subject.runs = subject.image.pages_without(|_| false);
    subject
}

#[test]
fn mmapped_chunks_of_any_alignment() {
    // In one mapping: a chunk aligned to 1 MiB, one that was aligned to 2 MiB until mremap moved
    // and extended its mapping, a plain one that holds the numbers of its own words, and one
    // aligned to 4 MiB that was cut.
    let mib = 1 << 20;
    let lengths = [2 * mib, 5 * mib, mib, 3 * mib];
    let mut subject = with_mmapped(&lengths, 11 * mib);
    let starts = [MMAPPED, MMAPPED + 2 * mib, MMAPPED + 7 * mib, MMAPPED + 8 * mib];
    let leads = [mib - 16, mib + 300 * PAGE - 16, 0, 2 * mib - 16];
    for ((start, lead), (first, bytes)) in
        starts.into_iter().zip(leads).zip([2 * mib, 4 * mib, mib, 9 * mib].into_iter().zip(lengths))
    {
        subject.image.put_word(start + 8, first | 2);
        subject.image.put_word(start + lead, lead);
        subject.image.put_word(start + lead + 8, (bytes - lead) | 2);
    }
    for word in (16..mib).step_by(8) {
        subject.image.put_word(starts[2] + word, word);
    }
    assert_eq!(check_subject_and_list_caveats(&subject), Vec::<String>::new());
    let readings = subject.read(1);
    let found: Vec<_> =
        readings[0].mapped_blocks.iter().map(|block| (block.start, block.pointer, block.end)).collect();
    let expected: Vec<_> = starts
        .into_iter()
        .zip(leads)
        .zip(lengths)
        .map(|((start, lead), bytes)| (start, start + lead + 16, start + bytes))
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn headers_of_mmapped_chunks_on_every_page() {
    // Each page looks like the start of a long chunk whose header of memalign is elsewhere.
    let bytes = 2048 * PAGE;
    for head in [bytes | 2, 0x7fff_ffff_f002, !5, PAGE | 2] {
        let mut subject = with_mmapped(&[bytes], bytes + PAGE);
        for page in (MMAPPED..MMAPPED + bytes).step_by(PAGE as usize) {
            subject.image.put_word(page + 8, head);
            subject.image.put_word(page + PAGE - 16, page);
            subject.image.put_word(page + PAGE - 8, 0x12);
        }
        assert_eq!(check_subject_and_list_caveats(&subject), ["mmapped_chunks_differ"], "{head:x}");
    }
}

/// Writes 127 empty bins, the core of a main_arena, at `arena`, with `next` as its ring.
fn put_arena(image: &mut Image, arena: u64, next: u64) {
    for bin in 0..127 {
        let pair = arena + BINS + 16 * bin;
        image.put_word(pair, pair - 16);
        image.put_word(pair + 8, pair - 16);
    }
    image.put_word(arena + NEXT, next);
}

#[test]
fn false_main_arenas_everywhere() {
    // A thousand of them, each with a ring that leads into an endless cycle.
    let data = 0x7f5a_9000_0000u64;
    let bytes = 4 << 20;
    let (trap, other) = (0x7f5a_2000_0020, 0x7f5a_2010_0020);
    let mut image = Image::default();
    assert!(image.map(data, bytes) && image.map(0x7f5a_2000_0000, 8192) && image.map(0x7f5a_2010_0000, 8192));
    image.put_word(trap + NEXT, other);
    image.put_word(other + NEXT, trap);
    for index in 0..1000 {
        put_arena(&mut image, data + index * 4096, trap);
    }
    let maps = format!(
        "7f5a20000000-7f5a20002000 rw-p 00000000 00:00 0 \n7f5a20100000-7f5a20102000 rw-p 00000000 00:00 0 \n\
         {data:x}-{:x} rw-p 00000000 fe:01 4711 /usr/lib/libc.so.6\n",
        data + bytes as u64
    );
    check_subject_and_list_caveats(&FrozenProcess::new(image, maps));
}
