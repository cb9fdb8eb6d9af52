//! Metaspace from JDK 16 on (JEP 387): chunks are described outside of it. The used and the
//! committed bytes of each kind of space have one counter each, which the structures point to.

use std::collections::HashSet;

use strandline_process::memory::word_at;
use strandline_process::range::AddressRange;

use super::{Era, MAX_NODES, Reader, Space, SpaceState};
use crate::jvm::layout::{
    ARENA_CHUNKS, ARENA_COUNTER, CHUNK_BASE, CHUNK_BYTES, CHUNK_NEXT, CHUNK_NODE, CHUNK_USED_WORDS,
    ELASTIC_VERSIONS, LIST_COMMITTED, LIST_FIRST, LIST_LIMITER, LIST_RESERVED, MAX_CHUNK_BYTES,
    METASPACE_LOCK, NODE_BASE, NODE_BYTES, NODE_NEXT, NODE_SIZE,
};
use crate::jvm::view::View;

pub const ERA: Era = Era { versions: ELASTIC_VERSIONS, lock: METASPACE_LOCK, arena, space };

fn arena(reader: &mut Reader<'_>, arena: u64, kind: &mut SpaceState) -> Option<u64> {
    let counter = reader.view.word(arena.checked_add(ARENA_COUNTER)?)?;
    if kind.counter == 0 {
        kind.counter = counter;
    }
    if kind.counter != counter {
        return None;
    }
    let mut bytes = 0;
    let mut at = reader.view.word(arena.checked_add(ARENA_CHUNKS)?)?;
    while at != 0 {
        let mut chunk = [0; CHUNK_BYTES];
        reader.is_new(at).then_some(())?;
        reader.view.memory.read(at, &mut chunk).ok()?;
        let base = word_at(&chunk, CHUNK_BASE)?;
        let used = word_at(&chunk, CHUNK_USED_WORDS)?.checked_mul(8)?;
        if used > MAX_CHUNK_BYTES || !base.is_multiple_of(8) {
            return None;
        }
        if used > 0 {
            kind.used.push(AddressRange::new(base, base.checked_add(used)?));
        }
        kind.nodes.insert(word_at(&chunk, CHUNK_NODE)?);
        bytes += used;
        at = word_at(&chunk, CHUNK_NEXT)?;
    }
    Some(bytes)
}

/// Reads the ranges from the list of nodes. A node points to counters in its list, which yields the
/// list's address.
fn space(kind: SpaceState, view: &View<'_>) -> Option<Space> {
    let mut node = [0; NODE_BYTES];
    let got = view.memory.read_some(*kind.nodes.iter().next()?, &mut node);
    let words: Vec<u64> = (0..got / 8).filter_map(|index| word_at(&node, index * 8)).collect();
    // Three adjacent words: the limiter, the counter of reserved words, and that of committed
    // words.
    let list = words.windows(3).find_map(|three| {
        let list = three[1].checked_sub(LIST_RESERVED).filter(|list| list.is_multiple_of(8))?;
        let follows = three[2] == list.checked_add(LIST_COMMITTED)?;
        (follows && view.word(list.checked_add(LIST_LIMITER)?)? == three[0]).then_some(list)
    })?;
    let mut ranges = Vec::new();
    let mut at = view.word(list.checked_add(LIST_FIRST)?)?;
    let mut seen = HashSet::new();
    while at != 0 && ranges.len() < MAX_NODES && seen.insert(at) {
        let start = view.word(at.checked_add(NODE_BASE)?)?;
        let bytes = view.word(at.checked_add(NODE_SIZE)?)?;
        ranges.push(AddressRange::new(start, start.checked_add(bytes)?));
        at = view.word(at.checked_add(NODE_NEXT)?)?;
    }
    let space = Space {
        ranges,
        used: kind.used,
        used_bytes: view.word(kind.counter)?.checked_mul(8)?,
        committed_bytes: view.word(list.checked_add(LIST_COMMITTED)?)?.checked_mul(8)?,
    };
    let reserved = view.word(list.checked_add(LIST_RESERVED)?)?.checked_mul(8)?;
    (kind.nodes.is_subset(&seen) && reserved == space.reserved_bytes()).then_some(space)
}
