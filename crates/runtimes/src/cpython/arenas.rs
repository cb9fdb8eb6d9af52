//! Finds and reads the arrays of arena objects.
//!
//! The variable that points to an array is static and has no symbol in stripped files; from 3.12 on
//! it is in an interpreter's state. An array is recognised by its content: each entry is free, or
//! describes an arena whose first pool holds the index of the entry.

use std::collections::BTreeSet;
use std::time::Instant;

use super::layout::{
    ARENA_ADDRESS, ARENA_FREE_POOL_COUNT, ARENA_FREE_POOLS, ARENA_NEXT, ARENA_OBJECT_BYTES,
    ARENA_POOL_ADDRESS, ARENA_POOL_COUNT, ARENA_SIZES, ArenaSizes, POOL_ARENA, POOL_COUNT, POOL_HEADER_BYTES,
    POOL_NEXT, Release,
};
use super::locate::Program;
use crate::batch::PageCache;
use strandline_claims::runtime::Context;
use strandline_claims::words::{self, each_word_until};
use strandline_process::memory::{Memory, half_word_at, word_at};
use strandline_process::pages::USER_ADDRESS_END;
use strandline_process::range::{AddressRange, RangeSet};

/// Limit on the words of static data, and on those of interpreters' states, that are tried as the
/// address of an array. Three interpreters' states have more: beyond the limit, a word of a state
/// is tried only if the length of an array follows it.
const MAX_CANDIDATES: usize = 1 << 17;
/// Limit on all words of interpreters' states that are tried.
const MAX_STATE_CANDIDATES: usize = 2 * MAX_CANDIDATES;
/// Entries of the smallest array (`INITIAL_ARENA_OBJECTS` in `Objects/obmalloc.c`); a larger one
/// has twice as many each time.
const MIN_ARRAY_LENGTH: u32 = 16;
/// Limit on entries of an array: 1 TiB of the smallest arenas.
const MAX_ARENAS: u64 = 1 << 22;
/// Limit on interpreters of one program.
const MAX_INTERPRETERS: usize = 4096;
/// Limit on consecutive invalid entries: more are beyond the end of the array.
const MAX_INVALID: usize = 4;
/// Entries between two checks of the deadline.
const ENTRIES_PER_DEADLINE_CHECK: u64 = 4096;
/// Bytes searched of an interpreter's state; the largest known state has 383,552.
pub const MAX_STATE_BYTES: u64 = 512 << 10;
/// Bytes searched of each structure that a state points to: `mgmt.arenas` of a `struct
/// _obmalloc_state` is among them.
const OBMALLOC_BYTES: u64 = 8 << 10;

/// An allocated arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arena {
    /// Index in the array.
    pub index: u32,
    /// First byte.
    pub start: u64,
    /// End address (exclusive).
    pub end: u64,
    /// Address of its first pool.
    pub first_pool: u64,
    /// Number of pools.
    pub pool_count: u64,
    /// Start of the pools that were never handed out.
    pub untouched_start: u64,
    /// Free pools, including those never handed out.
    pub free_pool_count: u64,
    /// First pool of its list of free pools; these were handed out before.
    pub first_free_pool: u64,
}

/// Arenas of one allocator, which several interpreters may share.
#[derive(Clone, Debug)]
pub struct ArenaSet {
    /// Address of the array.
    pub array: u64,
    /// Address behind its last entry with an arena.
    array_end: u64,
    /// Sizes of its arenas and pools.
    pub sizes: ArenaSizes,
    /// The arenas, in address order.
    pub arenas: Vec<Arena>,
    /// Addresses of invalid entries between valid ones.
    pub invalid_entries: Vec<u64>,
}

/// The arenas of a program.
#[derive(Debug, Default)]
pub struct FoundArenas {
    pub sets: Vec<ArenaSet>,
    /// Whether the deadline passed before every candidate was tried.
    pub is_late: bool,
    /// Whether there were more candidates than are tried.
    pub is_cut: bool,
}

