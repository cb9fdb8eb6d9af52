//! Finds and reads the arrays of arena objects.
//!
//! The variable that points to an array is static and has no symbol in stripped files; from 3.12 on
//! it is in an interpreter's state. An array is recognized by its content: each entry is free, or
//! describes an arena whose first pool holds the index of the entry.

use std::collections::BTreeSet;
use std::time::Instant;

use super::layout::{
    ARENA_ADDRESS, ARENA_FREE_POOL_COUNT, ARENA_FREE_POOLS, ARENA_NEXT, ARENA_OBJECT_BYTES,
    ARENA_POOL_ADDRESS, ARENA_POOL_COUNT, ArenaSizes, POOL_ARENA, POOL_COUNT, POOL_HEADER_BYTES, POOL_NEXT,
    Release, SHAPES,
};
use super::locate::Program;
use crate::batch::PageCache;
use strandline_claims::runtime::Context;
use strandline_claims::words::{self, READ_BYTES, each_word};
use strandline_process::memory::{Memory, half_word_at, word_at};
use strandline_process::pages::USER_ADDRESS_END;
use strandline_process::range::{AddressRange, RangeSet};

/// Words searched between two checks of the deadline.
const WORDS_PER_DEADLINE_CHECK: u64 = 1 << 16;
/// Limit on words tried as the address of an array, per program.
const MAX_TRIED: usize = 1 << 17;
/// Limit on arenas: 4 TiB.
const MAX_ARENAS: u64 = 1 << 22;
/// Limit on interpreters of one program.
const MAX_INTERPRETERS: usize = 4096;
/// Limit on consecutive invalid entries: more are beyond the end of the array.
const MAX_INVALID: usize = 4;
/// Bytes searched of an interpreter's state; the largest known state has 383,552.
pub const MAX_STATE_BYTES: u64 = 512 << 10;
/// Bytes searched of each structure that a state points to (`struct _obmalloc_state`).
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
    pub untouched: u64,
    /// Free pools, including those never handed out.
    pub free_count: u64,
    /// First pool of its list of free pools; these were handed out before.
    pub first_free: u64,
}

/// Arenas of one allocator, which several interpreters may share.
#[derive(Clone, Debug)]
pub struct Arenas {
    /// Address of the array.
    pub array: u64,
    /// Sizes of its arenas and pools.
    pub sizes: ArenaSizes,
    /// The arenas, in address order.
    pub all: Vec<Arena>,
    /// Addresses of invalid entries between valid ones.
    pub invalid_entries: Vec<u64>,
}

/// Finds the arenas of `program`, whose `interpreters` have these states, and returns whether there
/// was time to try every candidate.
pub fn find(
    context: &Context<'_>,
    memory: &dyn Memory,
    program: &Program,
    interpreters: &[u64],
) -> (Vec<Arenas>, bool) {
    let mut pages = PageCache::new(memory);
    let mut words = BTreeSet::new();
    add_words(context, memory, program.data, &mut words);
    let mut found: Vec<Arenas> = Vec::new();
    let mut is_done = add_arrays(context, &mut pages, &words, &mut found);
    // Interpreters with their own allocator hold it in their state, or point to it from there.
    let mut state_words = BTreeSet::new();
    for &state in interpreters {
        if Instant::now() >= context.deadline {
            return (found, false);
        }
        let range = AddressRange::sized(state, MAX_STATE_BYTES);
        if context.space.find(state).is_some_and(words::is_mapped_memory) {
            add_words(context, memory, range, &mut state_words);
        }
    }
    // Words of a state point to addresses close together: overlapping ranges are read once.
    let pointed_to = state_words.iter().filter(|word| !words.contains(word));
    let pointed_to: RangeSet = pointed_to.map(|&word| AddressRange::sized(word, OBMALLOC_BYTES)).collect();
    for range in pointed_to {
        add_words(context, memory, range, &mut state_words);
    }
    state_words.retain(|word| !words.contains(word));
    is_done &= add_arrays(context, &mut pages, &state_words, &mut found);
    (found, is_done)
}

/// Adds the words of a range that could point to an array, until the deadline.
fn add_words(context: &Context<'_>, memory: &dyn Memory, range: AddressRange, words: &mut BTreeSet<u64>) {
    let mut tried = 0_u64;
    each_word(memory, context.resident, range, READ_BYTES, &mut |_, word| {
        let is_aligned_address = word.is_multiple_of(16) && word < USER_ADDRESS_END;
        if is_aligned_address && context.space.find(word).is_some_and(words::is_mapped_memory) {
            words.insert(word);
        }
        tried += 1;
        let has_time = !tried.is_multiple_of(WORDS_PER_DEADLINE_CHECK) || Instant::now() < context.deadline;
        has_time && words.len() < MAX_TRIED
    });
}

/// Interpreters of a program.
#[derive(Debug, Default)]
pub struct InterpreterStates {
    /// Addresses of their states, including the one in static data.
    pub all: Vec<u64>,
    /// Whether their list was read to its end.
    pub is_whole: bool,
}

/// Returns the states of the interpreters.
pub fn interpreters(memory: &dyn Memory, program: &Program, release: &Release) -> InterpreterStates {
    let mut states = InterpreterStates::default();
    let Some(list) = program.interpreters(memory, release) else { return states };
    let mut next = Some(list.first);
    let mut pages = PageCache::new(memory);
    while let Some(at) = next.filter(|&at| at != 0) {
        if states.all.len() >= MAX_INTERPRETERS || states.all.contains(&at) {
            return states;
        }
        states.all.push(at);
        next = pages.word(at.wrapping_add(list.next_offset));
    }
    states.is_whole = next.is_some();
    states
}

