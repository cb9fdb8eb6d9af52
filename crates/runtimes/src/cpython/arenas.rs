//! Finds the arrays of arena objects, and reads them.
//!
//! The variable that leads to one is static and has no symbol in stripped files; from 3.12 on it is in an interpreter's state. It is told
//! by what it leads to: entries of which each stands for an arena whose first pool says that it is that entry's, or is free.

use std::collections::BTreeSet;

use super::layout::{
    ARENA_OBJECT_BYTES, POOL_ARENA, POOL_COUNT, POOL_HEADER_BYTES, POOL_NEXT, Release, SHAPES, Shape,
};
use super::locate::Program;
use crate::batch::Pages;
use strandline_claims::allocator::overlapping;
use strandline_claims::range::merge;
use strandline_claims::runtime::Context;
use strandline_claims::words::{self, AT_ONCE, each_word};
use strandline_process::memory::{Memory, half_word_at, word_at};

/// Words that are followed, of one program.
const MAX_TRIED: usize = 1 << 17;
/// Arenas: 4 TiB of them.
const MAX_ARENAS: u64 = 1 << 22;
/// Interpreters of one program.
const MAX_INTERPRETERS: usize = 4096;
/// Entries in a row that make no sense: more are no array's.
const MAX_BROKEN: usize = 4;
/// Bytes of an interpreter's state that are searched; of the largest that is known there are 383,552.
pub const MAX_STATE_BYTES: u64 = 512 << 10;
/// Of a state that is searched for another, so many bytes of what it leads to (`struct _obmalloc_state`).
const OBMALLOC_BYTES: u64 = 8 << 10;

/// An arena that is allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arena {
    /// Its number.
    pub index: u32,
    /// First byte.
    pub start: u64,
    /// First byte behind.
    pub end: u64,
    /// Where its first pool begins.
    pub pools: u64,
    /// Pools that it has.
    pub total: u64,
    /// Where what was never given out begins.
    pub virgin: u64,
    /// Pools that are free, those never given out among them.
    pub free: u64,
    /// The first of its free pools that were given out before.
    pub first_free: u64,
}

/// The arenas of one allocator: all interpreters that share it.
#[derive(Clone, Debug)]
pub struct Arenas {
    /// Where the array of them is.
    pub array: u64,
    /// How they are cut.
    pub shape: Shape,
    /// In address order.
    pub all: Vec<Arena>,
    /// Entries between those of arenas that make no sense.
    pub broken: Vec<u64>,
}

/// Finds those of `program` in `memory`; and whether the time was enough to look at all that could lead to one.
pub fn find(
    context: &Context<'_>,
    memory: &dyn Memory,
    program: &Program,
    release: &Release,
) -> (Vec<Arenas>, bool) {
    let mut pages = Pages::new(memory);
    let mut words = BTreeSet::new();
    add_words(context, memory, program.data, &mut words);
    let mut found: Vec<Arenas> = Vec::new();
    let mut is_done = arrays(context, &mut pages, &words, &mut found);
    // Interpreters with an allocator of their own have it in their states, or lead to it from there.
    let mut states = BTreeSet::new();
    for state in interpreters(memory, program, release) {
        let range = (state, state.saturating_add(MAX_STATE_BYTES));
        if context.space.find(state).is_some_and(words::is_mapped_memory) {
            add_words(context, memory, range, &mut states);
        }
    }
    // Words of a state lead to places close together: what they share is read once.
    let beside = states.iter().filter(|state| !words.contains(state));
    let mut beside: Vec<_> = beside.map(|&state| (state, state.saturating_add(OBMALLOC_BYTES))).collect();
    merge(&mut beside);
    for range in beside {
        add_words(context, memory, range, &mut states);
    }
    states.retain(|word| !words.contains(word));
    is_done &= arrays(context, &mut pages, &states, &mut found);
    (found, is_done)
}

/// The words of a range that could lead to an array.
fn add_words(context: &Context<'_>, memory: &dyn Memory, range: (u64, u64), words: &mut BTreeSet<u64>) {
    each_word((memory, context.resident), range, AT_ONCE, &mut |_, word| {
        let could_be = word.is_multiple_of(16) && word < 1 << 47;
        if could_be && context.space.find(word).is_some_and(words::is_mapped_memory) {
            words.insert(word);
        }
        words.len() < MAX_TRIED
    });
}

/// The states of all interpreters, that in static data among them.
pub fn interpreters(memory: &dyn Memory, program: &Program, release: &Release) -> Vec<u64> {
    let mut states = Vec::new();
    let Some((mut at, next)) = program.interpreters(memory, release) else { return states };
    let mut pages = Pages::new(memory);
    while at != 0 && states.len() < MAX_INTERPRETERS && !states.contains(&at) {
        states.push(at);
        at = pages.word(at.wrapping_add(next)).unwrap_or(0);
    }
    states
}

