//! Regions of many segments, generated word by word when read: whatever old headers are inside free
//! chunks where a segment starts, the result is that of one walk from the first chunk to the last.

use std::time::{Duration, Instant};

use strandline_allocators::glibc::lists::SpecialChunks;
use strandline_allocators::glibc::segments::{self, RegionTotals};
use strandline_allocators::glibc::walk::Walker;
use strandline_allocators::glibc::walk_context::{FastbinMode, Region, RegionKind, Top, WalkContext};
use strandline_claims::accumulator::AccumulatedPart;
use strandline_claims::range::RangePages;
use strandline_process::memory::Memory;
use strandline_synth::{Recipe, Version, fabricate};

use crate::adapter::{FrozenProcess, PAGE};

const BASE: u64 = 0x5555_5400_0000;
/// Six segments and a half.
const BYTES: u64 = 208 << 20;
/// One round of the pattern: a chunk in use, a large free one full of old headers, small ones in
/// use.
const ROUND: u64 = 24 << 20;
const FREE: u64 = 20 << 20;
const SMALL: u64 = 0x1010;
const PREV_INUSE: u64 = 1;

/// Content of the free chunks.
#[derive(Clone, Copy, Debug)]
enum Stale {
    /// Old chunks of this size side by side, all in use.
    Chunks(u64),
    /// The same, ending exactly where the free chunk does.
    Ending(u64),
    /// Only zeros.
    Zeros,
}

struct GeneratedMemory(Stale);

impl GeneratedMemory {
    /// Returns the word at `at`, computed from its offset in its round.
    fn word(&self, at: u64) -> u64 {
        let (round, offset) = ((at - BASE) / ROUND, (at - BASE) % ROUND);
        let remaining_bytes = BYTES - round * ROUND;
        if remaining_bytes < ROUND {
            // All of it is the top chunk.
            return if offset == 8 { remaining_bytes | PREV_INUSE } else { 0 };
        }
        match offset {
            8 => 0x1000 | PREV_INUSE,
            0x1008 => FREE | PREV_INUSE,
            _ if offset < 0x1000 + 48 => 0x31,
            _ if offset < 0x1000 + FREE => self.stale_word(offset - 0x1000),
            _ => Self::small_chunk_word(offset - 0x1000 - FREE),
        }
    }

    /// Returns a word of a free chunk, which is `offset` bytes after its start.
    fn stale_word(&self, offset: u64) -> u64 {
        let (size, shift) = match self.0 {
            Stale::Zeros => return 0,
            Stale::Chunks(size) => (size, 0),
            Stale::Ending(size) => (size, FREE % size),
        };
        if (offset + size - shift) % size == 8 { size | PREV_INUSE } else { 0x5151_5151_5151_5151 }
    }

    /// Returns a word of the chunks in use after the free one, of which the last is longer, to fill
    /// the round.
    fn small_chunk_word(offset: u64) -> u64 {
        let bytes = ROUND - FREE - 0x1000;
        let (index, inside) = (offset / SMALL, offset % SMALL);
        let last_index = bytes / SMALL - 1;
        match (index, inside) {
            (0, 0) => FREE,
            (0, 8) => SMALL,
            (index, 8) if index < last_index => SMALL | PREV_INUSE,
            (index, 8) if index == last_index => (bytes - last_index * SMALL) | PREV_INUSE,
            _ => offset | 0x7000_0000_0000_0000,
        }
    }
}

impl Memory for GeneratedMemory {
    fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
        let (words, _) = buffer.as_chunks_mut::<8>();
        for (word, at) in words.iter_mut().zip((address..).step_by(8)) {
            *word = self.word(at).to_le_bytes();
        }
        buffer.len()
    }
}

fn region() -> Region {
    let rounds = BYTES / ROUND;
    let top = BASE + rounds * ROUND;
    Region {
        start: BASE,
        end: BASE + BYTES,
        first_chunk: Some(BASE),
        kind: RegionKind::Brk,
        is_main: true,
        top: Some(Top { address: top, bytes: BASE + BYTES - top }),
        is_break_at_top: true,
        trim_unit_bytes: PAGE,
        locked: Vec::new(),
    }
}

/// Returns the pages with true headers, and of the free chunks one page in `interval`.
fn resident_pages(interval: u64) -> RangePages {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for page in (BASE..BASE + BYTES).step_by(PAGE as usize) {
        let offset = (page - BASE) % ROUND;
        let is_in_free_chunk =
            (0x2000..0x1000 + FREE).contains(&offset) && page < BASE + BYTES / ROUND * ROUND;
        if is_in_free_chunk && !(offset / PAGE).is_multiple_of(interval) {
            continue;
        }
        match runs.last_mut() {
            Some((_, end)) if *end == page => *end += PAGE,
            _ => runs.push((page, page + PAGE)),
        }
    }
    RangePages::new((BASE, BASE + BYTES), runs)
}

/// Walks the region once, from front to back.
fn walk_straight(walk_context: &WalkContext<'_>) -> RegionTotals {
    let part = Walker::from_start(*walk_context).walk(u64::MAX, u64::MAX);
    let mut claims = AccumulatedPart::empty(walk_context.region.start);
    claims.join(part.claims, walk_context.pages).unwrap();
    assert_eq!(claims.end, walk_context.region.end);
    RegionTotals { sums: claims.finish(walk_context.pages), counts: part.counts }
}

