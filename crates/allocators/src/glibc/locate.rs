//! Finds malloc's arenas in a libc without symbols: `main_arena`, the ring of arenas, their heaps.
//!
//! An empty bin points to itself, so 127 pairs of words that are either their own address less 16
//! or two aligned pointers are `main_arena.bins`, if the ring of `next` after them returns to its
//! start.

use super::layout;
use strandline_claims::allocator::Context;
use strandline_process::memory::{Memory, half_word_at, pair_at, word_at};
use strandline_process::pages::{PAGE_BYTES, USER_ADDRESS_END};
use strandline_process::range::AddressRange;

/// Maximum arenas followed; the default limit is eight per core.
const MAX_ARENAS: usize = 16_384;
/// Maximum bytes of an arena, the user address space: more is damage, and must not be added up.
const MAX_SYSTEM_BYTES: u64 = USER_ADDRESS_END;
/// Maximum steps along rings in the whole search for `main_arena`, however many false rings the
/// data contains.
const MAX_RING_STEPS: usize = 4 * MAX_ARENAS;
/// Maximum heaps followed per arena: 64 GiB. Later ones are missing in the arena's sum, which
/// `summary::check_sums` reports.
const MAX_HEAPS: usize = 1024;
/// Maximum heaps of all arenas: 8 TiB. Damaged lists could name more than fit in our memory.
const MAX_TOTAL_HEAPS: usize = 1 << 17;
/// Bytes read at once in the search.
const BLOCK_BYTES: u64 = 1 << 20;
/// Blocks overlap by more than the longest structure.
const OVERLAP_BYTES: u64 = 8 << 10;
/// Maximum bytes of pairs before an empty bin that may be bins; all bins take half of it.
const MAX_RUN_BYTES: usize = 4096;
/// Maximum pairs that may be in front of the bins in a run.
const MAX_PAIRS_BEFORE_BINS: usize = 64;

/// The address and layout of `main_arena`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MainArena {
    /// Its address.
    pub address: u64,
    /// Its layout.
    pub layout: layout::ArenaLayout,
}

/// State of one arena.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arena {
    /// Its address, which is also that of its mutex.
    pub address: u64,
    /// Whether it is the main arena.
    pub is_main: bool,
    /// The top chunk's address.
    pub top: u64,
    /// Bytes taken from the kernel.
    pub system_bytes: u64,
    /// Whether its ranges are not contiguous.
    pub is_noncontiguous: bool,
    /// The first chunk of each fastbin.
    pub fastbins: Vec<u64>,
    /// The non-empty bins.
    pub bins: Vec<Bin>,
    /// Its heaps, newest first; none for the main arena.
    pub heaps: Vec<Heap>,
}

/// A heap of a secondary arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heap {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    /// Address of its first chunk.
    pub first_chunk: u64,
}

/// A non-empty bin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bin {
    /// Its index: 1 is the unsorted bin, 64 and above are the large ones.
    pub index: usize,
    /// The address that represents it in its list (`bin_at`).
    pub address: u64,
    /// Its first chunk (`fd`).
    pub first_chunk: u64,
    /// Its last chunk (`bk`).
    pub last_chunk: u64,
}

/// Bytes of data that are searched even after the deadline: a libc has less, and that of a static
/// program is at the start of its data. Without the arenas, the whole heap would be on no row of
/// malloc's.
const MIN_SEARCHED_BYTES: u64 = 4 << 20;

/// Reads `ranges` in overlapping blocks and calls `visit` with the address of each and the bytes
/// that can be read, until it returns a value; after the deadline only [`MIN_SEARCHED_BYTES`].
pub fn scan<T>(
    context: &Context<'_>,
    ranges: &[AddressRange],
    mut visit: impl FnMut(u64, &[u8]) -> Option<T>,
) -> Option<T> {
    let (mut buffer, mut searched_bytes) = (Vec::new(), 0);
    for &AddressRange { start, end } in ranges {
        let mut at = start;
        while at < end && (searched_bytes < MIN_SEARCHED_BYTES || !context.deadline_passed()) {
            let length = (end - at).min(BLOCK_BYTES + OVERLAP_BYTES);
            buffer.resize(length as usize, 0);
            let read_length = context.whole_memory.read_some(at, &mut buffer);
            if let Some(result) = visit(at, &buffer[..read_length]) {
                return Some(result);
            }
            searched_bytes += length;
            at += BLOCK_BYTES;
        }
    }
    None
}

