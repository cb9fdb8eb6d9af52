//! Finds the cache of free chunks of each thread.
//!
//! The pointer to it is a thread-local variable of libc, a little below the thread's FS base, at
//! the same distance in all threads of one libc. A vote determines the distance: the one where most
//! threads hold a pointer to a complete `tcache_perthread_struct`.

use std::collections::HashSet;

use super::layout::{self, BinCounts};
use super::lists::{List, Ranges};
use crate::blocks::SwappedCaches;
use crate::scan::may_be_swapped_out;
use strandline_claims::allocator::Context;
use strandline_process::memory::{half_word_at, word_at, words_in};
use strandline_process::range::AddressRange;

/// What is searched below the FS base. Thread-local storage of the program and of libraries that
/// were loaded before libc is between it and the pointer.
const SEARCHES: [Search; 2] = [
    Search { storage_bytes: 4 << 10, max_threads: usize::MAX, needs_filled: false },
    // Rarely needed, and below a thread's storage is its stack: the first threads, of which one is
    // the main thread, show the distance.
    Search { storage_bytes: 128 << 10, max_threads: 64, needs_filled: true },
];
/// Maximum bytes by which a release rounds the structure up: to a cache line.
const MAX_ROUNDING_BYTES: u64 = 64 - layout::ALIGNMENT;

/// A search for the pointer to the cache.
#[derive(Clone, Copy)]
struct Search {
    /// Bytes below the FS base.
    storage_bytes: u64,
    /// Number of threads that vote.
    max_threads: usize,
    /// Whether a cache with chunks is needed: an empty one is only zeros of the right length, which
    /// a word left on a stack may point to.
    needs_filled: bool,
}

/// The caches of all threads.
#[derive(Clone, Debug, Default)]
pub struct Caches {
    /// The chunks that hold the structures themselves.
    pub structures: Vec<u64>,
    /// All non-empty lists.
    pub lists: Vec<List>,
    /// Caches that were not read.
    pub swapped: SwappedCaches,
}

/// How many threads have a pointer to a complete structure at one distance. Filled caches count
/// more: an empty one is only zeros of the right length.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Votes {
    /// Number of caches with chunks.
    filled_caches: usize,
    /// Number of all caches.
    all_caches: usize,
}

/// Finds the caches of the context's threads, until the deadline. `has_large_bins` is true if the
/// parameters are those of glibc 2.42 and later.
pub fn find(context: &Context<'_>, ranges: &Ranges<'_>, has_large_bins: bool) -> Caches {
    for search in SEARCHES {
        let caches = caches_within(context, ranges, has_large_bins, search);
        if !caches.structures.is_empty() || context.deadline_passed() {
            return caches;
        }
    }
    Caches { swapped: swapped_caches(context, ranges, SEARCHES[0].storage_bytes), ..Caches::default() }
}

/// Finds the caches whose pointers are within the searched storage.
fn caches_within(context: &Context<'_>, ranges: &Ranges<'_>, has_large_bins: bool, search: Search) -> Caches {
    if has_large_bins {
        return caches_of_layout(context, ranges, &layout::LARGE_THREAD_CACHE, search);
    }
    let caches = caches_of_layout(context, ranges, &layout::THREAD_CACHE, search);
    if !caches.structures.is_empty() {
        return caches;
    }
    // The first 2.42 has large bins with the parameters of 2.41. But another program has no caches
    // either whose thread-local storage is larger than what is searched, and may point there to a
    // structure of that length: only counts of free slots show a cache.
    let large_caches = caches_of_layout(context, ranges, &layout::LARGE_THREAD_CACHE_ALONE, search);
    if large_caches.lists.is_empty() { caches } else { large_caches }
}