fn check(stale: Stale, interval: u64) {
    let (memory, region, special_chunks) =
        (GeneratedMemory(stale), region(), SpecialChunks::new(BASE, BASE + BYTES));
    let expected_pages = resident_pages(interval);
    let walk_context = WalkContext {
        region: &region,
        special_chunks: &special_chunks,
        fastbin_mode: FastbinMode::Known,
        memory: &memory,
        pages: &expected_pages,
        refinements: None,
        keeps_blocks: false,
        deadline: Instant::now() + Duration::from_secs(600),
    };
    let expected = walk_straight(&walk_context);
    let rounds = BYTES / ROUND;
    assert_eq!(expected.counts.damages, 0);
    assert_eq!((expected.counts.bin_chunks, expected.counts.bin_bytes), (rounds, rounds * FREE));
    assert_eq!(expected.counts.top_bytes, BYTES - rounds * ROUND);
    let threads = 2;
    let pages = resident_pages(interval);
    let walk_context = WalkContext { pages: &pages, ..walk_context };
    let parts = segments::walk(&[walk_context], threads, &|_| {}).pop().unwrap();
    assert!(parts.bytes_read <= 3 * BYTES, "{} bytes read of {BYTES}", parts.bytes_read);
    assert!(parts.parts.len() > 8, "one walk only");
    let walked = parts.sum(&walk_context).unwrap();
    assert_eq!(walked.counts, expected.counts, "{stale:?}, every {interval} pages, {threads} threads");
    assert_eq!(walked.sums, expected.sums, "{stale:?}, every {interval} pages, {threads} threads");
    assert_eq!(pages.zero_runs(), expected_pages.zero_runs());
}

#[test]
fn segments_that_start_among_old_headers_come_to_one_walk() {
    check(Stale::Chunks(0x30), 16);
    check(Stale::Ending(0x2_0010), 16);
}

#[test]
fn segments_that_start_within_zeros_come_to_one_walk() {
    check(Stale::Zeros, 16);
}

#[test]
fn dense_regions_come_to_one_walk() {
    check(Stale::Ending(0x410), 8);
}

/// Zeros; the first read ends when the deadline has passed.
struct LateMemory(Instant);

impl Memory for LateMemory {
    fn read_some(&self, _: u64, buffer: &mut [u8]) -> usize {
        while Instant::now() < self.0 {
            std::thread::yield_now();
        }
        buffer.fill(0);
        buffer.len()
    }
}

#[test]
fn a_search_for_chunks_ends_at_the_deadline() {
    let deadline = Instant::now() + Duration::from_millis(50);
    let memory = LateMemory(deadline);
    let region = Region { first_chunk: None, top: None, ..region() };
    let special_chunks = SpecialChunks::new(BASE, BASE + BYTES);
    let pages = RangePages::new((BASE, BASE + BYTES), [(BASE, BASE + BYTES)]);
    let walk_context = WalkContext {
        region: &region,
        special_chunks: &special_chunks,
        fastbin_mode: FastbinMode::Known,
        memory: &memory,
        pages: &pages,
        refinements: None,
        keeps_blocks: false,
        deadline,
    };
    let parts = segments::walk(&[walk_context], 1, &|_| {}).pop().unwrap();
    assert!(parts.bytes_read < 8 << 20, "{} bytes read", parts.bytes_read);
    let walked = parts.sum(&walk_context).unwrap();
    assert_eq!((walked.counts.unread_bytes, walked.sums.resident.total()), (BYTES, BYTES));
}

/// The memory of a process; each large read that touches `slow_from..end` takes `delay`.
struct SlowMemory<'a> {
    process: &'a FrozenProcess,
    slow_from: u64,
    end: u64,
    delay: Duration,
}

impl Memory for SlowMemory<'_> {
    fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
        let read_end = address.saturating_add(buffer.len() as u64);
        let is_walk = buffer.len() > 16 * PAGE as usize;
        if is_walk && address < self.end && read_end > self.slow_from {
            std::thread::sleep(self.delay);
        }
        self.process.read_some(address, buffer)
    }
}

#[test]
fn what_was_read_before_the_deadline_counts() {
    let heap = fabricate(&Recipe {
        chunks: 6000,
        threads: 1,
        secondary_heaps: 0,
        has_foreign_sbrk: false,
        is_break_moved: false,
        mmapped_pieces: 0,
        mmapped_chunks: 0,
        ..Recipe::from_seed(Version::V2_36, 11)
    });
    let (start, end) = (heap.recipe.places.heap, heap.system_break);
    let bytes = end - start;
    assert!(bytes > 8 << 20, "{bytes} bytes of heap");
    let process = FrozenProcess::of(&heap);
    // The heads of the fastbins are in the last third, which is not read completely.
    let limit = Duration::from_secs(8);
    let memory = SlowMemory { process: &process, slow_from: end - bytes / 3, end, delay: limit / 16 };
    let readings = process.read_from(&memory, 1, Instant::now() + limit);
    let caveats = &readings[0].caveats;
    let late_caveat = caveats.iter().find(|caveat| caveat.code == "heap_too_slow");
    let unread_bytes = late_caveat.and_then(|caveat| caveat.bytes).expect("a caveat with bytes");
    assert!(
        unread_bytes > 0 && unread_bytes < bytes / 2,
        "{unread_bytes} bytes unread of {bytes}: {caveats:?}"
    );
    assert!(
        caveats.iter().all(|caveat| !["heap_damaged", "free_list_broken"].contains(&caveat.code.as_str()))
    );
}