/// Bytes of a pair of links in `malloc_state.bins`.
const PAIR_BYTES: usize = 16;

/// Finds `main_arena` in the data of one libc (resident, writable ranges).
pub fn main_arena(context: &Context<'_>, data: &[AddressRange]) -> Option<MainArena> {
    let mut steps = MAX_RING_STEPS;
    scan(context, data, |base, bytes| {
        let mut offset = 0;
        while offset + layout::BIN_PAIRS as usize * PAIR_BYTES <= bytes.len() {
            if !is_empty_bin(base, bytes, offset) {
                offset += 8;
                continue;
            }
            let run = run_of_pairs(base, bytes, offset);
            let arena = arena_of_run(context.whole_memory, base + run.offset as u64, run.pairs, &mut steps);
            if arena.is_some() {
                return arena;
            }
            offset = run.offset + run.pairs * PAIR_BYTES + 8;
        }
        None
    })
}

/// Finds the `main_arena` whose bins are in the run of `pairs` at the address `run`: other pairs of
/// pointers may precede them.
fn arena_of_run(memory: &dyn Memory, run: u64, pairs: usize, steps: &mut usize) -> Option<MainArena> {
    let surplus_pairs = pairs.checked_sub(layout::BIN_PAIRS as usize)?;
    (0..=surplus_pairs.min(MAX_PAIRS_BEFORE_BINS)).find_map(|pairs_before| {
        let bins = run + (PAIR_BYTES * pairs_before) as u64;
        layout::ARENAS.iter().find_map(|arena_layout| {
            let address = bins.checked_sub(arena_layout.bins)?;
            ring(memory, address, arena_layout, steps)?;
            Some(MainArena { address, layout: *arena_layout })
        })
    })
}

/// Whether an empty bin is at `offset`: both of its links are its own address in its list.
fn is_empty_bin(base: u64, bytes: &[u8], offset: usize) -> bool {
    let bin = (base + offset as u64).wrapping_sub(layout::CHUNK_FORWARD);
    pair_at(bytes, offset) == Some((bin, bin))
}

/// Consecutive pairs of pointers in static data.
struct PairRun {
    offset: usize,
    /// Number of pairs.
    pairs: usize,
}

/// Returns the run of pairs around the empty bin at `offset` that may be bins.
fn run_of_pairs(base: u64, bytes: &[u8], offset: usize) -> PairRun {
    let is_pointer = |word: u64| word != 0 && word.is_multiple_of(layout::ALIGNMENT);
    let is_bin = |at: usize| {
        is_empty_bin(base, bytes, at)
            || pair_at(bytes, at).is_some_and(|(fd, bk)| is_pointer(fd) && is_pointer(bk))
    };
    let mut start = offset;
    while start >= PAIR_BYTES && is_bin(start - PAIR_BYTES) && offset - start < MAX_RUN_BYTES {
        start -= PAIR_BYTES;
    }
    let mut end = offset + PAIR_BYTES;
    while end + PAIR_BYTES <= bytes.len() && is_bin(end) && end - start < 2 * MAX_RUN_BYTES {
        end += PAIR_BYTES;
    }
    PairRun { offset: start, pairs: (end - start) / PAIR_BYTES }
}

/// Every alignment of heaps, also with `glibc.malloc.hugetlb`, is a multiple of this.
const MIN_HEAP_ALIGNMENT: u64 = 1 << 20;

