//! Metaspace up to JDK 15: each chunk has a header, which names the node that it is part of.

use std::collections::HashSet;

use strandline_process::memory::{half_word_at, word_at};
use strandline_process::range::AddressRange;

use super::{Format, MAX_NODES, Reader, Space, SpaceState};
use crate::jvm::layout::{
    CHUNKED_VERSIONS, OLD_CHUNK_BYTES, OLD_CHUNK_NEXT, OLD_CHUNK_NODE, OLD_CHUNK_SENTINEL, OLD_CHUNK_TOP,
    OLD_CHUNK_WORDS, OLD_METASPACE_LOCK, OLD_NODE_BASE, OLD_NODE_BYTES, OLD_NODE_COMMITTED, OLD_NODE_NEXT,
    OLD_NODE_SIZE, SENTINEL, SPACE_CHUNKS, SPACE_USED_WORDS,
};
use crate::jvm::view::View;

/// The format up to JDK 15.
pub const FORMAT: Format =
    Format { versions: CHUNKED_VERSIONS, lock: OLD_METASPACE_LOCK, read_arena, read_space };

/// See [`Format::read_arena`].
fn read_arena(reader: &mut Reader<'_>, arena: u64, state: &mut SpaceState) -> Option<u64> {
    let mut bytes = 0_u64;
    let mut at = reader.view.word(arena.checked_add(SPACE_CHUNKS)?)?;
    while at != 0 {
        reader.visit(at)?;
        let chunk: [u8; OLD_CHUNK_BYTES] = reader.view.array(at)?;
        let end = at.checked_add(word_at(&chunk, OLD_CHUNK_WORDS)?.checked_mul(8)?)?;
        let top = word_at(&chunk, OLD_CHUNK_TOP)?;
        if half_word_at(&chunk, OLD_CHUNK_SENTINEL)? != SENTINEL || !(at + 1..=end).contains(&top) {
            return None;
        }
        state.used_ranges.push(AddressRange::new(at, top));
        state.nodes.insert(word_at(&chunk, OLD_CHUNK_NODE)?);
        bytes = bytes.checked_add(top - at)?;
        at = word_at(&chunk, OLD_CHUNK_NEXT)?;
    }
    let counted_bytes = reader.view.word(arena.checked_add(SPACE_USED_WORDS)?)?.checked_mul(8)?;
    state.used_bytes = state.used_bytes.checked_add(counted_bytes)?;
    (counted_bytes <= bytes).then_some(bytes)
}

/// See [`Format::read_space`]. Computes the ranges from the nodes of chunks and those that follow
/// them in the list. Only nodes without a chunk in use could precede them, and HotSpot purges
/// these.
fn read_space(state: SpaceState, view: &View<'_>) -> Option<Space> {
    let mut space =
        Space { used_ranges: state.used_ranges, used_bytes: state.used_bytes, ..Space::default() };
    let mut visited_nodes = HashSet::new();
    let mut pending: Vec<u64> = state.nodes.into_iter().collect();
    while let Some(at) = pending.pop() {
        if at == 0 || !visited_nodes.insert(at) {
            continue;
        }
        let node: [u8; OLD_NODE_BYTES] = view.array(at)?;
        let start = word_at(&node, OLD_NODE_BASE)?;
        let end = start.checked_add(word_at(&node, OLD_NODE_SIZE)?)?;
        let [low, high] = OLD_NODE_COMMITTED.map(|offset| word_at(&node, offset));
        let (low, high) = (low?, high?);
        if low != start || !(low..=end).contains(&high) || space.ranges.len() >= MAX_NODES {
            return None;
        }
        space.ranges.push(AddressRange { start, end });
        space.committed_bytes = space.committed_bytes.checked_add(high - low)?;
        pending.push(word_at(&node, OLD_NODE_NEXT)?);
    }
    Some(space)
}