/// Finds the caches with this layout.
fn caches_of_layout(
    context: &Context<'_>,
    ranges: &Ranges<'_>,
    cache_layout: &layout::ThreadCacheLayout,
    search: Search,
) -> Caches {
    let mut caches = Caches::default();
    let Some(distance) = pointer_distance(context, ranges, cache_layout, search) else { return caches };
    let mut seen_pointers = HashSet::new();
    for &fs_base in context.fs_bases {
        if context.deadline_passed() {
            break;
        }
        let Some(pointer_at) = fs_base.checked_sub(distance) else { continue };
        let Some(pointer) = resident_word(context, pointer_at) else {
            caches.swapped.count_if_swapped(context, AddressRange::sized(pointer_at, 8));
            continue;
        };
        let Some(structure) = structure_at(context, ranges, pointer, cache_layout) else {
            caches.swapped.count_if_swapped(context, AddressRange::sized(pointer, cache_layout.bytes));
            continue;
        };
        if seen_pointers.insert(pointer) {
            caches.structures.push(pointer - layout::CHUNK_HEADER_BYTES);
            caches.lists.extend(structure.lists);
            if let Some(chunk) = structure.swapped_chunk {
                caches.swapped.count_if_swapped(context, chunk);
            }
        }
    }
    caches
}

/// Returns the distance of the pointer below the FS base for which most threads vote; of several
/// with equally many votes, the largest.
fn pointer_distance(
    context: &Context<'_>,
    ranges: &Ranges<'_>,
    cache_layout: &layout::ThreadCacheLayout,
    Search { storage_bytes, max_threads, needs_filled }: Search,
) -> Option<u64> {
    let mut votes = vec![Votes::default(); storage_bytes as usize / 8];
    let mut bytes = vec![0; storage_bytes as usize];
    for &fs_base in context.fs_bases.iter().take(max_threads) {
        if context.deadline_passed() {
            break;
        }
        read_storage(context, fs_base, &mut bytes);
        for (index, votes) in votes.iter_mut().enumerate() {
            let pointer =
                word_at(&bytes, 8 * index).filter(|pointer| pointer.is_multiple_of(layout::ALIGNMENT));
            let Some(pointer) = pointer.filter(|&pointer| pointer != 0) else { continue };
            let Some(structure) = structure_at(context, ranges, pointer, cache_layout) else { continue };
            let is_filled = !structure.lists.is_empty() || structure.swapped_chunk.is_some();
            votes.filled_caches += usize::from(is_filled);
            votes.all_caches += 1;
        }
    }
    let (index, most_votes) = votes.iter().enumerate().rev().max_by_key(|(_, votes)| **votes)?;
    let count = if needs_filled { most_votes.filled_caches } else { most_votes.all_caches };
    (count > 0).then_some(storage_bytes - 8 * index as u64)
}

/// Fills `bytes` with what is right below a thread's FS base: 0 where it is not resident.
fn read_storage(context: &Context<'_>, fs_base: u64, bytes: &mut [u8]) {
    bytes.fill(0);
    let Some(start) = fs_base.checked_sub(bytes.len() as u64) else { return };
    // Memory below the thread's own may be a file's: reading it would bring its pages in.
    for run in context.resident_runs((start, fs_base)) {
        if let Some(part) = bytes.get_mut((run.start - start) as usize..(run.end - start) as usize) {
            context.whole_memory.read_some(run.start, part);
        }
    }
}

/// Returns the threads' caches that may be swapped out, or whose pointers may be, where no thread's
/// cache shows the distance of the pointer; until the deadline.
fn swapped_caches(context: &Context<'_>, ranges: &Ranges<'_>, storage_bytes: u64) -> SwappedCaches {
    let mut swapped = SwappedCaches::default();
    // Without an arena, the program has another allocator.
    if context.swapped_mappings.is_empty() || ranges.is_empty() {
        return swapped;
    }
    let mut bytes = vec![0; storage_bytes as usize];
    for &fs_base in context.fs_bases {
        if context.deadline_passed() {
            break;
        }
        let start = fs_base.saturating_sub(storage_bytes);
        if swapped.count_if_swapped(context, AddressRange::new(start, fs_base)) {
            continue;
        }
        read_storage(context, fs_base, &mut bytes);
        let mut pointers = words_in(&bytes).filter(|pointer| pointer.is_multiple_of(layout::ALIGNMENT));
        if let Some(pointer) = pointers.find(|&pointer| may_be_swapped_out(context, pointer)) {
            swapped.count_if_swapped(context, AddressRange::sized(pointer, 8));
        }
    }
    swapped
}