/// Returns the arenas of the ring that starts and must end at `main`, main first. Decrements
/// `steps` at each one, and gives up at 0.
fn ring(
    memory: &dyn Memory,
    main: u64,
    arena_layout: &layout::ArenaLayout,
    steps: &mut usize,
) -> Option<Vec<u64>> {
    let mut arenas = vec![main];
    let mut at = main;
    // Brent's algorithm detects a cycle without `main`: an arena is remembered at step 2, 4, 8, ….
    let (mut remembered_arena, mut remembered_step) = (0, 1);
    loop {
        *steps = steps.checked_sub(1)?;
        at = memory.read_word(at.checked_add(arena_layout.next_offset())?).ok()?;
        if at == main {
            return Some(arenas);
        }
        // A secondary arena follows the heap_info of its first heap.
        let offset = at % MIN_HEAP_ALIGNMENT;
        if arenas.len() >= MAX_ARENAS || at == remembered_arena || !layout::HEAP_INFO_BYTES.contains(&offset)
        {
            return None;
        }
        arenas.push(at);
        if arenas.len() == 2 * remembered_step {
            (remembered_arena, remembered_step) = (at, arenas.len());
        }
    }
}

/// Reads the state of all arenas. `heap_max_bytes` is the alignment of secondary heaps.
pub fn arenas(memory: &dyn Memory, main: &MainArena, heap_max_bytes: u64) -> Vec<Arena> {
    let mut steps = MAX_ARENAS;
    // `main_arena` has followed the same ring, so it is complete, and its links were readable: an
    // arena whose other fields cannot be read is no real one.
    let addresses = ring(memory, main.address, &main.layout, &mut steps).unwrap_or_default();
    let mut remaining_heaps = MAX_TOTAL_HEAPS;
    let read_with_heaps = |address: u64| {
        let mut arena = read_arena(memory, address, address == main.address, &main.layout)?;
        if !arena.is_main {
            let max_heaps = remaining_heaps.min(MAX_HEAPS);
            arena.heaps = heaps(memory, &arena, &main.layout, heap_max_bytes, max_heaps);
            remaining_heaps -= arena.heaps.len();
        }
        Some(arena)
    };
    addresses.into_iter().filter_map(read_with_heaps).collect()
}

/// Reads the state of one arena, without its heaps.
fn read_arena(
    memory: &dyn Memory,
    address: u64,
    is_main: bool,
    arena_layout: &layout::ArenaLayout,
) -> Option<Arena> {
    let mut bytes = vec![0; arena_layout.struct_bytes() as usize];
    memory.read(address, &mut bytes).ok()?;
    let word = |offset: u64| word_at(&bytes, offset as usize);
    let layout::Fastbins { offset, count } = arena_layout.fastbins.unwrap_or_default();
    let fastbins = (0..count as u64).filter_map(|index| word(offset + 8 * index)).collect();
    let bins = (0..layout::BIN_PAIRS)
        .filter_map(|pair| {
            let at = arena_layout.bins + PAIR_BYTES as u64 * pair;
            let (first_chunk, last_chunk) = (word(at)?, word(at + 8)?);
            // A bin has the address of a chunk whose links are this pair; bin 0 does not exist.
            let bin_address = address + at - layout::CHUNK_FORWARD;
            let bin = Bin { index: pair as usize + 1, address: bin_address, first_chunk, last_chunk };
            (first_chunk != bin.address).then_some(bin)
        })
        .collect();
    Some(Arena {
        address,
        is_main,
        top: word(arena_layout.top)?,
        system_bytes: word(arena_layout.system_mem_offset())?.min(MAX_SYSTEM_BYTES),
        is_noncontiguous: half_word_at(&bytes, layout::FLAGS_OFFSET as usize)? & layout::NONCONTIGUOUS != 0,
        fastbins,
        bins,
        heaps: Vec::new(),
    })
}