/// Finds the arenas of `program`, whose `interpreters` have these states.
pub fn find(
    context: &Context<'_>,
    memory: &dyn Memory,
    program: &Program,
    interpreters: &[u64],
) -> FoundArenas {
    let mut pages = PageCache::new(memory);
    let mut words = BTreeSet::new();
    add_words(context, memory, program.data, &mut words);
    let mut found = FoundArenas { is_cut: words.len() >= MAX_CANDIDATES, ..FoundArenas::default() };
    add_arrays(context, &mut pages, &words, &mut found);
    // Interpreters with their own allocator hold it in their state, or point to it from there.
    let mut state_words = BTreeSet::new();
    for &state in interpreters {
        if Instant::now() >= context.deadline {
            found.is_late = true;
            return found;
        }
        let range = AddressRange::sized(state, MAX_STATE_BYTES);
        if context.space.find(state).is_some_and(words::is_mapped_memory) {
            add_state_words(context, memory, range, &mut state_words);
        }
    }
    // Words of a state point to addresses close together: overlapping ranges are read once.
    let pointed_to = state_words.iter().filter(|word| !words.contains(word));
    let pointed_to: RangeSet = pointed_to.map(|&word| AddressRange::sized(word, OBMALLOC_BYTES)).collect();
    for range in pointed_to {
        add_state_words(context, memory, range, &mut state_words);
    }
    // The main interpreter's allocator is in static data.
    found.is_cut |= interpreters.len() > 1 && state_words.len() >= MAX_STATE_CANDIDATES;
    state_words.retain(|word| !words.contains(word));
    add_arrays(context, &mut pages, &state_words, &mut found);
    found
}

/// Adds the words of a range that could point to an array, until the deadline.
fn add_words(context: &Context<'_>, memory: &dyn Memory, range: AddressRange, words: &mut BTreeSet<u64>) {
    each_word_until(memory, context.resident_runs(range), context.deadline, &mut |_, word| {
        if may_be_array(context, word) {
            words.insert(word);
        }
        words.len() < MAX_CANDIDATES
    });
}

/// Like [`add_words`], for the state of an interpreter and what it points to. Beyond
/// [`MAX_CANDIDATES`], adds only words that the length of an array follows, as in `struct
/// _obmalloc_mgmt` (`Include/internal/pycore_obmalloc.h`, 3.12 to 3.14: `arenas`, `maxarenas`).
fn add_state_words(
    context: &Context<'_>,
    memory: &dyn Memory,
    range: AddressRange,
    words: &mut BTreeSet<u64>,
) {
    let (mut previous_at, mut previous_word) = (0, 0);
    each_word_until(memory, context.resident_runs(range), context.deadline, &mut |at, word| {
        if words.len() < MAX_CANDIDATES {
            if may_be_array(context, word) {
                words.insert(word);
            }
        } else if at == previous_at + 8
            && is_array_length(word as u32)
            && may_be_array(context, previous_word)
        {
            words.insert(previous_word);
        }
        (previous_at, previous_word) = (at, word);
        words.len() < MAX_STATE_CANDIDATES
    });
}

/// Whether a word could point to an array.
fn may_be_array(context: &Context<'_>, word: u64) -> bool {
    let is_aligned_address = word.is_multiple_of(16) && word < USER_ADDRESS_END;
    is_aligned_address && context.space.find(word).is_some_and(words::is_mapped_memory)
}

/// Whether an array could have this length.
fn is_array_length(length: u32) -> bool {
    length.is_power_of_two() && length >= MIN_ARRAY_LENGTH && u64::from(length) <= MAX_ARENAS
}

/// Interpreters of a program.
#[derive(Debug, Default)]
pub struct InterpreterStates {
    /// Addresses of their states, including the one in static data.
    pub addresses: Vec<u64>,
    /// Whether their list was read to its end.
    pub is_whole: bool,
}

/// Follows the list of a program's interpreters.
pub fn interpreters(memory: &dyn Memory, program: &Program, release: &Release) -> InterpreterStates {
    let mut states = InterpreterStates::default();
    let Some(list) = program.interpreters(memory, release) else { return states };
    let mut next = Some(list.first);
    let mut pages = PageCache::new(memory);
    while let Some(at) = next.filter(|&at| at != 0) {
        if states.addresses.len() >= MAX_INTERPRETERS || states.addresses.contains(&at) {
            return states;
        }
        states.addresses.push(at);
        next = pages.word(at.wrapping_add(list.next_offset));
    }
    states.is_whole = next.is_some();
    states
}