/// Reads a word of memory that is resident.
fn resident_word(context: &Context<'_>, at: u64) -> Option<u64> {
    let end = at.checked_add(8)?;
    let is_resident = context.resident_runs((at, end)).iter().any(|run| run.start <= at && end <= run.end);
    if is_resident { context.whole_memory.read_word(at).ok() } else { None }
}

/// The lists of one cache.
#[derive(Default)]
struct Structure {
    /// Those that are not empty and whose first chunk can be read.
    lists: Vec<List>,
    /// First chunk of a list that may be swapped out, if there is one.
    swapped_chunk: Option<AddressRange>,
}

/// Returns the lists of the cache at `pointer`; `None` if it is not one.
fn structure_at(
    context: &Context<'_>,
    ranges: &Ranges<'_>,
    pointer: u64,
    cache_layout: &layout::ThreadCacheLayout,
) -> Option<Structure> {
    let memory = context.whole_memory;
    let chunk = pointer.checked_sub(layout::CHUNK_HEADER_BYTES)?;
    if !ranges.holds(chunk) {
        return None;
    }
    // malloc.c, request2size.
    let size = memory.read_word(chunk + layout::CHUNK_SIZE).ok()? & !layout::SIZE_BITS;
    let min_bytes = (cache_layout.bytes + layout::SIZE_WORD_BYTES).next_multiple_of(layout::ALIGNMENT);
    if !(min_bytes..=min_bytes + MAX_ROUNDING_BYTES).contains(&size) {
        return None;
    }
    let mut bytes = vec![0; cache_layout.bytes as usize];
    memory.read(pointer, &mut bytes).ok()?;
    // Counts have 16 bits each.
    let count_of = |bin: usize| Some(half_word_at(&bytes, 2 * (bin & !1))? >> (16 * (bin & 1)) & 0xffff);
    let empty_count = match cache_layout.counts {
        BinCounts::Entries => Some(0),
        BinCounts::EqualSlots => {
            let slots = (0..cache_layout.bins).filter_map(count_of).max();
            // Without slots nothing can be in a cache.
            Some(slots.filter(|&slots| slots > 0)?)
        }
        BinCounts::Unused => None,
    };
    let (mut structure, mut unmatched_counts) = (Structure::default(), 0);
    for bin in 0..cache_layout.bins {
        let head = word_at(&bytes, cache_layout.entries as usize + 8 * bin)?;
        let count = count_of(bin)?;
        // A thread that was stopped between the two stores of tcache_put or tcache_get leaves one
        // bin unmatched.
        if let Some(empty_count) = empty_count
            && (count == empty_count) != (head == 0)
        {
            unmatched_counts += 1;
            if count.abs_diff(empty_count) > 1 || unmatched_counts > 1 {
                return None;
            }
        }
        if head == 0 {
            continue;
        }
        let entry = head.checked_sub(layout::CHUNK_HEADER_BYTES)?;
        if entry.is_multiple_of(layout::ALIGNMENT) && may_be_swapped_out(context, entry) {
            structure.swapped_chunk.get_or_insert(AddressRange::sized(entry, layout::MIN_CHUNK_BYTES));
            continue;
        }
        if !ranges.holds(entry) {
            return None;
        }
        let size = memory.read_word(entry + layout::CHUNK_SIZE).ok()? & !layout::SIZE_BITS;
        let bin_chunk_bytes = layout::MIN_CHUNK_BYTES + layout::ALIGNMENT * bin as u64;
        let is_size_valid = if bin < layout::SMALL_THREAD_CACHE_BINS {
            size == bin_chunk_bytes
        } else {
            size >= layout::MIN_LARGE_BIN_BYTES
        };
        if !is_size_valid {
            return None;
        }
        structure.lists.push(List::thread_cache(head));
    }
    Some(structure)
}