/// Returns the heaps of a secondary arena, from the one with its top back to its first, at most
/// `max_heaps`. All are aligned to `heap_max_bytes`.
fn heaps(
    memory: &dyn Memory,
    arena: &Arena,
    arena_layout: &layout::ArenaLayout,
    heap_max_bytes: u64,
    max_heaps: usize,
) -> Vec<Heap> {
    let mut heaps: Vec<Heap> = Vec::new();
    let info_bytes = arena.address % heap_max_bytes;
    let mut start = arena.top - arena.top % heap_max_bytes;
    while start != 0
        && start.is_multiple_of(heap_max_bytes)
        && heaps.len() < max_heaps
        && heaps.iter().all(|heap| heap.start != start)
    {
        let Some(HeapInfo { owner, previous, bytes }) = heap_info(memory, start) else { break };
        if owner != arena.address
            || bytes < info_bytes
            || bytes > heap_max_bytes
            || !bytes.is_multiple_of(PAGE_BYTES)
        {
            break;
        }
        let holds_arena = arena.address - arena.address % heap_max_bytes == start;
        let used_bytes = if holds_arena { info_bytes + arena_layout.struct_bytes() } else { info_bytes };
        let first_chunk = start + used_bytes.next_multiple_of(layout::ALIGNMENT);
        heaps.push(Heap { start, end: start + bytes, first_chunk });
        start = previous;
    }
    heaps
}

/// Fields of the `heap_info` at the start of a heap.
struct HeapInfo {
    /// Address of the arena.
    owner: u64,
    /// Address of the heap before it; 0 if none.
    previous: u64,
    /// Bytes of the heap.
    bytes: u64,
}

fn heap_info(memory: &dyn Memory, heap: u64) -> Option<HeapInfo> {
    let mut bytes = [0; 24];
    memory.read(heap, &mut bytes).ok()?;
    let word = |offset: u64| word_at(&bytes, offset as usize);
    Some(HeapInfo {
        owner: word(layout::HEAP_ARENA)?,
        previous: word(layout::HEAP_PREVIOUS)?,
        bytes: word(layout::HEAP_SIZE)?,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use strandline_process::map::AddressSpace;

    /// A heap_info at each address, which leads to another one `step` bytes further.
    struct HeapInfos {
        arena: u64,
        step: u64,
    }

    impl Memory for HeapInfos {
        fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
            let words = [self.arena, address + self.step, PAGE_BYTES];
            for (bytes, word) in buffer.chunks_exact_mut(8).zip(words) {
                bytes.copy_from_slice(&word.to_le_bytes());
            }
            buffer.len()
        }
    }

    #[test]
    fn the_start_of_the_data_is_searched_after_the_deadline() {
        let (space, _) = AddressSpace::parse(b"");
        let (memory, no_runs) = (HeapInfos { arena: 0, step: 0 }, |_: AddressRange| Vec::new());
        let context = Context { deadline: Instant::now(), ..Context::of_image(&memory, &space, &no_runs) };
        let mut visited = Vec::new();
        let found = scan(&context, &[AddressRange::new(0, 1 << 30)], |at, _| {
            visited.push(at >> 20);
            None::<()>
        });
        assert_eq!((found, visited), (None, vec![0, 1, 2, 3]));
    }

    #[test]
    fn heaps_are_aligned_and_limited() {
        let arena = Arena {
            address: 0x7f00_0400_0030,
            is_main: false,
            top: 0x7f00_0400_1000,
            system_bytes: 0,
            is_noncontiguous: true,
            fastbins: Vec::new(),
            bins: Vec::new(),
            heaps: Vec::new(),
        };
        let count = |step: u64| {
            let memory = HeapInfos { arena: arena.address, step };
            heaps(&memory, &arena, &layout::ARENA_WITH_FASTBINS, layout::HEAP_MAX_BYTES, 100).len()
        };
        assert_eq!(count(layout::HEAP_MAX_BYTES), 100);
        assert_eq!(count(0x1008), 1, "not aligned");
        assert_eq!(count(0), 1, "a cycle");
    }
}