/// Adds the arrays that `words`, in address order, point to; of several words into one array, the
/// first points to its start.
fn add_arrays(
    context: &Context<'_>,
    pages: &mut PageCache<'_>,
    words: &BTreeSet<u64>,
    found: &mut FoundArenas,
) {
    let mut known_ranges: RangeSet =
        found.sets.iter().flat_map(|set| &set.arenas).map(Arena::range).collect();
    let mut previous_end = 0;
    for &word in words {
        if Instant::now() >= context.deadline {
            found.is_late = true;
            return;
        }
        if word < previous_end {
            continue;
        }
        for sizes in ARENA_SIZES {
            let Some(arena_set) = read_array(context, pages, word, sizes) else { continue };
            let members = &arena_set.arenas;
            let is_apart = members.windows(2).all(|pair| pair[0].end <= pair[1].start);
            let is_new = |arena: &Arena| !known_ranges.overlaps(arena.range());
            if is_apart && members.iter().all(is_new) {
                known_ranges.extend(members.iter().map(Arena::range));
                previous_end = arena_set.array_end;
                found.sets.push(arena_set);
                break;
            }
        }
    }
}

/// Returns the arenas of the array at `array`; `None` if it is not an array.
fn read_array(
    context: &Context<'_>,
    pages: &mut PageCache<'_>,
    array: u64,
    sizes: ArenaSizes,
) -> Option<ArenaSet> {
    let (mut arenas, mut invalid_entries) = (Vec::<Arena>::new(), Vec::new());
    // Invalid entries not yet followed by a valid one: they may be beyond the end.
    let mut trailing_invalid = Vec::new();
    // Number of entries so far that end the list of unused entries: an array has at most one.
    let mut list_ends = 0;
    let mut index = 0;
    while index < MAX_ARENAS {
        let at = array.checked_add(index * ARENA_OBJECT_BYTES)?;
        if index.is_multiple_of(ENTRIES_PER_DEADLINE_CHECK) && Instant::now() >= context.deadline {
            break;
        }
        let Some(entry) = pages.array::<{ ARENA_OBJECT_BYTES as usize }>(at) else {
            // The array goes on behind the last arena: the page of the entry is swapped out.
            if index < least_length(arenas.last()?.index) {
                invalid_entries.push(at);
            }
            break;
        };
        if let Some(arena) = read_arena(context, pages, index as u32, &entry, sizes) {
            invalid_entries.append(&mut trailing_invalid);
            arenas.push(arena);
        } else if !is_unused(array, &entry, &mut list_ends) {
            trailing_invalid.push(at);
            if trailing_invalid.len() > MAX_INVALID || arenas.is_empty() {
                break;
            }
        }
        index += 1;
    }
    let array_end = array + (u64::from(arenas.last()?.index) + 1) * ARENA_OBJECT_BYTES;
    arenas.sort_unstable_by_key(|arena| arena.start);
    Some(ArenaSet { array, array_end, sizes, arenas, invalid_entries })
}

/// The least length of an array that has an entry with this index.
fn least_length(index: u32) -> u64 {
    (u64::from(index) + 1).next_power_of_two().max(MIN_ARRAY_LENGTH.into())
}

/// Whether an entry is unused: it has no address, and links to another entry or, as the only one,
/// ends the list.
fn is_unused(array: u64, entry: &[u8], list_ends: &mut u64) -> bool {
    let (Some(0), Some(next)) = (word_at(entry, ARENA_ADDRESS), word_at(entry, ARENA_NEXT)) else {
        return false;
    };
    if next == 0 {
        *list_ends += 1;
        return *list_ends == 1;
    }
    let offset = next.wrapping_sub(array);
    offset.is_multiple_of(ARENA_OBJECT_BYTES) && offset / ARENA_OBJECT_BYTES < MAX_ARENAS
}

