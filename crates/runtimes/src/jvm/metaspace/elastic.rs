//! Metaspace from JDK 16 on (JEP 387): the descriptions of chunks are outside of it. The used and
//! the committed words of each kind of space have one counter each, which the structures point to.

use std::collections::HashSet;

use strandline_process::memory::{word_at, words_in};
use strandline_process::range::AddressRange;

use super::{Format, MAX_NODES, Reader, Space, SpaceState};
use crate::jvm::layout::{
    ARENA_CHUNKS, ARENA_COUNTER, CHUNK_BASE, CHUNK_BYTES, CHUNK_NEXT, CHUNK_NODE, CHUNK_USED_WORDS,
    ELASTIC_VERSIONS, LIST_COMMITTED, LIST_FIRST, LIST_LIMITER, LIST_RESERVED, MAX_CHUNK_BYTES,
    METASPACE_LOCK, NODE_BASE, NODE_BYTES, NODE_NEXT, NODE_SIZE,
};
use crate::jvm::view::View;

/// The format from JDK 16 on.
pub const FORMAT: Format =
    Format { versions: ELASTIC_VERSIONS, lock: METASPACE_LOCK, read_arena, read_space };

/// See [`Format::read_arena`].
fn read_arena(reader: &mut Reader<'_>, arena: u64, state: &mut SpaceState) -> Option<u64> {
    let counter = reader.view.word(arena.checked_add(ARENA_COUNTER)?)?;
    if *state.counter.get_or_insert(counter) != counter {
        return None;
    }
    let mut bytes = 0;
    let mut at = reader.view.word(arena.checked_add(ARENA_CHUNKS)?)?;
    while at != 0 {
        reader.visit(at)?;
        let chunk: [u8; CHUNK_BYTES] = reader.view.array(at)?;
        let base = word_at(&chunk, CHUNK_BASE)?;
        let used_bytes = word_at(&chunk, CHUNK_USED_WORDS)?.checked_mul(8)?;
        if used_bytes > MAX_CHUNK_BYTES || !base.is_multiple_of(8) {
            return None;
        }
        if used_bytes > 0 {
            state.used_ranges.push(AddressRange::new(base, base.checked_add(used_bytes)?));
        }
        state.nodes.insert(word_at(&chunk, CHUNK_NODE)?);
        bytes += used_bytes;
        at = word_at(&chunk, CHUNK_NEXT)?;
    }
    Some(bytes)
}

/// See [`Format::read_space`]. Reads the ranges from the list of nodes. A node points to counters
/// in its list, which yields the list's address.
fn read_space(state: SpaceState, view: &View<'_>) -> Option<Space> {
    let mut node = [0; NODE_BYTES];
    let read_bytes = view.memory.read_some(*state.nodes.iter().next()?, &mut node);
    let words: Vec<u64> = words_in(node.get(..read_bytes)?).collect();
    // Three adjacent pointers: to the limiter, the counter of reserved words, and that of committed
    // words.
    let list = words.windows(3).find_map(|window| {
        let [limiter, reserved, committed] = *window else { return None };
        let list = reserved.checked_sub(LIST_RESERVED).filter(|list| list.is_multiple_of(8))?;
        let has_counters = committed == list.checked_add(LIST_COMMITTED)?;
        (has_counters && view.word(list.checked_add(LIST_LIMITER)?)? == limiter).then_some(list)
    })?;
    let mut ranges = Vec::new();
    let mut at = view.word(list.checked_add(LIST_FIRST)?)?;
    let mut visited_nodes = HashSet::new();
    while at != 0 && ranges.len() < MAX_NODES && visited_nodes.insert(at) {
        let start = view.word(at.checked_add(NODE_BASE)?)?;
        let bytes = view.word(at.checked_add(NODE_SIZE)?)?;
        ranges.push(AddressRange::new(start, start.checked_add(bytes)?));
        at = view.word(at.checked_add(NODE_NEXT)?)?;
    }
    let space = Space {
        ranges,
        used_ranges: state.used_ranges,
        used_bytes: view.word(state.counter?)?.checked_mul(8)?,
        committed_bytes: view.word(list.checked_add(LIST_COMMITTED)?)?.checked_mul(8)?,
    };
    // A list that was not read to its end does not add up to this.
    let reserved_bytes = view.word(list.checked_add(LIST_RESERVED)?)?.checked_mul(8)?;
    (state.nodes.is_subset(&visited_nodes) && reserved_bytes == space.reserved_bytes()).then_some(space)
}
