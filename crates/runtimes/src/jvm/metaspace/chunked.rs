//! Metaspace up to JDK 15: each chunk has a header, which names the node that it was cut from.

use std::collections::HashSet;

use strandline_process::memory::{half_word_at, word_at};
use strandline_process::range::AddressRange;

use super::{Era, MAX_NODES, Reader, Space, SpaceState};
use crate::jvm::layout::{
    CHUNKED_VERSIONS, OLD_CHUNK_BYTES, OLD_CHUNK_NEXT, OLD_CHUNK_NODE, OLD_CHUNK_SENTINEL, OLD_CHUNK_TOP,
    OLD_CHUNK_WORDS, OLD_METASPACE_LOCK, OLD_NODE_BASE, OLD_NODE_BYTES, OLD_NODE_COMMITTED, OLD_NODE_NEXT,
    OLD_NODE_SIZE, SENTINEL, SPACE_CHUNKS, SPACE_USED_WORDS,
};
use crate::jvm::view::View;

pub const ERA: Era = Era { versions: CHUNKED_VERSIONS, lock: OLD_METASPACE_LOCK, arena, space };

fn arena(reader: &mut Reader<'_>, arena: u64, kind: &mut SpaceState) -> Option<u64> {
    let mut bytes = 0_u64;
    let mut at = reader.view.word(arena.checked_add(SPACE_CHUNKS)?)?;
    while at != 0 {
        let mut chunk = [0; OLD_CHUNK_BYTES];
        reader.is_new(at).then_some(())?;
        reader.view.memory.read(at, &mut chunk).ok()?;
        let end = at.checked_add(word_at(&chunk, OLD_CHUNK_WORDS)?.checked_mul(8)?)?;
        let top = word_at(&chunk, OLD_CHUNK_TOP)?;
        if half_word_at(&chunk, OLD_CHUNK_SENTINEL)? != SENTINEL || !(at + 1..=end).contains(&top) {
            return None;
        }
        kind.used.push(AddressRange::new(at, top));
        kind.nodes.insert(word_at(&chunk, OLD_CHUNK_NODE)?);
        bytes = bytes.checked_add(top - at)?;
        at = word_at(&chunk, OLD_CHUNK_NEXT)?;
    }
    let used = reader.view.word(arena.checked_add(SPACE_USED_WORDS)?)?.checked_mul(8)?;
    kind.used_bytes = kind.used_bytes.checked_add(used)?;
    (used <= bytes).then_some(bytes)
}

/// Computes the ranges from the nodes that chunks were cut from, and those that follow them: unused
/// nodes are purged.
fn space(kind: SpaceState, view: &View<'_>) -> Option<Space> {
    let mut space = Space { used: kind.used, used_bytes: kind.used_bytes, ..Space::default() };
    let mut seen = HashSet::new();
    let mut left: Vec<u64> = kind.nodes.into_iter().collect();
    while let Some(at) = left.pop() {
        if at == 0 || !seen.insert(at) {
            continue;
        }
        let mut node = [0; OLD_NODE_BYTES];
        view.memory.read(at, &mut node).ok()?;
        let start = word_at(&node, OLD_NODE_BASE)?;
        let end = start.checked_add(word_at(&node, OLD_NODE_SIZE)?)?;
        let [low, high] = OLD_NODE_COMMITTED.map(|offset| word_at(&node, offset));
        let (low, high) = (low?, high?);
        if low != start || !(low..=end).contains(&high) || space.ranges.len() >= MAX_NODES {
            return None;
        }
        space.ranges.push(AddressRange { start, end });
        space.committed_bytes = space.committed_bytes.checked_add(high - low)?;
        left.push(word_at(&node, OLD_NODE_NEXT)?);
    }
    Some(space)
}