/// Returns the arena that an entry describes; `None` if it describes none.
fn read_arena(
    context: &Context<'_>,
    pages: &mut PageCache<'_>,
    index: u32,
    entry: &[u8],
    sizes: ArenaSizes,
) -> Option<Arena> {
    let start = word_at(entry, ARENA_ADDRESS)?;
    let end = start.checked_add(sizes.arena_bytes).filter(|&end| end < USER_ADDRESS_END)?;
    let first_pool = start.next_multiple_of(sizes.pool_bytes);
    let pool_count = (end - first_pool) / sizes.pool_bytes;
    let pools_end = first_pool + pool_count * sizes.pool_bytes;
    let untouched_start = word_at(entry, ARENA_POOL_ADDRESS)?;
    let free_pool_count = u64::from(half_word_at(entry, ARENA_FREE_POOL_COUNT)?);
    let is_valid = start.is_multiple_of(16)
        && half_word_at(entry, ARENA_POOL_COUNT) == Some(pool_count as u32)
        && free_pool_count <= pool_count
        && untouched_start.is_multiple_of(sizes.pool_bytes)
        // At least one pool was handed out.
        && (first_pool + sizes.pool_bytes..=pools_end).contains(&untouched_start)
        && words::is_process_memory(context.space, start, end);
    let first_free_pool = word_at(entry, ARENA_FREE_POOLS)?;
    if !is_valid {
        return None;
    }
    let arena = Arena {
        index,
        start,
        end,
        first_pool,
        pool_count,
        untouched_start,
        free_pool_count,
        first_free_pool,
    };
    let header: Option<[u8; POOL_HEADER_BYTES as usize]> = pages.array(first_pool);
    let belongs_to_entry = match header {
        Some(header) => half_word_at(&header, POOL_ARENA) == Some(index),
        // The first pool, or all of the arena, is swapped out.
        None => context.resident_runs((first_pool, first_pool + POOL_HEADER_BYTES)).is_empty(),
    };
    belongs_to_entry.then_some(arena)
}

impl Arena {
    /// Its addresses.
    pub fn range(&self) -> AddressRange {
        AddressRange::new(self.start, self.end)
    }

    /// Returns the free pools that were handed out before; `None` if their list is invalid.
    pub fn free_pools(&self, pages: &mut PageCache<'_>, sizes: ArenaSizes) -> Option<Vec<u64>> {
        let untouched_bytes = self.first_pool + self.pool_count * sizes.pool_bytes - self.untouched_start;
        let listed_count = self.free_pool_count.checked_sub(untouched_bytes / sizes.pool_bytes)?;
        let mut free_pools = Vec::new();
        let mut at = self.first_free_pool;
        while at != 0 {
            let is_pool = (self.first_pool..self.untouched_start).contains(&at)
                && (at - self.first_pool).is_multiple_of(sizes.pool_bytes)
                && (free_pools.len() as u64) < listed_count;
            let header: [u8; POOL_HEADER_BYTES as usize] =
                if is_pool { pages.array(at)? } else { return None };
            if half_word_at(&header, POOL_COUNT) != Some(0) {
                return None;
            }
            free_pools.push(at);
            at = word_at(&header, POOL_NEXT)?;
        }
        free_pools.sort_unstable();
        (free_pools.len() as u64 == listed_count).then_some(free_pools)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strandline_process::map::AddressSpace;
    use strandline_process::procfs::Process;

    /// Start of [`State`].
    const START: u64 = 0x1000_0000;
    /// Place of the length of an array in [`State`].
    const LENGTH_AT: u64 = START + 48 * MAX_CANDIDATES as u64 + 8;

    /// Memory in which each word is its own address, but for an array's length.
    struct State;

    impl Memory for State {
        fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
            for (at, word) in (address..).step_by(8).zip(buffer.chunks_mut(8)) {
                let value = if at == LENGTH_AT { 64 } else { at };
                word.copy_from_slice(&value.to_le_bytes()[..word.len()]);
            }
            buffer.len()
        }
    }

    #[test]
    fn arrays_have_the_lengths_of_obmalloc() {
        assert_eq!([0, 15, 16, 84].map(least_length), [16, 16, 32, 128]);
    }

    #[test]
    fn arrays_behind_many_other_words_of_states_are_found() {
        let (space, _) = AddressSpace::parse(b"10000000-20000000 rw-p 00000000 00:00 0\n");
        let process = Process::open(std::process::id().cast_signed()).unwrap();
        let resident = |range: AddressRange| vec![range];
        let context = Context::of_image(&State, &process, &space, &resident);
        let (mut first, mut all) = (BTreeSet::new(), BTreeSet::new());
        let range = AddressRange::sized(START, 64 * MAX_CANDIDATES as u64);
        add_words(&context, &State, range, &mut first);
        add_state_words(&context, &State, range, &mut all);
        assert_eq!(first.len(), MAX_CANDIDATES);
        assert_eq!(all.difference(&first).copied().collect::<Vec<_>>(), [LENGTH_AT - 8]);
    }
}