/// Adds the arrays that `words`, in address order, point to; of several words into one array, the
/// first points to its start. False if the deadline passed: then arrays may be missing.
fn add_arrays(
    context: &Context<'_>,
    pages: &mut PageCache<'_>,
    words: &BTreeSet<u64>,
    found: &mut Vec<Arenas>,
) -> bool {
    let mut previous_end = 0;
    for &word in words {
        if Instant::now() >= context.deadline {
            return false;
        }
        if word < previous_end {
            continue;
        }
        for shape in SHAPES {
            let Some((mut arenas, end)) = read_array(context, pages, word, shape) else { continue };
            arenas.all.sort_unstable_by_key(|arena| arena.start);
            let all = &arenas.all;
            let is_apart = all.windows(2).all(|pair| pair[0].end <= pair[1].start);
            let claimed: RangeSet =
                found.iter().flat_map(|other| &other.all).map(|other| (other.start, other.end)).collect();
            let is_new = |arena: &Arena| !claimed.overlaps((arena.start, arena.end));
            if is_apart && all.iter().all(is_new) {
                previous_end = end;
                found.push(arenas);
                break;
            }
        }
    }
    true
}

/// Returns the arenas of the array at `array`, and its end; `None` if it is not an array.
fn read_array(
    context: &Context<'_>,
    pages: &mut PageCache<'_>,
    array: u64,
    shape: ArenaSizes,
) -> Option<(Arenas, u64)> {
    let mut arenas = Arenas { array, sizes: shape, all: Vec::new(), invalid_entries: Vec::new() };
    // Invalid entries not yet followed by a valid one: they may be beyond the end.
    let mut doubtful = Vec::new();
    // Number of entries that end the list of unused entries: one does.
    let mut list_ends = 0;
    let mut index = 0;
    while index < MAX_ARENAS {
        let at = array.checked_add(index * ARENA_OBJECT_BYTES)?;
        let Some(entry) = pages.array::<{ ARENA_OBJECT_BYTES as usize }>(at) else { break };
        if let Some(arena) = read_arena(context, pages, index as u32, &entry, shape) {
            arenas.invalid_entries.append(&mut doubtful);
            arenas.all.push(arena);
        } else if !is_unused(array, &entry, &mut list_ends) {
            doubtful.push(at);
            if doubtful.len() > MAX_INVALID || arenas.all.is_empty() {
                break;
            }
        }
        index += 1;
    }
    let last = u64::from(arenas.all.last()?.index);
    Some((arenas, array + (last + 1) * ARENA_OBJECT_BYTES))
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
    shape: ArenaSizes,
) -> Option<Arena> {
    let start = word_at(entry, ARENA_ADDRESS)?;
    let end = start.checked_add(shape.arena_bytes).filter(|&end| end < USER_ADDRESS_END)?;
    let first_pool = start.next_multiple_of(shape.pool_bytes);
    let pool_count = (end - first_pool) / shape.pool_bytes;
    let untouched = word_at(entry, ARENA_POOL_ADDRESS)?;
    let free_count = u64::from(half_word_at(entry, ARENA_FREE_POOL_COUNT)?);
    let is_valid = start.is_multiple_of(16)
        && half_word_at(entry, ARENA_POOL_COUNT) == Some(pool_count as u32)
        && free_count <= pool_count
        && untouched.is_multiple_of(shape.pool_bytes)
        // At least one pool was handed out.
        && (first_pool + shape.pool_bytes..=first_pool + pool_count * shape.pool_bytes).contains(&untouched)
        && words::is_process_memory(context.space, start, end);
    let first_free = word_at(entry, ARENA_FREE_POOLS)?;
    if !is_valid {
        return None;
    }
    let arena = Arena { index, start, end, first_pool, pool_count, untouched, free_count, first_free };
    // The page of the first pool may be swapped out.
    let header: Option<[u8; POOL_HEADER_BYTES as usize]> = pages.array(first_pool);
    let belongs_to_entry = match header {
        Some(header) => half_word_at(&header, POOL_ARENA) == Some(index),
        None => {
            context.resident_runs((first_pool, first_pool + POOL_HEADER_BYTES)).is_empty()
                && !context.resident_runs((start, end)).is_empty()
        }
    };
    belongs_to_entry.then_some(arena)
}

impl Arena {
    /// Returns the free pools that were handed out before; `None` if their list is invalid.
    pub fn free_pools(&self, pages: &mut PageCache<'_>, shape: ArenaSizes) -> Option<Vec<u64>> {
        let untouched_bytes = self.first_pool + self.pool_count * shape.pool_bytes - self.untouched;
        let listed = self.free_count.checked_sub(untouched_bytes / shape.pool_bytes)?;
        let mut free = Vec::new();
        let mut at = self.first_free;
        while at != 0 {
            let is_pool = (self.first_pool..self.untouched).contains(&at)
                && (at - self.first_pool).is_multiple_of(shape.pool_bytes)
                && (free.len() as u64) < listed;
            let header: [u8; POOL_HEADER_BYTES as usize] =
                if is_pool { pages.array(at)? } else { return None };
            if half_word_at(&header, POOL_COUNT) != Some(0) {
                return None;
            }
            free.push(at);
            at = word_at(&header, POOL_NEXT)?;
        }
        free.sort_unstable();
        (free.len() as u64 == listed).then_some(free)
    }
}