#[cfg(test)]
mod tests {
    use super::*;
    use strandline_claims::range::RangePages;
    use strandline_process::map::AddressSpace;
    use strandline_process::memory::Memory;

    const START: u64 = 0x5555_0000_0000;
    const PAGE: AddressRange = AddressRange::sized(START, 4096);
    /// Index of the first word of a thread cache, after the header of its chunk.
    const CACHE: usize = 2;
    /// Index of a block of 24 bytes, the smallest.
    const BLOCK: usize = 100;
    /// Counts of four empty bins of 2.42.
    const EMPTY: u64 = 0x0007_0007_0007_0007;

    /// A page.
    struct Page([u64; 512]);

    impl Memory for Page {
        fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
            let Some(offset) = address.checked_sub(START).map(|offset| offset as usize) else { return 0 };
            for (byte, at) in buffer.iter_mut().zip(offset..) {
                *byte = self.0[at / 8].to_le_bytes()[at % 8];
            }
            buffer.len()
        }
    }

    #[test]
    fn large_bins_are_recognised_without_their_parameters() {
        let pages = RangePages::new(PAGE, [PAGE]);
        let ranges = Ranges::new([(PAGE, &pages)].into_iter());
        let cache_layout = layout::LARGE_THREAD_CACHE;
        // The caches and the number of their lists, by the counts of the first four bins and of the
        // others.
        let found = |first_counts: u64, counts: u64| {
            let mut page = Page([0; 512]);
            page.0[CACHE - 1] = (cache_layout.bytes + layout::SIZE_WORD_BYTES) | layout::PREV_INUSE;
            page.0[BLOCK - 1] = layout::MIN_CHUNK_BYTES | layout::PREV_INUSE;
            let first_list = CACHE + cache_layout.entries as usize / 8;
            page.0[CACHE..first_list].fill(counts);
            page.0[CACHE] = first_counts;
            page.0[first_list] = START + 8 * BLOCK as u64;
            // The thread-local pointer to the cache.
            page.0[511] = START + 8 * CACHE as u64;
            let (space, _) = AddressSpace::parse(b"");
            let all_resident = |range: AddressRange| vec![range];
            let context =
                Context { fs_bases: &[PAGE.end], ..Context::of_image(&page, &space, &all_resident) };
            let caches = find(&context, &ranges, false);
            (caches.structures, caches.lists.len())
        };
        assert_eq!(found(EMPTY - 3, EMPTY), (vec![START], 1));
        assert_eq!(found(EMPTY, EMPTY), (vec![START], 1), "tcache_put");
        assert_eq!(found(0, 0), (vec![], 0), "a program's structure with a pointer");
        assert_eq!(found(EMPTY - 3, EMPTY + 1), (vec![], 0), "other counts");
    }

    #[test]
    fn a_cache_that_may_be_swapped_out_is_noted() {
        let (cache_page, storage) = (PAGE, AddressRange::sized(START + 4096, 4096));
        let ranges_pages = RangePages::new(PAGE, [PAGE]);
        let ranges = Ranges::new([(PAGE, &ranges_pages)].into_iter());
        let (space, _) = AddressSpace::parse(b"");
        // The word before the FS base points to the page with the cache, which is missing or whose
        // storage is.
        let caveat = |missing: AddressRange, swapped: &[AddressRange]| {
            let mut words = [0; 512];
            words[511] = START + 8 * CACHE as u64;
            let memory = Storage(Page(words));
            let runs = |range: AddressRange| {
                let pages = [cache_page, storage].into_iter().filter(|page| *page != missing);
                pages.map(|page| page.intersection(range)).filter(|run| !run.is_empty()).collect()
            };
            let context = Context {
                fs_bases: &[storage.end],
                swapped_mappings: swapped,
                ..Context::of_image(&memory, &space, &runs)
            };
            let caches = find(&context, &ranges, false);
            assert_eq!(caches.structures, Vec::<u64>::new());
            caches.swapped.caveat(&super::super::ABOUT).map(|caveat| (caveat.code, caveat.place))
        };
        let code = "glibc_cache_swapped".to_owned();
        let (cache, start) = (START + 8 * CACHE as u64, storage.start);
        assert_eq!(caveat(cache_page, &[cache_page]), Some((code.clone(), format!("{cache:#x}"))));
        assert_eq!(caveat(storage, &[storage]), Some((code, format!("{start:#x}"))));
        assert_eq!(caveat(storage, &[cache_page]), None, "it was never written");
    }

    #[test]
    fn a_list_that_begins_in_swapped_memory_is_noted() {
        let pages = RangePages::new(PAGE, [PAGE]);
        let ranges = Ranges::new([(PAGE, &pages)].into_iter());
        let swapped = AddressRange::sized(PAGE.end, 4096);
        let mut page = Page([0; 512]);
        page.0[CACHE - 1] = (layout::THREAD_CACHE.bytes + 16) | layout::PREV_INUSE;
        page.0[BLOCK - 1] = layout::MIN_CHUNK_BYTES | layout::PREV_INUSE;
        // Two lists of one block: one in this page, one in the page that is missing.
        page.0[CACHE] = 1 | 1 << 16;
        let first_list = CACHE + layout::THREAD_CACHE.entries as usize / 8;
        page.0[first_list] = START + 8 * BLOCK as u64;
        page.0[first_list + 1] = swapped.start + layout::CHUNK_HEADER_BYTES;
        page.0[511] = START + 8 * CACHE as u64;
        let (space, _) = AddressSpace::parse(b"");
        let runs = |range: AddressRange| {
            let run = range.intersection(PAGE);
            if run.is_empty() { Vec::new() } else { vec![run] }
        };
        let context = Context {
            fs_bases: &[PAGE.end],
            swapped_mappings: &[swapped],
            ..Context::of_image(&page, &space, &runs)
        };
        let caches = find(&context, &ranges, false);
        assert_eq!((caches.structures, caches.lists.len()), (vec![START], 1));
        let caveat = caches.swapped.caveat(&super::super::ABOUT);
        assert_eq!(caveat.map(|caveat| caveat.place), Some(format!("{:#x}", swapped.start)));
    }

    /// A page behind the first one.
    struct Storage(Page);

    impl Memory for Storage {
        fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
            if address < START + 4096 { 0 } else { self.0.read_some(address - 4096, buffer) }
        }
    }

    #[test]
    fn a_cache_with_a_half_stored_bin_is_read() {
        let pages = RangePages::new(PAGE, [PAGE]);
        let ranges = Ranges::new([(PAGE, &pages)].into_iter());
        // The number of lists, by the counts of the first two bins and the list of the first one.
        let lists = |counts: [u64; 2], has_list: bool| {
            let mut page = Page([0; 512]);
            page.0[CACHE - 1] = (layout::THREAD_CACHE.bytes + 16) | layout::PREV_INUSE;
            page.0[BLOCK - 1] = layout::MIN_CHUNK_BYTES | layout::PREV_INUSE;
            page.0[CACHE] = counts[0] | counts[1] << 16;
            let first_list = CACHE + layout::THREAD_CACHE.entries as usize / 8;
            page.0[first_list] = if has_list { START + 8 * BLOCK as u64 } else { 0 };
            let cache = START + 8 * CACHE as u64;
            let (space, _) = AddressSpace::parse(b"");
            let all_resident = |range: AddressRange| vec![range];
            let context = Context::of_image(&page, &space, &all_resident);
            let structure = structure_at(&context, &ranges, cache, &layout::THREAD_CACHE);
            structure.map(|structure| structure.lists.len())
        };
        assert_eq!(lists([1, 0], true), Some(1));
        assert_eq!(lists([0, 0], true), Some(1), "tcache_put");
        assert_eq!(lists([1, 0], false), Some(0), "tcache_get");
        assert_eq!(lists([1, 1], false), None, "two bins");
        assert_eq!(lists([2, 0], false), None, "no count that one store leaves");
    }
}