/// Adds the arrays that `words`, in order, lead to: of those that lead into one the first leads to its begin. False where the time
/// was over before: then nothing is known of what was not found.
fn arrays(
    context: &Context<'_>,
    pages: &mut Pages<'_>,
    words: &BTreeSet<u64>,
    found: &mut Vec<Arenas>,
) -> bool {
    let mut behind = 0;
    for &word in words {
        if std::time::Instant::now() >= context.deadline {
            return false;
        }
        if word < behind {
            continue;
        }
        for shape in SHAPES {
            let Some((mut arenas, end)) = array(context, pages, word, shape) else { continue };
            arenas.all.sort_unstable_by_key(|arena| arena.start);
            let all = &arenas.all;
            let is_apart = all.windows(2).all(|pair| pair[0].end <= pair[1].start);
            let mut held: Vec<(u64, u64)> =
                found.iter().flat_map(|other| &other.all).map(|other| (other.start, other.end)).collect();
            merge(&mut held);
            let is_new = |arena: &Arena| overlapping(&held, arena.start, arena.end).is_empty();
            if is_apart && all.iter().all(is_new) {
                behind = end;
                found.push(arenas);
                break;
            }
        }
    }
    true
}

/// The arenas of the array at `array`, and where it ends, if it is one.
fn array(context: &Context<'_>, pages: &mut Pages<'_>, array: u64, shape: Shape) -> Option<(Arenas, u64)> {
    let mut arenas = Arenas { array, shape, all: Vec::new(), broken: Vec::new() };
    // Entries that make no sense, and behind which none was met yet that does: they may lie behind the end.
    let mut doubtful = Vec::new();
    // Of the free entries one ends their list.
    let mut ends = 0;
    let mut index = 0;
    while index < MAX_ARENAS {
        let at = array.checked_add(index * ARENA_OBJECT_BYTES)?;
        let Some(entry) = pages.array::<{ ARENA_OBJECT_BYTES as usize }>(at) else { break };
        if let Some(arena) = arena(context, pages, (index as u32, &entry), shape) {
            arenas.broken.append(&mut doubtful);
            arenas.all.push(arena);
        } else if !is_unused(array, &entry, &mut ends) {
            doubtful.push(at);
            if doubtful.len() > MAX_BROKEN || arenas.all.is_empty() {
                break;
            }
        }
        index += 1;
    }
    let last = u64::from(arenas.all.last()?.index);
    Some((arenas, array + (last + 1) * ARENA_OBJECT_BYTES))
}

/// Whether an entry stands for no arena, as its list of others says; of all entries one ends that list.
fn is_unused(array: u64, entry: &[u8], ends: &mut u64) -> bool {
    let (address, next) = (word_at(entry, 0).unwrap_or(1), word_at(entry, 32).unwrap_or(1));
    let place = next.wrapping_sub(array);
    let is_in_array = place.is_multiple_of(ARENA_OBJECT_BYTES) && place / ARENA_OBJECT_BYTES < MAX_ARENAS;
    *ends += u64::from(address == 0 && next == 0);
    address == 0 && if next == 0 { *ends == 1 } else { is_in_array }
}

/// What an entry stands for, if that is an arena.
fn arena(
    context: &Context<'_>,
    pages: &mut Pages<'_>,
    (index, entry): (u32, &[u8]),
    shape: Shape,
) -> Option<Arena> {
    let start = word_at(entry, 0)?;
    let end = start.checked_add(shape.arena_bytes).filter(|&end| end < 1 << 47)?;
    let pools = start.next_multiple_of(shape.pool_bytes);
    let total = (end - pools) / shape.pool_bytes;
    let (virgin, free) = (word_at(entry, 8)?, u64::from(half_word_at(entry, 16)?));
    let is_one = start.is_multiple_of(16)
        && half_word_at(entry, 20) == Some(total as u32)
        && free <= total
        && virgin.is_multiple_of(shape.pool_bytes)
        // One pool at least was given out.
        && (pools + shape.pool_bytes..=pools + total * shape.pool_bytes).contains(&virgin)
        && words::is_own(context.space, start, end);
    if !is_one {
        return None;
    }
    let arena = Arena { index, start, end, pools, total, virgin, free, first_free: word_at(entry, 24)? };
    // A page that is swapped out cannot be asked.
    let header: Option<[u8; POOL_HEADER_BYTES as usize]> = pages.array(pools);
    let is_its = match header {
        Some(header) => half_word_at(&header, POOL_ARENA) == Some(index),
        None => {
            (context.resident)(pools, pools + POOL_HEADER_BYTES).is_empty()
                && !(context.resident)(start, end).is_empty()
        }
    };
    is_its.then_some(arena)
}

impl Arena {
    /// Its free pools that were given out before, by their list; `None` where that makes no sense.
    pub fn free_pools(&self, pages: &mut Pages<'_>, shape: Shape) -> Option<Vec<u64>> {
        let never = (self.pools + self.total * shape.pool_bytes - self.virgin) / shape.pool_bytes;
        let listed = self.free.checked_sub(never)?;
        let mut free = Vec::new();
        let mut at = self.first_free;
        while at != 0 {
            let is_one = (self.pools..self.virgin).contains(&at)
                && (at - self.pools).is_multiple_of(shape.pool_bytes)
                && (free.len() as u64) < listed;
            let header: [u8; POOL_HEADER_BYTES as usize] =
                if is_one { pages.array(at)? } else { return None };
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
